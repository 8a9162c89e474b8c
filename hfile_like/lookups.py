"""Look-ups of many keys at once: sorted, so that each block is read and searched once."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import binary_array, from_numpy, to_numpy, valid_mask
from .batches import DELETED_FIELD, KEY_FIELD, block_entries
from .block import Block
from .cached import find_flat, flat_entries, held_blocks, is_flat, unheld_if_damaged
from .entries import Entries, key_chunks
from .flat_lookups import Queries, blocks_of, look_up_flat
from .index import BlockIndex
from .keys import find_key
from .lazy import kernels_for
from .taken import taken

if TYPE_CHECKING:
    from .reader import SortedFileReader

# Up to this many keys wanted of a block, searching the encoded keys beats decoding them all.
_SEARCH_KEYS_MAX = 4
# What a key takes without kernels, when its block has to be read.
_PLAIN_NS = 50_000
# For fewer keys, making ready for a kernel takes longer than it saves.
KERNEL_KEYS_LEAST = 64


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
    chunks = key_chunks(keys)
    wanted = pa.chunked_array(chunks, pa.binary())
    if may_hold is not None:
        mask = may_hold(wanted)
        asked = wanted.filter(from_numpy(mask))
        found = look_up(reader, index, asked, positions, include_deleted)
        return _spread(found, wanted, mask, 1 + len(positions))
    shelf = reader.shelf
    is_small = shelf is None or len(wanted) < KERNEL_KEYS_LEAST
    kernels = None if is_small else kernels_for("lookup", len(wanted) * _PLAIN_NS)
    if shelf is not None and kernels is not None:
        queries = Queries(chunks)
        blocks = blocks_of(kernels, index, queries)
        found = look_up_flat(kernels, reader, shelf, blocks, queries, wanted, positions, include_deleted)
        if found is not None:
            return found
    listed = wanted.to_pylist()
    order = sorted(range(len(listed)), key=listed.__getitem__)
    ranked = [listed[i] for i in order]
    rows = np.full(len(listed), -1, dtype=np.int64)
    parts: list[Entries] = []
    total = 0
    plan = _plan(index, ranked)
    for (low, high, _), (where, block) in zip(plan, _searched(reader, plan, ranked, positions), strict=True):
        hits = np.flatnonzero(where >= 0)
        if not len(hits):
            continue
        at = where[hits]
        # A key that is asked for again and again is taken once: many long values might be more than one array holds.
        is_other = np.append(True, at[1:] != at[:-1])
        part = block(at[is_other])
        rows[np.array(order[low:high])[hits]] = total - 1 + np.cumsum(is_other)
        parts.append(part)
        total += len(part)
    return _aligned(reader.schema, wanted, rows, parts, positions, include_deleted)


def _spread(found: pa.Table, wanted: pa.ChunkedArray, mask: np.ndarray, values_end: int) -> pa.Table:
    """What was found of the keys where `mask` is True, as rows for all of `wanted`, with the marks that follow."""
    if mask.all():
        return found
    rows = np.cumsum(mask) - 1
    columns = [taken(column.chunks, column.type, rows, mask) for column in found.columns[1:]]
    for at in range(values_end - 1, len(columns)):
        columns[at] = columns[at].fill_null(False)
    return pa.Table.from_arrays([wanted, *columns], schema=found.schema)


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
    arrays: list[pa.Array | pa.ChunkedArray] = [wanted]
    for at, position in enumerate(positions):
        arrays.append(taken([part.columns[at] for part in parts], schema.field(position).type, rows, found))
    arrays.append(from_numpy(found))
    fields = [KEY_FIELD, *(schema.field(p) for p in positions), pa.field("found", pa.bool_())]
    if deleted:
        arrays.append(from_numpy(gone))
        fields.append(DELETED_FIELD)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


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


def _searched(
    reader: SortedFileReader, plan: list[tuple[int, int, int]], ranked: list[bytes], positions: list[int]
) -> Iterator[tuple[np.ndarray, Callable[[np.ndarray], Entries]]]:
    """For each block of a plan: where its keys are in it, as `_find`, and what gives the entries at such places,
    without keys. Blocks are read ahead together."""
    numbers = [i for _, _, i in plan]
    if reader.shelf is not None:
        for (low, high, _), (i, held) in zip(plan, held_blocks(reader, reader.shelf, numbers), strict=True):
            if is_flat(reader.shelf, i, held, high - low):
                yield find_flat(held, ranked[low:high]), partial(flat_entries, reader.shelf, i, held, positions)
            else:
                with unheld_if_damaged(reader.shelf, i, held):
                    block = held.block
                    yield _find(block, ranked[low:high]), partial(block_entries, block, positions, keys=False)
        return
    for (low, high, _), block in zip(plan, reader.iter_blocks(numbers), strict=True):
        yield _find(block, ranked[low:high]), partial(block_entries, block, positions, keys=False)


def _find(block: Block, wanted: list[bytes]) -> np.ndarray:
    """int64: the position of each of some sorted keys in a block, -1 where it is not there."""
    if len(wanted) > _SEARCH_KEYS_MAX:
        found = pc.index_in(binary_array(wanted), value_set=block.keys.to_arrow())
        valid = valid_mask(found)
        at = to_numpy(found).astype(np.int64)
        return at if valid is None else np.where(valid, at, -1)
    return np.array([find_key(block.keys, key) for key in wanted], dtype=np.int64)
