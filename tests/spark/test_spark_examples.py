"""The programs in examples/ and the examples of docs/spark.md run unchanged."""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import only_in_test_all
from library_versions import needs
from pyspark.sql import DataFrame, SparkSession
from skipstone import spark_adapter as sks

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "nightly_writer.py": [r"night=1: 20,000 rows in \d+ files", "night=2: 20,000 rows", r"cover (\d+) of \1\b"],
    "adhoc_needle.py": [r"is id 123456, in shard 0\n", r"bloom\(event\)"],
    "prune_in_map_in_arrow.py": [
        r"04.parquet: row groups \[9\], 50 rows\n05.parquet: row groups \[0\], 50 rows\n2 of 20 files"
    ],
}


def test_every_example_is_run_and_short() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(PRINTED)
    assert all(len(path.read_text().splitlines()) <= 60 for path in EXAMPLES.glob("*.py"))


@only_in_test_all
@pytest.mark.parametrize("name", PRINTED)
def test_example(
    spark: SparkSession,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    output = capsys.readouterr().out
    for line in PRINTED[name]:
        assert re.search(line, output), output


def _flights(first: int) -> pa.Table:
    count = range(first, first + 60)
    columns = {"flight": [f"F{i % 7}" for i in count], "tailnum": [f"N{14200 + i}" for i in count]}
    columns |= {"dep_delay": [float(i % 50) for i in count], "origin": ["JFK" if i % 2 else "LGA" for i in count]}
    times = pa.array([i * 3_600_000_000 + 1_577_836_800_000_000 for i in count], pa.timestamp("us", "UTC"))
    return pa.table({**columns, "day": [i % 28 for i in count], "time_hour": times})


def _blocks_of_the_page() -> list[str]:
    text = (EXAMPLES.parent / "docs" / "spark.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_page_shows_every_verb() -> None:
    shown = set(re.findall(r"\bsks\.(\w+)\(", "".join(_blocks_of_the_page())))
    assert {name for name in sks.__all__ if inspect.isfunction(getattr(sks, name))} <= shown


@only_in_test_all  # by default test_spark_verbs.py
@needs("pyspark", 4, 1, what="explain and views")
def test_the_blocks_of_the_page_run(spark: SparkSession, tmp_path: Path) -> None:
    """Each verb once, by Spark: some seconds."""
    lake, stream = tmp_path / "lake" / "flights", tmp_path / "stream"
    for month in (1, 2, 12):
        folder = lake / "year=2013" / f"month={month}"
        folder.mkdir(parents=True)
        pq.write_table(_flights(month * 10), folder / "a.parquet")
    blocks = _blocks_of_the_page()
    rows = spark.createDataFrame(_flights(300)).selectExpr("*", "2013 AS year", "3 AS month")
    rows.write.parquet(str(stream))
    names: dict = {
        "sks": sks,
        "spark": spark,
        "df": rows,
        "my_reader": lambda path, row_groups: [path],
        "paths": [str(path) for path in lake.rglob("*.parquet")],
        "checkpoint": str(tmp_path / "checkpoint"),
        "updates": rows.limit(3).dropDuplicates(["flight", "day"]),
        "cancelled": rows.select("flight").limit(1),
        "stream": spark.readStream.schema(rows.schema).parquet(str(stream)),
    }
    try:
        for block in blocks:
            names["df"] = rows
            exec(compile(block.replace("lake/", f"{tmp_path}/lake/"), "docs/spark.md", "exec"), names)
        names["query"].processAllAvailable()
        assert len(blocks) == 3 and names["rows"].count() == 2  # of three files
    finally:
        names["query"].stop()
        spark.catalog.dropTempView("flights")


@only_in_test_all
def test_a_batch_of_a_stream_that_is_tried_again_commits_once(spark: SparkSession, tmp_path: Path) -> None:
    lake, source, failures = tmp_path / "lake", tmp_path / "source", ["before", "after", "before", "after"]
    for number in range(3):
        spark.range(10 * number, 10 * number + 10, 1, 1).write.mode("append").parquet(str(source))
    ss.create(lake, schema=pa.schema([("id", pa.int64())])).close()

    def save_batch(rows: DataFrame, batch: int) -> None:
        failing = failures.pop() if failures else None
        if failing == "before":
            raise RuntimeError("killed")
        sks.save(rows, lake, key=f"numbers-{batch}")
        if failing == "after":
            raise RuntimeError("killed")

    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(source))
    while True:
        left = len(failures)
        query = stream.writeStream.foreachBatch(save_batch).option("checkpointLocation", str(tmp_path / "c")).start()
        try:
            query.processAllAvailable()
            break
        except Exception:
            assert len(failures) < left
        finally:
            query.stop()
    with ss.open(lake) as table:
        assert sorted(table.scan().to_table().column("id").to_pylist()) == list(range(30))
        assert table.version == 4  # of three batches, each once
