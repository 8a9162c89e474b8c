"""A plan: the result of `Table.scan`, computed when it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import from_numpy, string_array
from ...errors import InvalidArgumentError, SchemaError, is_integer
from ..parquet.leaves import nested_column, top_level
from ..predicates import Constant
from .file_reader import empty, rows_without_columns
from .planned_rows import count, positions, tables
from .planning import PlannedScan
from .steps import Step

if TYPE_CHECKING:
    import polars as pl
    import pyarrow.dataset as ds
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from ..predicates import Node
    from .lake_dataset import LakeDataset


class Plan:
    """The plan of a scan, and its rows. `Table.scan` returns it.

    Nothing is read before it is needed, and results are cached. Threads may share a plan.

    planning    internal, it may change
    """

    def __init__(self, planning: PlannedScan, columns: tuple[str, ...] | None = None):
        """`columns`: fields of structs by dotted path, and columns, of those that the planning reads."""
        self.planning, self._columns = planning, columns

    def __repr__(self) -> str:
        return repr(self.planning)

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self._selected(empty(self.planning.context)).schema

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of the rows. The name of a field of a struct is its dotted path."""
        return self.planning.columns if self._columns is None else self._columns

    @property
    def limit(self) -> int | None:
        """The greatest number of rows that are returned; None for all."""
        return self.planning.limit

    @property
    def bound(self) -> Any:
        """The predicate, bound to the table's schema; `str` of it is SQL text."""
        return self.planning.bound

    @property
    def damaged(self) -> list[str]:
        """Paths of index runs that could not be read and were ignored."""
        return self.planning.damaged

    def narrowed(self, where: Node, columns: Sequence[str] | None = None, limit: int | None = None) -> Plan:
        """Return a new plan for the rows that also match a further predicate, in some of the columns."""
        if self._columns is None:
            return Plan(self.planning.narrowed(where, columns, limit))
        names = self._columns if columns is None else tuple(columns)
        for name in names:
            if name not in self._columns:
                raise SchemaError(f"no column {name!r}; the plan's columns are {', '.join(self._columns)}")
        read = dict.fromkeys(top_level(self.planning.instant.schema, name) for name in names)
        return Plan(self.planning.narrowed(where, list(read), limit), names)

    # -- what would be read -------------------------------------------------------------------------------------------

    def files(self) -> pa.Table:
        """The files that may contain a match, as `Table.files`: every live file of a slice that is kept."""
        from ..views import files_view

        return files_view(self.planning.pruned.units.files, self.planning.snapshot)

    def row_groups(self) -> pa.Table:
        """The row groups to read: path, row_group (int32). If the row groups of a file are unknown, the file has one
        row with a null row_group."""
        paths: list[str] = []
        numbers: list[int] = []
        for task, groups in self.planning.pairs:
            kept = [-1] if groups.kept is None else groups.kept
            paths += [task.path] * len(kept)
            numbers += kept
        column = np.array(numbers, dtype=np.int32)
        return pa.table({"path": string_array(paths), "row_group": from_numpy(column, column >= 0)})

    def positions(self) -> pa.Table:
        """The positions of all matching rows, ignoring `limit`: path, and row (int64), counted from 0 in the file and
        including deleted rows. Raises as `to_table`, and NotReadableError for rows merged from several files."""
        of_files = positions(self.planning)
        paths = [pa.repeat(pa.scalar(path, pa.string()), len(rows)) for path, rows in of_files.items()]
        rows = [from_numpy(rows) for rows in of_files.values()]
        return pa.table([pa.chunked_array(paths, pa.string()), pa.chunked_array(rows, pa.int64())], ["path", "row"])

    def affected_files(self) -> pa.Table:
        """The files that contain a match, as `files`. Raises as `positions`."""
        files = self.files()
        return files.filter(pc.is_in(files.column("path"), value_set=string_array(list(positions(self.planning)))))

    # -- why ----------------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> list[Step]:
        """The steps of planning and, if rows were read or counted, of reading. See `explain`."""
        return self.planning.steps

    @property
    def remarks(self) -> list[str]:
        """The lines of `explain` below its table: parts that prune nothing, damaged runs, quarantined files."""
        from .explain import remarks

        return remarks(self.planning)

    def reasons(self) -> pa.Table:
        """Why each file of `files()` is kept: path, leaf (a part of the predicate, as text), code (see
        `scan.reasons.Reason`: range_overlaps, no_statistics, not_covered, ...), lower and upper (text: the bounds that
        decided, null if there are none). One row per file and leaf; `never_true` if another leaf, or another file of
        the slice, keeps the file."""
        from .explain import part_reasons
        from .reasons import as_table

        units = self.planning.pruned.units
        return as_table(part_reasons(self.planning), units.files.column("path"), units.unit_of)

    def explain(self, path: str | None = None) -> str:
        """Return the plan as a text: for each step how many files, row groups and rows it received and kept, which
        index it used, and what it cost. With a path: why that file is read, or is not."""
        from .explain import of_file, of_plan

        if path is not None:
            if not isinstance(path, str):
                raise InvalidArgumentError(f"a file is named by its path, as in files(), not {path!r}")
            return of_file(self.planning, path)
        return of_plan(self.planning)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def to_table(self) -> pa.Table:
        """Return exactly the matching rows: at most `limit`, sorted by `order_by` if it is set.

        Raises NotReadableError for files that only their own format's reader can read (or that changed since they were
        indexed), PredicateError for a predicate that cannot be evaluated.
        """
        parts = list(self._tables(at_once=True))
        if not parts:
            return self._selected(empty(self.planning.context))
        if not self.columns:  # Arrow forgets how many rows tables without columns have when it joins them
            rows = rows_without_columns(sum(part.num_rows for part in parts))
        else:
            rows = pa.concat_tables(parts)
        return rows if self.limit is None else _first(rows, self.limit)

    def _tables(self, *, at_once: bool = False) -> Iterator[pa.Table]:
        if not self.planning.order_by:
            return map(self._selected, tables(self.planning, at_once=at_once))
        from .top_n import ordered_rows

        return iter([self._selected(ordered_rows(self.planning))])

    def _selected(self, rows: pa.Table) -> pa.Table:
        if self._columns is None:
            return rows
        return pa.table([nested_column(rows, name) for name in self._columns], names=list(self._columns))

    def head(self, n: int = 5) -> pa.Table:
        """Return at most n of the rows: the first ones if the plan has an order, else any. Reading stops once there are
        n. Raises InvalidArgumentError if n is not a number of rows, else as `to_table`."""
        if not is_integer(n, 0):
            raise InvalidArgumentError(f"head() accepts a number of rows, 0 or more, not {n!r}")
        return self.narrowed(Constant(True), limit=n).to_table()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The same rows, batch by batch, as they are read."""
        rows_left = self.limit
        for table in self._tables():
            if rows_left is not None:
                table = _first(table, rows_left)
                rows_left -= table.num_rows
            yield from table.to_batches()
            if rows_left == 0:
                return

    def to_reader(self) -> pa.RecordBatchReader:
        """The same rows as a stream of batches."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_pandas(self, **options: Any) -> Any:
        """The same rows as a pandas DataFrame."""
        return self.to_table().to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """The same rows as a polars DataFrame. Raises InvalidArgumentError if polars is not installed."""
        from .engine_frames import polars_frame

        return polars_frame(self)

    def lazy(self) -> pl.LazyFrame:
        """The same rows as a polars LazyFrame: the filters, columns and slices of its query narrow the plan. Raises
        InvalidArgumentError if polars is not installed, or if the plan has no columns."""
        from .engine_frames import polars_lazy_frame

        return polars_lazy_frame(self)

    def to_duckdb(self, connection: DuckDBPyConnection | None = None) -> DuckDBPyRelation:
        """The same rows as a relation of a DuckDB connection (default: DuckDB's default connection). Filters and
        columns of its query narrow the plan, and nothing is read before a result is fetched. Raises
        InvalidArgumentError if the plan has no columns."""
        from .engine_frames import duckdb_relation

        return duckdb_relation(self, connection)

    def dataset(self) -> LakeDataset:
        """The same rows as a pyarrow Dataset: the filters and columns of an engine narrow the plan. See
        `Table.dataset`."""
        from .lake_dataset import LakeDataset

        return LakeDataset(self)

    def fragments(self) -> ds.FileSystemDataset:
        """The remaining row groups as a pyarrow Dataset of the table's schema, for engines that read Parquet. It
        contains all rows and columns of these row groups, so apply the predicate again. (pyarrow's `count_rows` without
        a filter counts whole files.)

        Raises NotReadableError for files that only their own format's reader can read, that changed, or that contain a
        column under a name from before a rename: a Dataset finds columns by their names.
        """
        from .fragments import dataset_of

        planning = self.planning
        planning.check_plain()
        with planning.reporting_changes():
            return dataset_of(planning.pairs, planning.instant, planning.storage)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as an Arrow stream, so that DuckDB, polars and pyarrow accept a plan."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    # -- what the index alone may decide ------------------------------------------------------------------------------

    @overload
    def count(self, by: None = None, *, check: bool | None = None) -> int: ...
    @overload
    def count(self, by: str | Sequence[str], *, check: bool | None = None) -> pa.Table: ...
    def count(self, by: str | Sequence[str] | None = None, *, check: bool | None = None) -> int | pa.Table:
        """Return the exact number of matching rows, ignoring `limit`. Files are read only if the index does not decide.

        With `by`, return a Table: the distinct values of those columns, ascending, nulls last, and `count` (int64). NaN
        is one value, zeros are 0.0, and fields of structs are named by dotted path. Files and row groups in which the
        columns have one value (partitions, sorted data) are not read. Files that a secondary index of the columns
        covers are not read either if there is no predicate.

        The index answers as of the version. With `check`, each file that may contain a match is compared with storage
        first (size, time or etag). By default that happens for up to 500 files of a directory on a local disk, unless
        the table was opened with `on_stale="ignore"`; with `check=False` a changed or removed file counts as it was. A
        file that this handle found missing or changed is always compared again, so rows and counts fail alike.

        Raises NotReadableError if `to_table` would, unless the index alone decides; PredicateError as `to_table`;
        SchemaError for a column of `by` that does not exist or has no order.
        """
        if by is None:
            return count(self.planning, check=check)
        from .group_counts import group_counts

        return group_counts(self.planning, by, check=check)

    @overload
    def distinct(self, columns: str, *, check: bool | None = None) -> pa.Array: ...
    @overload
    def distinct(self, columns: list[str] | tuple[str, ...], *, check: bool | None = None) -> pa.Table: ...
    def distinct(self, columns: str | Sequence[str], *, check: bool | None = None) -> pa.Array | pa.Table:
        """Return the distinct values of a column in the matching rows, ascending, nulls last, as an Array; those of a
        list of columns as a Table. `limit` is ignored. See `count(by=)`."""
        from .group_counts import group_counts

        groups = group_counts(self.planning, columns, check=check, counts=False)
        if isinstance(columns, str):
            return groups.column(0).combine_chunks()
        return groups.select(list(range(len(columns))))

    def min(self, column: str, *, check: bool | None = None) -> Any:
        """Return the exact least value of a column in the matching rows, ignoring `limit`; None if there is none. Nulls
        do not count. NaN is the greatest value. A zero is 0.0. The column may be a partition column, or a field of a
        struct by its dotted path. The result is a Python value as of `to_pylist`, or a pyarrow Scalar if Python has
        none (the year 12,000).

        If exact bounds decide, it is as of the version and no file is read; otherwise only row groups whose bounds
        admit a smaller value are read. `check` compares the files that decide with storage, by default as `count` does.

        Raises SchemaError for a column that does not exist or has no order, PredicateError as `to_table`,
        NotReadableError if only the reader of its format can read a file that could contain the value, or if a file
        that decides is missing or changed.
        """
        from .extremes import extreme

        return extreme(self.planning, column, "min", check=check)

    def max(self, column: str, *, check: bool | None = None) -> Any:
        """Return the exact greatest value of a column in the matching rows, as `min`. NaN is the greatest value."""
        from .extremes import extreme

        return extreme(self.planning, column, "max", check=check)


def _first(rows: pa.Table, count: int) -> pa.Table:
    """Its first rows, `count` or less: Arrow's own slice of a table without columns goes beyond its end."""
    return rows.slice(0, min(count, rows.num_rows))
