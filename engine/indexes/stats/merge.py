"""What optimizing does to statistics: they let go of files that went, and tell anew what partitions span."""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa

from ....arrays import to_numpy
from ...parquet.column_stats import STATS_FIELDS
from ...state import IndexState
from ...state.manifest import fingerprints, split_file_ids
from ...state.run_writing import Rows
from ...state.runs import DamagedRun, entries_of, numbered_entries
from ...state.snapshot import Snapshot
from . import format as stats
from .aggregates import Members, combined
from .rows import kinds_of, widened


def tightened(snapshot: Snapshot, index: IndexState) -> Rows | None:
    """What takes out of a statistics index the entries of files that went, and tells anew of the partitions that they
    were in; None where none went. A damaged index says nothing, and stays as it is."""
    try:
        return _tightened_rows(snapshot, index)
    except DamagedRun as found:
        warnings.warn(f"statistics with a damaged run are left as they are: {found}", stacklevel=4)
        return None


def _tightened_rows(snapshot: Snapshot, index: IndexState) -> Rows | None:
    live = snapshot.numbers()
    parts: list[Rows] = []
    touched = np.empty(0, dtype=np.uint32)
    for kind, column in [(stats.KIND_FINE, stats.FINE_COLUMN), *((stats.KIND_FILE, c) for c in index.columns)]:
        prefix = stats.KEYS.prefix(kind=kind, column=column)
        told, _ = numbered_entries(snapshot.readers, index.runs, prefix, [], stats.RUN_SCHEMA)
        gone = np.setdiff1d(told, live, assume_unique=True)
        if column == next(iter(index.columns), None):
            touched = _misled(snapshot, index, column, np.setdiff1d(told, gone, assume_unique=True))
            touched = np.union1d(touched, split_file_ids(gone)[0])
        if len(gone):
            partition, sequence = split_file_ids(gone)
            keys = stats.KEYS.encode(kind=kind, column=column, partition=partition, sequence=sequence)
            nothing = widened(pa.table({"min_code": pa.nulls(len(gone), pa.int64())}))
            parts.append((keys, nothing, np.ones(len(gone), dtype=bool)))
    if len(touched):
        parts += [_aggregates(snapshot, index, column, touched, live) for column in index.columns]
    if not parts:
        return None
    keys, rows, deleted = zip(*parts, strict=True)
    return pa.concat_arrays(keys), pa.concat_tables(rows), np.concatenate(deleted)


def _misled(snapshot: Snapshot, index: IndexState, column: int, ids: np.ndarray) -> np.ndarray:
    """uint32: the partitions whose aggregate speaks of other files than those (`ids`) that have entries."""
    of_files, at = np.unique(split_file_ids(ids)[0], return_inverse=True)
    marks = np.zeros(len(of_files), dtype=np.int64)
    np.add.at(marks, at, fingerprints(ids))
    prefix = stats.aggregate_prefix(column)
    numbers, rows = numbered_entries(snapshot.readers, index.runs, prefix, ["fingerprint"], stats.RUN_SCHEMA)
    told = dict(zip(split_file_ids(numbers)[0].tolist(), rows.column("fingerprint").to_pylist(), strict=True))
    found = dict(zip(of_files.tolist(), marks.tolist(), strict=True))
    return np.array([p for p in sorted({*told, *found}) if told.get(p) != found.get(p)], dtype=np.uint32)


def _aggregates(snapshot: Snapshot, index: IndexState, column: int, touched: np.ndarray, live: np.ndarray) -> Rows:
    """The aggregates of a column over some partitions, from the entries of their live files."""
    wanted = live[np.isin(split_file_ids(live)[0], touched)]
    names = [*(f.name for f in STATS_FIELDS), stats.SCHEMA_FIELD.name]
    ids, rows = entries_of(snapshot.readers, index.runs, stats.file_prefix(column), wanted, names, stats.RUN_SCHEMA)
    schema_of = to_numpy(rows.column("schema_id").fill_null(-1)).astype(np.int64)
    members = Members(
        group=np.searchsorted(touched, split_file_ids(ids)[0]),
        groups=len(touched),
        files=np.ones(len(ids), dtype=np.int64),
        marks=fingerprints(ids),
        kind_of=kinds_of(snapshot.instant, column, schema_of),
        schema_of=schema_of,
        rows=rows.select([f.name for f in STATS_FIELDS]),
    )
    found = combined(members)
    keys = stats.KEYS.encode(
        kind=stats.KIND_AGGREGATE,
        column=column,
        partition=touched.astype(np.uint32),
        sequence=np.zeros(len(touched), dtype=np.uint32),
    )
    return keys, widened(pa.table(found)), to_numpy(found["files"]) <= 0
