"""Fine statistics of many files, read together: one table of entries, and one row a row group."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, text, to_numpy
from ...errors import CorruptionError, SkipstoneError, StorageError
from ...hfile_like import read_block_range
from ..ingest.task_index import FINE_SCHEMA, KEYS, ROW_GROUPS_COLUMN
from ..storage import Ranged, Storage
from .tasks import FileTask


@dataclass
class FineRows:
    """The row groups of some tasks, in the order of tasks and row groups: the units of the fine level.

    task, row_group    int64 [units]: position of the task, and number within its file
    row_count          int64 [units]
    entries            the statistics of all columns; `entry_unit`, int64, is the unit that each speaks of
    is_known           bool [tasks]: False where nothing fine could be read
    """

    task: np.ndarray
    row_group: np.ndarray
    row_count: np.ndarray
    entries: pa.Table
    entry_unit: np.ndarray
    is_known: np.ndarray

    def of_column(self, path: str) -> tuple[pa.Table, np.ndarray]:
        """(entries of a physical path, int64 [units]: each unit's row among them, or -1)."""
        mine = to_numpy(pc.equal(self.entries.column("column"), text(path)))
        at = np.full(len(self.task), -1, dtype=np.int64)
        at[self.entry_unit[mine]] = np.arange(int(mine.sum()))
        return self.entries.filter(from_numpy(mine)), at


def read_fine_rows(tasks: Sequence[FileTask], storage: Storage, strict: bool) -> FineRows:
    """Reads the fine statistics of tasks, neighbours in one range. What is damaged or gone is not known; where
    `strict`, it is the CorruptionError or StorageError that it gave."""
    tables, of_task = [], []
    is_known = np.zeros(len(tasks), dtype=bool)
    for members, table in _ranges(tasks, storage, strict):
        # A range holds its files' entries in the order of their ordinals, which is that of their offsets.
        ordinals, local = np.unique(KEYS.decode(table.column("key"))["file"], return_inverse=True)
        filled = [m for m in members if _length(tasks[m])]
        if len(ordinals) != len(filled):
            path = tasks[members[0]].fine[0]  # type: ignore[index]
            left_out(CorruptionError("it does not hold the files that it should", path=path, check="files"), strict)
            continue
        is_known[members] = True
        tables.append(table)
        of_task.append(np.array(filled, dtype=np.int64)[local])
    if not tables:
        nothing = np.empty(0, dtype=np.int64)
        fields = pa.schema([pa.field("key", pa.binary()), *FINE_SCHEMA])
        return FineRows(nothing, nothing, nothing, pa.Table.from_batches([], fields), nothing, is_known)
    entries, task = pa.concat_tables(tables), np.concatenate(of_task)
    row_group = KEYS.decode(entries.column("key"))["row_group"].astype(np.int64)
    is_group = to_numpy(pc.equal(entries.column("column"), text(ROW_GROUPS_COLUMN)))
    order = np.lexsort((row_group[is_group], task[is_group]))
    groups = entries.filter(from_numpy(is_group)).take(from_numpy(order))
    unit_task, unit_group = task[is_group][order], row_group[is_group][order]
    width = int(row_group.max(initial=0)) + 1
    unit = np.searchsorted(unit_task * width + unit_group, task * width + row_group)
    return FineRows(
        unit_task,
        unit_group,
        to_numpy(groups.column("value_count")),
        entries,
        unit,
        is_known,
    )


def _ranges(tasks: Sequence[FileTask], storage: Storage, strict: bool) -> Iterator[tuple[list[int], pa.Table]]:
    """(positions of tasks by offset, their entries): ranges that touch are read as one; a damaged one file by file."""
    located = sorted((task.fine, i) for i, task in enumerate(tasks) if task.fine is not None)
    runs: list[list[int]] = []
    end: tuple[str, int] | None = None
    for (path, offset, length), i in located:
        if end == (path, offset):
            runs[-1].append(i)
        else:
            runs.append([i])
        end = (path, offset + length)
    for members in runs:
        try:
            yield members, _read(tasks, members, storage)
        except (CorruptionError, StorageError) as error:
            if len(members) == 1:
                left_out(error, strict)
                continue
            for member in members:
                try:
                    yield [member], _read(tasks, [member], storage)
                except (CorruptionError, StorageError) as own_error:
                    left_out(own_error, strict)


def _read(tasks: Sequence[FileTask], members: list[int], storage: Storage) -> pa.Table:
    first, last = tasks[members[0]].fine, tasks[members[-1]].fine
    assert first is not None and last is not None
    path, offset, stop = first[0], first[1], last[1] + last[2]
    return read_block_range(Ranged(storage, path, stop), offset, stop - offset, FINE_SCHEMA)


def _length(task: FileTask) -> int:
    return 0 if task.fine is None else task.fine[2]


def left_out(error: SkipstoneError, strict: bool) -> None:
    """A fine part that could not be read says nothing: a warning, or, where `strict`, the error itself."""
    if strict:
        raise error
    warnings.warn(f"a fine index is left out, so more is read than need be: {error}", stacklevel=3)
