"""Aggregates: the statistics of one column over a whole partition, kept beside those of its files.

A commit that adds files to a partition widens its aggregates; where files leave, it marks them loose: their bounds then
prune, and prove nothing else. `optimize` computes loose ones again. An aggregate names its files by a fingerprint (see
`state.manifest`), and counts only where these are the live files of the partition. A file without statistics opens it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....base.arrays import combine, empty_bytes, from_numpy, to_numpy
from ...parquet.column_stats import STATS_FIELDS, numbers
from ...parquet.leaves import leaf_type
from ...state import IndexState, Instant
from ...state.coverage import is_covered
from ...state.manifest import fingerprints, split_file_ids
from ...state.run_lookups import entries_of, get_runs, numbered_entries
from ...state.run_writing import Rows
from ...state.runs import DAMAGE, DamagedRun, RunReaders
from ...state.snapshot import Snapshot
from . import format as stats

_STATS_NAMES = [f.name for f in STATS_FIELDS]
_AGGREGATE_NAMES = [*_STATS_NAMES, stats.SCHEMA_FIELD.name, stats.FILES_FIELD.name, stats.FINGERPRINT_FIELD.name]
_SUMS = ("null_count", "nan_count", "value_count", "compressed_bytes", "uncompressed_bytes")
_ENDS = (("min_code", "min_bytes", "min_exact", True), ("max_code", "max_bytes", "max_exact", False))


# -- combining --------------------------------------------------------------------------------------------------------


@dataclass
class Members:
    """What is combined: statistics of files, and aggregates of before.

    group       int64 [n]: which of `groups` aggregates each row belongs to
    files       int64 [n]: the number of files behind each row
    marks       int64 [n]: the fingerprint of those files
    kind_of     int64 [n]: a number for the type of its bounds; below 0, one a schema, where it has none
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


def loosened(rows: pa.Table, removed: np.ndarray, removed_marks: np.ndarray) -> pa.Table:
    """Aggregates without `removed` (int64 [n]) files of these fingerprints. Where any file was removed the bounds are
    loose, and counts other than zero unknown."""
    if not removed.any():
        return rows
    is_loose = removed > 0
    columns = {name: rows.column(name) for name in rows.column_names}
    for name in ("min_exact", "max_exact"):
        columns[name] = from_numpy(to_numpy(rows.column(name)) & ~is_loose)
    for name in _SUMS:
        values, valid = numbers(combine(rows.column(name)))
        valid = valid & (~is_loose | ((values == 0) & (name in ("null_count", "nan_count"))))
        columns[name] = from_numpy(values, valid)
    files, _ = numbers(combine(rows.column("files")))
    columns["files"] = from_numpy(files - removed)
    marks, _ = numbers(combine(rows.column("fingerprint")))
    columns["fingerprint"] = from_numpy(marks - removed_marks)  # modulo 2^64
    return pa.table(columns)


