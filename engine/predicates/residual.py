"""Parts of a predicate that another engine tests on rows: DuckDB by SQL text, pyarrow and polars by their expressions.

Such a part prunes nothing. We never negate, split or simplify it; we evaluate AND, OR and NOT around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy, to_numpy
from ...errors import PredicateError, SchemaError
from .ast import Constant, Node, Unknown
from .bound import Residual

ENGINES = {"duckdb": "DuckDB", "pyarrow": "pyarrow", "polars": "polars", "spark": "Spark"}


class ResidualEngine(NamedTuple):
    """How an engine tests a part: its text, or its serialized expression."""

    validate: Callable[[Any, pa.Schema], tuple[str, ...]]  # the columns that it reads; raises if it cannot test rows
    evaluate: Callable[[Any, pa.Table], pa.Array]  # one outcome per row


def _engine(name: str) -> ResidualEngine:
    if name == "duckdb":
        from .duckdb_engine import evaluate
        from .sql_allowed import validate

        return ResidualEngine(validate, evaluate)
    if name == "pyarrow":
        from . import from_arrow

        return ResidualEngine(from_arrow.validate, from_arrow.evaluate)
    from . import from_polars

    return ResidualEngine(from_polars.validate, from_polars.evaluate)


def residual_of(unknown: Unknown, schema: pa.Schema) -> Node:
    """The replacement of a part that is not understood: a residual, or its value if it reads no column; the part itself
    if no engine can test it.

    Raises PredicateError for what the engine cannot test on rows of this schema.
    """
    if not unknown.engine:
        return unknown
    if unknown.engine == "spark":
        return Residual("spark", unknown.text, (), implied=unknown.implied)
    engine, tested = _engine(unknown.engine), unknown.expression or unknown.text
    columns = engine.validate(tested, schema)
    if columns:
        return Residual(unknown.engine, unknown.text, columns, unknown.expression, unknown.implied)
    one_row = pa.table({"": pa.nulls(1)})
    return Constant(engine.evaluate(tested, one_row)[0].as_py())


def residual_outcomes(
    part: Residual, batch: pa.RecordBatch | pa.Table, rows: pa.Array | None = None
) -> pa.BooleanArray:
    """One outcome per row of the batch, null for NULL, and null for rows that `rows` (booleans) excludes. TRUE for a
    part that Spark tests, because it tests the rows that it receives."""
    if part.engine == "spark":
        return from_numpy(np.ones(batch.num_rows, dtype=bool))
    table = pa.table(batch) if isinstance(batch, pa.RecordBatch) else batch
    missing = [name for name in part.columns if table.schema.get_field_index(name) < 0]
    if missing:
        raise SchemaError(f"the rows have no column {missing[0]!r} (or more than one)")
    table = table.select(part.columns)
    if rows is not None:
        table = table.filter(rows)
    try:
        outcomes = _engine(part.engine).evaluate(part.expression or part.text, table)
    except ImportError as error:
        raise PredicateError(f"{ENGINES[part.engine]} tests this, and is not installed here", text=part.text) from error
    if rows is None:
        return outcomes
    chosen = to_numpy(rows)
    return outcomes.take(from_numpy(np.cumsum(chosen) - 1, chosen))
