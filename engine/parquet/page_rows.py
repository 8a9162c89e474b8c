"""Few rows of Parquet pages as pages of those rows alone, so that whoever decodes them decodes no others.

Values of one width lie at places that can be counted, dictionary codes in runs that say how many they hold. So a page
is decompressed, the bytes of its wanted rows are copied, and the new page, a plain one, is not compressed. Texts lie
one behind the other, each behind its length: compiled code goes to the last that is wanted, and decompresses a large
dictionary by Snappy no further. Without it the page has codes, and the dictionary stays with it. What else there is
(nulls, deltas, bytes that do not add up) is left as it is: None. A page that has a checksum must match it.

Format: github.com/apache/parquet-format, Encodings.md.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...caching import cached_property
from ...errors import CorruptionError
from ...lazy import kernels_for, read_only
from .page_headers import CODECS, Pages
from .thrift import I32, STRUCT, a_struct, an_int, int_at, skipped, varint, varint_at

PLAIN, RLE, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 3, 2, 8
CODED = (_PLAIN_DICTIONARY, _RLE_DICTIONARY)
_DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
_WIDTHS = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_RUNS_MAX = 128  # a page of more runs of codes is decoded sooner than they are walked without compiled code
_CODES_PLAIN_NS = 300_000  # about what a page of codes takes without it
_CODE_BITS_MAX = 32
_TEXTS_PLAIN_MAX = 2_000  # texts that are walked without compiled code: beyond, decoding them is quicker
_TEXT_PLAIN_NS = 40  # about what one takes without it, walked or decoded
_PAGE_BYTES_MAX = 16 << 20  # what a header claims is not believed beyond
_SNAPPY, _PARTLY_BYTES_MIN = 1, 1 << 16  # a large dictionary by Snappy is decompressed as far as it is needed
_CODEC_NAMES = {number: name.lower() for name, number in CODECS.items()}


def only(pages: Pages, leaf: Any, wanted: np.ndarray) -> Pages | None:
    """The pages of a column chunk, of a column that is not nested, with the wanted rows of the row group (ascending)
    and no others; None where that cannot be. `leaf`: the column in Parquet's schema.

    Raises CorruptionError for a page that is not what its checksum, where it has one, was made of.
    """
    width = leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(leaf.physical_type, 0)
    if leaf.max_definition_level > 1 or (not width and leaf.physical_type != "BYTE_ARRAY"):
        return None
    try:
        dictionary = _Dictionary(pages.dictionary, pages.codec) if pages.dictionary else None
        data, starts, row = [], [], 0
        keeps_codes = False
        for page, (start, count) in zip(pages.data, pages.starts, strict=True):
            first, end = np.searchsorted(wanted, (start, start + count))
            opened = _opened(page, pages.codec)
            values = opened.values(leaf.max_definition_level)
            cut = None
            if values is not None and opened.values_count == count:
                cut = _only_values(opened, values, wanted[first:end] - start, width, dictionary)
            if cut is None:
                return None
            encoding, body = cut
            keeps_codes |= encoding == _RLE_DICTIONARY
            size = int(end - first)
            data.append(_page(body, size, encoding, leaf.max_definition_level))
            starts.append((row, size))
            row += size
        stored = b"" if dictionary is None or not keeps_codes else dictionary.as_page()
    except CorruptionError:
        raise
    except (KeyError, IndexError, ValueError, pa.ArrowException, OSError):
        return None
    return replace(pages, codec=0, dictionary=stored, data=data, starts=tuple(starts), last=row, is_cut=True)


class _Dictionary:
    """A dictionary page, decompressed as far as it is asked for. Raises as `_opened`."""

    def __init__(self, page: bytes | memoryview, codec: int):
        stored = page_at(memoryview(page), 0)
        if stored.kind != DICTIONARY_PAGE or stored.encoding not in (PLAIN, _PLAIN_DICTIONARY):
            raise ValueError("a dictionary of a kind that is not known")
        self.values_count, self._encoding, self._codec = stored.values_count, stored.encoding, codec
        self._stored, self._size = stored.stored, stored.size
        self._out: np.ndarray | None = None  # what Snappy's bytes became so far
        self._progress = np.zeros(2, dtype=np.int64)

    @cached_property
    def body(self) -> np.ndarray:
        return np.frombuffer(decompressed(self._stored, self._codec, self._size), dtype=np.uint8)

    def _begin(self, least_bytes: int) -> np.ndarray:
        """At least so many bytes of the body, or all of it."""
        kernels = None
        if self._codec == _SNAPPY and _PARTLY_BYTES_MIN <= self._size <= _PAGE_BYTES_MAX:
            kernels = kernels_for("engine.parquet.kernels", self._size - least_bytes)  # about 1 ns a byte
        if kernels is None or "body" in self.__dict__:
            return self.body
        if self._out is None:
            self._out = np.empty(self._size + kernels.ROOM_BYTES, dtype=np.uint8)
        if not kernels.unsnap(read_only(self._stored), self._out, self._progress, least_bytes):
            return self.body
        return read_only(self._out[: int(self._progress[1])])

    def values(self, places: np.ndarray, width: int) -> bytes | None:
        """Those at some places, each of so many bytes; None where they are not there."""
        if self._size != self.values_count * width:
            return None
        begin = self._begin((int(places.max()) + 1) * width)
        return begin[: len(begin) // width * width].reshape(-1, width)[places].tobytes()

    def texts(self, places: np.ndarray) -> bytes | None:
        """As `_texts`."""
        least = self._size * (int(places.max()) + 1) // self.values_count + self._size // 64
        while True:
            begin = self._begin(least)
            texts = _texts(begin, places)
            if texts is not None or len(begin) == self._size:
                return texts
            least = len(begin) + self._size // 16

    def as_page(self) -> bytes:
        own = a_struct((1, I32, an_int(self.values_count)), (2, I32, an_int(self._encoding)))
        return _header(DICTIONARY_PAGE, len(self.body), 7, own) + self.body.tobytes()


class StoredPage(NamedTuple):
    """A page as it lies in the file.

    values_count       nulls among them
    levels_encoding    -1 where the header does not say
    levels_bytes       how many bytes of levels come before the values, where the header says so; never compressed
    size               bytes, decompressed, levels among them
    stored             what follows the header
    end                where the next page begins
    """

    kind: int
    values_count: int
    encoding: int
    levels_encoding: int
    levels_bytes: int | None
    is_compressed: bool
    size: int
    stored: memoryview
    end: int


def page_at(data: memoryview, offset: int) -> StoredPage:
    """The page that begins there. Raises IndexError, KeyError or ValueError for a header that is not known,
    CorruptionError for other bytes than the page's checksum was made of."""
    top, own, begin = _header_fields(data[offset:])
    begin += offset
    kind, end = top[1], begin + top[3]
    stored = data[begin:end]
    if not 0 <= top[3] == len(stored) or own[1] < 0:
        raise ValueError("a page of another size")
    if 4 in top and zlib.crc32(stored) != top[4] & 0xFFFFFFFF:
        raise CorruptionError("a page does not match its checksum; restore the file", check="page checksum")
    if kind == DATA_PAGE_V2:
        levels_bytes = own[5] + own[6]
        if own[6] or not 0 <= levels_bytes <= min(top[2], top[3]):
            raise ValueError("levels that are not known")
        return StoredPage(kind, own[1], own[4], RLE, levels_bytes, bool(own.get(7, 1)), top[2], stored, end)
    if kind not in (_DATA_PAGE, DICTIONARY_PAGE):
        raise ValueError("a page of a kind that is not known")
    return StoredPage(kind, own[1], own[2], own.get(3, -1), None, True, top[2], stored, end)


