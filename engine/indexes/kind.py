"""Kinds of index: what a kind does, and the kind of each name.

    define     the indexes that a call of `create_index` makes of some columns
    build      runs over existing files that an index lacks
    part_spec  how a writer's task builds a part of an index over the rows that it writes
    commit     an index with the parts that the tasks of a commit built
    merge      an index with fewer runs, after `optimize`
    probes     what an index proves about a predicate: for each file, the outcomes that parts of it may have

The callers keep the coverage of all kinds in one way: an index covers the segments in its coverage, minus the holes. A
kind reports what it left out; it never reports that something is covered. An index of an unknown kind stays as it is,
covers no new file, and prunes nothing.

What builds, commits and merges is loaded where it is called: a scan needs none of it.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...base.arrays import from_numpy
from ...errors import InvalidArgumentError
from ..state import IndexState, Instant, Run
from ..state.coverage import covered_files
from ..state.paths import run_path
from .derived import serves

if TYPE_CHECKING:
    import pyarrow as pa

    from ..handle import Handle
    from ..predicates import Node
    from ..progress import Progress
    from ..state.leftovers import Leftovers
    from ..state.lsm import RunWriter
    from ..state.runs import RunReaders
    from ..state.snapshot import Snapshot
    from ..storage import Storage
    from .probe_results import ProbeResult
    from .task_result import AddedFiles, IndexPart, TaskResult

PUBLISH_S = 60.0
NAMES = ("bloom", "ngram", "secondary", "stats")  # each is a folder, which is loaded when it is needed


@dataclass
class BuildContext:
    """A build under way.

    transaction    whose files it writes
    leftovers      takes each path before it is written
    part           of a build that several do at once: sets its files' names apart
    publish_s      after so many seconds what is there should be published
    is_due         what was built so far should be published: a build that is killed afterwards goes on from there
    """

    transaction: str
    leftovers: Leftovers
    progress: Progress | None = None
    part: str = ""
    publish_s: float = field(default_factory=lambda: PUBLISH_S)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self.began_s >= self.publish_s

    def path(self, storage: Storage, name: str) -> str:
        """The path of a run of that name, noted."""
        path = run_path(self.transaction, f"{name}-{self.part}" if self.part else name)
        self.leftovers.add(storage, path)
        return path

    def tell(self, step: str, done: int, total: int) -> None:
        if self.progress:
            self.progress(step, done, total)


@dataclass
class BuildResult:
    """What a build made of the files that it was given.

    runs          over all of them but those left out
    left_out      uint64: files that cannot be read, which stay holes
    not_reached   uint64: files that it did not come to before it was due
    """

    runs: tuple[Run, ...]
    left_out: Sequence[int] = ()
    not_reached: Sequence[int] = ()

    @property
    def paths(self) -> list[str]:
        """The files that it wrote."""
        return [run.path for run in self.runs]

    @classmethod
    def joined(cls, parts: Sequence[BuildResult]) -> BuildResult:
        """What several builds, each over all of its files, made of them."""
        return cls(tuple(run for part in parts for run in part.runs), [i for part in parts for i in part.left_out])


@dataclass
class CommitContext:
    """One attempt of a commit: what it adds and removes, under their ids.

    after      the instant in the making: its version, schema and columns are those of the new version
    named_at   the version whose column names the tasks use
    results    what the tasks made, and `added`, result by result, their files as they were bound
    removed    the removed files, as the manifest had them
    data       the table's storage, if an index that no task built a part of is built from the added files
    """

    after: Instant
    named_at: Instant
    results: Sequence[TaskResult]
    added: Sequence[AddedFiles]
    removed: pa.Table
    writing: RunWriter
    data: Storage | None = None

    @property
    def version(self) -> int:
        return self.after.version

    def added_files(self) -> pa.Table:
        """The added files as rows of the manifest."""
        import pyarrow as pa

        tables = []
        for files in self.added:
            ids = {"file_id": from_numpy(files.ids), "schema_id": from_numpy(files.schema_ids)}
            rows = files.result.files.drop_columns([name for name in ids if name in files.result.files.column_names])
            tables.append(pa.table({**dict(zip(rows.column_names, rows.columns, strict=True)), **ids}))
        return pa.concat_tables(tables)

    def copied_files(self, columns: Collection[str]) -> dict[int, tuple[int, int, int]]:
        """old id -> (segment, new id, row groups) of each removed file of which an added one has the rows, with other
        values in none of these columns: dotted paths."""
        names = ("path", "file_id", "segment", "row_count", "row_groups")
        removed = {path: row for path, *row in zip(*(self.removed.column(n).to_pylist() for n in names), strict=True)}
        found: dict[int, tuple[int, int, int]] = {}
        tops = {column.split(".")[0] for column in columns}
        for files in self.added:
            is_same = self.named_at.columns == self.after.columns and not tops & {*files.result.updated}
            copies = files.result.copies if is_same else {}
            rows = (files.result.files.column(name).to_pylist() for name in ("path", "row_count", "row_groups"))
            for file_id, path, row_count, row_groups in zip(files.ids.tolist(), *rows, strict=True):
                old = removed.get(copies.get(path, ""))
                if old is not None and old[2:] == [row_count, row_groups]:
                    found[old[0]] = old[1], file_id, row_groups
        return found

    def parts_of(
        self, index: IndexState, encoding: tuple[str | None, ...] = ()
    ) -> tuple[list[tuple[IndexPart, np.ndarray]], list[int]] | None:
        """(the parts that tasks built of an index with that encoding, each with the ids of the task's files; the ids of
        the added files that no part covers). None if no task has one: then the index does not cover the commit."""
        paths = {number: path for path, number in self.named_at.ids.items()}
        wanted = index.kind, tuple(paths.get(number) for number in index.columns), encoding
        parts: list[tuple[IndexPart, np.ndarray]] = []
        left_out: list[int] = []
        for files in self.added:
            of_task = [] if files.result.index is None else files.result.index.parts
            part = next((one for one in of_task if (one.kind, one.columns, one.encoding) == wanted), None)
            if part is None:
                left_out += files.ids.tolist()
            else:
                left_out += files.ids[[number is None for number in part.numbers]].tolist()
                parts.append((part, files.ids))
        return (parts, left_out) if parts and index.maintain == "commit" else None


@dataclass
class MergeContext:
    """One attempt of an optimize, over the version of `snapshot`, that makes the next.

    merged    runs that earlier attempts made of others, by the paths of these: what took long need not be done again
              because a commit came first
    """

    snapshot: Snapshot
    writing: RunWriter
    merged: dict[tuple[str, ...], Run] = field(default_factory=dict)

    @property
    def version(self) -> int:
        return self.snapshot.instant.version + 1


class BuildPart(Protocol):
    """A picklable part of a build: the files that it wrote, and the ids of files that it did not come to."""

    @property
    def paths(self) -> list[str]: ...

    @property
    def not_reached(self) -> Sequence[int]: ...


@dataclass
class ProbedFiles:
    """The files that a probe is run over.

    ids         uint64, ascending
    damaged     the paths of runs that are not read
    segments    int64; None: read from the manifest where a coverage takes them
    is_base     bool; None: all are bases, none is a log
    """

    ids: np.ndarray
    snapshot: Snapshot
    damaged: Sequence[str] = ()
    segments: np.ndarray | None = None
    is_base: np.ndarray | None = None

    def covered_by(self, index: IndexState) -> np.ndarray:
        """bool: the files that an index covers. Of others it may say nothing."""
        return covered_files(index, self.snapshot.instant.version, self.ids, self.segments_of)

    def segments_of(self, ids: np.ndarray) -> np.ndarray:
        """int64: the segments of these files."""
        return self.snapshot.segments(ids) if self.segments is None else self.segments


class Probe(Protocol):
    """An index, and the parts of a predicate that it can say something of.

    step            the name of its step in `explain`
    note            what a person should know of the choice, where several indexes could be used
    is_expensive    to run it would cost more than it saves: it is named, and not run
    """

    step: str
    note: str
    is_expensive: bool

    @property
    def index(self) -> IndexState: ...

    @property
    def label(self) -> str:
        """The index, as `explain` names it."""
        ...

    @property
    def parts(self) -> Collection[Node]:
        """Of the predicate: those of which the result will say something."""
        ...

    def run(self, files: ProbedFiles) -> ProbeResult:
        """What the index says of files: of covered ones alone, and by no damaged run. Raises DamagedRun."""
        ...


class PartBuilder(Protocol):
    """Builds a part of an index over the files of one task, as their rows are written."""

    def add(self, number: int, row_group: int, first_row: int, rows: pa.Table) -> None:
        """Adds the next row group of the file of that number; its first row is row `first_row` of the file."""
        ...

    def end_file(self, number: int) -> None:
        """Ends a file: no row group of it follows."""
        ...

    def finish(self, storage: Storage, path: str, numbers: Sequence[int]) -> IndexPart:
        """Writes the part's run to `path`, if there is any entry: durable on return. `numbers`: of the task's files, by
        ordinal."""
        ...

    def close(self) -> None:
        """Releases memory and temporary files."""
        ...


class PartSpec(Protocol):
    """What a task needs to build a part of an index. Picklable."""

    def start(self) -> PartBuilder: ...


class IndexKind(Protocol):
    """One kind of index: see the head of this file.

    name
    is_compound      several columns are together the key of one index, in their order; else an index holds each for
                     itself
    covers_delta_logs   has something to say of files that are no base
    joins_runs       a commit reads small runs whole, to join them
    stores_values    a value, or a part of one, can be read in its runs: not in a filter, which has bits of hashes
    """

    name: str
    is_compound: bool = False
    covers_delta_logs: bool = False
    reads_data: bool = True
    joins_runs: bool = False
    stores_values: bool = True

    def define(
        self, instant: Instant, columns: Sequence[str], maintain: str, options: dict[str, Any]
    ) -> list[IndexState]:
        """The indexes to be made, without runs; their ids are given later. Raises SchemaError for a column that cannot
        be indexed, InvalidArgumentError for an option that has no meaning here."""
        ...

    def build(self, handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> BuildResult:
        """Runs over files that the index lacks (rows of the manifest by file id)."""
        ...

    def build_part(self, handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> BuildPart:
        """What one of several processes makes of its share of the files."""
        return self.build(handle, index, files, job)

    def join_parts(self, handle: Handle, index: IndexState, parts: Sequence[Any], job: BuildContext) -> BuildResult:
        """The runs over what `build_part` made in several processes."""
        return BuildResult.joined(parts)

    def part_spec(self, instant: Instant, index: IndexState) -> PartSpec | None:
        """What tasks need to build parts of an index; None for a kind that needs nothing but a file's statistics."""
        ...

    def commit(self, index: IndexState, work: CommitContext) -> IndexState:
        """The index after a commit: with the runs and the coverage of what its tasks built."""
        ...

    def merge(self, index: IndexState, work: MergeContext) -> IndexState:
        """The index with fewer runs, or without entries of removed files; itself where nothing pays.

        `Table.purge` calls it, too: then `work.writing.compact` leaves out every entry of a removed file. A kind that
        `stores_values` has no other runs afterwards than those that it returned, or the purge raises."""
        ...

    def is_current(self, instant: Instant, index: IndexState) -> bool:
        """False where the index cannot be used any more, since a column has another type: a refresh builds it again."""
        return True

    def renewed(self, instant: Instant, index: IndexState) -> IndexState:
        """The definition of an index for the columns as they are, with nothing built if its options differ: then a
        refresh builds it again."""
        return index

    def referenced_files(self, readers: RunReaders, run: Run) -> set[str]:
        """The index files that a run names, which must stay while it does."""
        return set()

    def probes(
        self, snapshot: Snapshot, bound: Node, indexes: Sequence[IndexState], damaged: Sequence[str]
    ) -> Sequence[Probe]:
        """What indexes of this kind (current ones) can say of a bound predicate, the most selective first. No run in
        `damaged` is read. Raises DamagedRun."""
        ...


