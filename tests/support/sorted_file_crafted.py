"""Sorted-block files that somebody crafted to harm who reads them: small, with checksums that fit, and claims that do
not: frames that grow a thousandfold, keys and values that take gigabytes once decoded, blocks that lie in one another.

Made from FORMAT.md and not by the library, whose writer would refuse them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import zstandard
from sorted_file_layout import bound, up

RAW, ZSTD = range(2)


def frame(plain_bytes: int, byte: bytes = b"\0", states_size: bool = True) -> bytes:
    """A zstandard frame of one byte over and over."""
    return zstandard.ZstdCompressor(write_content_size=states_size).compress(byte * plain_bytes)


@dataclass
class Section:
    """A section of a block, as its directory names it."""

    encoding: int
    stored: bytes = b""
    codec: int = RAW
    flags: int = 0
    plain: int | None = None

    def entry(self, checksum: int) -> bytes:
        plain = len(self.stored) if self.plain is None else self.plain
        return struct.pack("<BBHIII", self.codec, self.encoding, self.flags, len(self.stored), plain, checksum)


NO_TOMBSTONES = Section(0)


def numbers(width: int = 8, step: int = 1, base: int = 0, prefix: bytes | None = None) -> Section:
    """Keys on a line."""
    before = bytes(width - min(width, 8)) if prefix is None else prefix
    body = struct.pack("<IIQQ", width, 0, base, step) + before
    return Section(3, body + bytes(up(len(body)) - len(body)))


def zipped(section: Section) -> Section:
    """The same, compressed."""
    packed = zstandard.ZstdCompressor(level=19).compress(section.stored)
    return Section(section.encoding, packed, ZSTD, section.flags, len(section.stored))


def block(offset: int, entries: int, sections: Sequence[Section]) -> bytes:
    """A block of tombstones, keys and columns."""
    at = 16 + 16 * len(sections)
    directory, bodies = [], []
    for section in sections:
        body = section.stored + bytes(up(len(section.stored)) - len(section.stored))
        directory.append(section.entry(bound(body, offset + at)))
        bodies.append(body)
        at += len(body)
    head = b"".join([struct.pack("<IIHH", at, entries, len(sections), 0), *directory])
    return b"".join([bound(head, offset).to_bytes(4, "little"), head, *bodies])


def strings(items: Sequence[bytes]) -> bytes:
    """A string table."""
    return struct.pack(f"<{len(items) + 1}I", len(items), *map(len, items)) + b"".join(items)


def table(rows: Sequence[tuple], kinds: str, keys: Sequence[bytes]) -> bytes:
    """A table of the index: arrays, then keys."""
    columns = [np.array([row[i] for row in rows], dtype=f"<{kind}") for i, kind in enumerate(kinds.split())]
    ends = np.cumsum([0, *map(len, keys)], dtype="<u8")
    return b"".join([*(column.tobytes() for column in columns), ends.tobytes(), *keys])


BLOCK_KINDS = "u8 u4 u4 u4 u4"


@dataclass
class Crafted:
    """A file in the making: bytes are put where they will lie, and the footer names what it is told to."""

    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    data: bytearray = field(default_factory=lambda: bytearray(b"SKSBLK\1\0"))
    rows: list[tuple] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    index: bytes | None = None
    groups: bytes = strings([])
    row_tables: bytes = strings([])
    metas: bytes = strings([])
    schema_bytes: bytes | None = None
    packs_footer: bool = False
    footer: bytes | None = None

    def put(self, data: bytes) -> int:
        """Puts bytes; where they lie."""
        self.data += bytes(up(len(self.data)) - len(self.data))
        offset = len(self.data)
        self.data += data
        return offset

    def add(self, entries: int, sections: Sequence[Section], first: bytes, last: bytes, times: int = 1) -> Crafted:
        """A block, named by the index as often as is said."""
        offset = up(len(self.data))
        data = block(offset, entries, sections)
        self.put(data)
        self.rows += [(offset, len(data), entries, 0, 8)] * times
        self.keys += [first, last] * times
        return self

    def piece(self, plain: bytes | int, codec: int = RAW) -> tuple[int, int, int, int, int]:
        """Bytes, or a frame of so many zeros: (offset, stored, plain, checksum, codec)."""
        size = plain if isinstance(plain, int) else len(plain)
        stored = plain if isinstance(plain, bytes) else frame(plain)
        if codec == ZSTD and isinstance(plain, bytes):
            stored = zstandard.ZstdCompressor().compress(plain)
        offset = self.put(stored)
        return offset, len(stored), size, bound(stored, offset), codec

    def name_metas(self, pieces: Sequence[tuple]) -> Crafted:
        """The footer's table of metas."""
        arrays = [np.array([p[i] for p in pieces], dtype=k).tobytes() for i, k in enumerate(("<u8", "<u8", "<u8"))]
        arrays += [np.array([p[i] for p in pieces], dtype="<u4").tobytes() for i in (3, 4)]
        self.metas = strings([b"m%d" % i for i in range(len(pieces))]) + b"".join(arrays)
        return self

    def done(self) -> bytes:
        """The whole file."""
        index = struct.pack("<Q", len(self.rows)) + table(self.rows, BLOCK_KINDS, self.keys)
        schema = self.schema.serialize().to_pybytes() if self.schema_bytes is None else self.schema_bytes
        parts = [schema, index if self.index is None else self.index, self.groups, self.row_tables, self.metas]
        heads = [struct.pack("<IIQ", i, 0, len(part)) for i, part in enumerate(parts, 1)]
        plain = b"".join([len(parts).to_bytes(8, "little"), *heads, *parts]) if self.footer is None else self.footer
        stored = zstandard.ZstdCompressor().compress(plain) if self.packs_footer else plain
        offset = self.put(stored)
        fields = struct.pack("<QQQII", offset, len(stored), len(plain), bound(stored, offset), int(self.packs_footer))
        tail = struct.pack("<HH8s", 0, 1, b"SKSBLK\r\n")
        checksum = bound(fields + tail, len(self.data))
        return bytes(self.data) + fields + checksum.to_bytes(4, "little") + tail


