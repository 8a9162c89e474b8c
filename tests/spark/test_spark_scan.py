"""scan() and the data source "skipstone": Spark's own answers over plain Parquet, with less read.

The lake of these tests: year (int) and region (text: one escaped, one null) partitions, six files of three row groups.
"""

from __future__ import annotations

import itertools
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import only_in_test_all
from lake_strategies import make_file, make_lake
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from skipstone import col
from skipstone import spark_adapter as sks

ROWS = 300
REGIONS = ("north", "a%2Fb%3Dc%25d é", "__HIVE_DEFAULT_PARTITION__")  # as folders have them
COLUMNS = ["id", "k", "x", "s", "year", "region"]


def _id(k: int) -> str:
    """Scattered, so that ranges prune nothing."""
    return f"id-{k * 7919 % 1_000_003:07d}"


def _file_rows(number: int) -> pa.Table:
    random = np.random.default_rng(number)
    x = random.integers(-5, 5, ROWS).astype(np.float64)
    x[random.random(ROWS) < 0.1] = np.nan
    k = np.arange(ROWS) + number * ROWS
    return pa.table(
        {
            "id": pa.array([_id(int(value)) for value in k]),
            "k": pa.array(k),
            "x": pa.array(x, mask=random.random(ROWS) < 0.2),
            "s": pa.array([None if value % 11 == 0 else f"c{value % 13}-é" for value in k]),
        }
    )


