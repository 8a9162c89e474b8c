"""Rows written by Spark in bench/spark.py: into a table of ours, and as plain Parquet, indexed then or not."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import skipstone as ss
from pyspark.sql import SparkSession

INDEXED = ("event_id", "l_partkey")


class Writes:
    """The rows of some files, written anew into a folder that is given; each answers with how many are there."""

    def __init__(self, spark: SparkSession, files: list[Path], folder: Path):
        self._spark, self._folder = spark, folder
        self._rows = spark.read.parquet(*map(str, files))
        with ss.create(folder / "like", files=[str(files[0])], partitioning=None) as table:
            self._schema = table.schema
        self._numbers = itertools.count()

    def fresh(self) -> Path:
        """A folder; the one before is gone."""
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
