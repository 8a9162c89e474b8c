"""Sorted-block files of an attacker: small, with checksums that fit and claims that do not: frames that grow a
thousandfold, keys and values that take gigabytes once decoded, blocks that overlap.

They are built from FORMAT.md and not by the library, whose writer refuses them.
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
    """A file that is being built: bytes are appended at their place, and the footer names what it is given."""

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
        """Append bytes, and return their offset."""
        self.data += bytes(up(len(self.data)) - len(self.data))
        offset = len(self.data)
        self.data += data
        return offset

    def add(self, entries: int, sections: Sequence[Section], first: bytes, last: bytes, times: int = 1) -> Crafted:
        """A block, which the index names `times` times."""
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


def any_keys(entries: int, encoding: int, body: bytes) -> bytes:
    """A file of one block of compressed keys."""
    return one_block(entries, zipped(Section(encoding, body)), first=b"", last=b"\xff")


def nulls(entries: int, kind: pa.DataType, columns: int = 1) -> bytes:
    """A file of columns of nulls, which take no bytes."""
    schema = pa.schema([(f"c{i}", kind) for i in range(columns)])
    return one_block(entries, numbers(), *[Section(0)] * columns, schema=schema)


def dictionary(*values: bytes, codes: bytes = b"") -> Section:
    return zipped(Section(7, strings(values) + codes))


def template(step: int) -> Section:
    """32 plain numbers of 18 digits, of no bytes each."""
    body = struct.pack("<II", 32, 0) + struct.pack("<BBHIQQ", 2, 0, 0, 0, 10**17, step) * 32
    return Section(8, body + bytes(up(len(body)) - len(body)))


def frame_of_a_wide_window() -> bytes:
    """Its header requests a window of 2^31 bytes, for a content of 2^25."""
    head = b"\x28\xb5\x2f\xfd" + bytes([0x80, (31 - 10) << 3]) + (1 << 25).to_bytes(4, "little")
    run = (((1 << 17) << 3) | 2).to_bytes(3, "little") + b"\0"
    last = (((1 << 17) << 3) | 3).to_bytes(3, "little") + b"\0"
    return head + run * 255 + last


def an_index_of_long_keys() -> bytes:
    """A key of the index of 14 MiB."""
    made = Crafted(packs_footer=True)
    made.put(bytes(1 << 10))
    made.index = struct.pack("<Q", 1) + table([(8, 64, 1, 0, 8)], BLOCK_KINDS, [b"", bytes(14 << 20)])
    return made.done()


def entries_without_end() -> bytes:
    """Blocks of 2^20 keys in 80 bytes each, all of them there."""
    made = Crafted(packs_footer=True)
    for i in range(4):
        ends = last_number(8, i * MILLION), last_number(8, (i + 1) * MILLION - 1)
        made.add(MILLION, [NO_TOMBSTONES, numbers(base=i * MILLION)], *ends)
    return made.done()


def metas(plain_bytes: int, times: int, **options: bool) -> bytes:
    """A compressed meta of zeros, which the footer names `times` times."""
    made = Crafted(**options)
    return made.name_metas([made.piece(plain_bytes, ZSTD)] * times).done()


def row_tables(filled_bytes: int, rows: int, count: int, **options: bool) -> bytes:
    """Tables of rows of one byte, which begin at one place: no checksum of them fits."""
    made = Crafted(**options)
    made.put(bytes(filled_bytes))
    arrays = struct.pack(f"<{2 * count}Q", *[8] * count, *[rows] * count) + struct.pack(f"<{count}I", *[1] * count)
    made.row_tables = strings([b"s%d" % i for i in range(count)]) + arrays
    return made.done()


def a_schema_that_nests() -> bytes:
    kind = pa.int8()
    for _ in range(60):
        kind = pa.list_(kind)
    return Crafted(pa.schema([("c", kind)])).done()


CRAFTED: dict[str, Callable[[], bytes]] = {
    # 2^20 keys of 1 MiB each, by a prefix that is stored once
    "keys that are wide": lambda: one_block(MILLION, zipped(numbers(MILLION)), first=bytes(9), last=b"\xff"),
    "keys that share all": lambda: any_keys(
        60_000, 2, struct.pack("<IBBH", MILLION, 1, 1, 0) + bytes(MILLION) + bytes(60_000 // 16) + bytes(60_000)
    ),
    "keys transposed": lambda: any_keys(
        300_000, 1, struct.pack("<II", 1 << 19, (1 << 19) - 3) + bytes((1 << 19) - 3) + bytes(3 * 300_000)
    ),
    "nulls that are wide": lambda: nulls(MILLION, pa.binary(1 << 26)),
    "nulls of many columns": lambda: nulls(MILLION, pa.int64(), 9_000),
    "few nulls of many wide columns": lambda: nulls(16_000, pa.binary(400), 2_000),
    # 64 columns of one value of 900 kB each, for 64 entries
    "constants": lambda: one_block(64, numbers(), *[dictionary(bytes(900_000))] * 64),
    "a dictionary": lambda: one_block(MILLION, numbers(), dictionary(b"", bytes(MILLION), codes=b"\1" * MILLION)),
    "dictionaries": lambda: one_block(1000, numbers(), *[dictionary(b"", bytes(60_000), codes=b"\1" * 1000)] * 300),
    "a template": lambda: one_block(MILLION, numbers(), template(0)),
    "templates": lambda: one_block(100_000, numbers(), *[template(1)] * 15),
    "a literal": lambda: one_block(
        MILLION,
        numbers(),
        zipped(Section(8, struct.pack("<IIBBHIQQ", 1, MILLION, 0, 0, 0, MILLION, 0, 0) + bytes(MILLION))),
    ),
    # frames of 64 MiB in some kB, of which each would be allowed alone
    "sections that grow": lambda: one_block(16_000, numbers(), *[Section(3, frame(1 << 26), ZSTD, 0, 1 << 26)] * 40),
    "a section that grows": lambda: one_block(
        MILLION, numbers(), Section(3, frame((1 << 26) - 256), ZSTD, 0, (1 << 26) - 256)
    ),
    "a frame of no size": lambda: one_block(
        1000, numbers(), Section(3, frame(1 << 26, states_size=False), ZSTD, 0, 1 << 26)
    ),
    "a frame of another size": lambda: one_block(1000, numbers(), Section(3, frame(1 << 26), ZSTD, 0, 4008)),
    "a frame of a wide window": lambda: one_block(
        1000, numbers(), Section(3, frame_of_a_wide_window(), ZSTD, 0, 1 << 25)
    ),
    "one block named often": lambda: (
        Crafted(packs_footer=True)
        .add(MILLION, [NO_TOMBSTONES, numbers()], bytes(8), last_number(8, MILLION - 1), times=60_000)
        .done()
    ),
    "an index of long keys": an_index_of_long_keys,
    "an index of many blocks": lambda: Crafted(index=struct.pack("<Q", 2**63) + bytes(64)).done(),
    "entries without end": entries_without_end,
    "a footer that grows": lambda: Crafted(packs_footer=True, footer=bytes(1 << 28)).done(),
    "names without end": lambda: Crafted(packs_footer=True, groups=struct.pack("<I", 3 << 20) + bytes(12 << 20)).done(),
    "sections without end": lambda: Crafted(
        packs_footer=True, footer=struct.pack("<Q", 800_000) + bytes(16 * 800_000)
    ).done(),
    "a schema that nests": a_schema_that_nests,
    "a schema of many columns": lambda: Crafted(
        pa.schema([(f"c{i}", pa.int8()) for i in range(200_000)]), packs_footer=True
    ).done(),
    "a schema that is none": lambda: Crafted(schema_bytes=b"\xff" * 7 + b"\x7f" + bytes(64)).done(),
    "metas that grow": lambda: metas(1 << 28, 1),
    "metas that overlap": lambda: metas(15 << 20, 20_000, packs_footer=True),
    "rows that overlap": lambda: row_tables(500_000, 100_000, 20_000, packs_footer=True),
    "rows that are all wrong": lambda: row_tables(1_500_000, 300_000, 1),
}
