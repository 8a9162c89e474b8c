"""The filter index: for one column, which files and which row groups may contain a value.

    key       (kind u8, partition u32, sequence u32)
    kind 0    a file: the location of its row groups' filters, if it has more than one, and the name of its hash
    kind 1    a member of the run's coarse groups, by its number (in place of the file's): its file, and its row group,
              or -1 for the whole file
    coarse    the groups of filters of many files, and their meta: see `coarse_groups`

A commit or a build writes at most `MEMBERS_MAX` members or `GROUP_BYTES_MAX` bytes per group, so that memory is bounded
for a commit of any size; merging creates larger groups. The filters of a file's row groups are in the coarse groups, in
this file, or in the run that contained them first (`fine_path`): merging does not move them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .... import bloom, hfile_like
from ....base.arrays import from_numpy, index_of, to_numpy
from ....errors import CorruptionError
from ....hfile_like import KeyLayout, RowTable, SortedFileReader
from ...state import Run
from ...state.coverage import IdRanges
from ...state.manifest import split_file_ids
from ...state.runs import RunReaders, reading_run, written_as
from ...storage import Storage
from .coarse_groups import (
    META,
    REQUEST_BYTES_LOCAL,
    REQUEST_BYTES_REMOTE,
    CoarseGroups,
    HashesUnder,
    member_hits,
)
from .file_filter import FIELDS, FileFilter, write_file_filter

if TYPE_CHECKING:
    from ....hfile_like import SortedFileWriter
    from .task_filters import FileFilters


KEYS = KeyLayout([("kind", 1), ("partition", 4), ("sequence", 4)])
KIND_FILE, KIND_MEMBER = 0, 1
PLACE_SCHEMA = pa.schema(
    [
        pa.field("fine_path", pa.string()),  # null: in this run
        *FIELDS,
    ]
)
MEMBER_SCHEMA = pa.schema([pa.field("file", pa.int64()), pa.field("row_group", pa.int64())])
RUN_SCHEMA = pa.schema([*PLACE_SCHEMA, *MEMBER_SCHEMA])
FIELD_NAMES = [field.name for field in FIELDS]
NONE = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
MEMBERS_MAX = 1024
GROUP_BYTES_MAX = 64 << 20
_SCAN_SHARE = 16  # if a larger share (1/16) of the members is looked up, all are read


class FilterRunWriter:
    """Writes one run of a filter index, file by file. It is a context manager; an exception leaves no file."""

    def __init__(self, storage: Storage, path: str):
        self._stack = ExitStack()
        self._path = path
        self._sink = self._stack.enter_context(storage.create(path))
        self._writer = self._stack.enter_context(
            hfile_like.SortedFileWriter(self._sink, schema=RUN_SCHEMA, use="get", metas=written_as(path))
        )
        self._waiting: list[tuple[int, int, np.ndarray]] = []  # a file, its row group, and the words of the filter
        self._waiting_bytes = 0
        self._hash_name = ""
        self._ids: list[int] = []
        self._places: list[dict] = []
        self._members: list[tuple[int, int]] = []
        self._sections: list[RowTable] = []
        self._coarse = CoarseGroups()

    def __enter__(self) -> FilterRunWriter:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    def add_filters(self, file_id: int, filters: FileFilters, hash_name: str) -> None:
        """Add the filters of a file, with its row groups' filters in separate row tables if `is_apart`."""
        fine = None
        if filters.is_apart:
            fine = write_file_filter(self._writer, f"fine/{len(self._ids)}", filters, hash_name)
        self.add_file(file_id, None, fine, filters.members(), hash_name)

    def add_file(
        self,
        file_id: int,
        path: str | None,
        fine: FileFilter | None,
        members: Iterable[tuple[int, np.ndarray]],
        hash_name: str,
    ) -> None:
        """Add one file. `fine`: the location of its row groups' filters, None if they are all in `members`; `path`:
        None for this run; `members`: (row group or -1; words, uint32 [blocks, 8]) for the coarse groups."""
        self._ids.append(file_id)
        place = dict.fromkeys(FIELD_NAMES) if fine is None else fine.row()
        self._places.append({**place, "fine_path": path if fine is not None else None, "hash": hash_name})
        if self._waiting and hash_name != self._hash_name:
            self._flush()
        self._hash_name = hash_name
        for row_group, words in members:
            self._waiting.append((file_id, row_group, words))
            self._waiting_bytes += words.nbytes
            if len(self._waiting) >= MEMBERS_MAX or self._waiting_bytes >= GROUP_BYTES_MAX:
                self._flush()

    def finish(self, segments: tuple[int, int]) -> Run:
        """Write the rest; the run is durable and complete on return."""
        self._flush()
        ids, places = np.array(self._ids, dtype=np.uint64), pa.Table.from_pylist(self._places, PLACE_SCHEMA)
        files, row_groups = (np.array(column) for column in zip(*self._members, strict=True)) if self._members else NONE
        write_entries(
            self._writer, ids, places, Members(files.astype(np.uint64), row_groups), self._coarse, self._sections
        )
        self._writer.close()
        self._stack.close()
        return Run(self._path, self._writer.size_bytes, self._writer.num_entries, segments)

    def _flush(self) -> None:
        if not self._waiting:
            return
        filters = [bloom.SplitBlockFilter(words, self._hash_name) for _, _, words in self._waiting]
        for part in bloom.FilterGroup.from_filters(filters).parts:
            chosen = [filters[i] for i in part.members]
            sizes = np.array([one.blocks for one in chosen])
            name = self._coarse.add_group(self._hash_name, sizes, max(one.fpp for one in chosen))
            self._sections.append(self._writer.write_rows(name, part.rows, part.rows.shape[1]))
            self._members += [self._waiting[i][:2] for i in part.members]
        self._waiting, self._waiting_bytes = [], 0


