"""The footer and the trailer of a file, and its header.

A reader reads the last 64 KiB. They contain the trailer, which has a fixed size and the place of the footer, and in
most files also the footer: one read opens a file. Tables that few readers need (groups, row tables, metas) stay bytes
until they are requested.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ..base.caching import cached_property
from ..errors import FormatVersionError, StorageError
from . import codec
from .block_index import BlockIndex
from .block_values import check_schema
from .codec import Compressor, Location, StoredBlob
from .source import Source, name_of, read_exact

FORMAT_VERSION = 1
HEADER = b"SKSBLK" + FORMAT_VERSION.to_bytes(2, "little")
MAGIC_TRAILER = b"SKSBLK\r\n"
# Bits of the trailer: features that a reader must support. There are none yet.
FLAGS_MASK = 0

# The place of the footer (a StoredBlob), the checksum of the trailer, flags, version, magic.
TRAILER = struct.Struct("<QQQIIIHH8s")
_CHECKED_AFTER = 36
_VERSION_AT = 38
TAIL_BYTES = 64 * 1024
META_BYTES_MAX = 1 << 30
CHECKSUM_BYTES = 4
STRIDE_BYTES_MAX = 1 << 28

_SECTION = struct.Struct("<IIQ")
SECTION_SCHEMA, SECTION_INDEX, SECTION_GROUPS, SECTION_ROW_TABLES, SECTION_METAS, SECTION_ZONE_MAPS = range(1, 7)

_GROUP_FIELDS = {"offset": "<u8", "length": "<u8", "entries": "<u8", "first_block": "<u4", "block_count": "<u4"}
_ROW_TABLE_FIELDS = {"offset": "<u8", "rows": "<u8", "stride": "<u4"}
_BLOB_FIELDS = {"offset": "<u8", "stored": "<u8", "uncompressed": "<u8", "checksum": "<u4", "codec": "<u4"}


@dataclass(frozen=True)
class GroupHandle:
    """A group: one range of whole blocks. Small and picklable: `read_block_range` takes its offset and length.

    offset, length             bytes; 0 and 0 for an empty group
    entries                    tombstones included
    first_block, block_count   in the index of the file
    """

    name: str
    offset: int
    length: int
    entries: int
    first_block: int
    block_count: int


@dataclass(frozen=True)
class RowTable:
    """The place of a row table: rows of one length, uncompressed, each followed by a checksum that is bound to
    its place. Small and picklable: row i is at `offset + i * (stride + 4)`, and any row is one range read.

    offset   of row 0, in bytes
    rows     the number of rows
    stride   bytes of a row, without its checksum
    """

    name: str
    offset: int
    rows: int
    stride: int

    @property
    def length_bytes(self) -> int:
        """The bytes of the section, checksums included."""
        return self.rows * (self.stride + CHECKSUM_BYTES)


@dataclass
class Contents:
    """The content of the footer; `index` and `zone_maps` as bytes."""

    schema: pa.Schema
    index: bytes = b""
    zone_maps: bytes | None = None
    groups: dict[str, GroupHandle] = field(default_factory=dict)
    row_tables: dict[str, RowTable] = field(default_factory=dict)
    metas: dict[str, StoredBlob] = field(default_factory=dict)


# -- writing ----------------------------------------------------------------------------------------------------------


def encode_footer(contents: Contents, offset: int, compressor: Compressor | None) -> bytes:
    """Return the footer that is written at `offset`, and the trailer after it."""
    sections = [
        (SECTION_SCHEMA, contents.schema.serialize().to_pybytes()),
        (SECTION_INDEX, contents.index),
        (SECTION_GROUPS, _table(contents.groups, _GROUP_FIELDS)),
        (SECTION_ROW_TABLES, _table(contents.row_tables, _ROW_TABLE_FIELDS)),
        (SECTION_METAS, _table(contents.metas, _BLOB_FIELDS)),
    ]
    if contents.zone_maps is not None:
        sections.append((SECTION_ZONE_MAPS, contents.zone_maps))
    heads = [_SECTION.pack(number, 0, len(body)) for number, body in sections]
    data = b"".join([len(sections).to_bytes(8, "little"), *heads, *[body for _, body in sections]])
    blob, stored = codec.pack_blob(data, offset, compressor)
    trailer = TRAILER.pack(*blob, 0, 0, FORMAT_VERSION, MAGIC_TRAILER)
    checksum = _trailer_checksum(trailer, offset + len(stored))
    return b"".join((stored, TRAILER.pack(*blob, checksum, 0, FORMAT_VERSION, MAGIC_TRAILER)))


def _trailer_checksum(trailer: bytes | memoryview, offset: int) -> int:
    return codec.checksum_at(offset, trailer[: _CHECKED_AFTER - 4], trailer[_CHECKED_AFTER:])


def _table(rows: Mapping[str, object], fields: Mapping[str, str]) -> bytes:
    """Return the names of the rows, then one array for each field."""
    if not rows:
        return bytes(4)  # a string table without strings
    columns = [([getattr(row, name) for row in rows.values()], dtype) for name, dtype in fields.items()]
    arrays = [np.array(column, dtype=dtype).tobytes() for column, dtype in columns]
    return codec.pack_strings([name.encode() for name in rows]) + b"".join(arrays)


# -- reading ----------------------------------------------------------------------------------------------------------


class Footer:
    """The content of a file. Every length is checked against that of the file."""

    def __init__(self, data: memoryview | bytes, data_end: int, location: Location):
        self._location, self._data_end = location, data_end
        self._sections = self._split(memoryview(data))
        try:
            self.schema = check_schema(pa.ipc.read_schema(pa.py_buffer(self._section(SECTION_SCHEMA))))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise location.corruption("schema", f"the schema cannot be read ({error})") from None
        zone_maps = self._sections.get(SECTION_ZONE_MAPS)
        self.index = BlockIndex(self._section(SECTION_INDEX), zone_maps, self.schema, data_end, location)

    def _split(self, data: memoryview) -> dict[int, memoryview]:
        count = int.from_bytes(data[:8], "little")
        offset = 8 + _SECTION.size * count
        if len(data) < 8 or offset > len(data):
            raise self._location.corruption("footer", f"the footer claims {count} sections and does not contain them")
        sections = {}
        for section_id, reserved, length in _SECTION.iter_unpack(data[8:offset]):
            if reserved or section_id in sections:
                raise self._location.corruption(
                    "footer", f"section {section_id} of the footer is there twice, or of no known kind"
                )
            if length > len(data) - offset:
                raise self._location.corruption("footer", f"section {section_id} of the footer is cut short")
            sections[section_id] = data[offset : offset + length]
            offset += length
        return sections

    def _section(self, section_id: int) -> memoryview:
        if section_id not in self._sections:
            raise self._location.corruption("footer", f"section {section_id} of the footer is missing")
        return self._sections[section_id]

    @cached_property
    def groups(self) -> dict[str, GroupHandle]:
        groups = {}
        for name, offset, length, entries, first, count in self._rows(SECTION_GROUPS, _GROUP_FIELDS):
            if first + count > self.index.block_count:
                raise self._location.corruption("groups", f"group {name!r} names blocks that do not exist")
            if offset + length > self._data_end or (count == 0) != (length == 0):
                raise self._location.corruption("groups", f"group {name!r} is not in the file")
            groups[name] = GroupHandle(name, offset, length, entries, first, count)
        return groups

    @cached_property
    def row_tables(self) -> dict[str, RowTable]:
        sections = {}
        for name, offset, rows, stride in self._rows(SECTION_ROW_TABLES, _ROW_TABLE_FIELDS):
            if not 1 <= stride <= STRIDE_BYTES_MAX or offset + rows * (stride + CHECKSUM_BYTES) > self._data_end:
                raise self._location.corruption("row tables", f"row table {name!r} is not in the file")
            sections[name] = RowTable(name, offset, rows, stride)
        self._check_apart("row tables", [(s.offset, s.length_bytes) for s in sections.values()])
        return sections

    @cached_property
    def metas(self) -> dict[str, StoredBlob]:
        metas = {}
        for name, *fields in self._rows(SECTION_METAS, _BLOB_FIELDS):
            metas[name] = blob = StoredBlob(*fields)
            if blob.offset + blob.stored > self._data_end:
                raise self._location.corruption("metas", f"meta {name!r} is not in the file")
        self._check_apart("metas", [(blob.offset, blob.stored) for blob in metas.values()])
        return metas

    def _check_apart(self, check: str, ranges: list[tuple[int, int]]) -> None:
        for (offset, length), (following, _) in itertools.pairwise(sorted(ranges)):
            if offset + length > following:
                raise self._location.corruption(check, f"some of the {check} overlap at byte {following}")

    def _rows(self, section_id: int, fields: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
        """Return (name, number, ...) of each row of a table: the inverse of `_table`."""
        section = self._section(section_id)
        row_bytes = 4 + sum(np.dtype(item).itemsize for item in fields.values())  # at least
        if int.from_bytes(section[:4], "little") * row_bytes > len(section):
            raise self._location.corruption(
                "footer table", f"table {section_id} of the footer claims more rows than it has bytes for"
            )
        names, rest = codec.unpack_strings(section, self._location)
        columns = []
        for item in fields.values():
            size = len(names) * np.dtype(item).itemsize
            if size > len(rest):
                raise self._location.corruption("footer table", f"table {section_id} of the footer is cut short")
            columns.append(np.frombuffer(rest[:size], dtype=item).tolist())
            rest = rest[size:]
        try:
            return zip([name.decode() for name in names], *columns, strict=True)
        except UnicodeDecodeError:
            raise self._location.corruption("footer text", "a name in the footer is not UTF-8") from None


def open_footer(source: Source, tail_bytes: int = TAIL_BYTES) -> tuple[Footer, int, memoryview]:
    """Return (the footer of a file, the offset of the tail that was read, the tail). One read is enough, unless the
    footer is longer. Raise CorruptionError, FormatVersionError."""
    name = name_of(source)
    try:
        size = source.size
    except OSError as error:
        raise StorageError(f"{name or 'source'}: its size cannot be read ({error})") from error
    if size < len(HEADER) + TRAILER.size:
        raise Location(name, 0).corruption("size", f"{size} bytes are no sorted-block file")
    start = max(0, size - max(tail_bytes, TRAILER.size))
    tail = read_exact(source, [(start, size - start)])[0]
    offset = size - TRAILER.size
    location = Location(name, offset)
    trailer = bytes(tail[offset - start :])
    *fields, own_checksum, flags, version, magic = TRAILER.unpack(trailer)
    blob = StoredBlob(*fields)
    if magic != MAGIC_TRAILER:
        raise location.corruption("magic", "the end of the file is not that of a sorted-block file")
    if version != FORMAT_VERSION:
        if _trailer_checksum(trailer[:_VERSION_AT] + HEADER[6:] + trailer[_VERSION_AT + 2 :], offset) == own_checksum:
            raise location.corruption("trailer checksum", "only the version in the trailer does not fit its checksum")
        raise FormatVersionError(
            f"{name or 'sorted-block file'}: format version {version} is not {FORMAT_VERSION}: build it again, or read "
            "it with the Skipstone that wrote it"
        )
    if _trailer_checksum(trailer, offset) != own_checksum:
        raise location.corruption("trailer checksum", "the trailer's checksum does not match")
    if flags & ~FLAGS_MASK:
        raise FormatVersionError(
            f"{name or 'sorted-block file'}: uses features {flags & ~FLAGS_MASK:#x} that this Skipstone does not "
            "know: upgrade it"
        )
    if blob.offset < len(HEADER) or blob.offset + blob.stored != offset:
        raise location.corruption(
            "footer length", f"a footer of {blob.stored} bytes at {blob.offset} does not end at the trailer"
        )
    if start == 0:
        check_header(tail[: len(HEADER)], name)
    data = tail[max(0, blob.offset - start) : offset - start]
    if blob.offset < start:
        head = read_exact(source, [(blob.offset, start - blob.offset)])[0]
        data = memoryview(b"".join((head, data)))
    location = Location(name, blob.offset)
    return Footer(codec.open_blob(data, blob, "footer", location), blob.offset, location), start, tail


def check_header(header: memoryview, name: str | None) -> None:
    """Raise CorruptionError if the first bytes are not those of the version that the trailer names."""
    if header != HEADER:
        raise Location(name, 0).corruption(
            "magic", "the first bytes are not those of a sorted-block file of this version"
        )
