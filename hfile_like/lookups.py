"""Look-ups of one key or of many: of many, sorted, so that each block is read and searched once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from types import ModuleType
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import binary_array, from_numpy, offsets_and_data, offsets_of, to_numpy, valid_mask
from ..errors import CorruptionError
from ..lazy import kernels_for
from .block import Block
from .entries import DELETED_FIELD, KEY_FIELD, key_chunks
from .index import BlockIndex
from .keys import find_key, lower_bound, tails_at
from .open_file import OpenFile
from .scanning import BATCH_PLAIN_BYTES
from .values import ENCODING_OFFSETS_32, encoding_of

_KERNELS = "hfile_like.kernels_lookups"
# About what a key costs without compiled code, and a column of a block.
_KEY_PLAIN_NS, _COLUMN_PLAIN_NS = 10_000, 20_000
# Up to this many keys wanted of a block, or one for so many entries, searching the encoded keys beats decoding all.
_SEARCH_KEYS_MAX, _SEARCH_ENTRIES = 32, 2048
_LISTED_RANGES_MIN = 16  # of so many ranges in a block, its keys are decoded, and searched as a list
# Blocks that one call of compiled code searches.
_RUN_BLOCKS = 256
# Beside its bytes, for each entry: where its key begins, and whether each value is null.
_ENTRY_BYTES = 16
CHUNK_BYTES_MAX = np.iinfo(np.int32).max
T = TypeVar("T")


def look_up_one(file: OpenFile, key: bytes) -> dict[str, object] | None:
    """What `SortedFileReader.get` gives."""
    i = file.index.block_of(key)
    if i is None:
        return None
    cache = file.cache
    block = None if cache is None else cache.get(i)
    is_new = block is None
    if block is None:
        block = file.block(i)
        if cache is not None:
            block = block.owned()  # before anything is decoded
    try:
        row = _row_of(block, key)
    except CorruptionError:
        if cache is not None:
            cache.drop(i)
        raise
    if is_new and cache is not None:
        size_bytes = _kept_bytes(block)
        if size_bytes <= cache.capacity_bytes:
            cache.put(i, block, size_bytes)
    return row


def _row_of(block: Block, key: bytes) -> dict[str, object] | None:
    row = find_key(block.keys, key)
    if row < 0:
        return None
    deleted = block.deleted()
    if deleted is not None and deleted[row]:
        return None
    return {name: block.column(position).value(row) for position, name in enumerate(block.schema.names)}


def look_up(
    file: OpenFile,
    keys: Sequence[bytes] | pa.Array | pa.ChunkedArray,
    positions: list[int],
    include_deleted: bool,
) -> pa.Table:
    """What `SortedFileReader.get_many` gives, with the value columns at `positions`."""
    wanted = pa.chunked_array(key_chunks(keys), pa.binary())
    listed = wanted.to_pylist()
    order = sorted(range(len(listed)), key=listed.__getitem__)
    ranked = [listed[i] for i in order]
    ranks = np.array(order, dtype=np.int64)
    rows = np.full(len(listed), -1, dtype=np.int64)
    columns: list[list[pa.Array]] = [[] for _ in positions]
    deleted: list[np.ndarray] = []
    total = 0
    plan = _plan(file.index, ranked)
    for run in together(zip(plan, _blocks(file, [i for _, _, i in plan]), strict=True)):
        blocks = [block for _, block in run]
        low, high = run[0][0][0], run[-1][0][1]
        try:
            places = find_in(blocks, [(first - low, end - low) for (first, end, _), _ in run], ranked[low:high])
            hits = np.flatnonzero(places >= 0)
            if not len(hits):
                continue
            # A key that is asked for again and again is taken once: many long values might be too many for one array.
            is_other = np.append(True, places[hits[1:]] != places[hits[:-1]])
            picks = Picks.of(blocks, places[hits[is_other]])
            for pieces, position in zip(columns, positions, strict=True):
                pieces += take_from(picks, position)
            deleted.append(picks.deleted())
        except CorruptionError:
            if file.cache is not None:
                for (_, _, i), _ in run:
                    file.cache.drop(i)
            raise
        rows[ranks[low:high][hits]] = total - 1 + np.cumsum(is_other)
        total += len(picks.rows)
    return _aligned(file.schema, wanted, rows, columns, deleted, positions, include_deleted)


def together(items: Iterable[tuple[T, Block]]) -> Iterator[list[tuple[T, Block]]]:
    """Blocks, each with what is asked of it, that are searched together: no more than a scan decodes at once."""
    run: list[tuple[T, Block]] = []
    plain = 0
    for item in items:
        plain += item[1].plain_bytes
        if run and (plain > BATCH_PLAIN_BYTES or len(run) == _RUN_BLOCKS):
            yield run
            run, plain = [], item[1].plain_bytes
        run.append(item)
    if run:
        yield run


def _plan(index: BlockIndex, ranked: list[bytes]) -> list[tuple[int, int, int]]:
    """(low, high, block): the slices of sorted keys that may lie in one block, with its number."""
    plan, low = [], 0
    while low < len(ranked):
        i = index.block_of(ranked[low])
        if i is None:
            following = index.first_block_from(ranked[low])
            if following == index.block_count:
                break
            # At least one further, or an index out of order would hold us here.
            low = max(low + 1, bisect_left(ranked, index.first_key(following), lo=low))
            continue
        high = bisect_right(ranked, index.last_key(i), lo=low)
        plan.append((low, high, i))
        low = high
    return plan


def _blocks(file: OpenFile, numbers: list[int]) -> Iterator[Block]:
    """Some blocks, ascending: those in the cache, and others, which are read ahead together."""
    cache = file.cache
    if cache is None:
        yield from file.blocks(numbers)
        return
    cached = {i: block for i in numbers if (block := cache.get(i)) is not None}
    missing = [i for i in numbers if i not in cached]
    is_little = int(file.index.spans(missing).lengths.sum(dtype=np.uint64)) <= cache.capacity_bytes
    read: list[tuple[int, Block]] = []
    rest = file.blocks(missing)
    for i in numbers:
        block = cached.get(i)
        if block is None:
            block = next(rest)
            if is_little:
                read.append((i, block))
        yield block
    # If there is room for all: a look-up of many keys all over the file must not evict what is looked up again.
    if sum(_kept_bytes(block) for _, block in read) <= cache.capacity_bytes:
        for i, block in read:
            cache.put(i, block.owned(), _kept_bytes(block))


def _kept_bytes(block: Block) -> int:
    """What a block takes in a cache; what is decompressed later is counted now."""
    return block.length_bytes + block.plain_bytes + (_ENTRY_BYTES + len(block.schema)) * block.entries


def find_in(blocks: Sequence[Block], cuts: Sequence[tuple[int, int]], wanted: list[bytes]) -> np.ndarray:
    """int64 [k]: where each of some sorted keys is, counted over the entries of all blocks; -1 where it is not there.
    Those of a cut, from one place on, before another, are sought in its block. Raises CorruptionError."""
    rows = _found_together(blocks, cuts, wanted)
    if rows is None:
        rows = np.full(len(wanted), -1, dtype=np.int64)
        for block, (low, high) in zip(blocks, cuts, strict=True):
            rows[low:high] = _find(block, wanted[low:high])
    firsts = offsets_of(np.array([block.entries for block in blocks]))
    homes = np.searchsorted([low for low, _ in cuts], np.arange(len(wanted)), side="right") - 1
    return np.where(rows < 0, -1, rows + firsts[homes])


def _found_together(blocks: Sequence[Block], cuts: Sequence[tuple[int, int]], wanted: list[bytes]) -> np.ndarray | None:
    """int64 [k]: by compiled code, the row of each of some keys in its block; where it is not there, ~ of the first row
    behind it. None where that is for the plain way."""
    kernels = kernels_for(_KERNELS, _KEY_PLAIN_NS * len(wanted))
    if kernels is None:
        return None
    from .gathering import find_together

    rows = np.full(len(wanted), -1, dtype=np.int64)
    lows, highs = np.array(cuts, dtype=np.int64).T.copy()
    return rows if find_together(kernels, blocks, lows, highs, wanted, rows) else None


def find_between(blocks: Sequence[Block], ranges: Sequence[Sequence[tuple[bytes, bytes]]]) -> tuple[np.ndarray, Picks]:
    """(int64 [k]: which of the ranges, counted over all blocks; the entries in them) of ranges of keys in each block,
    ascending and disjoint, each from its start on, before its stop. Raises CorruptionError."""
    if len(blocks) == 1:
        return _find_in_one(blocks[0], ranges[0])
    ends = offsets_of(np.array(list(map(len, ranges))))
    cuts = list(pairwise((2 * ends).tolist()))
    bounds = _found_together(blocks, cuts, [key for of_block in ranges for one in of_block for key in one])
    if bounds is None:
        parts = zip(blocks, ranges, strict=True)
        bounds = np.array([row for block, of_block in parts for row in _bounds(block, of_block)], dtype=np.int64)
    lows, highs = np.where(bounds < 0, ~bounds, bounds).reshape(-1, 2).T
    counts = np.maximum(highs - lows, 0)
    firsts = offsets_of(np.array([block.entries for block in blocks]))
    begins = lows + np.repeat(firsts[:-1], np.diff(ends)) - offsets_of(counts)[:-1]
    places = np.arange(counts.sum()) + np.repeat(begins, counts)
    return np.repeat(np.arange(len(counts)), counts), Picks.of(blocks, places)


def _find_in_one(block: Block, ranges: Sequence[tuple[bytes, bytes]]) -> tuple[np.ndarray, Picks]:
    """As `find_between`: what puts blocks together takes longer than searching one."""
    bounds = list(_bounds(block, ranges))
    found = [np.arange(low, high) for low, high in zip(bounds[::2], bounds[1::2], strict=True)]
    rows = found[0] if len(found) == 1 else np.concatenate([np.empty(0, dtype=np.int64), *found])
    numbers = np.repeat(np.arange(len(found)), list(map(len, found)))
    used, slices = ([block], [slice(0, len(rows))]) if len(rows) else ([], [])
    return numbers, Picks(used, np.zeros(len(rows), dtype=np.int64), rows, slices)


def _bounds(block: Block, ranges: Sequence[tuple[bytes, bytes]]) -> Iterator[int]:
    """Where each of some ranges begins and ends."""
    if len(ranges) >= _LISTED_RANGES_MIN:
        listed = block.keys.to_arrow().to_pylist()
        yield from (bisect_left(listed, key) for one in ranges for key in one)
        return
    for start, stop in ranges:
        low = lower_bound(block.keys, start)
        yield low
        # Most often no entry is in it, or one.
        if low == block.entries or block.keys.key_at(low) >= stop:
            yield low
        elif low + 1 == block.entries or block.keys.key_at(low + 1) >= stop:
            yield low + 1
        else:
            yield lower_bound(block.keys, stop)


def _find(block: Block, wanted: list[bytes]) -> np.ndarray:
    """int64: the row of each of some sorted keys, -1 where it is not there."""
    if len(wanted) > max(_SEARCH_KEYS_MAX, block.entries // _SEARCH_ENTRIES):
        rows = pc.index_in(binary_array(wanted), value_set=block.keys.to_arrow())
        valid = valid_mask(rows)
        places = to_numpy(rows).astype(np.int64)
        return places if valid is None else np.where(valid, places, -1)
    return np.array([find_key(block.keys, key) for key in wanted], dtype=np.int64)


class Picks(NamedTuple):
    """Rows of some blocks, ascending.

    blocks    those of which there are rows
    which     int64 [k]: the block of each row
    rows      int64 [k]
    slices    the rows of block b are rows[slices[b]]
    """

    blocks: list[Block]
    which: np.ndarray
    rows: np.ndarray
    slices: list[slice]

    @staticmethod
    def of(blocks: Sequence[Block], places: np.ndarray) -> Picks:
        """Of ascending places that `find_in` gave."""
        firsts = offsets_of(np.array([block.entries for block in blocks]))
        homes = np.searchsorted(firsts, places, side="right") - 1
        used, starts, which = np.unique(homes, return_index=True, return_inverse=True)
        picked = [blocks[b] for b in used.tolist()]
        slices = [slice(low, high) for low, high in pairwise([*starts.tolist(), len(places)])]
        return Picks(picked, which.reshape(-1), places - firsts[homes], slices)

    def deleted(self) -> np.ndarray:
        """bool [k], True for tombstones. Raises CorruptionError."""
        flags = np.zeros(len(self.rows), dtype=bool)
        for block, cut in zip(self.blocks, self.slices, strict=True):
            deleted = block.deleted()
            if deleted is not None:
                flags[cut] = deleted[self.rows[cut]]
        return flags


def _kernels_of(picks: Picks) -> ModuleType | None:
    """Compiled code for rows of several blocks: of one, the plain way takes less."""
    return kernels_for(_KERNELS, _COLUMN_PLAIN_NS * (len(picks.blocks) - 1)) if picks.blocks else None


def take_from(picks: Picks, position: int) -> list[pa.Array]:
    """The values of a column, one array after the other. Raises CorruptionError."""
    kernels = _kernels_of(picks)
    if kernels is not None:
        from .gathering import taken_together

        taken = taken_together(kernels, picks.blocks, picks.which, picks.rows, position)
        if taken is not None:
            return [taken]
    parts = zip(picks.blocks, picks.slices, strict=True)
    return [block.column(position).take(picks.rows[cut]) for block, cut in parts]


def tails_of(picks: Picks, width: int) -> np.ndarray:
    """uint8 [k, width]: the last bytes of the keys. Raises CorruptionError, and InvalidArgumentError where one is
    shorter."""
    kernels = _kernels_of(picks)
    if kernels is not None:
        from .gathering import tails_together

        tails = tails_together(kernels, picks.blocks, picks.which, picks.rows, width)
        if tails is not None:
            return tails
    parts = [
        tails_at(block.keys, picks.rows[cut], width) for block, cut in zip(picks.blocks, picks.slices, strict=True)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, width), dtype=np.uint8), *parts])


def _aligned(
    schema: pa.Schema,
    wanted: pa.ChunkedArray,
    rows: np.ndarray,
    columns: list[list[pa.Array]],
    flags: list[np.ndarray],
    positions: list[int],
    deleted: bool,
) -> pa.Table:
    is_match = rows >= 0
    is_deleted = np.zeros(len(rows), dtype=bool)
    if flags:
        is_deleted[is_match] = np.concatenate(flags)[rows[is_match]]
    if not deleted:
        is_match = is_match & ~is_deleted
    arrays: list[pa.Array | pa.ChunkedArray] = [wanted]
    for pieces, position in zip(columns, positions, strict=True):
        arrays.append(_picked(pieces, schema.field(position).type, rows, is_match))
    arrays.append(from_numpy(is_match))
    fields = [KEY_FIELD, *(schema.field(p) for p in positions), pa.field("found", pa.bool_())]
    if deleted:
        arrays.append(from_numpy(is_deleted))
        fields.append(DELETED_FIELD)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _picked(pieces: Sequence[pa.Array], kind: pa.DataType, picks: np.ndarray, valid: np.ndarray) -> pa.ChunkedArray:
    """The values at `picks`, int64 [k], of arrays of a type that lie one after the other; null where not `valid`, bool
    [k]. Of strings and bytes that come to more than 2 GiB, in more than one chunk."""
    if not pieces:
        return pa.chunked_array([pa.nulls(len(picks), kind)])
    if encoding_of(kind) == ENCODING_OFFSETS_32:
        size_bytes = sum(piece.nbytes for piece in pieces)
        # Most often it is clear that no sum of lengths comes near.
        if size_bytes * len(picks) > CHUNK_BYTES_MAX:
            lengths = np.concatenate([np.diff(offsets_and_data(piece)[0]) for piece in pieces]).astype(np.int64)
            wanted = np.where(valid, lengths[np.where(valid, picks, 0)], 0)
            if max(size_bytes, int(wanted.sum())) > CHUNK_BYTES_MAX:
                return _picked_in_chunks(pieces, kind, picks, valid, offsets_of(wanted))
    return pa.chunked_array(pieces, kind).take(from_numpy(picks, valid))


def _picked_in_chunks(
    pieces: Sequence[pa.Array], kind: pa.DataType, picks: np.ndarray, valid: np.ndarray, ends: np.ndarray
) -> pa.ChunkedArray:
    """`ends`: int64 [k + 1], the bytes up to each pick."""
    firsts = offsets_of(np.array([len(piece) for piece in pieces]))
    chunks: list[pa.Array] = []
    low = 0
    while low < len(picks):
        high = max(low + 1, int(np.searchsorted(ends, ends[low] + CHUNK_BYTES_MAX, side="right")) - 1)
        # Of one piece at a time, which is no more than a block: what is gathered fits a chunk.
        rows_of_chunk = np.where(valid[low:high], picks[low:high], 0)
        home = np.searchsorted(firsts, rows_of_chunk, side="right") - 1
        order = np.argsort(home, kind="stable")
        pieces_used, cuts = np.unique(home[order], return_index=True)
        parts = np.split(order, cuts[1:])
        gathered = [
            pieces[piece].take(from_numpy(rows_of_chunk[rows] - firsts[piece], valid[low:high][rows]))
            for piece, rows in zip(pieces_used.tolist(), parts, strict=True)
        ]
        back = np.empty(high - low, dtype=np.int64)
        back[order] = np.arange(high - low)
        chunks.append(pa.concat_arrays(gathered).take(from_numpy(back)))
        low = high
    return pa.chunked_array(chunks, kind)
