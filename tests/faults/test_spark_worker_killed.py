"""A worker of the cluster is killed, with its executor, in the middle of a build and in the middle of a write.

The job finishes on the other worker, or fails. The table is sound and contains the whole result or nothing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import spark_sessions
from example_counts import only_in_test_all

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

import skipstone as ss
from spark_cluster import Cluster, package_archive

FILES, ROWS = 8, 60_000
_WAIT_S_MAX = 300.0  # against a hang
# Each action prints how it ended. The rows that it writes differ from the rows in the table.
DRIVER = f"""
import sys
from pathlib import Path
import spark_sessions
from example_counts import only_in_test_all
from skipstone import spark_adapter as sks

spark = spark_sessions.elsewhere(sys.argv[1], Path(sys.argv[2]))
path = sys.argv[3]


def build():
    sks.create_index(spark, path, "s", "secondary")


def write():
    rows = spark.range({FILES * ROWS}, {2 * FILES * ROWS}, 1, {FILES}).selectExpr("id AS k", "md5(string(id)) AS s")
    rows.write.format("skipstone").mode("append").save(path)


sks.register(spark)
for action in (build, write):
    try:
        action()
        print(action.__name__, "done", flush=True)
    except Exception as error:
        print(action.__name__, "failed:", repr(error), flush=True)
spark.stop()
"""


@only_in_test_all
def test_a_worker_killed_in_a_build_and_in_a_write(spark_cluster: Cluster, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    _write_lake(lake)
    runs = lake / ".skipstone" / "runs"
    with _driver(spark_cluster, lake, tmp_path) as driver, (tmp_path / "driver.log").open() as log:

        def kill_when_there_is_more(files: Callable[[], set[Path]]) -> str:
            before, version = files(), ss.open(lake).version
            _wait(lambda: files() - before, driver, log.name)
            spark_cluster.kill_worker()
            assert ss.open(lake).version == version, "the worker was killed when all was over"
            spark_cluster.start_worker()
            _wait(lambda: log.readline().startswith(("build ", "write ")), driver, log.name)
            return Path(log.name).read_text().splitlines()[-1]

        built = kill_when_there_is_more(lambda: set(runs.rglob("*")))
        with ss.open(lake) as table:
            covered = [index["files_covered"] for index in table.indexes().to_pylist() if index["kind"] == "secondary"]
            assert covered == ([FILES] if built == "build done" else [])
            assert table.verify(deep=True) == []
        written = kill_when_there_is_more(lambda: {path for path in lake.rglob("*") if runs.parent not in path.parents})
        assert driver.wait(_WAIT_S_MAX) == 0
    with ss.open(lake) as table:
        ks = np.sort(table.scan(columns=["k"]).to_table()["k"].to_numpy())
        count = FILES * ROWS * (2 if written == "write done" else 1)
        assert ks.tolist() == list(range(count)), "every row once"
        assert table.verify(deep=True) == []
        (one,) = table.scan(f"s = '{_text(7)}'").to_table()["k"].to_pylist()
        assert one == 7
    assert (built, written) == ("build done", "write done"), "Spark tries a lost task again"


def _text(k: int) -> str:
    return f"{k * 7919 % 1_000_003:032d}"


def _write_lake(lake: Path) -> None:
    lake.mkdir()
    for number in range(FILES):
        ks = range(number * ROWS, (number + 1) * ROWS)
        rows = pa.table({"k": pa.array(ks, pa.int64()), "s": pa.array([_text(k) for k in ks])})
        pq.write_table(rows, lake / f"{number}.parquet", row_group_size=ROWS // 3)
    ss.create(lake).close()


@contextlib.contextmanager
def _driver(cluster: Cluster, lake: Path, folder: Path) -> Iterator[subprocess.Popen]:
    options = {
        **cluster.options,
        # The output of a lost executor is requested once more, soon; then the task runs again.
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": "200ms",
    }
    session = spark_sessions.described(cluster.url, options, package_archive(folder / "skipstone.zip"))
    paths = [str(Path(spark_sessions.__file__).parent), os.environ.get("PYTHONPATH", "")]
    with (folder / "driver.log").open("w") as log, (folder / "driver-errors.log").open("w") as errors:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, session, str(folder), str(lake)],
            env={**cluster.environment, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=log,
            stderr=errors,
            stdin=subprocess.DEVNULL,
        )
    try:
        yield driver
    finally:
        driver.kill()  # its JVM ends with it
        driver.wait()


def _wait(is_so: Callable[[], object], driver: subprocess.Popen, log: str) -> None:
    until = time.monotonic() + _WAIT_S_MAX
    while not is_so():
        if driver.poll() is not None or time.monotonic() > until:
            errors = Path(log).with_name("driver-errors.log").read_text(errors="replace")
            raise AssertionError(f"{Path(log).read_text()}\n{errors[-4000:]}")
        time.sleep(0.01)
