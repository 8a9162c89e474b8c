"""Rows of local files, read and tested by DuckDB: one query per chunk of files, with the predicate as SQL text.

    tasks and row groups -> files that DuckDB reads exactly -> chunks -> one query each -> rows in the table's types

Files of a chunk have one physical schema. Their columns are renamed and cast in the query; partition values and columns
that the files lack are added afterwards. Parts of the predicate over such columns become constants. Row groups are
ranges of `file_row_number`. Deleted rows, and rows of a look-up, are told apart by file and row number.

A chunk's rows are returned once all of them are read and the files are found unchanged. If DuckDB raises an error,
pyarrow reads the chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy, to_numpy
from ...errors import SchemaError
from ..parquet.leaves import top_level
from ..predicates import (
    And,
    ColumnLeaf,
    Constant,
    Leaf,
    Node,
    Not,
    Or,
    Residual,
    columns_of,
    columns_read,
    matches,
    residuals,
)
from ..predicates.coerce import is_exact_widening
from ..predicates.literals import string_sql
from ..predicates.operands import quoted
from .duckdb_connection import cursor, guarded, nan_rows
from .duckdb_text import condition_text, type_text, value_text
from .file_reader import cast_column, check_identity, planned_entry, rows_without_columns
from .file_tasks import FileTask, ReadContext, RowGroups, rows_kept

if TYPE_CHECKING:
    from ..storage import Counted
    from .planning import Planning

Pair = tuple[FileTask, RowGroups]

_VALUES_FIRST, _VALUES_MAX = 2_000_000, 64_000_000  # of a chunk
_RESULT_BYTES = 32 << 20  # that a chunk should return: the next is larger or smaller
_POSITIONS_MAX = 1_000  # rows that are named in the text of a query
_POSITION_FILES_MAX = 32  # more files are read by a condition on values if there is one
_FILE, _ROW, _COUNT = "__skipstone_file", "__skipstone_row", "__skipstone_count"
_VIRTUAL = {"file_row_number", "file_index", "filename", "file_row_id", "rowid", _FILE, _ROW}
_PATTERN = frozenset("*?[]{}")  # DuckDB would expand such a path


class DuckDBReader:
    """The part of one scan that DuckDB reads.

    refusal    why DuckDB reads none of the scan's files; empty if it reads some
    """

    def __init__(self, plan: Planning, context: ReadContext):
        self._plan, self._context = plan, context
        self._storage: Counted = plan.storage
        self._schema = context.schema
        self._is_lookup = context.bound == Constant(True)
        # What the rows are tested by: the predicate, or, for rows that an index named, the keys of a look-up.
        self._tests = _conjuncts(context.bound)
        if self._is_lookup and condition_text(context.keys) is not None:
            self._tests = _conjuncts(context.keys)
        read = [top_level(context.schema, name) for test in self._tests for name in columns_read(test)]
        self._used = tuple(dict.fromkeys([*context.columns, *read]))
        self._types: dict[str, str] = {}
        self._texts: dict[Node, str | None] = {}
        self._by_schema: dict[int, str] = {}
        self._has_checked_types: set[int] = set()
        self._values_max = _VALUES_MAX
        self.refusal = self._refusal()

    def _refusal(self) -> str:
        context = self._context
        if self._storage.gap_bytes:
            return "the files are remote"
        if context.parquet_options:
            return "options of pyarrow were passed"
        for name in self._used:
            if name in context.partitioning:
                continue
            named = type_text(context.schema.field(name).type)
            if named is None:
                return f"column {name!r} is {context.schema.field(name).type}"
            self._types[name] = named
        if len({name.casefold() for name in self._used}) < len(self._used):
            return "names of columns differ in case alone"
        if any(part.engine != "duckdb" for part in residuals(context.bound)):
            return "another engine tests a part of the predicate"
        self._guarded = [test for test in self._tests if not self._is_trusted(test)]
        if self._guarded:
            returning_nan = nan_rows()
            if returning_nan == "plain":
                self._guarded = [test for test in self._guarded if not self._is_trusted(test, may_be_nan=True)]
            elif not returning_nan:
                return "the installed DuckDB loses rows with NaN"
        return ""

    def _is_trusted(self, condition: Node, *, may_be_nan: bool = False) -> bool:
        """Whether footer statistics may decide a condition: each writer orders values of the type right, or an index
        has bounds for each file, and NaN occurs in none (`may_be_nan`: in any)."""
        names = [name for name in columns_read(condition) if name not in self._context.partitioning]
        return all(self.is_trusted(name, may_be_nan=may_be_nan) for name in names)

    def is_trusted(self, name: str, *, may_be_nan: bool = True) -> bool:
        """Whether footer statistics may decide a condition on a column."""
        if _is_ordered_by_all_writers(self._schema.field(top_level(self._schema, name)).type):
            return True
        units = self._plan.pruned.units
        known = np.zeros(units.count, dtype=bool)
        for evidence, covered in self._plan.about(name):
            is_bounded = (evidence.has_lower & evidence.has_upper) | ~evidence.may_be_value
            known |= covered & is_bounded & (may_be_nan | ~evidence.may_be_nan)
        return bool(known.all())

    # -- which files ---------------------------------------------------------------------------------------------------

    def served(self, pair: Pair) -> bool:
        """Whether DuckDB reads a file exactly."""
        task, groups = pair
        if task.schema_id not in self._by_schema:
            self._by_schema[task.schema_id] = self._schema_refusal(task.schema_id)
        if self._by_schema[task.schema_id] or _PATTERN & set(task.path):
            return False
        return groups.kept is None or groups.first_rows is not None or groups.total == len(groups.kept)

    def why_not(self) -> str:
        """Why DuckDB does not read some files."""
        reasons = [self.refusal, *self._by_schema.values()]
        return next((reason for reason in reasons if reason), "")

    def _schema_refusal(self, schema_id: int) -> str:
        context = self._context
        if schema_id in context.unopened:
            return "the footers were not checked"
        if context.nested and context.nested[schema_id]:
            return "fields within a column have other names"
        file_schema = self._plan.instant.file_schemas[schema_id].schema
        folded = [name.casefold() for name in file_schema.names]
        if len(set(folded)) < len(folded) or _VIRTUAL & set(folded) or any("\0" in name for name in folded):
            return "names of columns in the files are ambiguous"
        for name in self._used:
            file_name = context.names[schema_id].get(name)
            if file_name is None or name in context.partitioning:
                continue
            stored, wanted = file_schema.field(file_name).type, self._schema.field(name).type
            is_same = stored == wanted or (not pa.types.is_nested(wanted) and is_exact_widening(stored, wanted))
            if type_text(stored) is None or not is_same:
                return f"column {name!r} is {stored} in some files"
            if not all(self._has_plain_times(leaf) for leaf in _times_in(name, wanted)):
                return f"times of column {name!r} may be stored as INT96"
        return ""

    def _has_plain_times(self, name: str) -> bool:
        """Whether a column of timestamps has bounds in each file: INT96, which DuckDB wraps, has none."""
        units = self._plan.pruned.units
        known = np.zeros(units.count, dtype=bool)
        for evidence, covered in self._plan.about(name):
            known |= covered & (evidence.has_lower | ~evidence.may_be_value)
        return bool(known.all())

    # -- rows ----------------------------------------------------------------------------------------------------------

    def tables(self, pairs: Sequence[Pair], left: list[Pair], at_once: bool) -> Iterator[pa.Table]:
        """The matching rows of some files. Files that DuckDB cannot read are added to `left`.

        at_once    all rows are wanted in memory, so chunks need not be small
        """
        self._values_max = _VALUES_MAX if at_once else _VALUES_FIRST
        for chunk in self._chunks(pairs):
            rows = self._rows_of(chunk)
            if rows is None:
                left += [(piece.task, piece.groups) for piece in chunk]
                continue
            if not at_once:
                wanted = self._values_max * _RESULT_BYTES // max(rows.nbytes, 1)
                self._values_max = min(max(wanted, _VALUES_FIRST // 16), 4 * self._values_max, _VALUES_MAX)
            yield rows
            rows = None  # before the next chunk is read

    def groups(
        self, pairs: Sequence[Pair], names: Sequence[str], left: list[Pair]
    ) -> Iterator[tuple[pa.Table, np.ndarray | None]]:
        """The values of some columns (dotted paths) that occur in the matching rows of some files, with their counts,
        ascending per chunk, nulls last; or the rows themselves, without counts. Files that DuckDB cannot read are
        added to `left`."""
        for chunk in self._chunks(pairs):
            rows = self._rows_of(chunk, names)
            if rows is None:
                left += [(piece.task, piece.groups) for piece in chunk]
            elif _COUNT in rows.column_names:
                yield rows.drop_columns(_COUNT), to_numpy(rows.column(_COUNT)).astype(np.int64)
            else:
                yield rows, None

    def count(self, pairs: Sequence[Pair], left: list[Pair]) -> int:
        """How many rows of some files match. Files that DuckDB cannot read are added to `left`."""
        return sum(rows.num_rows for rows in self.tables(pairs, left, at_once=True))

    def _chunks(self, pairs: Sequence[Pair]) -> Iterator[list[_Piece]]:
        waiting = [piece for pair in pairs for piece in self._pieces(pair)]
        waiting.sort(key=lambda piece: piece.task.schema_id)
        while waiting:
            chunk = _first_chunk(waiting, self._values_max // max(len(self._used), 1))
            del waiting[: len(chunk)]
            yield chunk

    def _rows_of(self, chunk: list[_Piece], grouped: Sequence[str] = ()) -> pa.Table | None:
        """The matching rows of a chunk, or, if DuckDB can, those that differ in some columns, each with its count; None
        if DuckDB cannot read the chunk."""
        tasks = {piece.task.path: piece.task for piece in chunk}
        with self._plan.noting_changes():
            for task in tasks.values():
                check_identity(task, self._storage)
            query = self._query(chunk)
            if query is None:
                self._context.why_pyarrow.append("DuckDB has no text for the predicate")
                return None
            rows: pa.Table | None
            try:
                with cursor() as opened:
                    self._check_types(chunk[0].task, opened)
                    if grouped and self._can_group(chunk):
                        leaves = [self._leaf_text(name, i) for i, name in enumerate(grouped)]
                        query = f"SELECT {', '.join(leaves)}, count(*) AS {_COUNT} FROM ({query}) GROUP BY ALL"
                        query += " ORDER BY ALL NULLS LAST"
                        rows = opened.sql(query).to_arrow_table()
                    else:
                        rows = self._shaped(chunk, opened.sql(query).to_arrow_table())
            except (duckdb.Error, pa.ArrowException, SchemaError, ValueError) as error:
                rows = None
                self._context.why_pyarrow.append(f"DuckDB failed: {str(error).splitlines()[0]}")
            for task in tasks.values():
                check_identity(task, self._storage)
        if rows is not None:
            self._context.by_duckdb.extend(tasks)
        return rows

    def _can_group(self, chunk: list[_Piece]) -> bool:
        names = self._context.names[chunk[0].task.schema_id]
        return not self._needs_files and all(name in names for name in self._context.columns)

    def _leaf_text(self, path: str, number: int) -> str:
        top = top_level(self._schema, path)
        text = quoted(top)
        for field in path[len(top) + 1 :].split(".") if path != top else ():
            text = f"struct_extract({text}, {string_sql(field)})"
        return f"{text} AS {quoted(str(number))}"

    def _check_types(self, task: FileTask, opened: Any) -> None:
        """Raise SchemaError if DuckDB reads a column as another type than Arrow's schema has: a VARIANT, for example.
        The first file of each physical schema is looked at."""
        if task.schema_id in self._has_checked_types:
            return
        names = self._context.names[task.schema_id]
        file_schema = self._plan.instant.file_schemas[task.schema_id].schema
        stored = [names[name] for name in self._used if name in names and name not in self._context.partitioning]
        if stored:
            path = string_sql(str(self._storage.open_file(planned_entry(task))))
            columns = ", ".join(map(quoted, stored))
            expected = ", ".join(f"CAST(NULL AS {_type_as_read(file_schema.field(name).type)})" for name in stored)
            found = opened.sql(f"SELECT {columns} FROM read_parquet([{path}], hive_partitioning = false)").types
            for name, dtype, wanted in zip(stored, found, opened.sql(f"SELECT {expected}").types, strict=True):
                if dtype != wanted:
                    raise SchemaError(f"column {name!r} is {dtype} to DuckDB")
        self._has_checked_types.add(task.schema_id)

    def _pieces(self, pair: Pair) -> Iterator[_Piece]:
        """A file, or row groups of a large one."""
        task, groups = pair
        rows_max = self._values_max // max(len(self._used), 1)
        if groups.kept is None or groups.first_rows is None or rows_kept(*pair) <= 2 * rows_max:
            yield _Piece(task, groups)
            return
        counts = groups.row_counts or []
        begin = rows = 0
        for end, count in enumerate([*counts, rows_max]):
            if end > begin and rows + count > rows_max:
                yield _Piece(task, groups.part(slice(begin, end)))
                begin, rows = end, 0
            rows += count

    # -- the query -----------------------------------------------------------------------------------------------------

    def _query(self, chunk: list[_Piece]) -> str | None:
        """One SELECT per group of files that are read alike, joined by UNION ALL."""
        files = list({piece.task.path: piece.task for piece in chunk})
        number_of = {path: number for number, path in enumerate(files)}
        alike: dict[tuple, list[_Piece]] = {}
        self._masks_rows = any(
            piece.task.path in self._context.deletes or (piece.task.rows is not None and self._is_lookup)
            for piece in chunk
        )
        names_positions = sum(piece.task.rows is not None for piece in chunk) <= _POSITION_FILES_MAX
        for piece in chunk:
            constants = self._constants(piece.task)
            positions = self._positions(piece, names_positions or not self._tests)
            where = self._condition(piece, constants, is_exact=bool(positions) and piece.task.rows_exact)
            if where is None:
                return None
            own = (piece.task.path,) if positions else ()
            alike.setdefault((where, positions, tuple(constants.items()) if constants else (), own), []).append(piece)
        parts = []
        for (where, positions, constants, _), pieces in alike.items():
            select = self._select(pieces, dict(constants), number_of)
            conditions = " AND ".join(condition for condition in (positions, where) if condition not in ("", "TRUE"))
            parts.append(f"{select} WHERE {conditions}" if conditions else select)
        return " UNION ALL ".join(parts)

    def _select(self, pieces: list[_Piece], constants: dict[str, str], number_of: dict[str, int]) -> str:
        task = pieces[0].task
        names = self._context.names[task.schema_id]
        stored = [name for name in self._used if name in names and name not in self._context.partitioning]
        kept = [name for name in self._context.columns if name in stored]
        file_schema = self._plan.instant.file_schemas[task.schema_id].schema
        inner = []
        for name in stored:
            column = quoted(names[name])
            if (
                type_text(file_schema.field(names[name]).type) != self._types[name]
                or "TIMESTAMP_MS" in self._types[name]
            ):
                column = f"CAST({column} AS {self._types[name]})"
            inner.append(f"{column} AS {quoted(name)}")
        inner += [f"{text} AS {quoted(name)}" for name, text in constants.items()]
        outer = [quoted(name) for name in kept]
        if self._needs_files:
            first = [number_of[piece.task.path] for piece in pieces]
            if first == list(range(first[0], first[0] + len(first))):
                inner.append(f"CAST(file_index AS INTEGER) + {first[0]} AS {_FILE}")
            else:
                inner.append(f"CAST({first} AS INTEGER[])[file_index + 1] AS {_FILE}")
            outer.append(_FILE)
        inner.append(f"file_row_number AS {_ROW}")
        if self._masks_rows:
            outer.append(_ROW)
        paths = [str(self._storage.open_file(planned_entry(piece.task))) for piece in pieces]
        source = f"read_parquet([{', '.join(map(string_sql, paths))}], hive_partitioning = false)"
        return f"SELECT {', '.join(outer) or '1'} FROM (SELECT {', '.join(inner)} FROM {source})"

    @property
    def _needs_files(self) -> bool:
        partitioned = set(self._context.partitioning) & set(self._context.columns)
        return self._masks_rows or bool(partitioned)

    def _positions(self, piece: _Piece, names_positions: bool) -> str:
        """A condition on the row number: the rows that an index named, if they are few, or the row groups."""
        task, groups = piece.task, piece.groups
        if task.rows is not None and len(task.rows) <= _POSITIONS_MAX and names_positions:
            return f"{_ROW} IN ({', '.join(map(str, task.rows.tolist())) or 'NULL'})"
        if groups.kept is None or groups.first_rows is None or groups.total == len(groups.kept):
            return ""
        ranges: list[list[int]] = []
        for first, count in zip(groups.first_rows, groups.row_counts or [], strict=True):
            if ranges and ranges[-1][1] == first:
                ranges[-1][1] = first + count
            else:
                ranges.append([first, first + count])
        return "(" + " OR ".join(f"{_ROW} BETWEEN {a} AND {b - 1}" for a, b in ranges) + ")" if ranges else "FALSE"

    def _constants(self, task: FileTask) -> dict[str, str]:
        """Columns that the file does not have and that the query's text needs as constants."""
        constants: dict[str, str] = {}
        names = self._context.names[task.schema_id]
        for part in [part for test in self._tests for part in _mixed(test)]:
            for name in columns_read(part):
                top = top_level(self._schema, name)
                if top in self._context.partitioning or top not in names:
                    constants[top] = value_text(self._value_of(top, task)) or ""
        return constants

    def _value_of(self, name: str, task: FileTask) -> pa.Scalar:
        """What a column that the file does not have is in each of its rows."""
        if name in task.partition:
            return task.partition[name]
        return self._context.defaults.get(name) or pa.nulls(1, self._schema.field(name).type)[0]

    def _condition(self, piece: _Piece, constants: dict[str, str], *, is_exact: bool) -> str | None:
        """What the rows of a piece are tested by; TRUE if all of them match (`is_exact`: those that are named do)."""
        task = piece.task
        if "" in constants.values():
            return None
        if task.rows is None:
            if self._is_lookup or task.all_match or (piece.groups.all_match and all(piece.groups.all_match)):
                return "TRUE"
        elif is_exact:
            return "TRUE"
        texts = []
        for condition in self._tests:
            folded = self._folded(condition, task)
            if folded == Constant(True):
                continue
            if folded not in self._texts:
                self._texts[folded] = condition_text(folded)
            text = self._texts[folded]
            if text is None:
                return None
            texts.append(guarded(text) if condition in self._guarded else text)
        return " AND ".join(texts) or "TRUE"

    def _folded(self, node: Node, task: FileTask) -> Node:
        """A condition in which terms over columns that the file does not have are constants."""
        names = self._context.names[task.schema_id]

        def is_constant(column: str) -> bool:
            top = top_level(self._schema, column)
            return top in self._context.partitioning or top not in names

        if not any(is_constant(column) for column in columns_of(node)):
            return node
        if isinstance(node, Leaf) or (isinstance(node, ColumnLeaf) and all(map(is_constant, columns_of(node)))):
            tops = dict.fromkeys(top_level(self._schema, column) for column in columns_of(node))
            row = pa.table([pa.repeat(self._value_of(top, task), 1) for top in tops], names=list(tops))
            return Constant(matches(node, row)[0].as_py())
        if isinstance(node, And | Or):
            return type(node)(tuple(self._folded(child, task) for child in node.children))
        return Not(self._folded(node.child, task)) if isinstance(node, Not) else node

    # -- what DuckDB returned ------------------------------------------------------------------------------------------

    def _shaped(self, chunk: list[_Piece], rows: pa.Table) -> pa.Table:
        """Rows in the table's types, without those that were deleted or are not among the rows of a look-up."""
        context = self._context
        tasks = list({piece.task.path: piece.task for piece in chunk}.values())
        if self._masks_rows:
            rows = rows.filter(from_numpy(self._is_kept(tasks, rows)))
        columns: list[pa.Array | pa.ChunkedArray] = []
        for name in context.columns:
            kind = context.schema.field(name).type
            if name in context.partitioning:
                columns.append(_values_of_files([task.partition[name] for task in tasks], rows))
            elif name in rows.column_names:
                columns.append(cast_column(rows.column(name), kind, tasks[0].path, name))
            else:
                columns.append(pa.repeat(self._value_of(name, tasks[0]), rows.num_rows))
        if not columns:
            return rows_without_columns(rows.num_rows)
        return pa.Table.from_arrays(columns, names=list(context.columns))

    def _is_kept(self, tasks: list[FileTask], rows: pa.Table) -> np.ndarray:
        files = to_numpy(rows.column(_FILE)).astype(np.int64)
        positions = to_numpy(rows.column(_ROW)).astype(np.int64)
        is_kept = np.ones(len(files), dtype=bool)
        for number, task in enumerate(tasks):
            deleted = self._context.deletes.get(task.path)
            named = task.rows if self._is_lookup else None
            if deleted is None and named is None:
                continue
            chosen = files == number
            if deleted is not None:
                is_kept[chosen] &= ~np.isin(positions[chosen], deleted)
            if named is not None:
                is_kept[chosen] &= np.isin(positions[chosen], named)
        return is_kept


