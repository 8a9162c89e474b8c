"""The filter index: for one column, which files and which row groups may hold a value.

    key      (kind u8, partition u32, sequence u32)
    kind 0   a file: where the filters of its row groups are, if it has more than one, and the name of its hash
    kind 1   a member of the run's coarse groups, by its number (in the place of the file's): its file
    coarse   the groups of filters over files, and what is known of them before they are read: see `coarse_groups`

What a commit or a build writes holds at most `MEMBERS_MAX` members or `GROUP_BYTES_MAX` bytes a group, so that a commit
of any size is written in bounded memory; merging makes larger ones. Filters of row groups are in this file, in the task
index file that the writer made, or in the run in which they were first (`fine_path`): merging leaves them where they
are.
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
from ....base.arrays import from_numpy, positions, to_numpy
from ....errors import CorruptionError
from ....hfile_like import KeyLayout, SortedFileReader
from ...state import Run
from ...state.manifest import split_file_ids
from ...state.runs import RunReaders, reading_run, written_as
from ...storage import Storage
from .coarse_groups import (
    META,
    REQUEST_BYTES_LOCAL,
    REQUEST_BYTES_REMOTE,
    CoarseGroups,
    HashesUnder,
    IdRanges,
    member_hits,
)
from .file_filter import FIELDS, FileFilter, fields_of, write_file_filter

if TYPE_CHECKING:
    from ....hfile_like import SortedFileWriter
    from .task_filters import FileFilters


KEYS = KeyLayout([("kind", 1), ("partition", 4), ("sequence", 4)])
KIND_FILE, KIND_MEMBER = 0, 1
PLACE_SCHEMA = pa.schema(
    [
        pa.field("fine_path", pa.string()),  # null: in the run itself
        *FIELDS,
    ]
)
FILE_FIELD = pa.field("file", pa.int64())  # the number of a member's file
RUN_SCHEMA = pa.schema([*PLACE_SCHEMA, FILE_FIELD])
MEMBERS_MAX = 1024
GROUP_BYTES_MAX = 64 << 20
_SCAN_SHARE = 16  # if more than that share of the members is looked up, all are read


class FilterRunWriter:
    """Writes one run of a filter index, file by file. Used as a context manager; on an exception nothing is left."""

    def __init__(self, storage: Storage, path: str):
        self._stack = ExitStack()
        self._path = path
        self._sink = self._stack.enter_context(storage.create(path))
        self._writer = self._stack.enter_context(
            hfile_like.SortedFileWriter(self._sink, schema=RUN_SCHEMA, use="get", metas=written_as(path))
        )
        self._waiting: list[tuple[int, np.ndarray]] = []  # a file, and the words of the filter over it
        self._waiting_bytes = 0
        self._hash_name = ""
        self._ids: list[int] = []
        self._places: list[dict] = []
        self._member_files: list[int] = []
        self._coarse = CoarseGroups()

    def __enter__(self) -> FilterRunWriter:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    def write_fine(self, ordinal: int, filters: FileFilters, hash_name: str) -> FileFilter | None:
        """Stores the filters of a file's row groups in this run; None if it has none."""
        return write_file_filter(self._writer, f"fine/{ordinal}", filters, hash_name)

    def add_file(
        self, file_id: int, path: str | None, fine: FileFilter | None, over_file: np.ndarray | None, hash_name: str
    ) -> None:
        """One file: where its `fine` filters are (`path`: None for this run), and the words of the filter over it,
        uint32 [blocks, 8]. It has one of them, or both."""
        self._ids.append(file_id)
        self._places.append({"fine_path": path if fine is not None else None, **fields_of(fine, hash_name)})
        if over_file is None:
            return
        if self._waiting and hash_name != self._hash_name:
            self._flush()
        self._hash_name = hash_name
        self._waiting.append((file_id, over_file))
        self._waiting_bytes += over_file.nbytes
        if len(self._waiting) >= MEMBERS_MAX or self._waiting_bytes >= GROUP_BYTES_MAX:
            self._flush()

    def finish(self, segments: tuple[int, int]) -> Run:
        """Writes what is left; the run is durable and whole on return."""
        self._flush()
        ids, members = np.array(self._ids, dtype=np.uint64), np.array(self._member_files, dtype=np.uint64)
        write_entries(self._writer, ids, members, pa.Table.from_pylist(self._places, PLACE_SCHEMA), self._coarse)
        self._writer.close()
        self._stack.close()
        return Run(self._path, self._writer.size_bytes, self._writer.num_entries, segments)

    def _flush(self) -> None:
        if not self._waiting:
            return
        group = bloom.FilterGroup.from_filters([bloom.SplitBlockFilter(w, self._hash_name) for _, w in self._waiting])
        for part in group.parts:
            chosen = [self._waiting[i] for i in part.members]
            sizes = np.array([len(words) for _, words in chosen])
            name = self._coarse.add_group(self._hash_name, sizes, max(bloom.measured_fpp(words) for _, words in chosen))
            self._writer.write_strided(name, part.rows, part.rows.shape[1])
            self._member_files += [file_id for file_id, _ in chosen]
        self._waiting, self._waiting_bytes = [], 0


