"""A scratch index over a sample of a table's files, in which candidates are built and queries planned."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import InvalidArgumentError
from ..commit.commit import WriteBatch, commit
from ..commit.edit import Edit
from ..commit.indexing import create_index, drop_index
from ..handle import Handle
from ..indexes.columns import names_in_files
from ..lakes import is_log
from ..lakes.directory import listed_of
from ..parquet.leaves import top_level
from ..predicates import Node, columns_read, prepare, resolve
from ..scan.planning import PlannedScan
from ..scan.request import ScanRequest
from ..scan.row_groups import row_groups_of
from ..state import IndexState, Instant, Timeline, new_transaction_id, now_us
from ..state.runs import RunReaders
from ..storage import open_storages
from ..storage.threads import STAT_THREADS, prefetched
from ..storage.wrappers import WriteBuffer
from ..tasks.attach import AttachRequest, FooterReading, attach_all

Kept = dict[str, float]
"""Path of a file -> the share of its row groups that a query reads; other files are not read."""


@dataclass(frozen=True)
class Tried:
    """The size and time of an index over the sample, and what each query reads with it."""

    kept: list[Kept]
    index_bytes: int
    build_s: float


class Trial:
    """A sample of the files that some queries read.

    sizes       path -> bytes, of the sampled files
    scale       how many files stand for one of the sample
    table_scale how many files of the whole table do
    """

    def __init__(self, handle: Handle, plans: Sequence[PlannedScan], files_max: int):
        files: dict[str, tuple[int, int]] = {}
        for plan in plans:
            rows = plan.pruned.units.files.select(["path", "file_id", "size_bytes"]).to_pydict()
            files |= dict(zip(rows["path"], zip(rows["file_id"], rows["size_bytes"], strict=True), strict=True))
        all_paths = sorted(files)
        self._names, paths = _alike(handle, all_paths)
        if len(paths) > files_max:
            chosen = np.random.default_rng(len(paths)).choice(len(paths), files_max, replace=False)
            sampled = [paths[i] for i in sorted(chosen.tolist())]
        else:
            sampled = paths
        self.handle, self.all_paths = handle, all_paths
        self.sizes = {path: files[path][1] for path in sampled}
        self._ids = np.array([files[path][0] for path in sampled], dtype=np.uint64)
        self.scale = len(all_paths) / max(1, len(sampled))
        self.table_scale = handle.snapshot.instant.totals["files"] / max(1, len(sampled))

    def kept_now(self, plan: PlannedScan) -> Kept:
        """Return what a query reads of the sample by the indexes that the table has."""
        tasks = plan.tasks_of(plan.pruned.with_files(self._ids))
        groups = row_groups_of(tasks, plan.context, plan.index_storage)
        pairs = zip(tasks, groups, strict=True)
        return {task.path: _share(g.kept, g.total) for task, g in pairs if task.path in self.sizes and g.kept != []}

    @contextmanager
    def scratch(self) -> Iterator[Scratch]:
        """Index the sample in a temporary folder."""
        instant = self.handle.snapshot.instant
        if instant.partitioning and is_log(instant.source):
            partitioned = all("=" in path for path in self.sizes)
            if not partitioned:
                raise InvalidArgumentError(
                    f"{self.handle.location}: partition values are not in the paths, so no sample can be indexed"
                )
        with tempfile.TemporaryDirectory(prefix="skipstone-advice-") as folder:
            handle = self._indexed(os.path.join(folder, "index"))
            try:
                yield Scratch(handle, Path(folder))
            finally:
                handle.forget()

    def _indexed(self, folder: str) -> Handle:
        """A table of the sample alone, with the columns that its files have, and statistics as the table has them."""
        instant, storage = self.handle.snapshot.instant, self.handle.storage
        _, index_storage = open_storages(self.handle.location, folder, self.handle.storage_options)
        names = {*self._names, *instant.partitioning}
        leaves = {path: number for path, number in instant.columns.items() if top_level(instant.schema, path) in names}
        measured = {number for index in instant.indexes if index.is_statistics for number in index.columns}
        columns = tuple(sorted(measured.intersection(leaves.values())))
        stats = replace(IndexState.of_statistics(columns), id=1)
        base = replace(
            Instant.before_first(new_transaction_id(), now_us(), uuid.uuid4().hex),
            source={"kind": "directory", "version": None, "hive": bool(instant.partitioning)},
            schema=pa.schema([field for field in instant.schema if field.name in names]),
            partitioning=instant.partitioning,
            fields={name: number for name, number in instant.fields.items() if name in names},
            columns=leaves,
            next={**instant.next, "sequence": 0, "partition": 0},
            indexes=(stats,),
        )
        batch = WriteBatch(base.transaction, base, WriteBuffer(index_storage))
        listed = listed_of(prefetched(storage.stat, list(self.sizes), STAT_THREADS, "skipstone-stat"))
        reading = FooterReading(bool(instant.partitioning), quarantines=False)
        request = AttachRequest(storage, index_storage, base.transaction, listed, batch.leftovers, reading)
        physical = {name: own for own, name in self._names.items()}
        results = [replace(one, names=[physical] * len(one.schemas)) for one in attach_all(request)[0]]
        handle = Handle(storage, index_storage, Timeline(index_storage), RunReaders(index_storage), base)
        commit(handle, "create", lambda *_: Edit(results=results), batch=batch)
        return handle


class Scratch:
    """The sample's own index, to which candidates are added in turn."""

    def __init__(self, handle: Handle, folder: Path):
        self._handle, self._folder = handle, folder

    def check(self, query: Node) -> None:
        """Raises PredicateError for a query that names what the sample's files lack."""
        prepare(query, self._handle.schema)
        for name in columns_read(query):  # SQL text was bound to the table's own schema
            resolve(name, self._handle.schema)

    def tried(self, columns: Sequence[str], kind: str, options: dict[str, Any], queries: Sequence[Node]) -> Tried:
        """Build an index, plan the queries with it, and drop it. Raise what `create_index` raises."""
        bytes_before, start_s = self._size_bytes(), time.perf_counter()
        create_index(self._handle, list(columns), kind, maintain="commit", options=options, progress=None)
        build_s, index_bytes = time.perf_counter() - start_s, self._size_bytes() - bytes_before
        try:
            return Tried([self.kept(query) for query in queries], index_bytes, build_s)
        finally:
            drop_index(self._handle, list(columns), kind)

    def kept(self, query: Node) -> Kept:
        """Return what a query reads of the sample."""
        planning = PlannedScan(ScanRequest.of(self._handle), query)
        return {task.path: _share(g.kept, g.total) for task, g in planning.pairs if g.kept != []}

    @property
    def row_groups_a_file(self) -> float:
        """The mean number of row groups per file."""
        totals = [groups.total or 1 for _, groups in PlannedScan(ScanRequest.of(self._handle)).pairs]
        return sum(totals) / max(1, len(totals))

    def _size_bytes(self) -> int:
        names = [os.path.join(top, name) for top, _, names in os.walk(self._folder) for name in names]
        return sum(os.path.getsize(name) for name in names if f"{os.sep}timeline{os.sep}" not in name)


def _alike(handle: Handle, paths: list[str]) -> tuple[dict[str, str], list[str]]:
    """The names that most of some files have for the table's columns, and the files that have them: others cannot be
    indexed next to these, as after a rename."""
    instant = handle.snapshot.instant
    maps = names_in_files(instant, [name for name in instant.schema.names if name not in instant.partitioning])
    if not paths or all(names == maps[0] for names in maps):
        return (maps[0] if maps else {}), paths
    rows = handle.snapshot.files(columns=["path", "schema_id"])
    schema_of = dict(zip(*(rows.column(name).to_pylist() for name in ("path", "schema_id")), strict=True))
    by_names: dict[tuple, list[str]] = {}
    for path in paths:
        by_names.setdefault(tuple(maps[schema_of[path]].items()), []).append(path)
    names, alike = max(by_names.items(), key=lambda item: len(item[1]))
    return dict(names), alike


def _share(kept: list[int] | None, total: int | None) -> float:
    return 1.0 if kept is None or not total else len(kept) / total
