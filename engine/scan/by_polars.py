"""Much of a file's rows, decoded by polars: about twice as fast as by pyarrow, so it is taken where it is installed and
much is to be read.

polars is a decoder here, no more. It is handed bytes, never a path: a Parquet file made in memory of the column chunks
that are read (or the file, where most of it is), since it would map a path into memory, where a file that is cut short
ends the process. What follows from the predicate lets it leave out rows early; our own evaluator tests those that it
gives. It reads columns whose values it gives back as they are; files with others, and whatever it refuses, are left to
pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from ...arrays import from_numpy, offsets_of, to_numpy
from ...caching import cached_property
from ...errors import SchemaError
from ..parquet.footers import chunk_ranges, reading
from ..parquet.page_headers import PagesUnknownError
from ..parquet.pages import flat_columns, whole_chunks
from ..predicates import And, Constant, Node, Not, Or, columns_read
from ..predicates.bound import Leaf
from ..storage import Counted
from .file_reader import FileReader, as_planned, rows_without_columns
from .file_tasks import FileTask, ReadContext, RowGroups, row_counts_in_groups
from .rows import bytes_reader, gain_by_polars_ns, opened, rows_kept, width_of

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")
Pair = tuple[FileTask, RowGroups]

_VALUES_AT_ONCE, _BYTES_AT_ONCE = 20_000_000, 128 << 20  # held in memory; the bytes as they lie in files
_WHOLE_SHARE = 0.7  # of a file's bytes: where more are wanted, all are read


def tables_by_polars(
    pairs: Sequence[Pair],
    context: ReadContext,
    storage: Counted,
    side_by_side: Callable[..., Iterator[Any]],
    left: list[Pair],
) -> Iterator[pa.Table]:
    """The matching rows of some files, a table a file, in the columns asked for.

    side_by_side    calls a function with each of some items, in threads
    left            files, or parts of them, that pyarrow is to read are added to it

    Raises NotReadableError where a file is gone or is not the one that was planned.
    """
    made = partial(_made, context=context, storage=storage)
    is_eager = not [name for name in context.columns if name not in columns_read(context.bound)]
    for chunk in _chunks(pairs, max(width_of(context), 1), left):
        matching = [pair for pair in chunk if is_eager or _is_sure(*pair, context)]
        if len(matching) < len(chunk):
            # The predicate's columns first: where few rows match, the others are read of these.
            asked = [pair for pair in chunk if not _is_sure(*pair, context)]
            for (task, groups), rows in _each(asked, partial(made, is_tested=True), _positions, side_by_side):
                if rows is None:
                    left.append((task, groups))
                    continue
                context.read_by_polars.append(task.path)
                if len(rows):
                    named = replace(task, rows=rows, rows_exact=True), groups
                    (matching if gain_by_polars_ns(*named, context) > 0 else left).append(named)
            is_eager = 2 * len(matching) > len(chunk)
        for pair, table in _each(matching, made, _rows, side_by_side):
            if table is None:
                left.append(pair)
            else:
                context.read_by_polars.append(pair[0].path)
                yield table


def _is_sure(task: FileTask, groups: RowGroups, context: ReadContext) -> bool:
    """Whether every row of the kept row groups that is not deleted matches, or each of those at `task.rows`."""
    if task.all_match or context.bound == Constant(True):
        return True
    return task.rows_exact if task.rows is not None else groups.all_match is not None and all(groups.all_match)


def _each(
    pairs: Sequence[Pair],
    make: Callable[[Pair], _File | None],
    work: Callable[[_File, pa.Table], T | None],
    side_by_side: Callable[..., Iterator[Any]],
) -> Iterator[tuple[Pair, T | None]]:
    """Each of some files with `work` done on what polars gave of it; None where pyarrow is to read it."""
    files = list(side_by_side(make, pairs))
    made = [file for file in files if file is not None]
    frames = _frames(made)  # None: one of them is damaged, say; pyarrow says what is wrong with it
    done = (
        iter(()) if frames is None else iter(side_by_side(lambda one: work(*one), list(zip(made, frames, strict=True))))
    )
    for pair, file in zip(pairs, files, strict=True):
        yield pair, None if file is None else next(done, None)


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
    is_sure     as `_is_sure` says
    is_tested   the positions of the rows that match are wanted, not their values
    """

    reader: FileReader
    names: list[str]
    groups: list[int]
    data: bytes
    is_sure: bool
    is_tested: bool

    @property
    def has_positions(self) -> bool:
        return self.is_tested or self.reader.task.rows is not None or self.reader.deleted is not None

    @cached_property
    def positions(self) -> np.ndarray:
        """int64: where each row of `data` lies in the file."""
        counts = np.array([self.reader.row_count(i) for i in range(self.reader.file.metadata.num_row_groups)])
        firsts = offsets_of(counts)
        return np.concatenate([np.arange(firsts[group], firsts[group + 1]) for group in self.groups])


