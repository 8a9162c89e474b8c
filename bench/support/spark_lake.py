"""Who is asked in bench/spark.py: our data source, Spark's own Parquet reader, and sources that read nothing, in one
session. Each takes a predicate and gives rows as Arrow."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks

from bench.support.harness import Answer, AnswersDifferError
from bench.support.spark_floor import EmptySource, MemorySource

BATCH_ROWS = 1 << 16


@contextmanager
def session(folder: Path, cores: int) -> Iterator[SparkSession]:
    """A local Spark of so many cores, quiet."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{cores}]").appName("bench")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        spark.dataSource.register(EmptySource)
        spark.dataSource.register(MemorySource)
        yield spark
    finally:
        spark.stop()


@dataclass
class Lake:
    """A lake in a session.

    files          its folder
    plain          the same rows in files without Parquet's own filters
    indexes        name -> the folder of an index of ours
    """

    spark: SparkSession
    files: Path
    plain: Path
    indexes: dict[str, Path]

    def __post_init__(self) -> None:
        self._by_filters = self.spark.read.parquet(str(self.files))
        self._plain = self.spark.read.parquet(str(self.plain))
        self.schema = self._plain.schema
        self.row_count = sum(pq.read_metadata(path).num_rows for path in self.plain.glob("*.parquet"))

    # -- few rows -----------------------------------------------------------------------------------------------------

    def ours(self, index: str) -> Callable[[str], Answer | pa.Table]:
        """By the data source; the first answer says what it read."""
        counted: list[str] = []

        def ask(where: str) -> Answer | pa.Table:
            rows = sks.scan(self.spark, self.files, where, index_path=self.indexes[index]).toArrow()
            if counted:
                return rows
            counted.append(where)
            with ss.open(self.files, index_path=self.indexes[index]) as table:
                table.scan(where).to_table()
                data, index_reads = table.handle.storage.reading(), table.handle.index_storage.reading()
            return Answer(rows, data[0] + index_reads[0], data[1] + index_reads[1])

        return ask

    def optimized(self, index: str) -> Callable[[str], pa.Table]:
        """By a filter on a DataFrame that is there already, which `optimized` gives to the scan."""
        frame = sks.scan(self.spark, self.files, index_path=self.indexes[index])
        return lambda where: sks.optimized(frame.where(where)).toArrow()

    def native(self, *, filters: bool) -> Callable[[str], Answer]:
        """By Spark's own reader, from a DataFrame that is there already."""
        files = self._by_filters if filters else self._plain

        def ask(where: str) -> Answer:
            before = _last_stage(self.spark)
            rows = files.where(where).toArrow()
            return Answer(rows, bytes=_bytes_read(self.spark, before))

        return ask

    def by_read_parquet(self, index: str) -> Callable[[str], pa.Table]:
        def ask(where: str) -> pa.Table:
            return sks.read_parquet(self.spark, self.files, where, index_path=self.indexes[index]).toArrow()

        return ask

    # -- many keys ----------------------------------------------------------------------------------------------------

    def look_up(self, index: str, column: str) -> Callable[[list], Answer | pa.Table]:
        """Keys in a DataFrame against our index; the first answer says what it read."""
        counted: list[int] = []

        def ask(keys: list) -> Answer | pa.Table:
            given = self._keys(column, keys)
            rows = sks.lookup(self.spark, self.files, given, on=column, index_path=self.indexes[index]).toArrow()
            if counted:
                return rows
            counted.append(len(keys))
            with ss.open(self.files, index_path=self.indexes[index]) as table:
                table.scan(ss.col(column).is_in(keys)).to_table()
                data, index_reads = table.handle.storage.reading(), table.handle.index_storage.reading()
            return Answer(rows, data[0] + index_reads[0], data[1] + index_reads[1])

        return ask

    def semi_join(self, column: str) -> Callable[[list], Answer]:
        """Keys in a DataFrame, broadcast to whoever reads the files."""

        def ask(keys: list) -> Answer:
            before = _last_stage(self.spark)
            rows = self._plain.join(F.broadcast(self._keys(column, keys)), column, "left_semi").toArrow()
            return Answer(rows, bytes=_bytes_read(self.spark, before))

        return ask

    def _keys(self, column: str, keys: list) -> DataFrame:
        return self.spark.createDataFrame(pa.table({column: keys}))

    # -- nothing ------------------------------------------------------------------------------------------------------

    def empty(self) -> Callable[[object], None]:
        def ask(_: object) -> None:
            self.spark.read.format("empty").schema(self.schema).load().toArrow()

        return ask

    def one_row(self, folder: Path) -> Callable[[object], None]:
        """A row of the lake, from memory."""
        options = {"batch": str(self._batch_of(folder, self._plain.columns, 1)), "partitions": "1", "rows": "1"}

        def ask(_: object) -> None:
            self.spark.read.format("memory").schema(self.schema).options(**options).load().toArrow()

        return ask

    # -- all rows -----------------------------------------------------------------------------------------------------

    def scans(self, columns: Sequence[str], folder: Path) -> dict[str, Callable[[object], int]]:
        """Every row of some columns, by each reader, given to Spark's sink that drops them; the number of rows."""
        index = next(iter(self.indexes.values()))
        frames: dict[str, Callable[[], DataFrame]] = {
            "skipstone": lambda: sks.scan(self.spark, self.files, columns=columns, index_path=index),
            "skipstone, read_parquet": lambda: sks.read_parquet(
                self.spark, self.files, columns=columns, index_path=index
            ),
            "Spark": lambda: self._by_filters.select(*columns),
            "memory": lambda: self._from_memory(columns, folder),
        }
        sums = {name: _checksum(frame()) for name, frame in frames.items() if name != "memory"}
        if len(set(sums.values())) > 1:
            raise AnswersDifferError(f"checksums of all rows: {sums}")
        return {name: _drained(frame) for name, frame in frames.items()}

    def questions(self, question: Callable[[DataFrame], DataFrame]) -> dict[str, Callable[[object], pa.Table]]:
        """A query of the whole table, over frames that are there already: of a scan, the same by `optimized`, and of
        Spark's own reader."""
        scan = sks.scan(self.spark, self.files, index_path=next(iter(self.indexes.values())))
        return {
            "skipstone": lambda _: question(scan).toArrow(),
            "skipstone, optimized": lambda _: sks.optimized(question(scan)).toArrow(),
            "Spark": lambda _: question(self._by_filters).toArrow(),
        }

    def loads(self) -> dict[str, Callable[[object], int]]:
        """A frame of all rows, made anew; the number of its columns."""
        index = next(iter(self.indexes.values()))
        return {
            "skipstone": lambda _: len(sks.scan(self.spark, self.files, index_path=index).columns),
            "Spark": lambda _: len(self.spark.read.parquet(str(self.files)).columns),
        }

    def _from_memory(self, columns: Sequence[str], folder: Path) -> DataFrame:
        batch = self._batch_of(folder, columns, BATCH_ROWS)
        options = {"batch": str(batch), "partitions": "6", "rows": str(self.row_count)}
        schema = self._plain.select(*columns).schema
        return self.spark.read.format("memory").schema(schema).options(**options).load()

    def _batch_of(self, folder: Path, columns: Sequence[str], rows: int) -> Path:
        """An Arrow file of the first rows of the lake, in the types that Spark takes."""
        path = folder / f"{len(columns)}-{rows}.arrow"
        if not path.exists():
            batch = self._plain.select(*columns).limit(rows).toArrow().combine_chunks()
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_table(batch)
        return path


def _drained(frame: Callable[[], DataFrame]) -> Callable[[object], int]:
    """Reads all rows of a frame; how many they were."""

    def ask(_: object) -> int:
        seen = Observation()
        frame().observe(seen, F.count(F.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
        return int(seen.get["rows"])

    return ask


def _checksum(frame: DataFrame) -> Any:
    hashed = F.xxhash64(*frame.columns).cast("decimal(38, 0)")
    return frame.agg(F.count(F.lit(1)), F.sum(hashed)).first()


def _stages(spark: SparkSession) -> list[Any]:
    """What Spark remembers of its stages."""
    context: Any = spark.sparkContext
    stages = (
        context._jsc.sc()
        .statusStore()
        .stageList(
            None, False, False, context._gateway.new_array(context._jvm.double, 0), context._jvm.java.util.ArrayList()
        )
    )
    return [stages.apply(i) for i in range(stages.size())]


def _last_stage(spark: SparkSession) -> int:
    return max((stage.stageId() for stage in _stages(spark)), default=-1)


def _bytes_read(spark: SparkSession, after: int) -> int:
    """What the tasks of Spark's own readers read since a stage."""
    return sum(stage.inputBytes() for stage in _stages(spark) if stage.stageId() > after)
