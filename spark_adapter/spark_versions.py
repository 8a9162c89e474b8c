"""The differences between versions of PySpark, 3.5 to 4.x. No other module asks for a version.

PySpark 3.5 has no data sources in Python. There a scan reads, and a save writes, by `mapInArrow`, and what needs a data
source, or the classes of Spark 4 in the JVM, raises an error that names the version.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyspark

from ..errors import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
IS_SPARK_4 = _VERSION >= (4, 0)
_UNKNOWN_SLOTS = 8
READER_WIDENS = IS_SPARK_4  # the Parquet reader: an INT file as BIGINT

if TYPE_CHECKING or IS_SPARK_4:
    from pyspark.sql.datasource import DataSource as DataSource
    from pyspark.sql.datasource import DataSourceArrowWriter as DataSourceArrowWriter
    from pyspark.sql.datasource import DataSourceReader as DataSourceReader
    from pyspark.sql.datasource import InputPartition as InputPartition
    from pyspark.sql.datasource import WriterCommitMessage as WriterCommitMessage
else:

    class DataSource:
        def __init__(self, options: dict[str, str]):
            self.options = options

    class InputPartition:
        def __init__(self, value: Any):
            self.value = value

    class DataSourceArrowWriter: ...

    class DataSourceReader: ...

    class WriterCommitMessage: ...


def check_spark(least: str, feature: str) -> None:
    """Raises InvalidArgumentError if PySpark is older than a version ("4.1") that a feature needs."""
    if tuple(map(int, least.split("."))) > _VERSION:
        raise InvalidArgumentError(
            f"{feature} needs PySpark {least} or later, and this is PySpark {pyspark.__version__}; "
            f'pip install "pyspark>={least}"'
        )


# -- Arrow ------------------------------------------------------------------------------------------------------------


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Spark's own Arrow form of a Spark schema, its instants in UTC. Raises Spark's own errors."""
    from pyspark.sql.pandas import types

    to_arrow_schema: Any = types.to_arrow_schema
    if "timezone" in inspect.signature(to_arrow_schema).parameters:  # 4.2
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def spark_schema_of(schema: pa.Schema) -> StructType:
    """The Spark schema of an Arrow schema; a timestamp without a zone is TIMESTAMP_NTZ, which 4.1 has to be told."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def collected(frame: DataFrame) -> pa.Table:
    """The rows of a DataFrame. This is an action."""
    import pyarrow as pa

    if IS_SPARK_4:
        return frame.toArrow()
    older: Any = frame
    batches = older._collect_as_arrow()
    return pa.Table.from_batches(batches) if batches else arrow_schema_of(frame.schema).empty_table()


def frame_of_rows(spark: SparkSession, rows: pa.Table, schema: str) -> DataFrame:
    """A DataFrame with a task of its own for each row."""
    data: Any = rows if IS_SPARK_4 else list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    frame = spark.createDataFrame(data, schema).coalesce(1)  # of one task, rows are dealt out one by one
    return frame if rows.num_rows < 2 else frame.repartition(rows.num_rows)


# -- classes of the JVM -----------------------------------------------------------------------------------------------


def java_sessions(spark: Any) -> Any:
    """The JVM's own functions of sessions."""
    return getattr(spark._jvm, f"org.apache.spark.sql.{'classic.' if IS_SPARK_4 else ''}SparkSession")


def classic_frame(dataset: Any, spark: SparkSession) -> DataFrame:
    """The DataFrame of a Dataset in the JVM."""
    kind: Any = import_module("pyspark.sql.classic.dataframe" if IS_SPARK_4 else "pyspark.sql.dataframe").DataFrame
    frame: DataFrame = kind(dataset, spark)
    return frame


def catalyst_expression(column: Any) -> Any:
    """The unresolved expression that a classic Column is; in Spark 4 a Column is a tree of nodes of its own."""
    if not IS_SPARK_4:
        return column._jc.expr()
    from pyspark import SparkContext

    converter = getattr(SparkContext._jvm, "org.apache.spark.sql.classic.ColumnNodeToExpressionConverter$")
    return getattr(converter, "MODULE$").apply(column._jc.node())


# -- sessions ---------------------------------------------------------------------------------------------------------


def context_of(spark: Any) -> Any:
    """Return the SparkContext of a classic session; None over Spark Connect."""
    return getattr(spark, "_sc", None)


def jobs_with_tag(context: Any, tag: str) -> list[int]:
    """Return the ids of the jobs that have a tag."""
    return list(context._jsc.sc().statusTracker().getJobIdsForTag(tag))


def default_parallelism(spark: SparkSession) -> int | None:
    """Return how many tasks run at a time; None over Spark Connect, where a client does not see it."""
    context = context_of(spark)
    return None if context is None else max(1, context.defaultParallelism)


def slots(spark: SparkSession) -> int:
    """Return how many tasks run at a time; a guess over Spark Connect."""
    return default_parallelism(spark) or _UNKNOWN_SLOTS


# -- data sources, where Spark has none in Python ---------------------------------------------------------------------


def read_by_tasks(spark: SparkSession, reader: Any, schema: StructType) -> DataFrame:
    """The rows that a reader yields for its partitions, a task for each."""
    import pyarrow as pa

    parts = pa.array([pickle.dumps(part) for part in reader.partitions()], pa.binary())
    return frame_of_rows(spark, pa.table({"part": parts}), "part binary").mapInArrow(_read(reader), schema)


def _read(reader: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                yield from reader.read(pickle.loads(part))

    return read


def write_by_tasks(frame: DataFrame, writer: Any) -> None:
    """Writes the rows of a DataFrame, and commits. Spark returns the message of one try of each task, whatever was
    tried again or ran twice. Files of other tries are in no message: a clean removes them."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        message = pickle.dumps(writer.write(batches))
        yield pa.RecordBatch.from_arrays([pa.array([message], pa.binary())], names=["message"])

    try:
        rows = collected(frame.mapInArrow(write, "message binary"))
        writer.commit([pickle.loads(message) for message in rows.column("message").to_pylist()])
    except BaseException:
        writer.abort([])
        raise