@dataclass
class Members:
    """The file (uint64 [members]) and row group (int64, -1: the whole file) of each member of a run."""

    files: np.ndarray
    row_groups: np.ndarray

    @classmethod
    def of(cls, reader: SortedFileReader) -> Members:
        """Read the members of a run. Raise CorruptionError."""
        entries = reader.by_id(KEYS.prefix(kind=KIND_MEMBER)).scan(MEMBER_SCHEMA.names)
        if not np.array_equal(entries.ids, np.arange(len(entries.ids))):
            raise CorruptionError("members of a filter run are not numbered", path=reader.name, check="members")
        return cls.of_columns(reader, entries.columns)

    @classmethod
    def of_columns(cls, reader: SortedFileReader, columns: Mapping[str, pa.Array]) -> Members:
        """Return the members in the columns of entries. Raise CorruptionError."""
        if any(columns[name].null_count for name in MEMBER_SCHEMA.names):
            raise CorruptionError("a member of a filter run without its file", path=reader.name, check="members")
        files, row_groups = (to_numpy(columns[name]) for name in MEMBER_SCHEMA.names)
        return cls(files.view(np.uint64), row_groups)

    def selected(self, places: np.ndarray) -> Members:
        return Members(self.files[places], self.row_groups[places])


def write_entries(
    writer: SortedFileWriter,
    ids: np.ndarray,
    places: pa.Table,
    members: Members,
    coarse: CoarseGroups,
    sections: Sequence[RowTable],
) -> None:
    """Write the entries of a run after its groups. `ids`: uint64 [n], distinct; `places`: n rows of PLACE_SCHEMA;
    `sections`: of the groups. Files of several row groups that are members get a location in these if necessary."""
    order = np.argsort(ids)
    ids, places = ids[order], _with_places(places.take(from_numpy(order)), ids[order], members, coarse, sections)
    coarse.files, coarse.others = IdRanges.of(ids), IdRanges.of(np.setdiff1d(ids, members.files))
    writer.put_meta(META, coarse.to_bytes())
    if not len(ids):
        return
    partition, sequence = split_file_ids(ids)
    nothing = [pa.nulls(len(ids), field.type) for field in MEMBER_SCHEMA]
    writer.write(
        KEYS.encode(kind=KIND_FILE, partition=partition, sequence=sequence),
        pa.Table.from_arrays([*places.columns, *nothing], schema=RUN_SCHEMA),
    )
    if len(members.files):
        nothing = [pa.nulls(len(members.files), field.type) for field in PLACE_SCHEMA]
        numbers = [from_numpy(members.files.view(np.int64)), from_numpy(members.row_groups)]
        writer.write(
            KEYS.encode(kind=KIND_MEMBER, partition=0, sequence=np.arange(len(members.files))),
            pa.Table.from_arrays([*nothing, *numbers], schema=RUN_SCHEMA),
        )


