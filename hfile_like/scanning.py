"""Blocks as Arrow batches: a scan decodes about a megabyte at once, and not block by block."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from ..arrays import from_numpy, is_large
from ..errors import CorruptionError, InvalidArgumentError
from ..lazy import is_loaded, kernels_for
from .block import BLOCK_BYTES_MAX, BLOCK_ENTRIES_MAX, Block
from .byte_io import Source, close_source, name_of, open_source, read_exact
from .codec import Encoded, Where, checked_text
from .entries import Entries, column_positions, scan_schema
from .integers import Rows, row_count
from .keys import (
    ENCODING_BUNDLE,
    ENCODING_FIXED,
    ENCODING_NUMBERS,
    joined_sections,
    lower_bound,
    render_bundles,
    render_wide,
)
from .names import NameStrings
from .names import joined as joined_names
from .open_file import OpenFile
from .values import ENCODING_FIXED as VALUES_FIXED
from .values import ENCODING_NAMES, FLAG_VALIDITY, check_schema, encoding_of, integer_dtype

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 2
_RUNS_ALONE, _RUNS_AHEAD = 3, 3
_BYTES_AHEAD = 1 << 23
# About what a column of a block costs without compiled code: a few calls of numpy and Arrow, whatever it holds.
_COLUMN_PLAIN_NS = 20_000
_KERNELS = tuple(f"hfile_like.kernels_{family}" for family in ("names", "keys", "columns"))

# Of stored bytes: decoded they are up to a few times as many, which still fit the processor's last cache.
BATCH_STORED_BYTES = 1 << 19
BATCH_BLOCKS = 64
# What compresses much, or is much more once decoded, is taken block by block: a batch is then as large as one of them.
BATCH_PLAIN_BYTES = 1 << 24


class BlockRange(NamedTuple):
    """Blocks that make one batch: from entry `low` of the first, before entry `high` of the last."""

    blocks: list[Block]
    low: int
    high: int


def scan(
    file: OpenFile,
    blocks: Sequence[int],
    start: bytes,
    stop: bytes | None,
    positions: Sequence[int],
    include_deleted: bool,
) -> Iterator[pa.RecordBatch]:
    """The entries of some blocks from key `start` on, before `stop`, with the value columns at `positions`."""
    schema = scan_schema(file.schema, positions, include_deleted)

    def make(run: BlockRange) -> pa.RecordBatch | None:
        return run_batch(run, positions, schema, include_deleted)

    def singly(run: BlockRange) -> Iterator[pa.RecordBatch]:
        return block_batches(run, positions, schema, include_deleted)

    for batch in in_order(_runs(file, blocks, start, stop), make, singly):
        if batch.num_rows:
            yield batch


def _runs(file: OpenFile, blocks: Sequence[int], start: bytes, stop: bytes | None) -> Iterator[BlockRange]:
    done = 0
    for run in runs_of(file.blocks(blocks)):
        low = lower_bound(run[0].keys, start) if done == 0 and start else 0
        done += len(run)
        last = run[-1]
        high = lower_bound(last.keys, stop) if done == len(blocks) and stop is not None else last.entries
        yield BlockRange(run, low, high)


def read_block_range(
    source: Source | str | os.PathLike[str] | bytes,
    offset: int,
    length: int,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    include_deleted: bool = False,
) -> pa.Table:
    """The entries of the blocks in a range (a GroupHandle's offset and length), without a footer: one range read.
    `schema` is that of the value columns, as the file was written with. Raises CorruptionError where the range does not
    hold whole blocks of that schema."""
    schema = check_schema(schema)
    if offset < 0 or length < 0:
        raise InvalidArgumentError(f"there is no range of {length} bytes at {offset}: give a GroupHandle's")
    positions = column_positions(schema, columns)
    opened, is_owned = open_source(source)
    try:
        view = read_exact(opened, [(offset, length)])[0]
    finally:
        if is_owned:
            close_source(opened)
    result = scan_schema(schema, positions, include_deleted)

    def blocks() -> Iterator[Block]:
        position = 0
        while position < length:
            block = Block(view[position:], Where(name_of(opened), offset + position), schema)
            yield block
            position += block.length_bytes

    batches: list[pa.RecordBatch] = []
    for some in runs_of(blocks()):
        run = BlockRange(some, 0, some[-1].entries)
        batch = run_batch(run, positions, result, include_deleted)
        batches += block_batches(run, positions, result, include_deleted) if batch is None else [batch]
    return pa.Table.from_batches(batches, result)


def block_entries(block: Block, positions: Sequence[int], rows: Rows | None = None, keys: bool = True) -> Entries:
    """The entries of a block, or those at `rows`, with the columns at `positions`; the keys only where they are
    wanted. Raises CorruptionError."""
    if rows is None:
        decoded = block.keys.to_arrow() if keys else pa.nulls(block.entries, pa.binary())
        return Entries(decoded, _decoded(block, positions, decoded.nbytes), block.deleted())
    columns = [block.column(p).take(rows) for p in positions]
    deleted = block.deleted()
    deleted = None if deleted is None else deleted[rows]
    if not keys:
        return Entries(pa.nulls(row_count(rows), pa.binary()), columns, deleted)
    decoded = block.keys.to_arrow()
    return Entries(decoded[rows] if isinstance(rows, slice) else decoded.take(from_numpy(rows)), columns, deleted)


def _decoded(block: Block, positions: Sequence[int], size_bytes: int) -> list[pa.Array]:
    """Columns of a block; `size_bytes`: of what is decoded beside them."""
    columns: list[pa.Array] = []
    for position in positions:
        columns.append(block.column(position).to_arrow())
        size_bytes += columns[-1].nbytes
        if size_bytes > BLOCK_BYTES_MAX:
            raise block.where.bad("decoded size", f"a block comes to more than {BLOCK_BYTES_MAX} bytes")
    return columns


# -- runs of blocks ---------------------------------------------------------------------------------------------------


def runs_of(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Neighbours that make one batch."""
    run: list[Block] = []
    stored = plain = entries = 0
    for block in blocks:
        stored, plain, entries = stored + block.length_bytes, plain + block.plain_bytes, entries + block.entries
        is_full = stored > BATCH_STORED_BYTES or plain > BATCH_PLAIN_BYTES or entries > BLOCK_ENTRIES_MAX
        if run and (is_full or len(run) == BATCH_BLOCKS):
            yield run
            run, stored, plain, entries = [], block.length_bytes, block.plain_bytes, block.entries
        run.append(block)
    if run:
        yield run


def in_order(
    runs: Iterable[T],
    make: Callable[[T], R | None],
    singly: Callable[[T], Iterator[R]] | None = None,
    size_bytes: Callable[[T], int] | None = None,
) -> Generator[R, None, None]:
    """What `make` gives of each run, in their order, or where it gives none, what `singly` does, one after the other.
    After the first few, and once kernels are loaded, two threads make what comes next: kernels and zstandard leave
    Python to others in the meantime. Where `size_bytes` gives the size of runs, none starts beside large ones."""

    def results_of(run: T, result: R | None) -> Iterator[R]:
        if result is not None:
            return iter((result,))
        return iter(()) if singly is None else singly(run)

    rest = iter(runs)
    for i, run in enumerate(rest, 1):
        yield from results_of(run, make(run))
        if i >= _RUNS_ALONE and any(map(is_loaded, _KERNELS)) and _has_threads():
            break
    else:
        return
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="skipstone-decode") as pool:
        under_way: deque[tuple[T, Future[R | None]]] = deque()

        def finished() -> Iterator[R]:
            before, future = under_way.popleft()
            return results_of(before, future.result())

        try:
            for run in rest:
                under_way.append((run, pool.submit(make, run)))
                while len(under_way) > _RUNS_AHEAD or (
                    size_bytes and sum(map(size_bytes, (r for r, _ in under_way))) > _BYTES_AHEAD
                ):
                    yield from finished()
            while under_way:
                yield from finished()
        finally:
            for _, future in under_way:
                future.cancel()


