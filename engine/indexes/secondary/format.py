"""The secondary index: the files, row groups and rows that hold the values of some columns.

    key      the values as one ordered key (`hfile_like.ordered`), then partition u32, sequence u32, row_group u32
    row      the least position, in the file, of a row of that row group with those values
    count    how many there are
    more     the positions of the others, ascending, each by its distance from the one before, less one, as a varint
             (7 bits a byte, the least first, 128 where more follow); null where there are none
    meta     `files`: see `state/lsm.py`

Nulls and NaN are values like others. A position is that of the row in the file, whatever rows a log's deletes take out.
A run holds all entries of a file or none, and large runs are cut in shards by key range.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....base.arrays import (
    binary_rows,
    byte_table,
    empty_bytes,
    from_numpy,
    offsets_and_data,
    offsets_of,
    take_keys,
    valid_mask,
)
from ....errors import CorruptionError
from ....hfile_like import KeyLayout
from ....hfile_like.key_sort import sorted_keys
from ...state.merge_policy import MergePolicy
from ...state.run_format import SHARD_BYTES, RunFormat

NAME = "secondary"
PLACE = KeyLayout([("partition", 4), ("sequence", 4), ("row_group", 4)])
PLACE_BYTES = PLACE.width_bytes
RUN_SCHEMA = pa.schema([pa.field("row", pa.int64()), pa.field("count", pa.int32()), pa.field("more", pa.binary())])
ENTRY_SCHEMA = pa.schema([pa.field("key", pa.binary(), nullable=False), *RUN_SCHEMA])
BLOCK_BYTES = 48 << 10
POLICY = MergePolicy(commit_bytes=4 << 20)
_VARINT_BYTES_MAX = 9


def place(file_id: int, row_group: int) -> bytes:
    """What follows the values in a key."""
    return file_id.to_bytes(8, "big") + row_group.to_bytes(4, "big")


def places_of(keys: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """(uint64 file ids, int32 row groups) of whole keys. Raises CorruptionError for a key that is too short."""
    table = byte_table(keys)
    if table is not None and table.shape[1] >= PLACE_BYTES:
        return tails_places(table[:, -PLACE_BYTES:])
    offsets, buffer = offsets_and_data(keys)
    ends = offsets[1:].astype(np.int64)
    if (np.diff(offsets) < PLACE_BYTES).any():
        raise CorruptionError("a key of a secondary index lacks the place of its values", check="key")
    data = np.frombuffer(buffer, dtype=np.uint8)
    tails = data[ends[:, None] + np.arange(-PLACE_BYTES, 0)]
    return tails_places(tails)


def tails_places(tails: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same of the last bytes of keys, uint8 [n, 12]."""
    ids = np.ascontiguousarray(tails[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
    groups = np.ascontiguousarray(tails[:, 8:]).view(">u4").reshape(-1)
    return ids, groups.astype(np.int32)


# -- entries ----------------------------------------------------------------------------------------------------------


def encode_entries(
    values: pa.BinaryArray, first_row: int, ending: bytes, row_of: np.ndarray | None = None
) -> pa.RecordBatch:
    """Entries (ENTRY_SCHEMA), ascending, of the encoded values of a row group's rows, whose first is row `first_row`
    of the file; `ending` is the place of the row group. `row_of`, int64, ascending: the row of each value, if rows have
    any number of them; a row is once in the entry of a value that it has twice."""
    order, is_again = sorted_keys(values)
    rows = (order if row_of is None else row_of[order]) + first_row
    if row_of is not None:
        is_new = ~is_again | np.append(True, rows[1:] != rows[:-1])[: len(rows)]
        order, rows, is_again = order[is_new], rows[is_new], is_again[is_new]
    starts = np.flatnonzero(~is_again)
    counts = np.diff(np.append(starts, len(rows)))
    endings = binary_rows(np.tile(np.frombuffer(ending, dtype=np.uint8), (len(starts), 1)))
    keys = with_ending(take_keys(values, order[starts]), endings)
    columns = [keys, from_numpy(rows[starts]), from_numpy(counts.astype(np.int32))]
    return pa.RecordBatch.from_arrays([*columns, delta_coded(rows, is_again, counts)], schema=ENTRY_SCHEMA)


def with_ending(keys: pa.BinaryArray, endings: pa.BinaryArray) -> pa.BinaryArray:
    """Each key with the ending at its place, which are all of one width."""
    table, tails = byte_table(keys), byte_table(endings)
    if table is not None and tails is not None:
        return binary_rows(np.concatenate([table, tails], axis=1))
    return pc.binary_join_element_wise(keys, endings, empty_bytes())


def without_place(keys: pa.BinaryArray) -> pa.BinaryArray:
    """What the keys say of values."""
    table = byte_table(keys)
    if table is None:
        return pc.binary_slice(keys, 0, -PLACE_BYTES)
    return binary_rows(np.ascontiguousarray(table[:, :-PLACE_BYTES]))


def delta_coded(rows: np.ndarray, is_again: np.ndarray, counts: np.ndarray) -> pa.Array:
    """The column `more` of entries of so many rows: int64 [sum of counts], entry by entry, all but the first of each
    marked in `is_again`."""
    if not is_again.any():
        return pa.nulls(len(counts), pa.binary())
    others = np.flatnonzero(is_again)
    deltas = (rows[others] - rows[others - 1] - 1).astype(np.uint64)
    sizes = np.ones(len(deltas), dtype=np.int64)
    for width in range(1, _VARINT_BYTES_MAX):
        sizes += deltas >> np.uint64(7 * width) != 0
    ends = np.cumsum(sizes)
    data = np.empty(int(ends[-1]), dtype=np.uint8)
    for byte in range(int(sizes.max())):
        has = np.flatnonzero(sizes > byte)
        part = (deltas[has] >> np.uint64(7 * byte)).astype(np.uint8) & np.uint8(127)
        data[ends[has] - sizes[has] + byte] = part | ((sizes[has] > byte + 1).astype(np.uint8) << 7)
    # The bytes of an entry are those of the deltas that it has.
    byte_ends = offsets_of(sizes)[offsets_of(counts - 1)]
    validity = from_numpy(counts > 1).buffers()[1]
    buffers = [validity, pa.py_buffer(byte_ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(counts), buffers)


def positions_of(rows: np.ndarray, counts: np.ndarray, more: pa.Array) -> np.ndarray:
    """int64 [sum of counts]: the positions of entries, entry by entry. Raises CorruptionError where they
    do not fit."""
    others = counts.astype(np.int64) - 1
    if not len(rows) or not others.any():
        if (others < 0).any():
            raise _bad()
        return rows
    valid = valid_mask(more)
    has_more = others > 0
    if (others < 0).any() or (has_more != (True if valid is None else valid)).any():
        raise _bad()
    offsets, buffer = offsets_and_data(more.drop_null())  # what lies under a null is not defined
    data = np.frombuffer(buffer, dtype=np.uint8)[int(offsets[0]) : int(offsets[-1])]
    is_end = data < 128
    ends = np.flatnonzero(is_end)
    cuts = (offsets - offsets[0]).astype(np.int64)
    if (np.diff(offsets_of(is_end)[cuts]) != others[has_more]).any() or not is_end[cuts[1:] - 1].all():
        raise _bad()
    starts = np.append(0, ends[:-1] + 1)
    sizes = ends - starts + 1
    if int(sizes.max()) > _VARINT_BYTES_MAX:
        raise _bad()
    shifts = (np.arange(len(data)) - np.repeat(starts, sizes)).astype(np.uint64) * np.uint64(7)
    deltas = np.add.reduceat((data & 127).astype(np.uint64) << shifts, starts).astype(np.int64) + 1
    firsts = offsets_of(counts)[:-1]
    steps = np.empty(int(counts.sum(dtype=np.int64)), dtype=np.int64)
    is_first = np.zeros(len(steps), dtype=bool)
    is_first[firsts] = True
    steps[is_first], steps[~is_first] = rows, deltas
    sums = np.cumsum(steps)
    return sums - np.repeat(sums[firsts] - rows, counts)


def _bad() -> CorruptionError:
    return CorruptionError("the rows of an entry do not fit their count; rebuild the index", check="rows")


# -- runs -------------------------------------------------------------------------------------------------------------


def run_format(shard_bytes: int | None = SHARD_BYTES, block_bytes: int = BLOCK_BYTES) -> RunFormat:
    """How the runs of an index with shards of that size are written."""
    return RunFormat(block_bytes, shard_bytes=shard_bytes, templates=False, file_ids=_file_ids, policy=POLICY)


def _file_ids(keys: pa.BinaryArray) -> np.ndarray:
    return places_of(keys)[0]
