"""Checksums and compression: what every stored piece of a sorted-block file shares.

A checksum is bound to its place: `crc32(stored bytes) ^ crc32(offset as 8 little-endian bytes)`. So a whole piece
that lies where another should is found, and a piece that is copied to another offset is bound again by two
exclusive ors, without reading it.

Nothing here trusts a length. What a piece claims to be when decompressed is bounded by a cap, by what zstandard can
reach at all, and by what its frame says, before a byte is allocated.
"""

from __future__ import annotations

import itertools
import threading
import zlib
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import zstandard

from ..arrays import is_text
from ..errors import CorruptionError
from ..lazy import kernels_for, read_only

CODEC_RAW = 0
CODEC_ZSTD = 1
CODEC_ZSTD_HEAD = 2
ZSTD_LEVEL = 1

# A zstandard block of 4 bytes decodes to at most 128 KiB.
_ZSTD_RATIO_MAX = 32_768
# What lies by itself (the footer, a meta, a node) may come to so many bytes more than twice what is stored. A writer
# stores it as it is where it would come to more.
_GROWTH_BYTES_MAX = 1 << 24
_COMPRESS_MIN_BYTES = 48
# What is read at the speed of memory as it lies is compressed only where that saves a third; other pieces, a sixteenth.
GAIN_LEAST = 16
GAIN_THIRD = 3

# Of what is shorter zlib's is as fast; it takes a nanosecond for so many bytes.
_CRC_PLAIN_BYTES, _CRC_BYTES_A_NS = 1 << 13, 2
_ROW_CRC_NS = 300  # of a short row among many

_local = threading.local()


class Where(NamedTuple):
    """A place in a file, for errors."""

    path: str | None
    offset: int

    def bad(self, check: str, message: str) -> CorruptionError:
        """A CorruptionError for this place; `check` names the check that failed."""
        return CorruptionError(
            f"{message}; the file is damaged: restore or rebuild it", path=self.path, offset=self.offset, check=check
        )


class Piece(NamedTuple):
    """Bytes that lie by themselves, compressed or not, with a checksum: a meta, say.

    offset, stored   where, and how many bytes
    plain            bytes once decompressed
    """

    offset: int
    stored: int
    plain: int
    checksum: int
    codec: int


