"""sks.join: Spark's own join, for which the scans on one side skip what no key of the other is in."""

from __future__ import annotations

import random
import re
from types import SimpleNamespace
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
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = needs("pyspark", 4, what="the plan of a query")

KEYS = ("k", "u", "d", "t", "n", "m", "x", "b")  # the last two are not compared in one way, or not as text
HOWS = ("inner", "left_semi", "right", "left", "full_outer", "left_anti")


@pytest.fixture(scope="module")
def session(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session away from UTC, with views over a lake of four files of ten rows."""
    lake = tmp_path_factory.mktemp("join")
    for number in range(4):
        ks = pa.array([None if k % 10 == 9 else k for k in range(10 * number, 10 * number + 10)], pa.int64())
        days = pa.array(range(10 * number - 20, 10 * number - 10), pa.int32())
        hours = pa.array([3_600_000_001 * k for k in range(10 * number, 10 * number + 10)], pa.int64())
        columns = {"k": ks, "u": [f"it's \\{k}ü" for k in ks.to_pylist()], "d": days.cast(pa.date32())}
        columns |= {"t": hours.cast(pa.timestamp("us", "UTC")), "n": hours.cast(pa.timestamp("us"))}
        columns |= {
            "m": ks.cast(pa.decimal128(25, 2)),
            "x": ks.cast(pa.float64()),
            "b": ks.cast(pa.string()).cast(pa.binary()),
        }
        pq.write_table(pa.table(columns), lake / f"{number}.parquet")
    ss.create(lake).close()
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    sks.view(session, "ours", lake)
    session.read.parquet(str(lake)).createOrReplaceTempView("plain")
    yield session


def _rows(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


def _files_read(frame: DataFrame) -> int:
    (line,) = (line for line in sks.explain(frame).splitlines() if line.startswith("Spark reads"))
    return int(re.search(r"([\d,]+) files? in ", line)[1])


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("key", KEYS)
def test_a_join_reads_the_files_of_the_keys(session: SparkSession, key: str) -> None:
    facts = session.table("ours")
    dim = facts.where("k BETWEEN 12 AND 14 OR k IS NULL AND k > 0").select(key, F.col("k").alias("number"))
    dim = dim.limit(9).unionByName(session.createDataFrame([], dim.schema))
    dim = session.createDataFrame(dim.toArrow(), dim.schema)  # no scan of ours
    made = sks.join(facts, dim, key)
    assert _rows(made) == _rows(facts.join(dim, key)) != []
    assert _files_read(made) == {"u": 2, "x": 4, "b": 4}.get(key, 1)


def test_random_joins_are_those_of_spark(session: SparkSession) -> None:
    rng = random.Random(3)
    for number in range(examples(3, 200)):
        on = rng.sample(["k", "u", "d"], rng.choice([1, 1, 2]))
        dim = session.table("ours").where(f"k % {rng.randrange(1, 9)} = {rng.randrange(4)}").select(*on)
        dim = dim.union(dim.limit(3)).withColumn("w", F.lit(number))
        facts = session.table(rng.choice(["ours", "plain"])).where(f"k <> {rng.randrange(40)}")
        how = rng.choice(HOWS)
        made = sks.join(facts, dim, on, how, max_rows=rng.choice([2, 100]))
        expected = facts.join(dim, on, how)
        assert _rows(made) == _rows(expected), (on, how, number)
        assert made.columns == expected.columns


def test_keys_beyond_a_list_are_a_range_and_the_columns_keep_their_names(session: SparkSession) -> None:
    facts, dim = session.table("ours").where("k <> 25"), session.range(1_200).selectExpr("id + 22 AS k", "id AS w")
    made = sks.join(facts, dim, "k")
    assert _files_read(made) == 2
    assert _rows(made.select(dim["w"], facts["u"])) == _rows(facts.join(dim, "k").select(dim["w"], facts["u"]))
    assert _files_read(sks.join(facts, dim, "k", max_rows=1_000)) == 4
    empty = dim.where("k < 0")
    assert sks.join(facts, empty, "k").count() == 0
    assert sks.join(facts, empty.union(dim.limit(0)), "k", "right").count() == 0


def test_rows_of_a_side_that_changes_are_computed_once(session: SparkSession) -> None:
    dim = session.range(30).select((F.rand() * 40).cast("long").alias("k"), "id").where("k % 10 <> 9")
    assert (
        sks.join(session.table("ours"), dim, "k").count() == sks.join(session.table("ours"), dim, "k", "right").count()
    )


def test_what_is_no_frame_is_refused(tmp_path: Path) -> None:
    for ask in (lambda: sks.refresh(5), lambda: sks.optimized(5), lambda: sks.lookup(None, tmp_path, [1], "a")):
        with pytest.raises(ss.InvalidArgumentError, match="takes a DataFrame"):
            ask()


def test_what_is_no_name_is_refused_and_connect_joins_by_itself(session: SparkSession) -> None:
    facts = session.table("ours")
    with pytest.raises(ss.InvalidArgumentError, match="on="):
        sks.join(facts, facts, facts["k"] == facts["k"])  # type: ignore[arg-type]
    remote = SimpleNamespace(join=lambda *arguments: arguments)
    with pytest.warns(UserWarning, match="Connect"):
        assert sks.join(remote, facts, "k") == (facts, ["k"], "inner")  # type: ignore[arg-type]
