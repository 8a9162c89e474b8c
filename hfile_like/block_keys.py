"""The keys of a block, in one of three encodings.

    1  fixed width      Keys of one length. The prefix that they share is stored once. The rest is transposed: the next
                        byte of every key, then the byte after it ..., so that the slow first bytes become runs.
    2  bundle prefix    Keys of any length. The prefix that all share is stored once, then for each bundle of 16 keys
                        the further prefix that it shares, then the suffix of each key. After Pebble's
                        `sstable/colblk/prefix_bytes.go`, with lengths instead of offsets, which compress better.
    3  numbers          Keys of one length that differ in their last 8 bytes at most, read as big-endian integers in a
                        frame of reference (`frame`). Consecutive numbers have no residuals.

A look-up reads single keys from the encoded bytes (`key_at`), so it pays for ten keys and not for a block.
"""

from __future__ import annotations

import struct
from bisect import bisect_left

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import binary_array, binary_rows, byte_table, empty_bytes, from_numpy, offsets_and_data, offsets_of
from ..errors import InvalidArgumentError
from . import codec
from .codec import GAIN_THIRD, Compressor, EncodedSection, Location, padding
from .frame import Rows, encode_frame, read_frame, row_count

ENCODING_FIXED = 1
ENCODING_BUNDLES = 2
ENCODING_NUMBERS = 3

ID_BYTES = 8
BUNDLE_KEYS = 16
_COMPARED_BYTES = 128  # the bytes of two keys that one step compares
KEY_BYTES_MAX = 1 << 20

