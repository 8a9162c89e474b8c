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
        self._offsets = self._directory(end)
        self._keys: keys.BlockKeys | None = None
        self._columns: dict[int, values.ValueColumn] = {}
        self._held: dict[int, tuple[int, int, memoryview | bytes]] = {}
        self._decoded_bytes = 0

    def _directory(self, end: int) -> tuple[int, ...]:
        """Where each section begins. No more is kept of it: what thousands of blocks of a cache hold in tuples and
        lists, Python's collector goes through again and again."""
        offset, total = end, 0
        offsets = []
        for _, _, _, stored, raw, _ in SECTION.iter_unpack(self._view[HEAD.size : end]):
            offsets.append(offset)
            offset += stored + (-stored % 8)
            total += raw
            if raw > BLOCK_BYTES_MAX or offset > self.length_bytes:
                raise self.where.bad("block directory", f"a section of {stored} bytes does not fit its block")
        self.plain_bytes = total
        if total > BLOCK_BYTES_MAX:
            raise self.where.bad("block directory", f"the sections of a block claim {total} bytes together")
        if offset != self.length_bytes:
            raise self.where.bad("block directory", "the sections of a block do not fill it")
        if self._section(0)[2] or self._section(1)[2]:
            raise self.where.bad("block directory", "the flags of the tombstones or keys of a block are not known")
        return tuple(offsets)

    def _section(self, section: int) -> tuple[int, int, int, int, int, int]:
        """(codec, encoding, flags, stored bytes, plain bytes, checksum)."""
        return SECTION.unpack_from(self._view, HEAD.size + SECTION.size * section)

    def _checked(self, section: int) -> memoryview:
        offset = self._offsets[section]
        _, _, _, stored, _, checksum = self._section(section)
        body = self._view[offset : offset + stored + (-stored % 8)]
        if codec.checksum_at(self.where.offset + offset, body) != checksum:
            raise self.where.bad("section checksum", f"the checksum of section {section} of a block does not match")
        return body[:stored]

    def plain(self, section: int) -> memoryview | bytes:
        """The bytes of a section before compression, checked. Raises CorruptionError."""
        if section in self._held:
            return self._held[section][2]
        packed_as, _, _, _, raw, _ = self._section(section)
        return codec.decompress(self._checked(section), packed_as, raw, BLOCK_BYTES_MAX, self.where)

    def unread(self) -> Block:
        """This block with nothing decoded: what is decoded of it goes when it goes."""
        other = Block.__new__(Block)  # `copy.copy` takes longer than a look-up
        other.__dict__.update(self.__dict__, _keys=None, _columns={}, _held={}, _decoded_bytes=0)
        return other

    def owned(self) -> Block:
        """This block, over memory of its own from now on: it does not need what it was read from. It lets go of what is
        decoded, but not of what is decompressed."""
        self._view = memoryview(bytes(self._view))
        self._held = {section: held for section, held in self._held.items() if isinstance(held[2], bytes)}
        self._keys, self._columns, self._decoded_bytes = None, {}, 0
        return self

    def encoding_of(self, section: int) -> int:
        """How a section is encoded."""
        return self._view[HEAD.size + SECTION.size * section + 1]

    @property
    def stored(self) -> memoryview:
        """Its bytes as they lie, not checked but for the head."""
        return self._view

    def frame_place(self, position: int) -> tuple[int, int, int] | None:
        """Where the frame of reference of a column without nulls begins and ends in `stored`, and the CRC-32 of it and
        its padding, not compared; None for a column that is encoded otherwise, or compressed."""
        packed_as, encoding, flags, stored, raw, checksum = self._section(2 + position)
        if packed_as != codec.CODEC_RAW or encoding != values.ENCODING_FRAME or flags or raw != stored:
            return None
        offset = self._offsets[2 + position]
        return offset, offset + stored, checksum ^ codec.place_crc(self.where.offset + offset)

    def check_column(self, position: int) -> None:
        """Compares the section of a column with its checksum. Raises CorruptionError."""
        self._checked(2 + position)

    def encoded(self, section: int) -> Encoded:
        """A section, 0 for tombstones, 1 for keys, then the columns: checked and decompressed."""
        _, encoding, flags, _, _, _ = self._section(section)
        return Encoded(encoding, flags, self.plain(section))

    def held(self, section: int) -> tuple[int, int, memoryview | bytes]:
        """(encoding, flags, plain bytes) of a section, as `encoded` gives them, held for who asks again."""
        held = self._held.get(section)
        if held is None:
            held = self._held[section] = self.encoded(section)[:3]
        return held

    def check(self) -> None:
        """Compares every section with its checksum; none is decoded. Raises CorruptionError."""
        for section in range(len(self._offsets)):
            self._checked(section)

    @property
    def keys(self) -> keys.BlockKeys:
        """The keys, one by one or as an Arrow array."""
        if self._keys is None:
            encoding, _, raw = self.held(1)
            self._keys = keys.decode_keys(encoding, memoryview(raw), self.entries, BLOCK_BYTES_MAX, self.where)
        return self._keys

    def deleted(self) -> np.ndarray | None:
        """bool [entries], True for tombstones; None where there are none."""
        _, encoding, _, stored, raw, _ = self._section(0)
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
            packed_as, encoding, flags, _, raw_length, _ = self._section(2 + position)
            raw: memoryview | bytes | codec.Halves
            if encoding == values.ENCODING_NAMES and not flags:
                stored = self._checked(2 + position)
                raw = codec.decompress_apart(stored, packed_as, raw_length, BLOCK_BYTES_MAX, self.where)
            else:
                raw = self.held(2 + position)[2]
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
