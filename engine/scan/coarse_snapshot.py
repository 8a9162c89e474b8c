"""Send the parts of an index that pruning by some columns needs to executors, which have files to read.

The parts are the ranges of the index that planning reads, unchanged and compressed. An executor prunes by the same code
as any scan. It still reads from the index the fine parts of its own files, at offsets that are sent with the other
parts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from ...base.arrays import to_numpy
from ...base.caching import cached_property
from ...errors import InvalidArgumentError, SchemaError, StorageError
from ..indexes.kind import kind_or_none
from ..predicates import Node, columns_of, prepare
from ..state import IndexState, Instant, Run, parse_instant
from ..state.paths import paths_of
from ..state.runs import RunReaders, reading_run
from ..state.snapshot import Snapshot
from ..storage import StorageOptions, open_storage, options_of, relative_path
from ..storage.wrappers import CarriedStorage, ReadOnce
from .file_tasks import FileTask, ReadContext, tasks_of
from .prune import PruneRequest, StatsReader, prune
from .row_groups import row_groups_of
from .steps import Steps
from .units import PruningState

if TYPE_CHECKING:
    import pyarrow as pa

    from ..handle import Handle

FILTER_BYTES = 16 << 20
_FIRST_BATCH, _BATCH = 64, 1 << 12  # the first paths are answered soon, many together
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")

Pruning = tuple[str, "list[int] | None"]


class Coarse:
    """The coarse part of an index, for some columns. Made by `coarse_of`; picklable, and read by threads.

    version    of the table, pinned when it was made
    columns    those by which files can be pruned, in addition to the partition columns
    """

    def __init__(
        self,
        location: str,
        index_location: str,
        storage_options: StorageOptions,
        instant: Instant,
        columns: tuple[str, ...],
        parts: dict[str, list[tuple[int, bytes]]],
        damaged: tuple[str, ...],
    ):
        self.location, self.index_location, self.storage_options = location, index_location, storage_options
        self.columns = columns
        self._instant, self._parts, self._damaged = instant, parts, damaged

    def __repr__(self) -> str:
        return (
            f"<skipstone.Coarse of {self.location!r} version {self.version}: "
            f"{self._instant.totals['files']:,} files, {self.size_bytes:,} bytes>"
        )

    def __getstate__(self) -> dict[str, Any]:
        names = ("location", "index_location", "storage_options", "columns", "_parts", "_damaged")
        return {"instant": self._instant.to_bytes(), **{name: getattr(self, name) for name in names}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        instant = state.pop("instant")
        self.__dict__.update(state)
        self._instant = parse_instant(instant, path="a pickled Coarse", is_part=True)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._instant.schema

    @property
    def version(self) -> int:
        return self._instant.version

    @property
    def size_bytes(self) -> int:
        """Of what is carried."""
        return sum(len(data) for parts in self._parts.values() for _, data in parts)

    def explain(self) -> str:
        """What is carried, for people: bytes of the manifest and of each index."""
        names = {column: name for name, column in self._instant.columns.items()}
        runs = {"the manifest": self._instant.manifest}
        for index in self._instant.indexes:
            columns = ", ".join(names[column] for column in index.columns if column in names)
            runs[f"{index.kind}({columns})"] = index.runs
        carried = {
            what: sum(len(data) for run in of for _, data in self._parts.get(run.path, ())) for what, of in runs.items()
        }
        return "\n".join([repr(self), *(f"  {size:>14,} bytes  {what}" for what, size in carried.items())])

    def prune(self, paths: Iterable[str | os.PathLike[str]], where: object) -> Iterator[Pruning]:
        """For each of some files that may contain a match, in their order: the path unchanged, and its row groups
        that may (ascending; None: all of them). See `spark_adapter.prune_partition`."""
        return _in_batches(_Plan(self, prepare(where, self._instant.schema, tests_rows=False)), iter(paths))

    @cached_property
    def opened(self) -> Snapshot:
        """The table's version, over what is carried."""
        sizes = {run.path: run.size_bytes for run in _runs_of(self._instant)}
        location, options = self.index_location, self.storage_options
        storage = CarriedStorage(location, lambda: open_storage(location, options, is_index=True), sizes, self._parts)
        return Snapshot(self._instant, RunReaders(storage, shared=False))

    def evidence(self) -> StatsReader:
        return StatsReader(self.opened, damaged=list(self._damaged))


# -- made on the driver -----------------------------------------------------------------------------------------------


def coarse_of(handle: Handle, columns: Sequence[str], filter_bytes: int = FILTER_BYTES, where: object = None) -> Coarse:
    """Return what pruning by some columns needs of the version that a handle reads. `filter_bytes`: at most so many
    bytes of the coarse levels of filters are included; the rest is read from storage. `where`: of the filters only what
    pruning by this predicate reads is included.

    Raises PredicateError for a predicate that cannot be read; SchemaError for a column that does not exist.
    """
    snapshot = handle.snapshot
    instant = _about(snapshot.instant, columns)
    before = snapshot.readers.in_memory
    noted = ReadOnce(handle.index_storage, before)
    copy = Snapshot(instant, RunReaders(noted, shared=False))
    evidence = StatsReader(copy, handle.strict)
    _read_all(copy, evidence, columns, 0 if where is not None else filter_bytes)
    if where is not None:
        prune(PruneRequest(prepare(where, instant.schema, tests_rows=False)), evidence, Steps())
    sizes = {run.path: run.size_bytes for run in _runs_of(instant)}
    return Coarse(
        handle.location,
        handle.index_storage.uri,
        options_of(handle.storage, handle.index_storage),
        instant,
        tuple(columns),
        noted.parts(sizes),
        tuple(evidence.damaged),
    )


