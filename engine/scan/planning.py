"""Planning: the levels of a plan, each worked out when it is first needed, and the rows that it reads.

    predicate -> units that survive (`prune.py`) -> a task a file -> row groups (`fine.py`) -> rows (`rows.py`)

`Plan` is its public face; `explain`, the extremes and Spark use a `Planning` itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, string_array, to_numpy
from ...caching import cached_property
from ...errors import InvalidArgumentError, NotATableError, NotReadableError, PredicateError, SchemaError, StorageError
from ..indexes.columns import ColumnInFiles, defaults_of, names_in_files
from ..indexes.probe_results import ColumnEvidence, Outcomes
from ..lakes.log import parquet_options
from ..logger import is_logging, log
from ..parquet.leaves import top_level
from ..predicates import Constant, Node, brief, columns_of, columns_read, parse, prepare, unknowns
from ..state import Instant
from ..state.manifest import BASE
from ..state.slices import any_of
from ..state.snapshot import Snapshot, Tail
from ..storage import options_of
from ..storage.prefetch import ahead
from .evidence_reader import EvidenceReader
from .file_reader import changed_file, check_identity
from .file_tasks import FileTask, ReadContext, RowGroups, TaskRows, tasks_of
from .fine import row_groups_of
from .merged_rows import as_in_table, matching
from .prune import PruneRequest, prune, statistics_outcomes
from .request import DeletedRows, ScanRequest, SliceRows, checked_columns, sort_keys
from .rows import count_matches, how_read, read_matches, rows_looked_at
from .steps import Step, Steps
from .survivors import Survivors, Units

if TYPE_CHECKING:
    from ..handle import Reopening

R = TypeVar("R")
T = TypeVar("T")
Pair = tuple[FileTask, RowGroups]
THREADS = min(8, os.cpu_count() or 1)
_COLUMNS_LOGGED_MAX = 100
_FILES_AT_ONCE_MAX = 64  # of which rows are read, where a limit may end it


class Planning:
    """The predicate, what pruning leaves of the table, the tasks and the rows of one scan.

    What was worked out once is kept. Threads may share one.

    bound            the predicate, bound to the schema
    where            the same, as it was read: what is fixed once a plan, such as now(), is fixed in it
    columns          the names of the columns to read
    mode, limit, reader    as in `ScanRequest`
    order_by         what the rows are ordered by, of type `SortKey`
    storage          where the data files are
    index_storage    where the index is
    evidence         what the indexes say
    """

    def __init__(self, request: ScanRequest, where: object = None, params: Sequence | Mapping | None = None):
        schema = request.snapshot.instant.schema
        self.request = request
        self.where = parse(where, schema, params)
        self.bound: Node = prepare(self.where, schema)
        self.columns = checked_columns(request.columns, schema)
        self.mode, self.limit, self.reader = request.mode, request.limit, request.reader
        self.order_by = () if request.order_by is None else sort_keys(request.order_by, schema)
        self.storage, self.index_storage = request.storage, request.index_storage
        self.snapshot: Snapshot = request.snapshot
        self._reading_steps = self._no_steps()
        self._deletes = _Deletes(request.deleted)
        self.evidence = EvidenceReader(request.snapshot, request.strict)

    def __repr__(self) -> str:
        return f"<skipstone.Plan of {self.location!r} version {self.instant.version}: {brief(self.bound)}>"

    def __reduce__(self) -> tuple:
        return planned_again, (Planning, self.request.origin, self.request.how, self.where)

    @property
    def predicate_text(self) -> str:
        """What the rows are chosen by."""
        return brief(self.bound)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the keys that choose the rows, where a predicate does not."""
        return ()

    @property
    def instant(self) -> Instant:
        """The version that is scanned."""
        return self.snapshot.instant

    @property
    def tail(self) -> Tail | None:
        """What the log of another format has added since the version."""
        return self.snapshot.tail

    @property
    def location(self) -> str:
        """The table's directory."""
        return self.storage.uri

    @property
    def damaged(self) -> list[str]:
        """Index runs that could not be read, and were left out."""
        return list(dict.fromkeys(self.evidence.damaged))  # threads may meet one at the same time

    @property
    def steps(self) -> list[Step]:
        """What each step did: those of planning, and, where rows were read or counted, that."""
        return [*self._pruned[1], *self._fine[1], *self._reading_steps.steps]

    @property
    def steps_so_far(self) -> list[Step]:
        """The steps that were taken until now; asking takes none."""
        worked_out = [self.__dict__[name][1] for name in ("_pruned", "_fine") if name in self.__dict__]
        return [*(step for steps in worked_out for step in steps), *self._reading_steps.steps]

    def step(self, name: str, unit: str) -> AbstractContextManager[Step]:
        """A step of reading, for `steps`."""
        return self._reading_steps.step(name, unit)

    def _no_steps(self) -> Steps:
        return Steps(self.index_storage, self.storage)

    # -- of some of its rows ------------------------------------------------------------------------------------------

    @property
    def can_narrow(self) -> bool:
        """True where a further predicate chooses among the same rows: not where a limit leaves some of them out."""
        return self.limit is None

    @property
    def is_whole(self) -> bool:
        """True where every row of the version is meant."""
        return self.can_narrow and self.bound == Constant(True)

    def narrowed(self, where: Node, columns: Sequence[str] | None = None, limit: int | None = None) -> Planning:
        """See `Plan.narrowed`. Raises SchemaError for a column that is none of this plan's."""
        for name in columns or ():
            if name not in self.columns:
                raise SchemaError(f"no column {name!r}; the plan's columns are {', '.join(self.columns)}")
        limits = [n for n in (self.limit, limit) if n is not None]
        columns = self.columns if columns is None else tuple(columns)
        return self._again(replace(self.request, columns=columns, limit=min(limits) if limits else None), where)

    def _again(self, request: ScanRequest, where: Node) -> Planning:
        return Planning(request, self.bound & where)

    # -- files --------------------------------------------------------------------------------------------------------

    @property
    def pruned(self) -> Survivors:
        """What the coarse indexes keep."""
        return self._pruned[0]

    @cached_property
    def _pruned(self) -> tuple[Survivors, list[Step]]:
        """The same, and its steps: where threads work it out at the same time, those of the one that counts."""
        steps = self._no_steps()
        survivors = self._prune(steps)
        if is_logging():
            self._log_pruning(survivors, steps.steps)
        if self.request.scan_log is not None:
            self.request.scan_log.note(self.bound, self.key_columns, lambda: self._facts(survivors, steps.steps))
        return survivors, steps.steps

    def _log_pruning(self, survivors: Survivors, steps: Sequence[Step]) -> None:
        files_in, files_out = self.instant.totals["files"], survivors.units.files.num_rows
        requests, bytes_read = (sum(getattr(step, name) for step in steps) for name in ("requests", "bytes_read"))
        elapsed_ms = sum(step.elapsed_ms for step in steps)
        log(
            f"scan of {self.location} version {self.instant.version} where {self.predicate_text}: "
            f"{files_in:,} files -> {files_out:,}, {elapsed_ms:,.1f} ms, {requests:,} requests, {bytes_read:,} bytes"
        )

    def _facts(self, survivors: Survivors, steps: Sequence[Step]) -> dict[str, Any]:
        """What a line of the scan log says beside the predicate."""
        totals, files = self.instant.totals, survivors.units.files
        return {
            "table": self.location,
            "version": self.instant.version,
            "columns": None if self.request.columns is None else self.columns[:_COLUMNS_LOGGED_MAX],
            "order_by": [key.column for key in self.order_by],
            "limit": self.limit,
            "files_in": totals["files"],
            "files_kept": files.num_rows,
            "bytes_in": totals["bytes"],
            "bytes_kept": pc.sum(files.column("size_bytes")).as_py() or 0,
            "requests": sum(step.requests for step in steps),
            "index_bytes": sum(step.bytes_read for step in steps),
            "ms": round(sum(step.elapsed_ms for step in steps), 3),
        }

    def _prune(self, steps: Steps) -> Survivors:
        return prune(PruneRequest(self.bound, self.mode), self.evidence, steps)

    def about(self, column: str, units: Units | None = None) -> ColumnEvidence:
        """The evidence about one column, for the units that are kept or for others."""
        units = self.pruned.units if units is None else units
        return [(units.of_units(e), units.every_file(s)) for e, s in self.evidence.of_files(column, units.files)]

    def statistics_outcomes(self, units: Units) -> Outcomes:
        """What statistics and partition values alone leave possible in some units, kept or not."""
        return statistics_outcomes(self.bound, units, self.evidence)

    @cached_property
    def tasks(self) -> list[FileTask]:
        """One task a file that may match: all that an executor needs, besides the context."""
        return self.tasks_of(self.pruned)

    def tasks_of(self, pruned: Survivors, *more: str) -> list[FileTask]:
        """One task a file of these units, which are some of `pruned`, with the places of the fine statistics of the
        predicate's columns, and of some more."""
        return tasks_of(self.snapshot, self.evidence, pruned, [*columns_of(self.bound), *more])

    def task_rows(self, files: slice) -> TaskRows:
        """The same of some of the kept files, column by column."""
        return TaskRows.of(self.snapshot, self.evidence, self.pruned, columns_of(self.bound), files)

    def tasks_of_whole_files(self) -> list[FileTask]:
        """One task a file that may match, without the places of fine statistics."""
        return self._whole_files(self.pruned)

    def _whole_files(self, pruned: Survivors) -> list[FileTask]:
        return tasks_of(self.snapshot, self.evidence, pruned, (), with_fine=False)

    # -- row groups ---------------------------------------------------------------------------------------------------

    @property
    def pairs(self) -> list[Pair]:
        """The task of each kept file, with its row groups that may match."""
        return self._fine[0]

    @cached_property
    def _fine(self) -> tuple[list[Pair], list[Step]]:
        tasks, steps = self.tasks, self._no_steps()
        if not tasks:
            return [], []
        with steps.step("row groups", "row groups") as step:
            groups = row_groups_of(tasks, self.context, self.index_storage)
            listed = [g for g in groups if g.kept is not None]
            step.index = "fine statistics" + "".join(f", bloom({c})" for c in self.pruned.fine)
            step.came_in = sum(g.total or 0 for g in listed)
            step.went_out = sum(len(g.kept or []) for g in listed)
            step.uncovered = len(groups) - len(listed)
            if step.uncovered:
                step.note = f"{step.uncovered} files are read whole: their row groups are not known"
        return list(zip(tasks, groups, strict=True)), steps.steps

    @cached_property
    def context(self) -> ReadContext:
        """What every file of this scan is read with."""
        return self.context_for(self.columns)

    def context_for(self, columns: tuple[str, ...], *more: str) -> ReadContext:
        """The context for other columns; it says where some more, maybe nested, are in the files, too."""
        instant = self.instant
        schemas = instant.file_schemas
        used = dict.fromkeys([*columns, *(top_level(instant.schema, c) for c in columns_read(self.bound))])
        return ReadContext(
            location=self.storage.uri,
            index_location=self.index_storage.uri,
            schema=instant.schema,
            columns=columns,
            bound=self.bound,
            partitioning=instant.partitioning,
            known=self._columns_in_files(*more),
            names=names_in_files(instant, used),
            defaults=defaults_of(instant, used),
            strict=self.evidence.strict,
            parquet_options=parquet_options(instant.source),
            storage_options=options_of(self.storage, self.index_storage),
            deletes=self._deletes.rows,
            reader=self.reader,
            nested=tuple(s.nested for s in schemas) if any(s.nested for s in schemas) else (),
            unopened=frozenset(number for number, known in enumerate(schemas) if known.is_declared),
        )

    def _columns_in_files(self, *more: str) -> dict[str, ColumnInFiles]:
        columns = {c: self.evidence.in_files(c) for c in [*columns_of(self.bound), *more]}
        return {name: column for name, column in columns.items() if column is not None}

    # -- rows ---------------------------------------------------------------------------------------------------------

    def tables(self) -> Iterator[pa.Table]:
        """The matching rows, file by file, in no order; once there are `limit` of them, no more files."""
        self.check_evaluable()
        if self.limit == 0:
            return
        merging = self._merging(self._every_unit())
        self._deletes.check(self.pruned.units, ~merging.units)
        row_count = 0
        with self.step("rows", "rows") as step:
            for pairs in self._batches():
                pairs = [pair for pair in pairs if pair[0].path not in merging.paths]
                threads = THREADS if len(pairs) == 1 else 1
                rows_wanted = None if self.limit is None else self.limit - row_count
                read = partial(self._read, threads=threads, limit=rows_wanted)
                step.came_in += sum(rows_looked_at(*pair) for pair in pairs)
                for tables in self.side_by_side(read, pairs):
                    step.note = how_read(self.context)
                    for table in tables:
                        row_count += table.num_rows
                        step.went_out = row_count
                        yield table
                    if self.limit is not None and row_count >= self.limit:
                        return
            for table in merging.rows(self):
                step.came_in += table.num_rows
                found = matching(table, self.context)
                row_count += found.num_rows
                step.went_out, step.note = row_count, "slices by the reader of their own format"
                yield found
                if self.limit is not None and row_count >= self.limit:
                    return

    def _read(self, pair: Pair, threads: int, limit: int | None) -> list[pa.Table]:
        return list(read_matches(*pair, self.context, self.storage, threads, limit))

    def _batches(self) -> Iterator[list[Pair]]:
        """What rows are read of: with a limit a few files first, those first of which all rows match."""
        pruned = self.pruned
        if self.limit is None or "_fine" in self.__dict__ or pruned.all_rows_known or pruned.count < 2:
            yield [(task, groups) for task, groups in self.pairs_to_read() if groups.kept != []]
            return
        order = np.argsort(~(pruned.only_true & pruned.units.exact), kind="stable")
        start, size = 0, 1
        while start < len(order):
            chosen = np.zeros(pruned.count, dtype=bool)
            chosen[order[start : start + size]] = True
            tasks = self.tasks_of(pruned.selected(chosen))
            groups = row_groups_of(tasks, self.context, self.index_storage)
            pairs = [pair for pair in zip(tasks, groups, strict=True) if pair[1].kept != []]
            if pairs:
                yield pairs
            start, size = start + size, min(2 * size, _FILES_AT_ONCE_MAX)

    def pairs_to_read(self) -> list[Pair]:
        """What rows are read of. Where an index has named the very rows, row groups are not pruned."""
        if "_fine" in self.__dict__ or not self.pruned.all_rows_known:
            return self.pairs
        return [(task, RowGroups(None)) for task in self.tasks_of_whole_files()]

    def rows_of(self, pairs: list[Pair], context: ReadContext) -> Iterator[list[pa.Table]]:
        """The matching rows of some files, read side by side, a list a file."""
        return self.side_by_side(lambda pair: list(read_matches(*pair, context, self.storage)), pairs)

    def count(self, *, check: bool) -> int:
        """See `Plan.count`."""
        self.check_evaluable()
        pruned, units = self.pruned, self.pruned.units
        decided = pruned.only_true & units.exact
        row_counts = np.where(units.has_rows, to_numpy(units.files.column("row_count")), 0)
        total = int(row_counts[decided[units.unit_of]].sum())
        rows = pruned.rows_matching
        if rows is not None:  # an index has the matching rows of some files one by one
            of_files = rows.is_exact & units.is_alone & (units.exact & ~decided)[units.unit_of]
            total += int(rows.counts(row_counts)[of_files].sum())
            decided[units.unit_of[of_files]] = True
        self.check_files(self._every_unit(), every=check)
        if decided.all():
            return total
        merging = self._merging(~decided)
        self._deletes.check(units, ~decided & ~merging.units)
        tasks = self.tasks_of(pruned.selected(~decided & ~merging.units))
        pairs = list(zip(tasks, row_groups_of(tasks, self.context, self.index_storage), strict=True))
        with self.step("rows", "rows") as step:
            step.note = "counted"
            step.came_in = sum(sum(groups.row_counts or []) for _, groups in pairs)
            counted = sum(self.side_by_side(lambda pair: count_matches(*pair, self.context, self.storage), pairs))
            counted += sum(matching(rows, self.context).num_rows for rows in merging.rows(self))
            step.went_out = counted
        return total + counted

    def _merging(self, chosen: np.ndarray) -> _Merging:
        """The slices, of the units chosen (bool [units]), that the reader of their own format merges for us."""
        units = self.pruned.units
        if self.request.merged is None:
            return _Merging(units, np.zeros(units.count, dtype=bool), None)
        return _Merging(units, chosen & ~units.readable & ~self.readable(chosen), self.request.merged)

    def side_by_side(self, work: Callable[[T], R], items: list[T]) -> Iterator[R]:
        """The results of `work(item)`, in order; in threads where there is more than one item."""
        one_by_one = len(items) < 2 or THREADS < 2
        with self.noting_changes():
            yield from map(work, items) if one_by_one else ahead(work, items, THREADS, "skipstone-read")

    # -- whether rows can be read -------------------------------------------------------------------------------------

    def _every_unit(self) -> np.ndarray:
        return np.ones(self.pruned.units.count, dtype=bool)

    def readable_tasks(self, chosen: np.ndarray | None = None, *more: str) -> list[FileTask]:
        """The tasks with rows, of all kept units or of those chosen (bool [units]), with the fine statistics of some
        more columns.

        Raises PredicateError or NotReadableError where we may not read all of them ourselves, or not test their rows.
        """
        self.check_evaluable()
        self.check_readable(chosen)
        tasks = self.tasks if chosen is None else self.tasks_of(self.pruned.selected(chosen), *more)
        return [task for task in tasks if task.has_rows]

    def readable(self, chosen: np.ndarray) -> np.ndarray:
        """Of the kept units chosen (bool [units]), those whose rows we may read ourselves."""
        return self._deletes.readable(self.pruned.units, chosen)

    def check_evaluable(self) -> None:
        """Raises PredicateError naming a part of the predicate that cannot be evaluated on rows."""
        for part in unknowns(self.bound):
            raise PredicateError(f"rows cannot be tested by {part.text}: {part.reason}")

    def check_readable(self, chosen: np.ndarray | None = None) -> None:
        """Raises NotReadableError, naming them, for files of which we may not read the rows: of all kept units, or of
        those chosen (bool [units])."""
        self._deletes.check(self.pruned.units, self._every_unit() if chosen is None else chosen)

    def check_plain(self) -> None:
        """Raises NotReadableError, naming them, for kept files whose rows are more or fewer than what is in them."""
        self._deletes.refuse(self.pruned.units, ~self.pruned.units.readable)

    def check_files(self, chosen: np.ndarray, *, every: bool) -> None:
        """Compares files of some kept units (bool [units]) with what storage has: every one, or only those that were
        met as gone or changed before. Raises NotReadableError for one that is not what was indexed."""
        suspects = self.snapshot.suspects
        if not every:
            if not suspects:
                return
            paths = self.pruned.units.files.column("path")
            is_suspect = to_numpy(pc.is_in(paths, value_set=string_array(sorted(suspects))))
            chosen = chosen & any_of(self.pruned.units.unit_of, is_suspect, len(chosen))
        tasks = [task for task in self._whole_files(self.pruned.selected(chosen)) if task.has_rows]
        for entry in self.side_by_side(lambda task: check_identity(task, self.storage), tasks):
            suspects.discard(entry.path)  # it is back

    @contextmanager
    def noting_changes(self) -> Iterator[None]:
        """Around the reading of files: one that is gone or changed is remembered, and the error says what to do."""
        try:
            yield
        except NotReadableError as error:
            if error.changed is None:
                raise
            (path,) = error.paths
            self.snapshot.suspects.add(path)
            raise changed_file(path, error.changed, self.snapshot.remedy(path)) from error


