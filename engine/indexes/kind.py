"""The protocol that every kind of index implements, and the look-up of a kind by its name.

The callers maintain the coverage of all kinds in the same way: an index covers the segments in its coverage, minus the
holes. A kind reports which files it left out; it never declares a file covered. An index of an unknown kind stays
unchanged, covers no new file, and prunes nothing. Code that builds, commits and merges is imported where it is called.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy
from ...errors import InvalidArgumentError
from ..parquet.leaves import top_level
from ..state import IndexState, Instant, Run
from ..state.coverage import covered_files
from ..state.paths import run_path
from .derived import is_usable

if TYPE_CHECKING:
    from ..handle import Handle
    from ..predicates import Node
    from ..predicates.required_texts import Required
    from ..progress import Progress
    from ..state.lsm import RunWriter
    from ..state.publishing import UnpublishedFiles
    from ..state.runs import RunReaders
    from ..state.snapshot import Snapshot
    from ..storage import Storage
    from .probe_results import ProbeResult
    from .secondary.reader import SecondaryReader
    from .task_result import AddedFiles, IndexPart, TaskResult

PUBLISH_S = 60.0
NAMES = ("bloom", "ngram", "secondary", "stats")  # each is a folder, which is loaded when it is needed


@dataclass
class BuildContext:
    """The state of one build.

    transaction    the transaction that owns the files of the build
    leftovers      records each path before the file is written
    part           the part of a build that several processes share; it keeps their file names distinct
    publish_s      seconds after which the result so far should be published
    is_due         the result so far should be published now: a later build continues from it if this one is killed
    """

    transaction: str
    leftovers: UnpublishedFiles
    progress: Progress | None = None
    part: str = ""
    publish_s: float = field(default_factory=lambda: PUBLISH_S)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self.began_s >= self.publish_s

    def path(self, storage: Storage, name: str) -> str:
        """Return the path of a run with this name, and record it in `leftovers`."""
        path = run_path(self.transaction, f"{name}-{self.part}" if self.part else name)
        self.leftovers.add(storage, path)
        return path

    def tell(self, step: str, done: int, total: int) -> None:
        if self.progress:
            self.progress(step, done, total)


@dataclass
class BuildResult:
    """The result of a build over the files that it was given.

    runs              over all of these files except the unreadable ones
    unreadable_ids    uint64 ids of files that cannot be read; they stay holes
    remaining_ids     uint64 ids of files that were not indexed before the build was due
    """

    runs: tuple[Run, ...]
    unreadable_ids: Sequence[int] = ()
    remaining_ids: Sequence[int] = ()

    @property
    def paths(self) -> list[str]:
        """The paths of the files that the build wrote."""
        return [run.path for run in self.runs]

    @classmethod
    def joined(cls, parts: Sequence[BuildResult]) -> BuildResult:
        """Return the combined result of several builds that each reached all of their files."""
        runs = tuple(run for part in parts for run in part.runs)
        return cls(runs, [file_id for part in parts for file_id in part.unreadable_ids])


@dataclass
class CommitContext:
    """One attempt of a commit: what it adds and removes, with assigned ids.

    after         the new instant, not yet published: its version, schema and columns are those of the new version
    names_from    the version whose column names the tasks use
    results       the results of the tasks; `added` contains their files with assigned ids, one item per result
    removed       the removed files, as rows of the manifest
    data          the table's storage, if an index without parts from tasks is built from the added files
    """

    after: Instant
    names_from: Instant
    results: Sequence[TaskResult]
    added: Sequence[AddedFiles]
    removed: pa.Table
    writing: RunWriter
    data: Storage | None = None

    @property
    def version(self) -> int:
        return self.after.version

    def added_files(self) -> pa.Table:
        """Return the added files as rows of the manifest."""
        tables = []
        for files in self.added:
            ids = {"file_id": from_numpy(files.ids), "schema_id": from_numpy(files.schema_ids)}
            rows = files.result.files.drop_columns([name for name in ids if name in files.result.files.column_names])
            tables.append(pa.table({**dict(zip(rows.column_names, rows.columns, strict=True)), **ids}))
        return pa.concat_tables(tables)

    def copied_files(self, columns: Collection[str]) -> dict[int, tuple[int, int]]:
        """Return old id -> (segment, new id) for each removed file that was copied into an added file. The copy has the
        same rows in the same row groups, and the same values in these columns (dotted paths)."""
        names = ("path", "file_id", "segment", "row_count", "row_groups")
        removed = {path: row for path, *row in zip(*(self.removed.column(n).to_pylist() for n in names), strict=True)}
        found: dict[int, tuple[int, int]] = {}
        tops = {top_level(self.after.schema, column) for column in columns}
        for files in self.added:
            is_same = self.names_from.columns == self.after.columns and not tops & {*files.result.updated}
            copies = files.result.copies if is_same else {}
            rows = (files.result.files.column(name).to_pylist() for name in ("path", "row_count", "row_groups"))
            for file_id, path, row_count, row_groups in zip(files.ids.tolist(), *rows, strict=True):
                old = removed.get(copies.get(path, ""))
                if old is not None and old[2:] == [row_count, row_groups]:
                    found[old[0]] = old[1], file_id
        return found

    def parts_of(
        self, index: IndexState, encoding: tuple[str | None, ...] = ()
    ) -> tuple[list[tuple[IndexPart, np.ndarray]], list[int]] | None:
        """Return the parts that tasks built of an index with this encoding, and the added files without a part.
        Each part is paired with the ids of its task's files. Return None if no task has a part, or the index is not
        maintained by commits: then it does not cover the commit."""
        paths = {number: path for path, number in self.names_from.ids.items()}
        wanted = index.kind, tuple(paths.get(number) for number in index.columns), encoding
        parts: list[tuple[IndexPart, np.ndarray]] = []
        holes: list[int] = []
        for files in self.added:
            of_task = [] if files.result.index is None else files.result.index.parts
            part = next((one for one in of_task if (one.kind, one.columns, one.encoding) == wanted), None)
            if part is None:
                holes += files.ids.tolist()
            else:
                holes += files.ids[[number is None for number in part.numbers]].tolist()
                parts.append((part, files.ids))
        return (parts, holes) if parts and index.maintain == "commit" else None


@dataclass
class MergeContext:
    """One attempt of an optimize over the version of `snapshot`; it creates the next version."""

    snapshot: Snapshot
    writing: RunWriter

    @property
    def version(self) -> int:
        return self.snapshot.instant.version + 1


class BuildPart(Protocol):
    """A picklable part of a build: the paths of the files that it wrote, and the ids of files that it did not reach."""

    @property
    def paths(self) -> list[str]: ...

    @property
    def remaining_ids(self) -> Sequence[int]: ...


@dataclass
class ProbedFiles:
    """The files that a probe runs over.

    ids         uint64, ascending
    damaged     the paths of runs that are not read
    segments    int64; None: read from the manifest if a coverage needs them
    is_base     bool, False for log files; None: all files are base files
    """

    ids: np.ndarray
    snapshot: Snapshot
    damaged: Sequence[str] = ()
    segments: np.ndarray | None = None
    is_base: np.ndarray | None = None

    def covered_by(self, index: IndexState) -> np.ndarray:
        """Return the files that an index covers (bool). It may prove nothing about other files."""
        return covered_files(index, self.snapshot.instant.version, self.ids, self.segments_of)

    def segments_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the segments of these files: int64."""
        return self.snapshot.segments(ids) if self.segments is None else self.segments


