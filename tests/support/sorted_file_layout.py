"""Where things are in a sorted-block file, from FORMAT.md and not from the library: to name its bytes, and to make
checksums fit again after damage, so that the checks behind them are tested."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import zstandard

HEADER_BYTES, TRAILER_BYTES = 8, 48
HEAD_BYTES, SECTION_BYTES = 16, 16
SCHEMA, INDEX, GROUPS, ROW_TABLES, METAS, SUMMARIES = range(1, 7)


_TRAILER_FIELDS = ((0, 8), (8, 8), (16, 8), (24, 4), (28, 4), (36, 2), (38, 2))
# What counts and lengths a section has are in its first bytes; templates have some of their parts there.
_SECTION_HEAD_BYTES = 128


def _words(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Every aligned number of 4 bytes and of 8."""
    yield from ((place, 4) for place in range(start, stop - 3, 4))
    yield from ((place, 8) for place in range(start, stop - 7, 8))


@dataclass(frozen=True)
class Region:
    """Bytes that one checksum is over, or that none is.

    kind    header, block, row, meta, footer, trailer, padding
    number  which of its kind
    """

    kind: str
    start: int
    stop: int
    number: int = 0


def u(data: bytes | bytearray | memoryview, at: int, width: int) -> int:
    """An integer of the file."""
    return int.from_bytes(data[at : at + width], "little")


def bound(data: bytes | bytearray, offset: int) -> int:
    """The checksum of bytes at an offset."""
    return zlib.crc32(data) ^ zlib.crc32(offset.to_bytes(8, "little"))


def up(n: int) -> int:
    """The next multiple of 8."""
    return (n + 7) // 8 * 8


def strings(data: bytes, at: int = 0) -> tuple[list[bytes], int]:
    """(a table of strings, where it ends)."""
    count = u(data, at, 4)
    lengths = struct.unpack_from(f"<{count}I", data, at + 4)
    cuts = list(accumulate(lengths, initial=at + 4 + 4 * count))
    return [data[a:b] for a, b in pairwise(cuts)], cuts[-1]


def columns(data: bytes, formats: str) -> list[tuple]:
    """(name, number ...) of each row of a table of the footer; a letter of `struct` for each number."""
    names, at = strings(data)
    found = []
    for letter in formats:
        found.append(struct.unpack_from(f"<{len(names)}{letter}", data, at))
        at += struct.calcsize(f"<{len(names)}{letter}")
    return list(zip(names, *found, strict=True))