class _Page(NamedTuple):
    """A data page, decompressed; `levels_bytes`: how many of its bytes are levels, where the header says so."""

    values_count: int
    encoding: int
    levels_encoding: int
    levels_bytes: int | None
    body: memoryview

    def values(self, max_level: int) -> np.ndarray | None:
        """What follows the levels, uint8; None where some are null, or not every level is told by one run."""
        if not max_level:
            return np.frombuffer(self.body, dtype=np.uint8) if not self.levels_bytes else None
        begin = 0 if self.levels_bytes is not None else 4
        length = int.from_bytes(self.body[:4], "little") if self.levels_bytes is None else self.levels_bytes
        run = varint(self.values_count << 1) + b"\1"
        if self.levels_encoding != RLE or self.body[begin : begin + length] != run:
            return None
        return np.frombuffer(self.body, dtype=np.uint8)[begin + length :]


def _opened(data: bytes | memoryview, codec: int) -> _Page:
    """Raises as `page_at`, and ArrowException for bytes that are not of the codec."""
    page = page_at(memoryview(data), 0)
    if page.kind == DICTIONARY_PAGE:
        raise ValueError("a page of a kind that is not known")
    if page.levels_bytes is None:
        body = decompressed(page.stored, codec, page.size)
    else:
        rest = page.stored[page.levels_bytes :]
        if page.is_compressed:
            rest = decompressed(rest, codec, page.size - page.levels_bytes)
        body = memoryview(b"".join([page.stored[: page.levels_bytes], rest]))
    return _Page(page.values_count, page.encoding, page.levels_encoding, page.levels_bytes, body)


