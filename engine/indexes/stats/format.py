"""The statistics index: bounds and counts by column and file.

    key      (kind u8, column u32, partition u32, sequence u32): all of a column, or of one partition of it, is one
             prefix, and what follows the column is the number of the file
    row      kind 0: where a file's fine statistics lie (column 0), and, of a file in an object store, its footer
                     (`parquet/packed_footer.py`)
             kind 1: the aggregate of a column over a partition (sequence 0): what its files may contain
                     (`EVIDENCE_FIELDS`), and the fingerprint of the files
             kind 2: the statistics of a column in a file (`column_stats.STATS_FIELDS`), and the physical schema that
                     they were taken under

A file that an index covers has an entry of kind 2 under every column of the index: where nothing is known, one that
says nothing. So the entries of a column whose index covers every file are all the live files, and some that went.

Column ids begin at 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ....base import canon
from ....base.arrays import combine, empty_bytes, from_numpy, null_column, repeat_value, to_numpy, valid_mask
from ....hfile_like import KeyLayout
from ...parquet.column_stats import STATS_FIELDS, numbers
from ...predicates.possible_values import Evidence

if TYPE_CHECKING:
    from ...state.lsm import EntryBatch, RunFormat

KEYS = KeyLayout([("kind", 1), ("column", 4), ("partition", 4), ("sequence", 4)])
KIND_FINE, KIND_AGGREGATE, KIND_FILE = 0, 1, 2
COLUMN_PREFIX_BYTES = 5
FINE_COLUMN = 0
FINE_FIELDS = [
    pa.field("fine_path", pa.string()),
    pa.field("fine_offset", pa.int64()),
    pa.field("fine_length", pa.int64()),
    pa.field("footer", pa.binary()),
]
SCHEMA_FIELD = pa.field("schema_id", pa.int32())
FINGERPRINT_FIELD = pa.field("fingerprint", pa.int64())
RUN_SCHEMA = pa.schema([*STATS_FIELDS, SCHEMA_FIELD, FINGERPRINT_FIELD, *FINE_FIELDS])
# What evidence is made of, and what blocks are summed up by, so that most of them need not be read.
EVIDENCE_FIELDS = ["min_code", "max_code", "min_bytes", "max_bytes", "null_count", "nan_count", "holds_no_values"]
SUMMARIES = [*EVIDENCE_FIELDS, SCHEMA_FIELD.name]
BLOCK_BYTES = 3 << 20  # before encoding: about 32,000 entries, which shrink to a tenth


def run_form(options: Mapping[str, Any]) -> RunFormat:
    """How the runs of an index with these options are written."""
    from ...state.lsm import SHARD_BYTES, RunFormat

    return RunFormat(BLOCK_BYTES, tuple(SUMMARIES), options.get("shard_bytes", SHARD_BYTES), COLUMN_PREFIX_BYTES)


def no_statistics(count: int) -> pa.Table:
    """STATS_FIELDS of files of which nothing is known."""
    return pa.table({f.name: null_column(count, f.type) for f in STATS_FIELDS})


def joined_rows(parts: Sequence[EntryBatch]) -> EntryBatch:
    """The entries of several parts, with every field of the index's runs."""
    from ...state.lsm import EntryBatch

    return EntryBatch.concat(parts, RUN_SCHEMA)


def file_prefix(column_id: int) -> bytes:
    """The prefix of the keys of a column's file statistics: a file's number follows."""
    return KEYS.prefix(kind=KIND_FILE, column=column_id)


def fine_prefix() -> bytes:
    return KEYS.prefix(kind=KIND_FINE, column=FINE_COLUMN)


def aggregate_prefix(column_id: int) -> bytes:
    return KEYS.prefix(kind=KIND_AGGREGATE, column=column_id)


