"""The text of the query by which DuckDB reads some files.

    SELECT columns, file, row FROM (SELECT column AS name, ... FROM read_parquet([...])) JOIN ... WHERE condition

Files that are read alike are in one SELECT, and UNION ALL joins these. Columns are renamed and cast in the query. Row
groups are ranges of `file_row_number`. Joins remove deleted rows, and keep the rows of a look-up. Terms over columns
that a file does not have become constants.

Below: predicates, columns and values as text; None for what DuckDB cannot say exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ...base.arrays import ascending_once, from_numpy
from ..predicates import (
    And,
    ColumnRef,
    Constant,
    Node,
    Not,
    Or,
    Residual,
    Term,
    TwoColumnTerm,
    matches,
    residuals,
    resolve,
    top_columns,
)
from ..predicates.duckdb_trees import EXACT_TYPES
from ..predicates.literals import Temporal, literal_sql, literal_value, quoted, string_sql
from .duckdb_connection import guarded, guarded_key
from .file_tasks import FileTask, Pair, ReadContext, RowGroups, rows_read

PREFIX = "__skipstone_"  # of names that are only in our queries
FILE, ROW = f"{PREFIX}file", f"{PREFIX}row"
_VIRTUAL_COLUMNS = {"file_row_number", "file_index", "filename", "file_row_id", "rowid"}
_DELETED, _NAMED = "deleted", "named"
VALUES_MAX = 10_000  # of a list; more take DuckDB longer to parse than they save
_COMPARISONS = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "IS NOT DISTINCT FROM"}
_LISTED_MAX = 100  # values in the text of a query
_POSITIONS_MAX = 1_000  # rows that are named in the text of a query
_RANGES_MAX = 200  # ranges of more rows: blocks of an n-gram index have about 2,048 rows
_DUCKDB_ROWS_PER_NAMED_ROW = 2048  # that are decoded: a vector
_SMALL_FILE_ROWS_MAX = 1 << 17  # about a row group: such files are read together
# Of more files with positions of their own, and so with a SELECT each, the condition on values is tested if there is
# one: for 50 to 500 rows in each of 60 files that takes a quarter to an eighteenth of the time.
_POSITION_FILES_MAX = 32


def are_ambiguous(names: Collection[str]) -> bool:
    """Whether DuckDB takes names of columns for each other or for others in our queries, or cannot have one of them."""
    folded = {name.casefold() for name in names}
    is_refused = any(not name or name.startswith(PREFIX) or "\0" in name for name in folded)
    return is_refused or len(folded) < len(names) or not folded.isdisjoint(_VIRTUAL_COLUMNS)


def rows_decoded(task: FileTask, groups: RowGroups) -> int:
    """Estimate how many rows of a file DuckDB decodes."""
    return rows_read(task, groups, per_named_row=_DUCKDB_ROWS_PER_NAMED_ROW)


@dataclass
class Query:
    """A SELECT of the matching rows: the columns that it has, with FILE (the file's number) and ROW (its position).

    tasks      the files, by number
    columns    the columns that are read, and not added to the result
    tables     tables of row numbers that the query joins, by name
    parts      SELECTs that UNION ALL joins
    """

    text: str
    tasks: list[FileTask]
    columns: list[str]
    tables: dict[str, pa.Table] = field(default_factory=dict)
    parts: int = 1


class QueryWriter:
    """Writes the queries of one scan.

    used     the columns that are read or tested
    types    the DuckDB type of each of them, except partition columns
    tests    the conditions on rows, joined by AND: the parts of the predicate
    guarded  those of them that no statistics may decide
    hidden   columns whose statistics decide nothing, whatever reads the query's rows
    options  further options of read_parquet
    prefix   of the names of the tables that queries join
    """

    def __init__(self, context: ReadContext, file_schemas: Sequence[pa.Schema], path_of: Callable[[FileTask], str]):
        self._context, self._file_schemas, self._path_of = context, file_schemas, path_of
        self.hidden: set[str] = set()
        self.options, self.prefix = "", PREFIX
        self._schema = context.schema
        self._is_lookup = context.bound == Constant(True)
        self.tests = _conjuncts(context.bound)
        self.used = tuple(dict.fromkeys([*context.columns, *top_columns(context.bound)]))
        self.types: dict[str, str] = {}
        self.guarded: list[Node] = []
        self._texts: dict[Node, str | None] = {}
        self._lists: dict[str, pa.Table] = {}

    def refusal(self) -> str:
        """Why DuckDB reads no file; empty if it may read some."""
        for name in self.used:
            if name in self._context.partitioning:
                continue
            named = type_text(self._schema.field(name).type)
            if named is None:
                return f"column {name!r} is {self._schema.field(name).type}"
            self.types[name] = named
        if are_ambiguous(self.used):
            return "names of columns are ambiguous"
        if any(part.engine not in ("duckdb", "spark") for part in residuals(self._context.bound)):
            return "another engine tests a part of the predicate"
        return ""

    def leaf_text(self, path: str) -> str:
        """A column, or a field of a struct by its dotted path."""
        return _field_text(resolve(path, self._schema).path)

    def path_text(self, task: FileTask) -> str:
        """The path of a file, for DuckDB."""
        return string_sql(self._path_of(task))

    def stored(self, task: FileTask) -> dict[str, str]:
        """The columns that a file has: the names in the table and in the file."""
        names = self._context.names[task.schema_id]
        return {name: names[name] for name in self.used if name in names and name not in self._context.partitioning}

    def value_of(self, name: str, task: FileTask) -> pa.Scalar:
        """The value of a column that the file does not have, in each of its rows."""
        if name in task.partition:
            return task.partition[name]
        return self._context.defaults.get(name) or pa.nulls(1, self._schema.field(name).type)[0]

    def write(self, pieces: Sequence[Pair], *, with_constants: bool = False) -> Query | None:
        """The query that reads files of one physical schema; None if DuckDB has no text for it.

        pieces            files, or some of the row groups of a file
        with_constants    the result has the columns that the files do not have as well
        """
        tasks = list({task.path: task for task, _ in pieces}.values())
        number_of = {task.path: number for number, task in enumerate(tasks)}
        stored = self.stored(tasks[0])
        columns = [name for name in self._context.columns if name in stored or with_constants]
        constants = dict.fromkeys(name for name in columns if name not in stored)
        for name in [name for test in self.tests for part in _mixed(test) for name in top_columns(part)]:
            if name not in stored:
                constants[name] = None
        named = [task for task in tasks if task.rows is not None]
        within = [_rows_of_groups(groups) for _, groups in pieces]
        parted = {task.path for (task, _), rows in zip(pieces, within, strict=True) if rows}
        small = {task.path for task in named if task.row_count <= _SMALL_FILE_ROWS_MAX} - parted
        shared = _positions_in_any(named, small)
        alone = len(named) - len(small) if shared else len(named)
        names_positions = not self.tests or alone <= _POSITION_FILES_MAX
        alike: dict[tuple, list[FileTask]] = {}
        for (task, groups), rows in zip(pieces, within, strict=True):
            is_shared = bool(shared) and task.path in small
            named_rows = _named_rows(task) if names_positions and not is_shared else ""
            positions = shared if is_shared else " AND ".join(filter(None, (named_rows, rows)))
            is_own = bool(positions) and not is_shared
            where = self._condition(task, groups, is_exact=bool(named_rows) and task.rows_exact)
            if where is None:
                return None
            joins = (task.path in self._context.deletes, task.rows is not None and self._is_lookup)
            alike.setdefault((where, positions, task.path if is_own else "", joins), []).append(task)
        selects = []
        for (where, positions, _, joins), own in alike.items():
            select = self._select(own, number_of, columns, list(constants), joins)
            if select is None:
                return None
            conditions = " AND ".join(condition for condition in (positions, where) if condition not in ("", "TRUE"))
            selects.append(f"{select} WHERE {conditions}" if conditions else select)
        tables = {
            self.prefix + _DELETED: _row_numbers([self._context.deletes.get(task.path) for task in tasks]),
            self.prefix + _NAMED: _row_numbers([task.rows if self._is_lookup else None for task in tasks]),
        }
        tables = self._lists | {name: table for name, table in tables.items() if table is not None}
        return Query(" UNION ALL ".join(selects), tasks, columns, tables, len(selects))

    def _select(
        self,
        tasks: list[FileTask],
        number_of: dict[str, int],
        columns: list[str],
        constants: list[str],
        joins: tuple[bool, bool],
    ) -> str | None:
        task = tasks[0]
        file_schema = self._file_schemas[task.schema_id]
        inner: dict[str, str] = {}
        for name, file_name in self.stored(task).items():
            column, wanted = quoted(file_name), self.types[name]
            if type_text(file_schema.field(file_name).type) != wanted or "TIMESTAMP_MS" in wanted:
                column = f"CAST({column} AS {wanted})"
            if name in self.hidden:
                column = guarded_key(column)
            inner[name] = f"{column} AS {quoted(name)}"
        for name in constants:
            texts = [value_text(self.value_of(name, each)) for each in tasks]
            if None in texts:
                return None
            inner[name] = f"{_by_file(list(map(str, texts)))} AS {quoted(name)}"
        paths = ", ".join(map(self.path_text, tasks))
        source = f"read_parquet([{paths}], hive_partitioning = false{self.options})"
        numbers = [number_of[each.path] for each in tasks]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            inner[FILE] = f"CAST(file_index AS INTEGER) + {numbers[0]} AS {FILE}"
        else:
            inner[FILE] = f"{_by_file([f'CAST({number} AS INTEGER)' for number in numbers])} AS {FILE}"
        inner[ROW] = f"file_row_number AS {ROW}"
        outer = ", ".join([*map(quoted, columns), FILE, ROW])
        text = f"SELECT {outer} FROM (SELECT {', '.join(inner.values())} FROM {source})"
        for kind, table, is_joined in zip(("ANTI", "SEMI"), (_DELETED, _NAMED), joins, strict=True):
            text += f" {kind} JOIN {self.prefix}{table} USING ({FILE}, {ROW})" if is_joined else ""
        return text

    def _condition(self, task: FileTask, groups: RowGroups, *, is_exact: bool) -> str | None:
        """What the rows of a piece are tested by; TRUE if all of them match (`is_exact`: a condition on the row number
        names exactly the rows that match)."""
        if task.rows is None:
            if self._is_lookup or task.all_match or (groups.all_match and all(groups.all_match)):
                return "TRUE"
        elif is_exact:
            return "TRUE"
        texts = []
        for condition in self.tests:
            folded = self._folded(condition, task)
            if folded == Constant(True):
                continue
            if folded not in self._texts:
                self._texts[folded] = self._text_of(folded)
            text = self._texts[folded]
            if text is None:
                return None
            texts.append(guarded(text) if condition in self.guarded else text)
        return " AND ".join(texts) or "TRUE"

    def _text_of(self, condition: Node) -> str | None:
        """The text of a condition; None if it has none. A long list is a table, which DuckDB joins."""
        if isinstance(condition, Term) and condition.op == "in" and len(condition.values) > _LISTED_MAX:
            column, dtype = column_text(condition.ref), type_text(condition.values.type)
            if column is not None and dtype is not None and not pa.types.is_floating(condition.type):
                name = f"{self.prefix}list{len(self._lists)}"
                self._lists[name] = pa.table({"value": condition.values})
                return f"({column} IN (SELECT CAST(value AS {dtype}) FROM {name}))"
        return condition_text(condition)

    def _folded(self, node: Node, task: FileTask) -> Node:
        """A condition in which terms over columns that the file does not have are constants."""
        names = self._context.names[task.schema_id]

        columns = top_columns(node)
        constants = [name for name in columns if name in self._context.partitioning or name not in names]
        if not constants:
            return node
        if isinstance(node, Term) or (isinstance(node, TwoColumnTerm) and constants == columns):
            row = pa.table([pa.repeat(self.value_of(name, task), 1) for name in columns], names=columns)
            return Constant(matches(node, row)[0].as_py())
        if isinstance(node, And | Or):
            return type(node)(tuple(self._folded(child, task) for child in node.children))
        return Not(self._folded(node.child, task)) if isinstance(node, Not) else node


def _positions_in_any(named: Sequence[FileTask], small: set[str]) -> str:
    """A condition on the row number: an index named it in one of several small files; "" if there are many. One SELECT
    reads these files side by side, and tests the rows of other files that have such a number."""
    rows = [task.rows for task in named if task.path in small and task.rows is not None]
    if len(rows) < 2 or max(map(len, rows)) > _POSITIONS_MAX:
        return ""
    numbers = ascending_once(np.concatenate(rows))
    return f"{ROW} IN ({', '.join(map(str, numbers.tolist()))})" if 0 < len(numbers) <= _POSITIONS_MAX else ""


def _named_rows(task: FileTask) -> str:
    """A condition on the row number: an index named it; "" if it named many that are scattered."""
    if task.rows is None:
        return ""
    if len(task.rows) <= _POSITIONS_MAX:
        return f"{ROW} IN ({', '.join(map(str, task.rows.tolist())) or 'NULL'})"
    ends = np.append(np.flatnonzero(np.diff(task.rows) != 1), len(task.rows) - 1)
    if len(ends) > _RANGES_MAX:
        return ""
    firsts = task.rows[np.append(0, ends[:-1] + 1)].tolist()
    return _within(list(zip(firsts, (task.rows[ends] + 1).tolist(), strict=True)))


def _rows_of_groups(groups: RowGroups) -> str:
    """A condition on the row number: it is in one of the kept row groups; "" if these are all, or not known."""
    if groups.kept is None or groups.first_rows is None or groups.total == len(groups.kept):
        return ""
    ranges: list[tuple[int, int]] = []
    for first, count in zip(groups.first_rows, groups.row_counts or [], strict=True):
        if ranges and ranges[-1][1] == first:
            ranges[-1] = ranges[-1][0], first + count
        else:
            ranges.append((first, first + count))
    return _within(ranges)


def _within(ranges: Sequence[tuple[int, int]]) -> str:
    """A condition on the row number: it is in one of the ranges, which end before their second number."""
    return "(" + " OR ".join(f"{ROW} BETWEEN {a} AND {b - 1}" for a, b in ranges) + ")" if ranges else "FALSE"


def _by_file(texts: list[str]) -> str:
    """The text for each file of a SELECT, by its number."""
    return texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}][CAST(file_index AS INTEGER) + 1]"


def _row_numbers(rows_of_files: Sequence[np.ndarray | None]) -> pa.Table | None:
    """The rows of some files as a table; None if there are none for any file."""
    parts = [(number, rows) for number, rows in enumerate(rows_of_files) if rows is not None]
    if not parts:
        return None
    files = np.repeat(np.array([number for number, _ in parts], dtype=np.int32), [len(rows) for _, rows in parts])
    rows = np.concatenate([rows for _, rows in parts]).astype(np.int64)
    return pa.table({FILE: from_numpy(files), ROW: from_numpy(rows)})


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
    return [node] if isinstance(node, TwoColumnTerm | Residual) else []


# -- text --------------------------------------------------------------------------------------------------------------


def type_text(dtype: pa.DataType) -> str | None:
    """The DuckDB type in which DuckDB reads and returns each value of an Arrow type exactly; None if there is none."""
    of = pa.types
    if dtype in EXACT_TYPES:
        return EXACT_TYPES[dtype]
    if of.is_decimal128(dtype):
        return f"DECIMAL({dtype.precision}, {dtype.scale})" if 0 <= dtype.scale <= dtype.precision else None
    if of.is_timestamp(dtype) and dtype.unit in ("ms", "us"):
        return "TIMESTAMPTZ"
    if of.is_list(dtype) or of.is_large_list(dtype):
        value = type_text(dtype.value_type)
        return None if value is None else f"{value}[]"
    if of.is_map(dtype):
        key, value = type_text(dtype.key_type), type_text(dtype.item_type)
        return None if key is None or value is None else f"MAP({key}, {value})"
    if of.is_struct(dtype):
        fields = [(field.name, type_text(field.type)) for field in dtype]
        names = {name.casefold() for name, _ in fields}
        if not fields or len(names) < len(fields) or not all(names):
            return None
        if any(value is None for _, value in fields):
            return None
        return f"STRUCT({', '.join(f'{quoted(name)} {value}' for name, value in fields)})"
    return None


def values_within(path: str, dtype: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """(dotted path, type) of each value within a column. The path of values in lists and maps is ""."""
    if not pa.types.is_nested(dtype):
        yield path, dtype
        return
    for i in range(dtype.num_fields):
        child = dtype.field(i)
        yield from values_within(f"{path}.{child.name}" if path and pa.types.is_struct(dtype) else "", child.type)


def value_text(value: pa.Scalar) -> str | None:
    """A value as a constant of the type that `type_text` returns; None if it cannot be written exactly."""
    dtype = value.type
    named = type_text(dtype)
    if named is None or (value.is_valid and pa.types.is_nested(dtype)):
        return None
    if not value.is_valid:
        return f"CAST(NULL AS {named})"
    if pa.types.is_decimal(dtype):  # without quotes a long one is a double
        return f"CAST('{value.as_py():f}' AS {named})"
    literal = literal_value(value)
    if named == "TIMESTAMPTZ":  # a text would be read in the session's time zone
        assert isinstance(literal, Temporal)
        return f"make_timestamptz({literal.ns // 1000})"
    if isinstance(literal, str) and "\0" in literal:
        return None
    return f"CAST({literal_sql(literal)} AS {named})"


def condition_text(node: Node) -> str | None:
    """A condition on rows that have the table's names and types: TRUE for exactly the rows that match."""
    if isinstance(node, Constant):
        return "NULL::BOOLEAN" if node.value is None else str(node.value).upper()
    if isinstance(node, Not):
        child = condition_text(node.child)
        return None if child is None else f"(NOT {child})"
    if isinstance(node, And | Or):
        children = [condition_text(child) for child in node.children]
        if any(child is None for child in children):
            return None
        joined = (" AND " if isinstance(node, And) else " OR ").join(map(str, children))
        return f"({joined})" if children else str(isinstance(node, And)).upper()
    if isinstance(node, Residual) and node.engine == "spark":
        return "TRUE"
    if isinstance(node, Residual):
        # A comment at the end of the text ends with its line.
        return f"CAST((\n{node.text}\n) AS BOOLEAN)" if node.engine == "duckdb" else None
    if isinstance(node, TwoColumnTerm):
        return _columns_text(node)
    return _term_text(node) if isinstance(node, Term) else None


def column_text(ref: ColumnRef) -> str | None:
    """A column, or a field of a struct."""
    if ref.is_uuid or type_text(ref.type) is None:
        return None
    return _field_text(ref.path)


def _field_text(path: Sequence[str]) -> str:
    text = quoted(path[0])
    for name in path[1:]:
        text = f"struct_extract({text}, {string_sql(name)})"
    return text


def _columns_text(term: TwoColumnTerm) -> str | None:
    left, right = column_text(term.left), column_text(term.right)
    if left is None or right is None or term.left.type != term.right.type:
        return None
    return f"({left} {_COMPARISONS[term.op]} {right})"


def _term_text(term: Term) -> str | None:
    column = column_text(term.ref)
    if column is None or len(term.values) > VALUES_MAX:
        return None
    if term.op == "is_null":
        return f"({column} IS NULL)"
    if term.op == "always":
        return f"({column} IS NOT NULL OR NULL)"
    if term.op == "never":
        return f"({column} IS NULL AND NULL)"
    if term.op in ("like", "starts_with"):
        return _pattern_text(term, column)
    values = [value_text(value) for value in term.values]
    if any(value is None for value in values):
        return None
    if term.op in ("in", "not in"):
        return f"({column} {term.op.upper()} ({', '.join(map(str, values))}))"
    return f"({column} {_COMPARISONS[term.op]} {values[0]})"


def _pattern_text(term: Term, column: str) -> str | None:
    if not (pa.types.is_string(term.type) or pa.types.is_large_string(term.type)):
        return None
    if term.pattern is not None:
        pattern = term.pattern.sql()
        return None if "\0" in pattern else f"({column} LIKE {string_sql(pattern)} ESCAPE '\\')"
    value = value_text(term.values[0].cast(pa.string()))
    return None if value is None else f"starts_with({column}, {value})"