def planned_again(kind: type[Planning], origin: Reopening | None, how: dict[str, Any], chosen: Any) -> Planning:
    """What another process pickled; `chosen` says which rows: a predicate, or keys."""
    assert origin is not None
    opener, arguments = origin
    return kind(ScanRequest.of(opener(*arguments), **how), chosen)


class _Merging:
    """Slices that are merged into rows by the reader of their own format.

    units    bool [units]: those of the slices
    paths    of their files
    """

    def __init__(self, units: Units, merged: np.ndarray, slice_rows: Callable[[], SliceRows] | None):
        self.units = merged
        of_files = merged[units.unit_of]
        self._files, self._slice_rows = units.files.filter(from_numpy(of_files)), slice_rows
        slice_of = units.unit_of if units.slice_of is None else units.slice_of[units.unit_of]
        self._slices = slice_of[of_files]
        self.paths = set(self._files.column("path").to_pylist())

    def rows(self, planning: Planning) -> Iterator[pa.Table]:
        """The rows of each slice, in the types of the table: the columns that are read and those of the predicate."""
        if not self.paths:
            return
        assert self._slice_rows is not None
        read = self._slice_rows()
        tasks = {task.path: task for task in planning.tasks_of_whole_files()}
        for number in dict.fromkeys(self._slices.tolist()):
            files = self._files.filter(from_numpy(self._slices == number)).select(["path", "kind", "merge"])
            for row in files.to_pylist():
                if row["kind"] == BASE:
                    with planning.noting_changes():
                        check_identity(tasks[row["path"]], planning.storage)
            yield as_in_table(read(files), planning.context, tasks[files.column("path")[0].as_py()])