MILLION = 1 << 20


def last_number(width: int, number: int) -> bytes:
    return number.to_bytes(width, "big")


def one_block(entries: int, keys: Section, *columns: Section, schema: pa.Schema | None = None, **ends: bytes) -> bytes:
    """A file of one block."""
    width = struct.unpack_from("<I", keys.stored)[0] if keys.codec == RAW and keys.encoding == 3 else 8
    first, last = ends.get("first", bytes(width)), ends.get("last", last_number(width, entries - 1))
    made = Crafted(schema or pa.schema([(f"c{i}", pa.binary()) for i in range(len(columns))]))
    return made.add(entries, [NO_TOMBSTONES, keys, *columns], first, last).done()


def keys_that_are_wide() -> bytes:
    """2^20 keys of 1 MiB each, by a prefix that is stored once."""
    return one_block(MILLION, zipped(numbers(MILLION)), first=bytes(9), last=b"\xff")


def keys_that_share_all() -> bytes:
    shared = 1 << 20
    bundle = struct.pack("<IBBH", shared, 1, 1, 0) + bytes(shared) + bytes(-(-60_000 // 16)) + bytes(60_000)
    return one_block(60_000, zipped(Section(2, bundle)), first=b"", last=b"\xff")


def keys_transposed() -> bytes:
    body = struct.pack("<II", 1 << 19, (1 << 19) - 3) + bytes((1 << 19) - 3) + bytes(3 * 300_000)
    return one_block(300_000, zipped(Section(1, body)), first=b"", last=b"\xff")


def nulls_that_are_wide() -> bytes:
    schema = pa.schema([("c", pa.binary(1 << 26))])
    return one_block(MILLION, numbers(), Section(0), schema=schema)


def nulls_of_many_columns() -> bytes:
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(9_000)])
    return one_block(MILLION, numbers(), *[Section(0)] * 9_000, schema=schema)


def few_nulls_of_many_wide_columns() -> bytes:
    schema = pa.schema([(f"c{i}", pa.binary(400)) for i in range(2_000)])
    return one_block(16_000, numbers(), *[Section(0)] * 2_000, schema=schema)


def constants() -> bytes:
    """64 columns of one value of 900 kB each, for 64 entries."""
    value = zipped(Section(7, strings([bytes(900_000)])))
    return one_block(64, numbers(), *[value] * 64)


def a_dictionary() -> bytes:
    value = zipped(Section(7, strings([b"", bytes(MILLION)]) + b"\1" * MILLION))
    return one_block(MILLION, numbers(), value)


def dictionaries() -> bytes:
    """Of each column most values are short by the least one, and all are long."""
    value = zipped(Section(7, strings([b"", bytes(60_000)]) + b"\1" * 1000))
    return one_block(1000, numbers(), *[value] * 300)


def a_template() -> bytes:
    """32 plain numbers of 18 digits, of no bytes each."""
    part = struct.pack("<BBHIQQ", 2, 0, 0, 0, 10**17, 0)
    body = struct.pack("<II", 32, 0) + part * 32
    return one_block(MILLION, numbers(), Section(8, body + bytes(up(len(body)) - len(body))))


def templates() -> bytes:
    part = struct.pack("<BBHIQQ", 2, 0, 0, 0, 10**17, 1)
    body = struct.pack("<II", 32, 0) + part * 32
    return one_block(100_000, numbers(), *[Section(8, body + bytes(up(len(body)) - len(body)))] * 15)


def a_literal() -> bytes:
    body = struct.pack("<II", 1, MILLION) + struct.pack("<BBHIQQ", 0, 0, 0, MILLION, 0, 0) + bytes(MILLION)
    return one_block(MILLION, numbers(), zipped(Section(8, body)))


def sections_that_grow() -> bytes:
    """Frames of 64 MiB in some kB, of which each would be allowed alone."""
    value = Section(3, frame(1 << 26), ZSTD, 0, 1 << 26)
    return one_block(16_000, numbers(), *[value] * 40)


