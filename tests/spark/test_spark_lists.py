"""Spark's array_contains is looked up in indexes of list elements, which executors build, and Spark tests the rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import few_of, is_thorough
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from spark_frames import files_read, rows_of_each
from spark_in_process import run_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TAGS = [[[7, 8], None, []], [[None, 7], [9]], [[70], [71, 72]], [[1, 2, 3]]]


@pytest.fixture(scope="module", params=["bloom", "secondary"] if is_thorough() else ["secondary"])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lists") / request.param
    root.mkdir()
    for number, lists in enumerate(TAGS):
        words = [None if one is None else [None if value is None else f"t{value}" for value in one] for one in lists]
        rows = {
            "id": pa.array([10 * number + i for i in range(len(lists))], pa.int64()),
            "tags": pa.array(lists, pa.list_(pa.int64())),
            "words": pa.array(words, pa.list_(pa.string())),
        }
        pq.write_table(pa.table(rows), root / f"{number}.parquet")
    ss.create(root).close()
    sks.create_index(spark, root, "tags", request.param)
    sks.create_index(spark, root, ["words"], request.param)
    return root


WHERE = {  # the rows, and how many files are read
    "array_contains(tags, 7)": ([0, 10], 2),
    "array_contains(tags, 7L)": ([0, 10], 2),
    "array_contains(tags, 12345)": ([], 0),
    "array_contains(words, 't71')": ([21], 1),
    "array_contains(tags, 7) AND id > 5": ([10], 1),
    "array_contains(tags, 7) OR array_contains(words, 't3')": ([0, 10, 30], 3),
    "NOT array_contains(tags, 7)": ([2, 11, 20, 21, 30], 4),
}


def test_array_contains_prunes(spark: SparkSession, lake: Path) -> None:
    whole, chosen = sks.scan(spark, lake), few_of(WHERE, 2)
    by_expression = [sks.scan(spark, lake, F.expr(where)) for where in chosen]
    by_text = [sks.scan(spark, lake, where) for where in chosen]
    optimized = [sks.optimized(whole.where(where)) for where in chosen]
    read = [sks.read_parquet(spark, lake, where) for where in chosen[:1]]
    expected = [sorted(f"({number},)" for number in ids) for ids, _ in map(WHERE.get, chosen)]
    frames = [*by_expression, *by_text, *optimized, *read]
    assert rows_of_each([frame.select("id") for frame in frames]) == 3 * expected + expected[:1]
    for frame, where in zip([*by_expression, *by_text], 2 * chosen, strict=True):
        assert files_read(frame) == [WHERE[where][1]]
    assert files_read(sks.optimized(whole.where("array_contains(tags, 7)").select("id"))) == [2]


def test_tasks_compute_expressions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)
    for number in range(4):
        rows = pa.table({"id": [10 * number, 10 * number + 1], "word": [f"W{number}", None]})
        pq.write_table(rows, tmp_path / f"{number}.parquet")
    ss.create(tmp_path).close()
    sks.create_index(None, tmp_path, "lower(word)", "secondary")
    with ss.open(tmp_path) as table:
        plan = table.scan("lower(word) = 'w2'")
        assert plan.files()["path"].to_pylist() == ["2.parquet"]
        assert plan.to_table()["id"].to_pylist() == [20]