def _header_fields(page: Any) -> tuple[dict[int, int], dict[int, int], int]:
    """(the numbers of a page's header, those of the header of its kind, where it ends)."""
    found: tuple[dict[int, int], dict[int, int]] = ({}, {})
    depth = number = offset = 0
    outer = 0
    while True:
        head = page[offset]
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
            found[depth][number], offset = int_at(page, offset)
        elif kind in (1, 2):
            found[depth][number] = int(kind == 1)
        elif kind == STRUCT and not depth and number in (5, 7, 8) and not found[1]:
            depth, outer, number = 1, number, 0
        else:
            offset = skipped(page, offset, kind)


def decompressed(stored: memoryview, codec: int, size: int) -> memoryview:
    """So many bytes. Raises ValueError, or ArrowException, where they are others."""
    if not 0 <= size <= _PAGE_BYTES_MAX or (codec == 0 and len(stored) != size):
        raise ValueError("a page of another size, or a large one")
    if codec == 0 or not size:
        return stored
    plain = memoryview(pa.Codec(_CODEC_NAMES[codec]).decompress(stored, decompressed_size=size)).cast("B").toreadonly()
    if len(plain) != size:
        raise ValueError("a page of another size")
    return plain


def _only_values(
    page: _Page, values: np.ndarray, rows: np.ndarray, width: int, dictionary: _Dictionary | None
) -> tuple[int, bytes] | None:
    """(encoding, bytes) of the values at some rows of a page: plain, or codes of a dictionary that stays."""
    if page.encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY) and dictionary is not None:
        codes = _codes(values, rows)
        if codes is None or int(codes.max()) >= dictionary.values_count:
            return None
        if not width:
            texts = dictionary.texts(codes)
            return (_RLE_DICTIONARY, _packed(codes, int(values[0]))) if texts is None else (PLAIN, texts)
        plain = dictionary.values(codes, width)
        return None if plain is None else (PLAIN, plain)
    if page.encoding != PLAIN:
        return None
    if not width:
        texts = _texts(values, rows)
        return None if texts is None else (PLAIN, texts)
    if len(values) != page.values_count * width:
        return None
    return PLAIN, values.reshape(-1, width)[rows].tobytes()


