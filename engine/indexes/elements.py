"""Indexes of the elements of list columns: which lists they cover, and the elements of a row group's rows.

An index has an entry for each element that is not null. A row with a null or empty list has none, and a row may have
several. So an index proves that no list of a file contains a value, and never that one lacks it: what it excludes is
TRUE for `list_contains` and for what follows from it, and nothing below a NOT.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import from_numpy, to_numpy, valid_mask
from ..parquet.leaves import plain_type
from ..predicates.coerce import is_list


class Elements(NamedTuple):
    """The elements of lists that are not null, and int64 [n]: the row of each."""

    values: pa.Array
    rows: np.ndarray


def elements_of(lists: pa.Array) -> Elements:
    """The elements of an array of lists of any kind."""
    if pa.types.is_fixed_size_list(lists.type):  # pyarrow counts the elements below a null list, or not, by its version
        lists = lists.cast(pa.list_(lists.type.value_type))
    values = canon.flatten(pc.list_flatten(lists))
    lengths = to_numpy(pc.list_value_length(lists).fill_null(0))  # elements below a null list do not count
    rows = np.repeat(np.arange(len(lists)), lengths)
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
