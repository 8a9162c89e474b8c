"""How a block is written: which encoding its keys and each value column take, and their sections one after the other.

What the sections look like is in `block`, `keys` and `values`, which read them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import byte_table, fixed_rows, is_text, offsets_and_data, to_numpy, valid_mask
from . import codec, integers
from .block import ENCODING_BITMAP, ENCODING_NONE, HEAD, SECTION
from .codec import GAIN_THIRD, Compressor, Encoded, padding
from .keys import (
    BUNDLE_HEAD,
    BUNDLE_KEYS,
    ENCODING_BUNDLE,
    ENCODING_FIXED,
    ENCODING_NUMBERS,
    FIXED_HEAD,
    LENGTH_TYPES,
    NUMBER_BYTES,
    NUMBERS_HEAD,
    common_prefix_length,
)
from .name_encoding import NameEncoder
from .values import (
    DICTIONARY_MAX,
    ENCODING_ALL_NULL,
    ENCODING_BITS,
    ENCODING_CONSTANT_BOOL,
    ENCODING_DICTIONARY,
    ENCODING_FRAME,
    ENCODING_NAMES,
    ENCODING_PLANES,
    FLAG_VALIDITY,
    encoding_of,
    integer_dtype,
)
from .values import ENCODING_FIXED as VALUES_FIXED

# Smaller sections cost little to try.
_PAUSE_ABOVE_BYTES = 1024
_PAUSE_MAX = 15
# What saves less than one part in so many will do no better in the next block.
_HOPELESS_GAIN = 48
_SAMPLE_ROWS = 512
ALL_NULL = Encoded(ENCODING_ALL_NULL, 0, b"")


class Encoders:
    """What the encoders of a file's columns remember of the blocks before."""

    def __init__(self, columns: int, *, templates: bool = True):
        self.names = [NameEncoder(is_looking=templates) for _ in range(columns)]
        self.packers = [Packer() for _ in range(2 + columns)]


class Packer:
    """Compresses one section of block after block; where that gained nothing, it is not tried on the next few."""

    def __init__(self) -> None:
        self._blocks_left = self._pause = 0

    def pack(self, section: Encoded, compressor: Compressor | None) -> tuple[int, bytes | memoryview]:
        """As `codec.compress`."""
        if compressor is None:
            return codec.CODEC_RAW, section.raw
        if self._blocks_left:
            self._blocks_left -= 1
            return codec.CODEC_RAW, section.raw
        packed = codec.compress(section.raw, compressor, _HOPELESS_GAIN, section.tail_bytes)
        if packed[0] == codec.CODEC_RAW:
            self._pause = 0 if len(section.raw) < _PAUSE_ABOVE_BYTES else min(2 * self._pause + 1, _PAUSE_MAX)
            self._blocks_left = self._pause
            return packed
        self._pause = 0
        most = len(section.raw) - (len(section.raw) - section.tail_bytes) // section.gain
        return packed if len(packed[1]) <= most else (codec.CODEC_RAW, section.raw)


def marks_section(deleted: np.ndarray | None) -> Encoded:
    """That of tombstones, bool [n]; None where nothing is deleted."""
    if deleted is None or not deleted.any():
        return Encoded(ENCODING_NONE, 0, b"")
    return Encoded(ENCODING_BITMAP, 0, np.packbits(deleted, bitorder="little").tobytes())


def build_block(
    offset: int, count: int, sections: Sequence[Encoded], compressor: Compressor | None, packers: Sequence[Packer]
) -> bytes:
    """The bytes of a block of so many entries that will lie at `offset`: sections of its tombstones, its keys and each
    value column, and what packs each."""
    directory, bodies = [], []
    position = HEAD.size + SECTION.size * len(sections)
    for section, packer in zip(sections, packers, strict=True):
        packed_as, stored = packer.pack(section, compressor)
        body = b"".join((stored, codec.padding(len(stored))))
        checksum = codec.checksum_at(offset + position, body)
        sizes = len(stored), len(section.raw)
        directory.append(SECTION.pack(packed_as, section.encoding, section.flags, *sizes, checksum))
        bodies.append(body)
        position += len(body)
    head = b"".join((HEAD.pack(0, position, count, len(sections), 0)[4:], *directory))
    return b"".join((codec.checksum_at(offset, head).to_bytes(4, "little"), head, *bodies))


# -- keys --------------------------------------------------------------------------------------------------------------


