"""Few rows of a Parquet file by position, reading and decoding only the pages that hold them.

pyarrow decompresses whole column chunks. So it is given another file, made in memory: of each chunk the dictionary page
and the pages of the wanted rows, as they are, behind a footer that names nothing else:

    "PAR1"  pages of chunk, pages of chunk, ...  footer  footer's length u32  "PAR1"

Where a page begins is told by the header of the one before, so headers are read one after another. The footer says that
the rows end with the last that is wanted, and decoding ends there, too. Rows of a row group are of one number, but
columns have pages of unlike rows: those whose kept pages hold the same rows make a file together.

Columns that are lists, maps, structs or encrypted, or hold anything not known here, are left to others. Every value is
decoded by pyarrow, from the bytes and the types that the file has. Decimals alone are read as the bytes that they are
stored as, and made decimals where they are wanted: pyarrow takes 25 ns for each.

Formats: github.com/apache/parquet-format, parquet.thrift.
"""

from __future__ import annotations

import base64
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...arrays import fixed_rows, joined
from ..ingest.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    a_binary,
    a_list,
    a_struct,
    an_int,
    bytes_at,
    fields_at,
    int_at,
    items_at,
    skipped,
    varint_at,
)
from .seek import is_coded, picked

if TYPE_CHECKING:
    import pyarrow.parquet as pq

ReadAt = Callable[[int, int], bytes]  # (offset, length) -> bytes of the file

_MAGIC = b"PAR1"
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_HEADER_BYTES = 512
_HEADER_BYTES_MAX = 1 << 16
_READ_BYTES = 1 << 14
_TEMPLATES_MAX = 64
_TYPES = ["BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"]
# Not LZ4: pyarrow calls two codecs by that name.
_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6}
_ENCODINGS = a_list(I32, [an_int(0), an_int(3), an_int(8)])  # the reader goes by those that the pages name


class PagesUnknownError(Exception):
    """Something in a file that is not known here: pyarrow is to read it as it is."""


@dataclass(frozen=True)
class _Pages:
    """What is kept of one column chunk.

    dictionary    the dictionary page with its header, b"" where there is none
    data          the data pages that hold wanted rows, with their headers
    starts        the first row of each, and how many it has
    last          rows up to the last that is wanted, counted over the kept pages
    """

    dictionary: bytes
    data: list[bytes]
    starts: tuple[tuple[int, int], ...]
    last: int


@dataclass
class _Group:
    """Columns whose kept pages hold the same rows, so that one made file has them all."""

    columns: list[str] = field(default_factory=list)
    chunks: list[list[_Pages]] = field(default_factory=list)  # of each column, by row group


def flat_columns(file: pq.ParquetFile, columns: Sequence[str]) -> list[str]:
    """Those of some top-level columns that can be read by page."""
    schema, wanted = file.metadata.schema, set(columns)
    found: dict[str, bool] = {}
    for i in range(len(schema)):
        leaf = schema.column(i)
        name = leaf.path.split(".", 1)[0]
        is_flat = leaf.path == leaf.name and leaf.max_repetition_level == 0 and leaf.physical_type in _TYPES
        found[name] = is_flat and name not in found
    return [name for name in columns if name in wanted and found.get(name, False)]


def rows_by_page(
    metadata: pq.FileMetaData,
    schema: pa.Schema,
    read_at: ReadAt,
    groups: Sequence[tuple[int, np.ndarray]],
    columns: Sequence[str],
    options: Mapping[str, Any],
) -> dict[str, pa.ChunkedArray]:
    """Some rows of `flat_columns`, by column.

    metadata   the file's footer
    schema     the file's, as pyarrow reads it
    read_at    reads the file's bytes
    groups     row group numbers, each with the positions in it that are wanted (ascending, unique, at least one)
    options    how pyarrow opens the file

    Strings may come as dictionaries. Raises PagesUnknownError where pyarrow is to read the file as it is.
    """
    leaves = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    alike: dict[tuple, _Group] = {}
    for name in columns:
        chunks = [_pages_of(metadata.row_group(g).column(leaves[name]), read_at, wanted) for g, wanted in groups]
        group = alike.setdefault(tuple((c.starts, c.last) for c in chunks), _Group())
        group.columns.append(name)
        group.chunks.append(chunks)
    found: dict[str, pa.ChunkedArray] = {}
    for group in alike.values():
        wanted = [_within(rows, chunk) for (_, rows), chunk in zip(groups, group.chunks[0], strict=True)]
        first = metadata.row_group(groups[0][0])
        coded = [name for name in group.columns if is_coded(first.column(leaves[name]))]
        decimals = {name for name in group.columns if _is_stored_decimal(schema.field(name).type, first, leaves[name])}
        made = _made(metadata, [leaves[name] for name in group.columns], group, groups[0][0], decimals)
        for name, column in _read(made, wanted, coded, options).items():
            found[name] = _as_decimals(column, schema.field(name).type) if name in decimals else column
    return found


