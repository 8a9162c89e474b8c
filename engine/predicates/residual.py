"""Parts of a predicate that another engine tests on rows: DuckDB by SQL text, pyarrow and polars by their expressions.

Such a part prunes nothing, and is never negated, split or simplified by us: AND, OR and NOT around it are ours.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy, to_numpy
from ...errors import PredicateError, SchemaError
from .ast import Constant, Node, Unknown
from .bound import Residual

ENGINES = {"duckdb": "DuckDB", "pyarrow": "pyarrow", "polars": "polars"}


def _check_and_evaluate(engine: str) -> tuple[Callable, Callable]:
    """(checked, outcomes) of an engine: the columns that it reads, and one outcome per row."""
    if engine == "duckdb":
        from .duckdb_engine import outcomes
        from .sql_allowed import checked

        return checked, outcomes
    if engine == "pyarrow":
        from . import from_arrow

        return from_arrow.checked, from_arrow.outcomes
    from . import from_polars

    return from_polars.checked, from_polars.outcomes


def residual_of(unknown: Unknown, schema: pa.Schema) -> Node:
    """What replaces a part that is not understood: a residual, or its value where it reads no column; the part itself
    where no engine can test it, or the engine is not installed.

    Raises PredicateError for what the engine cannot test on rows of this schema.
    """
    if not unknown.engine:
        return unknown
    part = Residual(unknown.engine, unknown.text, (), unknown.expression)
    checked, outcomes = _check_and_evaluate(unknown.engine)
    columns = checked(part.expression or part.text, schema)
    part = Residual(part.engine, part.text, columns, part.expression)
    if columns:
        return part
    one_row = pa.table({"": pa.nulls(1)})
    return Constant(outcomes(part.expression or part.text, one_row)[0].as_py())


def residual_outcomes(
    part: Residual, batch: pa.RecordBatch | pa.Table, rows: pa.Array | None = None
) -> pa.BooleanArray:
    """One outcome a row of the batch, null where NULL; of rows that `rows` (booleans) leaves out, null."""
    table = pa.table(batch) if isinstance(batch, pa.RecordBatch) else batch
    missing = [name for name in part.columns if table.schema.get_field_index(name) < 0]
    if missing:
        raise SchemaError(f"the rows have no column {missing[0]!r} (or more than one)")
    table = table.select(part.columns)
    if rows is not None:
        table = table.filter(rows)
    try:
        outcomes = _check_and_evaluate(part.engine)[1](part.expression or part.text, table)
    except ImportError as error:
        raise PredicateError(f"{ENGINES[part.engine]} tests this, and is not installed here", text=part.text) from error
    if rows is None:
        return outcomes
    chosen = to_numpy(rows)
    return outcomes.take(from_numpy(np.cumsum(chosen) - 1, chosen))
