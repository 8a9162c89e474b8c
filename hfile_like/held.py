"""What a cache holds of a block: the block as it is stored, and of keys and columns what was decoded of them, flat.

A block that was read once is held as it is stored, checked again wherever it is decoded. Where it is read more often,
its keys and the columns that were asked for are decoded whole, and from then on a look-up is a binary search and a few
loads. All that is held is memory of its own, and counted to the byte but for what Python's own objects take, which is
a constant here.
"""

from __future__ import annotations

import array
import struct
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from ..arrays import offsets_and_data
from .batches import to_batch
from .block import Block
from .entries import Entries
from .keys import common_prefix_length
from .strings import is_large, is_text
from .values import ENCODING_OFFSETS_32, ENCODING_OFFSETS_64, encoding_of

# About what the objects of Python and Arrow take that hold a block, its keys, or a column.
BLOCK_OVERHEAD_BYTES = 1_200
PIECE_OVERHEAD_BYTES = 800
# Numbers of a row that tells kernels where the keys of a block are, and where a column is.
KEY_PLACE, COLUMN_PLACE = 6, 4
# Types that Python reads of a buffer as they lie.
PYTHON_FORMATS = {pa.float32(): struct.Struct("<f"), pa.float64(): struct.Struct("<d")} | {
    kind: struct.Struct(f"<{form}")
    for kind, form in zip(
        [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
        "bhiqBHIQ",
        strict=True,
    )
}
_EIGHT = struct.Struct(">Q")
# One thread makes what others may already read by its address: a second one must not take its place.
_making = threading.Lock()


class HeldBlock:
    """A block in a cache. Its fields are set once, under the cache's lock, and read without.

    entries      how many
    size_bytes   all that is held, as counted by the cache
    touches      how often keys were looked for in it before they were decoded
    keys         decoded, or None
    columns      decoded, by their position in the schema
    row          what `row_in` takes; None before keys and all columns were decoded
    """

    __slots__ = ("_batch", "_stored", "columns", "entries", "keys", "row", "size_bytes", "touches")

    def __init__(self, block: Block):
        """`block`: over memory of its own, of which nothing is decoded."""
        self._stored = block
        self.entries = block.entries
        self.size_bytes = BLOCK_OVERHEAD_BYTES + block.length_bytes
        self.touches = 0
        self.keys: FlatKeys | None = None
        self.columns: dict[int, FlatColumn] = {}
        self.row: FlatRows | None = None
        self._batch: tuple[Sequence[int], pa.RecordBatch] | None = None

    @property
    def block(self) -> Block:
        """The block, to decode from; what it keeps of that is the caller's."""
        return self._stored.unread()

    def rows(self) -> FlatRows:
        """`row`, of keys and columns that are decoded."""
        assert self.keys is not None
        columns = [self.columns[position] for position in range(len(self.columns))]
        raw = columns[0].raw if len(columns) == 1 else None
        keys = self.keys
        words = keys.words()
        return words, self.entries, keys.shared_bytes, keys.data, keys.deleted, raw, [c.value for c in columns], keys

    def flat_keys(self) -> FlatKeys:
        """The keys, decoded."""
        block = self.block
        return FlatKeys(block.keys.to_arrow(), block.deleted())

    def flat_column(self, position: int) -> FlatColumn:
        """A column, decoded."""
        return FlatColumn(self.block.column(position).to_arrow(), pa.py_buffer(self._stored.stored))

    def batch(
        self, positions: Sequence[int], schema: pa.Schema, include_deleted: bool, low: int, high: int
    ) -> pa.RecordBatch:
        """The entries from `low` on, before `high`, of which keys and columns were decoded, over the memory that is
        held."""
        assert self.keys is not None
        deleted = self.keys.deleted
        if deleted is not None:
            entries = Entries(self.keys.array, [self.columns[p].array for p in positions], deleted)
            return to_batch(entries.slice(low, high - low), schema, include_deleted)
        whole = self._whole(positions, schema, include_deleted)
        return whole if high - low == self.entries else whole.slice(low, high - low)

    def _whole(self, positions: Sequence[int], schema: pa.Schema, include_deleted: bool) -> pa.RecordBatch:
        """All entries of a block without tombstones. The last batch made is kept: it takes no memory of its own, but
        for a column `deleted`."""
        kept = self._batch
        if kept is not None and kept[0] == positions and not include_deleted:
            return kept[1]
        assert self.keys is not None
        entries = Entries(self.keys.array, [self.columns[p].array for p in positions], None)
        made = to_batch(entries, schema, include_deleted)
        if not include_deleted:
            self._batch = positions, made
        return made


class FlatKeys:
    """The keys of a block, one after the other, and which of them are tombstones.

    array          binary [n]
    data           the bytes of all keys
    deleted        bool [n], or None where none is
    shared_bytes   how many leading bytes all keys share
    size_bytes     of what it holds
    """

    __slots__ = ("_offsets", "_place", "_places", "_words", "array", "data", "deleted", "shared_bytes", "size_bytes")

    def __init__(self, decoded: pa.BinaryArray, deleted: np.ndarray | None):
        offsets, view = offsets_and_data(decoded)
        first, last = int(offsets[0]), int(offsets[-1])
        self.data = bytes(view[first:last])
        own = np.array(offsets, dtype=np.int32)
        own -= np.int32(first)
        own.flags.writeable = False
        count = len(decoded)
        self.array = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(own), pa.py_buffer(self.data)], 0)
        self._offsets, self.deleted = own.data, deleted
        # The words are counted before they are there.
        more = 8 * (2 * count + 1) + PIECE_OVERHEAD_BYTES + (0 if deleted is None else deleted.nbytes)
        self.size_bytes = own.nbytes + len(self.data) + more
        self._words: array.array[int] | None = None
        self._place: tuple[int, ...] | None = None
        self._places = range(count)
        self.shared_bytes = common_prefix_length(self.at(0), self.at(count - 1))

    def at(self, position: int) -> bytes:
        """A key."""
        return self.data[self._offsets[position] : self._offsets[position + 1]]

    def words(self) -> array.array[int]:
        """uint64 [2 * n + 1]: of each key the 8 bytes after those that all share, as a big-endian number, zeros for
        bytes that it does not have, ascending; then where each key begins in `data`, and where the last ends."""
        if self._words is None:
            with _making:
                self._words = self._words or self._made_words()
        return self._words

    def _made_words(self) -> array.array[int]:
        offsets = np.frombuffer(self._offsets, dtype=np.int32)
        windows = np.ndarray((len(self.data) + 1, 8), np.uint8, self.data + bytes(8), strides=(1, 1))
        tails = windows[offsets[:-1] + np.int32(self.shared_bytes)].view(">u8").reshape(-1).astype(np.uint64)
        missing = 8 - np.minimum(np.diff(offsets) - np.int32(self.shared_bytes), 8)
        if missing.any():  # what stands there is of the next key
            bits = missing.astype(np.uint64) * np.uint64(8)
            tails = tails >> bits << bits
        return array.array("Q", tails.tobytes() + offsets.astype(np.uint64).tobytes())

    def place(self) -> tuple[int, ...]:
        """Where kernels find what they read: a row of `kernels_lookup.find`'s `places`."""
        if self._place is None:
            words, deleted = self.words(), self.deleted
            _, offsets, data = self.array.buffers()
            addresses = words.buffer_info()[0], offsets.address, data.address
            entries = len(self._places)
            self._place = entries, self.shared_bytes, *addresses, 0 if deleted is None else deleted.ctypes.data
        return self._place

    def lower_bound(self, key: bytes) -> int:
        """The first position whose key is not below `key`."""
        return bisect_left(self._places, key, key=self.at)

    def find(self, key: bytes) -> int:
        """Where a key is; -1 where it is not."""
        words, entries = self.words(), len(self._places)
        tail = key[self.shared_bytes : self.shared_bytes + 8].ljust(8, b"\0")
        number = int.from_bytes(tail, "big")
        at = bisect_left(words, number, 0, entries)
        if at == entries or words[at] != number:
            return -1
        # Other keys may have the same tail: they are told apart by later bytes, or by where they end.
        at = bisect_left(self._places, key, lo=at, key=self.at)
        return at if at < entries and self.at(at) == key else -1


