"""Sort binary keys without a Python object per key.

Keys are sorted by 8 bytes at a time, as integers, and ties by the next 8. After `_ROUNDS_MAX` rounds Arrow sorts the
remaining ties.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import byte_table, from_numpy, offsets_and_data, to_numpy

_FEW = 512  # up to this many are sorted by Arrow
_ROUNDS_MAX = 24
_WORD_BYTES = 8
_RANGES_MAX, _SAMPLE_MAX = 255, 1 << 16
_ALL = slice(None)


def sorted_keys(
    keys: pa.BinaryArray, tail_bytes: int = 0, places: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return (int64 [n]: the ascending order of keys without their tails, stable; bool [n]: in that order, whether the
    key is equal to the one before). No key may be a prefix of another, except equal ones. `places`: int64, ascending:
    the places of the keys to sort, instead of all."""
    count = len(keys) if places is None else len(places)
    if count <= _FEW:
        order, is_repeat = sorted_by_arrow(keys if places is None else keys.take(from_numpy(places)), tail_bytes)
        return order if places is None else places[order], is_repeat
    words, rows = _Words(keys, tail_bytes), _ALL if places is None else places
    level = words.shared_bytes(rows)
    if level is None:
        return np.arange(count) if places is None else places.copy(), np.arange(count) > 0
    order, is_repeat = _ranked(words.at(rows, level))
    if places is not None:
        order = places[order]
    if words.longest <= level + _WORD_BYTES:
        return order, is_repeat
    tied = np.flatnonzero(is_repeat | np.append(is_repeat[1:], False))
    for _ in range(_ROUNDS_MAX):
        level += _WORD_BYTES
        group = np.cumsum(~is_repeat[tied]).astype(np.uint64)
        is_open = words.lengths[order[tied]] > level  # all keys of a group end together
        if not is_open.all():
            tied, group = tied[is_open], group[is_open]
        if not len(tied):
            return order, is_repeat
        rows = order[tied]
        word = words.at(rows, level)
        if (word == word[0]).all():
            continue
        place, _ = _ranked(word)
        if group[0] != group[-1]:
            place = place[_packed_order(group[place], np.arange(len(place)), len(place))]
        order[tied], word = rows[place], word[place]
        is_repeat[tied[1:]] &= word[1:] == word[:-1]
        is_tied = is_repeat[tied]
        is_tied[:-1] |= is_repeat[tied[1:]]
        tied = tied[is_tied]
    rows = order[tied]
    order_of_tied, is_repeat[tied] = sorted_by_arrow(keys.take(from_numpy(rows)), tail_bytes)
    order[tied] = rows[order_of_tied]
    return order, is_repeat


