"""The end of the file: what is in it, and a trailer of fixed size that says where that stands.

A reader takes the last 64 KiB. The trailer is in them, and mostly the footer too: one read opens a file. Tables that
few readers ask for (groups, strided sections, metas) are kept as bytes and read when asked for.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import FormatVersionError, StorageError
from . import codec
from .block import BLOCK_ENTRIES_MAX, HEAD
from .codec import Compressor, Where
from .source import Source, name_of, read_exact
from .strided import CHECKSUM_BYTES, STRIDE_BYTES_MAX, StridedSection
from .summaries import BlockSummary, Summary, encode_summaries, has_bounds, read_summaries, read_summary
from .values import check_schema

FORMAT_VERSION = 0
HEADER = b"SKSBLK" + FORMAT_VERSION.to_bytes(2, "little")
MAGIC_TRAILER = b"SKSBLK\r\n"
# Bits of the trailer: features without which a file cannot be read.
FLAG_DICTIONARY = 1
KNOWN_FLAGS = FLAG_DICTIONARY

# footer_offset, footer_stored, footer_raw, footer_checksum, footer_codec, trailer_checksum, flags, version, magic
TRAILER = struct.Struct("<QQQIIIHH8s")
_CHECKED_AFTER = 36
_VERSION_AT = 38
TAIL_BYTES = 64 * 1024
FOOTER_BYTES_MAX = 1 << 31
META_BYTES_MAX = 1 << 30

_SECTION = struct.Struct("<IIQ")
SECTION_SCHEMA, SECTION_PROPERTIES, SECTION_INDEX, SECTION_GROUPS, SECTION_STRIDED, SECTION_METAS = range(1, 7)
SECTION_SUMMARIES, SECTION_PIECES = 7, 8

# Pieces of the file's own, by name.
PIECE_DICTIONARY, PIECE_KEY_FILTER = "dictionary", "key filter"


@dataclass(frozen=True)
class BlockInfo:
    """One block: where it lies (bytes), its entries, how many of them are tombstones, what its keys and values were
    before they were encoded (bytes, as `block_size` counts them), its first and last key."""

    offset: int
    length: int
    entries: int
    deleted: int
    plain_bytes: int
    first_key: bytes
    last_key: bytes


@dataclass(frozen=True)
class GroupHandle:
    """A group: one range of whole blocks. Small and picklable: `read_block_range` takes its offset and length.

    offset, length             bytes; 0 and 0 for a group of nothing
    entries                    tombstones counted
    first_block, block_count   in the index of the file
    """

    name: str
    offset: int
    length: int
    entries: int
    first_block: int
    block_count: int


@dataclass(frozen=True)
class MetaHandle:
    """A meta section: where it lies and how (bytes)."""

    name: str
    offset: int
    stored: int
    raw: int
    checksum: int
    codec: int


_HANDLE = ("offset:<u8", "stored:<u8", "raw:<u8", "checksum:<u4", "codec:<u4")


@dataclass
class Contents:
    """What a writer tells the footer."""

    schema: pa.Schema
    properties: dict[str, str]
    blocks: list[BlockInfo] = field(default_factory=list)
    groups: list[GroupHandle] = field(default_factory=list)
    strided: list[StridedSection] = field(default_factory=list)
    metas: list[MetaHandle] = field(default_factory=list)
    summaries: dict[str, list[BlockSummary]] = field(default_factory=dict)
    pieces: list[MetaHandle] = field(default_factory=list)


# -- writing ----------------------------------------------------------------------------------------------------------


def encode_footer(contents: Contents, offset: int, compressor: Compressor | None) -> bytes:
    """The footer that will lie at `offset`, and the trailer after it."""
    sections = [
        (SECTION_SCHEMA, contents.schema.serialize().to_pybytes()),
        (SECTION_PROPERTIES, _encode_properties(contents.properties)),
        (SECTION_INDEX, _encode_index(contents.blocks)),
        (SECTION_GROUPS, _table(contents.groups, "first_block:<u4", "block_count:<u4", "entries:<u8")),
        (SECTION_STRIDED, _table(contents.strided, "offset:<u8", "rows:<u8", "stride:<u4")),
        (SECTION_METAS, _table(contents.metas, *_HANDLE)),
    ]
    if contents.summaries:
        sections.append((SECTION_SUMMARIES, encode_summaries(contents.schema, contents.summaries)))
    if contents.pieces:
        sections.append((SECTION_PIECES, _table(contents.pieces, *_HANDLE)))
    head = len(sections).to_bytes(8, "little") + b"".join(_SECTION.pack(i, 0, len(b)) for i, b in sections)
    raw = head + b"".join(body for _, body in sections)
    packed_as, stored = codec.compress(raw, compressor)
    sizes = (offset, len(stored), len(raw), codec.checksum_at(offset, stored), packed_as)
    flags = FLAG_DICTIONARY if any(piece.name == PIECE_DICTIONARY for piece in contents.pieces) else 0
    trailer = TRAILER.pack(*sizes, 0, flags, FORMAT_VERSION, MAGIC_TRAILER)
    checksum = _trailer_checksum(trailer, offset + len(stored))
    return stored + TRAILER.pack(*sizes, checksum, flags, FORMAT_VERSION, MAGIC_TRAILER)


def _trailer_checksum(trailer: bytes | memoryview, offset: int) -> int:
    return codec.checksum_at(offset, trailer[: _CHECKED_AFTER - 4], trailer[_CHECKED_AFTER:])


def _encode_properties(properties: dict[str, str]) -> bytes:
    items = [text.encode() for pair in sorted(properties.items()) for text in pair]
    return codec.pack_strings(items)


def _encode_index(blocks: Sequence[BlockInfo]) -> bytes:
    """u64 count; u64 offset, u32 length, u32 entries, u32 deleted, u32 plain bytes of each; u64 ends of the keys; the
    keys, first and last of each block in turn."""
    bounds = [key for b in blocks for key in (b.first_key, b.last_key)]
    return b"".join(
        (
            len(blocks).to_bytes(8, "little"),
            np.array([b.offset for b in blocks], dtype="<u8").tobytes(),
            np.array([b.length for b in blocks], dtype="<u4").tobytes(),
            np.array([b.entries for b in blocks], dtype="<u4").tobytes(),
            np.array([b.deleted for b in blocks], dtype="<u4").tobytes(),
            np.array([b.plain_bytes for b in blocks], dtype="<u4").tobytes(),
            np.cumsum([0, *map(len, bounds)], dtype="<u8").tobytes(),
            *bounds,
        )
    )


def _table(rows: Sequence, *fields: str) -> bytes:
    """The names of the rows, then one array for each field."""
    columns = [spec.split(":") for spec in fields]
    arrays = [np.array([getattr(row, name) for row in rows], dtype=kind).tobytes() for name, kind in columns]
    return codec.pack_strings([row.name.encode() for row in rows]) + b"".join(arrays)


# -- reading ----------------------------------------------------------------------------------------------------------


@dataclass
class Tail:
    """The last bytes of the file, kept because small files lie wholly in them."""

    offset: int
    data: memoryview

    def slice(self, offset: int, length: int) -> memoryview | None:
        """The bytes of a range; None where they begin before the tail."""
        start = offset - self.offset
        return self.data[start : start + length] if start >= 0 else None


class Footer:
    """What a file holds. Every length has been checked against the file's own."""

    def __init__(self, raw: memoryview | bytes, data_end: int, where: Where):
        self._where, self._data_end = where, data_end
        self._parsed_summaries: dict[str, Summary] = {}
        self._sections = self._split(memoryview(raw))
        try:
            self.schema = check_schema(pa.ipc.read_schema(pa.py_buffer(self._section(SECTION_SCHEMA))))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise where.bad("schema", f"the schema cannot be read ({error})") from None
        self._read_index(self._section(SECTION_INDEX))

    def _split(self, raw: memoryview) -> dict[int, memoryview]:
        count = int.from_bytes(raw[:8], "little")
        at = 8 + _SECTION.size * count
        if len(raw) < 8 or at > len(raw):
            raise self._where.bad("footer", f"the footer claims {count} sections and does not hold them")
        found = {}
        for kind, _, length in _SECTION.iter_unpack(raw[8:at]):
            if length > len(raw) - at:
                raise self._where.bad("footer", f"section {kind} of the footer is cut short")
            found[kind] = raw[at : at + length]
            at += length
        return found

    def _section(self, kind: int) -> memoryview:
        try:
            return self._sections[kind]
        except KeyError:
            raise self._where.bad("footer", f"section {kind} of the footer is missing") from None

    def _read_index(self, data: memoryview) -> None:
        count = int.from_bytes(data[:8], "little")
        keys_at = 8 + 24 * count + 8 * (2 * count + 1)
        if len(data) < 8 or keys_at > len(data):
            raise self._where.bad("index", f"an index of {count} blocks is cut short")
        at = 8
        arrays = []
        for kind, items in (("<u8", count), *[("<u4", count)] * 4, ("<u8", 2 * count + 1)):
            arrays.append(np.frombuffer(data, dtype=kind, count=items, offset=at))
            at += arrays[-1].nbytes
        self.offsets, self.lengths, self.entries, self.deleted, self._plain_bytes, self._key_ends = arrays
        self._key_data = data[keys_at:]
        self.block_count = count
        ends = self._key_ends
        if ends[0] != 0 or int(ends[-1]) != len(self._key_data) or (ends[1:] < ends[:-1]).any():
            raise self._where.bad("index", "the keys of the index do not fit its bytes")
        if count:
            end = np.uint64(self._data_end)
            too_far = (self.offsets < len(HEADER)) | (self.offsets > end) | (self.lengths > end - self.offsets)
            if too_far.any() or int(self.lengths.min()) < HEAD.size or (self.deleted > self.entries).any():
                raise self._where.bad("index", "the index names a block that does not lie in the file")
            if int(self.entries.max()) > BLOCK_ENTRIES_MAX:
                raise self._where.bad("index", f"the index names a block of {int(self.entries.max())} entries")
        self.num_entries = int(self.entries.sum(dtype=np.uint64))
        self.num_deleted = int(self.deleted.sum(dtype=np.uint64))

    def first_key(self, block: int) -> bytes:
        return bytes(self._key_data[self._key_ends[2 * block] : self._key_ends[2 * block + 1]])

    def last_key(self, block: int) -> bytes:
        return bytes(self._key_data[self._key_ends[2 * block + 1] : self._key_ends[2 * block + 2]])

    def block(self, i: int) -> BlockInfo:
        offset, length, entries, deleted = (int(a[i]) for a in (self.offsets, self.lengths, self.entries, self.deleted))
        plain_bytes = int(self._plain_bytes[i])
        return BlockInfo(offset, length, entries, deleted, plain_bytes, self.first_key(i), self.last_key(i))

    def key_tails(self, low: int, high: int, width: int) -> np.ndarray | None:
        """uint64 [high - low]: the last 8 bytes of keys of the index (block i has keys 2i and 2i + 1) as big-endian
        numbers; None where one is not of `width` bytes, at least 8."""
        ends = self._key_ends[low : high + 1].astype(np.int64)
        if (np.diff(ends) != width).any():
            return None
        data = np.frombuffer(self._key_data, dtype=np.uint8, count=width * (high - low), offset=int(ends[0]))
        return np.ascontiguousarray(data.reshape(-1, width)[:, -8:]).view(">u8").reshape(-1).astype(np.uint64)

    def block_of(self, key: bytes) -> int | None:
        """The one block that may hold a key; None where none may."""
        i = bisect_right(range(self.block_count), key, key=self.first_key) - 1
        return i if i >= 0 and key <= self.last_key(i) else None

    def first_block_from(self, key: bytes) -> int:
        """The first block whose last key is not below `key`."""
        return bisect_left(range(self.block_count), key, key=self.last_key)

    def first_block_not_below(self, key: bytes) -> int:
        """The first block whose first key is not below `key`."""
        return bisect_left(range(self.block_count), key, key=self.first_key)

    @cached_property
    def properties(self) -> dict[str, str]:
        items, _ = codec.unpack_strings(self._section(SECTION_PROPERTIES), self._where)
        if len(items) % 2:
            raise self._where.bad("properties", "a property has no value")
        texts = [self._text(item) for item in items]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    @cached_property
    def live(self) -> np.ndarray:
        """uint32 [blocks]: the entries of each block that are no tombstones."""
        return self.entries - self.deleted

    @property
    def summarised(self) -> list[str]:
        """The columns that have a summary."""
        return list(self._summaries)

    def summary(self, column: str) -> Summary | None:
        """The summary of a column; None where there is none. Parsed when first asked for."""
        if column not in self._parsed_summaries and column in self._summaries:
            kind = self.schema.field(column).type
            self._parsed_summaries[column] = read_summary(self._summaries[column], kind, self.live, self._where)
        return self._parsed_summaries.get(column)

    @cached_property
    def _summaries(self) -> dict[str, memoryview]:
        data = self._sections.get(SECTION_SUMMARIES)
        found = {} if data is None else read_summaries(data, self._where)
        for name in found:
            if name not in self.schema.names or not has_bounds(self.schema.field(name).type):
                raise self._where.bad("summaries", f"the footer has a summary of {name!r}, which can have none")
        return found

    @cached_property
    def groups(self) -> dict[str, GroupHandle]:
        found = {}
        for name, first, count, entries in self._rows(SECTION_GROUPS, "<u4", "<u4", "<u8"):
            if first + count > self.block_count:
                raise self._where.bad("groups", f"group {name!r} names blocks that are not there")
            offset = length = 0
            if count:
                offset = int(self.offsets[first])
                length = int(self.offsets[first + count - 1]) + int(self.lengths[first + count - 1]) - offset
                if length < 0:
                    raise self._where.bad("groups", f"the blocks of group {name!r} are out of order")
            found[name] = GroupHandle(name, offset, length, entries, first, count)
        return found

    @cached_property
    def strided(self) -> dict[str, StridedSection]:
        found = {}
        for name, offset, rows, stride in self._rows(SECTION_STRIDED, "<u8", "<u8", "<u4"):
            if not 1 <= stride <= STRIDE_BYTES_MAX or offset + rows * (stride + CHECKSUM_BYTES) > self._data_end:
                raise self._where.bad("strided sections", f"strided section {name!r} does not lie in the file")
            found[name] = StridedSection(name, offset, rows, stride)
        return found

    @cached_property
    def metas(self) -> dict[str, MetaHandle]:
        return self._handles(SECTION_METAS, "meta")

    @cached_property
    def pieces(self) -> dict[str, MetaHandle]:
        """The file's own pieces: its dictionary and its key filter, where it has them."""
        return self._handles(SECTION_PIECES, "piece") if SECTION_PIECES in self._sections else {}

    def _handles(self, kind: int, what: str) -> dict[str, MetaHandle]:
        found = {}
        for name, offset, stored, raw, checksum, packed_as in self._rows(kind, *(f.split(":")[1] for f in _HANDLE)):
            if offset + stored > self._data_end:
                raise self._where.bad(f"{what}s", f"{what} {name!r} does not lie in the file")
            found[name] = MetaHandle(name, offset, stored, raw, checksum, packed_as)
        return found

    def _rows(self, kind: int, *types: str) -> Iterator[tuple[Any, ...]]:
        """(name, number, ...) of each row of a table: the inverse of `_table`."""
        names, rest = codec.unpack_strings(self._section(kind), self._where)
        columns = []
        for item in types:
            size = len(names) * np.dtype(item).itemsize
            if size > len(rest):
                raise self._where.bad("footer table", f"table {kind} of the footer is cut short")
            columns.append(np.frombuffer(rest[:size], dtype=item).tolist())
            rest = rest[size:]
        return zip([self._text(name) for name in names], *columns, strict=True)

    def _text(self, item: bytes) -> str:
        try:
            return item.decode()
        except UnicodeDecodeError:
            raise self._where.bad("footer text", "a name in the footer is not UTF-8") from None