def _with_places(
    places: pa.Table, ids: np.ndarray, members: Members, coarse: CoarseGroups, sections: Sequence[RowTable]
) -> pa.Table:
    order = np.lexsort((members.row_groups, members.files))
    files, starts, counts = np.unique(members.files[order], return_index=True, return_counts=True)
    is_open = to_numpy(pc.is_null(places.column("fine_offset")))
    several = np.flatnonzero(counts > 1)
    several = several[is_open[index_of(ids, files[several])]]
    if not len(several):
        return places
    group_of = np.searchsorted(coarse.starts, order, side="right") - 1
    column_of = order - coarse.starts[group_of]
    rows = places.to_pylist()
    for i, place in zip(several.tolist(), index_of(ids, files[several]).tolist(), strict=True):
        part = slice(starts[i], starts[i] + counts[i])
        groups, numbers = np.unique(group_of[part], return_inverse=True)
        own = tuple(zip(numbers.reshape(-1).tolist(), column_of[part].tolist(), strict=True))
        row = FileFilter(tuple(sections[g] for g in groups.tolist()), rows[place]["hash"], own).row()
        rows[place] = {**row, "fine_path": None}
    return pa.Table.from_pylist(rows, PLACE_SCHEMA)


class FilterRun:
    """One run, opened for look-ups, which read only the parts that they need."""

    def __init__(self, readers: RunReaders, run: Run):
        """Open a run. Raise CorruptionError, FormatVersionError, FileMissingError."""
        self.run, self.reader = run, readers.reader(run)
        self.coarse = readers.decoded(run, CoarseGroups, CoarseGroups.of, CoarseGroups.is_cacheable)
        self._readers = readers

    def may_contain(self, hashes_under: Sequence[HashesUnder], ids: np.ndarray) -> list[np.ndarray]:
        """Return, for each query, the files (bool [files]) of this run that may contain one of its values. They include
        files whose hash the query does not have."""
        is_remote = self._readers.storage.is_remote
        request_bytes = REQUEST_BYTES_REMOTE if is_remote else REQUEST_BYTES_LOCAL
        hits_of = member_hits(
            self.reader, self.coarse, hashes_under, request_bytes, partial(self._readers.group, self.run)
        )
        others = self.coarse.others.contains(ids)
        return [others | (index_of(np.sort(self._files_of(hits)), ids) >= 0) for hits in hits_of]

    def _files_of(self, hits: np.ndarray) -> np.ndarray:
        members = np.flatnonzero(hits)
        if not len(members):
            return np.empty(0, dtype=np.uint64)
        if self._readers.keeps(self.run) or len(members) * _SCAN_SHARE > self.coarse.members:
            every = self._readers.decoded(self.run, Members, Members.of)
            if len(every.files) != self.coarse.members:
                raise CorruptionError("a filter run lacks members", path=self.reader.name, check="members")
            return every.files[members]
        by_number = self.reader.by_id(KEYS.prefix(kind=KIND_MEMBER))
        entries = by_number.get(members.astype(np.uint64), MEMBER_SCHEMA.names)
        if len(entries.ids) != len(members):
            raise CorruptionError("a filter run lacks members", path=self.reader.name, check="members")
        return Members.of_columns(self.reader, entries.columns).files

    def located(self, ids: np.ndarray) -> dict[int, tuple[str, FileFilter]]:
        """Return (path, fine filter) by file number, for those files (uint64, ascending) that have one here."""
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
class FilterAddresses:
    """The locations of the fine filters of some files: for each file, which of `runs` has it (-1: none)."""

    runs: list[FilterRun]
    ids: np.ndarray
    run_of: np.ndarray

    @classmethod
    def nowhere(cls, ids: np.ndarray) -> FilterAddresses:
        return cls([], ids, np.full(len(ids), -1, dtype=np.int64))

    def add(self, run: FilterRun, files: np.ndarray) -> None:
        """Record that the files at these positions have their filters in a run."""
        self.run_of[files] = len(self.runs)
        self.runs.append(run)

    def selected(self, files: np.ndarray) -> FilterAddresses:
        return FilterAddresses(self.runs, self.ids[files], self.run_of[files])

    def located(self, damaged: Collection[str]) -> list[tuple[str, FileFilter] | None]:
        """Return (path, fine filter) of each file; None without one, or if its run is one of the `damaged` paths. Raise
        DamagedRun."""
        located: dict[int, tuple[str, FileFilter]] = {}
        for number in np.unique(self.run_of[self.run_of >= 0]).tolist():
            run = self.runs[number]
            if run.run.path not in damaged:
                with reading_run(run.run):
                    located |= run.located(np.unique(self.ids[self.run_of == number]))
        return [located.get(number) for number in self.ids.tolist()]