def _ranked(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (int64 [n]: the stable ascending order of uint64 numbers; bool [n]: in that order, the number is equal to
    the one before). Numbers and places are sorted as one integer, in half of the time of an argsort. If both do not fit
    64 bits, the last bits of the numbers are left out, which then sort the ties."""
    distances = numbers - numbers.min()
    used = int(np.bitwise_or.reduce(distances))
    distances >>= np.uint64((used & -used).bit_length() - 1 if used else 0)  # what follows the end of short keys
    bits = len(numbers).bit_length()
    dropped = max(0, int(distances.max()).bit_length() + bits - 64)
    packed = (distances >> np.uint64(dropped)) << np.uint64(bits)
    packed |= np.arange(len(numbers), dtype=np.uint64)
    packed.sort()
    order = (packed & np.uint64((1 << bits) - 1)).view(np.int64)
    packed >>= np.uint64(bits)
    is_repeat = np.zeros(len(numbers), dtype=bool)
    np.equal(packed[1:], packed[:-1], out=is_repeat[1:])
    if dropped and is_repeat.any():
        is_tied = is_repeat.copy()
        is_tied[:-1] |= is_repeat[1:]
        tied = order[is_tied]
        groups = np.cumsum(~is_repeat[is_tied]).astype(np.uint64) << np.uint64(dropped)
        place, is_repeat[is_tied] = _ranked(groups | distances[tied] & np.uint64((1 << dropped) - 1))
        order[is_tied] = tied[place]
    return order, is_repeat


def _packed_order(numbers: np.ndarray, places: np.ndarray, count: int) -> np.ndarray:
    """Return int64 [k]: the places, ascending by uint64 number and place; all of them are at most `count`."""
    bits = np.uint64(count.bit_length())
    packed = numbers << bits | places.astype(np.uint64)
    packed.sort()
    packed &= (np.uint64(1) << bits) - np.uint64(1)
    return packed.view(np.int64)


class _Words:
    """Keys without their tails as numbers of 8 bytes. `lengths`: int64 [n], in bytes. `longest`: the greatest."""

    def __init__(self, keys: pa.BinaryArray, tail_bytes: int):
        offsets, data = offsets_and_data(keys)
        self._starts = offsets[:-1].astype(np.int64)
        self.lengths = offsets[1:] - tail_bytes - self._starts
        self._least, self.longest = int(self.lengths.min()), int(self.lengths.max())
        if tail_bytes < _WORD_BYTES:  # a word may reach beyond the last key
            data = memoryview(b"".join((data[: int(offsets[-1])], bytes(_WORD_BYTES))))
        self._words = np.ndarray((len(data) - 7,), dtype=">u8", buffer=data, strides=(1,))
        # Keys of one width follow one another at equal distances.
        self._step = self.longest + tail_bytes if self._least == self.longest else None

    def at(self, rows: np.ndarray | slice, level: int) -> np.ndarray:
        """Return uint64 [k]: the bytes of keys from `level` on, with zeros after their end."""
        if self._step is None:
            word = self._words[self._starts[rows] + level].astype(np.uint64)
        else:
            first = int(self._starts[0]) + level
            last = first + self._step * (len(self._starts) - 1)
            word = self._words[first : last + 1 : self._step][rows].astype(np.uint64)
        if self._least < level + _WORD_BYTES:
            missing = np.maximum(level + _WORD_BYTES - self.lengths[rows], 0).astype(np.uint64) * np.uint64(8)
            word = word >> missing << missing
        return word

    def shared_bytes(self, rows: np.ndarray | slice) -> int | None:
        """Return how many first bytes all keys share; None if all keys are equal."""
        level = 0
        while self._least > level or int(self.lengths[rows].min()) > level:
            word = self.at(rows, level)
            differing = int(np.bitwise_or.reduce(word ^ word[0])).bit_length()
            if differing:
                return level + _WORD_BYTES - (differing + 7) // 8
            level += _WORD_BYTES
        return None


def sorted_by_arrow(keys: pa.BinaryArray, tail_bytes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Do the same as `sorted_keys`; without tails, for any keys."""
    keys = pc.binary_slice(keys, 0, -tail_bytes) if tail_bytes else keys
    order = pc.array_sort_indices(keys)  # a stable sort
    ranked = keys.take(order)
    is_repeat = np.zeros(len(keys), dtype=bool)
    is_repeat[1:] = to_numpy(pc.equal(ranked[1:], ranked[:-1]))
    return to_numpy(order).astype(np.int64), is_repeat


def newest_order(keys: pa.BinaryArray) -> np.ndarray:
    """Return int64 [k]: the positions of `keys` in ascending order; of equal keys, only that of the last one."""
    order, is_repeat = sorted_by_arrow(keys) if byte_table(keys) is None else sorted_keys(keys)
    return order[np.append(~is_repeat[1:], True)]


def key_ranges(keys: pa.BinaryArray, tail_bytes: int, count: int) -> list[np.ndarray]:
    """Return the places of the keys in at most `count` ascending ranges with about equally many keys each: int64,
    ascending. Keys that are equal without their tails are in one range."""
    count = min(count, _RANGES_MAX)
    if count < 2 or len(keys) < 2:
        return [np.arange(len(keys))]
    words = _Words(keys, tail_bytes)
    level = words.shared_bytes(_ALL)
    if level is None:
        return [np.arange(len(keys))]
    word = words.at(_ALL, level)
    sample = np.sort(word[:: max(1, len(word) // _SAMPLE_MAX)])
    bounds = np.unique(sample[np.arange(1, count) * len(sample) // count])
    range_of = np.zeros(len(word), dtype=np.uint8)
    for bound in bounds:  # of few bounds, comparing with each is faster than a binary search
        range_of += word >= bound
    return [np.flatnonzero(range_of == i) for i in range(len(bounds) + 1)]
