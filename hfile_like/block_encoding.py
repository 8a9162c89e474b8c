"""How a block is written: which encoding its keys and each value column take, and their sections one after the other.

What the sections look like is in `block`, `keys` and `values`, which read them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import byte_table, fixed_rows, is_text, offsets_and_data, to_numpy, valid_mask
from ..lazy import kernels_for, read_only
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
# About what a key costs without compiled code.
_BUNDLING_PLAIN_NS = 170
# About what a column of values of one width costs without compiled code, however many they are.
_FIXED_PLAIN_NS = 60_000
_NO_BITS = read_only(b"")
_SAMPLE_ROWS = 512


class Encoders:
    """What the encoders of a file's columns remember of the blocks before."""

    def __init__(self, columns: int):
        self.names = [NameEncoder() for _ in range(columns)]
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


def build_block(
    offset: int,
    block_keys: pa.BinaryArray,
    columns: Sequence[pa.Array],
    deleted: np.ndarray | None,
    compressor: Compressor | None,
    compact: Collection[int] = (),
    *,
    encoders: Encoders | None = None,
) -> bytes:
    """The bytes of a block that will lie at `offset`. `deleted` is bool [n], or None where nothing is deleted;
    `compact`: positions of columns that should take few bytes rather than be quick to read; `encoders`: the file's,
    that know the blocks before, or None for a block alone."""
    if encoders is None:
        encoders = Encoders(len(columns))
    sections = [Encoded(ENCODING_NONE, 0, b"")]
    if deleted is not None and deleted.any():
        sections = [Encoded(ENCODING_BITMAP, 0, np.packbits(deleted, bitorder="little").tobytes())]
    sections.append(encode_keys(block_keys, compressor))
    sections.extend(
        encode_column(column, i in compact, names)
        for i, (column, names) in enumerate(zip(columns, encoders.names, strict=True))
    )
    directory, bodies = [], []
    position = HEAD.size + SECTION.size * len(sections)
    for section, packer in zip(sections, encoders.packers, strict=True):
        packed_as, stored = packer.pack(section, compressor)
        body = b"".join((stored, codec.padding(len(stored))))
        checksum = codec.checksum_at(offset + position, body)
        sizes = len(stored), len(section.raw)
        directory.append(SECTION.pack(packed_as, section.encoding, section.flags, *sizes, checksum))
        bodies.append(body)
        position += len(body)
    head = b"".join((HEAD.pack(0, position, len(block_keys), len(sections), 0)[4:], *directory))
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
    kernels = kernels_for("hfile_like.kernels_keys", _BUNDLING_PLAIN_NS * len(keys))
    if kernels is None:
        return encode_bundles_plainly(keys)
    offsets, data = offsets_and_data(keys)
    window = offsets.view()
    window.flags.writeable = False
    bundles = len(keys) // 16 + 1
    out = np.empty(32 + 4 * bundles + 4 * len(keys) + int(offsets[-1]) - int(offsets[0]), dtype=np.uint8)
    size = kernels.encode_bundles(read_only(data), window, np.empty(bundles, dtype=np.int64), out)
    return out[:size].tobytes()


def encode_bundles_plainly(keys: pa.BinaryArray) -> bytes:
    """The twin of the compiled `encode_bundles`."""
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
        return Encoded(ENCODING_ALL_NULL, 0, b"")
    fixed = None if is_compact else _encode_fixed_quickly(column)
    if fixed is not None:
        return fixed
    valid = valid_mask(column)
    piece = _encode_values(column, valid, is_compact, names or NameEncoder())
    if valid is None:
        return piece
    bitmap = np.packbits(valid, bitorder="little").tobytes()
    return piece._replace(flags=FLAG_VALIDITY, raw=b"".join((bitmap, padding(len(bitmap)), piece.raw)))


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
    best: Encoded | None = None
    by_dictionary = _encode_dictionary(column, valid)
    if by_dictionary is not None:
        best = Encoded(ENCODING_DICTIONARY, 0, by_dictionary)
    as_names = names.encode(column, valid)
    if as_names is not None and (best is None or len(as_names[0]) < len(best.raw)):
        best = Encoded(ENCODING_NAMES, 0, as_names[0], GAIN_THIRD, as_names[1])
    if best is not None and len(best.raw) <= _plain_bytes(column, valid):
        return best
    return Encoded(encoding, 0, _encode_plain(column, valid))


def _encode_fixed_quickly(column: pa.Array) -> Encoded | None:
    """A column of values of one width, not all null; None where it is another, or the plain twin is the better
    choice."""
    if encoding_of(column.type) != VALUES_FIXED:
        return None
    kernels = kernels_for("hfile_like.kernels_columns", _FIXED_PLAIN_NS)
    validity, data = column.buffers()
    if kernels is None or data is None:
        return None
    count, width, dtype = len(column), column.type.byte_width, integer_dtype(column.type)
    bits = _NO_BITS if validity is None or not column.null_count else read_only(validity)
    out = np.empty(48 + count // 8 + count * (width + 8), dtype=np.uint8)
    is_signed = dtype is not None and dtype.kind == "i"
    size, is_frame = kernels.encode_fixed(
        read_only(data), column.offset * width, count, width, dtype is not None, is_signed, bits, column.offset, out
    )
    flags = FLAG_VALIDITY if len(bits) else 0
    raw = out[:size].tobytes()
    return Encoded(ENCODING_FRAME, flags, raw, GAIN_THIRD) if is_frame else Encoded(VALUES_FIXED, flags, raw)


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
