"""Our own evaluator: which rows of a table a bound predicate matches, in three-valued logic.

pyarrow's comparisons are used where they mean what `canon` means. They differ for NaN (Arrow says that NaN > 5 is
false) and are missing for some types, so floats compare through the opposite question, times by their integers, and
what is left by order codes or order bytes: the very forms that the index compares.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import from_numpy, null_as_false, to_numpy, valid_mask
from ...errors import PredicateError, SchemaError
from .ast import And, Constant, Node, Not, Or
from .bound import ColumnLeaf, ColumnRef, Leaf, Residual, residuals, unknowns
from .coerce import array_of, ns_per_count, plain_type

_FUNCTIONS = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def matches(bound: Node, table: pa.Table | pa.RecordBatch) -> pa.BooleanArray:
    """One outcome a row: true, false, or null for NULL; a row matches where it is true.

    Columns are found by the names that the predicate was bound with, and cast where the table holds them in another
    type. Raises PredicateError for a predicate, or a part of one, that could not be understood, and SchemaError where a
    column is missing or does not fit.
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
    if isinstance(node, Leaf):
        return _leaf(node, batch)
    if isinstance(node, ColumnLeaf):
        return _column_leaf(node, batch)
    if isinstance(node, Residual):
        return _residual_outcomes(node, batch)
    if isinstance(node, And | Or):
        return _connected(node, batch)
    if isinstance(node, Not):
        return pc.invert(_batch_outcomes(node.child, batch))
    if isinstance(node, Constant):
        return _constant(node.value, batch.num_rows)
    raise PredicateError(f"({node}) is not bound to a schema; bind it first")


def _residual_outcomes(part: Residual, batch: pa.RecordBatch, rows: pa.Array | None = None) -> pa.BooleanArray:
    from .residual import residual_outcomes

    return residual_outcomes(part, batch, rows)


