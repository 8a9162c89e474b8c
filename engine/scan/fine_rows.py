"""Fine statistics of many files, read together: one table of entries, and one row a row group."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, text, to_numpy
from ...errors import CorruptionError, SkipstoneError, StorageError
from ...hfile_like import read_block_range
from ..indexes.task_index import FINE_SCHEMA, KEYS, ROW_GROUPS_COLUMN
from ..storage import Ranged, Storage
from .tasks import FileTask

Place = tuple[str, int, int]  # index file, offset, length


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
        if len(ordinals) != len(members):
            left_out(CorruptionError("a range of fine statistics holds other files than it should"), strict)
            continue
        is_known[members] = True
        tables.append(table)
        of_task.append(np.array(members, dtype=np.int64)[local])
    if not tables:
        nothing = np.empty(0, dtype=np.int64)
        fields = pa.schema([pa.field("key", pa.binary()), *FINE_SCHEMA])
        return FineRows(nothing, nothing, nothing, pa.Table.from_batches([], fields), nothing, is_known)
    entries, task = pa.concat_tables(tables), np.concatenate(of_task)
    row_group = KEYS.decode(entries.column("key"))["row_group"].astype(np.int64)
    width = int(row_group.max(initial=0)) + 1
    unit = task * width + row_group
    is_group = np.flatnonzero(to_numpy(pc.equal(entries.column("column"), text(ROW_GROUPS_COLUMN))))
    # Every statistics index tells of the row groups; the first that does is believed.
    units, first = np.unique(unit[is_group], return_index=True)
    groups = entries.take(from_numpy(is_group[first]))
    at = np.minimum(np.searchsorted(units, unit), max(len(units) - 1, 0))
    if not len(units) or not np.array_equal(units[at], unit):
        left_out(CorruptionError("fine statistics speak of row groups that the file does not have"), strict)
        return read_fine_rows([replace(task, fine=()) for task in tasks], storage, strict)
    return FineRows(units // width, units % width, to_numpy(groups.column("value_count")), entries, at, is_known)


def _ranges(tasks: Sequence[FileTask], storage: Storage, strict: bool) -> Iterator[tuple[list[int], pa.Table]]:
    """(positions of tasks by offset, their entries): ranges that touch are read as one; a damaged one file by file."""
    located = sorted((place, i) for i, task in enumerate(tasks) for place in task.fine)
    runs: list[list[tuple[Place, int]]] = []
    end: tuple[str, int] | None = None
    for (path, offset, length), i in located:
        if end == (path, offset):
            runs[-1].append(((path, offset, length), i))
        else:
            runs.append([((path, offset, length), i)])
        end = (path, offset + length)
    for members in runs:
        try:
            yield [i for _, i in members], _read(members, storage)
        except (CorruptionError, StorageError) as error:
            if len(members) == 1:
                left_out(error, strict)
                continue
            for member in members:
                try:
                    yield [member[1]], _read([member], storage)
                except (CorruptionError, StorageError) as own_error:
                    left_out(own_error, strict)


def _read(members: list[tuple[Place, int]], storage: Storage) -> pa.Table:
    path, offset, _ = members[0][0]
    _, last_offset, last_length = members[-1][0]
    stop = last_offset + last_length
    return read_block_range(Ranged(storage, path, stop), offset, stop - offset, FINE_SCHEMA)


def left_out(error: SkipstoneError, strict: bool) -> None:
    """A fine part that could not be read says nothing: a warning, or, where `strict`, the error itself."""
    if strict:
        raise error
    warnings.warn(f"a fine index is left out, so more is read than need be: {error}", stacklevel=3)
