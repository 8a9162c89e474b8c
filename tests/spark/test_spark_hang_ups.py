"""Whoever has enough rows hangs up, and nothing is printed; what fails is said all the same."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from example_counts import only_in_test_all

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

from skipstone.spark_adapter.hang_ups import leave_out_hang_ups

PROGRAM = """
import sys, time
import pyarrow as pa, pyarrow.parquet as pq
import skipstone as ss
from pyspark.sql import SparkSession
from skipstone import spark_adapter as sks

root = sys.argv[1]
for number in range(4):
    ks = range(number * 30_000, (number + 1) * 30_000)
    pq.write_table(pa.table({"k": ks, "s": ["x" * 200] * len(ks)}), f"{root}/{number}.parquet", row_group_size=3_000)
with ss.create(root) as table:
    table.create_index("k", kind="secondary")
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = session.config("spark.ui.showConsoleProgress", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
def copy(batches):
    for batch in batches:
        for _ in range(50):
            yield batch


for _ in range(3):  # of a function that is not ours; a worker that read for us would not print it
    spark.range(100_000).mapInArrow(copy, "id long").limit(3).collect()
time.sleep(1)
print("now ours", file=sys.stderr, flush=True)
keys = spark.range(120_000).withColumnRenamed("id", "k")
frame = sks.scan(spark, root, hand_over=False)
assert len(frame.limit(5).collect()) == len(frame.take(5)) == 5
sks.scan(spark, root, "k > 10", hand_over=False).head()
spark.read.format("skipstone").load(root).show(3)
assert len(sks.lookup(spark, root, keys, on="k").take(3)) == 3
time.sleep(1)
spark.stop()
"""


@only_in_test_all  # by default what is printed of which error: the next test
def test_limit_and_head_print_nothing(java_home: str, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    there = {"JAVA_HOME": java_home, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "lake")],
        env={**os.environ, **there},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    others, _, ours = done.stderr.partition("now ours")
    assert "Error" not in ours and "Traceback" not in ours, ours
    assert "Error" in others  # PySpark's own, which this would show


def test_only_the_daemons_message_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(traceback, "print_exc", traceback.print_exc)  # put back afterwards
    leave_out_hang_ups()
    once = traceback.print_exc
    leave_out_hang_ups()
    assert traceback.print_exc is once
    hang_up = compile("raise BrokenPipeError('hung up')", "/lib/pyspark/daemon.py", "exec")
    for code, is_printed in (
        (hang_up, False),
        (compile("raise BrokenPipeError('hung up')", "/a/task.py", "exec"), True),
        (compile("raise ValueError('hung up')", "/lib/pyspark/daemon.py", "exec"), True),
    ):
        try:
            exec(code)
        except Exception:
            traceback.print_exc()
        assert ("hung up" in capsys.readouterr().err) == is_printed