def _about(instant: Instant, columns: Sequence[str]) -> Instant:
    """The instant without evidence about other columns; with the places of files' fine statistics."""
    is_list = isinstance(columns, Iterable) and not isinstance(columns, str)
    if not is_list or not all(isinstance(name, str) for name in columns):
        raise SchemaError(f"columns= is a list of column names, not {columns!r}")
    column_ids = {}
    for name in columns:
        if name not in instant.columns and name not in instant.partitioning:
            raise SchemaError(f"columns= names {name!r}; there are indexes of {', '.join(instant.columns) or 'none'}")
        if name not in instant.partitioning:
            column_ids[name] = instant.columns[name]
    first = next((index.id for index in instant.indexes if index.is_statistics), None)

    def is_needed(index: IndexState) -> bool:
        kind = kind_or_none(index.kind)
        if kind is None or not kind.is_coarse:
            return False
        return index.id == first or not set(column_ids.values()).isdisjoint(index.columns)

    return replace(instant, columns=column_ids, derived=(), indexes=tuple(i for i in instant.indexes if is_needed(i)))


def _runs_of(instant: Instant) -> list[Run]:
    return [*instant.manifest, *(run for index in instant.indexes for run in index.runs)]


def _read_all(snapshot: Snapshot, evidence: StatsReader, columns: Sequence[str], filter_bytes: int) -> None:
    """Reads all that pruning by these columns may read, except the fine parts."""
    snapshot.partitions()
    ids = to_numpy(snapshot.files().column("file_id"))

    def read_entries(name: str) -> None:
        column = evidence.stats_column(name)
        if column is not None:
            column.read_all()

    for name in columns:
        evidence.retry_without_damaged_runs(partial(read_entries, name))
    evidence.fine_locations(ids, columns)

    def read_run(index: IndexState, run: Run) -> int:
        kind = kind_or_none(index.kind)
        if kind is None or run.path in evidence.damaged:
            return 0
        with reading_run(run):
            return kind.read_coarse(snapshot, run, filter_bytes)

    for index in snapshot.instant.indexes:
        for run in index.runs:
            filter_bytes -= evidence.retry_without_damaged_runs(partial(read_run, index, run))


# -- asked in an executor ---------------------------------------------------------------------------------------------


class _Plan:
    """One predicate over what is carried."""

    def __init__(self, coarse: Coarse, bound: Node):
        self._coarse, self._bound = coarse, bound
        self._snapshot = snapshot = coarse.opened
        self._evidence = coarse.evidence()
        self._data = open_storage(coarse.location, coarse.storage_options)
        self._whole: PruningState | None = None
        totals = snapshot.instant.totals
        self._is_plain = totals["plain"] == totals["files"]
        places = {name: self._evidence.in_files(name) for name in columns_of(bound)}
        self._context = ReadContext(
            location=coarse.location,
            index_location=coarse.index_location,
            schema=snapshot.instant.schema,
            columns=(),
            bound=bound,
            partitioning=snapshot.instant.partitioning,
            columns_in_files={name: place for name, place in places.items() if place is not None},
            names=(),
            defaults={},
        )

    def of(self, paths: Sequence[str]) -> list[list[int] | None]:
        """For each path: its row groups that may match, None for all; [] if none may."""
        names = [self._name(path) for path in paths]
        ids = self._snapshot.find(list(dict.fromkeys(name for name in names if name is not None)))
        places: dict[str, list[int] | None] = {name: [] for name in ids}
        if ids:
            tasks = [task for task in self._tasks(np.array(sorted(ids.values()), dtype=np.uint64)) if task.path in ids]
            storage = self._snapshot.readers.storage
            for task, groups in zip(tasks, row_groups_of(tasks, self._context, storage), strict=True):
                places[task.path] = groups.kept if groups.kept == [] or self._is_there(task, groups.total) else None
        return [None if name is None else places.get(name) for name in names]

    def _name(self, path: str) -> str | None:
        try:
            return relative_path(self._data, _decoded(path))
        except (InvalidArgumentError, StorageError, UnicodeDecodeError):
            return None  # no file of this table, whatever it is

    def _tasks(self, ids: np.ndarray) -> list[FileTask]:
        """Of the units that some files (ascending) are in, what is left."""
        if self._is_plain:
            remaining = prune(PruneRequest(self._bound, ids=ids), self._evidence, Steps())
        else:  # a file proves nothing without the others of its slice
            if self._whole is None:
                self._whole = prune(PruneRequest(self._bound), self._evidence, Steps())
            remaining = self._whole.with_files(ids)
        return tasks_of(self._snapshot, self._evidence, remaining, columns_of(self._bound))

    def _is_there(self, task: FileTask, total: int | None) -> bool:
        """Whether a file is the one whose row groups are known."""
        if total is None:
            return True
        try:
            return self._data.stat(task.path).is_same(task.size_bytes, task.modified_ns, task.etag)
        except StorageError:
            return False


def _decoded(path: str) -> str:
    """A path without a scheme as it is; a URI as Spark writes one, its escapes resolved."""
    scheme = _URI.match(path)
    if scheme is None:
        return path
    text = unquote(path, errors="strict")
    if scheme[1].lower() != "file":
        return text
    rest = text[len("file:") :]
    return "/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest


def _in_batches(plan: _Plan, paths: Iterator[str | os.PathLike[str]]) -> Iterator[Pruning]:
    size = _FIRST_BATCH
    while batch := paths_of(list(islice(paths, size))):
        for path, groups in zip(batch, plan.of(batch), strict=True):
            if groups != []:
                yield path, groups
        size = _BATCH
