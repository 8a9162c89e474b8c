"""Keys inside a block: one of three encodings, each decoded without numba.

    1  fixed width      All keys of the block have one length. The prefix that they share is stored once and the rest
                        byte-transposed: first byte of every key, second byte of every key, ... so that the slow
                        leading bytes of sorted binary keys become runs.
    2  bundle prefix    Keys of any length. The prefix that the block shares is stored once, then for each bundle of 16
                        keys the further prefix that it shares, then each key's own suffix. After Pebble's
                        `sstable/colblk/prefix_bytes.go`, with lengths stored and not offsets, which compress better.
    3  numbers          Keys of one length that differ in their last 8 bytes at most, read as big-endian integers: a
                        line and the distances from it (`integers`). Consecutive numbers take no bytes.

A point look-up reads single keys from the encoded form (`key_at`), so that it pays for ten keys and not for a block.
`block_encoding` writes them; `column_encoding`, those of many blocks.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import binary_array, binary_rows, byte_table, empty_bytes, from_numpy, offsets_of
from ..errors import InvalidArgumentError
from ..lazy import kernels_for, read_only
from . import integers
from .codec import Where, padding

ENCODING_FIXED = 1
ENCODING_BUNDLE = 2
ENCODING_NUMBERS = 3

NUMBER_BYTES = 8

BUNDLE_KEYS = 16
_FEW_BUNDLES = 64  # of which Python finds the largest number sooner than numpy
KEY_BYTES_MAX = 1 << 20
ARRAY_BYTES_MAX = np.iinfo(np.int32).max
# About what a key costs without compiled code.
_BUNDLED_PLAIN_NS, _WIDE_PLAIN_NS = 60, 10

FIXED_HEAD = struct.Struct("<II")
BUNDLE_HEAD = struct.Struct("<IBBH")
NUMBERS_HEAD = struct.Struct("<IIQQ")
LENGTH_TYPES: dict[int, np.dtype[np.unsignedinteger]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


def common_prefix_length(a: bytes, b: bytes) -> int:
    """How many leading bytes two keys share."""
    shorter = min(len(a), len(b))
    differing = int.from_bytes(a[:shorter], "big") ^ int.from_bytes(b[:shorter], "big")
    return shorter - (differing.bit_length() + 7) // 8


# -- decoding ---------------------------------------------------------------------------------------------------------


class FixedKeys:
    """The keys of a block in encoding 1."""

    def __init__(self, raw: memoryview, count: int, cap: int, where: Where):
        if len(raw) < FIXED_HEAD.size:
            raise where.bad("key section", "the keys of a block are cut short")
        self.width, shared = FIXED_HEAD.unpack_from(raw)
        body = FIXED_HEAD.size + shared
        rest = self.width - shared
        # Keys differ, so only a block of one key may share all bytes.
        if rest < 0 or body + rest * count != len(raw) or (rest == 0 and count > 1) or self.width * count > cap:
            raise where.bad("key section", f"{count} keys of {self.width} bytes do not fit {len(raw)}")
        self.prefix = bytes(raw[FIXED_HEAD.size : body])
        self._columns = np.frombuffer(raw, dtype=np.uint8, offset=body if rest else 0, count=rest * count)
        self._columns = self._columns.reshape(rest, count)
        self._raw, self._count, self._cap = raw, count, cap
        self.decoded_bytes = self.width * count

    def __len__(self) -> int:
        return self._count

    def key_at(self, i: int) -> bytes:
        return self.prefix + self._columns[:, i].tobytes()

    def numbers(self, out: np.ndarray | None = None) -> np.ndarray:
        """uint64 [n]: the last 8 bytes of the keys as big-endian numbers, in `out` where it is given."""
        columns = self._columns[-NUMBER_BYTES:]
        shared = self.prefix[len(self.prefix) - (NUMBER_BYTES - len(columns)) :]
        out = np.empty(self._count, dtype=np.uint64) if out is None else out
        out[:] = int.from_bytes(shared, "big")
        for column in columns:
            np.left_shift(out, np.uint64(8), out=out)
            np.bitwise_or(out, column, out=out)
        return out

    def numbers_at(self, places: np.ndarray) -> np.ndarray:
        """uint64 [k]: the last 8 bytes of the keys at int64 `places` as big-endian numbers."""
        shared = max(0, len(self.prefix) - (self.width - NUMBER_BYTES))
        table = np.empty((len(places), NUMBER_BYTES), dtype=np.uint8)
        table[:, :shared] = np.frombuffer(self.prefix, dtype=np.uint8)[len(self.prefix) - shared :]
        table[:, shared:] = self._columns[shared - NUMBER_BYTES :, places].T if shared < NUMBER_BYTES else 0
        return table.reshape(-1).view(">u8").astype(np.uint64)

    def tails_at(self, places: np.ndarray, width: int) -> np.ndarray:
        """uint8 [k, width]: the last bytes of the keys at int64 `places`; `width` is not above the keys'."""
        stored_width = min(width, len(self._columns))
        table = np.empty((len(places), width), dtype=np.uint8)
        if stored_width < width:
            table[:, : width - stored_width] = np.frombuffer(self.prefix, dtype=np.uint8)[
                len(self.prefix) - (width - stored_width) :
            ]
        table[:, width - stored_width :] = self._columns[len(self._columns) - stored_width :, places].T
        return table

    def to_arrow(self) -> pa.BinaryArray:
        rendered = render_wide([self._raw], [self._count], [ENCODING_FIXED], self._cap)
        if rendered is not None:
            return rendered
        table = np.empty((self._count, self.width), dtype=np.uint8)
        shared = len(self.prefix)
        table[:, :shared] = np.frombuffer(self.prefix, dtype=np.uint8)
        table[:, shared:] = self._columns.T
        return binary_rows(table)


