"""Checksums, compression and string tables, which every stored part of a sorted-block file uses.

A checksum is bound to its place: `crc32(stored bytes) ^ crc32(offset as 8 little-endian bytes)`. So a reader detects
bytes at a wrong offset, and a writer that copies bytes to another offset corrects their checksum with two exclusive
ors.

No length is trusted. The size that a compressed part declares is compared with a limit, with the most that zstandard
can reach, and with the size in its frame, before memory is allocated.
"""

from __future__ import annotations

import itertools
import threading
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import zstandard
from isal.isal_zlib import crc32

from ..base.arrays import is_text
from ..errors import CorruptionError

CODEC_RAW = 0
CODEC_ZSTD = 1
ZSTD_LEVEL = 1

# A zstandard block of 4 bytes decodes to at most 128 KiB.
_ZSTD_RATIO_MAX = 32_768
# The footer or a meta may decompress to twice its stored bytes plus this. If it would be more, a writer stores it raw.
_GROWTH_BYTES_MAX = 1 << 24
_COMPRESS_MIN_BYTES = 48
# A section is compressed if that saves at least a sixteenth. Sections that numpy reads in place must save a third.
GAIN_SIXTEENTH = 16
GAIN_THIRD = 3

_local = threading.local()


class Location(NamedTuple):
    """A place in a file, for errors."""

    path: str | None
    offset: int

    def corruption(self, check: str, message: str) -> CorruptionError:
        """Return a CorruptionError for this place; `check` names the check that failed."""
        return CorruptionError(
            f"{message}; the file is damaged: restore or rebuild it", path=self.path, offset=self.offset, check=check
        )


class StoredBlob(NamedTuple):
    """The place of some bytes that are stored separately: the footer or a meta. All sizes are in bytes."""

    offset: int
    stored: int
    uncompressed: int
    checksum: int
    codec: int


class EncodedSection(NamedTuple):
    """A section of a block before compression. `gain`: compress it if that saves one part in `gain`."""

    encoding: int
    flags: int
    data: bytes | memoryview
    gain: int = GAIN_SIXTEENTH


def place_crc(offset: int) -> int:
    """Return the part of a checksum that binds it to its offset."""
    return crc32(offset.to_bytes(8, "little"))


def checksum_at(offset: int, *parts: bytes | memoryview) -> int:
    """Return the checksum of the concatenated `parts`, stored at `offset`."""
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return crc ^ crc32(offset.to_bytes(8, "little"))