@dataclass
class _Piece:
    """A file, or some of its row groups."""

    task: FileTask
    groups: RowGroups

    @property
    def row_count(self) -> int:
        """How many rows are read, about."""
        if self.task.rows is not None:
            return min(len(self.task.rows) * 2048, rows_kept(self.task, self.groups))
        return rows_kept(self.task, self.groups)


def _first_chunk(waiting: Sequence[_Piece], rows_max: int) -> list[_Piece]:
    """The first pieces, of one physical schema, that have at most so many rows; at least one."""
    count = rows = 0
    for piece in waiting:
        rows += piece.row_count
        if count and (rows > rows_max or piece.task.schema_id != waiting[0].task.schema_id):
            break
        count += 1
    return list(waiting[:count])


def _values_of_files(values: list[pa.Scalar], rows: pa.Table) -> pa.Array:
    """One value per row: that of its file."""
    if all(value == values[0] for value in values):
        return pa.repeat(values[0], rows.num_rows)
    of_files = pa.concat_arrays([pa.repeat(value, 1) for value in values])
    return of_files.take(rows.column(_FILE).combine_chunks())


def _conjuncts(node: Node) -> list[Node]:
    if node == Constant(True):
        return []
    return [part for child in node.children for part in _conjuncts(child)] if isinstance(node, And) else [node]


