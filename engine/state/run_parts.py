"""Reading many entries of one large run: blocks side by side, by as many threads as there are processors.

Decoding leaves Python to others (numpy, zstandard, kernels), so two threads take about half the time of one. The parts
of a run are apart, and come as layers of their own: nothing is copied to join them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from ...hfile_like import Numbered, SortedFileReader
from ..storage.threads import prefetched

_THREADS = min(4, os.cpu_count() or 1)
_FEW = 4  # of so many entries at most one is asked for
_PART_ENTRIES_MIN = 1 << 16  # below that a thread takes longer to begin than it saves


def read(
    reader: SortedFileReader, prefix: bytes, columns: Sequence[str], ids: np.ndarray | None = None
) -> list[Numbered]:
    """All entries below a prefix that is followed by a number, or those whose number is among `ids` (uint64, ascending,
    distinct): tombstones too, in parts that ascend."""
    keys = reader.numbered(prefix)
    # Of few files a part costs more than joining what is read of them: each thread has one.
    is_few = ids is not None and len(ids) < reader.num_entries // _FEW
    parts = _parts(reader, prefix, _THREADS if is_few else reader.num_blocks)
    if ids is None:
        return _each(
            lambda blocks: keys.scan(columns, blocks=blocks, include_deleted=True), list(map(np.asarray, parts))
        )
    first, _ = keys.block_bounds()
    starts = np.array([part.start - parts[0].start for part in parts[1:]], dtype=np.int64)
    pieces = [piece for piece in np.split(ids, np.searchsorted(ids, first[starts])) if len(piece)]
    return _each(lambda piece: keys.get(piece, columns, include_deleted=True), pieces)


def _parts(reader: SortedFileReader, prefix: bytes, most: int) -> list[range]:
    """The blocks of a prefix, in at most so many parts of about as many entries: a large block is one, so that nothing
    is joined to its arrays."""
    blocks = reader.block_range(prefix)
    if _THREADS < 2 or len(blocks) < 2:
        return [blocks]
    entries = np.cumsum([info.entries for info in reader.blocks(blocks)])
    count = min(len(blocks), int(entries[-1]) // _PART_ENTRIES_MIN, most)
    if count < 2:
        return [blocks]
    ends = np.searchsorted(entries, int(entries[-1]) * np.arange(1, count) // count) + 1
    cuts = [0, *np.unique(ends[ends < len(blocks)]).tolist(), len(blocks)]
    return [blocks[low:high] for low, high in pairwise(cuts)]


def _each(work: Callable[[np.ndarray], Numbered], pieces: list[np.ndarray]) -> list[Numbered]:
    if len(pieces) < 2:
        return [work(piece) for piece in pieces]
    return list(prefetched(work, pieces, _THREADS, "skipstone-entries"))
