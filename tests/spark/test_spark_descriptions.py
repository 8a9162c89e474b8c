"""What Spark's UI says that the jobs of a verb are for, and the bars that tell how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from example_counts import only_in_test_all

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

import skipstone as ss
from library_versions import needs
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks

FOLDERS = 140  # more than the driver lists by itself
DESCRIPTION = "spark.job.description"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Half of the files are indexed."""
    for number in range(FOLDERS):
        folder = tmp_path / "lake" / f"p={number}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"k": [number, number + 1], "s": ["a", None]}), folder / "a.parquet")
    ss.create(tmp_path / "lake", files=[f"p={number}/a.parquet" for number in range(0, FOLDERS, 2)]).close()
    return tmp_path / "lake"


@pytest.fixture
def described(spark: Any) -> Iterator[Callable[[], list[str]]]:
    """Gives the descriptions of the jobs that ran since it was asked last."""
    store, listed = spark.sparkContext._jsc.sc().statusStore(), set()

    def new() -> list[str]:
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        jobs = store.jobsList(None)
        fresh = [job for job in (jobs.apply(i) for i in range(jobs.size())) if job.jobId() not in listed]
        listed.update(job.jobId() for job in fresh)
        return [job.description().get() if job.description().isDefined() else "" for job in fresh]

    new()
    spark.sparkContext.setJobDescription("nightly")
    yield new
    assert spark.sparkContext.getLocalProperty(DESCRIPTION) == "nightly"
    spark.sparkContext.setLocalProperty(DESCRIPTION, None)


@only_in_test_all
@needs("pyspark", 4, 1, what="cluster and views")
def test_every_verb_says_what_its_jobs_are_for_and_how_far_they_are(
    spark: Any, lake: Path, described: Callable[[], list[str]], capfd: pytest.CaptureFixture
) -> None:
    rows = spark.createDataFrame([(1, "x"), (999, "new")], "k long, s string").withColumn("p", F.lit(1))
    keys = spark.range(3000).withColumnRenamed("id", "k")
    few = spark.createDataFrame([(3,)], "k long")
    new = lake.parent / "new"
    verbs: dict[str, Callable[[], object]] = {
        "sync": lambda: sks.sync(path=lake, spark=spark, progress=True),
        "create_index": lambda: sks.create_index(spark, lake, "k", kind="secondary", progress=True),
        "verify": lambda: sks.verify(spark, lake, deep=True, progress=True),
        "lookup": lambda: sks.lookup(spark, lake, few, on="k", progress=True),
        "merge": lambda: sks.merge(spark, lake, rows, on=["k", "p"], progress=True),
        "delete": lambda: sks.delete(spark, lake, "k < 40", progress=True),
        "save": lambda: sks.save(rows, lake, progress=True),
        "refresh_index": lambda: sks.refresh_index(spark, lake, "k", kind="secondary", progress=True),
        "cluster": lambda: sks.cluster(spark, lake, "k", where="p < 5", progress=True),
        "clean": lambda: sks.clean(spark, lake, delete_data=True, progress=True),
        "create": lambda: sks.create(spark, lake, index_path=new, ignore_deletes=True, progress=True),
    }
    without_jobs = {"refresh_index"}  # every index was kept at commit, so nothing is left to build
    for verb, call in verbs.items():
        capfd.readouterr()
        call()
        said, bars = described(), capfd.readouterr().err
        wanted = f"nightly: skipstone {verb} {lake}"
        assert all(text.startswith(wanted) for text in said), (verb, said)
        if verb not in without_jobs:
            assert said and any(text != wanted for text in said), (verb, said)  # ": footers, parts"
            assert "[####" in bars and bars.count("\n") >= 1, (verb, bars)
    capfd.readouterr()
    many = sks.lookup(spark, lake, keys, on="k", progress=True)
    assert all(text.startswith(f"nightly: skipstone lookup {lake}: ") for text in described())
    many.count()
    assert set(described()) <= {"nightly", ""}  # actions are the caller's own
