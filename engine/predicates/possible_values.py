"""The possible values of a column in each unit: null, NaN, and other values with their bounds. Intervals of the bounds
have two forms with an order: int64 codes and binary bytes.

An interval's methods return a pair of bool [n] arrays: the test may be true, and may be false, for a value of the
interval. An open end is beyond every value. If both ends are equal, the interval is that one value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import repeat_value, to_numpy, valid_mask
from .coerce import array_of, plain_type

# the order codes of these floats (see `canon`); constants, because computing them would import pandas
NAN_CODE, INFINITY_CODE, MINUS_INFINITY_CODE = 0x7FF8 << 48, 0x7FF0 << 48, -(0x7FF0 << 48) - 1
_CODE_MIN, _CODE_MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_LOOPED_MEMBERS_MAX = 32

Pair = tuple[np.ndarray, np.ndarray]


@dataclass
class Evidence:
    """The possible values of one column in each unit.

    type                    the type in which the column was indexed here; bounds are order codes or bytes of this type
    may_be_null             bool [n]: some row may be null
    may_be_nan              bool [n]: some row may be NaN (always False for types without NaN)
    may_be_value            bool [n]: some row may be neither null nor NaN
    lower, upper            int64 [n] order codes, or a binary Array of n order bytes; any value if the end is open
    has_lower, has_upper    bool [n]: False if that end is open
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
    def unknown(cls, dtype: pa.DataType, count: int) -> Evidence:
        """Return evidence that excludes nothing in `count` units."""
        everywhere = np.ones(count, dtype=bool)
        nowhere = np.zeros(count, dtype=bool)
        empty: np.ndarray | pa.Array
        if canon.order_class(dtype) == "bytes":
            empty = repeat_value(b"", count, pa.binary())
        else:
            empty = np.zeros(count, dtype=np.int64)
        has_nan = pa.types.is_floating(dtype)
        return cls(
            type=dtype,
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


@dataclass
class CodeInterval:
    """An interval of codes, int64 [n], the type's extremes if open; `contradicts` is True if the ends cross."""

    lower: np.ndarray
    upper: np.ndarray

    @property
    def contradicts(self) -> np.ndarray:
        return self.lower > self.upper

    def less_than(self, code: int) -> Pair:
        return self.lower < code, self.upper >= code

    def greater_than(self, code: int) -> Pair:
        return self.upper > code, self.lower <= code

    def member_of(self, codes: np.ndarray) -> Pair:
        """Test membership in `codes`, which are ascending and distinct, and may be empty."""
        if len(codes) == 1:
            code = codes[0]
            return (self.lower <= code) & (self.upper >= code), (self.lower != code) | (self.upper != code)
        units, count = len(self.lower), len(codes)
        # Test the least member that is not below the lower end. If there is none, none is within.
        first = np.searchsorted(codes, self.lower, "left")
        is_within = (first < count) & (np.append(codes, 0)[first] <= self.upper)
        # The interval contains codes that are not members, unless the members fill it. The width may wrap around.
        width = self.upper.view(np.uint64) - self.lower.view(np.uint64)
        is_filled = np.zeros(units, dtype=bool)
        narrow = np.flatnonzero(is_within & (width < np.uint64(count)))
        last = first[narrow] + width[narrow].astype(np.int64)
        is_filled[narrow] = (last < count) & (codes[np.minimum(last, count - 1)] == self.upper[narrow])
        return is_within, ~is_filled


@dataclass
class ByteInterval:
    """An interval of bytes. `lower` and `upper` are binary Arrays [n]; the value of an open end does not matter."""

    lower: pa.Array
    upper: pa.Array
    open_lower: np.ndarray
    open_upper: np.ndarray

    @property
    def contradicts(self) -> np.ndarray:
        return _compare(pc.greater, self.lower, self.upper) & ~self.open_lower & ~self.open_upper

    def less_than(self, value: bytes) -> Pair:
        literal = array_of([value], self.lower.type)[0]
        return (
            _compare(pc.less, self.lower, literal) | self.open_lower,
            _compare(pc.greater_equal, self.upper, literal) | self.open_upper,
        )

    def greater_than(self, value: bytes) -> Pair:
        literal = array_of([value], self.lower.type)[0]
        return (
            _compare(pc.greater, self.upper, literal) | self.open_upper,
            _compare(pc.less_equal, self.lower, literal) | self.open_lower,
        )

    def single(self) -> np.ndarray:
        """Return True (bool [n]) for intervals of one value."""
        return _compare(pc.equal, self.lower, self.upper) & ~self.open_lower & ~self.open_upper

    def member_of(self, values: list[bytes]) -> Pair:
        """Test membership in `values`, which are ascending and distinct."""
        if len(values) > _LOOPED_MEMBERS_MAX:
            return self._member_of_many(values)
        true, surely = np.zeros(len(self.lower), dtype=bool), np.zeros(len(self.lower), dtype=bool)
        single = self.single()
        for value in values:
            literal = array_of([value], self.lower.type)[0]
            from_below = _compare(pc.less_equal, self.lower, literal) | self.open_lower
            inside = from_below & (_compare(pc.greater_equal, self.upper, literal) | self.open_upper)
            true |= inside
            surely |= inside & single
        return true, ~surely

    def _member_of_many(self, values: list[bytes]) -> Pair:
        first = np.where(self.open_lower, 0, _search(values, self.lower, "left"))
        stop = np.where(self.open_upper, len(values), _search(values, self.upper, "right"))
        true = stop > first
        return true, ~(true & self.single())

    def starting_with(self, prefix: bytes) -> Pair:
        # Values keep their order when cut to the prefix's length; those that start with the prefix become equal to it.
        literal = array_of([prefix], self.lower.type)[0]
        lower = pc.binary_slice(self.lower, 0, len(prefix))
        upper = pc.binary_slice(self.upper, 0, len(prefix))
        true = (_compare(pc.less_equal, lower, literal) | self.open_lower) & (
            _compare(pc.greater_equal, upper, literal) | self.open_upper
        )
        surely = _compare(pc.equal, lower, literal) & _compare(pc.equal, upper, literal)
        return true, ~(surely & ~self.open_lower & ~self.open_upper)


def interval_of(evidence: Evidence) -> CodeInterval | ByteInterval:
    """Return the interval of a column's values, without NaN."""
    dtype = plain_type(evidence.type)
    if canon.order_class(dtype) == "bytes":
        lower, upper = _as_bytes(evidence.lower), _as_bytes(evidence.upper)
        return ByteInterval(lower, upper, ~evidence.has_lower | _nulls(lower), ~evidence.has_upper | _nulls(upper))
    floats = pa.types.is_floating(dtype)
    lowest, highest = (MINUS_INFINITY_CODE, INFINITY_CODE) if floats else (_CODE_MIN, _CODE_MAX)
    lower = evidence.lower if evidence.has_lower.all() else np.where(evidence.has_lower, evidence.lower, lowest)
    upper = evidence.upper if evidence.has_upper.all() else np.where(evidence.has_upper, evidence.upper, highest)
    return CodeInterval(lower, upper)


def _as_bytes(array: pa.Array) -> pa.Array:
    array = canon.flatten(array)
    return array if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type) else array.cast(pa.binary())


def _nulls(array: pa.Array) -> np.ndarray:
    valid = valid_mask(array)
    return np.zeros(len(array), dtype=bool) if valid is None else ~valid


def _compare(function: object, values: pa.Array, others: pa.Array | pa.Scalar) -> np.ndarray:
    """Return bool [n], False if either side is null."""
    return to_numpy(function(values, others))  # type: ignore[operator]


def _search(values: list[bytes], probes: pa.Array, side: str) -> np.ndarray:
    """Return the insertion position of each probe among the ascending values (int64 [n]), as numpy.searchsorted does;
    numpy's byte strings lose trailing NULs. A stable sort of both together counts the values before each probe."""
    members = array_of(values, probes.type)
    parts = [probes, members] if side == "left" else [members, probes]
    order = pc.sort_indices(pa.concat_arrays(parts)).to_numpy()
    is_member = order >= len(probes) if side == "left" else order < len(members)
    before = np.cumsum(is_member)
    probe_ids = order if side == "left" else order - len(members)
    positions = np.zeros(len(probes), dtype=np.int64)
    positions[probe_ids[~is_member]] = before[~is_member]
    return positions
