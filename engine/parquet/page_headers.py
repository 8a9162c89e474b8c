"""Where the pages of a column chunk begin, and which of them hold some rows: each header says where the next one is.

Format: github.com/apache/parquet-format, parquet.thrift, PageHeader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .thrift import STRUCT, skipped, varint_at

ReadAt = Callable[[int, int], bytes]  # (offset, length) -> bytes of the file

# Not LZ4: pyarrow calls two codecs by that name.
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6}
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_FIRST_I32 = 0x15  # the head of a struct's field 1, a number of 32 bits
_HEADER_BYTES = 512
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

    def pages(self, read_at: ReadAt, row_count: int) -> Pages:
        """All pages of it, as one piece."""
        if self.codec is None:
            raise PagesUnknownError("a codec of another kind")
        data = memoryview(read_at(self.begin, self.end - self.begin))
        cut = self.data_begin - self.begin
        return Pages(self.codec, data[:cut], [data[cut:]], (), row_count)


def pages_of(chunk: Any, read_at: ReadAt, wanted: np.ndarray) -> Pages:
    """The pages of one column chunk that hold wanted rows."""
    offset, _, end, codec = ChunkPlace.of(chunk)
    if codec is None:
        raise PagesUnknownError(f"codec {chunk.compression}")
    row, dictionary = 0, memoryview(b"")
    window = _Window(read_at, offset, end)
    data: list[bytes | memoryview] = []
    starts = []
    rows_read = last = 0
    remaining = wanted
    while len(remaining):
        kind, size_bytes, count, head_bytes = _header(window, offset, end)
        length = head_bytes + size_bytes
        if offset + length > end:
            raise PagesUnknownError("a page goes beyond its chunk")
        if kind == _DICTIONARY_PAGE and row == 0 and not dictionary:
            dictionary = window(offset, length)
        elif kind in (_DATA_PAGE, _DATA_PAGE_V2):
            row_index = int(np.searchsorted(remaining, row + count))
            if row_index:
                data.append(window(offset, length))
                starts.append((row, count))
                last = rows_read + int(remaining[row_index - 1]) - row + 1
                rows_read += count
                remaining = remaining[row_index:]
            row += count
        else:
            raise PagesUnknownError(f"a page of kind {kind}")
        offset += length
    if row > chunk.num_values:
        raise PagesUnknownError("pages hold more rows than their chunk")
    return Pages(codec, dictionary, data, tuple(starts), last)


class _Window:
    """Reads of one chunk: the next header comes with the page before it, and a small chunk at once."""

    def __init__(self, read_at: ReadAt, begin: int, end: int):
        self._read_at, self._end = read_at, end
        self._least = end - begin if end - begin <= _WHOLE_BYTES else _HEADER_BYTES
        self._start, self._data = 0, memoryview(b"")

    def __call__(self, offset: int, length: int) -> memoryview:
        begin = offset - self._start
        if not 0 <= begin <= begin + length <= len(self._data):
            size = min(max(length + _HEADER_BYTES, self._least), self._end - offset)
            self._data = memoryview(self._read_at(offset, size))
            self._start, begin = offset, 0
        return self._data[begin : begin + length]


def _header(read_at: _Window, offset: int, end: int) -> tuple[int, int, int, int]:
    """Of the page at `offset`: (kind, its bytes after the header, values, bytes of the header)."""
    length = _HEADER_BYTES
    while True:
        data = read_at(offset, min(length, end - offset))
        try:
            return _parsed(data)
        except IndexError:
            if length >= min(end - offset, _HEADER_BYTES_MAX):
                raise PagesUnknownError("a page header is cut short") from None
            length *= 16
        except ValueError as error:
            raise PagesUnknownError(str(error)) from error


def _parsed(data: Any) -> tuple[int, int, int, int]:
    """PageHeader: 1 type, 3 compressed_page_size, and of 5, 7 or 8, the header of its kind, 1 num_values."""
    kind = size_bytes = count = -1
    number = offset = 0
    while data[offset]:
        head = data[offset]
        offset += 1
        number += head >> 4
        if number in (1, 3):
            value, offset = varint_at(data, offset)
            if number == 1:
                kind = value >> 1
            else:
                size_bytes = value >> 1
        elif number in (5, 7, 8) and data[offset] == _FIRST_I32:
            value, end = varint_at(data, offset + 1)
            count = value >> 1
            offset = skipped(
                data, end, STRUCT
            )  # as a struct of the fields that remain: thrift keeps only their distances
        else:
            offset = skipped(data, offset, head & 15)
        if head < 16:
            raise ValueError("a page header of unknown fields")
    if min(kind, size_bytes, count) < 0:
        raise ValueError("a page header without kind, size or values")
    return kind, size_bytes, count, offset + 1
