"""The n-gram index: the blocks of rows that contain a gram, per file.

    key           group u16: 0 for the file itself, else 1 + (first bucket of a group of 32) / 32; partition u32,
                  sequence u32
    rows          of the file itself: its row count; else null
    block_rows    of the file itself: rows per block, except the last; else null
    blocks        of a group: u32 per block, in which bit i is 1 if a value of the block has a gram of bucket i of the
                  group; null for the file itself
    meta          `files`: see `state/lsm.py`

If a file has no entry of a group, none of its blocks has a gram of the group. A run has all entries of a file or none.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ....base.arrays import from_numpy, offsets_and_data, offsets_of
from ....errors import CorruptionError
from ....hfile_like import KeyLayout
from ...state.manifest import file_ids, split_file_ids
from ...state.run_format import EntryBatch, MergePolicy, RunFormat

NAME = "ngram"
KEYS = KeyLayout([("group", 2), ("partition", 4), ("sequence", 4)])
FILE = 0  # in place of a group: the entry of the file itself
RUN_SCHEMA = pa.schema([("rows", pa.int64()), ("block_rows", pa.int64()), ("blocks", pa.binary())])
GROUP_BUCKETS, _GROUP_BYTES = 32, 4
BLOCKS_MAX = 4096  # of a file: one with more rows has larger blocks


def ids_of_keys(keys: pa.BinaryArray) -> np.ndarray:
    """Return the file of each entry: uint64 [n]."""
    fields = KEYS.decode(keys)
    return file_ids(fields["partition"], fields["sequence"])


FORMAT = RunFormat(
    32 << 10, shard_bytes=None, templates=False, file_ids=ids_of_keys, policy=MergePolicy(commit_bytes=8 << 20)
)


def file_entries(file_id: int, rows: int, block_rows: int, bits: np.ndarray) -> EntryBatch:
    """Return the entries of a file whose blocks have the bits `bits`: uint8 [blocks, BLOCK_BYTES]."""
    words = bits.view("<u4")
    present = np.flatnonzero(words.any(axis=0))
    data = np.ascontiguousarray(words[:, present].T)
    offsets = (np.arange(-1, len(present) + 1) * len(bits) * _GROUP_BYTES).clip(0).astype(np.int32)
    is_file = np.arange(len(present) + 1) == 0  # the entry of the file itself is the first
    buffers = [from_numpy(~is_file).buffers()[1], pa.py_buffer(offsets), pa.py_buffer(data)]
    columns = [from_numpy(np.where(is_file, number, 0), is_file) for number in (rows, block_rows)]
    columns.append(pa.Array.from_buffers(pa.binary(), len(is_file), buffers))
    partition, sequence = (int(part[0]) for part in split_file_ids(np.array([file_id], dtype=np.uint64)))
    keys = KEYS.encode(group=np.append(FILE, present + 1), partition=partition, sequence=sequence)
    return EntryBatch(keys, pa.Table.from_arrays(columns, schema=RUN_SCHEMA), np.zeros(len(keys), dtype=bool))


# -- reading ----------------------------------------------------------------------------------------------------------


def checked_files(rows: np.ndarray, block_rows: np.ndarray) -> np.ndarray:
    """Return the block count of each file (int64 [files]). Raise CorruptionError for impossible numbers."""
    if len(rows) and (rows.min() < 0 or block_rows.min() < 1 or (rows > block_rows * BLOCKS_MAX).any()):
        raise _bad()
    return -(-rows // block_rows)


def blocks_in(column: pa.Array, file: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Return the bits of a group in the blocks of all files, file by file: uint32 [sum of blocks]. `column`: the
    entries of the group; `file`, int64: the file of each; `blocks`: each file's block count. Raise CorruptionError."""
    offsets, buffer = offsets_and_data(column)
    lengths = np.diff(offsets)
    if column.null_count or (lengths != blocks[file] * _GROUP_BYTES).any():
        raise _bad()
    found = np.zeros(int(blocks.sum()), dtype=np.uint32)
    data = np.frombuffer(bytes(buffer[int(offsets[0]) : int(offsets[-1])]), dtype="<u4")
    found[ranges_of(offsets_of(blocks)[file], blocks[file])] = data
    return found


def rows_in(found: np.ndarray, rows: np.ndarray, block_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (int64: first row, row count, file) of each block for which `found` (bool, all files' blocks) is True."""
    first = offsets_of(-(-rows // block_rows))
    places = np.flatnonzero(found)
    file = np.searchsorted(first, places, side="right") - 1
    start = (places - first[file]) * block_rows[file]
    return start, np.minimum(block_rows[file], rows[file] - start), file


def ranges_of(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return, for each start, as many consecutive numbers as its length: int64."""
    return np.repeat(starts - offsets_of(lengths)[:-1], lengths) + np.arange(int(lengths.sum()))


def _bad() -> CorruptionError:
    return CorruptionError(
        "the blocks of a group of grams are not those of its file; rebuild the index", check="blocks"
    )