def _has_threads() -> bool:
    """Whether threads would help, and are to be had: a pool takes no work once the main one has ended."""
    return (os.cpu_count() or 1) > 1 and threading.main_thread().is_alive()


def run_batch(
    run: BlockRange, positions: Sequence[int], schema: pa.Schema, include_deleted: bool
) -> pa.RecordBatch | None:
    """The entries of a run, with the columns at `positions`; None where they are too many bytes for one batch, or for
    several that are made at once."""
    if sum(block.plain_bytes for block in run.blocks) > BATCH_PLAIN_BYTES:
        return None  # a block alone
    if len(run.blocks) == 1:
        block = run.blocks[0]
        if block.decoded_bytes(positions) > BATCH_PLAIN_BYTES:
            return None
        rows = None if run.low == 0 and run.high == block.entries else slice(run.low, max(run.low, run.high))
        return block_entries(block, positions, rows).to_batch(schema, include_deleted)
    entries = joined_entries(run.blocks, positions)
    if entries is None:
        return None
    stop = len(entries) - run.blocks[-1].entries + run.high
    if run.low or stop < len(entries):
        entries = entries.slice(run.low, max(0, stop - run.low))
    return entries.to_batch(schema, include_deleted)


def block_batches(
    run: BlockRange, positions: Sequence[int], schema: pa.Schema, include_deleted: bool
) -> Iterator[pa.RecordBatch]:
    """As `run_batch`, block by block."""
    for i, block in enumerate(run.blocks):
        first, end = run.low if i == 0 else 0, run.high if i == len(run.blocks) - 1 else block.entries
        rows = None if first == 0 and end == block.entries else slice(first, max(first, end))
        # Of another run's blocks nothing is kept that was decoded.
        yield block_entries(block.unread(), positions, rows).to_batch(schema, include_deleted)


