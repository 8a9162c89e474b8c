"""Sorting binary keys without a Python object a key: by big-endian words of 8 bytes, ties by the next word."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ..arrays import binary_rows, byte_table, from_numpy, offsets_and_data
from ..lazy import kernels_for, read_only

_WORD = 8
_SORT_NS = 120  # about what ordering a key takes without compiled code
_SAMPLE_KEYS = 512
_RANDOM_BITS = 40  # of a word: more keys than there are would have to come before two are likely to share it
_INDICES = np.arange(_WORD)

Words = Callable[[int, np.ndarray | None], np.ndarray]


def sorted_keys(keys: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """(int64 [n]: the order in which keys ascend, equal ones as they come; bool [n]: in that order, the key is that
    of the one before). No key may be the beginning of another, but for equal ones."""
    count = len(keys)
    if count < 2:
        return np.arange(count), np.zeros(count, dtype=bool)
    compiled = kernels_for("hfile_like.kernels_sort", _SORT_NS * count)
    if compiled is None or _differ_early(keys):
        return sorted_plainly(keys)
    offsets, data = offsets_and_data(keys)
    order, is_again = np.empty(count, dtype=np.int32), np.empty(count, dtype=bool)
    compiled.sort_keys(read_only(data), read_only(offsets), order, is_again)
    return order.astype(np.int64), is_again


def sorted_plainly(keys: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """The twin of the compiled `sort_keys`, of two keys at least."""
    count = len(keys)
    words, length = _words_of(keys)
    first = words(0, None)
    order = np.argsort(first)  # not a stable sort: that takes five times as long, and few keys are equal
    ranked = first[order]
    tied = np.zeros(count, dtype=bool)
    tied[1:] = ranked[1:] == ranked[:-1]
    offset = _WORD
    while offset < length and tied.any():
        # Only those that are tied so far: each with its group, then by the next word.
        inside = tied.copy()
        inside[:-1] |= tied[1:]
        places = np.flatnonzero(inside)
        groups = np.cumsum(~tied)[places]
        rows = order[places]
        following = words(offset, rows)
        again = np.lexsort((following, groups))
        order[places] = rows[again]
        following = following[again]
        tied = np.zeros(count, dtype=bool)
        tied[places[1:]] = (following[1:] == following[:-1]) & (groups[1:] == groups[:-1])
        offset += _WORD
    if tied.any():
        inside = tied.copy()
        inside[:-1] |= tied[1:]
        places = np.flatnonzero(inside)
        rows = order[places]
        order[places] = rows[np.lexsort((rows, np.cumsum(~tied)[places]))]
    return order, tied


def _differ_early(keys: pa.BinaryArray) -> bool:
    """Whether the first words of keys seem to tell them apart: then numpy's sort of those is the quickest."""
    words, _ = _words_of(keys)
    some = words(0, np.linspace(0, len(keys) - 1, _SAMPLE_KEYS).astype(np.int64))
    differing = int(np.bitwise_or.reduce(some ^ some[0])).bit_count()
    return differing >= _RANDOM_BITS and len(np.unique(some)) >= min(len(keys), _SAMPLE_KEYS)


def take_keys(keys: pa.BinaryArray, places: np.ndarray) -> pa.BinaryArray:
    """The keys at int64 places; where all are of one width, at the speed of memory."""
    table = byte_table(keys)
    return keys.take(from_numpy(places)) if table is None else binary_rows(table.take(places, axis=0))


def _words_of(keys: pa.BinaryArray) -> tuple[Words, int]:
    """(what gives, for all keys or those at some rows, 8 bytes from a place as numbers that order as the bytes do,
    zeros where a key has ended; bytes of the longest key). Places count from where the keys begin to differ."""
    table = byte_table(keys)
    if table is not None:
        width, shared = table.shape[1], 0
        while shared < width and (table[:, shared] == table[0, shared]).all():
            shared += 1

        def of_table(offset: int, rows: np.ndarray | None) -> np.ndarray:
            part = table[:, shared + offset : shared + offset + _WORD]
            if rows is not None:
                part = part[rows]
            if part.shape[1] < _WORD:
                part = np.pad(part, ((0, 0), (0, _WORD - part.shape[1])))
            return np.ascontiguousarray(part).view(">u8").reshape(-1).astype(np.uint64)

        return of_table, width - shared
    offsets, buffer = offsets_and_data(keys)
    lengths = np.diff(offsets)
    # What follows the last key is read, and masked: it must be there.
    data = np.concatenate([np.frombuffer(buffer, dtype=np.uint8)[: int(offsets[-1])], np.zeros(_WORD, dtype=np.uint8)])
    starts = offsets[:-1].astype(np.int64)

    def of_bytes(offset: int, rows: np.ndarray | None) -> np.ndarray:
        from_there = starts if rows is None else starts[rows]
        bytes_left = (lengths if rows is None else lengths[rows]).astype(np.int64) - offset
        places = np.minimum(from_there + offset, len(data) - _WORD)
        part = data[places[:, None] + _INDICES]
        part *= bytes_left[:, None] > _INDICES
        return part.view(">u8").reshape(-1).astype(np.uint64)

    return of_bytes, int(lengths.max())


def newest_order(keys: pa.BinaryArray) -> np.ndarray:
    """Return int64 [k]: the positions of `keys` in ascending order; of equal keys, that of the last one alone."""
    if byte_table(keys) is not None:
        order, is_again = sorted_keys(keys)
        return order[np.append(~is_again[1:], True)]
    # A key may be the beginning of another. Python's sort finds the ascending runs, and keeps the order of equal keys.
    listed = keys.to_pylist()
    ranked = sorted(range(len(listed)), key=listed.__getitem__)
    last = [i for i, j in pairwise(ranked) if listed[i] != listed[j]]
    return np.array([*last, *ranked[-1:]], dtype=np.int64)
