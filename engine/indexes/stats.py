"""The statistics index: bounds and counts by column and file.

    key      (column u32, partition u32, sequence u32): all of a column, or of one partition of it, is one prefix
    row      the statistics (`column_stats.STATS_FIELDS`); under column 0, where the file's fine statistics lie

Column ids begin at 1.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ... import canon
from ...arrays import empty_bytes, from_numpy, joined, to_numpy, valid_mask
from ...hfile_like import KeyLayout
from ..ingest.column_stats import STATS_FIELDS, numbers
from ..predicates.evidence import Evidence

KEYS = KeyLayout([("column", 4), ("partition", 4), ("sequence", 4)])
FINE_COLUMN = 0
FINE_FIELDS = [
    pa.field("fine_path", pa.string()),
    pa.field("fine_offset", pa.int64()),
    pa.field("fine_length", pa.int64()),
]
RUN_SCHEMA = pa.schema([*STATS_FIELDS, *FINE_FIELDS])


def evidence_of(
    rows: pa.Table, kind: pa.DataType, row_count: np.ndarray, rows_exact: np.ndarray, at: np.ndarray | None = None
) -> Evidence:
    """The evidence in stored statistics, unit by unit.

    `rows` holds STATS_FIELDS; unit i is row `at[i]` (-1: there is none, nothing is known), or row i where `at` is
    None. `row_count` and `rows_exact` are the unit's: "all null" is believed only where the rows were counted.
    """
    units = len(row_count)
    if at is None:
        at = np.arange(units)
    if rows.num_rows == 0 or not (at >= 0).any():
        return Evidence.unknown(kind, units)
    there = at >= 0
    at = np.where(there, at, 0)

    def taken(name: str) -> tuple[np.ndarray, np.ndarray]:
        values, known = numbers(rows, name)
        return values[at], known[at] & there

    nulls, nulls_known = taken("null_count")
    nans, nans_known = taken("nan_count")
    values, values_known = taken("value_count")
    has_nan = pa.types.is_floating(kind)
    may_be_nan = ~nans_known | (nans > 0) if has_nan else np.zeros(units, dtype=bool)
    # A row is a null, a NaN or a value. Unless all rows are known to be of the first two, some may be values.
    counted = nulls_known & rows_exact & (~np.bool_(has_nan) | nans_known)
    none_left = nulls + np.where(nans_known, nans, 0) >= row_count
    may_be_value = ~(counted & none_left & (~values_known | (values == row_count)))
    if canon.order_class(kind) == "bytes":
        lower, has_lower = _taken_bytes(rows, "min_bytes", at, there)
        upper, has_upper = _taken_bytes(rows, "max_bytes", at, there)
    else:
        lower, has_lower = taken("min_code")
        upper, has_upper = taken("max_code")
    return Evidence(
        type=kind,
        may_be_null=~nulls_known | (nulls > 0),
        may_be_nan=may_be_nan,
        may_be_value=may_be_value,
        lower=lower,
        upper=upper,
        has_lower=has_lower,
        has_upper=has_upper,
    )


def _taken_bytes(rows: pa.Table, name: str, at: np.ndarray, there: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    array = joined(rows.column(name)).take(from_numpy(at))
    known = valid_mask(array)
    if known is not None:
        array = array.fill_null(empty_bytes())
    return array, there if known is None else known & there


def evidence_of_values(values: pa.Array) -> Evidence:
    """The evidence where each unit holds one known value (or null): partition columns."""
    kind = values.type
    valid = valid_mask(values)
    known = np.ones(len(values), dtype=bool) if valid is None else valid
    nan = canon.nan_mask(values)
    is_nan = np.zeros(len(values), dtype=bool) if nan is None else nan
    if canon.order_class(kind) == "bytes":
        bounds: np.ndarray | pa.Array = canon.order_bytes(values).fill_null(empty_bytes())
    else:
        bounds = canon.order_codes(values)
    is_value = known & ~is_nan
    return Evidence(kind, ~known, is_nan, is_value, bounds, bounds, is_value, is_value.copy())


def evidence_all_null(kind: pa.DataType, units: int) -> Evidence:
    """The evidence for a column that the units' files do not have: every row is null."""
    found = Evidence.unknown(kind, units)
    found.may_be_value[:] = False
    found.may_be_nan[:] = False
    return found


def union_by_slice(evidence: Evidence, slice_of: np.ndarray, slices: int) -> Evidence:
    """The evidence of slices from that of their files: what is possible in one file is possible in the slice.

    `slice_of` gives each file's slice, -1 for files that carry no rows. A slice with no file at all holds nothing.
    """
    live = slice_of >= 0
    at = slice_of[live]

    def any_of(flags: np.ndarray) -> np.ndarray:
        out = np.zeros(slices, dtype=bool)
        np.logical_or.at(out, at, flags[live])
        return out

    spoken = evidence.may_be_value  # a file without values has no bounds to widen, and opens none
    open_lower = any_of(spoken & ~evidence.has_lower)
    open_upper = any_of(spoken & ~evidence.has_upper)
    if isinstance(evidence.lower, np.ndarray):
        lower = np.full(slices, np.iinfo(np.int64).max)
        upper = np.full(slices, np.iinfo(np.int64).min)
        used = live & spoken
        np.minimum.at(lower, slice_of[used], evidence.lower[used])
        np.maximum.at(upper, slice_of[used], evidence.upper[used])
    else:
        lower = _extreme_bytes(evidence.lower, live & spoken, slice_of, slices, "min")
        upper = _extreme_bytes(evidence.upper, live & spoken, slice_of, slices, "max")
    return Evidence(
        type=evidence.type,
        may_be_null=any_of(evidence.may_be_null),
        may_be_nan=any_of(evidence.may_be_nan),
        may_be_value=any_of(spoken),
        lower=lower,
        upper=upper,
        has_lower=~open_lower,
        has_upper=~open_upper,
    )


def _extreme_bytes(values: pa.Array, used: np.ndarray, slice_of: np.ndarray, slices: int, which: str) -> pa.Array:
    grouped = pa.table({"slice": from_numpy(slice_of[used]), "value": values.filter(from_numpy(used))})
    found = grouped.group_by("slice").aggregate([("value", which)])
    at = np.full(slices, -1)
    at[to_numpy(found.column("slice"))] = np.arange(found.num_rows)
    picked = joined(found.column(f"value_{which}")).take(from_numpy(at, at >= 0))
    return picked.fill_null(empty_bytes())


def keys_of(column: int | np.ndarray, partition: np.ndarray, sequence: np.ndarray) -> pa.Array:
    return KEYS.encode(column=column, partition=partition, sequence=sequence)


def positions(stored_ids: np.ndarray, wanted_ids: np.ndarray) -> np.ndarray:
    """For each wanted id, its position among the stored ones (ascending), or -1."""
    if len(stored_ids) == 0:
        return np.full(len(wanted_ids), -1, dtype=np.int64)
    at = np.searchsorted(stored_ids, wanted_ids)
    at[at == len(stored_ids)] = 0
    return np.where(stored_ids[at] == wanted_ids, at, -1)