def _connected(node: And | Or, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Another engine tests the rows that the other children leave undecided: it may cost more, and fail on a row that a
    test beside it was to keep away."""
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
    """One outcome, `count` times."""
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
        array = pc.struct_field(array, name)  # null where the parent is
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _cast(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise SchemaError(f"column {name!r} is {array.type} in the rows and {kind} in the table: {error}") from None


# -- a column and literals --------------------------------------------------------------------------------------------


def _leaf(leaf: Leaf, batch: pa.RecordBatch) -> pa.BooleanArray:
    array = _column(leaf.ref, batch)
    if leaf.op == "is_null":
        # a dictionary may hold a null among its values, which is_null does not see
        return pc.is_null(array.dictionary_decode() if pa.types.is_dictionary(array.type) else array)
    if pa.types.is_dictionary(array.type):
        holds = _plain_leaf(leaf, array.dictionary)
        outcomes = holds.take(array.indices)
        if leaf.op == "<=>":
            outcomes = null_as_false(outcomes)
        return outcomes
    return _plain_leaf(leaf, array)


def _plain_leaf(leaf: Leaf, array: pa.Array) -> pa.BooleanArray:
    if leaf.op in ("always", "never"):
        return _with_nulls_of(array, np.full(len(array), leaf.op == "always"))
    array = _cast(array, leaf.type, leaf.ref.name)
    op = "=" if leaf.op == "<=>" else leaf.op
    if op == "starts_with":
        prefix = array_of(leaf.codes, pa.large_binary())[0]
        holds = pc.equal(_byte_prefix(array, len(leaf.codes[0])), prefix)
    elif leaf.pattern is not None:
        holds = leaf.pattern.matches(array)
    elif op in ("in", "not in"):
        holds = _members(leaf, array)
    elif pa.types.is_floating(leaf.type):
        holds = _float_comparison(array, op, leaf.values[0].as_py())
    else:
        holds = _FUNCTIONS[op](_plain(array), _plain(leaf.values)[0])
    return null_as_false(holds) if leaf.op == "<=>" else holds


def _with_nulls_of(array: pa.Array, values: np.ndarray) -> pa.BooleanArray:
    return from_numpy(values, valid_mask(array))


def _byte_prefix(array: pa.Array, size_bytes: int) -> pa.Array:
    return pc.binary_slice(array.cast(pa.large_binary()), 0, size_bytes)


def _members(leaf: Leaf, array: pa.Array) -> pa.BooleanArray:
    if canon.order_class(leaf.type) == "bytes":
        wanted = array_of(leaf.codes, pa.large_binary())
        holds = to_numpy(pc.is_in(canon.order_bytes(array).cast(pa.large_binary()), value_set=wanted))
    elif pa.types.is_decimal(leaf.type):
        holds = np.isin(canon.order_codes(array), leaf.codes)
    elif pa.types.is_floating(leaf.type):
        holds = _float_members(array.cast(pa.float64()), leaf.values.cast(pa.float64()))
    else:
        holds = to_numpy(pc.is_in(_plain(array), value_set=_plain(leaf.values)))
    return _with_nulls_of(array, holds if leaf.op == "in" else ~holds)


def _float_members(array: pa.Array, wanted: pa.Array) -> np.ndarray:
    """is_in takes -0.0 and 0.0 for different, and perhaps two NaNs."""
    zero = array_of([0.0], pa.float64())[0]
    is_nan = pc.is_nan(wanted)
    holds = to_numpy(pc.is_in(pc.add(array, zero), value_set=pc.add(wanted.filter(pc.invert(is_nan)), zero)))
    return holds | to_numpy(pc.is_nan(array)) if pc.any(is_nan).as_py() else holds


def _float_comparison(array: pa.Array, op: str, literal: float) -> pa.BooleanArray:
    """NaN equals NaN and is the greatest; Arrow's comparisons with NaN are false (and != true)."""
    if pa.types.is_float16(array.type):  # Arrow compares no halves
        array = array.cast(pa.float32())
    if math.isnan(literal):
        is_nan = pc.is_nan(array)
        if op in ("=", ">="):
            return is_nan
        if op in ("<", "!="):
            return pc.invert(is_nan)
        return _with_nulls_of(array, np.full(len(array), op == "<="))
    scalar = array_of([literal], array.type)[0]
    if op == ">":
        return pc.invert(pc.less_equal(array, scalar))
    if op == ">=":
        return pc.invert(pc.less(array, scalar))
    return _FUNCTIONS[op](array, scalar)


def _plain(array: pa.Array) -> pa.Array:
    """The values in a type that Arrow compares, in the same order: times as their integers, booleans as 0 and 1."""
    kind = array.type
    if pa.types.is_temporal(kind):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_boolean(kind):
        return array.cast(pa.uint8())
    if canon.is_bytes_like(kind) and not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return array.cast(pa.large_binary())
    return array


# -- two columns ------------------------------------------------------------------------------------------------------


def _column_leaf(leaf: ColumnLeaf, batch: pa.RecordBatch) -> pa.BooleanArray:
    op = "=" if leaf.op == "<=>" else leaf.op
    left, right = (_in_type(ref, leaf.type, batch) for ref in (leaf.left, leaf.right))
    if ns_per_count(leaf.type) is not None:
        holds = _FUNCTIONS[op](_which_is_later(left, right), array_of([0], pa.int8())[0])
    elif pa.types.is_floating(leaf.type):
        codes = [canon.order_codes(array) for array in (left, right)]
        both = pc.and_(left.is_valid(), right.is_valid())
        holds = _FUNCTIONS[op](*(array_of(one, pa.int64()) for one in codes))
        holds = pc.if_else(both, holds, pa.nulls(len(both), pa.bool_()))
    else:
        holds = _FUNCTIONS[op](_plain(left), _plain(right))
    if leaf.op != "<=>":
        return holds
    return pc.or_kleene(null_as_false(holds), pc.and_(left.is_null(), right.is_null()))


def _which_is_later(left: pa.Array, right: pa.Array) -> pa.Array:
    """int8 [n]: the sign of left - right, null where either is, of counts of time in any two units. By dividing: what
    the coarser counts may be beyond the finer one's range."""
    counts = [canon.order_codes(array) for array in (left, right)]
    units = [unit[1] for array in (left, right) if (unit := ns_per_count(array.type)) is not None]
    coarse = int(units[1] > units[0])
    ratio = units[coarse] // units[1 - coarse]
    in_coarser = counts[1 - coarse] // ratio
    sign = np.sign(
        np.where(counts[coarse] == in_coarser, -(counts[1 - coarse] % ratio), _order(counts[coarse], in_coarser))
    )
    holds = from_numpy((-sign if coarse else sign).astype(np.int8))
    return pc.if_else(pc.and_(left.is_valid(), right.is_valid()), holds, pa.nulls(len(holds), pa.int8()))


def _order(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """1, 0 or -1: a difference might wrap."""
    return (left > right).astype(np.int64) - (left < right)


def _in_type(ref: ColumnRef, kind: pa.DataType, batch: pa.RecordBatch) -> pa.Array:
    """The values of a column in the type in which two are compared; times as they are."""
    array = _cast(canon.flatten(_column(ref, batch)), ref.type, ref.name)
    if ns_per_count(kind) is not None:
        return array
    if pa.types.is_integer(array.type) and pa.types.is_floating(kind):
        return array.cast(kind, safe=False)  # rounds to the nearest double, as Spark does
    if canon.is_bytes_like(array.type):
        kind = pa.large_binary()
    return _cast(array, plain_type(kind), ref.name)
