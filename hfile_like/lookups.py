"""Look-ups of one key or of many: of many, sorted, so that each block is read and searched once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import ne

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import binary_array, from_numpy, offsets_and_data, offsets_of, to_numpy, valid_mask
from ..caching import SizedCache
from ..errors import CorruptionError
from .block import Block
from .entries import DELETED_FIELD, KEY_FIELD, Entries, key_chunks
from .index import BlockIndex
from .keys import find_key
from .open_file import OpenFile
from .scanning import (
    BATCH_BLOCKS,
    BATCH_PLAIN_BYTES,
    BATCH_STORED_BYTES,
    block_entries,
    can_join_columns,
    joined_entries,
)
from .values import ENCODING_OFFSETS_32, encoding_of

# Up to this many keys wanted of a block, or one for so many entries, searching the encoded keys beats decoding all.
_SEARCH_KEYS_MAX, _SEARCH_ENTRIES = 32, 2048
# Blocks of up to so many entries cost less decoded together, whole, than searched one by one in Python.
_JOINED_ENTRIES_MAX = 2048
# Beside its bytes, for each entry: where its key begins, and whether each value is null.
_ENTRY_BYTES = 16
CHUNK_BYTES_MAX = np.iinfo(np.int32).max


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
    try:
        row = _row_of(block, key)
    except CorruptionError:
        if cache is not None:
            cache.drop(i)
        raise
    if is_new and cache is not None:
        _cache_blocks(cache, [(i, block)])
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
    rows = np.full(len(listed), -1, dtype=np.int64)
    parts: list[Entries] = []
    total = 0
    plan = _plan(file.index, ranked)
    for low, high, source in _sources(zip(plan, _blocks(file, [i for _, _, i in plan]), strict=True), positions):
        try:
            where = _find(source, ranked[low:high])
            hits = np.flatnonzero(where >= 0)
            if not len(hits):
                continue
            places = where[hits]
            # A key that is asked for again and again is taken once: many long values might be too many for one array.
            is_other = np.append(True, places[1:] != places[:-1])
            part = _taken(source, positions, places[is_other])
        except CorruptionError:
            if file.cache is not None:
                for i in [i for first, end, i in plan if low <= first and end <= high]:
                    file.cache.drop(i)
            raise
        rows[np.array(order[low:high])[hits]] = total - 1 + np.cumsum(is_other)
        parts.append(part)
        total += len(part)
    return _aligned(file.schema, wanted, rows, parts, positions, include_deleted)


def _sources(
    items: Iterable[tuple[tuple[int, int, int], tuple[Block, bool]]], positions: list[int]
) -> Iterator[tuple[int, int, Block | Entries]]:
    """(low, high, where the sorted keys from low to high are sought): a block, or the entries of neighbours that are
    decoded together, which costs less than one by one where they are small and read now."""
    run: list[tuple[int, int, Block]] = []

    def of_run() -> Iterator[tuple[int, int, Block | Entries]]:
        entries = joined_entries([block for *_, block in run], positions) if len(run) > 1 else None
        yield from run if entries is None else [(run[0][0], run[-1][1], entries)]
        run.clear()

    stored = plain = 0
    for (low, high, _), (block, is_new) in items:
        if not is_new or block.entries > _JOINED_ENTRIES_MAX or not can_join_columns(BATCH_BLOCKS):
            yield low, high, block
            continue
        stored, plain = stored + block.length_bytes, plain + block.plain_bytes
        if run and (stored > BATCH_STORED_BYTES or plain > BATCH_PLAIN_BYTES or len(run) == BATCH_BLOCKS):
            yield from of_run()
            stored, plain = block.length_bytes, block.plain_bytes
        run.append((low, high, block))
    yield from of_run()


def _taken(source: Block | Entries, positions: list[int], rows: np.ndarray) -> Entries:
    """The entries at some rows, without their keys."""
    if isinstance(source, Block):
        return block_entries(source, positions, rows, keys=False)
    deleted = None if source.deleted is None else source.deleted[rows]
    which = from_numpy(rows)
    return Entries(pa.nulls(len(rows), pa.binary()), [column.take(which) for column in source.columns], deleted)


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


def _blocks(file: OpenFile, numbers: list[int]) -> Iterator[tuple[Block, bool]]:
    """Some blocks, ascending: those in the cache, and others, which are read ahead together; and whether each was read
    now."""
    cache = file.cache
    if cache is None:
        yield from ((block, True) for block in file.blocks(numbers))
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
        yield block, i not in cached
    _cache_blocks(cache, read)


def _cache_blocks(cache: SizedCache[int, Block], read: Sequence[tuple[int, Block]]) -> None:
    """Caches blocks that were read, in memory of their own, if there is room for all of them: a look-up of many keys
    all over the file must not evict what is looked up again. What is decompressed later is counted now."""
    sizes = [
        block.length_bytes + block.plain_bytes + (_ENTRY_BYTES + len(block.schema)) * block.entries for _, block in read
    ]
    if sum(sizes) <= cache.capacity_bytes:
        for (i, block), size_bytes in zip(read, sizes, strict=True):
            cache.put(i, block.owned(), size_bytes)


def _find(source: Block | Entries, wanted: list[bytes]) -> np.ndarray:
    """int64: the position of each of some sorted keys in a block or in entries, -1 where it is not there."""
    if isinstance(source, Entries):
        return _find_among(source.keys, wanted)
    block = source
    if len(wanted) > max(_SEARCH_KEYS_MAX, block.entries // _SEARCH_ENTRIES):
        positions = pc.index_in(binary_array(wanted), value_set=block.keys.to_arrow())
        valid = valid_mask(positions)
        places = to_numpy(positions).astype(np.int64)
        return places if valid is None else np.where(valid, places, -1)
    return np.array([find_key(block.keys, key) for key in wanted], dtype=np.int64)


def _find_among(keys: pa.BinaryArray, wanted: list[bytes]) -> np.ndarray:
    """The same among many more keys than are wanted: each of them is looked up among the wanted."""
    is_other = np.array([True, *map(ne, wanted[1:], wanted)])
    places = pc.index_in(keys, value_set=binary_array([wanted[i] for i in np.flatnonzero(is_other)]))
    found = np.flatnonzero(to_numpy(places.is_valid()))
    where = np.full(int(is_other.sum()), -1, dtype=np.int64)
    where[to_numpy(places.take(from_numpy(found)))] = found
    return where[np.cumsum(is_other) - 1]


def _aligned(
    schema: pa.Schema,
    wanted: pa.ChunkedArray,
    rows: np.ndarray,
    parts: list[Entries],
    positions: list[int],
    deleted: bool,
) -> pa.Table:
    is_match = rows >= 0
    is_deleted = np.zeros(len(rows), dtype=bool)
    if any(p.deleted is not None for p in parts):
        flags = np.concatenate([np.zeros(len(p), bool) if p.deleted is None else p.deleted for p in parts])
        is_deleted[is_match] = flags[rows[is_match]]
    if not deleted:
        is_match = is_match & ~is_deleted
    arrays: list[pa.Array | pa.ChunkedArray] = [wanted]
    for place, position in enumerate(positions):
        arrays.append(_picked([part.columns[place] for part in parts], schema.field(position).type, rows, is_match))
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