class Probe(Protocol):
    """An index, and the parts of a predicate about which it can prove something.

    step            the name of its step in `explain`
    note            a remark on the choice for the user, if several indexes could be used
    is_expensive    running it would cost more than it saves: `explain` lists it, but it is not run
    """

    step: str
    note: str
    is_expensive: bool

    @property
    def index(self) -> IndexState: ...

    @property
    def label(self) -> str:
        """The name of the index in `explain`."""
        ...

    @property
    def parts(self) -> Collection[Node]:
        """The parts of the predicate that the result covers."""
        ...

    def run(self, files: ProbedFiles) -> ProbeResult:
        """Return what the index proves about files. Use covered files only, and no damaged run. Raise DamagedRun."""
        ...


class PartBuilder(Protocol):
    """Builds a part of an index over the files of one task while their rows are written."""

    def add(self, number: int, row_group: int, first_row: int, rows: pa.Table) -> None:
        """Add the next row group of the file with this number. Its first row is row `first_row` of the file."""
        ...

    def end_file(self, number: int) -> None:
        """End a file: no more row groups of it follow."""
        ...

    def finish(self, storage: Storage, path: str, numbers: Sequence[int]) -> IndexPart:
        """Write the part's run to `path` if there are entries; the run is durable on return. `numbers` contains the
        number of each file of the task, by ordinal."""
        ...

    def close(self) -> None:
        """Release memory and temporary files."""
        ...


