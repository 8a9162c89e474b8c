"""Look-ups of many keys at once: sorted, so that each block is read and searched once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import binary_array, from_numpy, to_numpy, valid_mask
from .batches import DELETED_FIELD, KEY_FIELD, block_entries
from .block import Block
from .entries import Entries, key_chunks
from .index import BlockIndex
from .keys import lower_bound

if TYPE_CHECKING:
    from .reader import SortedFileReader

# Up to this many keys wanted of a block, searching the encoded keys beats decoding them all.
_SEARCH_KEYS_MAX = 4


def look_up(
    reader: SortedFileReader,
    index: BlockIndex,
    keys: Sequence[bytes] | pa.Array | pa.ChunkedArray,
    positions: list[int],
    include_deleted: bool,
    may_hold: Callable[[pa.ChunkedArray], np.ndarray] | None = None,
) -> pa.Table:
    """What `SortedFileReader.get_many` gives, with the value columns at `positions`; `may_hold`: bool [n], False for
    keys that are not in the file."""
    wanted = pa.chunked_array(key_chunks(keys), pa.binary())
    listed = wanted.to_pylist()
    candidates = range(len(listed)) if may_hold is None else np.flatnonzero(may_hold(wanted)).tolist()
    order = sorted(candidates, key=listed.__getitem__)
    ranked = [listed[i] for i in order]
    rows = np.full(len(listed), -1, dtype=np.int64)
    parts: list[Entries] = []
    total = 0
    for low, high, block in _blocks_of(reader, index, ranked):
        where = _find(block, ranked[low:high])
        hits = np.flatnonzero(where >= 0)
        if not len(hits):
            continue
        part = block_entries(block, positions, where[hits], keys=False)
        rows[np.array(order[low:high])[hits]] = total + np.arange(len(hits))
        parts.append(part)
        total += len(part)
    return _aligned(reader.schema, wanted, rows, parts, positions, include_deleted)


def _aligned(
    schema: pa.Schema,
    wanted: pa.ChunkedArray,
    rows: np.ndarray,
    parts: list[Entries],
    positions: list[int],
    deleted: bool,
) -> pa.Table:
    found = rows >= 0
    gone = np.zeros(len(rows), dtype=bool)
    if any(p.deleted is not None for p in parts):
        flags = np.concatenate([np.zeros(len(p), bool) if p.deleted is None else p.deleted for p in parts])
        gone[found] = flags[rows[found]]
    if not deleted:
        found = found & ~gone
    picks = from_numpy(rows, found)
    arrays: list[pa.Array | pa.ChunkedArray] = [wanted]
    for at, position in enumerate(positions):
        kind = schema.field(position).type
        pieces = [p.columns[at] for p in parts]
        arrays.append(pa.chunked_array(pieces, kind).take(picks) if pieces else pa.nulls(len(rows), kind))
    arrays.append(from_numpy(found))
    fields = [KEY_FIELD, *(schema.field(p) for p in positions), pa.field("found", pa.bool_())]
    if deleted:
        arrays.append(from_numpy(gone))
        fields.append(DELETED_FIELD)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _blocks_of(reader: SortedFileReader, index: BlockIndex, ranked: list[bytes]) -> Iterator[tuple[int, int, Block]]:
    """(low, high, block): the slices of sorted keys that may lie in one block, with that block. Blocks that are
    needed one after the other are read ahead together."""
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
    blocks = reader.iter_blocks([i for _, _, i in plan])
    for (low, high, _), block in zip(plan, blocks, strict=True):
        yield low, high, block


def _find(block: Block, wanted: list[bytes]) -> np.ndarray:
    """int64: the position of each of some sorted keys in a block, -1 where it is not there."""
    if len(wanted) > _SEARCH_KEYS_MAX:
        found = pc.index_in(binary_array(wanted), value_set=block.keys.to_arrow())
        valid = valid_mask(found)
        at = to_numpy(found).astype(np.int64)
        return at if valid is None else np.where(valid, at, -1)
    places = [lower_bound(block.keys, key) for key in wanted]
    pairs = zip(places, wanted, strict=True)
    return np.array(
        [p if p < block.entries and block.keys.key_at(p) == key else -1 for p, key in pairs], dtype=np.int64
    )