def joined_entries(blocks: Sequence[Block], positions: Sequence[int]) -> Entries | None:
    """All entries of some blocks that `runs_of` gave; None where they are too many bytes."""
    counts = [block.entries for block in blocks]
    arrays: list[pa.Array] = []
    bytes_left = BATCH_PLAIN_BYTES
    for position in (None, *positions):
        array = _keys(blocks, counts, bytes_left) if position is None else _column(blocks, counts, position, bytes_left)
        if array is None:
            return None
        bytes_left -= array.nbytes
        arrays.append(array)
    return Entries(arrays[0], arrays[1:], _deleted(blocks))


def _keys(blocks: Sequence[Block], counts: Sequence[int], most_bytes: int) -> pa.BinaryArray | None:
    joined: pa.Array | None = None
    if can_join_keys({block.encoding_of(1) for block in blocks}):
        joined = joined_keys([block.encoded(1) for block in blocks], counts, most_bytes)
    return _concatenated((block.keys.to_arrow() for block in blocks), most_bytes) if joined is None else joined


def _column(blocks: Sequence[Block], counts: Sequence[int], position: int, most_bytes: int) -> pa.Array | None:
    kind = blocks[0].schema.field(position).type
    joined: pa.Array | None = None
    if {block.encoding_of(2 + position) for block in blocks} == {ENCODING_NAMES}:
        columns = [block.column(position) for block in blocks]
        if all(column.valid is None for column in columns):
            names = [column.strings for column in columns if isinstance(column.strings, NameStrings)]
            joined = joined_names(names, counts, most_bytes)
    elif can_join_columns(len(blocks)):
        joined = joined_column(kind, [block.encoded(2 + position) for block in blocks], counts, most_bytes)
        try:
            joined = None if joined is None else checked_text(joined, blocks[0].where)
        except CorruptionError:  # of which block?
            joined = None
    if joined is None:
        return _concatenated((block.column(position).to_arrow() for block in blocks), most_bytes)
    return joined


def _concatenated(arrays: Iterable[pa.Array], most_bytes: int) -> pa.Array | None:
    """Arrays one after the other; None, before all are made, where they are too many bytes."""
    parts: list[pa.Array] = []
    size = 0
    for array in arrays:
        size += array.nbytes
        if size > most_bytes:
            return None
        parts.append(array)
    return pa.concat_arrays(parts)