def a_section_that_grows() -> bytes:
    count = (1 << 24) - 64
    return one_block(MILLION, numbers(), Section(3, frame(4 * count), ZSTD, 0, 4 * count))


def a_frame_of_no_size() -> bytes:
    value = Section(3, frame(1 << 26, states_size=False), ZSTD, 0, 1 << 26)
    return one_block(1000, numbers(), value)


def a_frame_of_another_size() -> bytes:
    return one_block(1000, numbers(), Section(3, frame(1 << 26), ZSTD, 0, 4008))


def a_frame_of_a_wide_window() -> bytes:
    """A frame header that asks for a window of 2^31 bytes, of a content of 2^25."""
    head = b"\x28\xb5\x2f\xfd" + bytes([0x80, (31 - 10) << 3]) + (1 << 25).to_bytes(4, "little")
    run = (((1 << 17) << 3) | 2).to_bytes(3, "little") + b"\0"
    last = (((1 << 17) << 3) | 3).to_bytes(3, "little") + b"\0"
    return one_block(1000, numbers(), Section(3, head + run * 255 + last, ZSTD, 0, 1 << 25))


def one_block_named_often() -> bytes:
    made = Crafted(packs_footer=True)
    return made.add(MILLION, [NO_TOMBSTONES, numbers()], bytes(8), last_number(8, MILLION - 1), times=60_000).done()


def an_index_of_long_keys() -> bytes:
    """A key of the index of 14 MiB."""
    made = Crafted(packs_footer=True)
    made.put(bytes(1 << 10))
    made.index = struct.pack("<Q", 1) + table([(8, 64, 1, 0, 8)], BLOCK_KINDS, [b"", bytes(14 << 20)])
    return made.done()


def an_index_of_many_blocks() -> bytes:
    made = Crafted()
    made.index = struct.pack("<Q", 2**63) + bytes(64)
    return made.done()


def entries_without_end() -> bytes:
    """Blocks of 2^20 keys in 80 bytes each, all of them there."""
    made = Crafted(packs_footer=True)
    for i in range(4):
        ends = last_number(8, i * MILLION), last_number(8, (i + 1) * MILLION - 1)
        made.add(MILLION, [NO_TOMBSTONES, numbers(base=i * MILLION)], *ends)
    return made.done()


def a_footer_that_grows() -> bytes:
    return Crafted(packs_footer=True, footer=bytes(1 << 28)).done()


def names_without_end() -> bytes:
    count = 3 << 20
    return Crafted(packs_footer=True, groups=count.to_bytes(4, "little") + bytes(4 * count)).done()


def sections_without_end() -> bytes:
    count = 800_000
    return Crafted(packs_footer=True, footer=count.to_bytes(8, "little") + bytes(16 * count)).done()


def a_schema_that_nests() -> bytes:
    kind = pa.int8()
    for _ in range(60):
        kind = pa.list_(kind)
    return Crafted(pa.schema([("c", kind)])).done()


def a_schema_of_many_columns() -> bytes:
    return Crafted(pa.schema([(f"c{i}", pa.int8()) for i in range(200_000)]), packs_footer=True).done()


def a_schema_that_is_none() -> bytes:
    return Crafted(schema_bytes=b"\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(64)).done()


def metas_that_grow() -> bytes:
    made = Crafted()
    return made.name_metas([made.piece(1 << 28, ZSTD)]).done()


def metas_that_overlap() -> bytes:
    made = Crafted(packs_footer=True)
    return made.name_metas([made.piece(15 << 20, ZSTD)] * 20_000).done()


def rows_that_overlap() -> bytes:
    made = Crafted(packs_footer=True)
    made.put(bytes(500_000))
    count = 20_000
    arrays = struct.pack(f"<{count}Q", *[8] * count) + struct.pack(f"<{count}Q", *[100_000] * count)
    made.row_tables = strings([b"s%d" % i for i in range(count)]) + arrays + struct.pack(f"<{count}I", *[1] * count)
    return made.done()


def rows_that_are_all_wrong() -> bytes:
    made = Crafted()
    made.put(bytes(1_500_000))
    made.row_tables = strings([b"s"]) + struct.pack("<QQI", 8, 300_000, 1)
    return made.done()


CRAFTED: dict[str, Callable[[], bytes]] = {
    make.__name__: make
    for make in (
        keys_that_are_wide, keys_that_share_all, keys_transposed, nulls_that_are_wide, nulls_of_many_columns,
        few_nulls_of_many_wide_columns, constants, a_dictionary, dictionaries, a_template, templates, a_literal,
        sections_that_grow, a_section_that_grows, a_frame_of_no_size, a_frame_of_another_size, a_frame_of_a_wide_window,
        one_block_named_often, an_index_of_long_keys, an_index_of_many_blocks,
        entries_without_end, a_footer_that_grows, names_without_end, sections_without_end,
        a_schema_that_nests, a_schema_of_many_columns, a_schema_that_is_none, metas_that_grow, metas_that_overlap,
        rows_that_overlap, rows_that_are_all_wrong,
    )
}  # fmt: skip