class Encoded(NamedTuple):
    """A section of a block before compression, or once decompressed. `gain`, `tail_bytes`: for `compress`."""

    encoding: int
    flags: int
    raw: bytes | memoryview
    gain: int = GAIN_LEAST
    tail_bytes: int = 0


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """zlib's, of much data by compiled code. `before`: that of what comes before."""
    if len(data) > _CRC_PLAIN_BYTES:
        kernels = kernels_for("hfile_like.kernels_blocks", len(data) // _CRC_BYTES_A_NS)
        if kernels is not None and kernels.HAS_CRC32:
            return int(kernels.crc32(read_only(data), before))
    return zlib.crc32(data, before)


def place_crc(offset: int) -> int:
    """The part of a checksum that binds it to its offset."""
    return zlib.crc32(offset.to_bytes(8, "little"))


def checksum_at(offset: int, *parts: bytes | memoryview) -> int:
    """The checksum of the bytes `parts`, one after the other, stored for the place `offset`."""
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return crc ^ place_crc(offset)


def place_crcs(offsets: np.ndarray) -> np.ndarray:
    """uint32 [n]: `place_crc` of each offset. A CRC is affine, so 8 tables of 256 entries give it bytewise."""
    tables = _place_tables()
    by_byte = np.ascontiguousarray(offsets, dtype="<u8").view(np.uint8).reshape(-1, 8)
    crcs = np.full(len(by_byte), place_crc(0), dtype=np.uint32)
    for position in range(8):
        crcs ^= tables[position][by_byte[:, position]]
    return crcs


def row_checksums(rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """uint32 [n]: the checksums of the rows of uint8 [n, stride] that lie at `offsets`."""
    kernels = kernels_for("hfile_like.kernels_blocks", len(rows) * _ROW_CRC_NS)
    if kernels is not None and kernels.HAS_CRC32:
        sums = np.empty(len(rows), dtype=np.uint32)
        kernels.row_crc32s(read_only(rows), sums)
    else:
        sums = np.fromiter(map(zlib.crc32, rows), dtype=np.uint32, count=len(rows))
    return sums ^ place_crcs(offsets)


def _place_tables() -> np.ndarray:
    tables = getattr(_local, "place_tables", None)
    if tables is None:
        zero = place_crc(0)
        tables = np.array([[place_crc(v << (8 * p)) ^ zero for v in range(256)] for p in range(8)], dtype=np.uint32)
        _local.place_tables = tables
    return tables


def padding(length_bytes: int) -> bytes:
    """The zero bytes that bring a length to a multiple of 8."""
    return bytes(-length_bytes % 8)


def aligned(raw: memoryview | bytes) -> pa.Buffer:
    """Bytes as Arrow wants them: at an address that is a multiple of 8. A piece of a range read may lie elsewhere, and
    is copied."""
    buffer = pa.py_buffer(raw)
    return buffer if buffer.address % 8 == 0 else pa.py_buffer(bytes(raw))


Compressor = zstandard.ZstdCompressor


def compressor_of(compression: str) -> Compressor | None:
    """That of "zstd", for one thread at a time; None for "none"."""
    return None if compression == "none" else zstandard.ZstdCompressor(level=ZSTD_LEVEL)


def compress(
    data: bytes | memoryview, compressor: Compressor | None, gain: int = GAIN_LEAST, tail_bytes: int = 0
) -> tuple[int, bytes | memoryview]:
    """(codec, stored bytes). Raw where there is no compressor, or compression gains less than one part in `gain`.
    `tail_bytes`: so many bytes at the end will not compress: only those before are tried."""
    head_bytes = len(data) - tail_bytes
    if compressor is None or head_bytes < _COMPRESS_MIN_BYTES:
        return CODEC_RAW, data
    if tail_bytes:
        head = compressor.compress(data[:head_bytes])
        if len(head) + 4 > head_bytes - head_bytes // gain:
            return CODEC_RAW, data
        return CODEC_ZSTD_HEAD, b"".join((len(head).to_bytes(4, "little"), head, data[head_bytes:]))
    packed = compressor.compress(data)
    return (CODEC_ZSTD, packed) if len(packed) <= len(data) - len(data) // gain else (CODEC_RAW, data)


def decompress(stored: memoryview, codec: int, raw_length: int, cap: int, where: Where) -> memoryview | bytes:
    """The plain bytes of a stored piece: the same memory where it is raw. Raises CorruptionError."""
    if codec == CODEC_RAW:
        if raw_length != len(stored):
            raise where.bad("raw length", f"an uncompressed piece of {len(stored)} bytes claims {raw_length}")
        return stored
    if codec == CODEC_ZSTD_HEAD:
        return b"".join(_decompress_head(stored, raw_length, cap, where))
    if codec != CODEC_ZSTD:
        raise where.bad("codec", f"compression id {codec} is not known")
    if raw_length > cap or raw_length > _ZSTD_RATIO_MAX * (len(stored) + 1):
        raise where.bad("decompressed size", f"{len(stored)} compressed bytes claim to be {raw_length}")
    try:
        if zstandard.frame_content_size(stored) != raw_length:
            raise where.bad("decompressed size", f"a compressed piece is not of the {raw_length} bytes it claims")
        plain = _decompressor().decompress(stored)
    except zstandard.ZstdError as error:
        raise where.bad("zstandard frame", f"a piece does not decompress ({error})") from None
    if len(plain) != raw_length:
        raise where.bad("decompressed size", f"a compressed piece gave {len(plain)} bytes for {raw_length}")
    return plain


def piece_of(data: bytes, offset: int, compressor: Compressor | None) -> tuple[Piece, bytes | memoryview]:
    """(handle, stored bytes) of a piece that will lie at `offset`."""
    packed_as, stored = compress(data, compressor)
    if packed_as != CODEC_RAW and len(data) > plain_bytes_max(len(stored)):
        packed_as, stored = CODEC_RAW, data
    return Piece(offset, len(stored), len(data), checksum_at(offset, stored), packed_as), stored


def open_piece(data: memoryview, piece: Piece, what: str, where: Where) -> memoryview | bytes:
    """The plain bytes of a piece whose stored ones are `data`; `what` names it in errors. Raises CorruptionError."""
    if checksum_at(piece.offset, data) != piece.checksum:
        raise where.bad(f"{what} checksum", f"the {what}'s checksum does not match")
    return decompress(data, piece.codec, piece.plain, plain_bytes_max(len(data)), where)


def plain_bytes_max(stored_bytes: int) -> int:
    """What a piece of so many stored bytes may come to."""
    return _GROWTH_BYTES_MAX + 2 * stored_bytes


class Halves:
    """The plain bytes of a piece of which only the head was compressed, not joined: the tail is most of it, and lies in
    what was read. A cut is a view of one half, or a copy where it takes in some of both."""

    def __init__(self, head: bytes | memoryview, tail: memoryview):
        self._head, self._tail = memoryview(head), tail

    @property
    def parts(self) -> tuple[memoryview, memoryview]:
        """Both halves."""
        return self._head, self._tail

    def __len__(self) -> int:
        return len(self._head) + len(self._tail)

    def __getitem__(self, cut: slice) -> memoryview:
        start, stop, _ = cut.indices(len(self))
        middle = len(self._head)
        if start >= middle:
            return self._tail[start - middle : max(start, stop) - middle]
        if stop <= middle:
            return self._head[start:stop]
        return memoryview(b"".join((self._head[start:], self._tail[: stop - middle])))


def decompress_apart(
    stored: memoryview, codec: int, raw_length: int, cap: int, where: Where
) -> memoryview | bytes | Halves:
    """What `decompress` gives, in halves where the tail of a piece was not compressed."""
    if codec != CODEC_ZSTD_HEAD:
        return decompress(stored, codec, raw_length, cap, where)
    return Halves(*_decompress_head(stored, raw_length, cap, where))


def _decompress_head(
    stored: memoryview, raw_length: int, cap: int, where: Where
) -> tuple[memoryview | bytes, memoryview]:
    """(the plain bytes of the frame, what follows them): u32 length of a frame, the frame, and that as it is."""
    end = 4 + int.from_bytes(stored[:4], "little")
    tail = stored[end:]
    if end > len(stored) or len(tail) > raw_length:
        raise where.bad("zstandard frame", f"a frame of {end - 4} bytes does not fit a piece of {len(stored)}")
    return decompress(stored[4:end], CODEC_ZSTD, raw_length - len(tail), cap, where), tail


def _decompressor() -> zstandard.ZstdDecompressor:
    """One a thread: making one takes 8 µs, using one 0.2, and it may not be shared."""
    decompressor = getattr(_local, "decompressor", None)
    if decompressor is None:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor()
    return decompressor


def is_random(sample: bytes) -> bool:
    """Whether zstandard gains less than a sixteenth on some bytes."""
    compressor = getattr(_local, "compressor", None)
    if compressor is None:
        compressor = _local.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    return 16 * len(compressor.compress(sample)) > 15 * len(sample)


def pack_strings(items: list[bytes]) -> bytes:
    """u32 count, u32 length of each, then their bytes."""
    lengths = np.array([len(items), *map(len, items)], dtype="<u4")
    return lengths.tobytes() + b"".join(items)


def unpack_strings(data: memoryview, where: Where) -> tuple[list[bytes], memoryview]:
    """The inverse of `pack_strings`: (items, what follows them). Raises CorruptionError."""
    if len(data) < 4:
        raise where.bad("string table", "a table of strings is cut short")
    count = int.from_bytes(data[:4], "little")
    body = 4 + 4 * count
    if body > len(data):
        raise where.bad("string table", f"a table of {count} strings does not fit {len(data)} bytes")
    ends = body + np.cumsum(np.frombuffer(data[4:body], dtype="<u4"), dtype=np.int64)
    end = int(ends[-1]) if count else body
    if end > len(data):
        raise where.bad("string table", f"a table of strings ends {end - len(data)} bytes past its section")
    cuts = [body, *ends.tolist()]
    return [bytes(data[a:b]) for a, b in itertools.pairwise(cuts)], data[end:]


def checked_text(column: pa.Array, where: Where) -> pa.Array:
    """The column. Raises CorruptionError where it is of text and holds bytes that are not UTF-8."""
    if is_text(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise where.bad("text", f"a column of text is not UTF-8 ({error})") from None
    return column


def python_value(value: bytes, kind: pa.DataType, where: Where) -> bytes | str:
    """One value as Python has it. Raises CorruptionError where it is of text and is not UTF-8."""
    if not is_text(kind):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise where.bad("text", f"a column of text is not UTF-8 ({error})") from None
