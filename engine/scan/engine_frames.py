"""A plan as a frame of polars, or a relation of DuckDB, whose queries narrow the plan.

polars passes a source the columns that it needs, one predicate, and how many rows it wants at most (before the
predicate). The terms of the predicate that are understood narrow the plan; polars then tests the rows by all of it, so
its own meaning decides. If many rows of local files are read, and polars reads these files as they are, it scans the
remaining files itself. DuckDB reads a `LakeDataset`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...base.arrays import empty_table
from ...base.versions import accepted
from ...errors import InvalidArgumentError, PredicateError
from ..predicates import And, Constant, Node, parse, unknowns
from .file_reader import check_identities, planned_entry
from .file_tasks import FileTask, RowGroups, rows_read
from .lake_dataset import LakeDataset, RowSource
from .planned_rows import read_pairs

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from .planning import PlannedScan

_POLARS_VALUES_MIN = 1_000_000  # fewer are read as quickly by our readers
_POLARS_VALUES_MAX = 32_000_000  # of files that polars scans together


def polars_frame(plan: RowSource) -> pl.DataFrame:
    """The rows of a plan. Raises InvalidArgumentError if polars is not installed."""
    polars = _polars()
    frame = polars.from_arrow(plan.to_table())
    assert isinstance(frame, polars.DataFrame)
    return frame


def polars_lazy_frame(plan: RowSource) -> pl.LazyFrame:
    """The rows of a plan, narrowed by what polars requests. Raises InvalidArgumentError without polars or columns."""
    _check_columns(plan)
    polars = _polars()
    from polars.io.plugins import register_io_source

    empty = polars.from_arrow(empty_table(plan.schema))

    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, row_limit: int | None, batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        columns = list(plan.schema.names if with_columns is None else with_columns)
        tested = [] if predicate is None else predicate.meta.root_names()
        where: Node = Constant(True)
        if predicate is not None and row_limit is None and plan.planning.accepts_filter:
            where = _prunable_part(predicate, plan.schema)
        rows = plan.narrowed(where, list(dict.fromkeys([*columns, *tested])), row_limit)
        if row_limit is None and plan.planning.is_whole:
            tasks = _tasks_for_polars(polars, rows.planning, empty.schema)
            if tasks:
                yield from _scanned_by_polars(polars, rows.planning, tasks, predicate, columns)
                return
        for batch in rows.to_reader():
            frame = polars.from_arrow(batch)
            assert isinstance(frame, polars.DataFrame)
            yield (frame if predicate is None else frame.filter(predicate)).select(columns)

    options = accepted(register_io_source, is_pure=True, explain_name="skipstone")
    return register_io_source(source, schema=empty.schema, **options)


def _tasks_for_polars(polars: Any, plan: PlannedScan, schema: pl.Schema) -> list[FileTask]:
    """The files that polars scans by itself: all that are left, if it reads many rows of them as the table has these;
    else none."""
    names = set(plan.columns)
    units = plan.pruned.units
    if plan.storage.is_remote or not names or names & set(plan.instant.partitioning) or not units.readable.all():
        return []
    pairs = plan.pairs_to_read()
    if any(task.rows is not None or groups.total != len(groups.kept or []) for task, groups in pairs if groups.kept):
        return []  # an index chose rows, or row groups
    if sum(rows_read(*pair) for pair in pairs) * len(names) < _POLARS_VALUES_MIN:
        return []
    context = plan.context
    for task in {task.schema_id: task for task, _ in pairs}.values():
        in_file = context.names[task.schema_id]
        is_nested = context.nested and context.nested[task.schema_id]
        if task.schema_id in context.unopened or is_nested or any(in_file.get(name) != name for name in names):
            return []
        try:
            found = _scan(polars, plan, [task]).collect_schema()
        except (polars.exceptions.PolarsError, OSError):
            return []
        if any(found.get(name) != schema[name] for name in names):
            return []
    return [task for task, _ in pairs]


def _scanned_by_polars(
    polars: Any, plan: PlannedScan, tasks: list[FileTask], predicate: pl.Expr | None, columns: list[str]
) -> Iterator[pl.DataFrame]:
    """The rows of some files, which are found unchanged before and after they are read. If polars raises an error, the
    rows are read by our readers, so that the error is theirs."""
    rows_max = max(_POLARS_VALUES_MAX // len(plan.columns), 1)
    chunks: list[list[FileTask]] = []
    row_count = 0
    for task in sorted(tasks, key=lambda task: task.schema_id):
        row_count += task.row_count
        if not chunks or row_count > rows_max or chunks[-1][0].schema_id != task.schema_id:
            chunks.append([])
            row_count = task.row_count
        chunks[-1].append(task)
    for chunk in chunks:
        with plan.reporting_changes():
            check_identities(chunk, plan.storage)
            frame = _scan(polars, plan, chunk)
            try:
                frame = (frame if predicate is None else frame.filter(predicate)).select(columns).collect()
            except (polars.exceptions.PolarsError, polars.exceptions.PanicException, OSError):
                frame = None
            check_identities(chunk, plan.storage)
        if frame is not None:
            yield frame
            continue
        for tables in read_pairs(plan, [(task, RowGroups(None)) for task in chunk], plan.context):
            for table in tables:
                rows = polars.from_arrow(table)
                yield (rows if predicate is None else rows.filter(predicate)).select(columns)


def _scan(polars: Any, plan: PlannedScan, tasks: Sequence[FileTask]) -> pl.LazyFrame:
    paths = [plan.storage.open_file(planned_entry(task)) for task in tasks]
    # Statistics of old writers may be wrong, and no row group can be skipped anyway.
    return polars.scan_parquet(paths, glob=False, hive_partitioning=False, use_statistics=False)


def _prunable_part(predicate: pl.Expr, schema: pa.Schema) -> Node:
    """The terms of a predicate that Skipstone understands: polars tests the rows by all of it."""
    try:
        node = parse(predicate, schema)
    except PredicateError:
        return Constant(True)
    where: Node = Constant(True)
    for term in node.children if isinstance(node, And) else (node,):
        if not unknowns(term):
            where = term if where == Constant(True) else where & term
    return where


def duckdb_relation(plan: RowSource, connection: DuckDBPyConnection | None) -> DuckDBPyRelation:
    """The rows of a plan in a connection (None: the default one). Raises InvalidArgumentError without columns."""
    _check_columns(plan)
    import duckdb

    connection = duckdb.default_connection() if connection is None else connection
    if not isinstance(connection, duckdb.DuckDBPyConnection):
        raise InvalidArgumentError(f"connection= must be a DuckDB connection, not {connection!r}")
    return connection.from_arrow(LakeDataset(plan))


def _check_columns(plan: RowSource) -> None:
    """Neither engine counts rows that have no column."""
    if not plan.columns:
        raise InvalidArgumentError("the plan has no columns: name at least one by columns=, or use count()")


def _polars() -> Any:
    try:
        return importlib.import_module("polars")
    except ImportError:
        raise InvalidArgumentError('polars is not installed: pip install "skipstone[polars]"') from None