class _Deletes:
    """The rows that the log of another format takes out of files, read where a plan comes to read such a file.

    rows    path -> int64, ascending: the rows that are no more, by their position in the file
    """

    def __init__(self, read: DeletedRows | None):
        self.rows: dict[str, np.ndarray] = {}
        self._read = read
        self._why = ""

    def readable(self, units: Units, chosen: np.ndarray) -> np.ndarray:
        """bool [units]: of those chosen (bool [units]), the ones whose rows we may read ourselves: nothing lies over
        their files, or it only takes rows out, and the log says which."""
        pending = chosen & ~units.readable
        if self._read is None or not pending.any():
            return chosen & units.readable
        of_files = pending[units.unit_of] & to_numpy(units.files.column("deletes").is_valid())
        paths = units.files.filter(from_numpy(of_files)).column("path").to_pylist()
        try:
            self.rows.update(self._read([path for path in paths if path not in self.rows]))
        except (StorageError, NotATableError, InvalidArgumentError) as error:
            self._why = f" ({error})"
        is_known = np.zeros(len(of_files), dtype=bool)
        is_known[of_files] = [path in self.rows for path in paths]
        return chosen & ~any_of(units.unit_of, pending[units.unit_of] & ~is_known, units.count)

    def check(self, units: Units, chosen: np.ndarray) -> None:
        """Raises NotReadableError, naming them, for files of the units chosen that we may not read ourselves."""
        self.refuse(units, chosen & ~self.readable(units, chosen))

    def refuse(self, units: Units, unreadable: np.ndarray) -> None:
        """Raises NotReadableError for the files of some units (bool [units]), if there are any."""
        if unreadable.any():
            paths = units.files.filter(from_numpy(unreadable[units.unit_of])).column("path").to_pylist()
            raise NotReadableError(
                f"{len(paths)} files belong to slices with logs or deletes that only their own format's reader can "
                f"apply, {paths[0]} among them; files() names all that are to be read{self._why}",
                paths=paths,
            )
