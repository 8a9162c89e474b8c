"""The executor's part of a scan: which row groups of one file may hold a matching row.

It reads only the file's own fine parts, at offsets that came with the task: one range of statistics, and one small
row a value from each filter. A part that is damaged says nothing.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ... import canon
from ...arrays import text, to_numpy
from ...bloom import hash_array
from ...errors import CorruptionError, StorageError
from ...hfile_like import read_block_range
from ..indexes import stats
from ..indexes.filters import probe_fine
from ..ingest.task_index import FINE_SCHEMA, KEYS, ROW_GROUPS_COLUMN
from ..predicates import (
    ColumnLeaf,
    Leaf,
    can_match,
    columns_of,
    evaluate,
    leaf_outcomes,
    leaves_of,
    member_outcomes,
    only_true,
    probe_values,
)
from ..predicates.evidence import Evidence
from ..storage import Ranged, Storage
from .tasks import FileTask, ReadContext


@dataclass
class RowGroups:
    """The row groups of a file that are left.

    kept         row group numbers, ascending; None where the file's row groups are not known: all of it
    total        how many the file has; None where not known
    row_counts   rows of each kept one
    all_match    bool, of each kept one: every row matches
    """

    kept: list[int] | None
    total: int | None = None
    row_counts: list[int] | None = None
    all_match: list[bool] | None = None
    size_bytes: int = 0


def row_groups_of(task: FileTask, context: ReadContext, storage: Storage) -> RowGroups:
    """Prunes one file's row groups by its fine statistics and filters, read from `storage`, the index's."""
    if task.fine is None:
        return RowGroups(None)
    leaves = leaves_of(context.bound)
    probed = _by_filters(task, leaves, storage) if task.may_prune else {}
    rows = _fine_rows(task, storage)
    if rows is None:
        return RowGroups(None)
    groups = rows.filter(_of_column(rows, ROW_GROUPS_COLUMN))
    counts = to_numpy(groups.column("value_count"))
    sizes = to_numpy(groups.column("compressed_bytes"))
    if not task.may_prune or not len(counts):
        return RowGroups(
            list(range(len(counts))), len(counts), counts.tolist(), [False] * len(counts), int(sizes.sum())
        )
    evidence = {}
    for column in columns_of(context.bound):
        about = _evidence(column, task, context, rows, counts)
        if about is not None:
            evidence[column] = about
    outcomes = {leaf: leaf_outcomes(leaf, evidence, len(counts)) for leaf in leaves}
    for leaf, hits in probed.items():
        outcomes[leaf] = outcomes[leaf] & member_outcomes(leaf, hits)
    verdict = evaluate(context.bound, outcomes.__getitem__, len(counts))
    kept = np.flatnonzero(can_match(verdict) & (counts > 0))
    return RowGroups(
        kept.tolist(),
        len(counts),
        counts[kept].tolist(),
        only_true(verdict)[kept].tolist(),
        int(sizes[kept].sum()),
    )


def _by_filters(task: FileTask, leaves: list[Leaf | ColumnLeaf], storage: Storage) -> dict[Leaf, np.ndarray]:
    """bool [value, row group] for each leaf that a filter of this file speaks of."""
    found = {}
    for leaf in leaves:
        values = probe_values(leaf)
        if values is None or not isinstance(leaf, Leaf):
            continue
        known = task.filters.get(leaf.column)
        if known is None or canon.hash_name(values.type) != known[1].hash_name:
            continue
        try:
            found[leaf] = probe_fine(storage, known[0], known[1], hash_array(values).hashes)
        except (CorruptionError, StorageError) as error:
            _warn(error)
    return found


def _fine_rows(task: FileTask, storage: Storage) -> pa.Table | None:
    assert task.fine is not None
    path, offset, length = task.fine
    try:
        return read_block_range(Ranged(storage, path, offset + length), offset, length, FINE_SCHEMA)
    except (CorruptionError, StorageError) as error:
        _warn(error)
        return None


def _evidence(column: str, task: FileTask, context: ReadContext, rows: pa.Table, counts: np.ndarray) -> Evidence | None:
    count = len(counts)
    if column in task.partition:
        return stats.evidence_of_values(pa.repeat(task.partition[column], count))
    known = context.known.get(column)
    if known is None or task.schema_id is None:
        return None
    if task.schema_id in known.lacking:
        return stats.evidence_all_null(known.type, count)
    if task.schema_id not in known.located:
        return None
    path, kind = known.located[task.schema_id]
    own = rows.filter(_of_column(rows, path))
    at = np.full(count, -1, dtype=np.int64)
    at[KEYS.decode(own.column("key"))["row_group"]] = np.arange(own.num_rows)
    return stats.evidence_of(own, kind, counts, np.ones(count, dtype=bool), at)


def _of_column(rows: pa.Table, path: str) -> pa.ChunkedArray:
    """Which rows of a file's fine statistics are a column's."""
    return pc.equal(rows.column("column"), text(path))


def _warn(error: Exception) -> None:
    warnings.warn(f"a fine index is damaged or gone and left out, so more is read than need be: {error}", stacklevel=3)
