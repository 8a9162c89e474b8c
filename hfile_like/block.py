"""A block: some entries, their keys in one section and each value column in a section of its own.

    0   u32  checksum      of the rest of head and directory, bound to the block's offset
    4   u32  length_bytes  of the whole block, a multiple of 8
    8   u32  entries       at least 1
    12  u16  sections      2 + value columns
    14  u16  reserved      0
    16  one directory entry for each section:
            u8 codec · u8 encoding · u16 flags · u32 stored_bytes · u32 raw_bytes · u32 checksum
    then, padded to 8 bytes each: tombstones (a bitmap; no bytes where nothing is deleted), keys, value columns

Each section is compressed and checked apart, so that reading two columns decompresses two. A section's checksum is
bound to the section's own offset and takes in its padding. A block states its own length, so a run of blocks is read
knowing only where it begins and ends: executors are sent that, and open no footer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from . import codec, keys, values
from .codec import Encoded, Where

HEAD = struct.Struct("<IIIHH")
SECTION = struct.Struct("<BBHIII")

# As it is stored; its sections together, decompressed; its keys and its columns together, decoded.
BLOCK_BYTES_MAX = 1 << 26
BLOCK_ENTRIES_MAX = 1 << 20

ENCODING_NONE = 0
ENCODING_BITMAP = 1


class Block:
    """A block whose head is checked; sections are checked and decoded one by one, as asked.

    entries        how many
    length_bytes   of the whole block
    plain_bytes    of its sections before compression
    where, schema  as given
    """

    def __init__(self, view: memoryview, where: Where, schema: pa.Schema):
        """`view` begins at the block and may go on after it. Raises CorruptionError."""
        self.where, self.schema = where, schema
        if len(view) < HEAD.size:
            raise where.bad("block head", f"a block has only {len(view)} bytes")
        stored, self.length_bytes, self.entries, sections, reserved = HEAD.unpack_from(view)
        if not HEAD.size <= self.length_bytes <= len(view) or self.length_bytes % 8:
            raise where.bad("block length", f"a block claims {self.length_bytes} bytes where {len(view)} are left")
        end = HEAD.size + SECTION.size * sections
        if end > self.length_bytes:
            raise where.bad("block directory", "the directory of a block is cut short")
        if codec.checksum_at(where.offset, view[4:end]) != stored:
            raise where.bad("block checksum", "the checksum of a block does not match")
        if reserved:
            raise where.bad("block head", f"what is reserved in the head of a block is {reserved}, not 0")
        # Every value of an entry is at least a byte of what a block may be.
        if not 1 <= self.entries <= BLOCK_ENTRIES_MAX or self.entries * sections > BLOCK_BYTES_MAX:
            raise where.bad("block entries", f"a block claims {self.entries} entries")
        if sections != 2 + len(schema):
            raise where.bad("block columns", f"a block has {sections - 2} value columns, the schema {len(schema)}")
        self._view = view[: self.length_bytes]
        self._sections = self._directory(end)
        self._keys: keys.BlockKeys | None = None
        self._columns: dict[int, values.ValueColumn] = {}
        self._held: dict[int, Encoded] = {}
        self._decoded_bytes = 0

    def _directory(self, end: int) -> list[tuple[int, int, int, int, int, int, int]]:
        """(start, stored bytes, codec, encoding, flags, raw bytes, checksum) of each section."""
        offset, total = end, 0
        sections = []
        for packed_as, encoding, flags, stored, raw, checksum in SECTION.iter_unpack(self._view[HEAD.size : end]):
            sections.append((offset, stored, packed_as, encoding, flags, raw, checksum))
            offset += stored + (-stored % 8)
            total += raw
            if raw > BLOCK_BYTES_MAX or offset > self.length_bytes:
                raise self.where.bad("block directory", f"a section of {stored} bytes does not fit its block")
        if sections[0][4] or sections[1][4]:
            raise self.where.bad("block directory", "the flags of the tombstones or keys of a block are not known")
        self.plain_bytes = total
        if total > BLOCK_BYTES_MAX:
            raise self.where.bad("block directory", f"the sections of a block claim {total} bytes together")
        if offset != self.length_bytes:
            raise self.where.bad("block directory", "the sections of a block do not fill it")
        return sections

    def _checked(self, section: int) -> memoryview:
        offset, stored, *_, checksum = self._sections[section]
        body = self._view[offset : offset + stored + (-stored % 8)]
        if codec.checksum_at(self.where.offset + offset, body) != checksum:
            raise self.where.bad("section checksum", f"the checksum of section {section} of a block does not match")
        return body[:stored]

    def plain(self, section: int) -> memoryview | bytes:
        """The bytes of a section before compression, checked. Raises CorruptionError."""
        if section in self._held:
            return self._held[section].raw
        _, _, packed_as, _, _, raw, _ = self._sections[section]
        return codec.decompress(self._checked(section), packed_as, raw, BLOCK_BYTES_MAX, self.where)

    def unread(self) -> Block:
        """This block with nothing decoded: what is decoded of it goes when it goes."""
        other = Block.__new__(Block)  # `copy.copy` takes longer than a look-up
        other.__dict__.update(self.__dict__, _keys=None, _columns={}, _held={}, _decoded_bytes=0)
        return other

    def owned(self) -> Block:
        """This block over memory of its own, with nothing decoded: it does not need what it was read from."""
        other = self.unread()
        other._view = memoryview(bytes(self._view))
        return other

    def encoding_of(self, section: int) -> int:
        """How a section is encoded."""
        return self._sections[section][3]

    @property
    def stored(self) -> memoryview:
        """Its bytes as they lie, not checked but for the head."""
        return self._view

    def frame_place(self, position: int) -> tuple[int, int, int] | None:
        """Where the frame of reference of a column without nulls begins and ends in `stored`, and the CRC-32 of it and
        its padding, not compared; None for a column that is encoded otherwise, or compressed."""
        offset, stored, packed_as, encoding, flags, raw, checksum = self._sections[2 + position]
        if packed_as != codec.CODEC_RAW or encoding != values.ENCODING_FRAME or flags or raw != stored:
            return None
        return offset, offset + stored, checksum ^ codec.place_crc(self.where.offset + offset)

    def check_column(self, position: int) -> None:
        """Compares the section of a column with its checksum. Raises CorruptionError."""
        self._checked(2 + position)

    def encoded(self, section: int) -> Encoded:
        """A section, 0 for tombstones, 1 for keys, then the columns: checked and decompressed."""
        _, _, _, encoding, flags, _, _ = self._sections[section]
        return Encoded(encoding, flags, self.plain(section))

    def held(self, section: int) -> Encoded:
        """What `encoded` gives, held for who asks again."""
        encoded = self._held.get(section)
        if encoded is None:
            encoded = self._held[section] = self.encoded(section)
        return encoded

    def check(self) -> None:
        """Compares every section with its checksum; none is decoded. Raises CorruptionError."""
        for section in range(len(self._sections)):
            self._checked(section)

    @property
    def keys(self) -> keys.BlockKeys:
        """The keys, one by one or as an Arrow array."""
        if self._keys is None:
            raw = memoryview(self.plain(1))
            self._keys = keys.decode_keys(self._sections[1][3], raw, self.entries, BLOCK_BYTES_MAX, self.where)
        return self._keys

    def deleted(self) -> np.ndarray | None:
        """bool [entries], True for tombstones; None where there are none."""
        _, stored, _, encoding, _, raw, _ = self._sections[0]
        if encoding == ENCODING_NONE and not stored and not raw:
            return None
        bits = np.frombuffer(self.plain(0), dtype=np.uint8)
        if encoding != ENCODING_BITMAP or len(bits) != (self.entries + 7) // 8:
            raise self.where.bad("tombstones", "the tombstones of a block do not fit its entries")
        return np.unpackbits(bits, count=self.entries, bitorder="little").view(bool)

    def column(self, position: int) -> values.ValueColumn:
        """The value column at `position` in the schema, checked; its values are made as they are taken."""
        column = self._columns.get(position)
        if column is None:
            _, _, packed_as, encoding, flags, raw_length, _ = self._sections[2 + position]
            unpack = codec.decompress_apart if encoding == values.ENCODING_NAMES and not flags else codec.decompress
            raw = unpack(self._checked(2 + position), packed_as, raw_length, BLOCK_BYTES_MAX, self.where)
            kind = self.schema.field(position).type
            column = values.ValueColumn(kind, self.entries, encoding, flags, raw, BLOCK_BYTES_MAX, self.where)
            self._decoded_bytes += column.decoded_bytes
            if self._decoded_bytes > BLOCK_BYTES_MAX:
                raise self.where.bad("decoded size", f"columns of a block come to more than {BLOCK_BYTES_MAX} bytes")
            self._columns[position] = column
        return column

    def decoded_bytes(self, positions: Sequence[int]) -> int:
        """What the keys and the columns at `positions` take once decoded, at least."""
        return self.keys.decoded_bytes + sum(self.column(position).decoded_bytes for position in positions)
