"""A block: some entries, their keys in one section and each value column in a section of its own.

    0   u32  checksum      of the rest, bound to the block's offset
    4   u32  length_bytes  of the whole block, a multiple of 8
    8   u32  entries       at least 1
    12  u16  sections      2 + value columns
    14  u16  reserved      0
    16  one directory entry for each section:
            u8 codec · u8 encoding · u16 flags · u32 stored_bytes · u32 raw_bytes
    then, padded to 8 bytes each: tombstones (a bitmap; no bytes where nothing is deleted), keys, value columns

Each section is compressed apart, so that reading two columns decompresses two. A block states its own length, so
a run of blocks is read knowing only where it begins and ends: executors are sent that, and open no footer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import zstandard

from . import codec, keys, values
from .codec import Where

HEAD = struct.Struct("<IIIHH")
_SECTION = struct.Struct("<BBHII")

SECTION_BYTES_MAX = 1 << 28
BLOCK_BYTES_MAX = 1 << 31
BLOCK_ENTRIES_MAX = 1 << 20

ENCODING_NONE = 0
ENCODING_BITMAP = 1


def build_block(
    offset: int,
    block_keys: pa.BinaryArray,
    columns: Sequence[pa.Array],
    deleted: np.ndarray | None,
    compressor: zstandard.ZstdCompressor | None,
) -> bytes:
    """The bytes of a block that will lie at `offset`. `deleted` is bool [n], or None where nothing is deleted."""
    key_encoding, key_bytes = keys.encode_keys(block_keys, lambda raw: len(codec.compress(raw, compressor)[1]))
    pieces = [(ENCODING_NONE, 0, b"")]
    if deleted is not None and deleted.any():
        pieces = [(ENCODING_BITMAP, 0, np.packbits(deleted, bitorder="little").tobytes())]
    pieces.append((key_encoding, 0, key_bytes))
    pieces.extend(values.encode_column(column) for column in columns)
    directory, bodies = [], []
    for encoding, flags, raw in pieces:
        packed_as, stored = codec.compress(raw, compressor)
        directory.append(_SECTION.pack(packed_as, encoding, flags, len(stored), len(raw)))
        bodies += [stored, codec.padding(len(stored))]
    head_padding = codec.padding(HEAD.size + _SECTION.size * len(pieces))
    rest = b"".join((*directory, head_padding, *bodies))
    head = HEAD.pack(0, HEAD.size + len(rest), len(block_keys), len(pieces), 0)[4:]
    return codec.checksum_at(offset, head, rest).to_bytes(4, "little") + head + rest


class Block:
    """A checked block, decoded section by section as asked.

    entries        how many
    length_bytes   of the whole block
    """

    def __init__(self, view: memoryview, where: Where, schema: pa.Schema):
        """`view` begins at the block and may go on after it. Raises CorruptionError."""
        self._where, self._schema = where, schema
        if len(view) < HEAD.size:
            raise where.bad("block head", f"a block has only {len(view)} bytes")
        stored, self.length_bytes, self.entries, sections, _ = HEAD.unpack_from(view)
        if not HEAD.size <= self.length_bytes <= len(view) or self.length_bytes % 8:
            raise where.bad("block length", f"a block claims {self.length_bytes} bytes where {len(view)} are left")
        self._view = view[: self.length_bytes]
        if codec.checksum_at(where.offset, self._view[4:]) != stored:
            raise where.bad("block checksum", "the checksum of a block does not match")
        if not 1 <= self.entries <= BLOCK_ENTRIES_MAX:
            raise where.bad("block entries", f"a block claims {self.entries} entries")
        if sections != 2 + len(schema):
            raise where.bad("block columns", f"a block has {sections - 2} value columns, the schema {len(schema)}")
        self._sections = self._directory(sections)
        self._keys: keys.BlockKeys | None = None

    def _directory(self, count: int) -> list[tuple[int, int, int, int, int, int]]:
        """(start, stored bytes, codec, encoding, flags, raw bytes) of each section."""
        end = HEAD.size + _SECTION.size * count
        at = end + len(codec.padding(end))
        if at > self.length_bytes:
            raise self._where.bad("block directory", "the directory of a block is cut short")
        found = []
        for packed_as, encoding, flags, stored, raw in _SECTION.iter_unpack(self._view[HEAD.size : end]):
            if raw > SECTION_BYTES_MAX or at + stored > self.length_bytes:
                raise self._where.bad("block directory", f"a section of {stored} bytes does not fit its block")
            found.append((at, stored, packed_as, encoding, flags, raw))
            at += stored + (-stored % 8)
        if at != self.length_bytes:
            raise self._where.bad("block directory", "the sections of a block do not fill it")
        return found

    def _raw(self, section: int) -> memoryview | bytes:
        at, stored, packed_as, _, _, raw = self._sections[section]
        return codec.decompress(self._view[at : at + stored], packed_as, raw, SECTION_BYTES_MAX, self._where)

    @property
    def keys(self) -> keys.BlockKeys:
        """The keys, one by one or as an Arrow array."""
        if self._keys is None:
            raw = memoryview(self._raw(1))
            self._keys = keys.decode_keys(self._sections[1][3], raw, self.entries, SECTION_BYTES_MAX, self._where)
        return self._keys

    def deleted(self) -> np.ndarray | None:
        """bool [entries], True for tombstones; None where there are none."""
        encoding = self._sections[0][3]
        if encoding == ENCODING_NONE:
            return None
        bits = np.frombuffer(self._raw(0), dtype=np.uint8)
        if encoding != ENCODING_BITMAP or len(bits) != (self.entries + 7) // 8:
            raise self._where.bad("tombstones", "the tombstones of a block do not fit its entries")
        return np.unpackbits(bits, count=self.entries, bitorder="little").view(bool)

    def column(self, position: int) -> pa.Array:
        """The value column at `position` in the schema."""
        _, _, _, encoding, flags, _ = self._sections[2 + position]
        kind = self._schema.field(position).type
        return values.decode_column(kind, self.entries, encoding, flags, self._raw(2 + position), self._where)
