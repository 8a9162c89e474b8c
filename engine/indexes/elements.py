"""The elements of list columns, as indexes cover them.

An index has one entry per element that is not null. A row with a null or empty list has no entry, and a row may have
several. So an index can prove that no list of a file contains a value, but never that a list lacks it. It excludes only
the outcome TRUE of `list_contains` and of conditions that follow from it, and nothing below a NOT.
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
    """The elements of lists that are not null, and the row of each (int64 [n])."""

    values: pa.Array
    rows: np.ndarray


def elements_of(lists: pa.Array) -> Elements:
    """Return the elements of an array of lists of any list type."""
    if pa.types.is_fixed_size_list(lists.type):  # pyarrow versions differ on elements below a null list
        lists = lists.cast(pa.list_(lists.type.value_type))
    values = canon.flatten(pc.list_flatten(lists))
    lengths = to_numpy(pc.list_value_length(lists).fill_null(0))  # elements below a null list do not count
    rows = np.repeat(np.arange(len(lists)), lengths)
    valid = valid_mask(values)
    return Elements(values, rows) if valid is None else Elements(values.filter(from_numpy(valid)), rows[valid])


def plain_values(values: pa.Array) -> pa.Array:
    """Return the values of a column; the elements if it is a list column."""
    return elements_of(values).values if is_list(values.type) else values


def element_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the element type of a list type that an index can cover; None for other types."""
    if not is_list(kind) or isinstance(kind.value_type, pa.BaseExtensionType):
        return None
    return None if canon.order_class(kind.value_type) is None else plain_type(kind.value_type)
