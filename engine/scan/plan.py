"""A plan: the result of `Table.scan`, worked out as far as it is asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, string_array, to_numpy
from ...caching import cached_property
from ...errors import InvalidArgumentError, PredicateError, SchemaError
from ..ahead import ahead
from ..ingest.leaves import top_level
from ..ingest.sources import parquet_options
from ..manifest.snapshot import Snapshot, Tail
from ..predicates import Node, brief, columns_of, prepare, unknowns
from ..storage import Counted, options_of
from ..timeline import Instant
from ..views import files_view
from .by_position import how_read, names_all_rows, rows_looked_at, rows_without_columns
from .columns import ColumnInFiles, defaults_of, names_in_files
from .dataset import dataset_of
from .deletes import DeletedRows, Deletes
from .fine import RowGroups, row_groups_of
from .gather import Gatherer
from .plan_tasks import tasks_of
from .prune import prune
from .pruned import Pruned
from .rows import ChangedFileError, check_identity, count_matches, empty, read_matches
from .slices import MODES, SNAPSHOT, any_of
from .steps import Step, Steps
from .tasks import FileTask, ReadContext
from .units import Units
from .verdicts import About

if TYPE_CHECKING:
    import pyarrow.dataset as ds

R = TypeVar("R")
T = TypeVar("T")
Pair = tuple[FileTask, RowGroups]
THREADS = min(8, os.cpu_count() or 1)


class Plan:
    """What a scan would read, and the rows themselves. Made by `Table.scan`.

    Nothing is read before it is asked for; what was worked out once is kept. Threads may share a plan.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        storage: Counted,
        index_storage: Counted,
        where: object = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        strict: bool = False,
        mode: str = SNAPSHOT,
        deleted: DeletedRows | None = None,
        reader: str = "pyarrow",
    ):
        if mode not in MODES:
            raise InvalidArgumentError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
        self.mode = mode
        schema = snapshot.instant.schema
        self.where = where
        self.bound: Node = prepare(where, schema)
        self.columns = _checked_columns(columns, schema)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise InvalidArgumentError(f"limit is a number of rows, 0 or more, not {limit!r}")
        self.limit = limit
        if reader != "pyarrow":
            from .by_duckdb import check_reader

            check_reader(reader, storage.uri)
        self.reader = reader
        self._index_storage, self._storage = index_storage, storage
        self._steps = self._no_steps()  # of reading rows
        self._snapshot = snapshot
        self._deletes = Deletes(deleted)
        self._gatherer = Gatherer(snapshot, strict)

    def __repr__(self) -> str:
        return f"<skipstone.Plan of {self.location!r} version {self.instant.version}: {brief(self.bound)}>"

    # -- what would be read -------------------------------------------------------------------------------------------

    def files(self) -> pa.Table:
        """The files that may hold a match, as `Table.files`: every live file of a unit that is kept."""
        return files_view(self.pruned.units.files, self._snapshot)

    def row_groups(self) -> pa.Table:
        """path, row_group (int32) of what would be read; row_group is null where a file's are not known: all of it."""
        paths: list[str] = []
        numbers: list[int | None] = []
        for task, groups in self.pairs:
            kept = [None] if groups.kept is None else groups.kept
            paths += [task.path] * len(kept)
            numbers += kept
        known = np.array([n is not None for n in numbers], dtype=bool)
        column = np.array([-1 if n is None else n for n in numbers], dtype=np.int32)
        return pa.table({"path": string_array(paths), "row_group": from_numpy(column, known)})

    @property
    def steps(self) -> list[Step]:
        """What each step did: those of planning, and, where rows were read or counted, that. See `explain`."""
        return [*self._pruned[1], *self._fine[1], *self._steps.steps]

    @property
    def remarks(self) -> list[str]:
        """What `explain` says below its table: predicates not understood, damaged runs, pending files."""
        from .explain import remarks

        return remarks(self)

    def reasons(self) -> pa.Table:
        """Why each file of `files()` is kept: path, leaf (a part of the predicate, as text), code (see
        `scan.reasons.Reason`: range_overlaps, no_statistics, not_covered, ...), lower and upper (text; the bounds that
        led to it, null where none are known). One row a file and leaf; `never_true` where another leaf keeps it,
        or another file of its slice.
        """
        from .explain import judged
        from .reasons import as_table

        units = self.pruned.units
        return as_table(judged(self), units.files.column("path"), units.unit_of)

    def explain(self, path: str | None = None) -> str:
        """The plan as a text for people: each step, what came in and went out, which index, and what it cost. With a
        path: why that file is, or is not, read."""
        from .explain import of_file, of_plan

        if path is not None:
            if not isinstance(path, str):
                raise InvalidArgumentError(f"a file is named by its path, as files() tells it, not {path!r}")
            return of_file(self, path)
        return of_plan(self)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def to_table(self) -> pa.Table:
        """Exactly the rows that match, at most `limit` of them, in no promised order.

        Raises NotReadableError for files that only their own format's reader can read (or that changed since they were
        indexed), PredicateError for a predicate that cannot be evaluated.
        """
        parts = list(self._tables())
        if not parts:
            return empty(self.context)
        if not self.columns:  # Arrow forgets how many rows tables without columns have when it joins them
            found = rows_without_columns(sum(part.num_rows for part in parts))
        else:
            found = pa.concat_tables(parts)
        return found if self.limit is None else found.slice(0, self.limit)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The same rows, batch by batch, as they are read."""
        left = self.limit
        for table in self._tables():
            if left is not None:
                table = table.slice(0, left)
                left -= table.num_rows
            yield from table.to_batches()
            if left == 0:
                return

    def to_reader(self) -> pa.RecordBatchReader:
        """The same rows as a stream of batches."""
        return pa.RecordBatchReader.from_batches(empty(self.context).schema, self.to_batches())

    def to_pandas(self, **options: Any) -> Any:
        """The same rows as a pandas DataFrame."""
        return self.to_table().to_pandas(**options)

    def dataset(self) -> ds.FileSystemDataset:
        """The surviving row groups as a pyarrow Dataset of the table's schema, for engines that take one. It holds
        every row of those row groups, whatever `columns` and `limit` say: repeat the predicate. (pyarrow's own
        `count_rows` without a filter counts whole files.)

        Raises NotReadableError for files that only their own format's reader can read, that changed, or that hold a
        column under a name that it had before a rename: a Dataset finds columns by their names.
        """
        self.check_plain()
        with self._noting_changes():
            return dataset_of(self.pairs, self.instant, self._storage)

    def count(self, *, check: bool = False) -> int:
        """How many rows match, exactly, whatever `limit` says: from the index alone where that decides.

        What the index decides it says of the version: files that were changed or removed behind the table since count
        as they were. With `check`, every file that may hold a match is looked at first (size, time or etag). A file
        that this handle has met as gone or changed is looked at again in any case, so rows and counts fail alike.

        Raises NotReadableError where `to_table` would, unless the index alone decides; PredicateError as `to_table`.
        """
        self.check_evaluable()
        units = self.pruned.units
        decided = self.pruned.only_true & units.exact
        rows = np.where(units.has_rows, to_numpy(units.files.column("row_count")), 0)
        total = int(rows[decided[units.unit_of]].sum())
        known = self.pruned.rows_matching
        if known is not None:  # an index has a file's matching rows one by one
            of_files = known.is_exact & units.is_alone & (units.exact & ~decided)[units.unit_of]
            total += int(known.counts(rows)[of_files].sum())
            decided[units.unit_of[of_files]] = True
        self.check_files(np.ones(units.count, dtype=bool), every=check)
        if decided.all():
            return total
        self._check_readable(~decided)
        tasks = self.tasks_of(self.pruned.selected(~decided))
        left = list(zip(tasks, row_groups_of(tasks, self.context, self._index_storage), strict=True))
        with self._steps.step("rows", "rows") as step:
            step.note = "counted"
            step.came_in = sum(sum(g.row_counts or []) for _, g in left)
            counted = sum(self._side_by_side(lambda p: count_matches(*p, self.context, self._storage), left))
            step.went_out = counted
        return total + counted

    def min(self, column: str, *, check: bool = False) -> Any:
        """The least value of a column in the rows that match, exactly, whatever `limit` says; None where no such row
        has one. Nulls do not take part; NaN is greater than all else, so it is the least only where nothing else is
        there; a zero is 0.0. Partition columns, and fields of structs by dotted path, have one too.

        A Python value, as `to_pylist` gives it; where Python has none (the year 12,000) the pyarrow Scalar. From the
        index alone where exact bounds decide, as of the version; otherwise only row groups are read whose bounds leave
        room for it. With `check`, the files that decide are looked at (size, time or etag), as are in any case those
        that this handle has met as gone or changed.

        Raises SchemaError for a column that is not there or has no order, PredicateError as `to_table`,
        NotReadableError where files that only their own format's reader can read might hold it, and where a file that
        decides is found gone or changed.
        """
        from .extremes import extreme

        return extreme(self, column, "min", check=check)

    def max(self, column: str, *, check: bool = False) -> Any:
        """The greatest value of a column in the rows that match: as `min`, with NaN greater than all else."""
        from .extremes import extreme

        return extreme(self, column, "max", check=check)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as an Arrow stream, so that DuckDB, polars and pyarrow take a plan as it is."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

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
        except ChangedFileError as error:
            self._snapshot.suspects.add(error.path)
            raise ChangedFileError(error.path, error.what, self._snapshot.remedy(error.path)) from error

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