def _mixed(node: Node) -> list[Node]:
    """The terms that read several columns."""
    if isinstance(node, And | Or):
        return [part for child in node.children for part in _mixed(child)]
    if isinstance(node, Not):
        return _mixed(node.child)
    return [node] if isinstance(node, ColumnLeaf | Residual) else []


def _is_ordered_by_all_writers(dtype: pa.DataType) -> bool:
    """Whether values are stored, and compared, as signed numbers, of which statistics were always right."""
    if pa.types.is_nested(dtype):
        return all(_is_ordered_by_all_writers(dtype.field(i).type) for i in range(dtype.num_fields))
    return pa.types.is_boolean(dtype) or pa.types.is_signed_integer(dtype) or pa.types.is_temporal(dtype)


def _type_as_read(dtype: pa.DataType) -> str:
    """The type in which DuckDB reads a column of a file."""
    return (type_text(dtype) or "").replace("TIMESTAMP_MS", "TIMESTAMP")


def _times_in(name: str, kind: pa.DataType) -> Iterator[str]:
    """The dotted paths of timestamps within a column."""
    if pa.types.is_timestamp(kind):
        yield name
    elif pa.types.is_nested(kind):
        for i in range(kind.num_fields):
            yield from _times_in(f"{name}.{kind.field(i).name}", kind.field(i).type)