FIXED_HEAD = struct.Struct("<II")
BUNDLES_HEAD = struct.Struct("<IBBH")
NUMBERS_HEAD = struct.Struct("<IIQQ")
_LENGTH_TYPES: dict[int, np.dtype[np.unsignedinteger]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


def encode_keys(keys: pa.BinaryArray, compressor: Compressor | None) -> EncodedSection:
    """Return the keys of a block: ascending, at least one. `compressor`: that of the block, which decides between
    numbers and transposed bytes."""
    table = byte_table(keys)
    if table is None or not table.shape[1]:
        return EncodedSection(ENCODING_BUNDLES, 0, encode_bundles(keys))
    if table.shape[1] - _shared_length(table[0].tobytes(), table[-1].tobytes()) > ID_BYTES:
        return EncodedSection(ENCODING_FIXED, 0, encode_fixed(table))
    numbers = encode_numbers(table)
    if len(numbers) >= NUMBERS_HEAD.size + table.shape[1] - ID_BYTES + len(keys):  # there are residuals
        fixed = encode_fixed(table)
        # Numbers are read faster, so they may have up to one and a half times the bytes.
        if 2 * len(numbers) > 3 * len(codec.compress(fixed, compressor)[1]):
            return EncodedSection(ENCODING_FIXED, 0, fixed)
    return EncodedSection(ENCODING_NUMBERS, 0, numbers, GAIN_THIRD)


def decode_keys(encoding: int, data: memoryview, count: int, max_bytes: int, location: Location) -> BlockKeys:
    """Return the keys of a block of `count` entries, of at most `max_bytes` once decoded. Raise CorruptionError."""
    if encoding == ENCODING_FIXED:
        return FixedWidthKeys(data, count, max_bytes, location)
    if encoding == ENCODING_BUNDLES:
        return BundledKeys(data, count, max_bytes, location)
    if encoding == ENCODING_NUMBERS:
        return NumberKeys(data, count, max_bytes, location)
    raise location.corruption("key encoding", f"key encoding {encoding} is not known")


def _shared_length(a: bytes, b: bytes) -> int:
    """Return how many leading bytes two keys share."""
    shorter = min(len(a), len(b))
    differing = int.from_bytes(a[:shorter], "big") ^ int.from_bytes(b[:shorter], "big")
    return shorter - (differing.bit_length() + 7) // 8


# -- 1, fixed width ---------------------------------------------------------------------------------------------------


def encode_fixed(table: np.ndarray) -> memoryview:
    """Return encoding 1 of keys of one length: uint8 [keys, width]."""
    count, width = table.shape
    first = table[0].tobytes()
    shared = _shared_length(first, table[-1].tobytes())
    head = FIXED_HEAD.pack(width, shared) + first[:shared]
    out = np.empty(len(head) + (width - shared) * count, dtype=np.uint8)
    out[: len(head)] = np.frombuffer(head, dtype=np.uint8)
    out[len(head) :].reshape(width - shared, count)[:] = table[:, shared:].T
    return out.data


class FixedWidthKeys:
    """Keys in encoding 1.

    width    of every key, in bytes
    prefix   the bytes that all keys share
    columns  uint8 [bytes, keys]: the others, byte by byte
    """

    def __init__(self, data: memoryview, count: int, max_bytes: int, location: Location):
        if len(data) < FIXED_HEAD.size:
            raise location.corruption("key section", "the keys of a block are cut short")
        self.width, shared = FIXED_HEAD.unpack_from(data)
        body = FIXED_HEAD.size + shared
        rest = self.width - shared
        # Keys differ, so only a block of one key may share all bytes.
        is_fit = rest >= 0 and body + rest * count == len(data) and (rest > 0 or count == 1)
        if not is_fit or self.width * count > max_bytes:
            raise location.corruption("key section", f"{count} keys of {self.width} bytes do not fit {len(data)}")
        self.prefix = bytes(data[FIXED_HEAD.size : body])
        columns = np.frombuffer(data, dtype=np.uint8, offset=body if rest else 0, count=rest * count)
        self.columns = columns.reshape(rest, count)
        self._count = count
        self.decoded_bytes = self.width * count

    def __len__(self) -> int:
        return self._count

    def key_at(self, i: int) -> bytes:
        return self.prefix + self.columns[:, i].tobytes()

    def ids(self, rows: Rows) -> np.ndarray:
        """Return uint64 [k]: the last 8 bytes of the keys at `rows`, as big-endian numbers."""
        columns = self.columns[-ID_BYTES:]
        shared = self.prefix[len(self.prefix) - (ID_BYTES - len(columns)) :]
        out = np.full(row_count(rows), int.from_bytes(shared, "big"), dtype=np.uint64)
        for column in columns:
            np.left_shift(out, np.uint64(8), out=out)
            np.bitwise_or(out, column[rows], out=out)
        return out

    def tails_at(self, rows: Rows, width: int) -> np.ndarray:
        """Return uint8 [k, width]: the last bytes of the keys at `rows`. `width` is at most the keys'."""
        stored = min(width, len(self.columns))
        chosen = self.columns[len(self.columns) - stored :, rows].T
        if stored == width:
            return chosen
        table = np.empty((len(chosen), width), dtype=np.uint8)
        prefix = np.frombuffer(self.prefix, dtype=np.uint8)
        table[:, : width - stored] = prefix[len(prefix) - (width - stored) :]
        table[:, width - stored :] = chosen
        return table

    def to_arrow(self) -> pa.BinaryArray:
        table = np.empty((self._count, self.width), dtype=np.uint8)
        shared = len(self.prefix)
        table[:, :shared] = np.frombuffer(self.prefix, dtype=np.uint8)
        table[:, shared:] = self.columns.T
        return binary_rows(table)


# -- 2, bundle prefix -------------------------------------------------------------------------------------------------


def encode_bundles(keys: pa.BinaryArray) -> bytes:
    """Return encoding 2."""
    offsets, buffer = offsets_and_data(keys)
    data = np.frombuffer(buffer, dtype=np.uint8)[int(offsets[0]) : int(offsets[-1])]
    ends = (offsets - offsets[0]).astype(np.int64)
    starts, lengths = ends[:-1], np.diff(ends)
    firsts = np.arange(0, len(keys), BUNDLE_KEYS)
    lasts = np.minimum(firsts + BUNDLE_KEYS, len(keys)) - 1
    (block_prefix,) = _shared_lengths(data, starts, lengths, firsts[:1], lasts[-1:]).tolist()
    # The last key of a bundle of one would share all of itself: its bytes are its suffix.
    shared = np.where(lasts > firsts, _shared_lengths(data, starts, lengths, firsts, lasts), block_prefix)
    of_keys = np.repeat(shared, BUNDLE_KEYS)[: len(keys)]
    is_suffix = np.arange(len(data)) >= np.repeat(starts + of_keys, lengths)
    cuts = zip((starts[firsts] + block_prefix).tolist(), (starts[firsts] + shared).tolist(), strict=True)
    prefixes = [data[low:high].tobytes() for low, high in cuts]
    prefix_width, prefix_lengths = _pack_lengths(shared - block_prefix)
    suffix_width, suffix_lengths = _pack_lengths(lengths - of_keys)
    head = BUNDLES_HEAD.pack(block_prefix, prefix_width, suffix_width, 0) + data[:block_prefix].tobytes()
    return b"".join((head, prefix_lengths, suffix_lengths, *prefixes, data[is_suffix].tobytes()))


def _shared_lengths(
    data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, a: np.ndarray, b: np.ndarray
) -> np.ndarray:
    """Return int64 [k]: how many leading bytes the keys at places `a` and `b` share."""
    shorter = np.minimum(lengths[a], lengths[b])
    places = np.arange(min(int(shorter.max()), _COMPARED_BYTES))
    one, other = (data[np.minimum(starts[at, None] + places, len(data) - 1)] for at in (a, b))
    is_same = (one == other) & (places < shorter[:, None])
    shared = np.logical_and.accumulate(is_same, axis=1).sum(axis=1)
    for i in np.flatnonzero((shared == _COMPARED_BYTES) & (shorter > _COMPARED_BYTES)).tolist():
        pair = (data[starts[at[i]] :][: lengths[at[i]]].tobytes() for at in (a, b))
        shared[i] = _shared_length(*pair)
    return shared


def _pack_lengths(lengths: np.ndarray) -> tuple[int, bytes]:
    """Return the width of lengths, 1, 2 or 4 bytes, and their bytes."""
    largest = int(lengths.max())
    width = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
    return width, lengths.astype(_LENGTH_TYPES[width]).tobytes()


class BundledKeys:
    """Keys in encoding 2."""

    def __init__(self, data: memoryview, count: int, max_bytes: int, location: Location):
        if len(data) < BUNDLES_HEAD.size:
            raise location.corruption("key section", "the keys of a block are cut short")
        shared, prefix_width, suffix_width, _ = BUNDLES_HEAD.unpack_from(data)
        if prefix_width not in _LENGTH_TYPES or suffix_width not in _LENGTH_TYPES:
            message = f"lengths of {prefix_width} and {suffix_width} bytes are not known"
            raise location.corruption("key section", message)
        bundles = -(-count // BUNDLE_KEYS)
        prefixes_at = BUNDLES_HEAD.size + shared
        suffixes_at = prefixes_at + prefix_width * bundles
        data_at = suffixes_at + suffix_width * count
        if data_at > len(data):
            raise location.corruption("key section", f"the lengths of {count} keys do not fit {len(data)} bytes")
        prefix_lengths = np.frombuffer(data[prefixes_at:suffixes_at], dtype=_LENGTH_TYPES[prefix_width])
        suffix_lengths = np.frombuffer(data[suffixes_at:data_at], dtype=_LENGTH_TYPES[suffix_width])
        self._prefix_offsets, self._suffix_offsets = offsets_of(prefix_lengths), offsets_of(suffix_lengths)
        prefix_bytes, suffix_bytes = int(self._prefix_offsets[-1]), int(self._suffix_offsets[-1])
        if data_at + prefix_bytes + suffix_bytes != len(data):
            raise location.corruption("key section", f"the bytes of {count} keys do not fill their section")
        missing = BUNDLE_KEYS * bundles - count  # in the last bundle
        repeated = BUNDLE_KEYS * prefix_bytes - missing * int(prefix_lengths[-1])
        self.decoded_bytes = shared * count + repeated + suffix_bytes
        if self.decoded_bytes > max_bytes:
            raise location.corruption("key section", f"{count} keys would take more than {max_bytes} bytes")
        self.prefix = bytes(data[BUNDLES_HEAD.size : prefixes_at])
        self._prefixes = data[data_at : data_at + prefix_bytes]
        self._suffixes = data[data_at + prefix_bytes :]
        self._count = count

    def __len__(self) -> int:
        return self._count

    def _bundle_prefix(self, bundle: int) -> bytes:
        return self.prefix + self._prefixes[self._prefix_offsets[bundle] : self._prefix_offsets[bundle + 1]]

    def key_at(self, i: int) -> bytes:
        suffix = self._suffixes[self._suffix_offsets[i] : self._suffix_offsets[i + 1]]
        return self._bundle_prefix(i // BUNDLE_KEYS) + suffix

    def to_arrow(self) -> pa.BinaryArray:
        buffers = [None, pa.py_buffer(self._suffix_offsets.astype(np.int32)), pa.py_buffer(self._suffixes)]
        suffixes = pa.Array.from_buffers(pa.binary(), self._count, buffers, 0)
        if not self.prefix and not len(self._prefixes):
            return suffixes
        bundles = len(self._prefix_offsets) - 1
        prefixes = binary_array([self._bundle_prefix(b) for b in range(bundles)])
        which = np.repeat(np.arange(bundles, dtype=np.int32), BUNDLE_KEYS)[: self._count]
        # Arrow's join copies piece by piece: a gather in numpy would have a cost per byte.
        return pc.binary_join_element_wise(prefixes.take(from_numpy(which)), suffixes, empty_bytes())


# -- 3, numbers -------------------------------------------------------------------------------------------------------


def encode_numbers(table: np.ndarray) -> bytes:
    """Return encoding 3 of keys of one length that differ in their last 8 bytes at most: uint8 [keys, width]."""
    count, width = table.shape
    last = min(width, ID_BYTES)
    padded = np.zeros((count, ID_BYTES), dtype=np.uint8)
    padded[:, :last] = table[:, width - last :][:, ::-1]
    frame = encode_frame(padded.reshape(-1).view("<u8")).to_bytes()
    head = width.to_bytes(8, "little") + frame[:16] + table[0, : width - last].tobytes()
    return b"".join((head, padding(len(head)), frame[16:]))


class NumberKeys:
    """Keys in encoding 3.

    width    of every key, in bytes
    prefix   the bytes before the number: `width - 8` bytes, or none
    """

    def __init__(self, data: memoryview, count: int, max_bytes: int, location: Location):
        if len(data) < NUMBERS_HEAD.size:
            raise location.corruption("key section", "the keys of a block are cut short")
        self.width, _, base, step = NUMBERS_HEAD.unpack_from(data)
        self._last = min(self.width, ID_BYTES)
        end = NUMBERS_HEAD.size + self.width - self._last
        if not self.width or end + len(padding(end)) > len(data) or self.width * count > max_bytes:
            raise location.corruption("key section", f"{count} keys of {self.width} bytes do not fit {len(data)}")
        self.prefix = bytes(data[NUMBERS_HEAD.size : end])
        self._frame = read_frame(base, step, data, end + len(padding(end)), count, ID_BYTES, location)
        self._mask = (1 << 8 * self._last) - 1
        self._count = count
        self.decoded_bytes = self.width * count

    def __len__(self) -> int:
        return self._count

    def key_at(self, i: int) -> bytes:
        return self.prefix + (self._frame.value(i) & self._mask).to_bytes(self._last, "big")

    def ids(self, rows: Rows) -> np.ndarray:
        """Return uint64 [k]: the numbers at `rows`."""
        numbers = np.empty(row_count(rows), dtype=np.uint64)
        self._frame.decode_into(numbers, rows)
        numbers &= np.uint64(self._mask)
        return numbers

    def tails_at(self, rows: Rows, width: int) -> np.ndarray:
        """Return uint8 [k, width]: the last bytes of the keys at `rows`. `width` is at most the keys'."""
        numbers = self.ids(rows).astype(">u8").view(np.uint8).reshape(-1, ID_BYTES)[:, ID_BYTES - self._last :]
        table = np.empty((len(numbers), self.width), dtype=np.uint8)
        table[:, : self.width - self._last] = np.frombuffer(self.prefix, dtype=np.uint8)
        table[:, self.width - self._last :] = numbers
        return table[:, self.width - width :]

    def to_arrow(self) -> pa.BinaryArray:
        return binary_rows(np.ascontiguousarray(self.tails_at(np.arange(self._count), self.width)))


BlockKeys = FixedWidthKeys | BundledKeys | NumberKeys


# -- search -----------------------------------------------------------------------------------------------------------


def lower_bound(keys: BlockKeys, key: bytes) -> int:
    """Return the first row whose key is not below `key`."""
    return bisect_left(range(len(keys)), key, key=keys.key_at)


def find_key(keys: BlockKeys, key: bytes) -> int:
    """Return the row of a key, or -1."""
    row = lower_bound(keys, key)
    return row if row < len(keys) and keys.key_at(row) == key else -1


def key_tails(keys: BlockKeys, rows: Rows, width: int) -> np.ndarray:
    """Return uint8 [k, width]: the last bytes of the keys at `rows`, int64 or a slice. Raise InvalidArgumentError if a
    key is shorter."""
    if not isinstance(keys, BundledKeys) and keys.width >= width:
        return keys.tails_at(rows, width)
    numbers = range(len(keys))[rows] if isinstance(rows, slice) else rows.tolist()
    tails = [keys.key_at(i)[-width:] for i in numbers]
    if any(len(tail) != width for tail in tails):
        raise InvalidArgumentError(f"a key is shorter than {width} bytes")
    return np.frombuffer(b"".join(tails), dtype=np.uint8).reshape(len(tails), width)


def prefix_successor(prefix: bytes) -> bytes | None:
    """Return the least key above every key that begins with `prefix`; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


# -- ids: the numbers of 8 bytes that follow a prefix -----------------------------------------------------------------


def rows_with_prefix(keys: BlockKeys, prefix: bytes) -> range:
    """Return the rows whose keys begin with a prefix."""
    if keys.prefix.startswith(prefix):
        return range(len(keys))
    low = lower_bound(keys, prefix)
    after = prefix_successor(prefix)
    return range(low, len(keys) if after is None else max(low, lower_bound(keys, after)))


def rows_between(keys: BlockKeys, prefix: bytes, first: int, last: int) -> range:
    """Return the rows of the ids from `first` to `last`, both inclusive, below a prefix."""
    low = lower_bound(keys, prefix + first.to_bytes(ID_BYTES, "big"))
    after = prefix_successor(prefix + last.to_bytes(ID_BYTES, "big"))
    return range(low, len(keys) if after is None else max(low, lower_bound(keys, after)))


def ids_at(keys: BlockKeys, prefix: bytes, rows: range) -> np.ndarray:
    """Return uint64 [k]: the ids of neighbouring rows that begin with a prefix. Raise InvalidArgumentError if a key
    does not continue with a number of 8 bytes."""
    if not rows:
        return np.empty(0, dtype=np.uint64)
    width = len(prefix) + ID_BYTES
    if not isinstance(keys, BundledKeys):
        if keys.width != width:
            raise not_ids(prefix)
        return keys.ids(slice(rows.start, rows.stop))
    table = byte_table(keys.to_arrow().slice(rows.start, len(rows)))
    if table is None or table.shape[1] != width:
        raise not_ids(prefix)
    return table[:, -ID_BYTES:].copy().reshape(-1).view(">u8").astype(np.uint64)


def not_ids(prefix: bytes) -> InvalidArgumentError:
    """Return the error for keys that begin with a prefix and do not continue with an id."""
    return InvalidArgumentError(
        f"keys that begin with {prefix!r} do not all continue with a number of 8 bytes: scan them as keys"
    )