def kind_named(name: str) -> IndexKind:
    """The kind of a name. Raises InvalidArgumentError for an unknown one."""
    kind = kind_or_none(name)
    if kind is None:
        raise InvalidArgumentError(f"no index kind {name!r}; there are {', '.join(map(repr, NAMES))}")
    return kind


def kind_or_none(name: object) -> IndexKind | None:
    """The kind of a name, None for an unknown one."""
    return importlib.import_module(f"..{name}.kind", __name__).KIND if name in NAMES else None


def definition_of(kind: IndexKind, instant: Instant, index: IndexState) -> IndexState:
    """The index; or its new definition, if the types or the included columns are no longer those of the table."""
    renewed = kind.renewed(instant, index)
    return index if renewed.options == index.options else renewed


def part_specs(instant: Instant) -> tuple[PartSpec, ...]:
    """What a writer's task needs for all indexes of a version that are maintained by commits."""
    kept = [index for index in instant.indexes if index.maintain == "commit" and serves(instant, index)]
    kinds = [(kind_or_none(index.kind), index) for index in kept]
    specs = [kind.part_spec(instant, index) for kind, index in kinds if kind is not None]
    return tuple(spec for spec in specs if spec is not None)


def first_stats(instant: Instant) -> IndexState:
    """The statistics index that `create` made: it also says where the fine statistics lie."""
    return min((i for i in instant.indexes if i.is_statistics), key=lambda i: i.id)


