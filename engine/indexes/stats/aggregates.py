"""Aggregates: what one column spans over a whole partition, kept beside the statistics of its files.

An aggregate is widened at each commit that adds files to the partition and marked loose where files leave it: its
bounds then only prune. It says of which files it speaks, by a fingerprint; where those are not the live files of the
partition, it says nothing. A file of which nothing is known opens it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....arrays import empty_bytes, from_numpy, joined, to_numpy
from ...parquet.column_stats import STATS_FIELDS, numbers
from . import format as stats

_SUMS = ("null_count", "nan_count", "value_count", "compressed_bytes", "uncompressed_bytes")
_ENDS = (("min_code", "min_bytes", "min_exact", True), ("max_code", "max_bytes", "max_exact", False))


@dataclass
class Members:
    """What is brought together for one column: statistics of files, and aggregates as they were.

    group       int64 [n]: which of `groups` aggregates each row belongs to
    files       int64 [n]: of how many files each row speaks
    marks       int64 [n]: the fingerprint of those files (see `state.manifest`)
    kind_of     int64 [n]: a number for the type in which its bounds are; below 0, one a schema, where it has none
    schema_of   int64 [n]: the physical schema, or -1
    rows        STATS_FIELDS [n]
    """

    group: np.ndarray
    groups: int
    files: np.ndarray
    marks: np.ndarray
    kind_of: np.ndarray
    schema_of: np.ndarray
    rows: pa.Table


def loosened(rows: pa.Table, left: np.ndarray, marks: np.ndarray) -> pa.Table:
    """Aggregates from which `left` (int64 [n]) files of these fingerprints went: bounds are loose where any did, counts
    are not known any more, save those of zero."""
    went = left > 0
    columns = {name: rows.column(name) for name in rows.column_names}
    for name in ("min_exact", "max_exact"):
        columns[name] = from_numpy(to_numpy(rows.column(name)) & ~went)
    for name in _SUMS:
        values, known = numbers(joined(rows.column(name)))
        still = known & (~went | ((values == 0) & (name in ("null_count", "nan_count"))))
        columns[name] = from_numpy(values, still)
    files, _ = numbers(joined(rows.column("files")))
    columns["files"] = from_numpy(files - left)
    known_marks, _ = numbers(joined(rows.column("fingerprint")))
    columns["fingerprint"] = from_numpy(known_marks - marks)  # modulo 2^64
    return pa.table(columns)


def combined(members: Members) -> dict[str, pa.Array]:
    """The stored columns (STATS_FIELDS, `schema_id` and `files`) of the aggregates of some members, in the order of
    groups. The schema is one under which the bounds have their type; null, for the table's own, where there are none
    because types met."""
    rows, group, groups = members.rows, members.group, members.groups
    sums = {name: _sum(rows, name, group, groups) for name in _SUMS}
    holds_values = ~to_numpy(rows.column("holds_no_values"))
    opened = _several_kinds(members)
    columns: dict[str, pa.Array] = dict(sums)
    some_values = np.zeros(groups, dtype=bool)
    np.logical_or.at(some_values, group, holds_values)
    columns["holds_no_values"] = from_numpy(~some_values)
    for code, text, exact, is_lower in _ENDS:
        code_values, code_known = numbers(joined(rows.column(code)))
        texts = joined(rows.column(text))
        text_known = to_numpy(texts.is_valid())
        lacking = opened.copy()
        np.logical_or.at(lacking, group, holds_values & ~code_known & ~text_known)
        reached = np.zeros(len(group), dtype=bool)
        # Groups of either form may come together: those of one are not of the other.
        if text_known.any():
            used = holds_values & text_known
            bounds = stats.extreme_bytes(texts.fill_null(empty_bytes()), used, group, groups, is_lower)
            some = to_numpy(bounds.is_valid()) & ~lacking
            columns[text] = _masked(bounds, some)
            own = bounds.fill_null(empty_bytes()).take(from_numpy(group))
            reached = used & to_numpy(pc.equal(texts.fill_null(empty_bytes()), own))
        if code_known.any():
            used = holds_values & code_known
            start = np.iinfo(np.int64).max if is_lower else np.iinfo(np.int64).min
            extreme = np.full(groups, start)
            (np.minimum if is_lower else np.maximum).at(extreme, group[used], code_values[used])
            some = np.zeros(groups, dtype=bool)
            some[group[used]] = True
            some &= ~lacking
            columns[code] = from_numpy(np.where(some, extreme, 0), some)
            reached |= used & (code_values == extreme[group])
        is_exact = np.zeros(groups, dtype=bool)
        np.logical_or.at(is_exact, group, reached & to_numpy(rows.column(exact)))
        columns[exact] = from_numpy(is_exact & ~lacking)
    schema_of = np.full(groups, -1, dtype=np.int32)
    schema_of[group] = members.schema_of
    columns["schema_id"] = from_numpy(schema_of, (schema_of >= 0) & ~opened)
    files = np.zeros(groups, dtype=np.int64)
    np.add.at(files, group, members.files)
    columns["files"] = from_numpy(files)
    marks = np.zeros(groups, dtype=np.int64)
    np.add.at(marks, group, members.marks)
    columns["fingerprint"] = from_numpy(marks)
    for field in STATS_FIELDS:
        columns.setdefault(field.name, pa.nulls(groups, field.type))
    return columns


def _several_kinds(members: Members) -> np.ndarray:
    """bool [groups]: files of more than one type meet. Their bounds cannot be compared; and what is told by the type of
    one of them would deny the others' NaN, or, where it lacks the column, all that they hold."""
    least = np.full(members.groups, np.iinfo(np.int64).max)
    most = np.full(members.groups, np.iinfo(np.int64).min)
    np.minimum.at(least, members.group, members.kind_of)
    np.maximum.at(most, members.group, members.kind_of)
    return most > least


def _sum(rows: pa.Table, name: str, group: np.ndarray, groups: int) -> pa.Array:
    values, known = numbers(joined(rows.column(name)))
    total = np.zeros(groups, dtype=np.int64)
    np.add.at(total, group, values)
    unknown = np.zeros(groups, dtype=bool)
    np.logical_or.at(unknown, group, ~known)
    return from_numpy(np.where(unknown, 0, total), ~unknown)


def _masked(array: pa.Array, valid: np.ndarray) -> pa.Array:
    return pc.if_else(from_numpy(valid), array, pa.nulls(len(array), array.type))
