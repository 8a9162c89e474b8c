"""Values at few rows of Parquet pages, and pages of those rows alone, so that whoever decodes them decodes no others.

Values of one width lie at places that can be counted, dictionary codes in runs that say how many they hold. So a page
is decompressed, and the bytes of its wanted rows are copied. Texts lie one behind the other, each behind its length:
compiled code goes to the last that is wanted, and decompresses a dictionary by Snappy no further. Without it the new
page may have codes, and the dictionary stays with it. What else there is (nulls, deltas, bytes that do not add up) is
left as it is: None. A page that has a checksum must match it.

Format: github.com/apache/parquet-format, Encodings.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...lazy import kernels_for, read_only
from .page_headers import CODECS, DATA_PAGE, DICTIONARY_PAGE, RLE, KeptPages, PageHeader, Pages, StoredPages
from .thrift import I32, STRUCT, a_struct, an_int, varint, varint_at

PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
CODED = (_PLAIN_DICTIONARY, _RLE_DICTIONARY)
_WIDTHS = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_RUNS_MAX = 128  # a page of more runs of codes is decoded sooner than they are walked without compiled code
_PAGE_PLAIN_NS = 300_000  # about what a page of codes takes without it
_CODE_BITS_MAX = 24
_TEXTS_PLAIN_MAX = 2_000  # texts that are walked without compiled code: beyond, decoding them is quicker
_TEXT_PLAIN_NS = 40  # about what one takes without it, walked or decoded
_PAGE_BYTES_MAX = 16 << 20  # what a header claims is not believed beyond
_CODEC_NAMES = {number: name.lower() for name, number in CODECS.items()}
_TIME_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
REFUSALS = (KeyError, IndexError, ValueError, pa.ArrowException, OSError)


class Values(NamedTuple):
    """Values of some rows, none of them null.

    width     bytes of each; 0: texts, each behind its length
    begins    int64 [rows + 1]: where each begins
    data      uint8
    """

    width: int
    begins: np.ndarray
    data: np.ndarray

    def array(self, kind: pa.DataType) -> pa.Array:
        """As Arrow's, of a type that `is_served`."""
        count = len(self.begins) - 1
        if self.width:
            return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(self.data)])
        is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        offsets = (self.begins - 4 * np.arange(count + 1)).astype(np.int64 if is_large else np.int32)
        is_text = np.ones(len(self.data), dtype=bool)
        is_text[(self.begins[:-1, None] + np.arange(4)).reshape(-1)] = False
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(self.data[is_text])])


def is_served(leaf: Any, kind: pa.DataType) -> bool:
    """Whether Parquet's plain bytes of a column are those of Arrow's values, or texts."""
    physical, of = leaf.physical_type, pa.types
    if of.is_timestamp(kind):
        return (
            physical == "INT64"
            and _TIME_UNITS.get(json.loads(leaf.logical_type.to_json()).get("timeUnit")) == kind.unit
        )
    return kind in {
        "BYTE_ARRAY": (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()),
        "INT32": (pa.int32(), pa.uint32(), pa.date32()),
        "INT64": (pa.int64(), pa.uint64()),
        "FLOAT": (pa.float32(),),
        "DOUBLE": (pa.float64(),),
    }.get(physical, ())


def values_of(kept: KeptPages, leaf: Any, wanted: np.ndarray) -> Values | None:
    """The values of a column that is not nested at the wanted rows of the row group (ascending), which the kept pages
    hold; None where compiled code does not find them. `leaf`: the column in Parquet's schema.

    Raises CorruptionError for a page that is not what its checksum, where it has one, was made of.
    """
    width = _width_of(leaf)
    pages, is_dictionary = kept.stored, kept.stored.headers[:, 0] == DICTIONARY_PAGE
    texts = 0 if width else int(pages.headers[0, 1] if is_dictionary[0] else wanted[-1] - kept.starts[-1][0])
    plain_ns = len(kept.starts) * _PAGE_PLAIN_NS + texts * _TEXT_PLAIN_NS
    kernels = None if width is None else kernels_for("engine.parquet.kernels", plain_ns)
    if kernels is None or width is None:
        return None
    pages.check()
    try:
        data, headers, is_snappy = for_kernels(pages)
    except REFUSALS:
        return None
    starts = np.array([-1] * int(is_dictionary[0]) + [start for start, _ in kept.starts])
    may_be_null = bool(leaf.max_definition_level)
    begins, values = kernels.values_at(data, headers, starts, is_snappy, may_be_null, width, read_only(wanted))
    return Values(width, begins, values) if len(begins) else None


def _width_of(leaf: Any) -> int | None:
    """As of `Values`; None where that cannot be told."""
    if leaf.max_definition_level > 1:
        return None
    if leaf.physical_type == "BYTE_ARRAY":
        return 0
    return (leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(leaf.physical_type)) or None


def for_kernels(pages: StoredPages) -> tuple[np.ndarray, np.ndarray, bool]:
    """(uint8 data, headers, whether Snappy is what compresses it), as kernels read pages: those of other codecs are
    decompressed. Raises one of `REFUSALS`."""
    headers = pages.headers
    if len(headers) and int(headers[:, 6].max()) > _PAGE_BYTES_MAX:
        raise ValueError("a large page")
    if _CODEC_NAMES[pages.codec] in ("uncompressed", "snappy"):
        return read_only(pages.data), read_only(headers), _CODEC_NAMES[pages.codec] == "snappy"
    parts: list[memoryview] = []
    changed, offset = [], 0
    for header, stored in pages.each():
        body = opened(header, stored, pages.codec)
        parts += body
        size = sum(map(len, body))
        changed.append(header._replace(head=offset, begin=offset, end=offset + size))
        offset += size
    return read_only(b"".join(parts)), read_only(np.array(changed, dtype=np.int64)), False