def combined(members: Members) -> dict[str, pa.Array]:
    """The stored columns (STATS_FIELDS, `schema_id` and `files`) of the aggregates of some members, in the order of
    groups. The schema is one under which the bounds have their type; null, for the table's own, where there are none
    because types differ."""
    rows, group, groups = members.rows, members.group, members.groups
    columns = {name: _sum(rows, name, group, groups) for name in _SUMS}
    holds_values = ~to_numpy(rows.column("holds_no_values"))
    is_open = _has_several_kinds(members)
    columns["holds_no_values"] = from_numpy(~_any(holds_values, group, groups))
    for code_name, bytes_name, exact_name, is_lower in _ENDS:
        codes, has_code = numbers(combine(rows.column(code_name)))
        texts = combine(rows.column(bytes_name))
        has_text = to_numpy(texts.is_valid())
        is_unbounded = is_open | _any(holds_values & ~has_code & ~has_text, group, groups)
        is_extreme = np.zeros(len(group), dtype=bool)
        # Groups of either form may come together: those of one are not of the other.
        if has_text.any():
            used = holds_values & has_text
            bounds = stats.extreme_bytes(texts.fill_null(empty_bytes()), used, group, groups, is_lower)
            columns[bytes_name] = _masked(bounds, to_numpy(bounds.is_valid()) & ~is_unbounded)
            of_group = bounds.fill_null(empty_bytes()).take(from_numpy(group))
            is_extreme = used & to_numpy(pc.equal(texts.fill_null(empty_bytes()), of_group))
        if has_code.any():
            used = holds_values & has_code
            limit = np.iinfo(np.int64).max if is_lower else np.iinfo(np.int64).min
            extremes = np.full(groups, limit)
            (np.minimum if is_lower else np.maximum).at(extremes, group[used], codes[used])
            valid = _any(used, group, groups) & ~is_unbounded
            columns[code_name] = from_numpy(np.where(valid, extremes, 0), valid)
            is_extreme |= used & (codes == extremes[group])
        is_exact = _any(is_extreme & to_numpy(rows.column(exact_name)), group, groups)
        columns[exact_name] = from_numpy(is_exact & ~is_unbounded)
    schema_of = np.full(groups, -1, dtype=np.int32)
    schema_of[group] = members.schema_of
    columns["schema_id"] = from_numpy(schema_of, (schema_of >= 0) & ~is_open)
    columns["files"] = from_numpy(_total(members.files, group, groups))
    columns["fingerprint"] = from_numpy(_total(members.marks, group, groups))
    for field in STATS_FIELDS:
        columns.setdefault(field.name, pa.nulls(groups, field.type))
    return columns


def _has_several_kinds(members: Members) -> np.ndarray:
    """bool [groups]: the group has files of more than one type. Their bounds cannot be compared; and the type of one of
    them would deny the others' NaN, or, where it lacks the column, all that they hold."""
    least = np.full(members.groups, np.iinfo(np.int64).max)
    most = np.full(members.groups, np.iinfo(np.int64).min)
    np.minimum.at(least, members.group, members.kind_of)
    np.maximum.at(most, members.group, members.kind_of)
    return most > least