def _texts(values: np.ndarray, places: np.ndarray) -> bytes | None:
    """Of plain texts, those at some places, each behind its length; None where they are not there, or too many are
    before them to be walked without compiled code."""
    if len(values) >= 4:
        # Texts of one length lie as values of one width do.
        width = 4 + int.from_bytes(values[:4].tobytes(), "little")
        if len(values) % width == 0:
            table = values.reshape(-1, width)
            if places.max() < len(table) and (table[:, :4] == table[0, :4]).all():
                return table[places].tobytes()
    distinct, of_place = np.unique(places, return_inverse=True)
    last = int(distinct[-1])
    kernels = kernels_for("engine.parquet.kernels", last * _TEXT_PLAIN_NS)
    if kernels is not None:
        bounds = np.empty((len(distinct), 2), dtype=np.int64)
        if not kernels.texts_at(values, distinct, bounds):
            return None
    elif last < _TEXTS_PLAIN_MAX:
        plain = texts_plainly(values, distinct)
        if plain is None:
            return None
        bounds = plain
    else:
        return None
    texts = [values[begin:end].tobytes() for begin, end in bounds.tolist()]
    return b"".join([texts[i] for i in of_place.tolist()])


def texts_plainly(values: np.ndarray, places: np.ndarray) -> np.ndarray | None:
    """int64 [places, 2]: where texts, each behind its length, begin and end; `places` ascend."""
    data, size = values.data, len(values)
    bounds: list[tuple[int, int]] = []
    begin, wanted = 0, places.tolist()
    for place in range(wanted[-1] + 1):
        end = begin + 4 + int.from_bytes(data[begin : begin + 4], "little")
        if begin + 4 > size or end > size:
            return None
        if place == wanted[len(bounds)]:
            bounds.append((begin, end))
        begin = end
    return np.array(bounds, dtype=np.int64)


def _codes(values: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """int64 [rows]: dictionary codes at some rows of a page; None where they are not there, or too many runs are before
    them to be walked without compiled code."""
    kernels = kernels_for("engine.parquet.kernels", _CODES_PLAIN_NS)
    if kernels is None:
        return codes_plainly(values, rows)
    codes = np.empty(len(rows), dtype=np.int64)
    return codes if kernels.codes_at(values, rows, codes) else None


def codes_plainly(values: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """How many bits a code has, then runs of one code, or of packed ones."""
    data = values.tobytes()
    width = data[0]
    if width > _CODE_BITS_MAX:
        return None
    codes: list[int] = []
    wanted, row, offset = rows.tolist(), 0, 1
    for _ in range(_RUNS_MAX):
        head, offset = varint_at(data, offset)
        count = head >> 1
        size = count * width if head & 1 else (width + 7) // 8
        if not count or offset + size > len(data):
            return None
        end = row + (8 * count if head & 1 else count)
        while len(codes) < len(wanted) and wanted[len(codes)] < end:
            code = 0
            if head & 1:
                place = 8 * offset + (wanted[len(codes)] - row) * width
                code = int.from_bytes(data[place >> 3 : (place + width + 7) >> 3], "little") >> (place & 7)
                code &= (1 << width) - 1
            else:
                code = int.from_bytes(data[offset : offset + size], "little")
            codes.append(code)
        row, offset = end, offset + size
        if len(codes) == len(wanted):
            return np.array(codes, dtype=np.int64)
    return None


def _packed(codes: np.ndarray, width: int) -> bytes:
    """Codes of so many bits as one packed run."""
    groups = -(-len(codes) // 8)
    padded = np.zeros(8 * groups, dtype=np.uint64)
    padded[: len(codes)] = codes
    bits = (padded[:, None] >> np.arange(width, dtype=np.uint64) & np.uint64(1)).astype(np.uint8)
    return bytes([width]) + varint(groups << 1 | 1) + np.packbits(bits.reshape(-1), bitorder="little").tobytes()


def _page(values: bytes, count: int, encoding: int, max_level: int) -> bytes:
    """A data page that is not compressed, of values of which none is null."""
    run = varint(count << 1) + b"\1"
    body = struct.pack("<I", len(run)) + run + values if max_level else values
    own = a_struct((1, I32, an_int(count)), (2, I32, an_int(encoding)), (3, I32, an_int(RLE)), (4, I32, an_int(RLE)))
    return _header(_DATA_PAGE, len(body), 5, own) + body


def _header(kind: int, size: int, number: int, own: bytes) -> bytes:
    sizes = an_int(size)
    return a_struct((1, I32, an_int(kind)), (2, I32, sizes), (3, I32, sizes), (number, STRUCT, own))
