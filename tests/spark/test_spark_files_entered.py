"""A reader who follows a call meets few files."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from example_counts import only_in_test_all
from skipstone import spark_adapter as sks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_MAX = 12


def _entered(call: Callable[[], object]) -> set[str]:
    """The files of the adapter of which the driver calls a function, in any thread."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.parent.name == "spark_adapter" and frame.f_code.co_name != "<module>":
            files.add(path.name)

    before = sys.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]
    return files


@only_in_test_all
def test_a_scan_and_an_optimized_query_enter_few_files(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        rows = pa.table({"k": range(10 * number, 10 * number + 10), "u": [f"u{i}" for i in range(10)]})
        pq.write_table(rows, tmp_path / f"{number}.parquet")
    ss.create(tmp_path).close()
    scan, plain = sks.scan(spark, tmp_path), spark.read.parquet(str(tmp_path))
    calls: dict[str, Callable[[], object]] = {
        "scan": lambda: sks.scan(spark, tmp_path, "k = 5").collect(),
        "scan by Spark's reader": lambda: sks.scan(spark, tmp_path, "k = 5", hand_over=True).collect(),
        "scan of functions": lambda: sks.scan(spark, tmp_path, "k = 5 AND upper(u) = 'U5'", order_by="k").collect(),
        "optimized scan": lambda: sks.optimized(scan.where("k = 5")).collect(),
        "optimized folder": lambda: sks.optimized(plain.where("k = 5")).collect(),
    }
    for name, call in calls.items():
        files = _entered(call)
        assert 0 < len(files) <= FILES_MAX, (name, sorted(files))
