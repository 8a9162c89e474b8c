"""What is known of one column's values in each of n units (files, slices, row groups, partitions).

Evidence says which values are *possible*, never which are there: a field that is not known is left at its widest. The
possible values of a unit are null (where `may_be_null`), NaN (where `may_be_nan`) and, where `may_be_value`, any
other value between `lower` and `upper`, both inclusive and possibly loose; an end that is not known is open.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ... import canon
from ...arrays import binary_array


@dataclass
class Evidence:
    """The possible values of one column, unit by unit.

    type                  the type in which the column was indexed here; bounds are order codes or bytes of this type
    may_be_null           bool [n]: some row may be null
    may_be_nan            bool [n]: some row may be NaN (always False for types without NaN)
    may_be_value          bool [n]: some row may be neither null nor NaN
    lower, upper          int64 [n] order codes, or a binary Array of n order bytes; anything where the end is open
    has_lower, has_upper  bool [n]: False where that end is open
    """

    type: pa.DataType
    may_be_null: np.ndarray
    may_be_nan: np.ndarray
    may_be_value: np.ndarray
    lower: np.ndarray | pa.Array
    upper: np.ndarray | pa.Array
    has_lower: np.ndarray
    has_upper: np.ndarray

    @classmethod
    def unknown(cls, kind: pa.DataType, count: int) -> Evidence:
        """Nothing is known of `count` units."""
        everywhere = np.ones(count, dtype=bool)
        nowhere = np.zeros(count, dtype=bool)
        empty: np.ndarray | pa.Array
        if canon.order_class(kind) == "bytes":
            empty = binary_array([b""] * count)
        else:
            empty = np.zeros(count, dtype=np.int64)
        has_nan = pa.types.is_floating(kind)
        return cls(
            type=kind,
            may_be_null=everywhere,
            may_be_nan=everywhere.copy() if has_nan else nowhere.copy(),
            may_be_value=everywhere.copy(),
            lower=empty,
            upper=empty,
            has_lower=nowhere,
            has_upper=nowhere.copy(),
        )

    def __len__(self) -> int:
        return len(self.may_be_null)