def _indexed_lake(root: Path) -> Path:
    for number, (year, region) in enumerate(itertools.product((2020, 2021), REGIONS)):
        path = f"year={year}/region={region}/part.parquet"
        make_file(root, path, _file_rows(number), row_group_size=ROWS // 3)
    with ss.create(root) as table:
        table.create_index("id", kind="bloom", fpp=0.001)
    return root


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _indexed_lake(tmp_path_factory.mktemp("scan") / "lake")


@pytest.fixture
def own_lake(tmp_path: Path) -> Path:
    """A lake that a test may damage."""
    return _indexed_lake(tmp_path / "lake")


@pytest.fixture
def job_group(spark: SparkSession) -> Iterator[Callable[[], list[int]]]:
    """The number of tasks of each job that ran since."""
    group = str(uuid.uuid4())
    spark.sparkContext.setJobGroup(group, "counted")
    tracker = spark.sparkContext.statusTracker()

    def tasks() -> list[int]:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [[tracker.getStageInfo(stage) for stage in job.stageIds] for job in jobs]
        # a long session forgets stages: first those that it skipped
        return [sum(stage.numTasks for stage in of_job if stage is not None) for of_job in stages]

    yield tasks
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


def _rows(frame: DataFrame) -> list[str]:
    """The rows as sorted texts, so that NaN equals NaN."""
    return sorted(repr(tuple(row)) for row in frame.collect())


@pytest.fixture(scope="module")
def plain(spark: SparkSession, lake: Path) -> Iterator[DataFrame]:
    """The oracle: the lake by Spark's own reader, cached, so that nothing prunes."""
    frame = spark.read.parquet(str(lake)).select(COLUMNS).cache()
    yield frame
    frame.unpersist()


def test_every_form_of_a_predicate(spark: SparkSession, lake: Path) -> None:
    wanted = _rows(sks.scan(spark, lake, "k = 5 OR k = 700"))
    assert len(wanted) == 2
    assert _rows(sks.scan(spark, lake, (col("k") == 5) | (col("k") == 700))) == wanted
    assert _rows(sks.scan(spark, lake, [[("k", "=", 5)], [("k", "=", 700)]])) == wanted
    assert _rows(sks.scan(spark, lake, pc.field("k").isin(pa.array([5, 700], pa.int16())))) == wanted
    assert sks.scan(spark, lake, (pc.field("k") * 2 == 10) & (pc.field("k") > 1)).count() == 1
    assert sks.scan(spark, lake, "k < 1000", columns=[]).count() == 1000


@pytest.mark.parametrize("where", ["s = cast(X'80' as string)", "s IN ('b', cast(X'80' as string))"])
def test_a_text_that_is_not_utf8_is_left_to_spark(spark: SparkSession, tmp_path: Path, where: str) -> None:
    rows = "SELECT 1 k, cast(X'80' as string) s UNION ALL SELECT 2, 'a' UNION ALL SELECT 3, '\ufffd'"
    spark.sql(rows).coalesce(1).write.parquet(str(tmp_path / "lake"))
    sks.create(spark, str(tmp_path / "lake"))
    for asked in (where, F.expr(where)):
        assert [row.k for row in sks.scan(spark, str(tmp_path / "lake"), asked).collect()] == [1]
    with pytest.raises(ss.PredicateError):
        sks.delete(spark, str(tmp_path / "lake"), where)


def test_union_and_join_of_scans_with_different_predicates(spark: SparkSession, lake: Path, plain: DataFrame) -> None:
    first, second = (sks.scan(spark, lake, f"k = {k}", columns=["k", "year"]) for k in (5, 1001))
    assert _rows(first.union(second)) == ["(1001, 2021)", "(5, 2020)"]
    low, high = (sks.scan(spark, lake, where, columns=["s", "k"]) for where in ("k < 50", "k >= 1750"))
    joined = low.hint("merge").join(high.withColumnRenamed("k", "other"), "s")
    both = plain.select("s", "k")
    expected = both.where("k < 50").join(both.where("k >= 1750").withColumnRenamed("k", "other"), "s")
    assert _rows(joined) == _rows(expected) != []


@only_in_test_all
def test_a_spark_filter_does_not_change_the_frame_below_it(spark: SparkSession, lake: Path) -> None:
    """With Spark's pushdown on, a relation has one plan, in which the last filter wins: we must not take part."""
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = sks.scan(session, lake, "k < 600")
    assert frame.filter("k = 5").count() == 1
    assert frame.filter("k = 5").union(frame.filter("k = 301")).count() == 2
    assert frame.count() == 600


def test_load_by_name(spark: SparkSession, lake: Path, plain: DataFrame) -> None:
    sks.register(spark)
    reader = spark.read.format("skipstone").option("where", "k >= 1790 AND x IS NULL")
    expected = plain.where("k >= 1790 AND x IS NULL")
    assert _rows(reader.load(str(lake))) == _rows(expected)
    narrow = reader.schema("region string, k bigint").load(f"file://{lake}")
    assert _rows(narrow) == _rows(expected.select("region", "k"))


@only_in_test_all
def test_a_catalog_table_is_refused(spark: SparkSession, lake: Path) -> None:
    """Spark would read it without its options."""
    sks.register(spark)
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE of_lake USING skipstone OPTIONS (path '{lake}')")


@only_in_test_all
def test_index_elsewhere(spark: SparkSession, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ss.create(lake, index_path=tmp_path / "index").close()
    monkeypatch.chdir(tmp_path)  # Spark's workers are elsewhere
    assert sks.scan(spark, lake, "k = 7", index_path="index").count() == 1
    assert sks.scan(spark, os.path.relpath(lake), "k = 7").count() == 1


@only_in_test_all
def test_a_scan_that_is_handed_over_stays_a_scan(spark: SparkSession, own_lake: Path) -> None:
    columns, where = ["k", "s"], [("k", "<", 500)]
    frame = sks.scan(spark, own_lake, where, columns, hand_over=True)
    before = _rows(frame)
    assert before == _rows(sks.scan(spark, own_lake, where, columns, hand_over=False)) != []
    assert sks.explain(frame).endswith("and prunes row groups by their footers")
    with ss.open(own_lake) as table, table.transaction() as tx:
        tx.remove([table.scan("k = 0").files().column("path")[0].as_py()])
    assert _rows(frame) == before  # the removed file is still on disk
    again = sks.refresh(frame)
    assert again.columns == columns and "handed over" in sks.explain(again)
    assert set(_rows(again)) < set(before)
    with pytest.raises(ss.CommitConflictError):
        sks.save(frame.where("k < 5"), own_lake, "overwrite")


def test_no_match_is_no_rows(spark: SparkSession, lake: Path) -> None:
    """The driver prunes every file, or an executor finds no row."""
    for where in ("k = -1", "year = 1999", "false", "k > 5 AND k < 6", "id = 'id-0007919' AND k > 1 AND x = 77"):
        found = sks.scan(spark, lake, where, columns=["s", "x"])
        assert found.collect() == []
        assert found.schema.simpleString() == "struct<s:string,x:double>"


def test_one_job_of_few_tasks(spark: SparkSession, tmp_path: Path, job_group: Callable[[], list[int]]) -> None:
    lake = make_lake(tmp_path, ({"k": np.arange(10) + 10 * number} for number in range(40)))
    assert len(sks.scan(spark, lake, "k >= 5").collect()) == 395
    (tasks,) = job_group()
    assert 2 <= tasks <= 6  # to open a file counts as a megabyte, and there are two cores


def test_files_that_cannot_match_are_never_opened(spark: SparkSession, own_lake: Path) -> None:
    for path in own_lake.glob("year=*/*/part.parquet"):
        if "year=2020/region=north" not in str(path):
            path.unlink()
    needle = "id = 'id-0007919'"
    assert [row.k for row in sks.scan(spark, own_lake, needle).collect()] == [1]
    assert "of 1 file in 1 task" in sks.explain(sks.scan(spark, own_lake, needle))


def _damage(path: Path, kept: int) -> None:
    """Overwrite the pages of every row group except one. The size and the time stay."""
    before, metadata = path.stat(), pq.read_metadata(path)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups) if i != kept]
    with path.open("r+b") as file:
        for chunk in (group.column(i) for group in groups for i in range(group.num_columns)):
            file.seek(min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset))))
            file.write(b"\xff" * chunk.total_compressed_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("where", ["k = {}", "id = '{}'"])  # by statistics, and by a filter
def test_row_groups_that_cannot_match_are_never_read(spark: SparkSession, own_lake: Path, where: str) -> None:
    inside, outside = (where.format(k if where.startswith("k") else _id(k)) for k in (150, 5))
    _damage(own_lake / "year=2020/region=north/part.parquet", kept=1)
    assert [row.k for row in sks.scan(spark, own_lake, inside).collect()] == [150]
    with pytest.raises(Exception, match=r"(?i)page|thrift|deserializ|corrupt"):
        sks.scan(spark, own_lake, outside).collect()


def test_errors_come_before_spark(spark: SparkSession, lake: Path, tmp_path: Path) -> None:
    with pytest.raises(ss.PredicateError):
        sks.scan(spark, lake, "k = ")
    with pytest.raises(ss.PredicateError, match="nosuch"):
        sks.scan(spark, lake, "nosuch = 1")
    with pytest.raises(ss.PredicateError, match="rows cannot be tested"):
        sks.scan(spark, lake, sks.predicate(spark, "k * 2 = 4"))
    with pytest.raises(ss.SchemaError, match="nosuch"):
        sks.scan(spark, lake, columns=["nosuch"])
    with pytest.raises(ss.SchemaError, match="twice"):
        sks.scan(spark, lake, columns=["k", "k"])
    with pytest.raises(ss.NotATableError):
        sks.scan(spark, tmp_path / "missing")
    with pytest.raises(ss.NotATableError):
        sks.scan(spark, lake, version=99)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"where": "k ="}, None, "PredicateError"),
        ({"wher": "k = 5"}, None, "option 'wher' is not known"),
        ({"version": "zero"}, None, "option version is a whole number"),
        ({"columns": "k, s"}, None, "option 'columns' is not known"),
        ({}, "k string", "column 'k' is bigint in the table, not string"),
        ({}, "k bigint NOT NULL", "may not say NOT NULL"),
        ({}, "nosuch int", "no column 'nosuch'"),
    ],
)
def test_errors_of_a_load_show_their_text(
    spark: SparkSession, lake: Path, options: dict[str, str], schema: str | None, message: str
) -> None:
    sks.register(spark)
    reader = spark.read.format("skipstone").options(**options)
    with pytest.raises(AnalysisException, match=message):
        (reader if schema is None else reader.schema(schema)).load(str(lake)).collect()


@pytest.mark.parametrize("how", ["missing", "overwritten"])
def test_rule_38_another_identity_than_planned_raises(spark: SparkSession, own_lake: Path, how: str) -> None:
    frame = sks.scan(spark, own_lake, "k < 100")
    path = own_lake / "year=2020/region=north/part.parquet"
    if how == "missing":
        path.unlink()
    else:
        shutil.copy(own_lake / "year=2021/region=north/part.parquet", path)
        os.utime(path, ns=(0, 0))
    with pytest.raises(PythonException, match=rf"NotReadableError: year=2020/region=north/part.parquet: .*{how}"):
        frame.collect()
