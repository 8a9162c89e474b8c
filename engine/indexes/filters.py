"""The filter index: for one column, which files and which row groups may hold a value.

    key      (partition u32, sequence u32)
    row      where the file's fine filter lies (its section and the hash's name), and its place in a coarse group
    strided  `coarse/N`: transposed groups [bucket][task], one row read answers a value for every task of the group

A task is one writer's share of a commit; a file attached rather than written is a task of its own. Coarse groups hold
at most `MEMBERS_MAX` tasks or `GROUP_BYTES_MAX` bytes, so that a commit of any size is written in bounded memory.
Fine filters lie in this file, or in the task index file that the writer made (`fine_path`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...arrays import to_numpy
from ...bloom import FilterGroup, SplitBlockFilter, bucket_of, probe_rows
from ...hfile_like import KeyLayout, SortedFileReader, SortedFileWriter
from ..ingest.file_filter import FIELDS, FileFilter, write_file_filter
from ..ingest.task_filters import FineFilters
from ..manifest.keyspace import file_ids, split_file_ids
from ..storage import Storage
from ..timeline import Run

KEYS = KeyLayout([("partition", 4), ("sequence", 4)])
RUN_SCHEMA = pa.schema(
    [
        pa.field("fine_path", pa.string()),  # null: in the run itself
        *FIELDS,
        pa.field("group", pa.int32()),
        pa.field("member", pa.int32()),
    ]
)
MEMBERS_MAX = 1024
GROUP_BYTES_MAX = 64 << 20


class FilterRunWriter:
    """Writes one run of a filter index, task by task. Used as a context manager; on an exception nothing is left."""

    def __init__(self, storage: Storage, path: str, fpp: float | None):
        self._stack = ExitStack()
        self._path, self._fpp = path, fpp
        self._sink = self._stack.enter_context(storage.create(path))
        self._writer = self._stack.enter_context(SortedFileWriter(self._sink, schema=RUN_SCHEMA, use="get"))
        self._waiting: list[SplitBlockFilter] = []
        self._waiting_bytes = 0
        self._entries: list[dict] = []
        self._first_waiting = 0  # the first entry whose group is not written yet
        self._groups = 0

    def __enter__(self) -> FilterRunWriter:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    def write_fine(self, ordinal: int, filters: FineFilters, hash_name: str) -> FileFilter:
        """Stores a fine filter in this run."""
        return write_file_filter(self._writer, f"fine/{ordinal}", filters, hash_name)

    def add_task(self, files: Sequence[tuple[int, str | None, FileFilter]], whole: SplitBlockFilter) -> None:
        """One task: (file id, path of its fine filter or None for this run, the fine filter) of each file, and the
        filter over all of them."""
        if self._waiting and whole.hash != self._waiting[-1].hash:
            self._flush()
        for file_id, path, fine in files:
            self._entries.append({"file_id": file_id, "fine_path": path, **fine.row(), "waiting": len(self._waiting)})
        self._waiting.append(whole)
        self._waiting_bytes += whole.words.nbytes
        if len(self._waiting) >= MEMBERS_MAX or self._waiting_bytes >= GROUP_BYTES_MAX:
            self._flush()

    def finish(self, segments: tuple[int, int]) -> Run:
        """Writes what is left; the run is durable and whole on return."""
        self._flush()
        ids = np.array([e.pop("file_id") for e in self._entries], dtype=np.uint64)
        order = np.argsort(ids)
        if len(order):
            partition, sequence = split_file_ids(ids[order])
            rows = pa.Table.from_pylist([self._entries[i] for i in order], schema=RUN_SCHEMA)
            self._writer.write(KEYS.encode(partition=partition, sequence=sequence), rows)
        self._writer.close()
        self._stack.close()
        return Run(self._path, self._writer.size_bytes, self._writer.num_entries, segments)

    def _flush(self) -> None:
        if not self._waiting:
            return
        group = FilterGroup.from_filters(self._waiting, self._fpp)
        places: dict[int, tuple[int, int]] = {}
        for part in group.parts:
            self._writer.write_strided(f"coarse/{self._groups}", part.rows, part.rows.shape[1])
            places.update((member, (self._groups, place)) for place, member in enumerate(part.members))
            self._groups += 1
        for entry in self._entries[self._first_waiting :]:
            entry["group"], entry["member"] = places[entry.pop("waiting")]
        self._first_waiting = len(self._entries)
        self._waiting, self._waiting_bytes = [], 0


class FilterEntries:
    """The decoded entries of a run, by file id."""

    def __init__(self, reader: SortedFileReader):
        table = reader.scan_table()
        parts = KEYS.decode(table.column("key"))
        self.file_ids = file_ids(parts["partition"], parts["sequence"])
        self.table = table.drop_columns(["key"])
        self.group = to_numpy(table.column("group"))
        self.member = to_numpy(table.column("member"))
        self.hash = np.asarray(table.column("hash").to_pylist(), dtype=object)


class FilterRun:
    """One run, opened for asking."""

    def __init__(self, reader: SortedFileReader, run: Run, entries: FilterEntries):
        self.reader, self.run, self.entries = reader, run, entries

    def may_contain(self, hashes: np.ndarray, at: np.ndarray) -> np.ndarray:
        """bool [hash, file]: the file at entry `at[i]` may hold the value of that hash; all have hashed the same."""
        answer = np.ones((len(hashes), len(at)), dtype=bool)
        for group in np.unique(self.entries.group[at]).tolist():
            section = self.reader.strided(f"coarse/{group}")
            rows = self.reader.read_strided(section.name, bucket_of(hashes, section.rows))
            hits = probe_rows(rows, hashes)
            here = np.flatnonzero(self.entries.group[at] == group)
            answer[:, here] = hits[:, self.entries.member[at[here]]]
        return answer

    def fine(self, at: int) -> tuple[str, FileFilter]:
        """(path, fine filter) of one entry."""
        row = {name: self.entries.table.column(name)[at].as_py() for name in RUN_SCHEMA.names}
        path = row["fine_path"] or self.run.path
        return path, FileFilter.of_row(row, path)


@dataclass
class FilterPlaces:
    """Where the fine filters of some files lie: for each file, which of `runs` (-1: none) and which of its entries."""

    runs: list[FilterRun]
    run_of: np.ndarray
    at: np.ndarray

    @classmethod
    def nowhere(cls, files: int) -> FilterPlaces:
        return cls([], np.full(files, -1, dtype=np.int64), np.full(files, -1, dtype=np.int64))

    def add(self, run: FilterRun, files: np.ndarray, at: np.ndarray) -> None:
        """The files at these positions have their filters at these entries of a run."""
        self.run_of[files] = len(self.runs)
        self.at[files] = at
        self.runs.append(run)

    def selected(self, kept: np.ndarray) -> FilterPlaces:
        return FilterPlaces(self.runs, self.run_of[kept], self.at[kept])

    def fine(self, file: int) -> tuple[str, FileFilter] | None:
        """(path, fine filter) of one file, None where it has none."""
        run = int(self.run_of[file])
        return None if run < 0 else self.runs[run].fine(int(self.at[file]))
