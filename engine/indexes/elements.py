"""Indexes of the elements of list columns: which lists they cover, and the elements of a row group's rows.

An index has an entry for each element that is not null. A row with a null or empty list has none, and a row may have
several. So an index proves that no list of a file contains a value, and never that one lacks it: what it excludes is
TRUE for `list_contains` and for what follows from it, and nothing below a NOT.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import from_numpy, to_numpy, valid_mask
from ...errors import SchemaError
from ..parquet.leaves import plain_type
from ..predicates.coerce import is_list
from ..state import Instant
from ..state.derived import DerivedColumn

KINDS = ("bloom", "secondary")


class Elements(NamedTuple):
    """The elements of lists that are not null, and int64 [n]: the row of each."""

    values: pa.Array
    rows: np.ndarray


def elements_of(lists: pa.Array) -> Elements:
    """The elements of an array of lists of any kind."""
    if pa.types.is_fixed_size_list(lists.type):  # pyarrow counts the elements below a null list, or not, by its version
        lists = lists.cast(pa.list_(lists.type.value_type))
    values, rows = canon.flatten(pc.list_flatten(lists)), to_numpy(pc.list_parent_indices(lists)).astype(np.int64)
    valid = valid_mask(values)
    return Elements(values, rows) if valid is None else Elements(values.filter(from_numpy(valid)), rows[valid])


def plain_values(values: pa.Array) -> pa.Array:
    """The values of a column: of a list column its elements."""
    return elements_of(values).values if is_list(values.type) else values


def element_type(kind: pa.DataType) -> pa.DataType | None:
    """The type of the elements of a list type that an index can cover; None for other types."""
    if not is_list(kind) or isinstance(kind.value_type, pa.BaseExtensionType):
        return None
    return None if canon.order_class(kind.value_type) is None else plain_type(kind.value_type)


def source_name(instant: Instant, derived: DerivedColumn) -> str:
    """The list column of some elements."""
    return next(name for name, number in instant.fields.items() if number == derived.field)


def source_path(instant: Instant, name: str) -> str:
    """The column that is read for an indexed column: itself, or the list column of elements."""
    derived = instant.derived_column(name)
    return name if derived is None else source_name(instant, derived)


def is_list_column(instant: Instant, name: str) -> bool:
    """Whether a name is that of a list column, so that an index of it covers the elements."""
    return name in instant.fields and name not in instant.columns and is_list(instant.schema.field(name).type)


def indexed_name(instant: Instant, name: str) -> str:
    """What an index calls a column: a list column by its elements, if an index covers them; others by their names."""
    if name in instant.columns or name not in instant.fields:
        return name
    number = instant.fields[name]
    return next((instant.derived_names[one.id] for one in instant.derived if one.field == number), name)


def with_elements(instant: Instant, column: str, kind: str) -> Instant:
    """A version in which the elements of a list column have an id. Raises SchemaError if they cannot be indexed."""
    if kind not in KINDS:
        raise SchemaError(f"{column!r} is a list column: the kinds of index for its elements are {', '.join(KINDS)}")
    dtype = instant.schema.field(column).type
    if element_type(dtype) is None:
        raise SchemaError(f"{column!r} is {dtype}, whose elements cannot be indexed")
    if indexed_name(instant, column) != column:
        return instant
    number = instant.next["column"]
    derived = (*instant.derived, DerivedColumn(number, instant.fields[column]))
    return replace(instant, derived=derived, next={**instant.next, "column": number + 1})


def names_of_elements(instant: Instant) -> dict[str, str]:
    """What the elements of list columns are called if an index covers them, by the list column."""
    return {source_name(instant, one): instant.derived_names[one.id] for one in instant.derived}
