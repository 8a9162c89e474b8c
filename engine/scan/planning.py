"""Planning: the levels of a plan, each worked out when it is first asked for, and the rows that it reads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import string_array, to_numpy
from ...caching import cached_property
from ...errors import InvalidArgumentError, NotReadableError, PredicateError, SchemaError
from ..indexes.columns import ColumnInFiles, defaults_of, names_in_files
from ..indexes.outcomes import About
from ..lakes.log import parquet_options
from ..parquet.leaves import top_level
from ..predicates import Node, brief, columns_of, prepare, unknowns
from ..state import Instant
from ..state.slices import MODES, SNAPSHOT, any_of
from ..state.snapshot import Snapshot, Tail
from ..storage import Counted, options_of
from ..storage.prefetch import ahead
from .by_position import how_read, names_all_rows, rows_looked_at
from .deletes import DeletedRows, Deletes
from .file_reader import changed_file, check_identity
from .fine import RowGroups, row_groups_of
from .gather import Gatherer
from .plan_tasks import tasks_of
from .prune import prune
from .rows import read_matches
from .steps import Step, Steps
from .survivors import Pruned
from .tasks import FileTask, ReadContext
from .units import Units

if TYPE_CHECKING:
    from ..handle import Handle

R = TypeVar("R")
T = TypeVar("T")
Pair = tuple[FileTask, RowGroups]
THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class ScanRequest:
    """What is scanned, and how: all that a plan takes but its predicate.

    deleted    asks which rows the log of another format takes out of files; None where no log owns them
    columns    names to read, in this order; None for all
    limit      at most so many rows; None for all
    mode       "snapshot" or "read_optimized"
    reader     what reads few rows of many: "pyarrow" or "duckdb"

    Raises InvalidArgumentError for a mode, limit or reader that is none.
    """

    snapshot: Snapshot
    storage: Counted
    index_storage: Counted
    strict: bool = False
    deleted: DeletedRows | None = None
    columns: Sequence[str] | None = None
    limit: int | None = None
    mode: str = SNAPSHOT
    reader: str = "pyarrow"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidArgumentError(f"mode is one of {', '.join(MODES)}, not {self.mode!r}")
        limit = self.limit
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise InvalidArgumentError(f"limit is a number of rows, 0 or more, not {limit!r}")
        if self.reader != "pyarrow":
            from .by_duckdb import check_reader

            check_reader(self.reader, self.storage.uri)

    @classmethod
    def of(cls, handle: Handle, columns: Sequence[str] | None = None, **how: Any) -> ScanRequest:
        """A request of what a handle pins; `how`: limit, mode, reader."""
        log = handle.log
        return cls(
            handle.snapshot,
            handle.storage,
            handle.index_storage,
            handle.strict,
            None if log is None else partial(log.deleted_rows, handle.log_position),
            columns,
            **how,
        )


class Planning:
    """What `Plan`, `explain` and the extremes share: the predicate, what pruning left of the table, its tasks and rows.

    What was worked out once is kept. Threads may share one.
    """

    def __init__(
        self,
        request: ScanRequest,
        where: object = None,
    ):
        self.mode, self.limit, self.reader = request.mode, request.limit, request.reader
        schema = request.snapshot.instant.schema
        self.where = where
        self.bound: Node = prepare(where, schema)
        self.columns = _checked_columns(request.columns, schema)
        self._index_storage, self._storage = request.index_storage, request.storage
        self._steps = self._no_steps()  # of reading rows
        self._snapshot = request.snapshot
        self._deletes = Deletes(request.deleted)
        self._gatherer = Gatherer(request.snapshot, request.strict)

    def __repr__(self) -> str:
        return f"<skipstone.Plan of {self.location!r} version {self.instant.version}: {brief(self.bound)}>"

    @property
    def steps(self) -> list[Step]:
        """What each step did: those of planning, and, where rows were read or counted, that. See `explain`."""
        return [*self._pruned[1], *self._fine[1], *self._steps.steps]

    # -- for explain --------------------------------------------------------------------------------------------------

    @property
    def asked(self) -> str:
        """What the rows are chosen by, as a text."""
        return brief(self.bound)

    @property
    def instant(self) -> Instant:
        """The version that is scanned."""
        return self._snapshot.instant

    @property
    def tail(self) -> Tail | None:
        """What the log of another format has gone on by since the version."""
        return self._snapshot.tail

    @property
    def location(self) -> str:
        """The table's directory."""
        return self._storage.uri

    @property
    def damaged(self) -> list[str]:
        """Index runs that could not be read, and were left out."""
        return list(dict.fromkeys(self._gatherer.damaged))  # threads may find one at once

    def live_files(self) -> pa.Table:
        """Every live file of the version, as `Snapshot.files`."""
        return self._snapshot.files()

    @property
    def filtered_columns(self) -> list[str]:
        """Columns that have a filter index."""
        return [self.instant.path_of(i.columns[0]) for i in self.instant.indexes if i.kind == "bloom"]

    @property
    def located_columns(self) -> list[str]:
        """Columns in the keys of secondary indexes."""
        keys = [index.columns for index in self.instant.indexes if index.kind == "secondary"]
        return [self.instant.path_of(column) for key in keys for column in key]

    @property
    def pairs(self) -> list[Pair]:
        """The task of each kept file, with the row groups that are left of it."""
        return self._fine[0]

    # -- how ----------------------------------------------------------------------------------------------------------

    @property
    def pruned(self) -> Pruned:
        """What the coarse indexes keep."""
        return self._pruned[0]

    @cached_property
    def _pruned(self) -> tuple[Pruned, list[Step]]:
        """The same, and the steps that led there: where threads work it out at once, those of the one that counts."""
        steps = self._no_steps()
        return self._prune(steps), steps.steps

    def _prune(self, steps: Steps) -> Pruned:
        return prune(self._snapshot, self.bound, self._gatherer, steps, self.mode)

    def _no_steps(self) -> Steps:
        return Steps(self._index_storage, self._storage)

    @cached_property
    def context(self) -> ReadContext:
        """What every file of this plan is read with."""
        return self.context_for(self.columns)

    def context_for(self, columns: tuple[str, ...], *more: str) -> ReadContext:
        """What files are read with for other columns; where some more, maybe nested, lie in them is known, too."""
        instant = self._snapshot.instant
        used = dict.fromkeys([*columns, *(top_level(instant.schema, c) for c in columns_of(self.bound))])
        return ReadContext(
            location=self._storage.uri,
            index_location=self._index_storage.uri,
            schema=instant.schema,
            columns=columns,
            bound=self.bound,
            partitioning=instant.partitioning,
            known=self.known_columns(*more),
            names=names_in_files(instant, used),
            defaults=defaults_of(instant, used),
            strict=self._gatherer.strict,
            parquet_options=parquet_options(instant.source),
            storage_options=options_of(self._storage, self._index_storage),
            deletes=self._deletes.rows,
            reader=self.reader,
            unopened=frozenset(number for number, known in enumerate(instant.file_schemas) if known.is_told),
        )

    @cached_property
    def tasks(self) -> list[FileTask]:
        """One task a file that may match: all that an executor needs, besides the context."""
        return self.tasks_of(self.pruned)

    def tasks_of(self, pruned: Pruned, *more: str) -> list[FileTask]:
        """One task a file of these units, which are some of `pruned`; it says where the fine statistics of the
        predicate's columns lie, and those of some more."""
        return tasks_of(self._snapshot, self._gatherer, pruned, [*columns_of(self.bound), *more])

    def tasks_of_whole_files(self) -> list[FileTask]:
        """One task a file that may match, for who asks nothing of its row groups."""
        return tasks_of(self._snapshot, self._gatherer, self.pruned, (), with_fine=False)

    @property
    def storage(self) -> Counted:
        """Where the data files lie."""
        return self._storage

    @property
    def index_storage(self) -> Counted:
        """Where the index lies."""
        return self._index_storage

    def about(self, column: str, units: Units | None = None) -> About:
        """The evidence about one column, for the units that are kept or for others."""
        units = self.pruned.units if units is None else units
        return [(units.of_units(e), units.every_file(s)) for e, s in self._gatherer.of_files(column, units.files)]

    def known_columns(self, *more: str) -> dict[str, ColumnInFiles]:
        """Where the columns of the predicate, and some more, lie in the files; those that no index speaks of are left
        out."""
        known = {c: self._gatherer.column(c) for c in [*columns_of(self.bound), *more]}
        return {name: found for name, found in known.items() if found is not None}

    def step(self, name: str, unit: str) -> AbstractContextManager[Step]:
        """A step of this plan: what is done within is told by `explain`."""
        return self._steps.step(name, unit)

    def rows_of(self, pairs: list[Pair], context: ReadContext) -> Iterator[list[pa.Table]]:
        """The matching rows of some files, read side by side, a list a file."""
        return self._side_by_side(lambda pair: list(read_matches(*pair, context, self._storage)), pairs)

    @property
    def _to_read(self) -> list[Pair]:
        """What rows are read of. Where an index has named the very rows, row groups are not asked about."""
        if "_fine" in self.__dict__ or not names_all_rows(self.pruned):
            return self.pairs
        return [(task, RowGroups(None)) for task in self.tasks_of_whole_files()]

    @cached_property
    def _fine(self) -> tuple[list[Pair], list[Step]]:
        """Each file's task with its row groups, and the step that led there."""
        tasks, steps = self.tasks, self._no_steps()
        if not tasks:
            return [], []
        with steps.step("row groups", "row groups") as step:
            groups = row_groups_of(tasks, self.context, self._index_storage)
            known = [g for g in groups if g.kept is not None]
            step.index = "fine statistics" + "".join(f", bloom({c})" for c in self.pruned.fine)
            step.came_in = sum(g.total or 0 for g in known)
            step.went_out = sum(len(g.kept or []) for g in known)
            step.uncovered = len(groups) - len(known)
            if step.uncovered:
                step.note = f"{step.uncovered} files are read whole: their row groups are not known"
        return list(zip(tasks, groups, strict=True)), steps.steps

    def readable_tasks(self) -> list[FileTask]:
        """`tasks`, once it is certain that we may read all of them ourselves, and test their rows.

        Raises PredicateError or NotReadableError where that is not so.
        """
        self.check_evaluable()
        self._check_readable(np.ones(self.pruned.units.count, dtype=bool))
        return [task for task in self.tasks if task.has_rows]

    def readable_tasks_of(self, chosen: np.ndarray) -> list[FileTask]:
        """The same of some of the kept units (bool [units])."""
        self.check_evaluable()
        self._check_readable(chosen)
        return [task for task in self.tasks_of(self.pruned.selected(chosen)) if task.has_rows]

    def _tables(self) -> Iterator[pa.Table]:
        self.check_evaluable()
        if self.limit == 0:
            return
        self._check_readable(np.ones(self.pruned.units.count, dtype=bool))
        left = [(t, g) for t, g in self._to_read if g.kept != []]
        threads = THREADS if len(left) == 1 else 1

        def read(pair: Pair) -> list[pa.Table]:
            return list(read_matches(*pair, self.context, self._storage, threads))

        found = 0
        with self._steps.step("rows", "rows") as step:
            step.came_in = sum(rows_looked_at(*pair) for pair in left)
            for tables in self._side_by_side(read, left):
                step.note = how_read(self.context)
                for table in tables:
                    found += table.num_rows
                    step.went_out = found
                    yield table
                if self.limit is not None and found >= self.limit:
                    return

    def check_files(self, chosen: np.ndarray, *, every: bool) -> None:
        """Looks at the files of some kept units (bool [units]): at every one, or only at those that were met as gone or
        changed before. Raises NotReadableError for one that is not what was indexed."""
        suspects = self._snapshot.suspects
        if not every:
            if not suspects:
                return
            files = self.pruned.units.files.column("path")
            met = to_numpy(pc.is_in(files, value_set=string_array(sorted(suspects))))
            chosen = chosen & any_of(self.pruned.units.unit_of, met, len(chosen))
        tasks = tasks_of(self._snapshot, self._gatherer, self.pruned.selected(chosen), (), with_fine=False)
        tasks = [task for task in tasks if task.has_rows]
        for entry in self._side_by_side(lambda task: check_identity(task, self._storage), tasks):
            suspects.discard(entry.path)  # it is back

    def _side_by_side(self, work: Callable[[T], R], items: list[T]) -> Iterator[R]:
        """The results of `work(item)`, in order; in threads where there is more than one. A file that turns out gone or
        changed is remembered, and the error says what to do."""
        one_by_one = len(items) < 2 or THREADS < 2
        with self._noting_changes():
            yield from map(work, items) if one_by_one else ahead(work, items, THREADS, "skipstone-read")

    @contextmanager
    def _noting_changes(self) -> Iterator[None]:
        try:
            yield
        except NotReadableError as error:
            if error.changed is None:
                raise
            (path,) = error.paths
            self._snapshot.suspects.add(path)
            raise changed_file(path, error.changed, self._snapshot.remedy(path)) from error

    def check_evaluable(self) -> None:
        """Raises PredicateError naming a part of the predicate that cannot be evaluated on rows."""
        for part in unknowns(self.bound):
            raise PredicateError(f"rows cannot be tested by {part.text}: {part.reason}")

    def check_plain(self) -> None:
        """Raises NotReadableError, naming them, for kept files whose rows are more or fewer than what is in them."""
        self._deletes.refuse(self.pruned.units, ~self.pruned.units.readable)

    def readable(self, asked: np.ndarray) -> np.ndarray:
        """Of the kept units asked for (bool [units]), those whose rows we may read ourselves."""
        return self._deletes.readable(self.pruned.units, asked)

    def _check_readable(self, asked: np.ndarray) -> None:
        self._deletes.check(self.pruned.units, asked)


def _checked_columns(columns: Sequence[str] | None, schema: pa.Schema) -> tuple[str, ...]:
    if columns is None:
        return tuple(schema.names)
    if isinstance(columns, str):
        columns = [columns]
    if not isinstance(columns, Sequence):
        raise SchemaError(f"columns= is a list of column names, not {columns!r}")
    for name in columns:
        if not isinstance(name, str) or schema.get_field_index(name) < 0:
            raise SchemaError(f"no column {name!r}; the table's columns are {', '.join(schema.names)}")
    return tuple(columns)
