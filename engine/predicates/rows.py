"""Evaluate a bound predicate on the rows of a table, in three-valued logic.

Values are compared by their order codes or order bytes (`base/canon.py`), as in an index. pyarrow's own comparisons
differ for NaN (Arrow returns false for NaN > 5) and do not exist for some types.

Another engine tests a residual: DuckDB by SQL text, pyarrow and polars by their expressions. We never negate, split or
simplify it; we evaluate the AND, OR and NOT around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import from_numpy, null_as_false, to_numpy, valid_mask
from ...errors import PredicateError, SchemaError
from .ast import And, Constant, Node, Not, Or, Unknown
from .bound import ColumnRef, Residual, Term, TwoColumnTerm, residuals, unknowns
from .coerce import ns_per_count

ENGINES = {"duckdb": "DuckDB", "pyarrow": "pyarrow", "polars": "polars", "spark": "Spark"}
_COMPARISONS = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def matches(bound: Node, table: pa.Table | pa.RecordBatch) -> pa.BooleanArray:
    """Return one outcome per row: true, false, or null for NULL. A row matches if its outcome is true.

    Columns are found by the names in the bound predicate, and cast if the table has them in another type. Raise
    PredicateError if we do not understand a part, and SchemaError if a column is missing or does not fit.
    """
    for unknown in unknowns(bound):
        raise PredicateError(f"rows cannot be decided by this predicate: {unknown.reason}", text=unknown.text)
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches()
    parts = [_batch_outcomes(bound, batch) for batch in batches]
    if len(parts) == 1:
        return parts[0]
    if not parts and table.num_rows:  # rows without columns make no batch
        return _batch_outcomes(bound, table)
    return pa.concat_arrays(parts) if parts else _constant(None, 0)


def _batch_outcomes(node: Node, batch: pa.RecordBatch) -> pa.BooleanArray:
    if isinstance(node, Term):
        return _term(node, batch)
    if isinstance(node, TwoColumnTerm):
        return _two_columns(node, batch)
    if isinstance(node, Residual):
        return _residual_outcomes(node, batch)
    if isinstance(node, And | Or):
        return _connected(node, batch)
    if isinstance(node, Not):
        return pc.invert(_batch_outcomes(node.child, batch))
    if isinstance(node, Constant):
        return _constant(node.value, batch.num_rows)
    raise PredicateError(f"({node}) is not bound to a schema; bind it first")


def _connected(node: And | Or, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Evaluate the residuals last, and only on rows that the other children leave undecided. Another engine may be more
    expensive, and may fail on a row that another term excludes."""
    is_and = isinstance(node, And)
    connective = pc.and_kleene if is_and else pc.or_kleene
    result = _constant(is_and, batch.num_rows)
    for child in sorted(node.children, key=lambda child: bool(residuals(child))):
        if not isinstance(child, Residual):
            result = connective(result, _batch_outcomes(child, batch))
            continue
        decided = null_as_false(pc.invert(result) if is_and else result)
        if decided.true_count < batch.num_rows:
            undecided = pc.invert(decided) if decided.true_count else None
            result = connective(result, _residual_outcomes(child, batch, undecided))
    return result


def _constant(value: bool | None, count: int) -> pa.BooleanArray:
    """Return one outcome, `count` times."""
    return pa.nulls(count, pa.bool_()) if value is None else from_numpy(np.full(count, value))


def _column(ref: ColumnRef, batch: pa.RecordBatch) -> pa.Array:
    index = batch.schema.get_field_index(ref.path[0])
    if index < 0:
        raise SchemaError(f"the rows have no column {ref.path[0]!r} (or more than one)")
    array = batch.column(index)
    for name in ref.path[1:]:
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        if not pa.types.is_struct(array.type) or array.type.get_field_index(name) < 0:
            raise SchemaError(f"the rows have no column {ref.name!r}")
        array = pc.struct_field(array, name)  # a child is null if its parent is
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _cast(array: pa.Array, dtype: pa.DataType, name: str) -> pa.Array:
    if array.type == dtype:
        return array
    try:
        return array.cast(dtype)
    except pa.ArrowException as error:
        raise SchemaError(f"column {name!r} is {array.type} in the rows and {dtype} in the table: {error}") from None


