"""A block: some entries, with their keys in one section and each value column in its own section.

    0   u32  checksum      of the rest of head and directory, bound to the block's offset
    4   u32  length_bytes  of the whole block, a multiple of 8
    8   u32  entries       at least 1
    12  u16  sections      2 + value columns
    14  u16  reserved      0
    16  one directory entry per section:
            u8 codec · u8 encoding · u16 flags · u32 stored_bytes · u32 uncompressed_bytes · u32 checksum
    then, each padded to 8 bytes: tombstones (a bitmap; no bytes if nothing is deleted), keys, value columns

Each section is compressed and checked separately, so a reader of two columns decompresses two. A section's checksum is
bound to the section's own offset and includes its padding. A block contains its length, so neighbouring blocks are read
from an offset and a length: executors get these, and need no footer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from . import codec
from .block_keys import BlockKeys, decode_keys
from .block_values import VALUES_BYTES_MAX, ValueColumn
from .codec import Compressor, EncodedSection, Location

HEAD = struct.Struct("<IIIHH")
SECTION = struct.Struct("<BBHIII")

# Stored bytes; its sections together, decompressed; its keys and its columns together, decoded.
BLOCK_BYTES_MAX = VALUES_BYTES_MAX
BLOCK_ENTRIES_MAX = 1 << 20

StoredSection: TypeAlias = "tuple[int, int, int, int, bytes | memoryview]"
"""codec, encoding, flags, bytes before compression; the section as it is stored"""

_NO_TOMBSTONES = 0
_BITMAP = 1


# -- writing ----------------------------------------------------------------------------------------------------------


def encode_tombstones(deleted: np.ndarray | None) -> EncodedSection:
    """Return the section of tombstones, bool [n] or None."""
    if deleted is None or not deleted.any():
        return EncodedSection(_NO_TOMBSTONES, 0, b"")
    return EncodedSection(_BITMAP, 0, np.packbits(deleted, bitorder="little").tobytes())


def build_block(offset: int, count: int, sections: Sequence[EncodedSection], compressor: Compressor | None) -> bytes:
    """Return a block of `count` entries that is written at `offset`. `sections`: tombstones, keys, value columns."""
    return _assembled(offset, count, [_stored(section, compressor) for section in sections])


def _stored(section: EncodedSection, compressor: Compressor | None) -> StoredSection:
    codec_id, stored = codec.compress(section.data, compressor, section.gain)
    return codec_id, section.encoding, section.flags, len(section.data), stored


def _assembled(offset: int, count: int, sections: Sequence[StoredSection]) -> bytes:
    directory, bodies = [], []
    position = HEAD.size + SECTION.size * len(sections)
    for codec_id, encoding, flags, uncompressed, stored in sections:
        body = stored if len(stored) % 8 == 0 else b"".join((stored, codec.padding(len(stored))))
        checksum = codec.checksum_at(offset + position, body)
        directory.append(SECTION.pack(codec_id, encoding, flags, len(stored), uncompressed, checksum))
        bodies.append(body)
        position += len(body)
    head = b"".join((HEAD.pack(0, position, count, len(sections), 0)[4:], *directory))
    return b"".join((codec.checksum_at(offset, head).to_bytes(4, "little"), head, *bodies))


# -- reading ----------------------------------------------------------------------------------------------------------


class Block:
    """A block whose head is checked. Each section is checked and decoded when it is requested.

    entries              the number of entries
    length_bytes         of the whole block
    uncompressed_bytes   of its sections
    location, schema     the arguments
    """

    def __init__(self, view: memoryview, location: Location, schema: pa.Schema):
        """`view` begins with the block, and may be longer. Raise CorruptionError."""
        self.location, self.schema = location, schema
        if len(view) < HEAD.size:
            raise location.corruption("block head", f"a block has only {len(view)} bytes")
        stored, self.length_bytes, self.entries, sections, reserved = HEAD.unpack_from(view)
        if not HEAD.size <= self.length_bytes <= len(view) or self.length_bytes % 8:
            message = f"a block claims {self.length_bytes} bytes, and {len(view)} are left"
            raise location.corruption("block length", message)
        end = HEAD.size + SECTION.size * sections
        if end > self.length_bytes:
            raise location.corruption("block directory", "the directory of a block is cut short")
        if codec.checksum_at(location.offset, view[4:end]) != stored:
            raise location.corruption("block checksum", "the checksum of a block does not match")
        if reserved:
            raise location.corruption("block head", f"the reserved bytes of a block's head are {reserved}, not 0")
        # Every value of an entry counts as at least one byte of the size that a block may have.
        if not 1 <= self.entries <= BLOCK_ENTRIES_MAX or self.entries * sections > BLOCK_BYTES_MAX:
            raise location.corruption("block entries", f"a block claims {self.entries} entries")
        if sections != 2 + len(schema):
            message = f"a block has {sections - 2} value columns, the schema {len(schema)}"
            raise location.corruption("block columns", message)
        self._view = view[: self.length_bytes]
        self._offsets = self._read_directory(end)
        self._keys: BlockKeys | None = None
        self._key_section: EncodedSection | None = None
        self._columns: dict[int, ValueColumn] = {}
        self._decoded_bytes = 0

    def _read_directory(self, end: int) -> tuple[int, ...]:
        """Return the offset of each section in the block."""
        offset, total, offsets = end, 0, []
        for _, _, _, stored, uncompressed, _ in SECTION.iter_unpack(self._view[HEAD.size : end]):
            offsets.append(offset)
            offset += stored + (-stored % 8)
            total += uncompressed
            if uncompressed > BLOCK_BYTES_MAX or offset > self.length_bytes:
                message = f"a section of {stored} bytes does not fit its block"
                raise self.location.corruption("block directory", message)
        self.uncompressed_bytes = total
        if total > BLOCK_BYTES_MAX:
            raise self.location.corruption("block directory", f"the sections of a block claim {total} bytes together")
        if offset != self.length_bytes:
            raise self.location.corruption("block directory", "the sections of a block do not fill it")
        if self._entry(0)[2] or self._entry(1)[2]:
            message = "the flags of the tombstones or keys of a block are not known"
            raise self.location.corruption("block directory", message)
        return tuple(offsets)

    def _entry(self, section: int) -> tuple[int, int, int, int, int, int]:
        """Return (codec, encoding, flags, stored bytes, uncompressed bytes, checksum) of a section."""
        return SECTION.unpack_from(self._view, HEAD.size + SECTION.size * section)

    def _checked(self, section: int) -> memoryview:
        offset = self._offsets[section]
        _, _, _, stored, _, checksum = self._entry(section)
        body = self._view[offset : offset + stored + (-stored % 8)]
        if codec.checksum_at(self.location.offset + offset, body) != checksum:
            message = f"the checksum of section {section} of a block does not match"
            raise self.location.corruption("section checksum", message)
        return body[:stored]

    def check(self) -> None:
        """Compare every section with its checksum, without decoding any. Raise CorruptionError."""
        for section in range(len(self._offsets)):
            self._checked(section)

    def section_sizes(self) -> list[tuple[int, int]]:
        """Return (stored bytes, uncompressed bytes) of each section."""
        return [self._entry(section)[3:5] for section in range(len(self._offsets))]

    def section(self, section: int) -> EncodedSection:
        """Return a section, checked and decompressed: 0 for tombstones, 1 for keys, then the columns. Raise
        CorruptionError."""
        codec_id, encoding, flags, _, uncompressed, _ = self._entry(section)
        stored = self._checked(section)
        data = codec.decompress(stored, codec_id, uncompressed, BLOCK_BYTES_MAX, self.location)
        return EncodedSection(encoding, flags, data)

    def moved_to(self, offset: int) -> bytes:
        """Return the bytes of this block for another offset of a file. The sections should have been checked."""
        moved, here = bytearray(self._view), self.location.offset
        for section, start in enumerate(self._offsets):
            *entry, checksum = self._entry(section)
            checksum ^= codec.place_crc(here + start) ^ codec.place_crc(offset + start)
            SECTION.pack_into(moved, HEAD.size + SECTION.size * section, *entry, checksum)
        end = HEAD.size + SECTION.size * len(self._offsets)
        moved[:4] = codec.checksum_at(offset, memoryview(moved)[4:end]).to_bytes(4, "little")
        return bytes(moved)

    def copied(self) -> Block:
        """Return this block in its own memory, with nothing decoded: it does not need the bytes that were read."""
        return Block(memoryview(bytes(self._view)), self.location, self.schema)

    @property
    def key_section(self) -> EncodedSection:
        """The encoded keys, checked."""
        if self._key_section is None:
            self._key_section = self.section(1)
        return self._key_section

    @property
    def keys(self) -> BlockKeys:
        """The keys, one by one or as an Arrow array."""
        if self._keys is None:
            encoding, _, data, _ = self.key_section
            self._keys = decode_keys(encoding, memoryview(data), self.entries, BLOCK_BYTES_MAX, self.location)
        return self._keys

    def deleted(self) -> np.ndarray | None:
        """Return bool [entries], True for tombstones, or None if there are none."""
        _, encoding, _, stored, uncompressed, _ = self._entry(0)
        if encoding == _NO_TOMBSTONES and not stored and not uncompressed:
            return None
        bits = np.frombuffer(self.section(0).data, dtype=np.uint8)
        if encoding != _BITMAP or len(bits) != (self.entries + 7) // 8:
            raise self.location.corruption("tombstones", "the tombstones of a block do not fit its entries")
        return np.unpackbits(bits, count=self.entries, bitorder="little").view(bool)

    def column(self, position: int) -> ValueColumn:
        """Return the value column at `position` in the schema, checked; its values are decoded when rows are taken."""
        column = self._columns.get(position)
        if column is None:
            arrow_type = self.schema.field(position).type
            section = self.section(2 + position)
            column = ValueColumn(arrow_type, self.entries, section, BLOCK_BYTES_MAX, self.location)
            self._decoded_bytes += column.decoded_bytes
            if self._decoded_bytes > BLOCK_BYTES_MAX:
                message = f"the columns of a block decode to more than {BLOCK_BYTES_MAX} bytes"
                raise self.location.corruption("decoded size", message)
            self._columns[position] = column
        return column