@dataclass
class StatRows:
    """Statistics of some units, column by column: what `evidence_of` reads.

    numbers      name -> (int64 [n], bool [n]: known) of counts, order codes and flags
    texts        name -> binary Array [n], null where not known, of bounds that are bytes
    constants    name -> the one number that all units have; None where it is known of none
    """

    count: int
    numbers: dict[str, tuple[np.ndarray, np.ndarray]]
    texts: dict[str, pa.Array]
    constants: dict[str, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, columns: Mapping[str, pa.Array | pa.ChunkedArray], count: int) -> StatRows:
        """From stored columns, of which some may be missing: their statistics are unknown then."""
        arrays = {n: combine(c) if isinstance(c, pa.ChunkedArray) else c for n, c in columns.items()}
        bounds = ("min_bytes", "max_bytes")
        texts = {n: a for n, a in arrays.items() if n in bounds}
        return cls(count, {n: numbers(a) for n, a in arrays.items() if n not in bounds}, texts)

    def take(self, units: np.ndarray) -> StatRows:
        """The units at positions `at`; where it is -1, nothing is known."""
        is_there = units >= 0
        if self.count == 0:
            return StatRows(len(units), {}, {})
        place = np.where(is_there, units, 0)
        numbers_at = {n: (values[place], valid[place] & is_there) for n, (values, valid) in self.numbers.items()}
        picked = from_numpy(place, None if is_there.all() else is_there)
        texts = {n: array.take(picked) for n, array in self.texts.items()}
        if is_there.all():
            return StatRows(len(units), numbers_at, texts, dict(self.constants))
        numbers_at |= {n: (np.full(len(units), v or 0), is_there & (v is not None)) for n, v in self.constants.items()}
        return StatRows(len(units), numbers_at, texts)

    def number(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(int64 [n], bool [n]: known)."""
        column = self.numbers.get(name)
        if column is None:
            value = self.constants.get(name)
            column = np.full(self.count, value or 0, np.int64), np.full(self.count, value is not None)
        return column

    def may_exceed_zero(self, name: str) -> np.ndarray:
        """bool [n]: the number is above 0, or not known."""
        if name not in self.numbers:
            return np.full(self.count, self.constants.get(name) != 0)
        values, valid = self.numbers[name]
        return ~valid | (values > 0)

    def text(self, name: str) -> tuple[pa.Array, np.ndarray]:
        """(binary Array [n] without nulls, bool [n]: known)."""
        array = self.texts.get(name)
        if array is None:
            return repeat_value(b"", self.count, pa.binary()), np.zeros(self.count, dtype=bool)
        valid = valid_mask(array)
        if valid is None:
            return array, np.ones(self.count, dtype=bool)
        return array.fill_null(empty_bytes()), valid


def concat(parts: Sequence[StatRows]) -> StatRows:
    """The parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(n for p in parts for n in (*p.numbers, *p.constants))
    texts = dict.fromkeys(n for p in parts for n in p.texts)
    pairs = {n: [p.number(n) for p in parts] for n in names}
    return StatRows(
        sum(p.count for p in parts),
        {n: (np.concatenate([v for v, _ in each]), np.concatenate([k for _, k in each])) for n, each in pairs.items()},
        {n: pa.concat_arrays([p.texts.get(n, pa.nulls(p.count, pa.binary())) for p in parts]) for n in texts},
    )


def evidence_of(rows: StatRows, kind: pa.DataType) -> Evidence:
    """The evidence in stored statistics, unit by unit. `kind` is the type in which they were evidence_at."""
    has_nan = pa.types.is_floating(kind)
    # A row is a null, a NaN or a value. Unless all rows are known to be of the first two, some may be values.
    if "holds_no_values" in rows.numbers:
        none_left, valid = rows.numbers["holds_no_values"]
        may_be_value = ~((none_left != 0) & valid)
    else:
        may_be_value = np.full(rows.count, rows.constants.get("holds_no_values") != 1)
    if canon.order_class(kind) == "bytes":
        lower, has_lower = rows.text("min_bytes")
        upper, has_upper = rows.text("max_bytes")
    else:
        lower, has_lower = rows.number("min_code")
        upper, has_upper = rows.number("max_code")
    return Evidence(
        type=kind,
        may_be_null=rows.may_exceed_zero("null_count"),
        may_be_nan=rows.may_exceed_zero("nan_count") if has_nan else np.zeros(rows.count, dtype=bool),
        may_be_value=may_be_value,
        lower=lower,
        upper=upper,
        has_lower=has_lower,
        has_upper=has_upper,
    )


def evidence_of_values(values: pa.Array) -> Evidence:
    """The evidence where each unit holds one known value (or null): partition columns."""
    kind = values.type
    valid = valid_mask(values)
    is_valid = np.ones(len(values), dtype=bool) if valid is None else valid
    nan = canon.nan_mask(values)
    is_nan = np.zeros(len(values), dtype=bool) if nan is None else nan
    if canon.order_class(kind) == "bytes":
        bounds: np.ndarray | pa.Array = canon.order_bytes(values).fill_null(empty_bytes())
    else:
        bounds = canon.order_codes(values)
    is_value = is_valid & ~is_nan
    return Evidence(kind, ~is_valid, is_nan, is_value, bounds, bounds, is_value, is_value.copy())


def evidence_at(evidence: Evidence, units: np.ndarray) -> Evidence:
    """The evidence of the units at positions `at`."""
    bounds = [evidence.lower, evidence.upper]
    lower, upper = (b[units] if isinstance(b, np.ndarray) else b.take(from_numpy(units)) for b in bounds)
    flags = (evidence.may_be_null, evidence.may_be_nan, evidence.may_be_value)
    null, nan, value = (f[units] for f in flags)
    return Evidence(evidence.type, null, nan, value, lower, upper, evidence.has_lower[units], evidence.has_upper[units])


def evidence_all_null(kind: pa.DataType, units: int) -> Evidence:
    """The evidence for a column that the units' files do not have: every row is null."""
    evidence = Evidence.unknown(kind, units)
    evidence.may_be_value[:] = False
    evidence.may_be_nan[:] = False
    return evidence


def union_by_slice(evidence: Evidence, slice_of: np.ndarray, slices: int) -> Evidence:
    """The evidence of slices from that of their files: what is possible in one file is possible in the slice.

    `slice_of` gives each file's slice, -1 for files that carry no rows. A slice with no file at all holds nothing.
    """
    live = slice_of >= 0
    of_live = slice_of[live]

    def any_of(flags: np.ndarray) -> np.ndarray:
        out = np.zeros(slices, dtype=bool)
        np.logical_or.at(out, of_live, flags[live])
        return out

    has_values = evidence.may_be_value  # a file without values has no bounds to widen, and opens none
    open_lower = any_of(has_values & ~evidence.has_lower)
    open_upper = any_of(has_values & ~evidence.has_upper)
    if isinstance(evidence.lower, np.ndarray):
        lower = np.full(slices, np.iinfo(np.int64).max)
        upper = np.full(slices, np.iinfo(np.int64).min)
        used = live & has_values
        np.minimum.at(lower, slice_of[used], evidence.lower[used])
        np.maximum.at(upper, slice_of[used], evidence.upper[used])
    else:
        used = live & has_values
        lower = extreme_bytes(evidence.lower, used, slice_of, slices, is_lower=True).fill_null(empty_bytes())
        upper = extreme_bytes(evidence.upper, used, slice_of, slices, is_lower=False).fill_null(empty_bytes())
    return Evidence(
        type=evidence.type,
        may_be_null=any_of(evidence.may_be_null),
        may_be_nan=any_of(evidence.may_be_nan),
        may_be_value=any_of(has_values),
        lower=lower,
        upper=upper,
        has_lower=~open_lower,
        has_upper=~open_upper,
    )


def extreme_bytes(values: pa.Array, used: np.ndarray, group_of: np.ndarray, groups: int, is_lower: bool) -> pa.Array:
    """The least, or the greatest, of the used values of each group; null for a group without any."""
    which = "min" if is_lower else "max"
    grouped = pa.table({"group": from_numpy(group_of[used]), "value": values.filter(from_numpy(used))})
    extremes = grouped.group_by("group").aggregate([("value", which)])
    row_of = np.full(groups, -1)
    row_of[to_numpy(extremes.column("group"))] = np.arange(extremes.num_rows)
    return combine(extremes.column(f"value_{which}")).take(from_numpy(row_of, row_of >= 0))
