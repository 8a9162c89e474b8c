"""Statistics of one column in one unit (a row group or a file): how they are computed, combined, shortened and stored.

`holds_no_values`: every value is certainly null or NaN. The index of files stores it instead of `value_count`, which
needs bytes, and stores `value_count` only if it differs from the file's row count.

Bounds are order codes (int64) or order bytes of the column's own type (see `canon`); None is an open end. They span
the values that are neither null nor NaN. An *exact* bound is a value of the unit; a loose one only prunes. Counts are
None if they were not counted: unknown never means zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import array_of, from_numpy, to_numpy, valid_mask

BOUND_BYTES_MAX = 64  # longer bounds of strings are shortened: the lower one down, the upper one up

STATS_FIELDS = [
    pa.field("min_code", pa.int64()),
    pa.field("max_code", pa.int64()),
    pa.field("min_bytes", pa.binary()),
    pa.field("max_bytes", pa.binary()),
    pa.field("min_exact", pa.bool_()),
    pa.field("max_exact", pa.bool_()),
    pa.field("null_count", pa.int64()),
    pa.field("nan_count", pa.int64()),
    pa.field("value_count", pa.int64()),
    pa.field("holds_no_values", pa.bool_()),
    pa.field("compressed_bytes", pa.int64()),
    pa.field("uncompressed_bytes", pa.int64()),
]


class ColumnStats(NamedTuple):
    """One column in one unit. `value_count` counts nulls and NaNs too: for columns outside lists it is the rows."""

    lower: int | bytes | None = None
    upper: int | bytes | None = None
    lower_exact: bool = False
    upper_exact: bool = False
    null_count: int | None = None
    nan_count: int | None = None
    value_count: int | None = None
    compressed_bytes: int | None = None
    uncompressed_bytes: int | None = None

    @property
    def holds_no_values(self) -> bool:
        """True if it is certain that every value is null or NaN."""
        if self.value_count is None or self.null_count is None:
            return False
        return self.value_count <= self.null_count + (self.nan_count or 0)


def of_array(array: pa.Array | pa.ChunkedArray) -> ColumnStats | None:
    """Return exact statistics of an array; None for a type that is not indexed."""
    array = canon.flatten(array)
    order = canon.order_class(array.type)
    if order is None:
        return None
    nulls = array.null_count
    nans = 0
    mask = canon.nan_mask(array)
    if mask is not None:
        nans = int(mask.sum())
        if nans:
            array = array.filter(from_numpy(~mask))
    counted = ColumnStats(null_count=nulls, nan_count=nans, value_count=len(array) + nans)
    if len(array) == array.null_count:
        return counted
    if order == "bytes":
        extremes = pc.min_max(canon.order_bytes(array))
        lower, upper = extremes["min"].as_py(), extremes["max"].as_py()
    else:
        codes = canon.order_codes(array)
        valid = valid_mask(array)
        if valid is not None:
            codes = codes[valid]
        lower, upper = int(codes.min()), int(codes.max())
    return shortened(counted._replace(lower=lower, upper=upper, lower_exact=True, upper_exact=True))


def shortened(stats: ColumnStats) -> ColumnStats:
    """Shorten long byte bounds: the lower to a prefix of itself, the upper to a greater prefix, or open."""
    if isinstance(stats.lower, bytes) and len(stats.lower) > BOUND_BYTES_MAX:
        stats = stats._replace(lower=stats.lower[:BOUND_BYTES_MAX], lower_exact=False)
    if isinstance(stats.upper, bytes) and len(stats.upper) > BOUND_BYTES_MAX:
        stats = stats._replace(upper=rounded_up(stats.upper[:BOUND_BYTES_MAX]), upper_exact=False)
    return stats


def rounded_up(prefix: bytes) -> bytes | None:
    """Return the least byte string above every string that starts with `prefix`; None if there is none (all 0xFF)."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def combine(parts: Sequence[ColumnStats]) -> ColumnStats:
    """Return statistics of the union of units. If a part with values lacks a bound, the union lacks it."""
    if len(parts) == 1 and not parts[0].holds_no_values:
        return parts[0]
    filled = [p for p in parts if not p.holds_no_values]
    lower = _extreme([p.lower for p in filled], min)
    upper = _extreme([p.upper for p in filled], max)
    return ColumnStats(
        lower=lower,
        upper=upper,
        lower_exact=lower is not None and any(p.lower == lower and p.lower_exact for p in filled),
        upper_exact=upper is not None and any(p.upper == upper and p.upper_exact for p in filled),
        null_count=_total([p.null_count for p in parts]),
        nan_count=_total([p.nan_count for p in parts]),
        value_count=_total([p.value_count for p in parts]),
        compressed_bytes=_total([p.compressed_bytes for p in parts]),
        uncompressed_bytes=_total([p.uncompressed_bytes for p in parts]),
    )


def _extreme(values: list, pick: Callable[[list], Any]) -> Any:
    return pick(values) if values and all(v is not None for v in values) else None


def _total(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(count for count in counts if count is not None)


def to_columns(rows: Sequence[ColumnStats]) -> dict[str, pa.Array]:
    """Return the stored columns (STATS_FIELDS) of many statistics."""
    lower, upper, *are_exact, nulls, nans, values, packed, plain = list(zip(*rows, strict=True)) or [()] * 9
    bounds = lower, upper
    columns: list[Sequence] = [
        *([bound if isinstance(bound, kind) else None for bound in end] for kind in (int, bytes) for end in bounds),
        *(
            [None if bound is None else is_exact for bound, is_exact in zip(*pair, strict=True)]
            for pair in zip(bounds, are_exact, strict=True)
        ),
        *(nulls, nans, values, [row.holds_no_values for row in rows], packed, plain),
    ]
    return {f.name: array_of(c, f.type) for f, c in zip(STATS_FIELDS, columns, strict=True)}


def numbers(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return (int64 values with 0 where unknown, bool known) of a stored count or code column."""
    valid = valid_mask(array)
    values = to_numpy(array)
    if values.dtype != np.int64:
        values = values.astype(np.int64)
    if valid is None:
        return values, np.ones(len(array), dtype=bool)
    return np.where(valid, values, 0), valid