def _deleted(blocks: Sequence[Block]) -> np.ndarray | None:
    parts = [block.deleted() for block in blocks]
    if all(part is None for part in parts):
        return None
    return np.concatenate(
        [np.zeros(b.entries, bool) if part is None else part for b, part in zip(blocks, parts, strict=True)]
    )


# -- one column of several blocks, by compiled code -------------------------------------------------------------------
#
# These give None where a section does not fit, is encoded in a way that is not for this, or there is no compiler: the
# plain path then reads block by block, and says what is wrong.


def can_join_keys(encodings: set[int]) -> bool:
    """Whether `joined_keys` may give something: nothing has to be decompressed to know."""
    return is_loaded("hfile_like.kernels_keys") and (
        encodings == {ENCODING_BUNDLE} or encodings <= {ENCODING_FIXED, ENCODING_NUMBERS}
    )


def can_join_columns(blocks: int) -> bool:
    """Whether `joined_column` may give something of so many blocks; counts what the plain path will take."""
    return kernels_for("hfile_like.kernels_columns", _COLUMN_PLAIN_NS * blocks) is not None


def joined_keys(sections: Sequence[Encoded], counts: Sequence[int], cap: int) -> pa.BinaryArray | None:
    """The keys of blocks of so many entries, one after the other; None where it is not for this."""
    encodings = [section.encoding for section in sections]
    kinds, raws = set(encodings), [section.raw for section in sections]
    if kinds == {ENCODING_BUNDLE}:
        return render_bundles(raws, counts, cap)
    return render_wide(raws, counts, encodings, cap) if kinds <= {ENCODING_FIXED, ENCODING_NUMBERS} else None


def joined_column(kind: pa.DataType, sections: Sequence[Encoded], counts: Sequence[int], cap: int) -> pa.Array | None:
    """As `joined_keys`, of a value column. Strings are not checked for being text."""
    kernels = kernels_for("hfile_like.kernels_columns", _COLUMN_PLAIN_NS * len(sections))
    if kernels is None or any(section.flags & ~FLAG_VALIDITY for section in sections):
        return None
    blocks = (
        *joined_sections([section.raw for section in sections], counts),
        np.fromiter((section.encoding for section in sections), dtype=np.int64, count=len(sections)),
        np.fromiter((section.flags for section in sections), dtype=np.int64, count=len(sections)),
    )
    total = sum(counts)
    bits = np.zeros(total // 8 + 2, dtype=np.uint8)
    plain = encoding_of(kind)
    out: np.ndarray
    if plain == VALUES_FIXED:
        if total * kind.byte_width > cap:
            return None
        out = np.empty(total * kind.byte_width, dtype=np.uint8)
        is_integer = integer_dtype(kind) is not None
        nulls = kernels.fill_fixed(*blocks, kind.byte_width, is_integer, out, bits)
    elif pa.types.is_boolean(kind):
        out = np.zeros(total // 8 + 2, dtype=np.uint8)
        nulls = kernels.fill_bits(*blocks, out, bits)
    else:
        return _joined_strings(kernels, kind, blocks, total, cap, bits)
    if nulls < 0:
        return None
    return pa.Array.from_buffers(kind, total, [pa.py_buffer(bits) if nulls else None, pa.py_buffer(out)], nulls)


def _joined_strings(
    kernels: ModuleType, kind: pa.DataType, blocks: tuple, total: int, cap: int, bits: np.ndarray
) -> pa.Array | None:
    if is_large(kind):
        return None
    offsets = np.empty(total + 1, dtype=np.int32)
    nulls = kernels.measure_strings(*blocks, min(cap, np.iinfo(np.int32).max), offsets, bits)
    if nulls < 0:
        return None
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    kernels.fill_strings(*blocks, offsets, bits, out)
    validity = pa.py_buffer(bits) if nulls else None
    return pa.Array.from_buffers(kind, total, [validity, pa.py_buffer(offsets), pa.py_buffer(out)], nulls)