def referenced_files(readers: RunReaders, index: IndexState, run: Run) -> set[str] | None:
    """The index files that one run names, of files long gone too; None for a kind that is not known here. Raises what a
    damaged run, or one that is gone, raises."""
    kind = kind_or_none(index.kind)
    return None if kind is None else kind.referenced_files(readers, run)


def planned_probes(snapshot: Snapshot, bound: Node, damaged: Sequence[str], *, only_stats: bool = False) -> list[Probe]:
    """The probes of all indexes of a version for a bound predicate, in the order in which they are run:

    1. what knows rows (secondary indexes): after it others need not be run for the same parts, and only these rows are
       read;
    2. what knows values and texts (filters, n-grams): a value that is nowhere is the commonest look-up,
       which they decide by one small read;
    3. statistics, which read an entry a file: for few files when others came first, and able to leave out whole blocks
       before files are listed when none did.

    Within a kind the most selective come first; each kind decides that (`IndexKind.probes`). Raises DamagedRun.
    """
    by_kind: dict[str, list[IndexState]] = {}
    for index in snapshot.instant.indexes:
        if not only_stats or index.kind == "stats":
            by_kind.setdefault(index.kind, []).append(index)
    probes: list[Probe] = []
    for name in sorted(by_kind, key=lambda name: {"secondary": 0, "stats": 2}.get(name, 1)):
        kind = kind_or_none(name)
        if kind is not None:
            instant = snapshot.instant
            current = [index for index in by_kind[name] if kind.is_current(instant, index) and serves(instant, index)]
            probes += kind.probes(snapshot, bound, current, damaged)
    return probes
