"""Much of a file's rows, decoded by polars: about twice as fast as by pyarrow, so it is taken where it is installed and
much is to be read.

polars is a decoder here, no more. It is handed bytes, never a path: a Parquet file made in memory of the column chunks
that are read (or the file, where most of it is), since it would map a path into memory, where a file that is cut short
ends the process. What follows from the predicate lets it leave out rows early; our own evaluator tests those that it
gives. It reads columns whose values it gives back as they are; files with others, and whatever it refuses, are left to
pyarrow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from ...arrays import from_numpy, offsets_of, to_numpy
from ...caching import cached_property
from ...errors import CorruptionError, SchemaError
from ..parquet.footers import reading
from ..parquet.page_headers import ChunkPlace, PagesUnknownError
from ..parquet.pages import flat_columns, whole_chunks
from ..predicates import And, Constant, Node, Not, Or, columns_read
from ..predicates.bound import Leaf
from ..storage import Counted
from ..storage.threads import ahead
from .file_reader import FileReader, as_planned, rows_without_columns
from .file_tasks import FileTask, ReadContext, RowGroups, row_counts_in_groups, rows_kept
from .rows import bytes_reader, gain_by_polars_ns, opened, width_of

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")
Pair = tuple[FileTask, RowGroups]

_VALUES_AT_ONCE, _BYTES_AT_ONCE = 20_000_000, 128 << 20  # held in memory; the bytes as they lie in files
_VALUES_A_SCAN, _PIECE_ROWS = 5_000_000, 1 << 18  # asked of polars at once; tested at once
_WHOLE_SHARE = 0.7  # of a file's bytes: where more are wanted, all are read


def tables_by_polars(
    pairs: Sequence[Pair],
    context: ReadContext,
    storage: Counted,
    side_by_side: Callable[..., Generator[Any]],
    left: list[Pair],
) -> Iterator[pa.Table]:
    """The matching rows of some files, in the columns asked for: tables of parts of one file or several.

    side_by_side    calls a function with each of some items, in threads
    left            files, or parts of them, that pyarrow is to read are added to it

    Raises NotReadableError where a file is gone or is not the one that was planned.
    """
    made = partial(_made, context=context, storage=storage, layouts=_Layouts())
    width = max(width_of(context), 1)
    is_eager = not [name for name in context.columns if name not in columns_read(context.bound)]
    for chunk in _chunks(pairs, width, left):
        matching = [pair for pair in chunk if is_eager or _is_sure(*pair, context)]
        if len(matching) < len(chunk):
            # The predicate's columns first: where few rows match, the others are read of these.
            asked = [pair for pair in chunk if not _is_sure(*pair, context)]
            for scan, rows in _scanned(asked, partial(made, is_tested=True), width, side_by_side, left):
                positions = _done(scan, _positions, rows, side_by_side)
                if positions is None:
                    left += scan.pairs
                    continue
                for (task, groups), at in zip(scan.pairs, scan.in_files(np.concatenate(positions)), strict=True):
                    context.read_by_polars.append(task.path)
                    if len(at):
                        named = replace(task, rows=at, rows_exact=True), groups
                        (matching if gain_by_polars_ns(*named, context) > 0 else left).append(named)
            is_eager = 2 * len(matching) > len(chunk)
        for scan, rows in _scanned(matching, made, width, side_by_side, left):
            tables = _done(scan, _rows, rows, side_by_side)
            if tables is None:
                left += scan.pairs
            else:
                context.read_by_polars.extend(task.path for task, _ in scan.pairs)
                yield from tables


def _is_sure(task: FileTask, groups: RowGroups, context: ReadContext) -> bool:
    """Whether every row of the kept row groups that is not deleted matches, or each of those at `task.rows`."""
    if task.all_match or context.bound == Constant(True):
        return True
    return task.rows_exact if task.rows is not None else groups.all_match is not None and all(groups.all_match)


def _scanned(
    pairs: Sequence[Pair],
    make: Callable[[Pair], _File | None],
    width: int,
    side_by_side: Callable[..., Generator[Any]],
    left: list[Pair],
) -> Iterator[tuple[_Scan, pa.Table]]:
    """What polars gives of some files: those that are alike by one scan, since each has its price; while it reads some,
    the next are made."""
    with (
        contextlib.closing(_batches(pairs, make, width, side_by_side)) as made,
        contextlib.closing(ahead(made, "skipstone-ahead")) as batches,
    ):
        for batch in batches:
            alike: dict[Hashable, _Scan] = {}
            for pair, file in batch:
                if file is None:
                    left.append(pair)
                else:
                    scan = alike.setdefault(file.likeness, _Scan([], []))
                    scan.pairs.append(pair)
                    scan.files.append(file)
            for scan in alike.values():
                frame = _frame(scan)
                if frame is None:  # one of them is damaged, say: pyarrow says what is wrong with it
                    left += scan.pairs
                else:
                    yield scan, frame


def _batches(
    pairs: Sequence[Pair],
    make: Callable[[Pair], _File | None],
    width: int,
    side_by_side: Callable[..., Generator[Any]],
) -> Generator[list[tuple[Pair, _File | None]]]:
    """Files, made, as many as are asked for at once."""
    batch: list[tuple[Pair, _File | None]] = []
    row_count = 0
    with contextlib.closing(side_by_side(make, pairs)) as files:
        for pair, file in zip(pairs, files, strict=True):
            batch.append((pair, file))
            row_count += rows_kept(*pair)
            if row_count * width > _VALUES_A_SCAN:
                yield batch
                batch, row_count = [], 0
    if batch:
        yield batch


def _done(
    scan: _Scan,
    work: Callable[[_Scan, pa.Table], T | None],
    rows: pa.Table,
    side_by_side: Callable[..., Generator[Any]],
) -> list[T] | None:
    """`work` on pieces of what polars gave, in threads; None where it is on one of them."""
    pieces = [rows.slice(start, _PIECE_ROWS) for start in range(0, max(rows.num_rows, 1), _PIECE_ROWS)]
    done = list(side_by_side(lambda piece: work(scan, piece), pieces))
    return None if any(one is None for one in done) else done


def _chunks(pairs: Sequence[Pair], width: int, left: list[Pair]) -> Iterator[list[Pair]]:
    """Files, or some row groups of a large one, that are held in memory at a time; first a few, which tell how
    the others are best read. A large file of unknown row groups is left to pyarrow, which reads them one by one."""
    chunk: list[Pair] = []
    share, share_max = 0.0, 1 / 16  # of the memory that may be used
    for pair in pairs:
        task, groups = pair
        row_count = rows_kept(task, groups)
        by_bytes = task.row_count * _BYTES_AT_ONCE // max(task.size_bytes, 1)
        rows_max = max(min(_VALUES_AT_ONCE // width, by_bytes), 1)
        if groups.kept is None and row_count > rows_max:
            left.append(pair)
            continue
        for part, part_rows in _parts(pair, row_count, rows_max):
            if chunk and share + part_rows / rows_max > share_max:
                yield chunk
                chunk, share, share_max = [], 0.0, 1.0
            chunk.append(part)
            share += part_rows / rows_max
    if chunk:
        yield chunk


def _parts(pair: Pair, row_count: int, rows_max: int) -> Iterator[tuple[Pair, int]]:
    """(a file with some of its kept row groups, how many rows these have): all of them, or as many as hold `rows_max`
    rows."""
    task, groups = pair
    if groups.kept is None or row_count <= rows_max:
        yield pair, row_count
        return
    counts = groups.row_counts or []
    begin = rows = 0
    for end, count in enumerate([*counts, rows_max]):
        if end > begin and rows + count > rows_max:
            part = slice(begin, end)
            all_match = None if groups.all_match is None else groups.all_match[part]
            yield (task, RowGroups(groups.kept[part], groups.total, counts[part], all_match)), rows
            begin, rows = end, 0
        rows += count


@dataclass(frozen=True)
class _File:
    """A file that polars is to read.

    names       the columns that are read, by the table's names
    groups      numbers of the row groups that `data` holds, in their order
    data        they, as a Parquet file of their own, or the file itself
    kinds       name and type of each column of `data`
    is_sure     as `_is_sure` says
    is_tested   the positions of the rows that match are wanted, not their values
    """

    reader: FileReader
    names: list[str]
    groups: list[int]
    data: bytes
    kinds: tuple[tuple[str, pa.DataType], ...]
    is_sure: bool
    is_tested: bool

    @property
    def likeness(self) -> Hashable:
        """Files in which it is equal are asked the same."""
        task = self.reader.task
        partition = tuple((name, value.type, value) for name, value in task.partition.items())
        return task.schema_id, partition, self.kinds, self.is_sure, task.rows is None, self.has_numbers

    @property
    def has_numbers(self) -> bool:
        """Whether the rows' numbers are needed."""
        return self.is_tested or self.reader.task.rows is not None or self.reader.deleted is not None

    @cached_property
    def _firsts(self) -> tuple[np.ndarray, np.ndarray]:
        """int64: where the rows of each of `groups` begin in the file; in `data`, and their count at the end."""
        counts = np.array([self.reader.row_count(i) for i in range(self.reader.file.metadata.num_row_groups)])
        return offsets_of(counts)[self.groups], offsets_of(counts[self.groups])

    @property
    def row_count(self) -> int:
        """Of `data`."""
        return int(self._firsts[1][-1])

    def positions(self, rows: np.ndarray) -> np.ndarray:
        """int64: where rows of `data` lie in the file."""
        in_file, in_data = self._firsts
        group = np.searchsorted(in_data, rows, side="right") - 1
        return rows - in_data[group] + in_file[group]

    def rows_at(self, positions: np.ndarray) -> np.ndarray:
        """int64: which rows of `data` lie at some positions of the file; those of other row groups are left out."""
        in_file, in_data = self._firsts
        group = np.searchsorted(in_file, positions, side="right") - 1
        rows = positions - in_file[group] + in_data[group]
        return rows[(group >= 0) & (rows < in_data[group + 1])]


