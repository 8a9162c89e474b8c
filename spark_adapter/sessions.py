"""What a session of Spark decides: what a text or a Column means, and which session a thread's work runs in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import ParseException
from pyspark.sql import Column

from ..engine.predicates import Node
from ..errors import PredicateError
from .catalyst_tree import meaning_of
from .from_columns import from_column, from_tree
from .spark_semantics import Session
from .spark_versions import IS_SPARK_4, java_sessions
from .where_text import where_node
from .wire_types import readable_schema, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def read_where(spark: SparkSession | None, where: object, schema: pa.Schema) -> object:
    """What `scan` may be given, as `Table.scan` takes it: a Column and SQL text mean what they mean to Spark. Without a
    session a text is read as an option's is."""
    if isinstance(where, Column) or (isinstance(where, str) and spark is not None):
        return spark_node(spark, where, schema)
    return where_node(where, schema)


def as_column(spark: SparkSession, where: str | Column) -> Column:
    """A text as the Column that it is to a session. Raises PredicateError, with Spark's message, if Spark 3.5 cannot
    parse it; later versions parse it when it is analyzed."""
    if isinstance(where, Column):
        return where
    if is_classic(spark):
        from pyspark.sql.functions import expr
    else:
        from pyspark.sql.connect.functions import expr
    try:
        with active(spark):  # Spark 3.5 parses it now, by the settings of the thread's session
            return expr(where)
    except ParseException as error:
        raise PredicateError(f"Spark finds no meaning in the predicate: {error}") from error


def session_of(spark: Any) -> Session:
    """The settings of a session that decide what a predicate means."""
    zone, case = spark.conf.get("spark.sql.session.timeZone"), spark.conf.get("spark.sql.caseSensitive")
    # Unset, it follows the ANSI mode; before Spark 4 it is true.
    legacy = spark.conf.get("spark.sql.legacy.nullInEmptyListBehavior", None)
    is_null = str(legacy).lower() == "true"
    if legacy is None:
        is_null = not IS_SPARK_4 or str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "false"
    return Session(str(zone), str(case).lower() == "true", is_null)


def spark_node(spark: Any, where: str | Column, schema: pa.Schema) -> Node:
    """What a session's Spark means by a Column or a text; what is not understood is Unknown."""
    if is_classic(spark) and (isinstance(where, str) or not IS_SPARK_4):
        tree = meaning_of(spark, as_column(spark, where), spark_schema(readable_schema(schema)))
        return from_tree(tree, schema, session_of(spark))
    return from_column(as_column(spark, where), schema, session_of(spark))


def is_classic(spark: Any) -> bool:
    """False over Spark Connect."""
    return hasattr(spark, "_jsparkSession")


@contextlib.contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Within, a session is the active one of this thread; Spark Connect needs none."""
    if not is_classic(spark):
        yield
        return
    sessions = java_sessions(spark)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
