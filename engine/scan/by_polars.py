"""Much of a file's rows, decoded by polars: about twice as fast as by pyarrow, so it is taken where it is installed and
much is to be read.

polars is a decoder here, no more. It is handed bytes, never a path: one Parquet file, made in memory of the column
chunks that are read of several files, since it would map a path into memory, where a file that is cut short ends the
process. What follows from the predicate lets it leave out rows early; our own evaluator tests those that it gives. It
reads columns whose values it gives back as they are; files with others, and whatever it refuses, are left to pyarrow.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ...arrays import from_numpy, to_numpy
from ...errors import CorruptionError, SchemaError
from ..parquet.footers import reading
from ..predicates import columns_read
from ..storage import Counted
from ..storage.threads import ahead, prefetched, threads_for
from .file_reader import rows_without_columns
from .file_tasks import ReadContext, RowGroups, rows_kept
from .polars_files import REQUEST_BYTES, Layouts, Pair, PolarsFile, PolarsScan, is_sure, looked_at, rooms
from .polars_question import frame_of
from .rows import gain_by_polars_ns, width_of

T = TypeVar("T")

# What polars is asked for at once, or one row group, while as many bytes, as they lie in files, are fetched for the
# next time. Each chunk has its place in memory, in Python and in a footer.
_VALUES_AT_ONCE, _BYTES_AT_ONCE, _CHUNKS_AT_ONCE = 10_000_000, 64 << 20, 10_000
_FIRST_SHARE = 1 / 8  # of it: what tells how the others are best read
_PIECE_ROWS = 1 << 18  # tested at once
_LIGHT_REQUESTS = 4  # a far file of fewer bytes than so many are worth is read in all columns at once


def tables_by_polars(
    pairs: Sequence[Pair],
    context: ReadContext,
    storage: Counted,
    noting_changes: Callable[[], AbstractContextManager[None]],
    left: list[Pair],
) -> Iterator[pa.Table]:
    """The matching rows of some files, in the columns asked for: tables of parts of one file or several.

    noting_changes    the block around reading
    left              files, or parts of them, that pyarrow is to read are added to it

    Raises NotReadableError where a file is gone or is not the one that was planned.
    """
    with noting_changes():
        yield from _Reading(context, storage, left).tables(pairs)


class _Reading:
    """One call of `tables_by_polars`, which says what its arguments are."""

    def __init__(self, context: ReadContext, storage: Counted, left: list[Pair]):
        self._context, self._left = context, left
        self._is_far, self._threads = bool(storage.gap_bytes), threads_for(storage, 1)
        self._width, self._tested = max(width_of(context), 1), len(columns_read(context.bound))
        self._matching = 1.0  # of the rows, as far as it is known
        self._look = partial(looked_at, context=context, storage=storage, layouts=Layouts())

    def tables(self, pairs: Sequence[Pair]) -> Iterator[pa.Table]:
        context, left = self._context, self._left
        parts = list(self._parts_of(pairs))
        has_more = [name for name in context.columns if name not in columns_read(context.bound)]
        is_eager = not has_more
        share = _FIRST_SHARE
        while parts:
            if is_eager or self._are_light(parts):
                yield from self._rows_of([pair for pair, _ in parts])
                return
            chunk, parts = _cut(parts, share)
            share = 1.0
            matching = [pair for pair in chunk if is_sure(*pair, context)]
            # The predicate's columns first: where few rows match, the others are read of these.
            asked = [pair for pair in chunk if not is_sure(*pair, context)]
            tested_rows = matching_rows = 0
            for scan, rows in self._scanned(asked, partial(self._look, is_tested=True)):
                positions = _done(scan, _positions, rows)
                if positions is None:
                    left += scan.pairs
                    continue
                numbers = np.concatenate(positions)
                tested_rows, matching_rows = tested_rows + scan.row_count, matching_rows + len(numbers)
                for (task, groups), at in zip(scan.pairs, scan.in_files(numbers), strict=True):
                    context.read_by_polars.append(task.path)
                    if len(at):
                        named = replace(task, rows=at, rows_exact=True), groups
                        (matching if gain_by_polars_ns(*named, context) > 0 else left).append(named)
            is_eager = 2 * len(matching) > len(chunk)
            self._matching = matching_rows / tested_rows if tested_rows else 1.0
            yield from self._rows_of(matching)

    def _rows_of(self, pairs: Sequence[Pair]) -> Iterator[pa.Table]:
        """The rows of some files, all columns at once, so that a column is decoded only where a row is left."""
        for scan, rows in self._scanned(pairs, self._look):
            tables = _done(scan, _rows, rows)
            if tables is None:
                self._left += scan.pairs
            else:
                self._context.read_by_polars.extend(task.path for task, _ in scan.pairs)
                yield from tables

    def _scanned(
        self, pairs: Sequence[Pair], look: Callable[[Pair], tuple[Pair, PolarsFile | None]]
    ) -> Iterator[tuple[PolarsScan, pa.Table]]:
        """What polars gives of some files: those that are alike by one scan, since each has its price; while it reads
        some, the bytes of the next are fetched."""
        with (
            contextlib.closing(self._looked_at(pairs, look)) as looked_at,
            contextlib.closing(ahead(self._fetched(looked_at), "skipstone-read", 1)) as fetched,
        ):
            for scan, data in fetched:
                frame = None
                if data is not None:
                    frame = frame_of(scan, data)
                    rooms.give_back(data)
                if frame is None:  # one of them is damaged, say: pyarrow says what is wrong with it
                    self._left += scan.pairs
                else:
                    yield scan, frame

    def _looked_at(
        self, pairs: Sequence[Pair], look: Callable[[Pair], tuple[Pair, PolarsFile | None]]
    ) -> Generator[tuple[Pair, PolarsFile | None]]:
        if self._is_far:
            return prefetched(look, pairs, self._threads, "skipstone-open")
        return (look(pair) for pair in pairs)

    def _fetched(
        self, looked_at: Iterable[tuple[Pair, PolarsFile | None]]
    ) -> Iterator[tuple[PolarsScan, io.BytesIO | None]]:
        for batch in self._batches(looked_at):
            alike: dict[Hashable, PolarsScan] = {}
            for pair, file in batch:
                scan = alike.setdefault(file.likeness, PolarsScan([], []))
                scan.pairs.append(pair)
                scan.files.append(file)
            for scan in alike.values():
                yield scan, scan.fetched(self._threads)

    def _batches(self, looked_at: Iterable[tuple[Pair, PolarsFile | None]]) -> Iterator[list[tuple[Pair, PolarsFile]]]:
        """Files that are asked for at once; those that polars cannot read are left."""
        batch: list[tuple[Pair, PolarsFile]] = []
        total = 0.0
        for pair, file in looked_at:
            if file is None:
                self._left.append(pair)
                continue
            chunks = len(file.groups) * len(file.names)
            share = max(
                self._values(file) / _VALUES_AT_ONCE, file.size_bytes / _BYTES_AT_ONCE, chunks / _CHUNKS_AT_ONCE
            )
            if batch and total + share > 1:
                yield batch
                batch, total = [], 0.0
            batch.append((pair, file))
            total += share
        if batch:
            yield batch

    def _values(self, file: PolarsFile) -> float:
        """How many values of a file are decoded, about: of columns that are not tested, those of matching rows."""
        named = file.reader.task.rows
        if named is not None:
            return file.row_count * (self._tested or 1) + len(named) * self._width
        if file.is_sure:
            return file.row_count * self._width
        return file.row_count * (self._tested + self._matching * (self._width - self._tested))

    def _are_light(self, parts: Sequence[tuple[Pair, float]]) -> bool:
        """Whether far files are fetched in all columns sooner than by one request more each."""
        if not self._is_far:
            return False
        sizes = [_bytes_kept(pair) for pair, _ in parts]
        return sum(sizes) <= _LIGHT_REQUESTS * REQUEST_BYTES * len(sizes)

    def _share(self, pair: Pair) -> float:
        """Of what is asked for at once."""
        return max(rows_kept(*pair) * self._width / _VALUES_AT_ONCE, _bytes_kept(pair) / _BYTES_AT_ONCE)

    def _parts_of(self, pairs: Sequence[Pair]) -> Iterator[tuple[Pair, float]]:
        """Files, or some row groups of a large one, each with its `_share`. A large file of unknown row groups
        is left to pyarrow, which reads them one by one."""
        for pair in pairs:
            share = self._share(pair)
            if pair[1].kept is None and share > 1:
                self._left.append(pair)
            else:
                row_count = rows_kept(*pair)
                for part in _parts(pair, row_count, max(int(row_count / share), 1) if share > 1 else row_count):
                    yield part, self._share(part)


def _bytes_kept(pair: Pair) -> int:
    """Of a file's bytes, those of the row groups that are kept, about."""
    task = pair[0]
    return task.size_bytes * rows_kept(*pair) // max(task.row_count, 1)