def _any(flags: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """bool [groups]: a row of the group is flagged."""
    result = np.zeros(groups, dtype=bool)
    result[group[flags]] = True
    return result


def _total(values: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """int64 [groups]: the sums, modulo 2^64."""
    total = np.zeros(groups, dtype=np.int64)
    np.add.at(total, group, values)
    return total


def _sum(rows: pa.Table, name: str, group: np.ndarray, groups: int) -> pa.Array:
    values, valid = numbers(combine(rows.column(name)))
    is_unknown = _any(~valid, group, groups)
    return from_numpy(np.where(is_unknown, 0, _total(values, group, groups)), ~is_unknown)


def _masked(array: pa.Array, valid: np.ndarray) -> pa.Array:
    return pc.if_else(from_numpy(valid), array, pa.nulls(len(array), array.type))


def _type_numbers(instant: Instant, columns: np.ndarray, schema_ids: np.ndarray) -> np.ndarray:
    """int64 [n]: a number for the type that a column has under a physical schema; 0 for the table's own. Where files of
    a schema have no bounds of it the number is that schema's own: they may lack the column, or hold anything."""
    distinct, number = np.unique(columns, return_inverse=True)
    lookup = []
    for column in distinct.tolist():
        names: dict[str, int] = {str(leaf_type(instant.schema, instant.path_of(column))): 0}
        of_schemas = []
        for schema, physical in enumerate(instant.file_schemas):
            path = physical.path_of(column)
            if path is None:
                of_schemas.append(-1 - schema)
            else:
                of_schemas.append(names.setdefault(str(leaf_type(physical.schema, path)), len(names)))
        lookup.append([*of_schemas, 0])
    table = np.array(lookup, dtype=np.int64).reshape(len(distinct), len(instant.file_schemas) + 1)
    return table[number, schema_ids]


def _aggregate_rows(columns: np.ndarray, partitions: np.ndarray, members: Members) -> Rows:
    """The rows of aggregates, of a column over a partition each; one that has no files any more is a tombstone."""
    rows = combined(members)
    return _aggregate_keys(columns, partitions), pa.table(rows), to_numpy(rows["files"]) <= 0


def _aggregate_keys(columns: np.ndarray, partitions: np.ndarray) -> pa.Array:
    return stats.KEYS.encode(kind=stats.KIND_AGGREGATE, column=columns, partition=partitions, sequence=0)


# -- commits ----------------------------------------------------------------------------------------------------------


@dataclass
class TouchedPartitions:
    """The partitions that a commit touches, and the files that it adds to them and takes away.

    numbers          uint32 [p], ascending
    removed_files    int64 [p]: how many leave each, of those that the index covers
    removed_marks    int64 [p]: their fingerprint
    group            int64 [n]: which of the partitions each added file is in
    schema_of        int64 [n]
    marks            int64 [n]
    """

    after: Instant
    index: IndexState
    readers: RunReaders
    numbers: np.ndarray
    removed_files: np.ndarray
    removed_marks: np.ndarray
    group: np.ndarray
    schema_of: np.ndarray
    marks: np.ndarray

    @classmethod
    def of(
        cls,
        after: Instant,
        index: IndexState,
        readers: RunReaders,
        ids: np.ndarray,
        schema_ids: np.ndarray,
        removed: pa.Table,
    ) -> TouchedPartitions:
        """ids, schema_ids   of the added files: uint64, int64 [n]
        removed           the removed files, as the manifest had them
        """
        removed_ids = to_numpy(removed.column("file_id"))
        removed_ids = removed_ids[is_covered(index.coverage, to_numpy(removed.column("segment")), removed_ids)]
        removed_partitions, _ = split_file_ids(removed_ids)
        partitions, _ = split_file_ids(ids)
        touched = np.union1d(partitions, removed_partitions).astype(np.uint32)
        removed_from = np.searchsorted(touched, removed_partitions)
        return cls(
            after,
            index,
            readers,
            touched,
            np.bincount(removed_from, minlength=len(touched)),
            _total(fingerprints(removed_ids), removed_from, len(touched)),
            np.searchsorted(touched, partitions),
            schema_ids,
            fingerprints(ids),
        )

    def aggregates(self, columns: np.ndarray, added: pa.Table) -> list[Rows]:
        """The new aggregates of some columns (ascending ids). `added`: STATS_FIELDS of the added files, column by
        column."""
        touched = len(self.numbers)
        if not touched:
            return []
        before, group = self._current(columns)
        of_partition = group % touched
        before = loosened(before, self.removed_files[of_partition], self.removed_marks[of_partition])
        times = len(columns)
        files = len(self.group)
        groups = np.concatenate([group, np.repeat(np.arange(times) * touched, files) + np.tile(self.group, times)])
        schema_before = to_numpy(before.column("schema_id").fill_null(-1)).astype(np.int64)
        schema_of = np.concatenate([schema_before, np.tile(self.schema_of, times)])
        members = Members(
            group=groups,
            groups=times * touched,
            files=np.concatenate([to_numpy(before.column("files")), np.ones(times * files, dtype=np.int64)]),
            marks=np.concatenate([to_numpy(before.column("fingerprint")), np.tile(self.marks, times)]),
            kind_of=_type_numbers(self.after, columns[groups // touched], schema_of),
            schema_of=schema_of,
            rows=pa.concat_tables([before.select(_STATS_NAMES), added]),
        )
        return [_aggregate_rows(np.repeat(columns, touched), np.tile(self.numbers, times), members)]

    def _current(self, columns: np.ndarray) -> tuple[pa.Table, np.ndarray]:
        """(the stored aggregates, int64: which each is, of the columns and in each of the partitions). A damaged run
        counts as empty: what is then widened has too few files to be believed."""
        touched = len(self.numbers)
        keys = _aggregate_keys(np.repeat(columns, touched), np.tile(self.numbers, len(columns)))
        try:
            entries = get_runs(self.readers, self.index.runs, keys, _AGGREGATE_NAMES, stats.RUN_SCHEMA)
        except DAMAGE:
            entries = get_runs(self.readers, (), keys, _AGGREGATE_NAMES, stats.RUN_SCHEMA)
        parts = stats.KEYS.decode(entries.column("key"))
        of_column = np.searchsorted(columns, parts["column"].astype(np.int64))
        group = of_column * touched + np.searchsorted(self.numbers, parts["partition"].astype(np.uint32))
        return entries.drop_columns(["key"]), group


# -- optimize ---------------------------------------------------------------------------------------------------------


def tightened(snapshot: Snapshot, index: IndexState) -> Rows | None:
    """Tombstones for the entries of removed files, and the aggregates of their partitions computed again; None where no
    file was removed. An index with a damaged run stays unchanged."""
    try:
        return _tightened_rows(snapshot, index)
    except DamagedRun as damaged:
        warnings.warn(f"statistics with a damaged run are not tightened: {damaged}", stacklevel=4)
        return None


def _tightened_rows(snapshot: Snapshot, index: IndexState) -> Rows | None:
    live = snapshot.numbers()
    parts: list[Rows] = []
    touched = np.empty(0, dtype=np.uint32)
    of_files = [(stats.KIND_FILE, column) for column in index.columns]
    for kind, column in [(stats.KIND_FINE, stats.FINE_COLUMN), *of_files]:
        prefix = stats.KEYS.prefix(kind=kind, column=column)
        entries, _ = numbered_entries(snapshot.readers, index.runs, prefix, [], stats.RUN_SCHEMA)
        removed = np.setdiff1d(entries, live, assume_unique=True)
        if kind == stats.KIND_FILE and column == next(iter(index.columns), None):
            touched = _outdated(snapshot, index, column, np.setdiff1d(entries, removed, assume_unique=True))
            touched = np.union1d(touched, split_file_ids(removed)[0])
        if len(removed):
            partition, sequence = split_file_ids(removed)
            keys = stats.KEYS.encode(kind=kind, column=column, partition=partition, sequence=sequence)
            rows = pa.table({"min_code": pa.nulls(len(removed), pa.int64())})
            parts.append((keys, rows, np.ones(len(removed), dtype=bool)))
    if len(touched):
        parts += [_recomputed(snapshot, index, column, touched, live) for column in index.columns]
    return stats.joined_rows(parts) if parts else None


def _outdated(snapshot: Snapshot, index: IndexState, column: int, ids: np.ndarray) -> np.ndarray:
    """uint32: the partitions whose aggregate is of other files than those (`ids`) that have entries."""
    partitions, group = np.unique(split_file_ids(ids)[0], return_inverse=True)
    marks = _total(fingerprints(ids), group, len(partitions))
    prefix = stats.aggregate_prefix(column)
    stored, rows = numbered_entries(snapshot.readers, index.runs, prefix, ["fingerprint"], stats.RUN_SCHEMA)
    of_aggregates = dict(zip(split_file_ids(stored)[0].tolist(), rows.column("fingerprint").to_pylist(), strict=True))
    of_files = dict(zip(partitions.tolist(), marks.tolist(), strict=True))
    every = sorted({*of_aggregates, *of_files})
    return np.array([p for p in every if of_aggregates.get(p) != of_files.get(p)], dtype=np.uint32)


def _recomputed(snapshot: Snapshot, index: IndexState, column: int, partitions: np.ndarray, live: np.ndarray) -> Rows:
    """The aggregates of a column over some partitions, from the entries of their live files."""
    live = live[np.isin(split_file_ids(live)[0], partitions)]
    names = [*_STATS_NAMES, stats.SCHEMA_FIELD.name]
    ids, rows = entries_of(snapshot.readers, index.runs, stats.file_prefix(column), live, names, stats.RUN_SCHEMA)
    schema_of = to_numpy(rows.column("schema_id").fill_null(-1)).astype(np.int64)
    members = Members(
        group=np.searchsorted(partitions, split_file_ids(ids)[0]),
        groups=len(partitions),
        files=np.ones(len(ids), dtype=np.int64),
        marks=fingerprints(ids),
        kind_of=_type_numbers(snapshot.instant, np.full(len(ids), column), schema_of),
        schema_of=schema_of,
        rows=rows.select(_STATS_NAMES),
    )
    return _aggregate_rows(np.full(len(partitions), column), partitions, members)
