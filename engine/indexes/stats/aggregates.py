"""Aggregates: the possible values of a column in a whole partition, stored next to the statistics of its files.

An aggregate is the union of its files' statistics: bounds, and if there are nulls, NaN and other values. A commit that
adds files to a partition widens it. If files are removed it stays as wide as before; `optimize` computes it again. It
identifies its files by a fingerprint (see `state.manifest`), and applies only if these are the partition's live files.
It excludes nothing if files of the partition lack the column, or store it in several types.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....base.arrays import combine, empty_bytes, filled, from_numpy, to_numpy
from ...parquet.column_stats import numbers
from ...parquet.leaves import leaf_type
from ...state import IndexState, Instant
from ...state.coverage import is_covered
from ...state.manifest import any_of, fingerprints, split_file_ids
from ...state.run_format import EntryBatch
from ...state.run_lookups import get_by_ids, get_runs, numbered_entries
from ...state.runs import DAMAGE, RunReaders
from ...state.snapshot import Snapshot
from ..columns import EVIDENCE_FIELDS, extreme_bytes
from . import format as stats

_NAMES = [*EVIDENCE_FIELDS, stats.SCHEMA_FIELD.name, stats.FINGERPRINT_FIELD.name]


def united(rows: pa.Table, group: np.ndarray, is_open: np.ndarray) -> pa.Table:
    """Return the union of statistics per group, one row of `EVIDENCE_FIELDS` each.

    group      int64 [n]: the group of each row
    is_open    bool [groups]: the group's statistics exclude nothing, because its bounds have several types
    """
    groups = len(is_open)
    has_values = ~to_numpy(rows.column("holds_no_values"))
    columns = {"holds_no_values": from_numpy(~is_open & ~any_of(group, has_values, groups))}
    for name in ("null_count", "nan_count"):
        counts, is_known = numbers(combine(rows.column(name)))
        is_zero = ~is_open & ~any_of(group, ~is_known | (counts > 0), groups)
        columns[name] = from_numpy(np.zeros(groups, dtype=np.int64), is_zero)
    for end, is_lower in (("min", True), ("max", False)):
        codes, has_code = numbers(combine(rows.column(f"{end}_code")))
        texts = combine(rows.column(f"{end}_bytes"))
        has_text = to_numpy(texts.is_valid())
        is_bounded = ~is_open & ~any_of(group, has_values & ~has_code & ~has_text, groups)
        extremes = np.full(groups, np.iinfo(np.int64).max if is_lower else np.iinfo(np.int64).min)
        used = has_values & has_code
        (np.minimum if is_lower else np.maximum).at(extremes, group[used], codes[used])
        columns[f"{end}_code"] = from_numpy(extremes, is_bounded & any_of(group, used, groups))
        columns[f"{end}_bytes"] = nothing = pa.nulls(groups, pa.binary())
        if has_text.any():
            texts = texts.fill_null(empty_bytes())
            bounds = extreme_bytes(texts, has_values & has_text, group, groups, is_lower)
            columns[f"{end}_bytes"] = pc.if_else(from_numpy(is_bounded), bounds, nothing)
    return pa.table(columns).select(EVIDENCE_FIELDS)


def _total(values: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """Return the sums modulo 2^64: int64 [groups]."""
    total = np.zeros(groups, dtype=np.int64)
    np.add.at(total, group, values)
    return total


def _type_numbers(instant: Instant, columns: np.ndarray, schema_ids: np.ndarray) -> np.ndarray:
    """Return a number for the column's type under each physical schema (-1: the table's own): int64 [n]. A schema
    without the column has its own number: its files may lack the column, or contain anything."""
    result = np.empty(len(columns), dtype=np.int64)
    for column in np.unique(columns).tolist():
        types = {str(leaf_type(instant.schema, instant.path_of(column))): 0}
        of_schemas = []
        for schema, physical in enumerate(instant.file_schemas):
            path = physical.path_of(column)
            name = None if path is None else str(leaf_type(physical.schema, path))
            of_schemas.append(-1 - schema if name is None else types.setdefault(name, len(types)))
        is_column = columns == column
        result[is_column] = np.array([*of_schemas, 0], dtype=np.int64)[schema_ids[is_column]]
    return result


def _aggregates(
    instant: Instant, columns: np.ndarray, partitions: np.ndarray, group: np.ndarray, marks: np.ndarray, rows: pa.Table
) -> EntryBatch:
    """Return the entries of aggregates, each of a column over a partition; a tombstone for one without files.

    group    int64 [n]: the aggregate to which each of `rows` (EVIDENCE_FIELDS, schema_id) belongs
    marks    int64 [aggregates]: the fingerprints of their files
    """
    schemas = to_numpy(filled(rows.column(stats.SCHEMA_FIELD.name), -1)).astype(np.int64)
    types = _type_numbers(instant, columns[group], schemas)
    schema_of, type_of = (np.full(len(columns), -1, dtype=np.int64) for _ in range(2))
    schema_of[group], type_of[group] = schemas, types
    is_open = any_of(group, types != type_of[group], len(columns))
    entries = united(rows, group, is_open)
    schema_ids = from_numpy(schema_of.astype(np.int32), (schema_of >= 0) & ~is_open)
    entries = entries.append_column(stats.SCHEMA_FIELD, schema_ids)
    entries = entries.append_column(stats.FINGERPRINT_FIELD, from_numpy(marks))
    return EntryBatch(_keys(columns, partitions), entries, marks == 0)


def _keys(columns: np.ndarray, partitions: np.ndarray) -> pa.Array:
    return stats.KEYS.encode(kind=stats.KIND_AGGREGATE, column=columns, partition=partitions, sequence=0)


def widened(
    after: Instant,
    index: IndexState,
    readers: RunReaders,
    removed: pa.Table,
    ids: np.ndarray,
    columns: np.ndarray,
    added: pa.Table,
) -> EntryBatch:
    """Return the aggregates of columns (ascending ids) over the partitions that a commit changes. Aggregates of a
    damaged run count as missing: the new ones then cover too few files to apply.

    removed    the removed files, as rows of the manifest
    ids        uint64 [n], ascending: the added files
    added      EVIDENCE_FIELDS and schema_id of the added files, column by column
    """
    gone = to_numpy(removed.column("file_id"))
    gone = gone[is_covered(index.coverage, to_numpy(removed.column("segment")), gone)]
    of_added, of_gone = split_file_ids(ids)[0], split_file_ids(gone)[0]
    touched = np.union1d(of_added, of_gone).astype(np.uint32)
    count, times = len(touched), len(columns)
    place = np.searchsorted(touched, of_added)
    marks = _total(fingerprints(ids), place, count)
    marks -= _total(fingerprints(gone), np.searchsorted(touched, of_gone), count)
    keys = _keys(np.repeat(columns, count), np.tile(touched, times))
    try:
        before = get_runs(readers, index.runs, keys, _NAMES, stats.RUN_SCHEMA)
    except DAMAGE:
        before = get_runs(readers, (), keys, _NAMES, stats.RUN_SCHEMA)
    parts = stats.KEYS.decode(before.column("key"))
    group = np.searchsorted(columns, parts["column"].astype(np.int64)) * count
    group += np.searchsorted(touched, parts["partition"].astype(np.uint32))
    marks_before, _ = numbers(combine(before.column(stats.FINGERPRINT_FIELD.name)))
    marks = np.tile(marks, times) + _total(marks_before, group, times * count)
    group = np.concatenate([group, np.repeat(np.arange(times) * count, len(ids)) + np.tile(place, times)])
    rows = pa.concat_tables([before.select(_NAMES[:-1]), added.select(_NAMES[:-1])])
    return _aggregates(after, np.repeat(columns, count), np.tile(touched, times), group, marks, rows)


def stale_partitions(snapshot: Snapshot, index: IndexState, column: int, ids: np.ndarray) -> np.ndarray:
    """Return the partitions (uint32, ascending) whose aggregate does not match the files (`ids`) that have entries.
    Raise DamagedRun."""
    partitions, group = np.unique(split_file_ids(ids)[0], return_inverse=True)
    marks = _total(fingerprints(ids), group, len(partitions))
    prefix = stats.aggregate_prefix(column)
    stored, rows = numbered_entries(snapshot.readers, index.runs, prefix, _NAMES[-1:], stats.RUN_SCHEMA)
    before = dict(zip(split_file_ids(stored)[0].tolist(), rows.column(0).to_pylist(), strict=True))
    now = dict(zip(partitions.tolist(), marks.tolist(), strict=True))
    return np.array(sorted(p for p in {*before, *now} if before.get(p) != now.get(p)), dtype=np.uint32)


def recomputed(snapshot: Snapshot, index: IndexState, partitions: np.ndarray) -> list[EntryBatch]:
    """Return the aggregates of partitions (ascending), from the entries of their live files. Raise DamagedRun."""
    live = snapshot.numbers()
    live = live[np.isin(split_file_ids(live)[0], partitions)]
    entries = []
    for column in index.columns if len(partitions) else ():
        prefix = stats.file_prefix(column)
        ids, rows = get_by_ids(snapshot.readers, index.runs, prefix, live, _NAMES[:-1], stats.RUN_SCHEMA)
        group = np.searchsorted(partitions, split_file_ids(ids)[0])
        marks = _total(fingerprints(ids), group, len(partitions))
        columns = np.full(len(partitions), column, dtype=np.int64)
        entries.append(_aggregates(snapshot.instant, columns, partitions, group, marks, rows))
    return entries
