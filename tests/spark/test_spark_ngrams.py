"""The n-gram index in Spark: executors build it, and scans and plain queries by LIKE, RLIKE, contains, endswith and
startswith read fewer files and return what Spark returns."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

import skipstone as ss
from example_counts import examples
from library_versions import needs
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks

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


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("where", CONDITIONS)
def test_scans_read_few_files_and_return_the_same(spark: SparkSession, lake: Path, where: str) -> None:
    expected = sorted(row.n for row in spark.read.parquet(str(lake)).where(where).collect())
    frame = sks.scan(spark, lake, F.expr(where))
    assert sorted(row.n for row in frame.collect()) == expected
    text = sks.scan(spark, lake, where)
    assert sorted(row.n for row in text.collect()) == expected


@needs("pyspark", 4, what="explain")
@pytest.mark.some_cases(5)
@pytest.mark.parametrize("where", CONDITIONS)
def test_plain_queries_read_few_files(spark: SparkSession, lake: Path, where: str) -> None:
    frame = spark.read.format("skipstone").load(str(lake)).where(where)
    expected = sorted(row.n for row in spark.read.parquet(str(lake)).where(where).collect())
    optimized = sks.optimized(frame)
    assert sorted(row.n for row in optimized.collect()) == expected
    (line,) = [line for line in sks.explain(optimized).splitlines() if line.startswith("Spark reads")]
    assert int(re.search(r"([\d,]+) files? in ", line)[1]) == CONDITIONS[where]


def test_random_expressions(spark: SparkSession, lake: Path) -> None:
    rng = random.Random(7)
    pieces = [
        "err",
        "or",
        "file",
        "[0-3]",
        "name",
        ".",
        "\\\\.",
        "(a|b)",
        "日本",
        "W?",
        "x+",
        "\\\\d",
        "^",
        "$",
        "4{2}",
        "[wW]arn",
    ]
    plain = spark.read.parquet(str(lake)).cache()
    for _ in range(examples(3)):
        where = f"s RLIKE '{''.join(rng.choices(pieces, k=rng.randint(1, 4)))}'"
        expected = sorted(row.n for row in plain.where(where).collect())
        assert sorted(row.n for row in sks.scan(spark, lake, F.expr(where)).collect()) == expected, where


def test_executors_build_all_of_it(lake: Path) -> None:
    with ss.open(lake) as table:
        (row,) = [one for one in table.indexes().to_pylist() if one["kind"] == "ngram"]
        assert row["files_covered"] == 4 and table.verify() == []
        assert table.scan("contains(s, 'file2name')").files().num_rows == 1
        assert table.scan("s ILIKE '%FILE2NAME%'").files().num_rows == 1
