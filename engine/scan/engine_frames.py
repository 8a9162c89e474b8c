"""A plan as a frame of polars, or a relation of DuckDB, whose queries narrow the plan.

polars hands a source the columns that it needs, one predicate, and how many rows it wants at most (before the
predicate). What of the predicate is understood narrows the plan; polars then tests the rows by all of it, so its own
meaning decides. DuckDB takes a `LakeDataset`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...base.arrays import empty_table
from ...base.versions import accepted
from ...errors import InvalidArgumentError, PredicateError
from ..predicates import And, Constant, Node, parse, unknowns
from .lake_dataset import LakeDataset, RowSource

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from duckdb import DuckDBPyConnection, DuckDBPyRelation


def polars_frame(plan: RowSource) -> pl.DataFrame:
    """The rows of a plan. Raises InvalidArgumentError where polars is not installed."""
    polars = _library("polars", "polars")
    frame = polars.from_arrow(plan.to_table())
    assert isinstance(frame, polars.DataFrame)
    return frame


def polars_lazy_frame(plan: RowSource) -> pl.LazyFrame:
    """The rows of a plan, narrowed by what polars asks for. Raises InvalidArgumentError where polars is missing."""
    polars = _library("polars", "polars")
    from polars.io.plugins import register_io_source

    empty = polars.from_arrow(empty_table(plan.schema))

    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, row_limit: int | None, batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        columns = list(plan.schema.names if with_columns is None else with_columns)
        tested = [] if predicate is None else predicate.meta.root_names()
        where: Node = Constant(True)
        if predicate is not None and row_limit is None and plan.planning.can_narrow:
            where = _understood(predicate, plan.schema)
        rows = plan.narrowed(where, list(dict.fromkeys([*columns, *tested])), row_limit)
        for batch in rows.to_reader():
            frame = polars.from_arrow(batch)
            assert isinstance(frame, polars.DataFrame)
            yield (frame if predicate is None else frame.filter(predicate)).select(columns)

    options = accepted(register_io_source, is_pure=True, explain_name="skipstone")
    return register_io_source(source, schema=empty.schema, **options)


def _understood(predicate: pl.Expr, schema: pa.Schema) -> Node:
    """The terms of a predicate that Skipstone understands: polars tests the rows by all of it."""
    try:
        node = parse(predicate, schema)
    except PredicateError:
        return Constant(True)
    where: Node = Constant(True)
    for term in node.children if isinstance(node, And) else (node,):
        if not unknowns(term):
            where = term if where == Constant(True) else where & term
    return where


def duckdb_relation(plan: RowSource, connection: DuckDBPyConnection | None) -> DuckDBPyRelation:
    """The rows of a plan in a connection (None: the default one). Raises InvalidArgumentError without DuckDB."""
    duckdb = _library("duckdb", "DuckDB")
    connection = duckdb.default_connection() if connection is None else connection
    if not isinstance(connection, duckdb.DuckDBPyConnection):
        raise InvalidArgumentError(f"connection= is of duckdb.connect(), not {connection!r}")
    return connection.from_arrow(LakeDataset(plan))


def _library(name: str, title: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InvalidArgumentError(f'{title} is not installed: pip install "skipstone[{name}]"') from None
