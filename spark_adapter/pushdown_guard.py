"""What Spark's own Parquet reader would read or skip wrongly: stored types that it refuses, filters that lose rows.

Spark hands comparisons on to its reader, which compares them with a file's statistics in the type that the *file* has.
Where that is narrower than the column's, the literal is cut to it: 3 us to 0 ms, so `t < 3 us` leaves out a file of
TIMESTAMP(ms) that is all 0; 123456789.01 as a DECIMAL(15, 2) wraps round in a file of DECIMAL(5, 2), or ends the query.
It also leaves out rows of floats that match, by bounds that leave out NaN and by dictionaries that tell -0.0 from 0.0:
to Spark NaN is greater than any number. Such columns are hidden from the reader; Spark compares the rows that are read.

And it may shift times of long ago, where a file's footer or a setting says that they count by the old calendar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from ..engine.predicates import And, Node, Not, Or, Unknown
from ..engine.predicates.bound import Term, TwoColumnTerm
from ..engine.predicates.coerce import is_list, plain_type
from ..errors import SchemaError
from .columns import quoted, without_unknowns
from .spark_versions import READER_WIDENS
from .wire_types import wire_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..engine.state import FileSchema

ColumnPath = tuple[str, ...]
_SHIFTED_BEFORE = -2_208_902_400  # seconds: 1900-01-02 UTC; since 1900 both calendars agree in every zone of Spark's


def hide_from_pushdown(
    frame: DataFrame, schema: pa.Schema, stored: Iterable[FileSchema], with_floats: bool
) -> DataFrame:
    """The same rows, in columns whose comparisons Spark keeps to itself where its reader would err.

    Args:
        stored: the physical schemas of the files.
        with_floats: the filter that follows may compare floats in a way that NaN or a zero satisfies.
    """
    for path in sorted(_unsafe_paths(schema, stored, with_floats)):
        top, rest = path[0], path[1:]
        if top not in frame.columns:
            continue
        term = F.col(quoted(*path))
        value = F.greatest(term, term)  # the value itself, and no column to Spark
        frame = frame.withColumn(top, F.col(quoted(top)).withField(quoted(*rest), value) if rest else value)
    return frame


def _unsafe_paths(schema: pa.Schema, stored: Iterable[FileSchema], with_floats: bool) -> set[ColumnPath]:
    """The columns, and fields of structs, of a type that literals are cut to, where some file has another (or may
    have: `is_declared` marks a schema that no footer confirmed); and, with `with_floats`, those of floats."""
    paths: set[ColumnPath] = set()
    for file in stored:
        for name in file.schema.names:
            if schema.get_field_index(name) >= 0:
                written, declared = (plain_type(each.field(name).type) for each in (file.schema, schema))
                paths.update(_unsafe_terms(written, declared, (name,), file.is_declared, with_floats))
    return paths


def _unsafe_terms(
    stored: pa.DataType, declared: pa.DataType, path: ColumnPath, is_declared: bool, with_floats: bool
) -> Iterator[ColumnPath]:
    if pa.types.is_struct(stored) and pa.types.is_struct(declared):
        for field in declared:
            if stored.get_field_index(field.name) >= 0:
                inner = plain_type(stored.field(field.name).type)
                yield from _unsafe_terms(inner, plain_type(field.type), (*path, field.name), is_declared, with_floats)
    elif pa.types.is_floating(declared):
        if with_floats:
            yield path
    elif (is_declared or stored != declared) and (pa.types.is_decimal(declared) or pa.types.is_timestamp(declared)):
        yield path


# -- times of long ago -------------------------------------------------------------------------------------------------


def without_old_times(bound: Node) -> Node:
    """A predicate that may prune files for Spark's reader: it holds for a row as stored wherever the given one, bound,
    holds for the row as Spark reads it; the given one itself where that is so.

    In files of the old calendar (`org.apache.spark.legacyDateTime` in the footer, or a session's rebase mode LEGACY)
    Spark shifts dates before 1582 and timestamps before 1900, in the same order and never beyond these. So comparisons
    with later times stay as they are, and the others prune nothing.
    """
    marked = _older_as_unknown(bound)
    return bound if marked is bound else without_unknowns(marked)


def _older_as_unknown(node: Node) -> Node:
    if isinstance(node, Not):
        child = _older_as_unknown(node.child)
        return node if child is node.child else Not(child)
    if isinstance(node, And | Or):
        children = tuple(map(_older_as_unknown, node.children))
        is_same = all(new is old for new, old in zip(children, node.children, strict=True))
        return node if is_same else type(node)(children)
    if isinstance(node, TwoColumnTerm):
        is_shifted = pa.types.is_temporal(node.type)
    else:
        is_shifted = isinstance(node, Term) and node.op != "is_null" and _is_old(node.ref.type, node.values)
    return Unknown(str(node), "Spark may shift times of long ago") if is_shifted else node


def _is_old(kind: pa.DataType, values: pa.Array) -> bool:
    """Whether values of a column are times of which one is of long ago, or that are out of its type's reach."""
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return False
    zone = kind.tz if pa.types.is_timestamp(kind) else None
    seconds = values.cast(pa.timestamp("s", zone), safe=False).cast(pa.int64())
    return not len(seconds) or pc.min(seconds).as_py() < _SHIFTED_BEFORE


# -- stored types -----------------------------------------------------------------------------------------------------


def is_read_as(kind: pa.DataType, wire: pa.DataType) -> bool:
    """Whether Spark's reader reads a stored type as `wire`, with equal values: found by trying each pair. Where it does
    not, it would fail in the middle of a query."""
    if pa.types.is_struct(kind) and pa.types.is_struct(wire):
        shared = [field for field in wire if kind.get_field_index(field.name) >= 0]
        return bool(shared) and all(is_read_as(plain_type(kind.field(f.name).type), f.type) for f in shared)
    if pa.types.is_map(kind) and pa.types.is_map(wire):
        pairs = (kind.key_type, wire.key_type), (kind.item_type, wire.item_type)
        return all(is_read_as(plain_type(stored), read) for stored, read in pairs)
    if is_list(kind) and pa.types.is_list(wire):
        return is_read_as(plain_type(kind.value_type), wire.value_type)
    if pa.types.is_null(kind):
        return True
    if pa.types.is_float16(kind):
        return False
    try:
        given = wire_schema(pa.schema([pa.field("value", kind)])).field(0).type
    except SchemaError:
        return False
    if given == wire or not READER_WIDENS:
        return given == wire
    if pa.types.is_integer(given) and pa.types.is_integer(wire):
        return wire.bit_width >= given.bit_width
    if pa.types.is_signed_integer(kind) and pa.types.is_decimal(wire):
        return wire.precision - wire.scale >= (20 if kind.bit_width == 64 else 10)
    if pa.types.is_signed_integer(kind) and pa.types.is_float64(wire):
        return kind.bit_width <= 32
    if pa.types.is_decimal(given) and pa.types.is_decimal(wire):
        return wire.scale >= given.scale and wire.precision - wire.scale >= given.precision - given.scale
    if pa.types.is_date32(given):
        return pa.types.is_timestamp(wire) and wire.tz is None
    return pa.types.is_float32(given) and pa.types.is_float64(wire)
