"""A planned scan: each level of a plan is computed when it is first needed.

    predicate -> remaining units (`prune.py`) -> a task per file -> row groups (`row_groups.py`) -> `planned_rows.py`

`Plan` is its public face; `explain`, the extremes and Spark use a `PlannedScan` itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import string_array, to_numpy
from ...base.caching import cached_property
from ...errors import NotReadableError, PredicateError, SchemaError
from ..indexes.columns import ColumnInFiles, defaults_of, names_in_files
from ..indexes.derived import names_by_path
from ..indexes.probe_results import ColumnEvidence, Outcomes
from ..observing import emit, is_observed
from ..parquet.leaves import top_level, with_optional_fields
from ..predicates import (
    Constant,
    Node,
    bind,
    brief,
    columns_of,
    columns_read,
    prepare,
    top_columns,
    unknowns,
    with_implied,
)
from ..state import Instant
from ..state.manifest import any_of
from ..state.snapshot import LogTail, Snapshot
from ..storage import options_of
from ..storage.threads import prefetched, side_by_side
from .file_reader import changed_file, check_identity
from .file_tasks import FileTask, Pair, ReadContext, RowGroups, TaskRows, tasks_of
from .prune import PruneRequest, StatsReader, prune, statistics_outcomes
from .request import ScanRequest, checked_columns, sort_keys
from .row_groups import row_groups_of
from .steps import Step, Steps, event_of, log_entry
from .units import Deletes, PruningState, Units

if TYPE_CHECKING:
    from ..handle import Reopening


R = TypeVar("R")
T = TypeVar("T")
THREADS = min(8, os.cpu_count() or 1)
_CHECKED_FILES_MAX = 500  # whose metadata decide an answer
_WHOLE_FILE_ROWS_MAX = 1 << 18  # smaller files that are near are read whole
_FAR_THREADS = 8  # where a file's bytes are waited for: as many as hold row groups in memory elsewhere


class PlannedScan:
    """The predicate, what pruning leaves of the table, the tasks and the rows of one scan.

    Results are cached. Threads may share one.

    bound            the predicate, bound to the schema; `now()` is already a literal
    columns          the names of the columns to read
    mode, limit, reader    as in `ScanRequest`
    order_by         what the rows are ordered by, of type `SortKey`
    storage          where the data files are
    index_storage    where the index is
    evidence         reads statistics
    """

    def __init__(
        self,
        request: ScanRequest,
        where: object = None,
        params: Sequence | Mapping | None = None,
    ):
        schema = request.snapshot.instant.schema
        self.request = request
        self.bound = prepare(where, schema, params)
        self.columns = checked_columns(request.columns, schema)
        self.mode, self.limit, self.reader = request.mode, request.limit, request.reader
        self.order_by = () if request.order_by is None else sort_keys(request.order_by, schema)
        self.storage, self.index_storage = request.storage, request.index_storage
        self._with_footers = self.storage.is_remote  # if reading a file's end is a request
        self.snapshot: Snapshot = request.snapshot
        self._reading_steps = self._no_steps()
        self.deletes = Deletes(request.deleted)
        self.evidence = StatsReader(request.snapshot, request.strict)
        self._with_paths = True

    def __repr__(self) -> str:
        return f"<skipstone.Plan of {self.location!r} version {self.instant.version}: {brief(self.bound)}>"

    def __reduce__(self) -> tuple:
        return reopened_scan, (PlannedScan, self.request.origin, self.request.options, self.bound)

    @property
    def predicate_text(self) -> str:
        """The predicate as text."""
        return brief(self.bound)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the keys of a look-up; none if a predicate chooses the rows."""
        return ()

    def with_keys(self, rows: pa.Table) -> pa.Table:
        """Those of some rows, in the table's types, that contain a key of a look-up, whose predicate may not."""
        return rows

    @cached_property
    def pruning(self) -> Node:
        """The predicate with what it implies of elements and expressions that an index covers: for pruning alone."""
        return with_implied(self.bound, names_by_path(self.instant))

    @property
    def instant(self) -> Instant:
        """The version that is scanned."""
        return self.snapshot.instant

    @property
    def tail(self) -> LogTail | None:
        """The changes that the log of another format has made since the version."""
        return self.snapshot.tail

    @property
    def location(self) -> str:
        """The table's directory."""
        return self.storage.uri

    @property
    def damaged(self) -> list[str]:
        """Index runs that could not be read and were ignored."""
        return list(dict.fromkeys(self.evidence.damaged))  # threads may meet one at the same time

    @property
    def steps(self) -> list[Step]:
        """The steps of planning and, if rows were read or counted, of reading."""
        return [*self._pruned[1], *self._fine[1], *self._reading_steps.steps]

    def step(self, name: str, unit: str) -> AbstractContextManager[Step]:
        """A step of reading, for `steps`."""
        return self._reading_steps.step(name, unit)

    def _no_steps(self) -> Steps:
        return Steps(self.index_storage, self.storage)

    # -- of some of its rows ------------------------------------------------------------------------------------------

    @property
    def accepts_filter(self) -> bool:
        """True if a further predicate chooses among the same rows. With a limit it does not."""
        return self.limit is None

    @property
    def is_whole(self) -> bool:
        """True if the scan returns every row of the version."""
        return self.accepts_filter and self.bound == Constant(True)

    def narrowed(self, where: Node, columns: Sequence[str] | None = None, limit: int | None = None) -> PlannedScan:
        """See `Plan.narrowed`. Raises SchemaError for a column that is none of this plan's."""
        for name in columns or ():
            if name not in self.columns:
                raise SchemaError(f"no column {name!r}; the plan's columns are {', '.join(self.columns)}")
        limits = [n for n in (self.limit, limit) if n is not None]
        columns = self.columns if columns is None else tuple(columns)
        request = replace(self.request, columns=columns, fields=None, limit=min(limits) if limits else None)
        own = pa.schema([self.instant.schema.field(name) for name in self.columns])  # another may be named like a path
        return self._again(request, bind(where, own))

    def of_columns(self, columns: Sequence[str]) -> PlannedScan:
        """The scan of all matching rows, in other columns and in no order."""
        request = replace(self.request, columns=columns, fields=None, limit=None, order_by=None)
        return self._again(request, Constant(True))

    def _again(self, request: ScanRequest, where: Node) -> PlannedScan:
        return PlannedScan(request, self.bound & where)

    def of_units(self, chosen: np.ndarray) -> PlannedScan:
        """The same scan of some of the kept units (bool [units])."""
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        for name in ("tasks", "_fine"):
            part.__dict__.pop(name, None)
        part.__dict__["_pruned"] = self.pruned.selected(chosen), self._pruned[1]
        return part

    def for_task_rows(self) -> PlannedScan:
        """The same scan for callers of `task_rows` alone, which read the files' paths, some at a time."""
        planning = PlannedScan(self.request, self.bound)
        planning._with_paths = False
        return planning

    # -- files --------------------------------------------------------------------------------------------------------

    @property
    def pruned(self) -> PruningState:
        """What the coarse indexes keep."""
        return self._pruned[0]

    @cached_property
    def _pruned(self) -> tuple[PruningState, list[Step]]:
        """The same, and its steps. If several threads compute it, the results of one of them are kept."""
        steps = self._no_steps()
        remaining = self._prune(steps)
        if self.request.scan_log is not None or is_observed():
            self._publish(remaining, steps.steps)
        return remaining, steps.steps

    def _publish(self, remaining: PruningState, steps: list[Step]) -> None:
        request = self.request
        if is_observed():
            emit(event_of(request, self.predicate_text, remaining, steps))
        if request.scan_log is not None:
            entry = partial(log_entry, request, self.columns, self.order_by, remaining, steps)
            predicate = Constant(True) if self.key_columns else self.bound  # keys are many: the log has their columns
            request.scan_log.note(predicate, self.key_columns, entry)

    def _prune(self, steps: Steps) -> PruningState:
        return prune(PruneRequest(self.pruning, self.mode, with_paths=self._with_paths), self.evidence, steps)

    def column_bounds(self, column: str, units: Units | None = None) -> ColumnEvidence:
        """The evidence about one column, for the units that are kept or for others."""
        units = self.pruned.units if units is None else units
        return [(units.of_units(e), units.every_file(s)) for e, s in self.evidence.of_files(column, units.files)]

    def statistics_outcomes(self, units: Units) -> Outcomes:
        """What statistics and partition values alone leave possible in some units, kept or not."""
        return statistics_outcomes(self.pruning, units, self.evidence)

    @cached_property
    def tasks(self) -> list[FileTask]:
        """One task per file that may match. With the context, it is all that an executor needs."""
        return self.tasks_of(self.pruned)

    def tasks_of(self, pruned: PruningState, *more: str) -> list[FileTask]:
        """One task per file of these units, which are some of `pruned`. Tasks contain the positions of the fine
        statistics of the predicate's columns, and of some more."""
        columns = [*columns_of(self.bound), *more]
        return tasks_of(self.snapshot, self.evidence, pruned, columns, with_footers=self._with_footers)

    def tasks_to_read(self, pruned: PruningState, *more: str) -> list[FileTask]:
        """The same if the rows are read in any case. Of files of which all rows match, statistics of row groups say
        nothing, and of small ones that are near they take longer than they save: such tasks contain no positions."""
        units, is_far = pruned.units, self.storage.is_remote or self.index_storage.is_remote
        is_whole = np.zeros(len(pruned.ids), dtype=bool)
        if not is_far and not pruned.fine:
            is_whole = to_numpy(units.files.column("row_count")) < _WHOLE_FILE_ROWS_MAX
        if not more and pruned.rows_to_read is None:
            is_whole |= pruned.only_true[units.unit_of]
        if is_whole.all() or pruned.has_all_rows:
            return self.tasks_of_whole_files(pruned)
        tasks = self.tasks_of(pruned, *more)
        return [replace(task, fine=()) if whole else task for task, whole in zip(tasks, is_whole, strict=True)]

    def task_rows(self, files: slice) -> TaskRows:
        """The same for some of the kept files, as columns."""
        return TaskRows.of(self.snapshot, self.evidence, self.pruned, columns_of(self.bound), files)

    def tasks_of_whole_files(self, pruned: PruningState | None = None) -> list[FileTask]:
        """One task per file that may match, or per file of `pruned`, without positions of fine statistics."""
        pruned = self.pruned if pruned is None else pruned
        return tasks_of(self.snapshot, self.evidence, pruned, (), with_fine=False, with_footers=self._with_footers)

    # -- row groups ---------------------------------------------------------------------------------------------------

    @property
    def pairs(self) -> list[Pair]:
        """The task of each kept file, with its row groups that may match."""
        return self._fine[0]

    @property
    def is_fine_pruned(self) -> bool:
        """True once row groups were pruned."""
        return "_fine" in self.__dict__

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
        """What the readers of all files share. If only some fields of a struct are read, the others may be missing."""
        context, fields = self.context_for(self.columns), self._fields_used()
        columns = [with_optional_fields(f, fields[f.name]) if f.name in fields else f for f in context.schema]
        return replace(context, schema=pa.schema(columns), fields=fields)

    def _fields_used(self) -> dict[str, tuple[str, ...]]:
        """By struct: the fields that are returned, tested or ordered by, if these are less than the whole struct."""
        if self.request.fields is None:
            return {}
        schema = self.instant.schema
        fields: dict[str, list[str]] = {}
        for path in (*self.request.fields, *columns_read(self.bound), *(key.column for key in self.order_by)):
            fields.setdefault(top_level(schema, path), []).append(path)
        return {name: tuple(dict.fromkeys(paths)) for name, paths in fields.items() if name not in paths}

    def context_for(self, columns: tuple[str, ...], *more: str) -> ReadContext:
        """The context for other columns. It also locates `more` columns, which may be nested, in the files."""
        instant = self.instant
        schemas = instant.file_schemas
        used = dict.fromkeys([*columns, *top_columns(self.bound)])
        return ReadContext(
            location=self.storage.uri,
            index_location=self.index_storage.uri,
            schema=instant.schema,
            columns=columns,
            bound=self.bound,
            derived=names_by_path(instant),
            partitioning=instant.partitioning,
            columns_in_files=self._columns_in_files(*more),
            names=names_in_files(instant, used),
            defaults=defaults_of(instant, used),
            strict=self.evidence.strict,
            storage_options=options_of(self.storage, self.index_storage),
            deletes=self.deletes.rows,
            nested=tuple(s.nested for s in schemas) if any(s.nested for s in schemas) else (),
            unopened=frozenset(number for number, schema in enumerate(schemas) if schema.is_declared),
        )

    def _columns_in_files(self, *more: str) -> dict[str, ColumnInFiles]:
        columns = {c: self.evidence.in_files(c) for c in [*columns_of(self.bound), *more]}
        return {name: column for name, column in columns.items() if column is not None}

    # -- rows ---------------------------------------------------------------------------------------------------------

    def pairs_to_read(self, pruned: PruningState | None = None) -> list[Pair]:
        """The files with rows that may match, and their row groups, of all kept units or of some. Row groups are not
        pruned if an index named exactly the rows, or if pruning takes longer than reading what it would skip."""
        if pruned is None and self.is_fine_pruned:
            pairs = self.pairs
        else:
            tasks = self.tasks_to_read(self.pruned if pruned is None else pruned)
            if any(task.fine for task in tasks):
                groups = row_groups_of(tasks, self.context, self.index_storage)
            else:
                groups = [RowGroups.all_of(task) for task in tasks]
            pairs = list(zip(tasks, groups, strict=True))
        return [pair for pair in pairs if pair[1].kept != []]

    def side_by_side(self, work: Callable[[T], R], items: Sequence[T]) -> Generator[R]:
        """The results of `work(item)`, in order; in threads if there is more than one item."""
        threads = _FAR_THREADS if self.storage.is_remote else THREADS
        with self.reporting_changes():
            yield from prefetched(work, items, threads, "skipstone-read") if len(items) > 1 else map(work, items)

    # -- whether rows can be read -------------------------------------------------------------------------------------

    def readable_tasks(self, chosen: np.ndarray | None = None, *more: str, is_read: bool = False) -> list[FileTask]:
        """The tasks with rows, of all kept units or of those chosen (bool [units]), with the fine statistics of some
        more columns; `is_read`: as `tasks_to_read`.

        Raises PredicateError if their rows cannot be tested, NotReadableError if only another reader can read them.
        """
        self.check_evaluable()
        self.check_readable(chosen)
        tasks_of = self.tasks_to_read if is_read else self.tasks_of
        tasks = self.tasks if chosen is None else tasks_of(self.pruned.selected(chosen), *more)
        return [task for task in tasks if task.has_rows]

    def readable(self, chosen: np.ndarray) -> np.ndarray:
        """Of the kept units chosen (bool [units]), those whose rows Skipstone can read."""
        return self.deletes.readable(self.pruned.units, chosen)

    def check_evaluable(self) -> None:
        """Raises PredicateError naming a part of the predicate that cannot be evaluated on rows."""
        for part in unknowns(self.bound):
            raise PredicateError(f"rows cannot be tested by {part.text}: {part.reason}")

    def check_readable(self, chosen: np.ndarray | None = None) -> None:
        """Raises NotReadableError, which names the files, if Skipstone cannot read the rows of some: of all kept
        units or of those chosen (bool [units])."""
        units = self.pruned.units
        self.deletes.check(units, np.ones(units.count, dtype=bool) if chosen is None else chosen)

    def check_plain(self) -> None:
        """Raises NotReadableError, which names the files, if logs or deletes apply to kept files."""
        self.deletes.refuse(self.pruned.units, ~self.pruned.units.readable)

    def check_files(self, chosen: np.ndarray, *, every: bool | None) -> None:
        """Compare files of some kept units (bool [units]) with storage: all of them, or only those that were found
        missing or changed before. None: all of them if they are few and in a directory on a local disk.

        Raises NotReadableError if a file is not the one that was indexed.
        """
        suspects, is_asked = self.snapshot.suspects, every is not None
        if every is None:
            file_count = int(chosen[self.pruned.units.unit_of].sum())
            every = self.request.checks_files and file_count <= _CHECKED_FILES_MAX
        if not every:
            if not suspects:
                return
            paths = self.pruned.units.files.column("path")
            is_suspect = to_numpy(pc.is_in(paths, value_set=string_array(sorted(suspects))))
            chosen = chosen & any_of(self.pruned.units.unit_of, is_suspect, len(chosen))
        tasks = tasks_of(self.snapshot, self.evidence, self.pruned.selected(chosen), (), with_fine=False)
        tasks = [task for task in tasks if task.has_rows]
        if every and not is_asked:  # what was only declared need not be there
            unopened = self.context_for(()).unopened
            tasks = [task for task in tasks if task.schema_id not in unopened]
        with self.reporting_changes():
            look = partial(check_identity, storage=self.storage)
            for entry in side_by_side(self.storage, look, tasks, "skipstone-check"):
                suspects.discard(entry.path)  # it is back

    @contextmanager
    def reporting_changes(self) -> Iterator[None]:
        """Around the reading of files: remember a file that is missing or changed. The error says what to do."""
        try:
            yield
        except NotReadableError as error:
            if error.changed is None:
                raise
            (path,) = error.paths
            self.snapshot.suspects.add(path)
            raise changed_file(path, error.changed, self.snapshot.remedy(path)) from error


def reopened_scan(
    scan: type[PlannedScan], origin: Reopening | None, options: dict[str, Any], chosen: Any
) -> PlannedScan:
    """The scan that another process pickled. `chosen` is its predicate, or its keys."""
    assert origin is not None
    opener, arguments = origin
    return scan(ScanRequest.of(opener(*arguments), **options), chosen)
