"""The rows of a plan as one SELECT over `read_parquet`, for queries that DuckDB runs itself.

Each file that is left is read with the names and types of the table. The source has the rows of the row groups that are
left: the query tests the conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ..predicates import Constant
from ..predicates.literals import string_sql
from ..predicates.operands import quoted
from .duckdb_reader import DuckDBReader
from .duckdb_text import type_text, value_text
from .file_reader import check_identity, planned_entry
from .file_tasks import FileTask, ReadContext, RowGroups, rows_kept
from .planned_rows import to_merge
from .planning import Pair, Planning

_PARTS_MAX = 32  # files that are read by row numbers, each by a SELECT of its own
_ROWS_MAX = 1_000  # numbers of rows in the text, of one file


class NotPlainError(Exception):
    """The rows are more than plain reading of files; the message says why."""


def source_sql(planning: Planning) -> str:
    """The text of a SELECT of the columns of the table.

    Raises NotPlainError if DuckDB cannot read the rows exactly, and NotReadableError for a file that has changed.
    """
    if to_merge(planning).any():
        raise NotPlainError("slices are merged by the reader of their own format")
    planning.check_readable()
    context = replace(planning.context, bound=Constant(True), keys=Constant(True))
    reader = DuckDBReader(planning, context)
    pairs = [(task, groups) for task, groups in planning.pairs_to_read() if groups.kept != []]
    if reader.refusal or not all(map(reader.served, pairs)):
        raise NotPlainError(reader.why_not() or "paths of files have characters that DuckDB expands")
    with planning.noting_changes():
        for task, _ in pairs:
            check_identity(task, planning.storage)
    return _Source(planning, context, reader).text(pairs)


class _Source:
    def __init__(self, planning: Planning, context: ReadContext, reader: DuckDBReader):
        self._planning, self._context, self._reader = planning, context, reader
        self._schema = planning.instant.schema
        self._can_have_nan = any(_has_floats(field.type) for field in self._schema)

    def text(self, pairs: Sequence[Pair]) -> str:
        """One SELECT per physical schema, and one per file that is read by row numbers."""
        rows = [self._rows(task, groups) for task, groups in pairs]
        kept, total = sum(rows_kept(*pair) for pair in pairs), sum(task.row_count for task, _ in pairs)
        # DuckDB skips row groups by their statistics, and pushes more into one SELECT than into several.
        if sum(part is not None for part, _ in rows) > _PARTS_MAX or 2 * kept > total:
            rows = [(None, deleted) for _, deleted in rows]
        alike: dict[tuple, list[FileTask]] = {}
        for number, ((task, _), (part, deleted)) in enumerate(zip(pairs, rows, strict=True)):
            condition = " AND ".join(one for one in (part, deleted) if one)
            alike.setdefault((task.schema_id, condition, number if condition else -1), []).append(task)
        selects = [self._select(tasks, condition) for (_, condition, _), tasks in alike.items()]
        return " UNION ALL ".join(selects) or f"{self._select([], '')} WHERE FALSE"

    def _rows(self, task: FileTask, groups: RowGroups) -> tuple[str | None, str]:
        """(which rows may match, which are not deleted): conditions on the number of the row."""
        deleted = self._context.deletes.get(task.path, np.empty(0, np.int64))
        if len(deleted) > _ROWS_MAX:
            raise NotPlainError(f"{len(deleted):,} rows of a file are deleted")
        without = f"file_row_number NOT IN ({_numbers(deleted)})" if len(deleted) else ""
        if task.rows is not None and len(task.rows) <= _ROWS_MAX:
            return f"file_row_number IN ({_numbers(task.rows) or 'NULL'})", without
        if groups.kept is None or groups.first_rows is None or groups.total == len(groups.kept):
            return None, without
        ranges = zip(groups.first_rows, groups.row_counts or [], strict=True)
        return "(" + " OR ".join(f"file_row_number BETWEEN {a} AND {a + n - 1}" for a, n in ranges) + ")", without

    def _select(self, tasks: list[FileTask], condition: str) -> str:
        columns = ", ".join(f"{self._column(name, tasks)} AS {quoted(name)}" for name in self._schema.names)
        if not tasks:
            return f"SELECT {columns}"
        paths = [str(self._planning.storage.open_file(planned_entry(task))) for task in tasks]
        options = "hive_partitioning = false" + (", can_have_nan = true" if self._can_have_nan else "")
        source = f"read_parquet([{', '.join(map(string_sql, paths))}], {options})"
        return f"SELECT {columns} FROM {source}" + (f" WHERE {condition}" if condition else "")

    def _column(self, name: str, tasks: list[FileTask]) -> str:
        kind = self._schema.field(name).type
        wanted = type_text(kind)
        if not tasks:
            return f"CAST(NULL AS {wanted})"
        names = self._context.names[tasks[0].schema_id]
        if name in self._context.partitioning:
            values = [_constant(task.partition[name]) for task in tasks]
            if len(set(values)) == 1:
                return values[0]
            return f"CAST([{', '.join(values)}] AS {wanted}[])[CAST(file_index AS INTEGER) + 1]"
        if name not in names:
            return _constant(self._context.defaults.get(name) or pa.nulls(1, kind)[0])
        stored = self._planning.instant.file_schemas[tasks[0].schema_id].schema.field(names[name]).type
        is_same = type_text(stored) == wanted and "TIMESTAMP_MS" not in str(wanted)
        text = quoted(names[name]) if is_same else f"CAST({quoted(names[name])} AS {wanted})"
        # Statistics that may be wrong decide no condition on a CASE.
        is_trusted = all(map(self._reader.is_trusted, _leaves(name, kind)))
        return text if is_trusted else f"CASE WHEN random() < 0 THEN NULL ELSE {text} END"


def _constant(value: pa.Scalar) -> str:
    text = value_text(value)
    if text is None:
        raise NotPlainError(f"a value of type {value.type} has no text")
    return text


def _numbers(rows: np.ndarray) -> str:
    return ", ".join(map(str, rows.tolist()))


def _leaves(name: str, kind: pa.DataType) -> Iterator[str]:
    """The dotted paths of the values whose statistics DuckDB uses: it uses none of values in lists and maps."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{name}.{field.name}", field.type)
    elif not pa.types.is_nested(kind):
        yield name


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_floats(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_floating(kind)
