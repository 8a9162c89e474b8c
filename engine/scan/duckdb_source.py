"""The rows of a plan as a SELECT over `read_parquet`, for queries that DuckDB runs itself.

The source has all rows of the row groups that are left: the query tests the conditions.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from ..predicates import Constant
from ..predicates.literals import quoted
from .duckdb_connection import cursor
from .duckdb_reader import DuckDBReader
from .duckdb_select import Piece
from .duckdb_text import values_within
from .file_reader import check_identities
from .file_tasks import RowGroups, rows_kept
from .planned_rows import to_merge
from .planning import Pair, PlannedScan

_PARTS_MAX = 4  # files that are read by row numbers, each by a SELECT of its own


class NotPlainError(Exception):
    """DuckDB cannot read the rows exactly; the message says why."""


def source_sql(planning: PlannedScan, prefix: str) -> tuple[str, dict[str, pa.Table]]:
    """(the text of a SELECT of the columns of the table, tables that it joins by name). `prefix`: of these names.

    Raises NotPlainError if DuckDB cannot read the rows exactly, and NotReadableError for a file that has changed.
    """
    if to_merge(planning).any():
        raise NotPlainError("slices are merged by the reader of their own format")
    planning.check_readable()
    context = replace(planning.context, bound=Constant(True), keys=Constant(True))
    reader = DuckDBReader(planning, context)
    pairs = _pairs(planning)
    if reader.refusal or not all(map(reader.served, pairs)):
        raise NotPlainError(reader.why_not() or "paths of files have characters that DuckDB expands")
    with planning.reporting_changes():
        check_identities([task for task, _ in pairs], planning.storage)
    writer, schema = reader.writer, context.schema
    within = {field.name: list(values_within(field.name, field.type)) for field in schema}
    paths = {name: [path for path, _ in values if path] for name, values in within.items()}
    writer.hidden = {name for name in paths if not reader.is_ordered(paths[name])}  # lists and maps have no statistics
    has_floats = any(pa.types.is_floating(dtype) for values in within.values() for _, dtype in values)
    writer.options = ", can_have_nan = true" if has_floats else ""
    selects: list[str] = []
    tables: dict[str, pa.Table] = {}
    by_schema: dict[int, list[Piece]] = {}
    for piece in _pieces(pairs):
        by_schema.setdefault(piece.task.schema_id, []).append(piece)
    columns = ", ".join(map(quoted, context.columns))
    for number, pieces in by_schema.items():
        writer.prefix = f"{prefix}{number}_"
        query = writer.write(pieces, with_constants=True)
        if query is None:
            raise NotPlainError("a value has no text")
        with cursor() as opened:
            reader.check_types(pieces[0].task, opened)
        selects.append(f"SELECT {columns} FROM ({query.text})")
        tables |= query.tables
    if not selects:
        nulls = (f"CAST(NULL AS {writer.types.get(name, 'VARCHAR')}) AS {quoted(name)}" for name in context.columns)
        selects = [f"SELECT {', '.join(nulls)} WHERE FALSE"]
    return " UNION ALL ".join(selects), tables


def _pairs(planning: PlannedScan) -> list[Pair]:
    """The files that are left, with their row groups and rows if an index other than statistics knows these: DuckDB
    skips row groups by statistics itself."""
    if not planning.pruned.fine and planning.pruned.rows_matching is None:
        return [(task, RowGroups(None)) for task in planning.tasks_of_whole_files()]
    return [pair for pair in planning.pairs_to_read() if pair[1].kept != []]


def _pieces(pairs: list[Pair]) -> list[Piece]:
    """The files, by row groups and rows where that saves half of the rows.

    DuckDB skips row groups by their statistics, and pushes more into one SELECT than into several.
    """
    kept = sum(len(task.rows) if task.rows is not None else rows_kept(task, groups) for task, groups in pairs)
    if len(pairs) <= _PARTS_MAX and 2 * kept <= sum(task.row_count for task, _ in pairs):
        return [Piece(task, groups) for task, groups in pairs]
    whole = (task if task.rows is None else replace(task, rows=None) for task, _ in pairs)
    return [Piece(task, RowGroups(None)) for task in whole]