# -- a column and literals --------------------------------------------------------------------------------------------


def _term(term: Term, batch: pa.RecordBatch) -> pa.BooleanArray:
    array = _column(term.ref, batch)
    if term.op == "is_null":
        # is_null does not find a null among the values of a dictionary
        return pc.is_null(array.dictionary_decode() if pa.types.is_dictionary(array.type) else array)
    if pa.types.is_dictionary(array.type):
        outcomes = _plain_term(term, array.dictionary).take(array.indices)
        return null_as_false(outcomes) if term.op == "<=>" else outcomes
    return _plain_term(term, array)


def _plain_term(term: Term, array: pa.Array) -> pa.BooleanArray:
    if term.op in ("always", "never"):
        return from_numpy(np.full(len(array), term.op == "always"), valid_mask(array))
    array = _cast(array, term.type, term.ref.name)
    if term.pattern is not None:
        return term.pattern.matches(array)
    values, literals = _order_form(array), _order_form(term.values)
    if term.op == "starts_with":
        return pc.equal(pc.binary_slice(values, 0, len(term.codes[0])), literals[0])
    if term.op in ("in", "not in"):
        is_member = to_numpy(pc.is_in(values, value_set=literals))
        return from_numpy(is_member if term.op == "in" else ~is_member, valid_mask(array))
    if term.op == "<=>":
        return null_as_false(pc.equal(values, literals[0]))
    return _COMPARISONS[term.op](values, literals[0])


def _order_form(array: pa.Array) -> pa.Array:
    """Return the order codes (int64) or the order bytes (large binary) of the values; nulls stay null."""
    if canon.order_class(array.type) == "code":
        return from_numpy(canon.order_codes(array), valid_mask(array))
    return canon.order_bytes(array).cast(pa.large_binary())


# -- two columns ------------------------------------------------------------------------------------------------------


def _two_columns(term: TwoColumnTerm, batch: pa.RecordBatch) -> pa.BooleanArray:
    sides = [_in_type(ref, term.type, batch) for ref in (term.left, term.right)]
    left, right = map(_order_form if ns_per_count(term.type) is None else _nanoseconds, sides)
    if term.op != "<=>":
        return _COMPARISONS[term.op](left, right)
    both_null = pc.and_(*(side.is_null() for side in sides))
    return pc.or_(null_as_false(pc.equal(left, right)), both_null)


def _nanoseconds(array: pa.Array) -> pa.Array:
    """Return counts of time as exact decimals, because a coarse count may exceed the range of a finer unit."""
    unit = ns_per_count(array.type)
    assert unit is not None
    counts = from_numpy(canon.order_codes(array), valid_mask(array)).cast(pa.decimal128(19))
    return pc.multiply(counts, pa.scalar(unit[1], pa.decimal128(15)))


def _in_type(ref: ColumnRef, dtype: pa.DataType, batch: pa.RecordBatch) -> pa.Array:
    """Return a column's values in the type in which two columns are compared; times and bytes keep their own type."""
    array = _cast(canon.flatten(_column(ref, batch)), ref.type, ref.name)
    if ns_per_count(dtype) is not None or canon.is_bytes_like(dtype):
        return array
    if pa.types.is_integer(array.type) and pa.types.is_floating(dtype):
        return array.cast(dtype, safe=False)  # rounds to the nearest double, as Spark does
    return _cast(array, dtype, ref.name)


# -- parts that other engines test -------------------------------------------------------------------------------------


class ResidualEngine(NamedTuple):
    """The functions with which an engine tests a part, from its text or its serialized expression."""

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
    """Return the residual for a part that we do not understand, or its value if it reads no column. Return the part
    itself if no engine can test it. Raise PredicateError if its engine cannot test it on rows of this schema."""
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


def _residual_outcomes(part: Residual, batch: pa.RecordBatch, rows: pa.Array | None = None) -> pa.BooleanArray:
    """Return one outcome per row of the batch: null for NULL, and null for rows that `rows` (booleans) excludes. A part
    that Spark tests is TRUE here, because Spark tests it later on all rows that it receives."""
    if part.engine == "spark":
        return from_numpy(np.ones(batch.num_rows, dtype=bool))
    # A batch of rows without columns is a table.
    table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
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
