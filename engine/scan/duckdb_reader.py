"""Rows of local files, read and tested by DuckDB: one query per chunk of files (`duckdb_select.py`).

    tasks and row groups -> files that DuckDB reads exactly -> chunks -> one query each -> rows in the table's types

Files of a chunk have one physical schema. The query may also count the rows, count them by the values of some columns,
or sort them and return the first.

A chunk's rows are returned once all of them are read and the files are found unchanged. If DuckDB raises an error,
pyarrow reads the chunk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import duckdb
import numpy as np
import pyarrow as pa

from ...base.arrays import to_numpy
from ...errors import SchemaError, SkipstoneError
from ..parquet.leaves import UNTRUSTED, top_level
from ..predicates import Constant, columns_read
from ..predicates.coerce import is_exact_widening
from ..predicates.literals import quoted, string_sql
from ..predicates.possible_values import Evidence
from ..state.snapshot import Snapshot
from .duckdb_connection import cursor, guarded_key, is_supported, nan_rows, to_arrow
from .duckdb_select import FILE, PREFIX, ROW, Query, QueryWriter, are_ambiguous, rows_decoded, type_text, values_within
from .file_reader import cast_column, check_identities, planned_entry, rows_without_columns
from .file_tasks import FileTask, Pair, ReadContext, rows_read
from .planning import PlannedScan
from .prune import KEPT_FILES_MAX, PruneRequest, prune
from .steps import Steps
from .units import Units

if TYPE_CHECKING:
    from ..storage import Counted
    from .request import SortKey

R = TypeVar("R")

_VALUES_FIRST, _VALUES_MAX = 2_000_000, 64_000_000  # of a chunk
_RESULT_BYTES = 32 << 20  # that a chunk should return: the next is larger or smaller
_COUNT = f"{PREFIX}count"
_is_pattern = re.compile(r"[*?\[\]{}]").search  # DuckDB would expand such a path
_LOSES_NAN = "the installed DuckDB loses rows with NaN"
_CHECKED_FILES_MAX = 1_000
_checked_files: set[tuple] = set()  # in which DuckDB has the types of the Arrow schema for some columns
_kept: WeakKeyDictionary[Snapshot, dict[Any, Any]] = WeakKeyDictionary()


def _is_bounded(one: Evidence) -> np.ndarray:
    return (one.has_lower & one.has_upper) | ~one.may_be_value


_FACTS: dict[str, Callable[[Evidence], np.ndarray]] = {
    "bounded": _is_bounded,
    "bounded if known": _is_bounded,
    "times": lambda one: one.has_lower | ~one.may_be_value,  # INT96, which DuckDB wraps, has no bounds
}


@dataclass
class KeyedRows:
    """Rows with the values that they are sorted by.

    tasks        files
    keys         the values of each key
    numbers      of each row, its file's number among the tasks
    positions    its position in the file
    rows         other columns of them, in the table's types
    """

    tasks: Sequence[FileTask]
    keys: Sequence[pa.ChunkedArray | pa.Array]
    numbers: np.ndarray
    positions: np.ndarray
    rows: pa.Table


class DuckDBReader:
    """The part of one scan that DuckDB reads.

    refusal    why DuckDB reads none of the scan's files; empty if it reads some
    """

    def __init__(self, plan: PlannedScan, context: ReadContext):
        self._plan, self._context = plan, context
        self._storage: Counted = plan.storage
        self._schema = context.schema
        self._file_schemas = [one.schema for one in plan.instant.file_schemas]
        self.writer = QueryWriter(context, self._file_schemas, self._path_of)
        self._by_schema: dict[int, str] = {}
        self._values_max = _VALUES_MAX
        self.refusal = self._refusal()

    def _path_of(self, task: FileTask) -> str:
        return str(self._storage.uncounted.open_file(planned_entry(task)))

    def _refusal(self) -> str:
        writer = self.writer
        if not is_supported():
            return "the installed DuckDB is older than 2.0"
        if self._storage.is_remote:
            return "the files are remote"
        if refusal := writer.refusal():
            return refusal
        writer.guarded = [test for test in writer.tests if not self.is_ordered(columns_read(test))]
        return _LOSES_NAN if self._loses_nan(columns_read(self._context.bound)) else ""

    def _loses_nan(self, columns: Iterable[str]) -> bool:
        """Whether the installed DuckDB loses rows with NaN if it tests or sorts by some columns (dotted paths)."""
        types = [self._schema.field(top_level(self._schema, name)).type for name in columns]
        has_floats = any(pa.types.is_floating(each) for dtype in types for _, each in values_within("", dtype))
        return has_floats and not nan_rows()

    def is_ordered(self, columns: Iterable[str]) -> bool:
        """Whether DuckDB may prune by footer statistics of some columns (dotted paths): an index has bounds for each
        file. Nearly all writers order signed numbers right: for these, files of which no index has statistics count."""
        of_columns = {name: self._schema.field(top_level(self._schema, name)).type for name in columns}
        return all(
            name in self._context.partitioning
            or self._is_true_in_each_file("bounded if known" if _are_signed(dtype) else "bounded", name)
            for name, dtype in of_columns.items()
        )

    def _is_true_in_each_file(self, fact: str, column: str) -> bool:
        """Whether statistics show a fact about a column in each file that is left. What they show of all files of a
        small version is kept for the next scan."""
        plan = self._plan
        if plan.tail is None and plan.instant.totals["files"] <= KEPT_FILES_MAX:
            known, key = kept_of(plan.snapshot), (plan.mode, fact, column)
            if key not in known:
                if plan.mode not in known:
                    known[plan.mode] = prune(PruneRequest(Constant(True), plan.mode), plan.evidence, Steps())
                known[key] = _is_true_in(plan, known[plan.mode].units, fact, column)
            if known[key]:
                return True
        return _is_true_in(plan, plan.pruned.units, fact, column)

    # -- which files ---------------------------------------------------------------------------------------------------

    def served(self, pair: Pair) -> bool:
        """Whether DuckDB reads a file exactly."""
        task, groups = pair
        if task.schema_id not in self._by_schema:
            self._by_schema[task.schema_id] = self._schema_refusal(task.schema_id)
        if self._by_schema[task.schema_id] or _is_pattern(task.path):
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
        file_schema = self._file_schemas[schema_id]
        if UNTRUSTED in (file_schema.metadata or ()):  # DuckDB reads a column as null if its statistics say so
            return "statistics in the footers contradict themselves"
        if are_ambiguous(file_schema.names):
            return "names of columns in the files are ambiguous"
        for name in self.writer.used:
            file_name = context.names[schema_id].get(name)
            if file_name is None or name in context.partitioning:
                continue
            stored, wanted = file_schema.field(file_name).type, self._schema.field(name).type
            is_same = stored == wanted or (not pa.types.is_nested(wanted) and is_exact_widening(stored, wanted))
            if type_text(stored) is None or not is_same:
                return f"column {name!r} is {stored} in some files"
            times = [path for path, dtype in values_within(name, wanted) if pa.types.is_timestamp(dtype)]
            if not all(path and self._is_true_in_each_file("times", path) for path in times):
                return f"times of column {name!r} may be stored as INT96"
        return ""

    # -- rows ----------------------------------------------------------------------------------------------------------

    def tables(self, pairs: Sequence[Pair], left: list[Pair], at_once: bool) -> Iterator[pa.Table]:
        """The matching rows of some files. Files that DuckDB cannot read are added to `left`.

        at_once    all rows are wanted in memory, so chunks need not be small
        """
        self._values_max = _VALUES_MAX if at_once else _VALUES_FIRST
        for rows in self._results(pairs, left, self._rows_of):
            if not at_once:
                wanted = self._values_max * _RESULT_BYTES // max(rows.nbytes, 1)
                self._values_max = min(max(wanted, _VALUES_FIRST // 16), 4 * self._values_max, _VALUES_MAX)
            yield rows

    def count(self, pairs: Sequence[Pair], left: list[Pair]) -> int:
        """How many rows of some files match. Files that DuckDB cannot read are added to `left`."""

        def counted(query: Query, opened: Any) -> int:
            return int(to_arrow(opened, f"SELECT count(*) FROM ({query.text})").column(0)[0].as_py())

        return sum(self._results(pairs, left, counted))

    def groups(
        self, pairs: Sequence[Pair], names: Sequence[str], left: list[Pair], *, counts: bool
    ) -> Iterator[tuple[list[pa.ChunkedArray], np.ndarray]]:
        """The values of some columns (dotted paths) that occur in the matching rows of some files, with their counts
        (1 if `counts` is false), ascending per chunk, nulls last. Files that DuckDB cannot read are added to `left`."""

        def grouped(query: Query, opened: Any) -> tuple[list[pa.ChunkedArray], np.ndarray]:
            keys = ", ".join(f"{self.writer.leaf_text(name)} AS {quoted(str(i))}" for i, name in enumerate(names))
            count = "count(*)" if counts else "1"
            text = f"SELECT {keys}, {count} AS {_COUNT} FROM ({query.text}) GROUP BY ALL ORDER BY ALL NULLS LAST"
            rows = to_arrow(opened, text)
            return rows.columns[:-1], to_numpy(rows.column(_COUNT)).astype(np.int64)

        return self._results(pairs, left, grouped, with_constants=True)

    def first_rows(
        self, pairs: Sequence[Pair], keys: Sequence[SortKey], limit: int, kept: Sequence[str], left: list[Pair]
    ) -> Iterator[KeyedRows]:
        """The first rows of an order per chunk of files. Files that DuckDB cannot read are added to `left`.

        kept    the columns that are returned in addition to the keys
        """
        names = [f"{PREFIX}key{i}" for i in range(len(keys))]
        may_prune = self.is_ordered([keys[0].column])
        if self._loses_nan([keys[0].column]):
            self._context.why_pyarrow.append(_LOSES_NAN)
            left += pairs
            return iter(())

        def first(query: Query, opened: Any) -> KeyedRows:
            texts = [self.writer.leaf_text(key.column) for key in keys]
            if not may_prune:
                texts[0] = guarded_key(texts[0])
            selected = [f"{text} AS {name}" for text, name in zip(texts, names, strict=True)]
            order = [
                f"{name} {'DESC' if key.is_max else 'ASC'} NULLS {'FIRST' if key.nulls_first else 'LAST'}"
                for key, name in zip(keys, names, strict=True)
            ]
            text = f"SELECT {', '.join([*selected, *map(quoted, kept), FILE, ROW])} FROM ({query.text})"
            rows = to_arrow(opened, f"{text} ORDER BY {', '.join(order)} LIMIT {limit}")
            numbers, positions = (to_numpy(rows.column(name)) for name in (FILE, ROW))
            of_keys = [rows.column(name) for name in names]
            return KeyedRows(query.tasks, of_keys, numbers, positions, self._shaped(query, rows, kept))

        return self._results(pairs, left, first, with_constants=True)

    def _results(
        self,
        pairs: Sequence[Pair],
        left: list[Pair],
        result_of: Callable[[Query, Any], R],
        *,
        with_constants: bool = False,
    ) -> Iterator[R]:
        """What DuckDB returns for each chunk."""
        waiting = [piece for pair in pairs for piece in self._pieces(pair)]
        waiting.sort(key=lambda piece: piece[0].schema_id)
        while waiting:
            chunk = _first_chunk(waiting, self._values_max // max(len(self.writer.used), 1))
            del waiting[: len(chunk)]
            result, error = self._result_of(chunk, result_of, with_constants)
            if result is None:
                self._context.why_pyarrow.append(error)
                left += chunk
            else:
                yield result
                result = None  # before the next chunk is read

    def _result_of(
        self, chunk: list[Pair], result_of: Callable[[Query, Any], R], with_constants: bool
    ) -> tuple[R | None, str]:
        """What DuckDB returns for a chunk, or why it cannot read it. Raises NotReadableError if a file changed."""
        query = self.writer.write(chunk, with_constants=with_constants)
        if query is None:
            return None, "DuckDB has no text for the query"
        result, error = None, ""
        with self._plan.reporting_changes():
            check_identities(query.tasks, self._storage)
            try:
                with cursor() as opened:
                    self.check_types(chunk[0][0], opened)
                    for name, table in query.tables.items():
                        opened.register(name, table)
                    # To keep their order, DuckDB reads the parts of a UNION ALL one after the other.
                    opened.execute(f"SET SESSION preserve_insertion_order = {query.parts == 1}")
                    result = result_of(query, opened)
                    for name in query.tables:
                        opened.unregister(name)
            except (duckdb.Error, pa.ArrowException, SkipstoneError, ValueError) as raised:
                error = f"DuckDB failed: {str(raised).splitlines()[0]}"
            check_identities(query.tasks, self._storage)
        if not error:
            self._context.by_duckdb.extend(task.path for task in query.tasks)
            self._count(chunk)
        return result, error

    def _count(self, chunk: Sequence[Pair]) -> None:
        """Tell the storage about how much DuckDB reads: the column chunks, and the footers, of some files."""
        stored, schema = self.writer.stored(chunk[0][0]), self._file_schemas[chunk[0][0].schema_id]
        requests, size_bytes = 0, 0.0
        for task, groups in chunk:
            requests += 1 + len(stored) * len(groups.kept or [0])
            size_bytes += task.size_bytes * rows_decoded(task, groups) / max(task.row_count, 1)
        self._storage.count(requests, int(size_bytes * len(stored) / max(len(schema), 1)))

    def _rows_of(self, query: Query, opened: Any) -> pa.Table:
        """Rows in the table's types."""
        context = self._context
        names = [*map(quoted, query.columns), *([FILE] if set(context.partitioning) & set(context.columns) else [])]
        rows = to_arrow(opened, f"SELECT {', '.join(names) or '1'} FROM ({query.text})")
        return self._shaped(query, rows, context.columns)

    def _shaped(self, query: Query, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """Some columns of what a query returned, in the table's types."""
        tasks = query.tasks
        columns: list[pa.Array | pa.ChunkedArray] = []
        for name in names:
            if name in self._context.partitioning:
                columns.append(_values_of_files([task.partition[name] for task in tasks], rows))
            elif name in rows.column_names:
                columns.append(cast_column(rows.column(name), self._schema.field(name).type, tasks[0].path, name))
            else:
                columns.append(pa.repeat(self.writer.value_of(name, tasks[0]), rows.num_rows))
        if not columns:
            return rows_without_columns(rows.num_rows)
        return pa.Table.from_arrays(columns, names=list(names))

    def check_types(self, task: FileTask, opened: Any) -> None:
        """Raise SchemaError if DuckDB reads a column as another type than Arrow's schema has: a VARIANT, for example.
        The first file of each physical schema is looked at."""
        stored, path = list(self.writer.stored(task).values()), self._path_of(task)
        key = path, task.size_bytes, task.modified_ns, *stored
        if not stored or key in _checked_files:
            return
        file_schema = self._file_schemas[task.schema_id]
        expected = ", ".join(f"CAST(NULL AS {_type_as_read(file_schema.field(name).type)})" for name in stored)
        source = f"read_parquet([{string_sql(path)}], hive_partitioning = false)"
        found = opened.sql(f"SELECT {', '.join(map(quoted, stored))} FROM {source}").types
        for name, dtype, wanted in zip(stored, found, opened.sql(f"SELECT {expected}").types, strict=True):
            if dtype != wanted:
                raise SchemaError(f"column {name!r} is {dtype} to DuckDB")
        if len(_checked_files) >= _CHECKED_FILES_MAX:
            _checked_files.clear()
        _checked_files.add(key)

    def _pieces(self, pair: Pair) -> Iterator[Pair]:
        """A file, or row groups of a large one."""
        task, groups = pair
        rows_max = self._values_max // max(len(self.writer.used), 1)
        if groups.kept is None or groups.first_rows is None or rows_read(*pair) <= 2 * rows_max:
            yield pair
            return
        begin = rows = 0
        for end, count in enumerate([*(groups.row_counts or []), rows_max]):
            if end > begin and rows + count > rows_max:
                yield task, groups.part(range(begin, end))
                begin, rows = end, 0
            rows += count


def kept_of(snapshot: Snapshot) -> dict[Any, Any]:
    """What readers keep of a version for the next scan, by all that it depends on. It is dropped with the version."""
    return _kept.setdefault(snapshot, {})


def _is_true_in(plan: PlannedScan, units: Units, fact: str, column: str) -> bool:
    known, unknown = np.zeros(units.count, dtype=bool), np.ones(units.count, dtype=bool)
    for evidence, covered in plan.column_bounds(column, units):
        known |= covered & _FACTS[fact](evidence)
        unknown &= ~covered
    return bool((known | unknown if fact == "bounded if known" else known).all())


def _first_chunk(waiting: Sequence[Pair], rows_max: int) -> list[Pair]:
    """The first pieces, of one physical schema, that have at most so many rows; at least one."""
    count = rows = 0
    for task, groups in waiting:
        rows += rows_decoded(task, groups)
        if count and (rows > rows_max or task.schema_id != waiting[0][0].schema_id):
            break
        count += 1
    return list(waiting[:count])


def _values_of_files(values: list[pa.Scalar], rows: pa.Table) -> pa.Array:
    """One value per row: that of its file."""
    if all(value == values[0] for value in values):
        return pa.repeat(values[0], rows.num_rows)
    of_files = pa.concat_arrays([pa.repeat(value, 1) for value in values])
    return of_files.take(rows.column(FILE).combine_chunks())


def _are_signed(dtype: pa.DataType) -> bool:
    """Whether values are stored, and compared, as signed numbers."""
    of = pa.types
    return all(of.is_boolean(t) or of.is_signed_integer(t) or of.is_temporal(t) for _, t in values_within("", dtype))


def _type_as_read(dtype: pa.DataType) -> str:
    """The type in which DuckDB reads a column of a file."""
    return (type_text(dtype) or "").replace("TIMESTAMP_MS", "TIMESTAMP")
