"""Reading many entries of one large run in parts. Each part is a layer: nothing is copied to join them.

Parts of a remote run are read in parallel. Parts of a local run are not: decoding a block is many short steps between
which threads pass Python to each other, and two threads take longer than one (docs/decisions/statistics.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ...hfile_like import IdEntries, SortedFileReader
from ..storage import Storage
from ..storage.threads import side_by_side

_FEW = 4  # of so many entries at most one is asked for
_FEW_PARTS = 4  # of few far away
_PART_ENTRIES_MIN = 1 << 16


def read(
    reader: SortedFileReader, storage: Storage, prefix: bytes, columns: Sequence[str], ids: np.ndarray | None = None
) -> list[IdEntries]:
    """All entries below a prefix that is followed by a number, or those whose number is among `ids` (uint64, ascending,
    distinct): tombstones too, in parts that ascend. `storage`: where the run lies."""
    keys = reader.by_id(prefix)

    def work(piece: np.ndarray) -> IdEntries:
        if ids is None:
            return keys.scan(columns, blocks=piece, include_deleted=True)
        return keys.get(piece, columns, include_deleted=True)

    # Of few files a part costs more than joining what is read of them.
    is_few = ids is not None and len(ids) < reader.num_entries // _FEW
    parts = _parts(reader, prefix, (_FEW_PARTS if storage.is_remote else 1) if is_few else reader.num_blocks)
    if ids is None:
        pieces = [np.asarray(part) for part in parts]
    else:
        first, _ = keys.block_bounds()
        starts = np.array([part.start - parts[0].start for part in parts[1:]], dtype=np.int64)
        pieces = [piece for piece in np.split(ids, np.searchsorted(ids, first[starts])) if len(piece)]
    return list(side_by_side(storage, work, pieces, "skipstone-entries"))


def _parts(reader: SortedFileReader, prefix: bytes, most: int) -> list[range]:
    """The blocks of a prefix, in at most so many parts of about as many entries: a large block is one, so that nothing
    is joined to its arrays."""
    blocks = reader.block_range(prefix)
    if most < 2 or len(blocks) < 2:
        return [blocks]
    entries = np.cumsum([info.entries for info in reader.blocks(blocks)])
    count = min(len(blocks), int(entries[-1]) // _PART_ENTRIES_MIN, most)
    if count < 2:
        return [blocks]
    ends = np.searchsorted(entries, int(entries[-1]) * np.arange(1, count) // count) + 1
    cuts = [0, *np.unique(ends[ends < len(blocks)]).tolist(), len(blocks)]
    return [blocks[low:high] for low, high in pairwise(cuts)]