def open_footer(source: Source, tail_bytes: int = TAIL_BYTES) -> tuple[Footer, Tail]:
    """The footer of a file, in one read of its tail and a second only where the footer is longer than that. Raises
    CorruptionError, FormatVersionError."""
    name = name_of(source)
    try:
        size = source.size
    except OSError as error:
        raise StorageError(f"{name or 'source'}: its size cannot be read ({error})") from error
    if size < len(HEADER) + TRAILER.size:
        raise Where(name, 0).bad("size", f"{size} bytes are no sorted-block file")
    tail = Tail(max(0, size - max(tail_bytes, TRAILER.size)), memoryview(b""))
    tail.data = read_exact(source, [(tail.offset, size - tail.offset)])[0]
    at = size - TRAILER.size
    where = Where(name, at)
    trailer = bytes(tail.data[at - tail.offset :])
    offset, stored, raw_length, checksum, packed_as, own_checksum, flags, version, magic = TRAILER.unpack(trailer)
    if magic != MAGIC_TRAILER:
        raise where.bad("magic", "the end of the file is not that of a sorted-block file")
    if version != FORMAT_VERSION:
        if _trailer_checksum(trailer[:_VERSION_AT] + HEADER[6:] + trailer[_VERSION_AT + 2 :], at) == own_checksum:
            raise where.bad("trailer checksum", "only the version in the trailer does not fit its checksum")
        raise FormatVersionError(
            f"{name or 'sorted-block file'}: format version {version} is not {FORMAT_VERSION}: read it with the "
            "Skipstone that wrote it, or build it again"
        )
    if _trailer_checksum(trailer, at) != own_checksum:
        raise where.bad("trailer checksum", "the trailer's checksum does not match")
    if flags & ~KNOWN_FLAGS:
        raise FormatVersionError(
            f"{name or 'sorted-block file'}: uses features {flags & ~KNOWN_FLAGS:#x} that this Skipstone does not "
            "know: upgrade it"
        )
    if offset < len(HEADER) or offset + stored != at:
        raise where.bad("footer length", f"a footer of {stored} bytes at {offset} does not end at the trailer")
    if tail.offset == 0:
        check_header(tail.data[: len(HEADER)], name)
    data = tail.slice(offset, stored)
    if data is None:
        head = read_exact(source, [(offset, tail.offset - offset)])[0]
        data = memoryview(b"".join((head, tail.data[: at - tail.offset])))
    where = Where(name, offset)
    if codec.checksum_at(offset, data) != checksum:
        raise where.bad("footer checksum", "the footer's checksum does not match")
    raw = codec.decompress(data, packed_as, raw_length, FOOTER_BYTES_MAX, where)
    return Footer(raw, offset, where), tail


def check_header(header: memoryview, name: str | None) -> None:
    """Raises CorruptionError where the first bytes are not those of the version that the trailer told."""
    if header != HEADER:
        raise Where(name, 0).bad("magic", "the first bytes are not those of a sorted-block file of this version")