def write_entries(
    writer: SortedFileWriter, ids: np.ndarray, member_files: np.ndarray, places: pa.Table, coarse: CoarseGroups
) -> None:
    """Writes the entries of a run whose groups are written. `ids`: uint64 [n], distinct; `member_files`, uint64 [m]:
    the file of each member; `places`: n rows of PLACE_SCHEMA."""
    order = np.argsort(ids)
    ids = ids[order]
    coarse.files, coarse.others = IdRanges.of(ids), IdRanges.of(np.setdiff1d(ids, member_files))
    writer.put_meta(META, coarse.to_bytes())
    if not len(ids):
        return
    partition, sequence = split_file_ids(ids)
    writer.write(
        KEYS.encode(kind=KIND_FILE, partition=partition, sequence=sequence),
        places.take(from_numpy(order)).append_column(FILE_FIELD, pa.nulls(len(ids), FILE_FIELD.type)),
    )
    if len(member_files):
        nothing = [pa.nulls(len(member_files), field.type) for field in PLACE_SCHEMA]
        writer.write(
            KEYS.encode(kind=KIND_MEMBER, partition=0, sequence=np.arange(len(member_files))),
            pa.Table.from_arrays([*nothing, from_numpy(member_files.view(np.int64))], schema=RUN_SCHEMA),
        )


def read_member_files(reader: SortedFileReader) -> np.ndarray:
    """uint64: the file of each member of a run. Raises CorruptionError."""
    entries = reader.by_id(KEYS.prefix(kind=KIND_MEMBER)).scan([FILE_FIELD.name])
    if not np.array_equal(entries.ids, np.arange(len(entries.ids))):
        raise CorruptionError("members of a filter run are not numbered from 0 on", path=reader.name, check="members")
    return _file_numbers(reader, entries.columns[FILE_FIELD.name])


def _file_numbers(reader: SortedFileReader, files: pa.Array | pa.ChunkedArray) -> np.ndarray:
    if files.null_count:
        raise CorruptionError("a member of a filter run without its file", path=reader.name, check="members")
    return to_numpy(files).view(np.uint64)


class FilterRun:
    """One run, opened for asking: what is read of it is what the question needs."""

    def __init__(self, readers: RunReaders, run: Run):
        """Raises CorruptionError, FormatVersionError, FileMissingError."""
        self.run, self.reader = run, readers.reader(run)
        self.coarse = readers.decoded(run, CoarseGroups, CoarseGroups.of, CoarseGroups.is_little)
        self._readers = readers

    def may_hold(self, hashes_under: Sequence[HashesUnder], ids: np.ndarray) -> list[np.ndarray]:
        """For each question, bool [files]: those of some files of this run that may hold one of its values. Files of
        another hash than a question can be put in are among them."""
        is_remote = bool(self._readers.storage.gap_bytes)
        request_bytes = REQUEST_BYTES_REMOTE if is_remote else REQUEST_BYTES_LOCAL
        hits_of = member_hits(
            self.reader, self.coarse, hashes_under, request_bytes, partial(self._readers.group, self.run)
        )
        others = self.coarse.others.holds(ids)
        return [others | (positions(np.sort(self._files_of(hits)), ids) >= 0) for hits in hits_of]

    def _files_of(self, hits: np.ndarray) -> np.ndarray:
        members = np.flatnonzero(hits)
        if not len(members):
            return np.empty(0, dtype=np.uint64)
        if self._readers.keeps(self.run) or len(members) * _SCAN_SHARE > self.coarse.members:
            files = self._readers.decoded(self.run, "members", read_member_files)
            if len(files) != self.coarse.members:
                raise CorruptionError("a filter run lacks members", path=self.reader.name, check="members")
            return files[members]
        entries = self.reader.by_id(KEYS.prefix(kind=KIND_MEMBER)).get(members.astype(np.uint64), [FILE_FIELD.name])
        if len(entries.ids) != len(members):
            raise CorruptionError("a filter run lacks members", path=self.reader.name, check="members")
        return _file_numbers(self.reader, entries.columns[FILE_FIELD.name])

    def located(self, ids: np.ndarray) -> dict[int, tuple[str, FileFilter]]:
        """(path, fine filter) of those of some files, uint64, ascending, that have one here, by their numbers."""
        entries = self.reader.by_id(KEYS.prefix(kind=KIND_FILE)).get(ids, PLACE_SCHEMA.names)
        columns = {name: entries.columns[name].to_pylist() for name in PLACE_SCHEMA.names}
        places = {}
        for i, number in enumerate(entries.ids.tolist()):
            row = {name: values[i] for name, values in columns.items()}
            path = row["fine_path"] or self.run.path
            if (found := FileFilter.of_row(row, path)) is not None:
                places[number] = path, found
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
