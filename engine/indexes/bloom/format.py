"""The filter index: for one column, which files and which row groups may hold a value.

    key      (kind u8, partition u32, sequence u32)
    kind 0   a file: where its fine filter lies (its section, and the name of its hash)
    kind 1   a task, by its number among the members of the run's coarse groups (in the place of the file's): its files,
             u64, little-endian, one after the other
    coarse   the groups of the tasks' own filters, and what is known of them before they are read: see `coarse`

A task is one writer's share of a commit; a file attached rather than written is a task of its own, and where its filter
was copied, of which there is none over all row groups, each of them is one. What a commit or a
build writes holds at most `MEMBERS_MAX` tasks or `GROUP_BYTES_MAX` bytes a group, so that a commit of any size is
written in bounded memory; merging makes larger ones. Fine filters lie in this file, in the task index file that the
writer made, or in the run in which they were first (`fine_path`): merging leaves them where they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .... import bloom, hfile_like
from ....base.arrays import binary_array, from_numpy
from ....errors import CorruptionError
from ....hfile_like import KeyLayout, SortedFileReader
from ...state import Run
from ...state.manifest import split_file_ids
from ...state.runs import RunReaders, reading_run, written_as
from ...storage import Storage
from .coarse_groups import META, REQUEST_BYTES_LOCAL, REQUEST_BYTES_REMOTE, CoarseGroups, HashesUnder, member_hits
from .file_filter import FIELDS, FileFilter, write_file_filter

if TYPE_CHECKING:
    from ....bloom import SplitBlockFilter
    from ....hfile_like import SortedFileWriter
    from .task_filters import FineFilters


KEYS = KeyLayout([("kind", 1), ("partition", 4), ("sequence", 4)])
KIND_FILE, KIND_TASK = 0, 1
PLACE_SCHEMA = pa.schema(
    [
        pa.field("fine_path", pa.string()),  # null: in the run itself
        *FIELDS,
    ]
)
FILES_FIELD = pa.field("files", pa.binary())
RUN_SCHEMA = pa.schema([*PLACE_SCHEMA, FILES_FIELD])
MEMBERS_MAX = 1024
GROUP_BYTES_MAX = 64 << 20
_SCAN_SHARE = 16  # where more than that share of the tasks is looked up, all are read


class FilterRunWriter:
    """Writes one run of a filter index, task by task. Used as a context manager; on an exception nothing is left."""

    def __init__(self, storage: Storage, path: str, fpp: float | None):
        self._stack = ExitStack()
        self._path, self._fpp = path, fpp
        self._sink = self._stack.enter_context(storage.create(path))
        self._writer = self._stack.enter_context(
            hfile_like.SortedFileWriter(self._sink, schema=RUN_SCHEMA, use="get", metas=written_as(path))
        )
        self._waiting: list[SplitBlockFilter] = []
        self._waiting_bytes = 0
        self._hash_name = ""
        self._entries: list[dict] = []
        self._pairs: list[tuple[int, int]] = []  # an entry, and the number of a member that it is in
        self._first_waiting = 0  # the first pair whose group is not written yet
        self._coarse = CoarseGroups()

    def __enter__(self) -> FilterRunWriter:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    def write_fine(self, ordinal: int, filters: FineFilters, hash_name: str) -> FileFilter:
        """Stores a fine filter in this run."""
        return write_file_filter(self._writer, f"fine/{ordinal}", filters, hash_name)

    def add_task(self, files: Sequence[tuple[int, str | None, FileFilter]], *coarse: SplitBlockFilter) -> None:
        """One task: (file id, path of its fine filter or None for this run, the fine filter) of each file, and the
        filter over all of them, or several that hold all between them."""
        hash_name = files[0][2].hash_name
        if self._waiting and hash_name != self._hash_name:
            self._flush()
        self._hash_name = hash_name
        entries = range(len(self._entries), len(self._entries) + len(files))
        self._entries += [{"file_id": file_id, "fine_path": path, **fine.row()} for file_id, path, fine in files]
        for one in coarse:
            self._pairs += [(entry, len(self._waiting)) for entry in entries]
            self._waiting.append(one)
            self._waiting_bytes += one.words.nbytes
            if len(self._waiting) >= MEMBERS_MAX or self._waiting_bytes >= GROUP_BYTES_MAX:
                self._flush()

    def finish(self, segments: tuple[int, int]) -> Run:
        """Writes what is left; the run is durable and whole on return."""
        self._flush()
        ids = np.array([e.pop("file_id") for e in self._entries], dtype=np.uint64)
        pairs = np.array(self._pairs, dtype=np.int64).reshape(-1, 2)
        write_entries(self._writer, ids, pairs, pa.Table.from_pylist(self._entries, PLACE_SCHEMA), self._coarse)
        self._writer.close()
        self._stack.close()
        return Run(self._path, self._writer.size_bytes, self._writer.num_entries, segments)

    def _flush(self) -> None:
        if not self._waiting:
            return
        group = bloom.FilterGroup.from_filters(self._waiting, self._fpp)
        numbers = np.empty(len(self._waiting), dtype=np.int64)
        for part in group.parts:
            rungs = [min(len(self._waiting[i].words), part.blocks).bit_length() - 1 for i in part.members]
            numbers[part.members] = self._coarse.members + np.arange(len(rungs))
            name = self._coarse.add_group(self._hash_name, np.array(rungs))
            self._writer.write_strided(name, part.rows, part.rows.shape[1])
        for place in range(self._first_waiting, len(self._pairs)):
            entry, member = self._pairs[place]
            self._pairs[place] = entry, int(numbers[member])
        self._first_waiting = len(self._pairs)
        self._waiting, self._waiting_bytes = [], 0


def write_entries(
    writer: SortedFileWriter, ids: np.ndarray, pairs: np.ndarray, places: pa.Table, coarse: CoarseGroups
) -> None:
    """Writes the entries of a run whose groups are written. `ids`: uint64 [n], distinct; `pairs`, int64 [m, 2]: a
    place among the ids, and a task that the file is in; `places`: n rows of PLACE_SCHEMA. Every task has a file, and
    every file a task."""
    order = np.argsort(ids)
    coarse.set_files(ids[order])
    writer.put_meta(META, coarse.to_bytes())
    if not len(ids):
        return
    partition, sequence = split_file_ids(ids[order])
    writer.write(
        KEYS.encode(kind=KIND_FILE, partition=partition, sequence=sequence),
        places.take(from_numpy(order)).append_column(FILES_FIELD, pa.nulls(len(ids), pa.binary())),
    )
    files, member = ids[pairs[:, 0]], pairs[:, 1]
    order = np.lexsort((files, member))
    numbers, starts = np.unique(member[order], return_index=True)
    lists = binary_array([part.astype("<u8").tobytes() for part in np.split(files[order], starts[1:])])
    nothing = [pa.nulls(len(numbers), field.type) for field in PLACE_SCHEMA]
    writer.write(
        KEYS.encode(kind=KIND_TASK, partition=0, sequence=numbers),
        pa.Table.from_arrays([*nothing, lists], schema=RUN_SCHEMA),
    )


@dataclass
class Tasks:
    """The files of all tasks of a run: those of task number `i` are `files[starts[i]:starts[i + 1]]`."""

    starts: np.ndarray
    files: np.ndarray

    @classmethod
    def of(cls, reader: SortedFileReader) -> Tasks:
        """Raises CorruptionError."""
        entries = reader.by_id(KEYS.prefix(kind=KIND_TASK)).scan([FILES_FIELD.name])
        if not np.array_equal(entries.ids, np.arange(len(entries.ids))):
            raise CorruptionError("tasks of a filter run are not numbered from 0 on", path=reader.name, check="tasks")
        lists = [_file_list(reader, item) for item in entries.columns[FILES_FIELD.name].to_pylist()]
        starts = np.concatenate([[0], np.cumsum([len(item) for item in lists])]).astype(np.int64)
        return cls(starts, np.concatenate(lists) if lists else np.empty(0, dtype=np.uint64))

    def of_members(self, hits: np.ndarray) -> np.ndarray:
        """uint64: the files of some tasks (bool [tasks])."""
        return self.files[np.repeat(hits, np.diff(self.starts))]


def _file_list(reader: SortedFileReader, item: bytes | None) -> np.ndarray:
    if item is None or len(item) % 8:
        raise CorruptionError("a task of a filter run without its files", path=reader.name, check="tasks")
    return np.frombuffer(item, dtype="<u8").astype(np.uint64)


class FilterRun:
    """One run, opened for asking: what is read of it is what the question needs."""

    def __init__(self, readers: RunReaders, run: Run):
        """Raises CorruptionError, FormatVersionError, FileMissingError."""
        self.run, self.reader = run, readers.reader(run)
        self.coarse = readers.decoded(run, CoarseGroups, CoarseGroups.of, CoarseGroups.is_little)
        self._readers = readers

    def files_with(self, hashes_under: Sequence[HashesUnder]) -> list[np.ndarray]:
        """For each question, uint64, ascending: the files of this run that may hold one of its values. Files of another
        hash than a question can be put in are among them."""
        is_remote = bool(self._readers.storage.gap_bytes)
        request_bytes = REQUEST_BYTES_REMOTE if is_remote else REQUEST_BYTES_LOCAL
        hits_of = member_hits(
            self.reader, self.coarse, hashes_under, request_bytes, partial(self._readers.group, self.run)
        )
        return [np.unique(self._files_of(hits)) for hits in hits_of]

    def _files_of(self, hits: np.ndarray) -> np.ndarray:
        members = np.flatnonzero(hits)
        if not len(members):
            return np.empty(0, dtype=np.uint64)
        if self._readers.keeps(self.run) or len(members) * _SCAN_SHARE > self.coarse.members:
            return self._readers.decoded(self.run, Tasks, Tasks.of).of_members(hits)
        prefix = KEYS.prefix(kind=KIND_TASK)
        entries = self.reader.by_id(prefix).get(members.astype(np.uint64), [FILES_FIELD.name])
        if len(entries.ids) != len(members):
            raise CorruptionError("a task of a filter run without its files", path=self.reader.name, check="tasks")
        return np.concatenate([_file_list(self.reader, i) for i in entries.columns[FILES_FIELD.name].to_pylist()])

    def located(self, ids: np.ndarray) -> dict[int, tuple[str, FileFilter]]:
        """(path, fine filter) of those of some files, uint64, ascending, that this run has, by their numbers."""
        entries = self.reader.by_id(KEYS.prefix(kind=KIND_FILE)).get(ids, PLACE_SCHEMA.names)
        columns = {name: entries.columns[name].to_pylist() for name in PLACE_SCHEMA.names}
        places = {}
        for i, number in enumerate(entries.ids.tolist()):
            row = {name: values[i] for name, values in columns.items()}
            path = row["fine_path"] or self.run.path
            places[number] = path, FileFilter.of_row(row, path)
        return places


@dataclass
class FilterPlaces:
    """Where the fine filters of some files lie: for each file, by number, which of `runs` has it (-1: none)."""

    runs: list[FilterRun]
    ids: np.ndarray
    run_of: np.ndarray

    @classmethod
    def nowhere(cls, ids: np.ndarray) -> FilterPlaces:
        return cls([], ids, np.full(len(ids), -1, dtype=np.int64))

    def add(self, run: FilterRun, files: np.ndarray) -> None:
        """The files at these positions have their filters in a run."""
        self.run_of[files] = len(self.runs)
        self.runs.append(run)

    def selected(self, files: np.ndarray) -> FilterPlaces:
        return FilterPlaces(self.runs, self.ids[files], self.run_of[files])

    def located(self, damaged: Collection[str]) -> list[tuple[str, FileFilter] | None]:
        """(path, fine filter) of each file; None where it has none, or where its run is one of the `damaged` paths.
        Raises DamagedRun."""
        located: dict[int, tuple[str, FileFilter]] = {}
        for number in np.unique(self.run_of[self.run_of >= 0]).tolist():
            run = self.runs[number]
            if run.run.path not in damaged:
                with reading_run(run.run):
                    located |= run.located(np.unique(self.ids[self.run_of == number]))
        return [located.get(number) for number in self.ids.tolist()]
