"""Few rows of Parquet pages as pages of those rows alone, so that whoever decodes them decodes no others.

Values of one width lie at places that can be counted, dictionary codes in runs that say how many they hold. So a page
is decompressed, the bytes of its wanted rows are copied, and the new page is not compressed: of values of one width a
plain one, of strings one of codes, beside their dictionary, decompressed. What else there is (nulls, deltas, strings of
many lengths, bytes that do not add up) is left as it is: None.

Format: github.com/apache/parquet-format, Encodings.md.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...lazy import kernels_for
from .page_headers import CODECS, Pages
from .thrift import I32, STRUCT, a_struct, an_int, int_at, skipped, varint, varint_at

_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_WIDTHS = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_RUNS_MAX = 128  # a page of more runs of codes is decoded sooner than they are walked without compiled code
_CODES_PLAIN_NS = 300_000  # about what a page of codes takes without it
_CODE_BITS_MAX = 32
_PAGE_BYTES_MAX = 16 << 20  # what a header claims is not believed beyond
_CODEC_NAMES = {number: name.lower() for name, number in CODECS.items()}


def only(pages: Pages, leaf: Any, wanted: np.ndarray) -> Pages | None:
    """The pages of a column chunk, of a column that is not nested, with the wanted rows of the row group (ascending)
    and no others; None where that cannot be. `leaf`: the column in Parquet's schema."""
    width = leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(leaf.physical_type, 0)
    if leaf.max_definition_level > 1 or (not width and leaf.physical_type != "BYTE_ARRAY"):
        return None
    try:
        dictionary = _opened(bytes(pages.dictionary), pages.codec) if pages.dictionary else None
        if dictionary is not None and (dictionary.kind != _DICTIONARY_PAGE or dictionary.encoding not in (0, 2)):
            return None
        data, starts, row = [], [], 0
        keeps_codes = False
        for page, (start, count) in zip(pages.data, pages.starts, strict=True):
            first, end = np.searchsorted(wanted, (start, start + count))
            opened = _opened(bytes(page), pages.codec)
            values = opened.values(leaf.max_definition_level)
            body = None
            if values is not None and opened.values_count == count:
                body = _only_values(opened, values, wanted[first:end] - start, width, dictionary)
            if body is None:
                return None
            encoding = _PLAIN if opened.encoding == _PLAIN or width else _RLE_DICTIONARY
            keeps_codes |= encoding == _RLE_DICTIONARY
            size = int(end - first)
            data.append(_page(body, size, encoding, leaf.max_definition_level))
            starts.append((row, size))
            row += size
    except (KeyError, IndexError, ValueError, pa.ArrowException, OSError):
        return None
    stored = b"" if dictionary is None or not keeps_codes else _dictionary_page(dictionary)
    return replace(pages, codec=0, dictionary=stored, data=data, starts=tuple(starts), last=row, is_cut=True)


class _Page(NamedTuple):
    """A page's header, and its bytes decompressed; `levels_bytes`: how many of them are levels, where the header says
    so."""

    kind: int
    values_count: int
    encoding: int
    levels_encoding: int
    levels_bytes: int | None
    body: bytes

    def values(self, max_level: int) -> np.ndarray | None:
        """What follows the levels, uint8; None where some are null, or not every level is told by one run."""
        if not max_level:
            return np.frombuffer(self.body, dtype=np.uint8) if not self.levels_bytes else None
        begin = 0 if self.levels_bytes is not None else 4
        length = int.from_bytes(self.body[:4], "little") if self.levels_bytes is None else self.levels_bytes
        run = varint(self.values_count << 1) + b"\1"
        if self.levels_encoding != _RLE or self.body[begin : begin + length] != run:
            return None
        return np.frombuffer(self.body, dtype=np.uint8)[begin + length :]


def _opened(page: bytes, codec: int) -> _Page:
    """Raises IndexError or ValueError for a header that is not known, ArrowException for bytes that are not of the
    codec."""
    top, own, end = _header_fields(page)
    kind = top[1]
    stored = page[end:]
    if len(stored) != top[3]:
        raise ValueError("a page of another size")
    if kind == _DATA_PAGE_V2:
        levels_bytes = own[5] + own[6]
        if own[6] or own[2] or levels_bytes > min(top[2], top[3]):
            raise ValueError("nulls, or levels that are not known")
        rest = stored[levels_bytes:]
        if own.get(7, 1):
            rest = _plain(rest, codec, top[2] - levels_bytes)
        return _Page(kind, own[1], own[4], _RLE, levels_bytes, stored[:levels_bytes] + rest)
    if kind not in (_DATA_PAGE, _DICTIONARY_PAGE):
        raise ValueError("a page of a kind that is not known")
    return _Page(kind, own[1], own[2], own.get(3, -1), None, _plain(stored, codec, top[2]))


def _header_fields(page: bytes) -> tuple[dict[int, int], dict[int, int], int]:
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


def _plain(stored: bytes, codec: int, size: int) -> bytes:
    if not 0 <= size <= _PAGE_BYTES_MAX or (codec == 0 and len(stored) != size):
        raise ValueError("a page of another size, or a large one")
    if codec == 0 or not size:
        return stored
    plain = pa.Codec(_CODEC_NAMES[codec]).decompress(stored, decompressed_size=size, asbytes=True)
    if len(plain) != size:
        raise ValueError("a page of another size")
    return plain


def _only_values(
    page: _Page, values: np.ndarray, rows: np.ndarray, width: int, dictionary: _Page | None
) -> bytes | None:
    """The values at some rows of a page: plain, or codes where they are strings of a dictionary."""
    if page.encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY) and dictionary is not None:
        codes = _codes(values, rows)
        if codes is None or int(codes.max()) >= dictionary.values_count:
            return None
        if not width:
            return _packed(codes, int(values[0]))
        table = np.frombuffer(dictionary.body, dtype=np.uint8)
        if len(table) != dictionary.values_count * width:
            return None
        return table.reshape(-1, width)[codes].tobytes()
    if page.encoding != _PLAIN:
        return None
    if not width:
        # Strings of one length lie as values of one width do; each begins with its length.
        width = 4 + int.from_bytes(values[:4].tobytes(), "little")
        if len(values) != page.values_count * width:
            return None
        table = values.reshape(-1, width)
        if (table[:, :4] != table[0, :4]).any():
            return None
    elif len(values) != page.values_count * width:
        return None
    return values.reshape(-1, width)[rows].tobytes()


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
    own = a_struct((1, I32, an_int(count)), (2, I32, an_int(encoding)), (3, I32, an_int(_RLE)), (4, I32, an_int(_RLE)))
    return _header(_DATA_PAGE, len(body), 5, own) + body


def _dictionary_page(page: _Page) -> bytes:
    own = a_struct((1, I32, an_int(page.values_count)), (2, I32, an_int(page.encoding)))
    return _header(_DICTIONARY_PAGE, len(page.body), 7, own) + page.body


def _header(kind: int, size: int, number: int, own: bytes) -> bytes:
    sizes = an_int(size)
    return a_struct((1, I32, an_int(kind)), (2, I32, sizes), (3, I32, sizes), (number, STRUCT, own))
