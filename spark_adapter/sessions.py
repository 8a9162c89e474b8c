"""What a session of Spark decides: what a text or a Column means, and which data sources it knows."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column

from ..engine.predicates import Node, Unknown
from ..errors import PredicateError
from . import catalyst
from .columns import NESTED_TOO_DEEPLY, from_tree, text_tree, where_node
from .source import SkipstoneSource
from .spark_semantics import Session, Tree
from .spark_versions import IS_SPARK_4, check_spark
from .wire_types import readable_schema, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()  # a second time, Spark warns


def register(spark: SparkSession) -> None:
    """Make the data source "skipstone" known to a session. If the thread has no active session, as a thread that Python
    starts, this session becomes the active one of the thread: Spark looks there when `df.write` saves.

        spark.read.format("skipstone").option("where", "k = 5").load("lake/flights")

    Options: `where` (SQL text), `index_path`, `version`, `storage.*`. `.schema(...)` chooses the columns.
    """
    check_spark("4.0", 'format("skipstone")')
    catalyst.activate(spark)
    if spark in _registered:
        return
    if not _try_register(spark):
        # Spark checks the name in the thread's active session, which need not be this one.
        with catalyst.active(spark):
            _try_register(spark)
    _registered.add(spark)


def _try_register(spark: SparkSession) -> bool:
    """False if the name is registered already, as it is if Spark found `pyspark_skipstone` by itself."""
    try:
        spark.dataSource.register(SkipstoneSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        return False
    return True


@dataclass(frozen=True)
class SparkWhere:
    """A Column or a text, as a session means it.

    node       the same in our nodes; what is not understood is Unknown
    column     as Spark's Column
    columns    the names of the columns that it reads; None if they are not known
    """

    node: Node
    column: Column
    columns: set[str] | None


def spark_where(spark: SparkSession, where: str | Column, schema: pa.Schema) -> SparkWhere:
    """What a session means by a Column or a text over a table.

    Over Spark Connect, a text is read by our own parser, and a Column prunes nothing.

    Raises PredicateError, with Spark's message, if Spark cannot resolve it.
    """
    column = catalyst.as_column(spark, where)
    try:
        if catalyst.is_classic(spark):
            column = catalyst.balanced(column)
            analyzed = catalyst.analyze(spark, column, spark_schema(readable_schema(schema)))
            if analyzed is None:
                return SparkWhere(Unknown(str(column), "Spark filters by more than an expression"), column, None)
            tree: Tree = analyzed.tree
            names: set[str] | None = analyzed.columns
        elif isinstance(where, str):
            tree, names = text_tree(where), None
        else:
            return SparkWhere(Unknown(str(column), "over Spark Connect, a Column is the server's alone"), column, None)
    except RecursionError:
        raise PredicateError(NESTED_TOO_DEEPLY) from None
    return SparkWhere(from_tree(tree, schema, session_of(spark)), column, names)


def read_where(spark: SparkSession | None, where: object, schema: pa.Schema) -> object:
    """What `scan` accepts, as `Table.scan` accepts it: a Column and SQL text mean what they mean to Spark. Without a
    session a text is read as an option's text is."""
    if spark is not None and isinstance(where, str | Column):
        return spark_where(spark, where, schema).node
    return where_node(where, schema)


def session_of(spark: Any) -> Session:
    """The settings of a session that decide what a predicate means."""
    zone, case = spark.conf.get("spark.sql.session.timeZone"), spark.conf.get("spark.sql.caseSensitive")
    # Unset, it follows the ANSI mode; before Spark 4 it is true.
    legacy = spark.conf.get("spark.sql.legacy.nullInEmptyListBehavior", None)
    is_null = str(legacy).lower() == "true"
    if legacy is None:
        is_null = not IS_SPARK_4 or str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "false"
    return Session(str(zone), str(case).lower() == "true", is_null)