def _made(pair: Pair, context: ReadContext, storage: Counted, is_tested: bool = False) -> _File | None:
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
        names = list(tested if is_tested else dict.fromkeys([*tested, *context.columns]))
        stored = reader.file_names(reader.stored(names))
        if not stored or not numbers or not _are_served(file, stored):
            return None
        wanted = sum(length for group in numbers for _, length in chunk_ranges(file, group, stored))
        is_most = _WHOLE_SHARE * entry.size_bytes <= wanted and len(numbers) == np.count_nonzero(row_counts)
        try:
            with bytes_reader(reader, numbers, stored) as read_at:
                if is_most and file.remote is None:  # its own footer serves as well as one that is made
                    data = read_at(0, entry.size_bytes)
                else:
                    data = whole_chunks(file.metadata, read_at, numbers, stored)
        except PagesUnknownError:
            return None
        reader.check_identity()
        return _File(reader, names, numbers, data, is_sure, is_tested)


def _are_served(file: Any, names: Sequence[str]) -> bool:
    """Whether polars gives back the values of all these columns as they are."""
    leaves = [file.metadata.schema.column(i) for i in range(file.metadata.num_columns)]
    old = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    is_flat = len(flat_columns(file, names)) == len(names)
    is_pattern = any(name == "*" or (name.startswith("^") and name.endswith("$")) for name in names)
    return (
        is_flat
        and not is_pattern
        and all(name not in old and _is_served(file.arrow_schema.field(name).type) for name in names)
    )


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


def _frames(files: Sequence[_File]) -> list[pa.Table] | None:
    """The rows that polars gives of each, by the files' own names and with the row's number in `data` where positions
    are needed; None where it refuses one."""
    import polars as pl

    try:
        conditions: dict[Hashable, pl.Expr | None] = {}
        return [frame.to_arrow() for frame in pl.collect_all([_frame(file, conditions) for file in files])]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException):
        return None
    except (ArithmeticError, ValueError, TypeError):  # a literal that Python's own types cannot hold
        return None


def _frame(file: _File, conditions: dict[Hashable, pl.Expr | None]) -> pl.LazyFrame:
    """What is asked of a file. `conditions`: of files of each schema, made once."""
    import polars as pl

    names = file.reader.file_names(file.reader.stored(file.names))
    number = _number_name(file.reader.file.arrow_schema.names)
    rows = pl.scan_parquet(
        file.data,
        use_statistics=False,
        hive_partitioning=False,
        row_index_name=number if file.has_positions else None,
    )
    at = file.reader.task.rows
    wanted = None
    if at is not None or not file.is_sure:
        schema = rows.collect_schema()
        key = file.reader.task.schema_id, *file.reader.task.partition, *schema.items()
        if key not in conditions:
            conditions[key] = _implied(file.reader.context.bound, file.reader, schema)
        wanted = conditions[key]
    if wanted is None and at is not None:
        numbers = np.flatnonzero(np.isin(file.positions, at, assume_unique=True)).astype(np.uint32)
        wanted = pl.col(number).is_in(pl.Series(numbers).implode())
    rows = rows if wanted is None else rows.filter(wanted)
    return rows.select([*names, number] if file.has_positions else names)


def _number_name(names: Sequence[str]) -> str:
    """A name that none of the columns has."""
    name = "row"
    while name in names:
        name += "_"
    return name


def _rows(file: _File, rows: pa.Table) -> pa.Table | None:
    """Those of the rows that polars gave which match, in the columns asked for; None as `_tested`."""
    tested = _tested(file, rows)
    if tested is None:
        return None
    table, mask = tested
    columns = file.reader.context.columns
    if not columns:
        return rows_without_columns(rows.num_rows if mask is None else int(mask.sum()))
    table = table.select(columns)
    return table if mask is None or mask.all() else table.filter(from_numpy(mask))


def _positions(file: _File, rows: pa.Table) -> np.ndarray | None:
    """int64, ascending: the positions in the file of the rows that match; None as `_tested`."""
    tested = _tested(file, rows)
    if tested is None:
        return None
    at, mask = _at(file, rows), tested[1]
    return np.sort(at if mask is None else at[mask])


def _at(file: _File, rows: pa.Table) -> np.ndarray:
    """int64: where in the file the rows lie that polars gave."""
    return file.positions[to_numpy(rows.column(rows.num_columns - 1).combine_chunks())]


def _tested(file: _File, rows: pa.Table) -> tuple[pa.Table, np.ndarray | None] | None:
    """(the rows that polars gave in the table's types; bool: which of them match, None for all). None where a column of
    these types does not hold in one piece so many bytes of text."""
    reader = file.reader
    stored = reader.stored(file.names)
    with reading(reader.task.path):
        raw = {name: rows.column(name) for name in reader.file_names(stored)}
        try:
            table = reader.shaped(reader.renamed(raw, stored), file.names, rows.num_rows)
        except SchemaError:
            return None
        mask = None if file.is_sure else to_numpy(reader.mask_of(table.select(reader.tested)))
    if reader.task.rows is not None or reader.deleted is not None:
        at = _at(file, rows)
        mask = np.ones(len(at), dtype=bool) if mask is None else mask
        if reader.task.rows is not None:
            mask = mask & np.isin(at, reader.task.rows)
        if reader.deleted is not None:
            mask = mask & ~np.isin(at, reader.deleted)
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
