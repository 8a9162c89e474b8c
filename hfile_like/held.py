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
    row          of a key: the values as Python objects by name, None where it is not there. None before keys and all
                 columns were decoded
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
        self.row: Callable[[bytes], dict[str, object] | None] | None = None
        self._batch: tuple[Sequence[int], pa.RecordBatch] | None = None

    @property
    def block(self) -> Block:
        """The block, to decode from; what it keeps of that is the caller's."""
        return self._stored.unread()

    def put_row(self, names: Sequence[str]) -> None:
        """Sets `row`, once keys and all columns were decoded. `names`: of the columns."""
        assert self.keys is not None
        self.row = _row_getter(self.keys, names, [self.columns[position].value for position in range(len(names))])

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
    deleted        bool [n], or None where none is
    at             of a position: the key there
    shared_bytes   how many leading bytes all keys share
    size_bytes     of what it holds
    """

    __slots__ = (
        *("_data", "_offsets", "_place", "_places", "_tails"),
        *("array", "at", "deleted", "shared_bytes", "size_bytes"),
    )

    def __init__(self, decoded: pa.BinaryArray, deleted: np.ndarray | None):
        offsets, view = offsets_and_data(decoded)
        first, last = int(offsets[0]), int(offsets[-1])
        data = bytes(view[first:last])
        own = np.array(offsets, dtype=np.int32)
        own -= np.int32(first)
        own.flags.writeable = False
        buffer = pa.py_buffer(data)
        self.array = pa.Array.from_buffers(pa.binary(), len(decoded), [None, pa.py_buffer(own), buffer], 0)
        self._offsets, self._data, self.deleted = own, data, deleted
        # The tails are counted before they are there.
        more = 8 * len(decoded) + PIECE_OVERHEAD_BYTES + (0 if deleted is None else deleted.nbytes)
        self.size_bytes = own.nbytes + len(data) + more
        self._tails: array.array[int] | None = None
        self._place: tuple[int, ...] | None = None
        self._places = range(len(decoded))
        width = len(data) // len(decoded)
        lengths = own[1:] - own[:-1]
        if (lengths == width).all():
            self.at: Callable[[int], bytes] = lambda i: data[i * width : i * width + width]
        else:
            starts = own.data
            self.at = lambda i: data[starts[i] : starts[i + 1]]
        self.shared_bytes = common_prefix_length(self.at(0), self.at(len(decoded) - 1))

    def tails(self) -> array.array[int]:
        """uint64 [n], ascending: of each key the 8 bytes after those that all share, as a big-endian number, zeros for
        bytes that it does not have."""
        if self._tails is None:
            with _making:
                self._tails = self._tails or self._made_tails()
        return self._tails

    def _made_tails(self) -> array.array[int]:
        padded = self._data + bytes(8)
        windows = np.ndarray((len(self._data) + 1, 8), np.uint8, padded, strides=(1, 1))
        words = windows[self._offsets[:-1] + np.int32(self.shared_bytes)].view(">u8").reshape(-1).astype(np.uint64)
        missing = 8 - np.minimum(np.diff(self._offsets) - np.int32(self.shared_bytes), 8)
        if missing.any():  # what stands there is of the next key
            bits = missing.astype(np.uint64) * np.uint64(8)
            words = words >> bits << bits
        return array.array("Q", words.tobytes())

    def place(self) -> tuple[int, ...]:
        """Where kernels find what they read: a row of `kernels_lookup.find`'s `places`."""
        if self._place is None:
            tails, deleted = self.tails(), self.deleted
            _, offsets, data = self.array.buffers()
            addresses = tails.buffer_info()[0], offsets.address, data.address
            self._place = len(tails), self.shared_bytes, *addresses, 0 if deleted is None else deleted.ctypes.data
        return self._place

    def lower_bound(self, key: bytes) -> int:
        """The first position whose key is not below `key`."""
        return bisect_left(self._places, key, key=self.at)

    def find(self, key: bytes) -> int:
        """Where a key is; -1 where it is not."""
        tails = self.tails()
        tail = key[self.shared_bytes : self.shared_bytes + 8].ljust(8, b"\0")
        number = int.from_bytes(tail, "big")
        at = bisect_left(tails, number)
        if at == len(tails) or tails[at] != number:
            return -1
        # Other keys may have the same tail: they are told apart by later bytes, or by where they end.
        at = bisect_left(self._places, key, lo=at, key=self.at)
        return at if at < len(tails) and self.at(at) == key else -1


def _row_getter(
    keys: FlatKeys, names: Sequence[str], values: Sequence[Callable[[int], object]]
) -> Callable[[bytes], dict[str, object] | None]:
    """A function of a key: see `HeldBlock.row`. What it needs is bound to it, since a look-up waits for every object
    that it has to go through."""
    tails, entries, key_at, deleted, skip = keys.tails(), len(keys.array), keys.at, keys.deleted, keys.shared_bytes
    only, first = (names[0], values[0]) if len(names) == 1 else (None, None)

    def row(key: bytes) -> dict[str, object] | None:
        try:
            at = bisect_left(tails, _EIGHT.unpack_from(key, skip)[0])
        except struct.error:  # a shorter key
            at = entries
        if at == entries or key_at(at) != key:
            at = keys.find(key)
            if at < 0:
                return None
        if deleted is not None and deleted[at]:
            return None
        if only is not None and first is not None:
            return {only: first(at)}
        return dict(zip(names, [value(at) for value in values], strict=True))

    return row


class FlatColumn:
    """A value column of a block.

    array        [n], at offset 0 of its buffers
    size_bytes   of its buffers
    value        of a position: the value as Python has it, None where null
    place        a row of `kernels_lookup.take_fixed`'s `places`: 1; the addresses of validity, offsets and values, 0
                 for what is not there
    """

    __slots__ = ("array", "place", "size_bytes", "value")

    def __init__(self, decoded: pa.Array, inside: pa.Buffer):
        """`inside`: the stored block; a column that lies in it takes no memory of its own."""
        if decoded.offset:
            decoded = pa.concat_arrays([decoded.slice(0, 0), decoded])
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