def _is_stored_decimal(kind: pa.DataType, row_group: Any, leaf: int) -> bool:
    return pa.types.is_decimal128(kind) and row_group.column(leaf).physical_type == "FIXED_LEN_BYTE_ARRAY"


def _as_decimals(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Decimals of the two's complements, big-endian, as which Parquet stores them."""
    stored = joined(column)
    raw, width = fixed_rows(stored), stored.type.byte_width
    values = np.where(raw[:, :1] > 127, np.uint8(255), np.uint8(0)).repeat(16, axis=1)
    values[:, :width] = raw[:, ::-1]
    valid = stored.is_valid().buffers()[1] if stored.null_count else None
    return pa.chunked_array([pa.Array.from_buffers(kind, len(stored), [valid, pa.py_buffer(values)])])


def _read(
    made: pa.Buffer, wanted: list[np.ndarray], coded: list[str], options: Mapping[str, Any]
) -> dict[str, pa.ChunkedArray]:
    """The wanted rows of a made file, by column; `wanted`: positions in each of its row groups."""
    import pyarrow.parquet as pq

    parts: list[pa.RecordBatch] = []
    with pq.ParquetFile(pa.BufferReader(made), read_dictionary=coded, **options) as file:
        for group, rows in enumerate(wanted):  # one by one: pages go on where a row group of ours has ended
            parts += picked(file, group, None, rows)
    if sum(part.num_rows for part in parts) != sum(map(len, wanted)):
        raise PagesUnknownError("pages do not hold the rows that their headers tell of")
    table = pa.Table.from_batches(parts)
    return {name: table.column(name) for name in table.column_names}


def _within(wanted: np.ndarray, chunk: _Pages) -> np.ndarray:
    """Positions of wanted rows of a row group among those of its kept pages."""
    found, kept = [], 0
    for start, count in chunk.starts:
        first, end = np.searchsorted(wanted, (start, start + count))
        found.append(wanted[first:end] - start + kept)
        kept += count
    return np.concatenate(found)


# -- pages --------------------------------------------------------------------------------------------------------


def _pages_of(chunk: Any, read_at: ReadAt, wanted: np.ndarray) -> _Pages:
    """The pages of one column chunk that hold wanted rows."""
    if chunk.compression not in _CODECS:
        raise PagesUnknownError(f"codec {chunk.compression}")
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < at:
        at = chunk.dictionary_page_offset
    end, row, dictionary = at + chunk.total_compressed_size, 0, b""
    read_at = _Window(read_at, end)
    data, starts = [], []
    kept = last = 0
    left = wanted
    while len(left):
        kind, size_bytes, count, head_bytes = _header(read_at, at, end)
        length = head_bytes + size_bytes
        if at + length > end:
            raise PagesUnknownError("a page goes beyond its chunk")
        if kind == _DICTIONARY_PAGE and row == 0 and not dictionary:
            dictionary = read_at(at, length)
        elif kind in (_DATA_PAGE, _DATA_PAGE_V2):
            here = int(np.searchsorted(left, row + count))
            if here:
                data.append(read_at(at, length))
                starts.append((row, count))
                last = kept + int(left[here - 1]) - row + 1
                kept += count
                left = left[here:]
            row += count
        else:
            raise PagesUnknownError(f"a page of kind {kind}")
        at += length
    if row > chunk.num_values:
        raise PagesUnknownError("pages hold more rows than their chunk")
    return _Pages(dictionary, data, tuple(starts), last)


class _Window:
    """Reads of one chunk: the next header comes with the page before it, and a small chunk at once."""

    def __init__(self, read_at: ReadAt, end: int):
        self._read_at, self._end = read_at, end
        self._start, self._data = 0, b""

    def __call__(self, offset: int, length: int) -> bytes:
        begin = offset - self._start
        if not 0 <= begin <= begin + length <= len(self._data):
            self._data = self._read_at(offset, min(max(length + _HEADER_BYTES, _READ_BYTES), self._end - offset))
            self._start, begin = offset, 0
        return self._data[begin : begin + length]


def _header(read_at: ReadAt, at: int, end: int) -> tuple[int, int, int, int]:
    """Of the page at `at`: (kind, its bytes after the header, values, bytes of the header)."""
    length = _HEADER_BYTES
    while True:
        data = read_at(at, min(length, end - at))
        try:
            return _parsed(data)
        except IndexError:
            if length >= min(end - at, _HEADER_BYTES_MAX):
                raise PagesUnknownError("a page header is cut short") from None
            length *= 16
        except ValueError as error:
            raise PagesUnknownError(str(error)) from error


def _parsed(data: bytes) -> tuple[int, int, int, int]:
    """PageHeader: 1 type, 3 compressed_page_size, and of 5, 7 or 8, the header of its kind, 1 num_values."""
    kind = size_bytes = count = -1
    number = at = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            break
        if not head >> 4:
            raise ValueError("a page header of unknown fields")
        number += head >> 4
        if number in (1, 3):
            value, at = varint_at(data, at)
            if number == 1:
                kind = value >> 1
            else:
                size_bytes = value >> 1
        elif number in (5, 7, 8) and head & 15 == STRUCT and data[at] >> 4 == 1:
            value, _ = varint_at(data, at + 1)
            count = value >> 1
            at = skipped(data, at, STRUCT)
        else:
            at = skipped(data, at, head & 15)
    if min(kind, size_bytes, count) < 0:
        raise ValueError("a page header without kind, size or values")
    return kind, size_bytes, count, at


# -- the made file ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Template:
    """What footers of the same columns have in common: the schema's elements, key-value pairs, who wrote the file."""

    schema: pa.Buffer
    pairs: dict[bytes, bytes] | None
    created_by: str
    head: bytes
    key_values: bytes | None


_templates: dict[tuple[int, ...], list[_Template]] = {}
_templates_lock = threading.Lock()


def _made(metadata: Any, leaves: list[int], group: _Group, first_group: int, decimals: set[str]) -> pa.Buffer:
    """A Parquet file of the kept pages of some columns; `decimals` are binaries there."""
    template = _template(metadata, tuple(leaves), decimals)
    parts, at = [_MAGIC], len(_MAGIC)
    row_groups, row_count = [], 0
    known = [metadata.row_group(first_group).column(leaf) for leaf in leaves]
    for pages in zip(*group.chunks, strict=True):
        chunks = []
        for chunk, kept in zip(known, pages, strict=True):
            begin = at
            parts += [kept.dictionary, *kept.data]
            at += len(kept.dictionary) + sum(map(len, kept.data))
            chunks.append(_chunk(chunk, kept, begin, at))
        last = pages[0].last
        row_groups.append(a_struct((1, LIST, a_list(STRUCT, chunks)), (2, I64, an_int(at)), (3, I64, an_int(last))))
        row_count += last
    fields = [(3, I64, an_int(row_count)), (4, LIST, a_list(STRUCT, row_groups))]
    if template.key_values is not None:
        fields.append((5, LIST, template.key_values))
    fields.append((6, BINARY, a_binary(template.created_by.encode())))
    rest = a_struct(*fields)
    # The head ends with field 2, so what follows counts its ids from there.
    footer = template.head + bytes([rest[0] - 0x20]) + rest[1:]
    return pa.py_buffer(b"".join([*parts, footer, struct.pack("<I", len(footer)), _MAGIC]))


def _chunk(chunk: Any, kept: _Pages, begin: int, end: int) -> bytes:
    """ColumnChunk: 2 file_offset, 3 ColumnMetaData."""
    fields = [
        (1, I32, an_int(_TYPES.index(chunk.physical_type))),
        (2, LIST, _ENCODINGS),
        (3, LIST, a_list(BINARY, [a_binary(chunk.path_in_schema.encode())])),
        (4, I32, an_int(_CODECS[chunk.compression])),
        (5, I64, an_int(kept.last)),
        (6, I64, an_int(end - begin)),
        (7, I64, an_int(end - begin)),
        (9, I64, an_int(begin + len(kept.dictionary))),
    ]
    if kept.dictionary:
        fields.append((11, I64, an_int(begin)))
    return a_struct((2, I64, an_int(begin)), (3, STRUCT, a_struct(*fields)))


def _template(metadata: Any, leaves: tuple[int, ...], decimals: set[str]) -> _Template:
    pairs, created_by = metadata.metadata, metadata.created_by or ""
    for known in _templates.get(leaves, ()):
        if known.schema.equals(metadata.schema) and known.pairs == pairs and known.created_by == created_by:
            return known
    names = [metadata.schema.column(leaf).path for leaf in leaves]
    elements = [_plain(e) if name in decimals else e for name, e in zip(names, _elements(metadata, names), strict=True)]
    root = a_struct((4, BINARY, a_binary(b"schema")), (5, I32, an_int(len(names))))
    head = a_struct((1, I32, an_int(2)), (2, LIST, a_list(STRUCT, [root, *elements])))[:-1]
    made = _Template(metadata.schema, pairs, created_by, head, _arrow_schema(metadata, names, decimals))
    with _templates_lock:
        if sum(map(len, _templates.values())) >= _TEMPLATES_MAX:
            _templates.clear()
        _templates.setdefault(leaves, []).append(made)
    return made


def _elements(metadata: Any, names: list[str]) -> list[bytes]:
    """The SchemaElements of some top-level columns without children, as the footer has them."""
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    data = sink.getvalue().to_pybytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = data[-8 - length : -8]
    elements: list[tuple[str, int, bytes]] = []
    for number, kind, at, _ in fields_at(footer, 0):
        if number == 2 and kind == LIST:
            count, _, at = items_at(footer, at)
            for _ in range(count):
                end = skipped(footer, at, STRUCT)
                elements.append((*_name_and_children(footer, at), footer[at:end]))
                at = end
        elif number >= 8:
            raise PagesUnknownError("an encrypted file")
    found: dict[str, bytes] = {}
    at = 1
    for _ in range(elements[0][1]):
        name, children, element = elements[at]
        if children == 0:
            found[name] = element
        left = 1
        while left:  # over everything below
            left += elements[at][1] - 1
            at += 1
    return [found[name] for name in names]


def _name_and_children(footer: bytes, at: int) -> tuple[str, int]:
    name, children = b"", 0
    for number, _, begin, _ in fields_at(footer, at):
        if number == 4:
            name, _ = bytes_at(footer, begin)
        elif number == 5:
            children, _ = int_at(footer, begin)
    return name.decode(), children


def _plain(element: bytes) -> bytes:
    """The same SchemaElement without what its bytes mean: 1 type, 2 type_length, 3 repetition_type, 4 name."""
    kept = [(n, kind, element[at:end]) for n, kind, at, end in fields_at(element, 0) if n <= 4]
    return a_struct(*kept)


def _arrow_schema(metadata: Any, names: list[str], decimals: set[str]) -> bytes | None:
    """The key-value pair by which Arrow knows the types of columns again; None where the file has none."""
    told = (metadata.metadata or {}).get(b"ARROW:schema")
    if told is None:
        return None
    schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(told)))
    leaves = map(metadata.schema.column, range(metadata.num_columns))
    widths = {leaf.path: leaf.length for leaf in leaves if leaf.path in decimals}
    kept = (schema.field(name) for name in names)
    own = pa.schema([f.with_type(pa.binary(widths[f.name])) if f.name in decimals else f for f in kept]).serialize()
    value = base64.b64encode(own.to_pybytes())
    return a_list(STRUCT, [a_struct((1, BINARY, a_binary(b"ARROW:schema")), (2, BINARY, a_binary(value)))])
