"""`array_contains` over indexes of list elements, and LIKE, RLIKE, contains and the like over n-gram indexes: executors
build them, and queries read fewer files and return what Spark returns."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples, few_of, is_thorough
from lake_strategies import make_lake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks
from spark_frames import files_read, rows_of_each
from spark_in_process import run_here

TAGS = [[[7, 8], None, []], [[None, 7], [9]], [[70], [71, 72]], [[1, 2, 3]]]
WORDS = ["error", "Warning", "user_4711", "日本語文", "100%", "a1b2c3d4", "İstanbul", "", "x.y"]
LISTS = {  # condition: how many files are read
    "array_contains(tags, 7)": 2,
    "array_contains(tags, 7L)": 2,
    "array_contains(tags, 12345)": 0,
    "array_contains(words, 't71')": 1,
    "array_contains(tags, 7) AND n > 5": 1,
    "array_contains(tags, 7) OR array_contains(words, 't3')": 3,
    "NOT array_contains(tags, 7)": 4,
}
TEXTS = {
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


@pytest.fixture(scope="module")
def lists(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = []
    for number, tags in enumerate(TAGS):
        words = [None if one is None else [value and f"t{value}" for value in one] for one in tags]
        columns = {"tags": pa.array(tags, pa.list_(pa.int64())), "words": pa.array(words, pa.list_(pa.string()))}
        tables.append({"n": [10 * number + i for i in range(len(tags))], **columns})
    root = make_lake(tmp_path_factory.mktemp("lists"), tables)
    for column in ("tags", "words"):
        for kind in ("bloom", "secondary") if is_thorough() else ("secondary",):
            sks.create_index(spark, root, column, kind)
    return root


@pytest.fixture(scope="module")
def texts(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, tables = random.Random(1), []
    for f in range(4):
        texts = [None if n % 7 == 0 else " ".join([f"file{f}name", *rng.choices(WORDS, k=2)]) for n in range(50)]
        tables.append({"n": range(50 * f, 50 * f + 50), "s": texts})
    root = make_lake(tmp_path_factory.mktemp("ngrams"), tables)
    sks.create_index(spark, root, "s", kind="ngram", ignore_case=True)
    return root


@pytest.mark.parametrize(("lake", "conditions"), [("lists", LISTS), ("texts", TEXTS)])
def test_queries_read_few_files_and_return_the_same(
    request: pytest.FixtureRequest, spark: SparkSession, lake: str, conditions: dict[str, int]
) -> None:
    root, wheres = request.getfixturevalue(lake), few_of(conditions, 4)
    whole = sks.scan(spark, root)
    by_form = [
        [spark.read.parquet(str(root)).where(where) for where in wheres],
        [sks.scan(spark, root, F.expr(where)) for where in wheres],
        [sks.scan(spark, root, where) for where in wheres],
        [sks.optimized(whole.where(where)) for where in wheres],
        [sks.read_parquet(spark, root, where) for where in wheres],
    ]
    rows = rows_of_each([frame.select("n") for frames in by_form for frame in frames])
    for number in range(len(wheres), len(rows)):
        assert rows[number] == rows[number % len(wheres)], wheres[number % len(wheres)]
    for frames in by_form[1:4]:
        assert [files_read(frame) for frame in frames] == [[conditions[where]] for where in wheres]
    with ss.open(root) as table:
        assert all(index["files_covered"] == 4 for index in table.indexes().to_pylist()) and table.verify() == []


def test_random_expressions(spark: SparkSession, texts: Path) -> None:
    rng = random.Random(7)
    pieces = ["err", "or", "file", "[0-3]", "name", ".", "\\\\.", "(a|b)", "日本", "W?", "x+", "\\\\d", "^", "$"]
    plain = spark.read.parquet(str(texts))
    wheres = [f"s RLIKE '{''.join(rng.choices(pieces, k=rng.randint(1, 4)))}'" for _ in range(examples(5))]
    expected = rows_of_each([plain.where(where).select("n") for where in wheres])
    found = rows_of_each([sks.scan(spark, texts, F.expr(where)).select("n") for where in wheres])
    assert dict(zip(wheres, found, strict=True)) == dict(zip(wheres, expected, strict=True))


def test_case_is_ignored_outside_of_spark(texts: Path) -> None:
    with ss.open(texts) as table:
        assert table.scan("s ILIKE '%FILE2NAME%'").files().num_rows == 1


def test_tasks_compute_expressions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)
    make_lake(tmp_path, ({"id": [10 * number, 10 * number + 1], "word": [f"W{number}", None]} for number in range(4)))
    sks.create_index(None, tmp_path, "lower(word)", "secondary")
    with ss.open(tmp_path) as table:
        plan = table.scan("lower(word) = 'w2'")
        assert plan.files()["path"].to_pylist() == ["2.parquet"]
        assert plan.to_table()["id"].to_pylist() == [20]
