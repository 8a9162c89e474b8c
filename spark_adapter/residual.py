"""The part of a Column that Spark tests itself: which columns of the table it needs, so that they can be read.

A data source of Python is told which columns to read when it is loaded, not when the query is planned: a filter over
columns that nobody reads would not find them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from ..errors import PredicateError
from .column_tree import Name, tree_of

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

_WITHOUT_NAMES = frozenset({"LiteralExpression", "UnresolvedNamedLambdaVariable"})  # leaves of a Connect column


def columns_needed(spark: SparkSession, column: Column, schema: StructType) -> list[str]:
    """The columns of a table that a Column speaks of, in the table's order: all, where that cannot be told.

    Raises PredicateError where Spark finds no meaning in it, with what Spark says.
    """
    found = _by_analysis(spark, column, schema) if hasattr(column, "_jc") else _by_walking(column)
    if found is None:
        return schema.names
    lowered = {name.lower() for name in found}
    return [name for name in schema.names if name in found or name.lower() in lowered]


def _by_analysis(spark: SparkSession, column: Column, schema: StructType) -> set[str] | None:
    """Spark resolves the Column over an empty DataFrame; no job is run."""
    from pyspark.sql.classic.dataframe import DataFrame

    session, java = spark._jsparkSession, spark._jvm.java.util  # type: ignore[union-attr]
    empty = DataFrame(session.createDataFrame(java.ArrayList(), session.parseDataType(schema.json())), spark)
    try:
        plan = empty.where(column)._jdf.queryExecution().analyzed()
    except AnalysisException as error:
        raise PredicateError(f"Spark finds no meaning in the Column: {error}") from error
    if plan.getClass().getSimpleName() != "Filter":
        return None
    attributes = plan.references().iterator()
    names = set()
    while attributes.hasNext():
        names.add(attributes.next().name())
    return names


def _by_walking(column: Any) -> set[str] | None:
    names: set[str] = set()
    for node in _nodes(column._expr):
        tree = tree_of(_Bare(node)) if type(node).__name__ == "ColumnReference" else None
        if isinstance(tree, Name):
            names.add(tree.parts[0])
        elif not list(node.children) and type(node).__name__ not in _WITHOUT_NAMES:
            return None  # a text of SQL, a star, a subquery: it may name any
    return names


class _Bare:
    """An expression of Connect, held as its columns hold one."""

    def __init__(self, expression: Any):
        self._expr = expression


def _nodes(node: Any) -> Iterator[Any]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.children)