class Layout:
    """Where everything is in a sound file.

    footer    its plain bytes; `sections`: id -> (where it begins in them, its bytes)
    blocks    (offset, length)
    regions   in order, without gaps
    """

    def __init__(self, data: bytes):
        at = len(data) - TRAILER_BYTES
        self.size, self.data = len(data), data
        self.footer_at, self.footer_stored = u(data, at, 8), u(data, at + 8, 8)
        self.footer_codec = u(data, at + 28, 4)
        self.footer = data[self.footer_at : at]
        if self.footer_codec:
            self.footer = zstandard.decompress(self.footer)
        self.sections: dict[int, tuple[int, bytes]] = {}
        start = 8 + 16 * u(self.footer, 0, 8)
        for i in range(u(self.footer, 0, 8)):
            kind, length = u(self.footer, 8 + 16 * i, 4), u(self.footer, 16 + 16 * i, 8)
            self.sections[kind] = (start, self.footer[start : start + length])
            start += length
        self.metas = columns(self.sections[METAS][1], "QQQII")
        self.row_tables = columns(self.sections[ROW_TABLES][1], "QQI")
        _, index = self.sections[INDEX]
        count = u(index, 0, 8)
        self.blocks = [(u(index, 8 + 8 * i, 8), u(index, 8 + 8 * count + 4 * i, 4)) for i in range(count)]
        self.regions = list(self._filled(sorted(self._regions(), key=lambda region: region.start)))

    def _regions(self) -> Iterator[Region]:
        yield Region("header", 0, HEADER_BYTES)
        for i, (offset, length) in enumerate(self.blocks):
            yield Region("block", offset, offset + length, i)
        for _, offset, rows, stride in self.row_tables:
            for i in range(rows):
                yield Region("row", offset + i * (stride + 4), offset + (i + 1) * (stride + 4), i)
        for i, (_, offset, stored, *_) in enumerate(self.metas):
            if stored:
                yield Region("meta", offset, offset + stored, i)
        yield Region("footer", self.footer_at, self.footer_at + self.footer_stored)
        yield Region("trailer", self.size - TRAILER_BYTES, self.size)

    @staticmethod
    def _filled(regions: list[Region]) -> Iterator[Region]:
        at = 0
        for region in regions:
            if region.start > at:
                yield Region("padding", at, region.start)
            yield region
            at = region.stop

    def fields(self) -> Iterator[tuple[int, int]]:
        """(place, width) of numbers: of the trailer, of heads and directories of blocks, and the words and double words
        of sections that are not compressed."""
        for region in self.regions:
            if region.kind == "trailer":
                yield from ((region.start + at, width) for at, width in _TRAILER_FIELDS)
            elif region.kind == "block":
                yield from self._block_fields(region.start)
            elif region.kind == "footer" and not self.footer_codec:
                yield from _words(region.start, region.stop)

    def _block_fields(self, offset: int) -> Iterator[tuple[int, int]]:
        yield from ((offset + at, width) for at, width in ((4, 4), (8, 4), (12, 2), (14, 2)))
        sections = u(self.data, offset + 12, 2)
        at = offset + HEAD_BYTES + SECTION_BYTES * sections
        for entry in range(offset + HEAD_BYTES, at, SECTION_BYTES):
            yield from ((entry + place, width) for place, width in ((0, 1), (1, 1), (2, 2), (4, 4), (8, 4)))
            stored = u(self.data, entry + 4, 4)
            if not self.data[entry]:
                yield from ((at + place, 1) for place in range(min(stored, 8)))
                yield from _words(at, at + min(stored, _SECTION_HEAD_BYTES))
            at += up(stored)

    def region_at(self, position: int) -> Region:
        """The region of a byte."""
        return next(r for r in self.regions if r.start <= position < r.stop)

    def repair(self, data: bytearray, region: Region) -> None:
        """Make the checksums of a damaged region fit its bytes."""
        if region.kind == "block":
            repair_block(data, region.start, region.stop - region.start)
        elif region.kind == "row":
            end = region.stop - 4
            data[end : region.stop] = bound(data[region.start : end], region.start).to_bytes(4, "little")
        elif region.kind == "meta" and not self.footer_codec:  # else the footer is compressed, and left unchanged
            begins, table = self.sections[METAS]
            names, at = strings(table)
            at += self.footer_at + begins + len(names) * 24 + 4 * region.number
            data[at : at + 4] = bound(data[region.start : region.stop], region.start).to_bytes(4, "little")
        if region.kind in ("meta", "footer", "trailer"):
            repair_trailer(data)


def repair_trailer(data: bytearray) -> None:
    """The checksums of the footer, at the place that the trailer names, and of the trailer."""
    at = len(data) - TRAILER_BYTES
    offset, stored = u(data, at, 8), u(data, at + 8, 8)
    if offset + stored <= at:
        data[at + 24 : at + 28] = bound(data[offset : offset + stored], offset).to_bytes(4, "little")
    data[at + 32 : at + 36] = bound(data[at : at + 32] + data[at + 36 :], at).to_bytes(4, "little")


def repair_block(data: bytearray, offset: int, length: int) -> None:
    """The checksums of a block's sections and of its head, as far as its directory names bytes of the block."""
    end = HEAD_BYTES + SECTION_BYTES * u(data, offset + 12, 2)
    if end > length:
        return
    at = offset + end
    for entry in range(offset + HEAD_BYTES, offset + end, SECTION_BYTES):
        next_at = at + up(u(data, entry + 4, 4))
        if next_at > offset + length:
            break
        data[entry + 12 : entry + 16] = bound(data[at:next_at], at).to_bytes(4, "little")
        at = next_at
    data[offset : offset + 4] = bound(data[offset + 4 : offset + end], offset).to_bytes(4, "little")
