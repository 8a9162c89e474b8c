"""Sorting binary keys without a Python object per key.

Keys are sorted by some bytes at a time, which numpy sorts together with their places as one integer; ties by the next
bytes. After `_ROUNDS_MAX` rounds Arrow sorts what is still tied.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import byte_table, from_numpy, offsets_and_data, to_numpy

_FEW = 512  # so many are sorted by Arrow
_ROUNDS_MAX = 24


def sorted_keys(keys: pa.BinaryArray, tail_bytes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return (int64 [n]: the order in which keys without their tails ascend, equal ones as they come; bool [n]: in that
    order, the key is equal to the one before). No key may be the beginning of another, except equal ones."""
    count, place_bits = len(keys), len(keys).bit_length()
    if count <= _FEW:
        return sorted_by_arrow(keys, tail_bytes)
    words = _Words(keys, tail_bytes, (64 - place_bits) // 8)
    order, is_again = np.arange(count), np.arange(count) > 0
    tied, group, level = order.copy(), np.zeros(count, dtype=np.uint64), 0
    for _ in range(_ROUNDS_MAX):
        rows = order[tied]
        is_open = words.lengths[rows] > level  # all keys of a group end together
        if not is_open.all():
            tied, group, rows = tied[is_open], group[is_open], rows[is_open]
        if not len(tied):
            return order, is_again
        word, is_one_group = words.at(rows, level), group[0] == group[-1]
        shared_bytes = words.width - (int(np.bitwise_or.reduce(word ^ word[0])).bit_length() + 7) // 8
        if shared_bytes == words.width or (shared_bytes and is_one_group):
            level += shared_bytes
            continue
        place = _sorted_places(word, place_bits)
        if not is_one_group:
            place = place[_sorted_places(group[place], place_bits)]
        order[tied], word = rows[place], word[place]
        is_again[tied[1:]] &= word[1:] == word[:-1]
        is_tied = is_again[tied]
        is_tied[:-1] |= is_again[tied[1:]]
        tied = tied[is_tied]
        group = np.cumsum(~is_again[tied]).astype(np.uint64)
        level += words.width
    rows = order[tied]
    order_of_tied, is_again[tied] = sorted_by_arrow(keys.take(from_numpy(rows)), tail_bytes)
    order[tied] = rows[order_of_tied]
    return order, is_again


def _sorted_places(numbers: np.ndarray, place_bits: int) -> np.ndarray:
    """int64 [n]: the places of uint64 numbers as these ascend, equal ones as they come. Number and place have 64 bits
    together."""
    packed = numbers << np.uint64(place_bits) | np.arange(len(numbers), dtype=np.uint64)
    packed.sort()
    packed &= np.uint64((1 << place_bits) - 1)
    return packed.view(np.int64)


class _Words:
    """Keys without their tails as numbers of `width` bytes. `lengths`: int64 [n], in bytes."""

    def __init__(self, keys: pa.BinaryArray, tail_bytes: int, width: int):
        offsets, data = offsets_and_data(keys)
        self.width, self._starts = width, offsets[:-1].astype(np.int64)
        self.lengths = offsets[1:] - tail_bytes - self._starts
        self._least = int(self.lengths.min())
        if tail_bytes < 8:  # a word may reach beyond the last key
            data = memoryview(b"".join((data[: int(offsets[-1])], bytes(8))))
        self._words = np.ndarray((len(data) - 7,), dtype=">u8", buffer=data, strides=(1,))

    def at(self, rows: np.ndarray, level: int) -> np.ndarray:
        """uint64 [k]: the bytes from `level` on of keys that are longer; zeros after their end."""
        word = self._words[self._starts[rows] + level].astype(np.uint64) >> np.uint64(64 - 8 * self.width)
        if self._least < level + self.width:
            missing = np.maximum(level + self.width - self.lengths[rows], 0).astype(np.uint64) * np.uint64(8)
            word = word >> missing << missing
        return word


def sorted_by_arrow(keys: pa.BinaryArray, tail_bytes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return what `sorted_keys` does; without tails, of any keys."""
    keys = pc.binary_slice(keys, 0, -tail_bytes) if tail_bytes else keys
    order = pc.array_sort_indices(keys)  # a stable sort
    ranked = keys.take(order)
    is_again = np.zeros(len(keys), dtype=bool)
    is_again[1:] = to_numpy(pc.equal(ranked[1:], ranked[:-1]))
    return to_numpy(order).astype(np.int64), is_again


def newest_order(keys: pa.BinaryArray) -> np.ndarray:
    """Return int64 [k]: the positions of `keys` in ascending order; of equal keys, that of the last one alone."""
    order, is_again = sorted_by_arrow(keys) if byte_table(keys) is None else sorted_keys(keys)
    return order[np.append(~is_again[1:], True)]