# (words, entries, shared bytes, data, deleted) of keys; the bytes of the values where the only column is of numbers
# without nulls, or None; what gives the value of each column; the keys. A look-up waits for memory at every object that
# it goes through: these are as few as can be.
FlatRows = tuple[
    "array.array[int]",
    int,
    int,
    bytes,
    np.ndarray | None,
    bytes | None,
    Sequence[Callable[[int], object]],
    FlatKeys,
]


def row_in(rows: FlatRows, key: bytes, names: Sequence[str], form: struct.Struct | None) -> dict[str, object] | None:
    """The values of a key as Python objects, by the names of all columns; None where it is not there. `form`: of the
    only column, where it is of numbers."""
    words, entries, skip, data, deleted, raw, values, keys = rows
    try:
        at = bisect_left(words, _EIGHT.unpack_from(key, skip)[0], 0, entries)
    except struct.error:  # a shorter key
        at = entries
    if at == entries or data[words[entries + at] : words[entries + at + 1]] != key:
        at = keys.find(key)
        if at < 0:
            return None
    if deleted is not None and deleted[at]:
        return None
    if raw is not None and form is not None:
        return {names[0]: form.unpack_from(raw, at * form.size)[0]}
    return dict(zip(names, [value(at) for value in values], strict=True))


class FlatColumn:
    """A value column of a block.

    array        [n], at offset 0 of its buffers
    size_bytes   of its buffers
    value        of a position: the value as Python has it, None where null
    raw          the bytes of the values, where they are numbers that Python has as they lie, and none is null
    place        a row of `kernels_lookup.take_fixed`'s `places`: 1; the addresses of validity, offsets and values, 0
                 for what is not there
    """

    __slots__ = ("array", "place", "raw", "size_bytes", "value")

    def __init__(self, decoded: pa.Array, inside: pa.Buffer):
        """`inside`: the stored block; a column that lies in it takes no memory of its own."""
        if decoded.offset:
            decoded = pa.concat_arrays([decoded.slice(0, 0), decoded])
        self.raw: bytes | None = None
        if decoded.type in PYTHON_FORMATS and not decoded.null_count:
            self.raw = decoded.buffers()[1][: decoded.nbytes].to_pybytes()
            buffers = [None, pa.py_buffer(self.raw)]
            decoded = pa.Array.from_buffers(decoded.type, len(decoded), buffers, 0)
        self.array = decoded
        buffers = decoded.buffers()
        if len(buffers) == 2:  # of fixed width: no offsets
            buffers.insert(1, None)
        if not decoded.null_count:
            buffers[0] = None
        self.place = 1, *(0 if buffer is None else buffer.address for buffer in buffers)
        self.size_bytes = PIECE_OVERHEAD_BYTES + own_bytes(decoded, inside)
        self.value = python_values(decoded)