class PartSpec(Protocol):
    """What a task needs to build a part of an index. Picklable.

    can_wait    if the rows are many, the commit builds the part from the written files in less time
    """

    can_wait: ClassVar[bool] = False

    def start(self) -> PartBuilder: ...


class IndexKind(Protocol):
    """One kind of index. The docstring of the package lists the methods.

    name                 the name of the kind
    is_compound          True: several columns form one key, in their order. False: each column is indexed separately
    covers_delta_logs    it can prove something about files that are not base files
    reads_data           its build reads the data files, not only their footers
    joins_runs           a commit reads small runs whole, in order to join them
    stores_values        its runs contain readable values or parts of values; a filter contains only bits of hashes
    lists_rows           its entries are the rows with given values: `rows_reader` returns a reader
    is_coarse            its entries per file prune in executors that have no access to the rest of the index
    probe_order          its probes run after those of kinds with a lower number (`planned_probes`)
    """

    name: str
    is_compound: bool = False
    covers_delta_logs: bool = False
    reads_data: bool = True
    joins_runs: bool = False
    stores_values: bool = True
    lists_rows: bool = False
    is_coarse: bool = False
    probe_order: int = 1

    def define(
        self, instant: Instant, columns: Sequence[str], maintain: str, options: dict[str, Any]
    ) -> list[IndexState]:
        """Return the new indexes, without runs and without ids. Raise SchemaError for a column that cannot be indexed,
        InvalidArgumentError for an option that this kind does not have."""
        ...

    def build(self, handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> BuildResult:
        """Index files that the index lacks (rows of the manifest, by file id)."""
        ...

    def build_part(self, handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> BuildPart:
        """Build one process's share of the files, if several processes build an index."""
        return self.build(handle, index, files, job)

    def join_parts(self, handle: Handle, index: IndexState, parts: Sequence[Any], job: BuildContext) -> BuildResult:
        """Return the runs over the parts that `build_part` built in several processes."""
        return BuildResult.joined(parts)

    def part_spec(self, instant: Instant, index: IndexState) -> PartSpec | None:
        """Return what tasks need to build parts of an index; None for a kind that needs only a file's statistics."""
        ...

    def commit(self, index: IndexState, work: CommitContext) -> IndexState:
        """Return the index after a commit, with the runs and the coverage that its tasks added."""
        ...

    def merge(self, index: IndexState, work: MergeContext) -> IndexState:
        """Return the index with fewer runs, or without entries of removed files. Else return the same index.

        `Table.purge` also calls it: then `work.writing.compact` leaves out every entry of a removed file. Afterwards a
        kind that `stores_values` must have no runs other than those that this call returned, or the purge raises.
        """
        ...

    def of_new_columns(
        self, handle: Handle, altered: Instant, index: IndexState, transaction: str, leftovers: UnpublishedFiles
    ) -> IndexState:
        """Return the index for columns that `altered` adds and that no live file has; unchanged if it proves nothing
        about these files."""
        return index

    def is_current(self, instant: Instant, index: IndexState) -> bool:
        """Return False if the index can no longer be used because a column changed its type: a refresh rebuilds it."""
        return True

    def updated_definition(self, instant: Instant, index: IndexState) -> IndexState:
        """Return the index's definition for the current columns. If its options differ, nothing counts as built, and a
        refresh rebuilds the index."""
        return index

    def referenced_files(self, readers: RunReaders, run: Run) -> set[str]:
        """Return the index files that a run references. They must exist as long as the run does."""
        return set()

    def shown_options(self, instant: Instant, index: IndexState) -> dict[str, Any]:
        """Return the options of an index as users read them."""
        return index.options

    def advised_options(self, row_groups: float) -> dict[str, Any]:
        """Return options that suit a table of so many row groups."""
        return {}

    def can_find(self, required: Required, ignore_case: bool) -> bool:
        """Return whether an index can look up the texts that a predicate requires."""
        return False

    def rows_reader(self, snapshot: Snapshot, index: IndexState, runs: Sequence[Run]) -> SecondaryReader | None:
        """Return the reader of some runs of an index; None if the kind does not list rows."""
        return None

    def read_coarse(self, snapshot: Snapshot, run: Run, bytes_max: int) -> int:
        """Read what pruning in executors reads of a run, and optional parts of at most so many bytes. Return the bytes
        of these that were read."""
        return 0

    def probes(
        self, snapshot: Snapshot, bound: Node, indexes: Sequence[IndexState], damaged: Sequence[str]
    ) -> Sequence[Probe]:
        """Return what current indexes of this kind can prove about a bound predicate, the most selective first. Do not
        read runs in `damaged`. Raise DamagedRun."""
        ...


def kind_named(name: str) -> IndexKind:
    """Return the kind with this name. Raise InvalidArgumentError if it is unknown."""
    kind = kind_or_none(name)
    if kind is None:
        raise InvalidArgumentError(f"no index kind {name!r}; there are {', '.join(map(repr, NAMES))}")
    return kind


def kind_or_none(name: object) -> IndexKind | None:
    """Return the kind with this name, None if it is unknown."""
    return importlib.import_module(f"..{name}.kind", __name__).KIND if name in NAMES else None


def definition_of(kind: IndexKind, instant: Instant, index: IndexState) -> IndexState:
    """Return the index, or its new definition if the types or the included columns of the table changed."""
    updated = kind.updated_definition(instant, index)
    return index if updated.options == index.options else updated


def part_specs(instant: Instant) -> tuple[PartSpec, ...]:
    """Return what a writer's task needs for all indexes that commits maintain."""
    kept = [index for index in instant.indexes if index.maintain == "commit" and is_usable(instant, index)]
    kinds = [(kind_or_none(index.kind), index) for index in kept]
    specs = [kind.part_spec(instant, index) for kind, index in kinds if kind is not None]
    return tuple(spec for spec in specs if spec is not None)


def first_stats(instant: Instant) -> IndexState:
    """Return the statistics index that `create` made. It also contains the locations of the fine statistics."""
    return min((i for i in instant.indexes if i.is_statistics), key=lambda i: i.id)


def shown_options(instant: Instant, index: IndexState) -> dict[str, Any]:
    """Return the options of an index as users read them."""
    kind = kind_or_none(index.kind)
    return index.options if kind is None else kind.shown_options(instant, index)


def referenced_files(readers: RunReaders, index: IndexState, run: Run) -> set[str] | None:
    """Return the index files that one run references, including files of removed data files. Return None if the kind is
    unknown. Raise the error of the run if it is damaged or missing."""
    kind = kind_or_none(index.kind)
    return None if kind is None else kind.referenced_files(readers, run)


def planned_probes(snapshot: Snapshot, bound: Node, damaged: Sequence[str], *, only_stats: bool = False) -> list[Probe]:
    """Return the probes of all indexes of a version for a bound predicate, in the order in which they are run:

    1. Secondary indexes list rows. After them, no other index needs to be run for the same parts, and only these rows
       are read.
    2. Filters and n-grams cover values and texts. The commonest look-up is for a value in no file, which they decide
       with one small read.
    3. Statistics read one entry per file. After other probes they read entries of few files only; without other probes
       they can exclude whole blocks before files are listed.

    Within a kind the most selective come first (`IndexKind.probes`). Raise DamagedRun.
    """
    by_kind: dict[str, list[IndexState]] = {}
    for index in snapshot.instant.indexes:
        if not only_stats or index.is_statistics:
            by_kind.setdefault(index.kind, []).append(index)
    probes: list[Probe] = []
    kinds = [kind for name in by_kind if (kind := kind_or_none(name)) is not None]
    for kind in sorted(kinds, key=lambda kind: kind.probe_order):
        instant, indexes = snapshot.instant, by_kind[kind.name]
        current = [index for index in indexes if kind.is_current(instant, index) and is_usable(instant, index)]
        probes += kind.probes(snapshot, bound, current, damaged)
    return probes