class BundleKeys:
    """The keys of a block in encoding 2."""

    def __init__(self, raw: memoryview, count: int, cap: int, where: Where):
        if len(raw) < BUNDLE_HEAD.size:
            raise where.bad("key section", "the keys of a block are cut short")
        shared, head_width, suffix_width, _ = BUNDLE_HEAD.unpack_from(raw)
        if head_width not in LENGTH_TYPES or suffix_width not in LENGTH_TYPES:
            raise where.bad("key section", f"lengths of {head_width} and {suffix_width} bytes are not known")
        bundles = -(-count // BUNDLE_KEYS)
        heads_at = BUNDLE_HEAD.size + shared
        suffixes_at = heads_at + head_width * bundles
        data_at = suffixes_at + suffix_width * count
        if data_at > len(raw):
            raise where.bad("key section", f"the lengths of {count} keys do not fit {len(raw)} bytes")
        head_lengths = np.frombuffer(raw[heads_at:suffixes_at], dtype=LENGTH_TYPES[head_width])
        suffix_lengths = np.frombuffer(raw[suffixes_at:data_at], dtype=LENGTH_TYPES[suffix_width])
        self._heads = offsets_of(head_lengths)
        self._suffixes = offsets_of(suffix_lengths)
        head_bytes, suffix_bytes = int(self._heads[-1]), int(self._suffixes[-1])
        if data_at + head_bytes + suffix_bytes != len(raw):
            raise where.bad("key section", f"the bytes of {count} keys do not fill their section")
        # The exact size costs a pass: take it only where the loose bound says too much.
        longest = max(head_lengths.tolist()) if bundles <= _FEW_BUNDLES else int(head_lengths.max())
        self.decoded_bytes = (shared + longest) * count + suffix_bytes
        if self.decoded_bytes > cap:
            further = np.repeat(head_lengths.astype(np.int64), BUNDLE_KEYS)[:count]
            self.decoded_bytes = shared * count + int(further.sum()) + suffix_bytes
            if self.decoded_bytes > cap:
                raise where.bad("key section", f"{count} keys would take more than {cap} bytes")
        self._raw, self._cap = raw, cap
        self._prefix = bytes(raw[BUNDLE_HEAD.size : heads_at])
        self._head_data = raw[data_at : data_at + head_bytes]
        self._suffix_data = raw[data_at + head_bytes :]
        self._count = count

    def __len__(self) -> int:
        return self._count

    def _head(self, bundle: int) -> bytes:
        return self._prefix + self._head_data[self._heads[bundle] : self._heads[bundle + 1]]

    def key_at(self, i: int) -> bytes:
        return self._head(i // BUNDLE_KEYS) + self._suffix_data[self._suffixes[i] : self._suffixes[i + 1]]

    def find_one(self, key: bytes) -> int:
        """Where a key is; -1 where it is not."""
        if not key.startswith(self._prefix):
            return -1
        rest = key[len(self._prefix) :]
        # A view gives an item sooner than an array.
        heads, suffixes = self._heads.data, self._suffixes.data
        head_data, suffix_data = self._head_data, self._suffix_data
        low, high = 0, self._count
        while low < high:
            middle = (low + high) >> 1
            bundle = middle // BUNDLE_KEYS
            head = bytes(head_data[heads[bundle] : heads[bundle + 1]])
            found = head + suffix_data[suffixes[middle] : suffixes[middle + 1]]
            if found == rest:
                return middle
            if found < rest:
                low = middle + 1
            else:
                high = middle
        return -1

    def to_arrow(self) -> pa.BinaryArray:
        rendered = render_bundles([self._raw], [self._count], self._cap)
        if rendered is not None:
            return rendered
        buffers = [None, pa.py_buffer(self._suffixes.astype(np.int32)), pa.py_buffer(self._suffix_data)]
        suffixes = pa.Array.from_buffers(pa.binary(), self._count, buffers, 0)
        bundles = len(self._heads) - 1
        if not self._prefix and not len(self._head_data):
            return suffixes
        heads = binary_array([self._head(b) for b in range(bundles)])
        which = np.repeat(np.arange(bundles, dtype=np.int32), BUNDLE_KEYS)[: self._count]
        # Arrow's join is one copy a piece: a gather in numpy would pay for every byte.
        return pc.binary_join_element_wise(heads.take(from_numpy(which)), suffixes, empty_bytes())


class NumberKeys:
    """The keys of a block in encoding 3.

    width    of every key, in bytes
    prefix   what comes before the number: `width - 8` bytes, or none
    """

    def __init__(self, raw: memoryview, count: int, cap: int, where: Where):
        if len(raw) < NUMBERS_HEAD.size:
            raise where.bad("key section", "the keys of a block are cut short")
        self.width, _, base, step = NUMBERS_HEAD.unpack_from(raw)
        self._last = min(self.width, NUMBER_BYTES)
        end = NUMBERS_HEAD.size + self.width - self._last
        if not self.width or end + len(padding(end)) > len(raw) or self.width * count > cap:
            raise where.bad("key section", f"{count} keys of {self.width} bytes do not fit {len(raw)}")
        self.prefix = bytes(raw[NUMBERS_HEAD.size : end])
        self._line = integers.read_line(base, step, raw, end + len(padding(end)), count, NUMBER_BYTES, where)
        self._mask = (1 << 8 * self._last) - 1
        self._count = count
        self.decoded_bytes = self.width * count

    def __len__(self) -> int:
        return self._count

    def key_at(self, i: int) -> bytes:
        return self.prefix + (self._line.item(i) & self._mask).to_bytes(self._last, "big")

    def find_one(self, key: bytes) -> int:
        """Where a key is; -1 where it is not."""
        if len(key) != self.width or not key.startswith(self.prefix):
            return -1
        number, item, mask = int.from_bytes(key[-self._last :], "big"), self._line.item, self._mask
        low, high = 0, self._count
        while low < high:
            middle = (low + high) >> 1
            if item(middle) & mask < number:
                low = middle + 1
            else:
                high = middle
        return low if low < self._count and item(low) & mask == number else -1

    def numbers(self, out: np.ndarray | None = None) -> np.ndarray:
        """uint64 [n]: the numbers; in `out`, where it is given."""
        numbers = np.empty(self._count, dtype=np.uint64) if out is None else out
        self._line.into(numbers, slice(0, self._count))
        if self._last < NUMBER_BYTES:
            numbers &= np.uint64(self._mask)
        return numbers

    def numbers_at(self, places: np.ndarray) -> np.ndarray:
        """uint64 [k]: the numbers at int64 `places`."""
        numbers = np.empty(len(places), dtype=np.uint64)
        self._line.into(numbers, places)
        return numbers

    def find(self, wanted: np.ndarray) -> np.ndarray | None:
        """int64 [k]: where each of uint64 `wanted` would be, if it is there at all; None where the numbers are on no
        line, and have to be searched."""
        base, step, items, _ = self._line
        if items is not None or not step or step >> 32 or base + step * self._count > integers.MASK:
            return None
        # What is below the base wraps around, and comes out past the end.
        off = wanted - np.uint64(base)
        return np.minimum(off if step == 1 else off // np.uint64(step), np.uint64(self._count)).astype(np.int64)

    def to_arrow(self) -> pa.BinaryArray:
        table = np.empty((self._count, self.width), dtype=np.uint8)
        cut = self.width - self._last
        table[:, :cut] = np.frombuffer(self.prefix, dtype=np.uint8)
        table[:, cut:] = self.numbers().astype(">u8").view(np.uint8).reshape(-1, NUMBER_BYTES)[:, -self._last :]
        return binary_rows(table)


BlockKeys = FixedKeys | BundleKeys | NumberKeys


def decode_keys(encoding: int, raw: memoryview, count: int, cap: int, where: Where) -> BlockKeys:
    """The keys of a block of `count` entries; at most `cap` bytes once decoded. Raises CorruptionError."""
    if encoding == ENCODING_FIXED:
        return FixedKeys(raw, count, cap, where)
    if encoding == ENCODING_BUNDLE:
        return BundleKeys(raw, count, cap, where)
    if encoding == ENCODING_NUMBERS:
        return NumberKeys(raw, count, cap, where)
    raise where.bad("key encoding", f"key encoding {encoding} is not known")


# -- keys of many blocks ----------------------------------------------------------------------------------------------


def joined_sections(
    sections: Sequence[memoryview | bytes], counts: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sections one after the other, uint8 [bytes], where each begins and ends, and their counts, int64."""
    raw = read_only(sections[0] if len(sections) == 1 else b"".join(sections))
    ends = offsets_of(np.fromiter(map(len, sections), dtype=np.int64, count=len(sections)))
    return raw, ends[:-1], ends[1:], np.fromiter(counts, dtype=np.int64, count=len(sections))


def render_bundles(sections: Sequence[memoryview | bytes], counts: Sequence[int], cap: int) -> pa.BinaryArray | None:
    """The keys of blocks in bundles that hold `counts` keys, one after the other, by compiled code. None where they do
    not fit, take more than `cap` bytes, or the plain twin is the better choice."""
    total = sum(counts)
    kernels = kernels_for("hfile_like.kernels_keys", _BUNDLED_PLAIN_NS * total)
    if kernels is None or not total:
        return None
    raw, begins, ends, sizes = joined_sections(sections, counts)
    offsets = np.empty(total + 1, dtype=np.int32)
    if not kernels.measure_bundles(raw, begins, ends, sizes, min(cap, ARRAY_BYTES_MAX), offsets):
        return None
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    kernels.render_bundles(raw, begins, sizes, offsets, out)
    return pa.Array.from_buffers(pa.binary(), total, [None, pa.py_buffer(offsets), pa.py_buffer(out)], 0)


def render_wide(
    sections: Sequence[memoryview | bytes], counts: Sequence[int], encodings: Sequence[int], cap: int
) -> pa.BinaryArray | None:
    """As `render_bundles`, of blocks of transposed keys or of numbers, all of one width."""
    total, width = sum(counts), int.from_bytes(sections[0][:4], "little")
    kernels = kernels_for("hfile_like.kernels_keys", _WIDE_PLAIN_NS * total)
    if kernels is None or not 0 < width * total <= min(cap, ARRAY_BYTES_MAX):
        return None
    out = np.empty((total, width), dtype=np.uint8)
    blocks = *joined_sections(sections, counts), np.array(encodings, dtype=np.int64)
    return binary_rows(out) if kernels.render_wide(*blocks, width, out.reshape(-1)) else None


# -- search -----------------------------------------------------------------------------------------------------------


def lower_bound(keys: BlockKeys, key: bytes) -> int:
    """The first position whose key is not below `key`."""
    return bisect_left(range(len(keys)), key, key=keys.key_at)


def find_key(keys: BlockKeys, key: bytes) -> int:
    """Where a key is; -1 where it is not."""
    if not isinstance(keys, FixedKeys):
        return keys.find_one(key)
    row = lower_bound(keys, key)
    return row if row < len(keys) and keys.key_at(row) == key else -1


def numbers_below(keys: BlockKeys, prefix: bytes, out: np.ndarray | None = None) -> tuple[int, np.ndarray]:
    """(position of the first, uint64 [k]) of the keys that are `prefix` and a big-endian number of 8 bytes; the numbers
    may be in `out` [at least n]. Raises InvalidArgumentError where a key goes on otherwise."""
    width = len(prefix) + NUMBER_BYTES
    if _have_numbers(keys, prefix):
        return 0, keys.numbers(None if out is None else out[: len(keys)])
    low = lower_bound(keys, prefix)
    after = prefix_successor(prefix)
    high = len(keys) if after is None else max(low, lower_bound(keys, after))
    inside = keys.to_arrow().slice(low, high - low)
    table = byte_table(inside)
    if table is None and not len(inside):
        return low, np.empty(0, dtype=np.uint64)
    if table is None or table.shape[1] != width:
        raise not_numbered(prefix)
    return low, table[:, -NUMBER_BYTES:].copy().reshape(-1).view(">u8").astype(np.uint64)


def numbers_between(keys: BlockKeys, prefix: bytes, first: int, last: int) -> tuple[int, np.ndarray]:
    """(position of the first, uint64 [n]): the keys that are `prefix` and a number from `first` to `last`, both
    inclusive. Raises as `numbers_below` does."""
    if isinstance(keys, (FixedKeys, NumberKeys)) and keys.width == len(prefix) + NUMBER_BYTES:
        within = places_between(keys, prefix, first, last)  # only the keys of the range are made
        return within.start, keys.numbers_at(np.arange(within.start, within.stop))
    low, numbers = numbers_below(keys, prefix)
    start, end = np.searchsorted(numbers, np.uint64(first)), np.searchsorted(numbers, np.uint64(last), side="right")
    return low + int(start), numbers[start:end]


def places_between(keys: BlockKeys, prefix: bytes, first: int, last: int) -> range:
    """Where the keys of a prefix and a number from `first` to `last`, both inclusive, would be."""
    low = lower_bound(keys, prefix + first.to_bytes(NUMBER_BYTES, "big"))
    after = prefix_successor(prefix + last.to_bytes(NUMBER_BYTES, "big"))
    return range(low, len(keys) if after is None else max(low, lower_bound(keys, after)))


def find_numbers(keys: BlockKeys, prefix: bytes, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int64 [h], int64 [h]): which of uint64 `wanted`, ascending, are there below `prefix`, and where. Raises as
    `numbers_below` does."""
    if is_numbered(keys, prefix):
        places = keys.find(wanted)
        if places is not None:
            hits = np.flatnonzero(places < len(keys))
            hits = hits[keys.numbers_at(places[hits]) == wanted[hits]]
            return hits, places[hits]
    start, stored = numbers_below(keys, prefix)
    if not len(stored):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    places = np.searchsorted(stored, wanted)
    hits = np.flatnonzero(stored[np.minimum(places, len(stored) - 1)] == wanted)
    return hits, np.minimum(places[hits], len(stored) - 1) + start


def tails_at(keys: BlockKeys, places: np.ndarray, width: int) -> np.ndarray:
    """uint8 [k, width]: the last bytes of the keys at int64 `places`. Raises InvalidArgumentError where one is
    shorter."""
    if isinstance(keys, FixedKeys) and keys.width >= width:
        return keys.tails_at(places, width)
    tails = [keys.key_at(i)[-width:] for i in places.tolist()]
    if any(len(tail) != width for tail in tails):
        raise InvalidArgumentError(f"a key is shorter than {width} bytes")
    return np.frombuffer(b"".join(tails), dtype=np.uint8).reshape(len(places), width)


def is_numbered(keys: BlockKeys, prefix: bytes) -> TypeGuard[NumberKeys]:
    """Whether all keys are the prefix and a number of 8 bytes, held as numbers."""
    return isinstance(keys, NumberKeys) and keys.width == len(prefix) + NUMBER_BYTES and keys.prefix == prefix


def _have_numbers(keys: BlockKeys, prefix: bytes) -> TypeGuard[FixedKeys | NumberKeys]:
    """Whether all keys are the prefix and a number of 8 bytes, as what they share says."""
    if isinstance(keys, FixedKeys):
        return keys.width == len(prefix) + NUMBER_BYTES and keys.prefix.startswith(prefix)
    return is_numbered(keys, prefix)


def not_numbered(prefix: bytes) -> InvalidArgumentError:
    """The error where keys below a prefix do not go on with a number."""
    return InvalidArgumentError(
        f"keys that begin with {prefix!r} do not all go on with a number of 8 bytes: scan them as keys"
    )


def prefix_successor(prefix: bytes) -> bytes | None:
    """The least key above every key that begins with `prefix`; None where there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