@dataclass(frozen=True)
class _Scan:
    """Files that polars reads as one, all of one likeness; a row's number is its place in all of them."""

    pairs: list[Pair]
    files: list[_File]

    @property
    def first(self) -> _File:
        return self.files[0]

    @cached_property
    def _first_numbers(self) -> np.ndarray:
        return offsets_of(np.array([file.row_count for file in self.files]))

    @cached_property
    def is_kept(self) -> np.ndarray:
        """bool, by number: the rows that are not deleted, and are among those that an index named."""
        is_kept = np.ones(self._first_numbers[-1], dtype=bool)
        for file, begin, end in zip(self.files, self._first_numbers, self._first_numbers[1:], strict=False):
            if file.reader.task.rows is not None:
                is_kept[begin:end] = False
                is_kept[begin + file.rows_at(file.reader.task.rows)] = True
            if file.reader.deleted is not None:
                is_kept[begin + file.rows_at(file.reader.deleted)] = False
        return is_kept

    def in_files(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Of each file the positions, ascending, of the rows of some numbers."""
        numbers, firsts = np.sort(numbers), self._first_numbers
        parts = np.split(numbers, np.searchsorted(numbers, firsts[1:-1]))
        return [file.positions(part - first) for file, part, first in zip(self.files, parts, firsts, strict=False)]


def _made(
    pair: Pair, context: ReadContext, storage: Counted, layouts: _Layouts, is_tested: bool = False
) -> _File | None:
    """What polars is to read of a file, of `is_tested` the columns of the predicate; None where pyarrow is to."""
    task, groups = pair
    with as_planned(task, storage) as entry, opened(task, entry, context, storage) as file, reading(task.path):
        reader = FileReader(file, entry, task, context, storage)
        row_counts = np.array([reader.row_count(i) for i in range(file.metadata.num_row_groups)], dtype=np.int64)
        if task.rows is not None:
            row_counts_in_groups(task, row_counts)
        numbers = [i for i in (range(len(row_counts)) if groups.kept is None else groups.kept) if row_counts[i]]
        is_sure = _is_sure(task, groups, context)
        # Of rows that an index named the predicate's columns, too: a condition on values costs less than one on places.
        tested = [] if is_sure and task.rows is None and not is_tested else reader.tested
        keys = [] if task.rows is None or is_tested else columns_read(context.keys)
        names = list(tested if is_tested else dict.fromkeys([*tested, *keys, *context.columns]))
        stored = reader.file_names(reader.stored(names))
        leaves = layouts.leaves(file, stored) if stored and numbers else None
        if leaves is None:
            return None
        places = [_places(file.metadata.row_group(number), leaves) for number in numbers]
        wanted = sum(place.end - place.begin for of_group in places for place in of_group)
        is_most = _WHOLE_SHARE * entry.size_bytes <= wanted and len(numbers) == np.count_nonzero(row_counts)
        try:
            with bytes_reader(reader, numbers, stored) as read_at:
                is_whole = is_most and file.remote is None  # its own footer serves as well as one that is made
                if is_whole:
                    data = read_at(0, entry.size_bytes)
                else:
                    data = whole_chunks(file.metadata, read_at, numbers, leaves, places)
        except PagesUnknownError:
            return None
        reader.check_identity()
        schema = file.arrow_schema
        in_data = schema.names if is_whole else stored
        kinds = tuple((name, schema.field(name).type) for name in in_data)
        return _File(reader, names, numbers, data, kinds, is_sure, is_tested)


def _places(row_group: Any, leaves: Sequence[int]) -> list[ChunkPlace]:
    return [ChunkPlace.of(row_group.column(leaf)) for leaf in leaves]


class _Layouts:
    """Which leaves of a file some columns are: worked out once for files of one schema."""

    _KNOWN_MAX = 8

    def __init__(self) -> None:
        self._known: tuple[tuple[Any, pa.Schema, list[str], list[int] | None], ...] = ()

    def leaves(self, file: Any, names: list[str]) -> list[int] | None:
        """None where polars does not give back the values of all these columns as they are."""
        schema = file.metadata.schema
        for known, arrow_schema, of_names, leaves in self._known:
            if of_names == names and known.equals(schema) and arrow_schema.equals(file.arrow_schema):
                return leaves
        leaves = _leaves_served(file, names)
        self._known = (*self._known[1 - self._KNOWN_MAX :], (schema, file.arrow_schema, names, leaves))
        return leaves


def _leaves_served(file: Any, names: list[str]) -> list[int] | None:
    columns = [file.metadata.schema.column(i) for i in range(file.metadata.num_columns)]
    leaves = {column.path: i for i, column in enumerate(columns)}
    is_flat = len(flat_columns(file, names)) == len(names)
    is_pattern = any(name == "*" or (name.startswith("^") and name.endswith("$")) for name in names)
    if not is_flat or is_pattern:
        return None
    is_served = all(
        columns[leaves[name]].physical_type != "INT96" and _is_served(file.arrow_schema.field(name).type)
        for name in names
    )
    return [leaves[name] for name in names] if is_served else None


def _is_served(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return False
    of = pa.types
    if of.is_timestamp(kind):
        return kind.unit in ("ms", "us") and kind.tz in (None, "UTC")
    is_number = of.is_integer(kind) or of.is_float32(kind) or of.is_float64(kind) or of.is_decimal128(kind)
    is_text = of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind)
    is_binary = of.is_binary(kind) or of.is_large_binary(kind) or of.is_binary_view(kind)
    return is_number or is_text or is_binary or of.is_boolean(kind) or of.is_date32(kind)


def _frame(scan: _Scan) -> pa.Table | None:
    """The rows that polars gives, by the files' own names and, where they are needed, with their numbers; None where it
    refuses a file."""
    import polars as pl

    try:
        return _asked(scan).collect().to_arrow()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException):
        return None
    except (ArithmeticError, ValueError, TypeError):  # a literal that Python's own types cannot hold
        return None


def _asked(scan: _Scan) -> pl.LazyFrame:
    import polars as pl

    file = scan.first
    names = file.reader.file_names(file.reader.stored(file.names))
    number = _number_name(file.reader.file.arrow_schema.names)
    rows = pl.scan_parquet(
        [one.data for one in scan.files],
        use_statistics=False,
        hive_partitioning=False,
        row_index_name=number if file.has_numbers else None,
    )
    is_named = file.reader.task.rows is not None
    wanted = None
    if is_named or not file.is_sure:
        context = file.reader.context
        of_rows = And((context.bound, context.keys)) if is_named else context.bound
        wanted = _implied(of_rows, file.reader, rows.collect_schema())
    if wanted is None and is_named:
        numbers = np.flatnonzero(scan.is_kept).astype(np.uint32)
        wanted = pl.col(number).is_in(pl.Series(numbers).implode())
    rows = rows if wanted is None else rows.filter(wanted)
    return rows.select([*names, number] if file.has_numbers else names)


def _number_name(names: Sequence[str]) -> str:
    """A name that none of the columns has."""
    name = "row"
    while name in names:
        name += "_"
    return name


def _rows(scan: _Scan, rows: pa.Table) -> pa.Table | None:
    """Those of the rows that polars gave which match, in the columns asked for; None as `_tested`."""
    tested = _tested(scan, rows)
    if tested is None:
        return None
    table, mask = tested
    columns = scan.first.reader.context.columns
    if not columns:
        return rows_without_columns(rows.num_rows if mask is None else int(mask.sum()))
    table = table.select(columns)
    return table if mask is None or mask.all() else table.filter(from_numpy(mask))


def _positions(scan: _Scan, rows: pa.Table) -> np.ndarray | None:
    """int64: the numbers of the rows that match; None as `_tested`."""
    tested = _tested(scan, rows)
    if tested is None:
        return None
    numbers, mask = _numbers(rows), tested[1]
    return numbers if mask is None else numbers[mask]


def _numbers(rows: pa.Table) -> np.ndarray:
    """int64, of the rows that polars gave."""
    return to_numpy(rows.column(rows.num_columns - 1).combine_chunks()).astype(np.int64)


def _tested(scan: _Scan, rows: pa.Table) -> tuple[pa.Table, np.ndarray | None] | None:
    """(the rows that polars gave in the table's types; bool: which of them match, None for all). None where a file's
    values are not to be had in these types, or cannot be tested: reading by pyarrow says why."""
    file, reader = scan.first, scan.first.reader
    stored = reader.stored(file.names)
    raw = {name: rows.column(name) for name in reader.file_names(stored)}
    try:
        with reading(reader.task.path):
            table = reader.shaped(reader.renamed(raw, stored), file.names, rows.num_rows)
            mask = None if file.is_sure else to_numpy(reader.mask_of(table.select(reader.tested)))
    except (SchemaError, CorruptionError):
        return None
    if file.reader.task.rows is not None or any(one.reader.deleted is not None for one in scan.files):
        is_kept = scan.is_kept[_numbers(rows)]
        mask = is_kept if mask is None else mask & is_kept
    return table, mask


# -- what polars may leave out -----------------------------------------------------------------------------------------


def _implied(node: Node, reader: FileReader, schema: Any) -> pl.Expr | None:
    """A condition that every matching row fulfils, in columns of the file; None where there is none to be said."""
    import polars as pl

    if isinstance(node, Leaf):
        return _implied_by_leaf(node, reader, schema)
    if isinstance(node, Not) and isinstance(node.child, Leaf) and node.child.op == "is_null":
        column = _column(node.child, reader)
        return None if column is None else pl.col(column).is_not_null()
    if isinstance(node, And | Or):
        parts = [_implied(child, reader, schema) for child in node.children]
        known = [part for part in parts if part is not None]
        if isinstance(node, And):
            return pl.all_horizontal(known) if known else None
        return pl.any_horizontal(known) if known and len(known) == len(parts) else None
    return None


def _column(leaf: Leaf, reader: FileReader) -> str | None:
    """The file's name of a leaf's column, where the file has it."""
    stored = reader.stored(leaf.ref.path) if len(leaf.ref.path) == 1 else []
    return reader.file_names(stored)[0] if stored else None


_COMPARISONS = {"=": "eq", "<=>": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


def _implied_by_leaf(leaf: Leaf, reader: FileReader, schema: Any) -> pl.Expr | None:
    import polars as pl

    name = _column(leaf, reader)
    if name is None:
        return None
    column, kind = pl.col(name), schema[name]
    if leaf.op == "is_null":
        return column.is_null()
    if not (leaf.op in _COMPARISONS or leaf.op in ("in", "not in")):
        return None
    values = pl.from_arrow(leaf.values)
    assert isinstance(values, pl.Series)
    if values.dtype.is_integer() and kind.is_integer():
        values = values.cast(kind, strict=True)  # a narrower file: a value beyond it is an error, and pyarrow's to read
    if values.dtype != kind:  # polars would compare in a third type
        return None
    if leaf.op == "in":
        implied = column.is_in(values.implode())
    elif leaf.op == "not in":
        implied = ~column.is_in(values.implode())
    else:
        implied = getattr(column, _COMPARISONS[leaf.op])(pl.lit(values.item(), dtype=kind))
    # What is said of NaN and of the zeros is left to our own evaluator.
    return implied | column.is_nan() | (column == 0) if kind.is_float() else implied
