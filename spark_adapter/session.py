"""The driver's face: `register` and `scan`."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import Column

from ..engine.open import open_table
from ..engine.predicates import parse
from ..errors import SchemaError
from .from_columns import from_column
from .request import Request, encode_predicate
from .source import SkipstoneSource
from .translate import spark_schema, wire_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()  # a second time, Spark warns


def register(spark: SparkSession) -> None:
    """Makes the data source "skipstone" known to a session, once.

        spark.read.format("skipstone").option("where", "k = 5").load("lake/flights")

    Options: `where` (SQL text), `index_path`, `version`, `storage.*`. `.schema(...)` chooses the columns.
    """
    if spark in _registered:
        return
    try:
        spark.dataSource.register(SkipstoneSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS" or not hasattr(spark, "_jsparkSession"):
            raise
        # Spark looks for the name in the thread's active session, which need not be the one that it is asked of.
        with _active(spark):
            spark.dataSource.register(SkipstoneSource)
    _registered.add(spark)


def scan(
    spark: SparkSession,
    path: str | os.PathLike,
    where: object = None,
    columns: Sequence[str] | None = None,
    *,
    index_path: str | os.PathLike | None = None,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The rows of a table that match, as a DataFrame: pruned on the driver, and again in each executor.

    Each call is a load of its own, on the version that is the latest now; the DataFrame stays with that version.

    Args:
        path: the table's directory; executors must see it under the same name.
        where: SQL text, pyarrow tuples, a `col` predicate, a pyarrow expression or a PySpark Column (of names, as
            `F.col("k") == 5`; not of Spark Connect); None for every row. Timestamps without a zone mean UTC here,
            whatever the session's time zone.
        columns: what to read (default: all), in this order; none at all gives rows that can be counted.
        index_path: where the index lies, if not in the table.
        version: which version to read (default: the latest).
        storage_options: what opens an object store; it goes to the executors.

    Raises:
        NotATableError: no index there, or no such version. PredicateError: `where` cannot be read, or not be tested
        on rows. SchemaError: `columns` names no column, or one is of a type that Spark has not.
    """
    if isinstance(where, Column):
        where = from_column(where)
    with open_table(path, version=version, index_path=index_path, storage_options=storage_options) as table:
        plan = table.scan(where, columns)
        plan.check_evaluable()
        if len(set(plan.columns)) < len(plan.columns):
            raise SchemaError(f"columns= names a column twice: {', '.join(plan.columns)}")
        wire = wire_schema(table.schema, plan.columns)
        request = Request(
            path=table.location,
            # always the tree: a worker that plans need not load the SQL parser
            predicate=None if where is None else encode_predicate(parse(where)),
            index_path=None if index_path is None else table.index_storage.uri,
            version=table.version,
            log_position=table.log_position,
            parallelism=_parallelism(spark),
            storage_options=table.storage_options,
        )
    register(spark)
    return spark.read.format(SkipstoneSource.name()).schema(spark_schema(wire)).options(**request.to_options()).load()


@contextlib.contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Makes a session (one with a JVM of its own) the active one of this thread for a while."""
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _parallelism(spark: SparkSession) -> int | None:
    """How many tasks run at a time; None where the session does not tell (Spark Connect)."""
    context = getattr(spark, "_sc", None)
    return None if context is None else max(1, context.defaultParallelism)
