"""Look-ups of many keys: they are sorted, so each block is read and searched once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from ..base.arrays import binary_array, from_numpy, offsets_and_data, offsets_of, read_only
from ..base.lazy import kernels_for
from ..errors import InvalidArgumentError
from .block import BLOCK_BYTES_MAX, Block
from .block_index import BlockIndex
from .block_keys import BUNDLE_KEYS, key_tails, lower_bound
from .block_reader import BlockReader
from .entries import DELETED_FIELD, KEY_FIELD, key_chunks

_KERNELS = "hfile_like.kernels_lookup"
_FIND_PLAIN_NS = 10_000  # about the cost of a key without compiled code
_LISTED_KEYS_MIN = 32  # from this many keys in a block on, the block's keys are decoded, and searched as a list
# Blocks that are searched together, and their sections.
_BATCH_BLOCKS, _BATCH_BYTES = 256, 1 << 24
T = TypeVar("T")


def look_up(
    reader: BlockReader,
    keys: Sequence[bytes] | pa.Array | pa.ChunkedArray,
    positions: list[int],
    include_deleted: bool,
) -> pa.Table:
    """Return the result of `SortedFileReader.get_many`, with the value columns at `positions`."""
    wanted = pa.chunked_array(key_chunks(keys), pa.binary())
    listed = wanted.to_pylist()
    order = np.array(sorted(range(len(listed)), key=listed.__getitem__), dtype=np.int64)
    ranked = [listed[i] for i in order.tolist()]
    rows = np.full(len(listed), -1, dtype=np.int64)
    columns: list[list[pa.Array]] = [[] for _ in positions]
    deleted: list[np.ndarray] = []
    total = 0
    plan = _plan(reader.index, ranked)
    for batch in batched(zip(plan, reader.read_blocks([i for _, _, i in plan]), strict=True)):
        blocks = [block for _, block in batch]
        low, high = batch[0][0][0], batch[-1][0][1]
        found = _find_keys(blocks, [(first - low, end - low) for (first, end, _), _ in batch], ranked[low:high])
        hits = np.flatnonzero(found >= 0)
        if not len(hits):
            continue
        # A key that is requested many times is read once: many copies of a long value might not fit one array.
        is_other = np.append(True, found[hits[1:]] != found[hits[:-1]])
        selection = RowSelection.of(blocks, found[hits[is_other]])
        for pieces, position in zip(columns, positions, strict=True):
            pieces += selection.values(position)
        deleted.append(selection.deleted())
        rows[order[low:high][hits]] = total - 1 + np.cumsum(is_other)
        total += len(selection.rows)
    return _aligned(reader.schema, wanted, rows, columns, deleted, positions, include_deleted)


def _plan(index: BlockIndex, ranked: list[bytes]) -> list[tuple[int, int, int]]:
    """Return (low, high, block): the slices of sorted keys that may be in one block, with its number."""
    plan: list[tuple[int, int, int]] = []
    low = 0
    while low < len(ranked):
        i = index.seek(ranked[low])
        if i == index.block_count:
            break
        # If a damaged index is out of order, a slice may be empty: then the next key is tried.
        first = bisect_left(ranked, index.first_key(i), lo=low)
        high = bisect_right(ranked, index.last_key(i), lo=first)
        if first < high and (not plan or i > plan[-1][2]):
            plan.append((first, high, i))
        low = max(low + 1, high)
    return plan


def _aligned(
    schema: pa.Schema,
    wanted: pa.ChunkedArray,
    rows: np.ndarray,
    columns: list[list[pa.Array]],
    flags: list[np.ndarray],
    positions: list[int],
    include_deleted: bool,
) -> pa.Table:
    """Return a table with a row per wanted key: int64 `rows` [k] of the found values, or -1."""
    is_match = rows >= 0
    is_deleted = np.zeros(len(rows), dtype=bool)
    if flags:
        is_deleted[is_match] = np.concatenate(flags)[rows[is_match]]
    if not include_deleted:
        is_match = is_match & ~is_deleted
    fields = [schema.field(position) for position in positions]
    chunked = [pa.chunked_array(pieces, field.type) for pieces, field in zip(columns, fields, strict=True)]
    try:
        values = pa.Table.from_arrays(chunked, schema=pa.schema(fields)).take(from_numpy(rows, is_match))
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(f"the values do not fit one array ({error}): ask for fewer keys") from None
    fields = [KEY_FIELD, *fields, pa.field("found", pa.bool_())]
    arrays = [wanted, *values.columns, from_numpy(is_match)]
    if include_deleted:
        arrays.append(from_numpy(is_deleted))
        fields.append(DELETED_FIELD)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


# -- rows of several blocks -------------------------------------------------------------------------------------------


def batched(items: Iterable[tuple[T, Block]]) -> Iterator[list[tuple[T, Block]]]:
    """Yield blocks, each with its search keys, as batches of a bounded size that are searched together."""
    batch: list[tuple[T, Block]] = []
    size = 0
    for item in items:
        size += item[1].uncompressed_bytes
        if batch and (size > _BATCH_BYTES or len(batch) == _BATCH_BLOCKS):
            yield batch
            batch, size = [], item[1].uncompressed_bytes
        batch.append(item)
    if batch:
        yield batch


class RowSelection(NamedTuple):
    """Rows of some blocks, ascending.

    blocks    those that have selected rows
    which     int64 [k]: the block of each row
    rows      int64 [k]
    slices    the rows of block b are rows[slices[b]]
    """

    blocks: list[Block]
    which: np.ndarray
    rows: np.ndarray
    slices: list[slice]

    @staticmethod
    def of(blocks: Sequence[Block], places: np.ndarray) -> RowSelection:
        """Return the selection of ascending `places`, which count the entries of all blocks."""
        firsts = offsets_of(np.array([block.entries for block in blocks], dtype=np.int64))
        homes = np.searchsorted(firsts, places, side="right") - 1
        used, starts, which = np.unique(homes, return_index=True, return_inverse=True)
        slices = [slice(low, high) for low, high in pairwise([*starts.tolist(), len(places)])]
        return RowSelection([blocks[b] for b in used.tolist()], which.reshape(-1), places - firsts[homes], slices)

    def deleted(self) -> np.ndarray:
        """Return bool [k], True for tombstones. Raise CorruptionError."""
        flags = np.zeros(len(self.rows), dtype=bool)
        for block, part in zip(self.blocks, self.slices, strict=True):
            deleted = block.deleted()
            if deleted is not None:
                flags[part] = deleted[self.rows[part]]
        return flags

    def values(self, position: int) -> list[pa.Array]:
        """Return the values of a column, an array per block. Raise CorruptionError."""
        parts = zip(self.blocks, self.slices, strict=True)
        return [block.column(position).take(self.rows[part]) for block, part in parts]

    def key_tails(self, width: int) -> np.ndarray:
        """Return uint8 [k, width]: the last bytes of the keys. Raise CorruptionError, and InvalidArgumentError if a
        key is shorter."""
        parts = zip(self.blocks, self.slices, strict=True)
        tails = [key_tails(block.keys, self.rows[part], width) for block, part in parts]
        return np.concatenate([np.empty((0, width), dtype=np.uint8), *tails])


# -- search -----------------------------------------------------------------------------------------------------------


def find_ranges(
    blocks: Sequence[Block], ranges: Sequence[Sequence[tuple[bytes, bytes]]]
) -> tuple[np.ndarray, RowSelection]:
    """Return (int64 [k]: which of the ranges, counted over all blocks; the entries in them). `ranges`: key ranges in
    each block, ascending and disjoint, each from its start on, before its stop. Raise CorruptionError."""
    ends = offsets_of(np.array(list(map(len, ranges)), dtype=np.int64))
    keys = [key for of_block in ranges for one in of_block for key in one]
    bounds = _search(blocks, list(pairwise((2 * ends).tolist())), keys)
    lows, highs = np.where(bounds < 0, ~bounds, bounds).reshape(-1, 2).T
    counts = np.maximum(highs - lows, 0)
    firsts = offsets_of(np.array([block.entries for block in blocks], dtype=np.int64))
    begins = lows + np.repeat(firsts[:-1], np.diff(ends)) - offsets_of(counts)[:-1]
    places = np.arange(counts.sum()) + np.repeat(begins, counts)
    return np.repeat(np.arange(len(counts)), counts), RowSelection.of(blocks, places)


def _find_keys(blocks: Sequence[Block], slices: Sequence[tuple[int, int]], wanted: list[bytes]) -> np.ndarray:
    """Return int64 [k]: the place of each of some sorted keys, counted over the entries of all blocks, or -1. The keys
    of a slice, from one place on, before another, are searched in its block. Raise CorruptionError."""
    rows = _search(blocks, slices, wanted)
    firsts = offsets_of(np.array([block.entries for block in blocks], dtype=np.int64))
    homes = np.searchsorted([low for low, _ in slices], np.arange(len(wanted)), side="right") - 1
    return np.where(rows < 0, -1, rows + firsts[homes])


def _search(blocks: Sequence[Block], slices: Sequence[tuple[int, int]], wanted: list[bytes]) -> np.ndarray:
    """Return int64 [k]: the row of each of some sorted keys in its block; ~ of the first row after it if missing."""
    # For few keys of one block, preparing the call takes longer than searching.
    is_much = len(blocks) > 1 or len(wanted) > _LISTED_KEYS_MIN
    rows = _search_compiled(blocks, slices, wanted) if is_much else None
    if rows is None:
        rows = np.full(len(wanted), -1, dtype=np.int64)
        for block, (low, high) in zip(blocks, slices, strict=True):
            rows[low:high] = list(_search_block(block, wanted[low:high]))
    return rows


def _search_block(block: Block, wanted: list[bytes]) -> Iterator[int]:
    keys = block.keys
    listed = keys.to_arrow().to_pylist() if len(wanted) >= _LISTED_KEYS_MIN else None
    for key in wanted:
        row = lower_bound(keys, key) if listed is None else bisect_left(listed, key)
        is_there = row < len(keys) and (keys.key_at(row) if listed is None else listed[row]) == key
        yield row if is_there else ~row


def _search_compiled(
    blocks: Sequence[Block], slices: Sequence[tuple[int, int]], wanted: list[bytes]
) -> np.ndarray | None:
    """Return int64 [k]: by compiled code, the row of each key in its block; ~ of the first row after it if it is
    missing. Return None without compiled code, or if a section does not fit: the numpy code then reports the damage."""
    kernels = kernels_for(_KERNELS, _FIND_PLAIN_NS * len(wanted))
    if kernels is None:
        return None
    stored, begins, ends, counts, encodings = _key_sections(blocks)
    offsets, data = offsets_and_data(binary_array(wanted))
    lows, highs = np.array(slices, dtype=np.int64).T.copy()
    keys = read_only(data), read_only(offsets.astype(np.int64)), lows, highs
    most = int(counts.max())
    scratch = np.empty(most + most // BUNDLE_KEYS + 1, dtype=np.int64)  # for the ends of a block's bundles
    rows = np.full(len(wanted), -1, dtype=np.int64)
    fits = kernels.find_keys(stored, begins, ends, counts, encodings, BLOCK_BYTES_MAX, *keys, scratch, rows)
    return rows if fits else None


def _key_sections(blocks: Sequence[Block]) -> tuple[np.ndarray, ...]:
    """Return the concatenated key sections of blocks, uint8 [bytes]; and int64 arrays: their begins and ends, counts of
    keys, encodings."""
    sections = [block.key_section for block in blocks]
    data = read_only(sections[0].data if len(sections) == 1 else b"".join(section.data for section in sections))
    ends = offsets_of(np.array([len(section.data) for section in sections], dtype=np.int64))
    counts = np.array([block.entries for block in blocks], dtype=np.int64)
    return data, ends[:-1], ends[1:], counts, np.array([section.encoding for section in sections], dtype=np.int64)