def encode_keys(keys: pa.BinaryArray, compressor: Compressor | None) -> Encoded:
    """The keys of a block, ascending and at least one: of one length, as numbers or transposed; else in bundles.
    `compressor`: that of the block, which decides between numbers and transposed bytes."""
    lengths = np.diff(offsets_and_data(keys)[0])
    width = int(lengths[0])
    if not width or not (lengths == width).all():
        return Encoded(ENCODING_BUNDLE, 0, encode_bundles(keys))
    if width - common_prefix_length(keys[0].as_py(), keys[len(keys) - 1].as_py()) > NUMBER_BYTES:
        return Encoded(ENCODING_FIXED, 0, encode_fixed(keys))
    numbers = encode_numbers(keys, width)
    if len(numbers) >= NUMBERS_HEAD.size + width - NUMBER_BYTES + len(keys):  # they are on no line
        fixed = encode_fixed(keys)
        # Numbers are read faster: they may take half as much again.
        if 2 * len(numbers) > 3 * len(codec.compress(fixed, compressor)[1]):
            return Encoded(ENCODING_FIXED, 0, fixed)
    return Encoded(ENCODING_NUMBERS, 0, numbers, GAIN_THIRD)


def encode_numbers(keys: pa.BinaryArray, width: int) -> bytes:
    """Encoding 3, of keys of `width` bytes that differ in their last 8 at most."""
    table = _table(keys)
    padded = np.zeros((len(keys), NUMBER_BYTES), dtype=np.uint8)
    last = min(width, NUMBER_BYTES)
    padded[:, :last] = table[:, : width - last - 1 : -1] if width > last else table[:, ::-1]
    frame = integers.encode_frame(padded.reshape(-1).view("<u8"))
    head = width.to_bytes(8, "little") + frame[:16] + table[0, : width - last].tobytes()
    return b"".join((head, padding(len(head)), frame[16:]))


def encode_fixed(keys: pa.BinaryArray) -> bytes:
    """Encoding 1, of keys of one length."""
    first, last = keys[0].as_py(), keys[len(keys) - 1].as_py()
    width, shared = len(first), common_prefix_length(first, last)
    transposed = np.ascontiguousarray(_table(keys)[:, shared:].T)
    return FIXED_HEAD.pack(width, shared) + first[:shared] + transposed.tobytes()


def _table(keys: pa.BinaryArray) -> np.ndarray:
    """uint8 [n, width] of keys of one width."""
    table = byte_table(keys)
    assert table is not None, "keys of one length have a table"
    return table


def encode_bundles(keys: pa.BinaryArray) -> bytes:
    """Encoding 2."""
    count = len(keys)
    offsets, buffer = offsets_and_data(keys)
    data = bytes(buffer[int(offsets[0]) : int(offsets[-1])])
    based = (offsets - offsets[0]).tolist()
    starts, ends = based[:-1], based[1:]
    block_prefix = common_prefix_length(data[starts[0] : ends[0]], data[starts[-1] : ends[-1]])
    heads, head_lengths, cuts = [], [], []
    for low in range(0, count, BUNDLE_KEYS):
        high = min(low + BUNDLE_KEYS, count) - 1
        first = data[starts[low] : ends[low]]
        # The last key of a bundle of one would share all of itself: leave the suffix to hold it.
        shared = common_prefix_length(first, data[starts[high] : ends[high]]) if high > low else block_prefix
        heads.append(first[block_prefix:shared])
        head_lengths.append(shared - block_prefix)
        cuts.extend([shared] * (high - low + 1))
    suffixes = [data[s + c : e] for s, c, e in zip(starts, cuts, ends, strict=True)]
    head_width, head_lengths_bytes = pack_lengths(np.array(head_lengths))
    suffix_width, suffix_lengths_bytes = pack_lengths(np.array([len(s) for s in suffixes]))
    return b"".join(
        (
            BUNDLE_HEAD.pack(block_prefix, head_width, suffix_width, 0),
            data[starts[0] : starts[0] + block_prefix],
            head_lengths_bytes,
            suffix_lengths_bytes,
            *heads,
            *suffixes,
        )
    )


def pack_lengths(lengths: np.ndarray) -> tuple[int, bytes]:
    """The width of lengths, 1, 2 or 4 bytes, and their bytes."""
    largest = int(lengths.max())
    width = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
    return width, lengths.astype(LENGTH_TYPES[width]).tobytes()


# -- value columns -----------------------------------------------------------------------------------------------------


def encode_column(column: pa.Array, is_compact: bool = False, names: NameEncoder | None = None) -> Encoded:
    """One value column of a block; `is_compact`: integers should take few bytes rather than be quick to read;
    `names`: that of the column's blocks before."""
    if column.null_count == len(column):
        return ALL_NULL
    valid = valid_mask(column)
    return _with_validity(_encode_values(column, valid, is_compact, names or NameEncoder()), valid)


def encode_names(column: pa.Array, valid: np.ndarray | None, names: NameEncoder, most_bytes: int) -> Encoded | None:
    """A column of strings or bytes, not all null, by a template; None where there is none, or it takes more than
    `most_bytes` beside the validity."""
    encoded = names.encode(column, valid)
    if encoded is None or len(encoded[0]) > most_bytes:
        return None
    return _with_validity(Encoded(ENCODING_NAMES, 0, encoded[0], GAIN_THIRD, encoded[1]), valid)


