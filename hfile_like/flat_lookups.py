"""Look-ups of many keys in blocks that a cache holds decoded, by compiled kernels: see `kernels_lookup`.

The plain twin is `lookups`. Blocks that are not held are read and decoded some at a time, and let go of again where the
cache has no room for them, so that a call takes no more memory than those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from ..arrays import from_numpy, offsets_and_data, offsets_of
from .batches import DELETED_FIELD, KEY_FIELD
from .cache import Shelf
from .cached import flat_column, flat_keys, held_blocks
from .index import BlockIndex
from .index_rows import Rows
from .keys import common_prefix_length
from .strings import is_large
from .taken import taken
from .values import ENCODING_BITS, ENCODING_FIXED, encoding_of

if TYPE_CHECKING:
    from .reader import SortedFileReader

# Blocks that are decoded for one pass over keys: some 10 to 60 MB.
_DECODED_AT_ONCE = 512
_OFFSET_MAX = np.iinfo(np.int32).max

Places = tuple[np.ndarray, list[np.ndarray]]


class Queries:
    """Keys that are looked up, as kernels take them.

    starts   int64 [k + 1]
    data     the address of the bytes, which `pinned` holds
    """

    def __init__(self, chunks: Sequence[pa.BinaryArray]):
        spans = [offsets_and_data(chunk) for chunk in chunks]
        if len(spans) == 1:
            offsets, held = spans[0]
            self.starts = offsets.astype(np.int64)
        else:
            parts = [(o.astype(np.int64) - int(o[0]), d[int(o[0]) : int(o[-1])]) for o, d in spans]
            self.starts = offsets_of(np.concatenate([np.zeros(0, np.int64), *(np.diff(o) for o, _ in parts)]))
            held = memoryview(b"".join(d for _, d in parts))
        self.pinned = pa.py_buffer(held)
        self.data = self.pinned.address

    def __len__(self) -> int:
        return len(self.starts) - 1


class Answers:
    """Where keys were found and what is there, row by row of `queries`.

    queries   int64 [k]: which keys
    found     bool [k], tombstones counted
    gone      bool [k]: it is a tombstone
    columns   one array [k] for each that was asked for
    """

    def __init__(
        self, queries: np.ndarray, found: np.ndarray, gone: np.ndarray, columns: Sequence[pa.Array | pa.ChunkedArray]
    ):
        self.queries, self.found, self.gone, self.columns = queries, found, gone, columns


def look_up_flat(
    kernels: ModuleType,
    reader: SortedFileReader,
    shelf: Shelf,
    blocks: np.ndarray,
    queries: Queries,
    wanted: pa.ChunkedArray,
    positions: list[int],
    include_deleted: bool,
) -> pa.Table | None:
    """What `lookups.look_up` gives. `blocks`: int64 [k], the block that may hold each key, -1 for none. None where the
    strings of a column do not fit one array."""
    parts = []
    with shelf.pinned():
        for places, which, some in _passes(reader, shelf, blocks, positions):
            part = _answers(kernels, places, which, some, queries, reader.schema, positions, include_deleted)
            if part is None:
                return None
            parts.append(part)
    answers = parts[0] if len(parts) == 1 else _joined(parts, len(queries))
    found = answers.found if include_deleted else answers.found & ~answers.gone
    arrays = [wanted, *answers.columns, from_numpy(found)]
    fields = [KEY_FIELD, *(reader.schema.field(p) for p in positions), pa.field("found", pa.bool_())]
    if include_deleted:
        arrays.append(from_numpy(answers.gone))
        fields.append(DELETED_FIELD)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def blocks_of(kernels: ModuleType, index: BlockIndex, queries: Queries) -> np.ndarray:
    """int64 [k]: the block that may hold each key, -1 for none."""
    count = len(queries)
    if not index.block_count or not count:
        return np.full(count, -1, dtype=np.int64)
    found = np.zeros(count, dtype=np.int64)
    for level in range(index.levels, -1, -1):
        rank = np.zeros(max(int(found.max()), 0) + 2, dtype=np.int64)  # the last is for keys of no table
        rank[found] = 1
        numbers = np.flatnonzero(rank[:-1])
        rank[numbers] = np.arange(len(numbers))
        rank[-1] = -1
        if not len(numbers):
            return found
        tables = index.tables(level, numbers.tolist())  # held until the kernel is done
        places = np.array([_row_place(kernels, table) for table in tables], dtype=np.int64)
        rows = np.empty(count, dtype=np.int64)
        kernels.rows_of(places, rank[found], queries.starts, queries.data, rows)
        found = np.where(rows < 0, -1, found * index.fan_out + rows)
    return found


# Of tables of an index: where kernels find them, and what they find there.
_row_places: WeakKeyDictionary[Rows, tuple[tuple[int, ...], np.ndarray]] = WeakKeyDictionary()


def _row_place(kernels: ModuleType, table: Rows) -> tuple[int, ...]:
    found = _row_places.get(table)
    if found is None:
        ends, keys = table.ends
        shared = common_prefix_length(table.first_key(0), table.first_key(table.count - 1))
        tails = np.empty(table.count, dtype=np.uint64)
        address = pa.py_buffer(keys).address
        kernels.row_tails_of(ends, address, shared, tails)
        made = (table.count, shared, tails.ctypes.data, ends.ctypes.data, address, 0), tails
        found = _row_places.setdefault(table, made)  # where another thread was first, its tails are in use
    return found[0]


def _passes(
    reader: SortedFileReader, shelf: Shelf, blocks: np.ndarray, positions: list[int]
) -> Iterator[tuple[Places, np.ndarray, np.ndarray]]:
    """(places of some blocks, int64 [k]: which of them, -1 for none, int64 [k]: the keys to be looked up there): first
    blocks that are held and decoded, with the keys that have no block, then others, some at a time."""
    rank = np.full(reader.num_blocks + 1, -1, dtype=np.int64)  # the last is for keys of no block
    rank[blocks] = 0
    numbers = np.flatnonzero(rank[:-1] == 0)
    keys, columns = shelf.snapshot(numbers, positions)
    is_ready = keys[:, 0] != 0
    rank[numbers] = np.where(is_ready, np.arange(len(numbers)), -2)
    rank[-1] = -1
    which = rank[blocks]
    shelf.use(numbers[is_ready])
    if is_ready.all():
        yield (keys, columns), which, np.arange(len(blocks))
        return
    some = np.flatnonzero(which != -2)
    if len(some):
        yield (keys, columns), which[some], some
    others = numbers[~is_ready]
    for at in range(0, len(others), _DECODED_AT_ONCE):
        few = others[at : at + _DECODED_AT_ONCE]
        rank[:] = -1
        rank[few] = np.arange(len(few))
        some = np.flatnonzero(rank[blocks] >= 0)
        decoded, rows = [], []
        for i, held in held_blocks(reader, shelf, few.tolist()):
            rows.append(flat_keys(shelf, i, held).place())
            for position in positions:
                flat_column(shelf, i, held, position)
            decoded.append(held)
        keys = np.array(rows, dtype=np.int64)
        columns = [np.array([held.columns[p].place for held in decoded], dtype=np.int64) for p in positions]
        yield (keys, columns), rank[blocks[some]], some


def _answers(
    kernels: ModuleType,
    places: Places,
    which: np.ndarray,
    some: np.ndarray,
    queries: Queries,
    schema: pa.Schema,
    positions: list[int],
    include_deleted: bool,
) -> Answers | None:
    at, gone = np.empty(len(some), dtype=np.int64), np.empty(len(some), dtype=bool)
    kernels.find(places[0], which, some, queries.starts, queries.data, at, gone)
    found = at >= 0
    if not include_deleted:
        at[gone] = -1
    columns = []
    for position, table in zip(positions, places[1], strict=True):
        column = _taken(kernels, table, which, at, schema.field(position).type)
        if column is None:
            return None
        columns.append(column)
    return Answers(some, found, gone, columns)


def _taken(
    kernels: ModuleType, table: np.ndarray, which: np.ndarray, at: np.ndarray, kind: pa.DataType
) -> pa.Array | None:
    """The values of a column at `at`, null where that is -1; None where they do not fit one array."""
    count = len(at)
    valid = np.empty(count, dtype=bool)
    form = encoding_of(kind)
    if form == ENCODING_BITS:
        flags = np.empty(count, dtype=bool)
        kernels.take_bits(table, which, at, flags, valid)
        return from_numpy(flags, valid)
    if form == ENCODING_FIXED:
        out = np.zeros((count, kind.byte_width), dtype=np.uint8)
        kernels.take_fixed(table, which, at, kind.byte_width, out, valid)
        return pa.Array.from_buffers(kind, count, [_bitmap(valid), pa.py_buffer(out.reshape(-1))])
    width = 8 if is_large(kind) else 4
    lengths = np.empty(count, dtype=np.int64)
    kernels.measure(table, which, at, width, lengths, valid)
    starts = offsets_of(lengths)
    if width == 4 and starts[-1] > _OFFSET_MAX:
        return None
    data = np.empty(int(starts[-1]), dtype=np.uint8)
    kernels.take_strings(table, which, at, width, valid, starts, data)
    offsets = starts if width == 8 else starts.astype(np.int32)
    return pa.Array.from_buffers(kind, count, [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)])


def _joined(parts: list[Answers], count: int) -> Answers:
    """The rows of all parts, in the order of the keys."""
    back = np.empty(count, dtype=np.int64)
    back[np.concatenate([part.queries for part in parts])] = np.arange(count)
    valid = np.ones(count, dtype=bool)
    columns = [taken(pieces, pieces[0].type, back, valid) for pieces in zip(*(p.columns for p in parts), strict=True)]
    found, gone = (np.concatenate([getattr(part, name) for part in parts])[back] for name in ("found", "gone"))
    return Answers(np.arange(count), found, gone, columns)


def _bitmap(valid: np.ndarray) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
