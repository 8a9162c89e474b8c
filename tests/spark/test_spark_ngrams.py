"""The n-gram index in Spark: executors build it, and scans and plain queries by LIKE, RLIKE, contains, endswith and
startswith read fewer files and return what Spark returns."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples, few_of
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from spark_frames import files_read, rows_of_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORDS = ["error", "Warning", "user_4711", "日本語文", "100%", "a1b2c3d4", "İstanbul", "", "x.y"]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ngrams") / "lake"
    root.mkdir()
    rng = random.Random(1)
    for number in range(4):
        texts = [None if n % 7 == 0 else " ".join([f"file{number}name", *rng.choices(WORDS, k=2)]) for n in range(50)]
        pq.write_table(pa.table({"n": range(50 * number, 50 * number + 50), "s": texts}), root / f"{number}.parquet")
    ss.create(root).close()
    sks.create_index(spark, root, "s", kind="ngram", ignore_case=True)
    return root


CONDITIONS = {
    "s LIKE '%file2name%'": 1,
    "contains(s, 'file2name')": 1,
    "startswith(s, 'file2name')": 1,
    "endswith(s, 'no such end')": 0,
    "s RLIKE 'file(1|2)name'": 2,
    "s RLIKE 'file[13]name .*err'": 2,
    "s RLIKE '(?i)FILE2NAME'": 4,
    "s RLIKE 'file2name|n.thing'": 1,
    "s RLIKE '[a[b]]ile2'": 4,
    "NOT (s RLIKE 'file2name')": 4,
    "s NOT LIKE '%file2name%'": 4,
    "s RLIKE 'file2name' OR n = 7": 2,
    "s LIKE '%file2name%' AND s LIKE '%user\\\\_4711%'": 1,
}


def test_scans_and_plain_queries_read_few_files_and_return_the_same(spark: SparkSession, lake: Path) -> None:
    plain, wheres = spark.read.parquet(str(lake)), few_of(CONDITIONS, 5)
    expected = rows_of_each([plain.where(where).select("n") for where in wheres])
    for make in (lambda where: sks.scan(spark, lake, F.expr(where)), lambda where: sks.scan(spark, lake, where)):
        assert rows_of_each([make(where).select("n") for where in wheres]) == expected
    loaded = sks.scan(spark, lake)
    optimized = [sks.optimized(loaded.where(where)) for where in wheres]
    assert rows_of_each([frame.select("n") for frame in optimized]) == expected
    assert [files_read(frame) for frame in optimized] == [[CONDITIONS[where]] for where in wheres]


def test_random_expressions(spark: SparkSession, lake: Path) -> None:
    rng = random.Random(7)
    pieces = ["err", "or", "file", "[0-3]", "name", ".", "\\\\.", "(a|b)", "日本", "W?", "x+", "\\\\d", "^", "$"]
    plain = spark.read.parquet(str(lake))
    wheres = [f"s RLIKE '{''.join(rng.choices(pieces, k=rng.randint(1, 4)))}'" for _ in range(examples(5, 200))]
    expected = rows_of_each([plain.where(where).select("n") for where in wheres])
    found = rows_of_each([sks.scan(spark, lake, F.expr(where)).select("n") for where in wheres])
    assert dict(zip(wheres, found, strict=True)) == dict(zip(wheres, expected, strict=True))


def test_executors_build_all_of_it(lake: Path) -> None:
    with ss.open(lake) as table:
        (row,) = [one for one in table.indexes().to_pylist() if one["kind"] == "ngram"]
        assert row["files_covered"] == 4 and table.verify() == []
        assert table.scan("contains(s, 'file2name')").files().num_rows == 1
        assert table.scan("s ILIKE '%FILE2NAME%'").files().num_rows == 1
