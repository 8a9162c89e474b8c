"""A plan: the result of `Table.scan`, worked out as far as it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...arrays import from_numpy, string_array, to_numpy
from ...errors import InvalidArgumentError, SchemaError
from ..predicates import Constant, Node, parse
from ..views import files_view
from .file_reader import empty, rows_without_columns
from .fine import row_groups_of
from .fragments import dataset_of
from .planning import Planning, ScanRequest
from .rows import count_matches

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from .lake_dataset import LakeDataset


class Plan(Planning):
    """What a scan would read, and the rows themselves. Made by `Table.scan`.

    Nothing is read before it is asked for; what was worked out once is kept. Threads may share a plan.
    """

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

    # -- of it --------------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The columns that its rows have."""
        return empty(self.context).schema

    @property
    def is_whole(self) -> bool:
        """True where every row of the version is meant."""
        return self.can_narrow and self.bound == Constant(True)

    @property
    def can_narrow(self) -> bool:
        """True where a further predicate chooses among the same rows: not where a limit leaves some of them out."""
        return self.limit is None

    def narrowed(self, where: Node, columns: Sequence[str] | None = None, limit: int | None = None) -> Plan:
        """A plan for those of its rows that match a further predicate, in some of its columns, planned anew."""
        for name in columns or ():
            if name not in self.columns:
                raise SchemaError(f"no column {name!r}; the plan's columns are {', '.join(self.columns)}")
        limits = [n for n in (self.limit, limit) if n is not None]
        request = replace(
            self.request,
            columns=self.columns if columns is None else tuple(columns),
            limit=min(limits) if limits else None,
        )
        return self._planned(request, where)

    def _planned(self, request: ScanRequest, where: Node) -> Plan:
        return Plan(request, parse(self.where) & where)

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

    def dataset(self) -> LakeDataset:
        """Exactly its rows, as a pyarrow Dataset: what an engine filters and projects it by narrows the plan. See
        `Table.dataset`."""
        from .lake_dataset import LakeDataset

        return LakeDataset(self)

    def fragments(self) -> ds.FileSystemDataset:
        """The surviving row groups as a pyarrow Dataset of the table's schema, for engines that read Parquet. It holds
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