def row_checksums(rows: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return uint32 [n]: the checksums of the rows of uint8 [n, stride], stored at `offsets`."""
    pairs = zip(rows, offsets.tolist(), strict=True)
    return np.array([crc32(row) ^ crc32(offset.to_bytes(8, "little")) for row, offset in pairs], dtype=np.uint32)


def padding(length_bytes: int) -> bytes:
    """Return the zero bytes that bring a length to a multiple of 8."""
    return bytes(-length_bytes % 8)


def aligned(data: memoryview | bytes) -> pa.Buffer:
    """Return the bytes at an address that is a multiple of 8, as Arrow requires; a copy if they are elsewhere."""
    buffer = pa.py_buffer(data)
    return buffer if buffer.address % 8 == 0 else pa.py_buffer(bytes(data))


# -- compression ------------------------------------------------------------------------------------------------------


Compressor = zstandard.ZstdCompressor


def compress(
    data: bytes | memoryview, compressor: Compressor | None, gain: int = GAIN_SIXTEENTH
) -> tuple[int, bytes | memoryview]:
    """Return (codec, stored bytes): raw without a compressor, or if compression saves less than one part in `gain`."""
    if compressor is None or len(data) < _COMPRESS_MIN_BYTES:
        return CODEC_RAW, data
    packed = compressor.compress(data)
    return (CODEC_ZSTD, packed) if len(packed) <= len(data) - len(data) // gain else (CODEC_RAW, data)


def decompress(stored: memoryview, codec: int, size: int, max_bytes: int, location: Location) -> memoryview | bytes:
    """Return the `size` uncompressed bytes: the same memory if they are raw. Raise CorruptionError."""
    if codec == CODEC_RAW:
        if size != len(stored):
            raise location.corruption("raw length", f"{len(stored)} uncompressed bytes claim to be {size}")
        return stored
    if codec != CODEC_ZSTD:
        raise location.corruption("codec", f"compression id {codec} is not known")
    if size > max_bytes or size > _ZSTD_RATIO_MAX * (len(stored) + 1):
        raise location.corruption("decompressed size", f"{len(stored)} compressed bytes claim to be {size}")
    try:
        if zstandard.frame_content_size(stored) != size:
            raise location.corruption(
                "decompressed size", f"a compressed part does not have the {size} bytes it claims"
            )
        data = _decompressor().decompress(stored)
    except zstandard.ZstdError as error:
        raise location.corruption("zstandard frame", f"a part cannot be decompressed ({error})") from None
    if len(data) != size:
        raise location.corruption("decompressed size", f"a compressed part has {len(data)} bytes instead of {size}")
    return data


def _decompressor() -> zstandard.ZstdDecompressor:
    """Return the thread's decompressor. Creating one costs 8 µs, using one 0.2 µs, and threads may not share it."""
    decompressor = getattr(_local, "decompressor", None)
    if decompressor is None:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor()
    return decompressor


def pack_blob(data: bytes, offset: int, compressor: Compressor | None) -> tuple[StoredBlob, bytes | memoryview]:
    """Return (place, stored bytes) of data that is written at `offset`."""
    codec, stored = compress(data, compressor)
    if codec != CODEC_RAW and len(data) > _blob_bytes_max(len(stored)):
        codec, stored = CODEC_RAW, data
    return StoredBlob(offset, len(stored), len(data), checksum_at(offset, stored), codec), stored


def open_blob(stored: memoryview, blob: StoredBlob, what: str, location: Location) -> memoryview | bytes:
    """Return the uncompressed bytes of a blob; `what` names it in errors. Raise CorruptionError."""
    if checksum_at(blob.offset, stored) != blob.checksum:
        raise location.corruption(f"{what} checksum", f"the {what}'s checksum does not match")
    return decompress(stored, blob.codec, blob.uncompressed, _blob_bytes_max(len(stored)), location)


def _blob_bytes_max(stored_bytes: int) -> int:
    return _GROWTH_BYTES_MAX + 2 * stored_bytes


# -- strings ----------------------------------------------------------------------------------------------------------


def pack_strings(items: list[bytes]) -> bytes:
    """Return a string table: u32 count, u32 length of each, then their bytes."""
    lengths = np.array([len(items), *map(len, items)], dtype="<u4")
    return lengths.tobytes() + b"".join(items)


def unpack_strings(data: memoryview, location: Location) -> tuple[list[bytes], memoryview]:
    """Return (items, the bytes after the table): the inverse of `pack_strings`. Raise CorruptionError."""
    if len(data) < 4:
        raise location.corruption("string table", "a string table is cut short")
    count = int.from_bytes(data[:4], "little")
    body = 4 + 4 * count
    if body > len(data):
        raise location.corruption("string table", f"a table of {count} strings does not fit {len(data)} bytes")
    ends = body + np.cumsum(np.frombuffer(data[4:body], dtype="<u4"), dtype=np.int64)
    end = int(ends[-1]) if count else body
    if end > len(data):
        raise location.corruption("string table", f"a string table ends {end - len(data)} bytes after its section")
    offsets = [body, *ends.tolist()]
    return [bytes(data[a:b]) for a, b in itertools.pairwise(offsets)], data[end:]


def checked_text(column: pa.Array, location: Location) -> pa.Array:
    """Return the column. Raise CorruptionError if it is a string column with bytes that are not UTF-8."""
    if is_text(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise location.corruption("text", f"a string column is not UTF-8 ({error})") from None
    return column
