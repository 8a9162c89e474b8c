"""Sort the entries of files in bounded memory, and merge parts and runs, for indexes whose runs contain such entries.

Entries are collected in memory. If there are enough, they are sorted and written to a temporary file, which is a sorted
run. `state/lsm.py` merges these files like other runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import from_numpy, take_keys
from ...errors import NotATableError, StorageError
from ...hfile_like import SortedFileReader, SortedFileWriter
from ...hfile_like.key_sort import sorted_keys
from ..state import IndexState
from ..state.run_format import EntryBatch, RunFormat, SortedEntries
from ..state.runs import DAMAGE, check_written_as, warn_of_damage
from ..storage import Ranged, Storage
from .kind import CommitContext, MergeContext
from .task_result import IndexPart

_ROW_BYTES = 16  # the additional memory of sorting, per entry

OfFiles: TypeAlias = "Callable[[pa.BinaryArray, Callable[[np.ndarray], np.ndarray]], pa.BinaryArray]"
"""From the keys of a part, and from its files' numbers to ids (uint64 both), to the keys with these ids."""


class EntrySorter:
    """Accepts entries in any order, and returns them sorted. No key may be a prefix of another.

    It is a context manager: at its end it removes the temporary files below `folder` (None: the system's folder).

    form            of the temporary files
    schema          of the values
    memory_bytes    how much is collected in memory, approximately, before it is written
    """

    def __init__(self, form: RunFormat, schema: pa.Schema, memory_bytes: int, folder: str | None = None):
        self.schema = schema
        self._form, self._memory_bytes, self._parent = form, memory_bytes, folder
        self._folder: str | None = None
        self._waiting: list[Any] = []
        self._bytes = 0
        self._paths: list[str] = []  # of the temporary files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release memory and temporary files."""
        self._waiting = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def add_entries(self, entries: EntryBatch) -> None:
        """Add entries in any order, without tombstones. The last entry of a key replaces earlier ones."""
        self._add(entries, entries.keys.nbytes + entries.values.nbytes, entries.num_entries)

    def _add(self, part: Any, size_bytes: int, rows: int) -> None:
        size_bytes += _ROW_BYTES * rows
        if self._waiting and self._bytes + size_bytes > self._memory_bytes:
            self._spill()
        self._bytes += size_bytes
        if rows:
            self._waiting.append(part)

    def sorted(self) -> EntryBatch | SortedEntries:
        """Return all entries in order. The caller must write them before it closes this sorter."""
        if not self._paths:
            return self._in_order(self._waiting)
        if self._waiting:
            self._spill()
        with disk_errors():
            return SortedEntries([SortedFileReader(path) for path in self._paths])

    def _in_order(self, waiting: Sequence[EntryBatch]) -> EntryBatch:
        """Return the entries in order."""
        keys, values, _ = EntryBatch.concat(waiting, self.schema)
        if len(keys) < 2 or pc.all(pc.less(keys[:-1], keys[1:])).as_py():
            return new_entries(keys, values.combine_chunks())
        order, is_repeat = sorted_keys(keys)  # a stable sort
        order = order[np.append(~is_repeat[1:], True)]
        return new_entries(take_keys(keys, order), values.combine_chunks().take(from_numpy(order)))

    def _spill(self) -> None:
        """Sort and write the collected entries."""
        keys, values, _ = self._in_order(self._waiting)
        self._waiting, self._bytes = [], 0
        options = self._form.options(files=self._form.files_of_keys(keys))
        with disk_errors():
            path = self._next_path()
            with open(path, "wb") as sink, SortedFileWriter(sink, schema=self.schema, **options) as writer:
                writer.write(keys, values, copy=False)
        self._paths.append(path)

    def _next_path(self) -> str:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="skipstone-", dir=self._parent)
        return os.path.join(self._folder, str(len(self._paths)))


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Raise StorageError if the temporary folder fails."""
    try:
        yield
    except (OSError, NotATableError) as error:  # a StorageError is an OSError
        message = (
            f"sorting needs room on the disk, and what was written there ({error}); set TMPDIR to a folder that has it"
        )
        raise StorageError(message) from error


def new_entries(keys: pa.BinaryArray, values: pa.Table) -> EntryBatch:
    """Return entries without tombstones."""
    return EntryBatch(keys, values, np.zeros(len(keys), dtype=bool))


# -- the runs of an index ---------------------------------------------------------------------------------------------


def with_parts(
    index: IndexState,
    work: CommitContext,
    encoding: tuple[str | None, ...],
    form: RunFormat,
    sorter: EntrySorter,
    of_files: OfFiles,
) -> IndexState:
    """Return the index with the entries of the parts that a commit's tasks built with that encoding. A task's numbers
    of files are replaced by file ids. Files without entries are holes. The sorter is closed."""
    with sorter:
        found = work.parts_of(index, encoding)
        if found is None:
            return index
        parts, holes = found
        for part, ids in parts:
            add_part(sorter, work.writing.storage, part, ids, of_files)
        runs = work.writing.append(index.runs, sorter.sorted(), work.version, f"{index.kind}{index.id}", form)
    return replace(index, runs=runs, coverage=index.coverage.with_segment(work.version, holes))


def add_part(sorter: EntrySorter, storage: Storage, part: IndexPart, file_ids: np.ndarray, of_files: OfFiles) -> None:
    """Add the entries of a part, with file ids instead of the task's numbers."""
    if part.run is None:
        return
    names = sorter.schema.names
    with SortedFileReader(Ranged(storage, part.run.path, part.run.size_bytes)) as reader:
        check_written_as(reader, part.run.path)
        for batch in reader.scan(columns=names):
            keys = of_files(batch.column(0), lambda numbers: part.ids_of(numbers, file_ids))
            sorter.add_entries(new_entries(keys, pa.Table.from_batches([batch.select(names)])))


def with_merged_runs(index: IndexState, work: MergeContext, form: RunFormat) -> IndexState:
    """Return the index with fewer runs, and without the entries of removed files if there are many. With a damaged run,
    return it unchanged."""
    try:
        live = index.coverage.stored_ids(work.snapshot.numbers())
        runs = work.writing.compact(index.runs, f"{index.kind}{index.id}c", form, live)
    except DAMAGE as error:
        warn_of_damage(error)
        return index
    return index if runs is None else replace(index, runs=runs)