def _with_validity(section: Encoded, valid: np.ndarray | None) -> Encoded:
    if valid is None:
        return section
    bitmap = np.packbits(valid, bitorder="little").tobytes()
    return section._replace(flags=FLAG_VALIDITY, raw=b"".join((bitmap, padding(len(bitmap)), section.raw)))


def _encode_values(column: pa.Array, valid: np.ndarray | None, is_compact: bool, names: NameEncoder) -> Encoded:
    encoding = encoding_of(column.type)
    assert encoding is not None, f"check_schema lets {column.type} pass"
    if encoding == ENCODING_BITS:
        flags = to_numpy(column)
        live = flags if valid is None else flags[valid]
        if live.all() or not live.any():
            return Encoded(ENCODING_CONSTANT_BOOL, 0, bytes([bool(live[0])]))
        return Encoded(ENCODING_BITS, 0, np.packbits(flags, bitorder="little").tobytes())
    if encoding == VALUES_FIXED:
        rows = fixed_rows(column)
        dtype = integer_dtype(column.type)
        if dtype is not None:
            numbers = rows.reshape(-1).view(dtype)
            if is_compact:
                line = integers.sloped(numbers) if valid is None else integers.flat(numbers, valid)
            if is_compact and line.items is not None:
                head = line.base.to_bytes(8, "little") + line.step.to_bytes(8, "little")
                return Encoded(ENCODING_PLANES, 0, head + integers.planes(line, len(numbers)))
            # A frame of any width is read sooner than plain values: of a million int64, checked and joined into a
            # batch, one takes 0.9 ns at 0 bytes, 1.5 at 1, 1.9 at 4, 2.4 at 5, 3.4 at 6, and 4.3 plain.
            frame = integers.encode_frame(numbers, valid)
            if len(frame) < rows.size:
                return Encoded(ENCODING_FRAME, 0, frame, GAIN_THIRD)
        return _encode_fixed(rows, valid)
    by_dictionary, plain_bytes = _encode_dictionary(column, valid), _plain_bytes(column, valid)
    most = plain_bytes if by_dictionary is None else min(plain_bytes, len(by_dictionary) - 1)
    as_names = names.encode(column, valid)
    if as_names is not None and len(as_names[0]) <= most:
        return Encoded(ENCODING_NAMES, 0, as_names[0], GAIN_THIRD, as_names[1])
    if by_dictionary is not None and len(by_dictionary) <= plain_bytes:
        return Encoded(ENCODING_DICTIONARY, 0, by_dictionary)
    return Encoded(encoding, 0, _encode_plain(column, valid))


def _encode_fixed(rows: np.ndarray, valid: np.ndarray | None) -> Encoded:
    return Encoded(VALUES_FIXED, 0, (rows if valid is None else rows * valid[:, None]).tobytes())


def _plain_bytes(column: pa.Array, valid: np.ndarray | None) -> int:
    """What `_encode_plain` gives, in bytes."""
    offsets, _ = offsets_and_data(column)
    live = int(offsets[-1]) - int(offsets[0]) if valid is None else int(np.diff(offsets)[valid].sum(dtype=np.int64))
    size = offsets.nbytes
    return size + len(padding(size)) + live


def _encode_plain(column: pa.Array, valid: np.ndarray | None) -> bytes:
    """Offsets and bytes of a column; what lies under a null is empty."""
    if valid is not None:
        column = pc.fill_null(column, pa.scalar("" if is_text(column.type) else b"", column.type))
    offsets, data = offsets_and_data(column)
    based = (offsets - offsets[0]).tobytes()
    return b"".join((based, padding(len(based)), data[int(offsets[0]) : int(offsets[-1])]))


def _encode_dictionary(column: pa.Array, valid: np.ndarray | None) -> bytes | None:
    """Values and codes of a column; None where there are more than 256 values."""
    if len(column) > _SAMPLE_ROWS and len(column[:_SAMPLE_ROWS].drop_null().unique()) > DICTIONARY_MAX:
        return None
    encoded = column.dictionary_encode()
    values = encoded.dictionary
    if len(values) > DICTIONARY_MAX:
        return None
    offsets, data = offsets_and_data(values)
    codes = to_numpy(encoded.indices).astype(np.uint8)
    codes = codes if valid is None else codes * valid
    items = [data[int(offsets[i]) : int(offsets[i + 1])] for i in range(len(values))]
    lengths = np.array([len(items), *map(len, items)], dtype="<u4").tobytes()
    return b"".join((lengths, *items, codes.tobytes() if len(items) > 1 else b""))
