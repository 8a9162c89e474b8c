"""Values picked from several arrays: in as many chunks as Arrow's offsets of 32 bits ask for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..arrays import from_numpy, offsets_and_data, offsets_of
from .values import ENCODING_OFFSETS_32, encoding_of

CHUNK_BYTES_MAX = np.iinfo(np.int32).max


def taken(pieces: Sequence[pa.Array], kind: pa.DataType, picks: np.ndarray, valid: np.ndarray) -> pa.ChunkedArray:
    """What stands at `picks`, int64 [k], of arrays of a type that lie one after the other; null where not `valid`, bool
    [k]. Of strings and bytes that come to more than 2 GiB, in more than one chunk."""
    if not pieces:
        return pa.chunked_array([pa.nulls(len(picks), kind)])
    if encoding_of(kind) == ENCODING_OFFSETS_32:
        held_bytes = sum(piece.nbytes for piece in pieces)
        # Most often it is clear that no sum of lengths comes near.
        if held_bytes * len(picks) > CHUNK_BYTES_MAX:
            lengths = np.concatenate([np.diff(offsets_and_data(piece)[0]) for piece in pieces]).astype(np.int64)
            wanted = np.where(valid, lengths[np.where(valid, picks, 0)], 0)
            if max(held_bytes, int(wanted.sum())) > CHUNK_BYTES_MAX:
                return _in_chunks(pieces, kind, picks, valid, offsets_of(wanted))
    return pa.chunked_array(pieces, kind).take(from_numpy(picks, valid))


def _in_chunks(
    pieces: Sequence[pa.Array], kind: pa.DataType, picks: np.ndarray, valid: np.ndarray, ends: np.ndarray
) -> pa.ChunkedArray:
    """`ends`: int64 [k + 1], the bytes up to each pick."""
    firsts = offsets_of(np.array([len(piece) for piece in pieces]))
    chunks: list[pa.Array] = []
    low = 0
    while low < len(picks):
        high = max(low + 1, int(np.searchsorted(ends, ends[low] + CHUNK_BYTES_MAX, side="right")) - 1)
        # Of one piece at a time, which is no more than a block: what is gathered fits a chunk.
        some = np.where(valid[low:high], picks[low:high], 0)
        home = np.searchsorted(firsts, some, side="right") - 1
        order = np.argsort(home, kind="stable")
        own, cuts = np.unique(home[order], return_index=True)
        parts = np.split(order, cuts[1:])
        found = [
            pieces[piece].take(from_numpy(some[rows] - firsts[piece], valid[low:high][rows]))
            for piece, rows in zip(own.tolist(), parts, strict=True)
        ]
        back = np.empty(high - low, dtype=np.int64)
        back[order] = np.arange(high - low)
        chunks.append(pa.concat_arrays(found).take(from_numpy(back)))
        low = high
    return pa.chunked_array(chunks, kind)