def _cut(parts: list[tuple[Pair, float]], share_max: float) -> tuple[list[Pair], list[tuple[Pair, float]]]:
    """(the first of some parts, as many as take such a share, at least one; the others)."""
    total, count = 0.0, 0
    for _, share in parts:
        if count and total + share > share_max:
            break
        total, count = total + share, count + 1
    return [pair for pair, _ in parts[:count]], parts[count:]


def _parts(pair: Pair, row_count: int, rows_max: int) -> Iterator[Pair]:
    """A file with some of its kept row groups: all of them, or as many as hold `rows_max` rows."""
    task, groups = pair
    if groups.kept is None or row_count <= rows_max:
        yield pair
        return
    counts = groups.row_counts or []
    begin = rows = 0
    for end, count in enumerate([*counts, rows_max]):
        if end > begin and rows + count > rows_max:
            part = slice(begin, end)
            all_match = None if groups.all_match is None else groups.all_match[part]
            yield task, RowGroups(groups.kept[part], groups.total, counts[part], all_match)
            begin, rows = end, 0
        rows += count


def _done(scan: PolarsScan, work: Callable[[PolarsScan, pa.Table], T | None], rows: pa.Table) -> list[T] | None:
    """`work` on pieces of what polars gave; None where it is on one of them."""
    pieces = [rows.slice(start, _PIECE_ROWS) for start in range(0, max(rows.num_rows, 1), _PIECE_ROWS)]
    done: list[T] = []
    for piece in pieces:
        one = work(scan, piece)
        if one is None:
            return None
        done.append(one)
    return done


def _rows(scan: PolarsScan, rows: pa.Table) -> pa.Table | None:
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


def _positions(scan: PolarsScan, rows: pa.Table) -> np.ndarray | None:
    """int64: the numbers of the rows that match; None as `_tested`."""
    tested = _tested(scan, rows)
    if tested is None:
        return None
    numbers, mask = _numbers(rows), tested[1]
    return numbers if mask is None else numbers[mask]


def _numbers(rows: pa.Table) -> np.ndarray:
    """int64, of the rows that polars gave."""
    return to_numpy(rows.column(rows.num_columns - 1).combine_chunks()).astype(np.int64)


def _tested(scan: PolarsScan, rows: pa.Table) -> tuple[pa.Table, np.ndarray | None] | None:
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