def opened(header: PageHeader, stored: memoryview, codec: int) -> tuple[memoryview, memoryview]:
    """(levels, where the header says how many bytes they are; the rest), of a page, decompressed. Raises ValueError, or
    ArrowException."""
    levels_bytes = max(header.levels_bytes, 0)
    levels, rest, size = stored[:levels_bytes], stored[levels_bytes:], header.size_bytes - levels_bytes
    return levels, decompressed(rest, codec if header.is_compressed else 0, size)


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


# -- pages of some rows ------------------------------------------------------------------------------------------------


def only(kept: KeptPages, leaf: Any, wanted: np.ndarray) -> Pages | None:
    """As `values_of`, also without compiled code: as pages with the wanted rows and no others."""
    width, level = _width_of(leaf), leaf.max_definition_level
    values = values_of(kept, leaf, wanted)
    if values is not None:
        return _cut([(PLAIN, values.data.tobytes(), len(wanted))], level)
    if width is None:
        return None
    kept.stored.check()
    try:
        return _only_plainly(kept, level, width, wanted)
    except REFUSALS:
        return None


def _only_plainly(kept: KeptPages, level: int, width: int, wanted: np.ndarray) -> Pages | None:
    """Raises one of `REFUSALS`."""
    pages = list(kept.stored.each())
    dictionary: tuple[PageHeader, np.ndarray] | None = None
    if pages[0][0].kind == DICTIONARY_PAGE:
        header, stored = pages.pop(0)
        if header.encoding not in (PLAIN, _PLAIN_DICTIONARY):
            return None
        dictionary = header, np.frombuffer(opened(header, stored, kept.stored.codec)[1], dtype=np.uint8)
    parts = []
    for (header, stored), (start, count) in zip(pages, kept.starts, strict=True):
        first, end = np.searchsorted(wanted, (start, start + count))
        values = _without_levels(header, *opened(header, stored, kept.stored.codec), level)
        cut = None if values is None else _only_values(header, values, wanted[first:end] - start, width, dictionary)
        if cut is None:
            return None
        parts.append((*cut, int(end - first)))
    return _cut(parts, level, dictionary)


def _cut(
    parts: Sequence[tuple[int, bytes, int]], level: int, dictionary: tuple[PageHeader, np.ndarray] | None = None
) -> Pages:
    """Pages that are not compressed, of (encoding, bytes, rows)."""
    stored, starts, row = b"", [], 0
    if dictionary is not None and any(encoding == _RLE_DICTIONARY for encoding, _, _ in parts):
        header, body = dictionary
        own = a_struct((1, I32, an_int(header.values_count)), (2, I32, an_int(header.encoding)))
        stored = _header(DICTIONARY_PAGE, len(body), 7, own) + body.tobytes()
    for _, _, count in parts:
        starts.append((row, count))
        row += count
    return Pages(0, stored, [_page(body, n, e, level) for e, body, n in parts], tuple(starts), row, is_cut=True)


def _without_levels(header: PageHeader, levels: memoryview, rest: memoryview, level: int) -> np.ndarray | None:
    """The values of a data page, uint8; None where some are null, or its levels are not one run."""
    if level and header.levels_bytes < 0:
        end = 4 + int.from_bytes(rest[:4], "little")
        levels, rest = rest[4:end], rest[end:]
    run = varint(header.values_count << 1) + b"\1" if level else b""
    is_told = levels == run and (not level or header.levels_encoding == RLE)
    return np.frombuffer(rest, dtype=np.uint8) if is_told else None


def _only_values(
    header: PageHeader,
    values: np.ndarray,
    rows: np.ndarray,
    width: int,
    dictionary: tuple[PageHeader, np.ndarray] | None,
) -> tuple[int, bytes] | None:
    """(encoding, bytes) of the values at some rows of a page: plain, or codes of a dictionary that stays."""
    if header.encoding in CODED and dictionary is not None:
        of_dictionary, body = dictionary
        codes = codes_plainly(values, rows)
        if codes is None or int(codes.max()) >= of_dictionary.values_count:
            return None
        plain = _plain_values(body, codes, width, of_dictionary.values_count)
        if plain is None and not width:
            return _RLE_DICTIONARY, _packed(codes, int(values[0]))
    elif header.encoding == PLAIN:
        plain = _plain_values(values, rows, width, header.values_count)
    else:
        return None
    return None if plain is None else (PLAIN, plain)


def _plain_values(values: np.ndarray, places: np.ndarray, width: int, count: int) -> bytes | None:
    """Of so many plain values, those at some places; None where they are not there, or are texts of which too many are
    before them."""
    if width:
        return values.reshape(-1, width)[places].tobytes() if len(values) == count * width else None
    if len(values) >= 4:
        # Texts of one length lie as values of one width do.
        each = 4 + int.from_bytes(values[:4].tobytes(), "little")
        if len(values) % each == 0:
            table = values.reshape(-1, each)
            if places.max() < len(table) and (table[:, :4] == table[0, :4]).all():
                return table[places].tobytes()
    distinct, of_place = np.unique(places, return_inverse=True)
    bounds = texts_plainly(values, distinct) if int(distinct[-1]) < _TEXTS_PLAIN_MAX else None
    if bounds is None:
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
    return _header(DATA_PAGE, len(body), 5, own) + body


def _header(kind: int, size: int, number: int, own: bytes) -> bytes:
    sizes = an_int(size)
    return a_struct((1, I32, an_int(kind)), (2, I32, sizes), (3, I32, sizes), (number, STRUCT, own))
