"""A table, or a plan, as a pyarrow Dataset that plans each of its scans through the index.

DuckDB and polars hand a Dataset the columns and the filter of a query: `SELECT ... FROM lake WHERE ...` calls
`scanner(columns=..., filter=...)` with a pyarrow expression. Each call is a new plan, so a query that knows
nothing about Skipstone skips files and row groups. Both engines trust the filter that they pass and do not test it
again: the scanner gives exactly the rows that match, or raises. Comparisons mean what they mean everywhere in
Skipstone: NaN equals NaN and is greater than all else, as in DuckDB and polars; pyarrow's own filters differ there.

pyarrow also reads Datasets from C++, where Python's methods are not called (`ds.dataset([lake, lake])`,
`Scanner.from_dataset(lake)`). There the Dataset is one file of a file system that refuses to open it, so such a call
raises our error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs

from ...errors import InvalidArgumentError, NotReadableError, SchemaError, is_integer
from ..predicates import Constant, Node, matches, prepare, top_columns
from ..predicates.from_arrow import from_arrow, top_level_names
from .fragments import ReadNothing
from .planning import PlannedScan

_BATCH_ROWS = 131_072  # pyarrow's own default
_OTHER_WAYS = "scan it with scanner(), to_table() or to_batches(), or pass its rows as plan.to_reader()"


class RowSource(Protocol):
    """What a dataset needs of a plan."""

    planning: PlannedScan

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    def narrowed(self, where: Node, columns: Sequence[str] | None = None, limit: int | None = None) -> Self: ...
    def count(self) -> int: ...
    def to_table(self) -> pa.Table: ...
    def to_reader(self) -> pa.RecordBatchReader: ...
    def fragments(self) -> ds.FileSystemDataset: ...


class LakeDataset(ds.UnionDataset):
    """The rows of a plan, scanned through the index. `Table.dataset` and `Plan.dataset` return it.

    It stays at the version at which it was created, unless `newest` returns another plan for each scan. Rows have no
    promised order. Methods that are not listed here are pyarrow's own, on top of `scanner`.
    """

    def __new__(cls, *args: Any, **options: Any) -> LakeDataset:
        return super().__new__(cls)

    def __init__(self, plan: RowSource, filter: Node | None = None, newest: Callable[[], RowSource] | None = None):
        self._pinned, self._filter = plan, Constant(True) if filter is None else filter
        self._newest = newest
        super().__init__(plan.schema, [_unreadable(plan.schema)])

    def _current_plan(self) -> RowSource:
        """Move to what is scanned now, and return it. Raises SchemaError if the columns have changed."""
        if self._newest is not None:
            self._pinned = self._newest()
            if not self._pinned.schema.equals(self.schema):
                raise SchemaError("the table has other columns than this dataset: call table.dataset() again")
        return self._pinned

    def __repr__(self) -> str:
        return f"<skipstone.LakeDataset of {self._pinned!r}>"

    def __reduce__(self) -> tuple:
        return LakeDataset, (self._current_plan(), self._filter)  # another process reads the version of now

    @property
    def children(self) -> NoReturn:
        """Raises InvalidArgumentError: no part of it can be read by itself."""
        raise InvalidArgumentError(f"a dataset of a Skipstone table has no children; {_OTHER_WAYS}")

    def scanner(
        self,
        columns: Sequence[str] | dict[str, pc.Expression] | None = None,
        filter: object = None,
        batch_size: int = _BATCH_ROWS,
        **options: Any,
    ) -> ds.Scanner:
        """Return a scanner of exactly the rows that match.

        Args:
            columns: names, in this order, or names of new columns to expressions over the table's; None for all.
            filter: a pyarrow expression, or anything that `Table.scan` accepts as `where`.
            batch_size: at most so many rows per batch.
            options: pyarrow's options of reading. They change no row and are ignored.

        Raises PredicateError for a filter that is not understood, and SchemaError for columns that do not exist, both
        before anything is read; InvalidArgumentError for a `batch_size` below 1; NotReadableError as `Plan.to_table`.
        """
        if not isinstance(columns, dict):
            return _scanner(self._reader(columns, filter, batch_size))
        named = {name for expression in columns.values() for name in top_level_names(expression, self.schema)}
        reader = self._reader([name for name in self.schema.names if name in named], filter, batch_size)
        return _scanner(reader, columns)

    def to_table(self, columns: Any = None, filter: object = None, **options: Any) -> pa.Table:
        """The rows of a scan, see `scanner`."""
        return self.scanner(columns, filter, **options).to_table()

    def to_batches(self, columns: Any = None, filter: object = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a scan, as they are read."""
        return self.scanner(columns, filter, **options).to_batches()

    def count_rows(self, filter: object = None, **options: Any) -> int:
        """How many rows match, as `Plan.count`: no file is read if the index decides."""
        where, plan = self._and(filter), self._current_plan()
        if plan.planning.accepts_filter or (plan.planning.limit is None and where == Constant(True)):
            return plan.narrowed(where).count()
        return sum(batch.num_rows for batch in self._reader([], filter, _BATCH_ROWS))

    def head(self, num_rows: int, columns: Any = None, filter: object = None, **options: Any) -> pa.Table:
        """The first rows of a scan. Only the files that they need are read."""
        where = self._and(filter)
        if not self._plans(where) or isinstance(columns, dict):
            return self.scanner(columns, filter).head(num_rows)
        return self._current_plan().narrowed(where, columns, num_rows).to_table()

    def filter(self, expression: object) -> LakeDataset:
        """The same dataset with one more filter, by which every scan plans."""
        where = self._and(expression)
        prepare(where, self.schema)  # raises for what it cannot be bound to
        return LakeDataset(self._pinned, where, self._newest)

    def get_fragments(self, filter: object = None) -> Iterator[ds.Fragment]:
        """The files that may contain a match, each with its remaining row groups and all of their rows, as for pyarrow.

        Raises InvalidArgumentError if the dataset has fewer rows than its files: that of a plan with a predicate, keys
        or a limit, and after `filter`. Use `Plan.fragments` for these.
        """
        plan = self._current_plan()
        if not plan.planning.is_whole or self._filter != Constant(True):
            raise InvalidArgumentError(
                "fragments contain more rows than this dataset: use plan.fragments() and repeat the predicate"
            )
        return plan.narrowed(self._and(filter)).fragments().get_fragments()

    def replace_schema(self, schema: pa.Schema) -> LakeDataset:
        """The same dataset if the schema is its own. Raises InvalidArgumentError for another."""
        if not self.schema.equals(schema):
            raise InvalidArgumentError(
                "the schema of a Skipstone table is changed by table.alter(), or by casting rows"
            )
        return self

    def _and(self, filter: object) -> Node:
        """The filter of the dataset and that of a scan, which an engine wrote if it is an expression."""
        if filter is None:
            return self._filter
        is_expression = isinstance(filter, pc.Expression)
        return self._filter & (
            from_arrow(filter, self.schema, is_sql=True) if is_expression else prepare(filter, self.schema)
        )

    def _plans(self, where: Node) -> bool:
        """True if the predicate can be planned by; the rows that a limit or keys choose are filtered afterwards."""
        return self._pinned.planning.accepts_filter or where == Constant(True)

    def _reader(self, columns: Sequence[str] | None, filter: object, batch_rows: int) -> pa.RecordBatchReader:
        where, plan = self._and(filter), self._current_plan()
        if self._plans(where):
            chosen = plan.narrowed(where, columns)
            chosen.planning.check_evaluable()
            return _in_batches(chosen.to_reader(), batch_rows)
        bound = prepare(where, self.schema)
        names = list(plan.columns if columns is None else columns)
        read = list(dict.fromkeys([*names, *top_columns(bound)]))
        rows = plan.narrowed(Constant(True), read).to_reader()
        matching = (batch.filter(matches(bound, batch)).select(names) for batch in rows)
        schema = pa.schema([rows.schema.field(name) for name in names])
        return _in_batches(pa.RecordBatchReader.from_batches(schema, matching), batch_rows)


def _scanner(reader: pa.RecordBatchReader, columns: dict[str, pc.Expression] | None = None) -> ds.Scanner:
    # With threads pyarrow reads ahead in one of its own, and a process that ends with rows left over aborts: that
    # thread then runs Python. The plan reads in threads anyway.
    return ds.Scanner.from_batches(reader, columns=columns, use_threads=False)


def _in_batches(reader: pa.RecordBatchReader, batch_rows: int) -> pa.RecordBatchReader:
    if not is_integer(batch_rows, 1):
        raise InvalidArgumentError(f"batch_size= is a number of rows, 1 or more, not {batch_rows!r}")

    def pieces() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            for start in range(0, batch.num_rows, batch_rows):
                yield batch.slice(start, batch_rows)

    return pa.RecordBatchReader.from_batches(reader.schema, pieces())


def _unreadable(schema: pa.Schema) -> ds.FileSystemDataset:
    message = f"pyarrow cannot read a Skipstone table by itself here: {_OTHER_WAYS}"
    disk = pyarrow.fs.PyFileSystem(ReadNothing(NotReadableError, message))
    form = ds.ParquetFileFormat()
    return ds.FileSystemDataset([form.make_fragment("skipstone", filesystem=disk)], schema, form, disk)