def own_bytes(array: pa.Array, inside: pa.Buffer) -> int:
    """The memory that the buffers of an array keep alive, but for that of `inside`."""
    roots = {}
    for buffer in array.buffers():
        while buffer is not None and buffer.parent is not None:
            buffer = buffer.parent
        if buffer is not None and not inside.address <= buffer.address < inside.address + max(inside.size, 1):
            roots[buffer.address] = buffer.size
    return sum(roots.values())


def python_values(array: pa.Array) -> Callable[[int], object]:
    """A function of a position that gives the value there as a Python object: quickly, where the type allows it. A
    value that Python's own type cannot hold comes as a pyarrow Scalar. `array` is at offset 0 of its buffers."""
    plain = _plain_values(array)
    if plain is None:
        return lambda i: as_python(array[i])
    if not array.null_count:
        return plain
    bits = memoryview(array.buffers()[0]).cast("B")
    return lambda i: plain(i) if bits[i >> 3] >> (i & 7) & 1 else None


def _plain_values(array: pa.Array) -> Callable[[int], object] | None:
    """`python_values` of an array without nulls; None for types that take more than a load."""
    kind, form = array.type, PYTHON_FORMATS.get(array.type)
    if form is not None:
        return np.frombuffer(array.buffers()[1], form.format, len(array)).data.__getitem__
    if encoding_of(kind) not in (ENCODING_OFFSETS_32, ENCODING_OFFSETS_64):
        return None
    starts = np.frombuffer(array.buffers()[1], np.int64 if is_large(kind) else np.int32, len(array) + 1).data
    data = memoryview(array.buffers()[2] or b"")
    if is_text(kind):
        return lambda i: str(data[starts[i] : starts[i + 1]], "utf-8")
    return lambda i: bytes(data[starts[i] : starts[i + 1]])


def as_python(value: pa.Scalar) -> object:
    """A scalar as Python's own type; as it is where that cannot hold it."""
    try:
        return value.as_py()
    except (ValueError, ArithmeticError, LookupError, pa.ArrowException):
        # LookupError: a zone that Python does not know.
        return value
