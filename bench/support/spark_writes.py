"""Rows written by Spark in bench/spark.py: into an indexed table, and as plain Parquet, indexed then or not; and rows
merged into a table, by rewriting some files or all of them."""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks

INDEXED = ("event_id", "l_partkey")
KEYS, MERGED_ROWS, NEW_ROWS = ["l_orderkey", "l_linenumber"], 10_000, 1_000
_LATE_PART = 20  # the last twentieth of the files gets updates


class Writes:
    """The rows of some files, rewritten into a given folder; each returns their count."""

    def __init__(self, spark: SparkSession, files: list[Path], folder: Path):
        self._spark, self._folder = spark, folder
        self._rows = spark.read.parquet(*map(str, files))
        with ss.create(folder / "like", files=[str(files[0])], partitioning=None) as table:
            self._schema = table.schema
        self._numbers = itertools.count()

    def fresh(self) -> Path:
        """An empty folder; the one before is removed."""
        number = next(self._numbers)
        shutil.rmtree(self._folder / f"written-{number - 1}", ignore_errors=True)
        return self._folder / f"written-{number}"

    def ours(self, folder: Path) -> int:
        with ss.create(folder, schema=self._schema) as table:
            for column in INDEXED:
                table.create_index(column, "bloom", fpp=0.001)
        self._rows.write.format("skipstone").mode("append").save(str(folder))
        return _count(folder)

    def then_indexed(self, folder: Path) -> int:
        self.native(folder)
        with ss.create(folder, partitioning=None) as table:
            for column in INDEXED:
                table.create_index(column, "bloom", fpp=0.001)
        return _count(folder)

    def native(self, folder: Path) -> None:
        self._rows.write.option("compression", "zstd").parquet(str(folder))


def _count(folder: Path) -> int:
    with ss.open(folder) as table:
        return table.scan().count()


class Merges:
    """10,000 rows by their key into a table: nine of ten change a row of the last twentieth of the files, as late
    orders do, and one is new. Each answers with how many rows are there then."""

    def __init__(self, spark: SparkSession, lake: Path, folder: Path):
        self._spark, self._folder = spark, folder
        self._paths = sorted(lake.glob("*.parquet"))
        late = pa.concat_tables(map(pq.read_table, self._paths[-max(1, len(self._paths) // _LATE_PART) :]))
        plain = [field.with_type(pa.string()) if field.type == pa.string_view() else field for field in late.schema]
        self._late, self._numbers = late.cast(pa.schema(plain)), itertools.count()
        self._ours = folder / "merged"
        self._ours.mkdir()
        for path in self._paths:
            shutil.copy(path, self._ours)
        with ss.create(self._ours, partitioning=None) as table:
            for column in INDEXED:
                table.create_index(column, "bloom", fpp=0.001)
            self._before = table.scan().count()

    def fresh(self) -> tuple[DataFrame, Path]:
        """New rows, and a folder; what the last merge replaced is removed."""
        with ss.open(self._ours) as table:
            table.clean(delete_data=True, retain_versions=1, min_age=dt.timedelta(0))
        number = next(self._numbers)
        shutil.rmtree(self._folder / f"rewritten-{number - 1}", ignore_errors=True)
        random = np.random.default_rng(number)
        chosen = random.choice(self._late.num_rows, MERGED_ROWS, replace=False)
        rows = self._late.take(pa.array(chosen))
        keys = rows.column(KEYS[0]).to_numpy().copy()
        keys[:NEW_ROWS] = (1 << 40) + NEW_ROWS * number + np.arange(NEW_ROWS)  # orders that do not exist
        rows = rows.set_column(rows.schema.get_field_index(KEYS[0]), KEYS[0], pa.array(keys))
        return self._spark.createDataFrame(rows).repartition(2), self._folder / f"rewritten-{number}"

    def ours(self, given: tuple[DataFrame, Path]) -> int:
        changes = sks.merge(self._spark, self._ours, given[0], on=KEYS)
        if (changes.updated, changes.inserted) != (MERGED_ROWS - NEW_ROWS, NEW_ROWS):
            raise AssertionError(f"other rows were merged: {changes}")
        return NEW_ROWS

    def native(self, given: tuple[DataFrame, Path]) -> int:
        """All rows, those with a new one left out, and the new ones, written to another folder."""
        rows, folder = given
        before = self._spark.read.parquet(*map(str, self._paths))
        kept = before.join(F.broadcast(rows.select(*KEYS)), KEYS, "left_anti").select(*rows.columns)
        kept.unionByName(rows).write.option("compression", "zstd").parquet(str(folder))
        return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet")) - self._before
