"""Where the pages of a column chunk begin, and which of them hold some rows: each header says where the next one is.

Format: github.com/apache/parquet-format, parquet.thrift, PageHeader.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import CorruptionError, SkipstoneError
from ...lazy import kernels_for, read_only
from .thrift import I32, STRUCT, int_at, skipped

ReadAt = Callable[[int, int], bytes]  # (offset, length) -> bytes of the file

# Not LZ4: pyarrow calls two codecs by that name.
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6}
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
RLE = 3
_HEADER_BYTES = 512
_HEADER_PLAIN_NS = 15_000  # what one takes without compiled code
_PAGES_AT_ONCE = 32
_HEADER_BYTES_MAX = 1 << 16
_WHOLE_BYTES = 1 << 16  # chunks up to here are read at once


class PagesUnknownError(Exception):
    """Something in a file that is not known here: pyarrow is to read it as it is."""


@dataclass(frozen=True)
class Pages:
    """What is kept of one column chunk.

    codec         by which its pages are compressed: Parquet's number
    dictionary    the dictionary page with its header, empty where there is none
    data          the data pages that hold wanted rows, with their headers
    starts        the first row of each, and how many it has
    last          rows up to the last that is wanted, counted over the kept pages
    is_cut        the pages hold wanted rows alone (`page_rows`)
    """

    codec: int
    dictionary: bytes | memoryview
    data: Sequence[bytes | memoryview]
    starts: tuple[tuple[int, int], ...]
    last: int
    is_cut: bool = False


class ChunkPlace(NamedTuple):
    """Where a column chunk lies in its file, and its first data page; `codec` as of `Pages`, None where not known."""

    begin: int
    data_begin: int
    end: int
    codec: int | None

    @classmethod
    def of(cls, chunk: Any) -> ChunkPlace:
        begin = data_begin = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < begin:
            begin = chunk.dictionary_page_offset
        return cls(begin, data_begin, begin + chunk.total_compressed_size, CODECS.get(chunk.compression))

    def moved(self, begin: int) -> ChunkPlace:
        """Where it lies once it was copied to a place."""
        by = begin - self.begin
        return ChunkPlace(begin, self.data_begin + by, self.end + by, self.codec)


class PageHeader(NamedTuple):
    """What a page's header says, and where the page lies in some bytes.

    values_count       nulls among them
    levels_encoding    -1 where the header does not say
    levels_bytes       how many bytes of levels come before the values, never compressed; -1 where the header does not
                       say, since they are compressed with the values, and begin with their length
    size_bytes         decompressed, levels among them
    checksum           -1 where there is none
    head, begin, end   where the header begins, what follows it, and the next page
    """

    kind: int
    values_count: int
    encoding: int
    levels_encoding: int
    levels_bytes: int
    is_compressed: int
    size_bytes: int
    checksum: int
    head: int
    begin: int
    end: int


class StoredPages(NamedTuple):
    """Pages of a column chunk in some bytes, a dictionary first where there is one.

    codec      as of `Pages`
    headers    int64 [pages, fields of a PageHeader]: as kernels read them
    """

    codec: int
    data: memoryview
    headers: np.ndarray

    def each(self) -> Iterator[tuple[PageHeader, memoryview]]:
        """Of each page its header, and what follows it."""
        for row in self.headers.tolist():
            header = PageHeader(*row)
            yield header, self.data[header.begin : header.end]

    def check(self) -> None:
        """Raises CorruptionError for a page that does not match the checksum that it has."""
        if (self.headers[:, _CHECKSUM] >= 0).any():
            for header, stored in self.each():
                if header.checksum >= 0 and zlib.crc32(stored) != header.checksum:
                    raise CorruptionError("a page does not match its checksum; restore the file", check="page checksum")


class KeptPages(NamedTuple):
    """The pages of a column chunk that hold some rows; `starts` and `last` as of `Pages`."""

    stored: StoredPages
    starts: tuple[tuple[int, int], ...]
    last: int

    @property
    def dictionary_bytes(self) -> int:
        """With its header; 0 where there is none."""
        first = self.stored.headers[0]
        return int(first[_END] - first[_HEAD]) if first[0] == DICTIONARY_PAGE else 0

    def as_they_are(self) -> Pages:
        data = self.stored.data
        parts = [data[header.head : header.end] for header, _ in self.stored.each()]
        dictionary = parts.pop(0) if len(parts) > len(self.starts) else b""
        return Pages(self.stored.codec, dictionary, parts, self.starts, self.last)


def pages_of(chunk: Any, read_at: ReadAt, wanted: np.ndarray) -> KeptPages:
    """The pages of one column chunk that hold wanted rows. Raises PagesUnknownError."""
    place = ChunkPlace.of(chunk)
    if place.codec is None:
        raise PagesUnknownError(f"codec {chunk.compression}")
    size, dictionary_bytes = place.end - place.begin, place.data_begin - place.begin
    try:
        if size <= max(_WHOLE_BYTES, 2 * dictionary_bytes):  # most of it is read in any case
            data = memoryview(read_at(place.begin, size))
            headers = headers_in(data, int(wanted[-1]) + 1)
        else:
            data, headers = _read_one_by_one(_Window(read_at, place.begin, place.end), wanted)
    except SkipstoneError:
        raise
    except (IndexError, KeyError, ValueError) as error:
        raise PagesUnknownError(str(error)) from error
    starts: list[tuple[int, int]] = []
    kept: list[int] = []
    row = done = 0
    for number, (kind, count) in enumerate(headers[:, :2].tolist()):  # they are few: sooner than by numpy
        if kind == DICTIONARY_PAGE:
            if number:
                raise PagesUnknownError("a dictionary behind values")
            kept.append(number)
            continue
        end = int(wanted.searchsorted(row + count))
        if end > done:
            starts.append((row, count))
            kept.append(number)
        row, done = row + count, end
    if row > chunk.num_values:
        raise PagesUnknownError("pages hold more rows than their chunk")
    last = sum(count for _, count in starts[:-1]) + int(wanted[-1]) + 1 - starts[-1][0]
    return KeptPages(StoredPages(place.codec, data, headers[kept]), tuple(starts), last)


def _read_one_by_one(window: _Window, wanted: np.ndarray) -> tuple[memoryview, np.ndarray]:
    """(what the pages with wanted rows are, one behind the other; headers: of other pages they say no place)."""
    parts: list[memoryview] = []
    headers: list[PageHeader] = []
    offset, row, held_bytes, done = window.begin, 0, 0, 0
    while done < len(wanted):
        header = window.header(offset)
        row += 0 if header.kind == DICTIONARY_PAGE else header.values_count
        end = int(wanted.searchsorted(row))
        length = header.end
        if end > done or header.kind == DICTIONARY_PAGE:
            parts.append(window(offset, length))
            header = header._replace(head=held_bytes, begin=held_bytes + header.begin, end=held_bytes + length)
            held_bytes += length
        else:
            header = header._replace(begin=-1)
        headers.append(header)
        offset, done = offset + length, end
    return memoryview(b"".join(parts)), np.array(headers, dtype=np.int64)


class _Window:
    """Reads of one chunk: the next header comes with the page before it."""

    def __init__(self, read_at: ReadAt, begin: int, end: int):
        self._read_at, self.begin, self._end = read_at, begin, end
        self._start, self._data = 0, memoryview(b"")

    def __call__(self, offset: int, length: int) -> memoryview:
        if offset + length > self._end:
            raise PagesUnknownError("a page goes beyond its chunk")
        begin = offset - self._start
        if not 0 <= begin <= begin + length <= len(self._data):
            self._data = memoryview(self._read_at(offset, min(length + _HEADER_BYTES, self._end - offset)))
            self._start, begin = offset, 0
        return self._data[begin : begin + length]

    def header(self, offset: int) -> PageHeader:
        """Of the page at `offset` of the file; where it lies is counted from there."""
        length = _HEADER_BYTES
        while True:
            data = self(offset, min(length, self._end - offset))
            try:
                return header_at(data, 0)
            except IndexError:
                if length >= min(self._end - offset, _HEADER_BYTES_MAX):
                    raise PagesUnknownError("a page header is cut short") from None
                length *= 16


def headers_in(data: memoryview, row_count: int) -> np.ndarray:
    """As `StoredPages.headers`: the pages from the first on, until they hold so many rows. Raises as `header_at`, and
    ValueError where there are not so many."""
    parts: list[np.ndarray] = []
    offset = 0
    while row_count > 0:
        headers = np.empty((_PAGES_AT_ONCE, len(PageHeader._fields)), dtype=np.int64)
        kernels = kernels_for("engine.parquet.kernels", _HEADER_PLAIN_NS)
        found = 0 if kernels is None else kernels.headers_in(read_only(data), offset, row_count, headers)
        if not found:  # or it says what is wrong
            headers[0], found = header_at(data, offset), 1
        parts.append(headers[:found])
        offset = int(headers[found - 1, _END])
        row_count -= sum(count for kind, count in headers[:found, :2].tolist() if kind != DICTIONARY_PAGE)
        if offset > len(data):
            raise ValueError("a page goes beyond its chunk")
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty((0, len(PageHeader._fields)), dtype=np.int64)


def are_whole(data: memoryview, chunks: np.ndarray) -> bool:
    """Whether the pages of column chunks say that they hold as many rows, and lie where they do. For a reader that
    trusts what headers say: it may ask for memory by it that no machine has, and end the process.

    chunks    int64 [n, 3]: where each chunk begins in `data`, where it ends, and its rows
    """
    kernels = kernels_for("engine.parquet.kernels", 2 * _HEADER_PLAIN_NS * len(chunks))
    if kernels is not None:
        headers = np.empty((_PAGES_AT_ONCE, len(PageHeader._fields)), dtype=np.int64)
        if kernels.are_whole(read_only(data), chunks, headers):
            return True
    try:
        return all(_is_whole(data[begin:end], row_count) for begin, end, row_count in chunks.tolist())
    except (ValueError, IndexError, KeyError):
        return False


def _is_whole(chunk: memoryview, row_count: int) -> bool:
    for header in map(PageHeader._make, headers_in(chunk, row_count).tolist()):
        if header.kind != DICTIONARY_PAGE:
            row_count -= header.values_count
        elif header.values_count > header.size_bytes:
            return False
    return row_count == 0


def header_at(data: memoryview, offset: int) -> PageHeader:
    """The header that begins there, also of a page that ends behind the bytes. Raises IndexError, KeyError or
    ValueError for one that is cut short, or not known."""
    top, own, begin = _header_fields(data, offset)
    kind, checksum = top[1], top[4] & 0xFFFFFFFF if 4 in top else -1
    if min(top[2], top[3], own[1]) < 0:
        raise ValueError("a page of another size")
    if kind == DATA_PAGE_V2:
        levels_bytes = own[5] + own[6]
        if own[6] or not 0 <= levels_bytes <= min(top[2], top[3]):
            raise ValueError("levels that are not known")
        form = (own[4], RLE, levels_bytes, int(own.get(7, 1) != 0))
    elif kind in (DATA_PAGE, DICTIONARY_PAGE):
        form = (own[2], own.get(3, -1), -1, 1)
    else:
        raise ValueError("a page of a kind that is not known")
    return PageHeader(kind, own[1], *form, top[2], checksum, offset, begin, begin + top[3])


def _header_fields(data: Any, offset: int) -> tuple[dict[int, int], dict[int, int], int]:
    """(the numbers of a page's header, those of the header of its kind, where it ends)."""
    found: tuple[dict[int, int], dict[int, int]] = ({}, {})
    depth = number = outer = 0
    while True:
        head = data[offset]
        offset += 1
        if not head:
            if not depth:
                return (*found, offset)
            depth, number = 0, outer
            continue
        if head < 16:
            raise ValueError("a page header of unknown fields")
        number += head >> 4
        kind = head & 15
        if kind == I32:
            found[depth][number], offset = int_at(data, offset)
        elif kind in (1, 2):
            found[depth][number] = int(kind == 1)
        elif kind == STRUCT and not depth and number in (5, 7, 8) and not found[1]:
            depth, outer, number = 1, number, 0
        else:
            offset = skipped(data, offset, kind)


_CHECKSUM, _HEAD, _BEGIN, _END = (PageHeader._fields.index(name) for name in ("checksum", "head", "begin", "end"))
