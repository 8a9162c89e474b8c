"""A Parquet file made in memory, of some pages of another one, or of several alike:

    "PAR1"  pages of chunk, pages of chunk, ...  footer  footer's length u32  "PAR1"

The pages lie in it as they are. The footer is made for them: the elements of the schema, and Arrow's own schema, come
from the footer of the file, what a reader does not need is left out. Format: github.com/apache/parquet-format.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from .page_headers import ChunkPlace, Pages, PagesUnknownError
from .thrift import (
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
)

TYPES = ["BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"]
MAGIC = b"PAR1"
_TEMPLATES_MAX = 64
_ENCODINGS = a_list(I32, [an_int(0), an_int(3), an_int(8)])  # the reader goes by those that the pages name


@dataclass
class PageGroup:
    """Columns whose kept pages hold the same rows, so that one made file has them all."""

    columns: list[str] = field(default_factory=list)
    chunks: list[list[Pages]] = field(default_factory=list)  # of each column, by row group


@dataclass(frozen=True, eq=False)
class Template:
    """What footers of the same columns have in common: the schema's elements, key-value pairs, who wrote the file, and
    the first fields of each column's metadata."""

    schema: Any
    pairs: dict[bytes, bytes] | None
    created_by: str
    head: bytes
    key_values: bytes | None
    columns: list[bytes]

    @property
    def likeness(self) -> Hashable:
        """Files of templates in which it is equal may be made one."""
        return self.created_by, self.head, self.key_values, tuple(self.columns)

    def ending(self, groups: Sequence[tuple[int, Sequence[ChunkPlace]]]) -> bytes:
        """What follows the pages: the footer, its length, and "PAR1". `groups`: of each row group how many rows it has,
        and where in the made file the chunk of each column lies."""
        row_groups, row_count = [], 0
        for rows, places in groups:
            chunks = [_chunk(column, place, rows) for column, place in zip(self.columns, places, strict=True)]
            size = sum(place.end - place.begin for place in places)
            fields = (1, LIST, a_list(STRUCT, chunks)), (2, I64, an_int(size)), (3, I64, an_int(rows))
            row_groups.append(a_struct(*fields))
            row_count += rows
        fields_after = [(3, I64, an_int(row_count)), (4, LIST, a_list(STRUCT, row_groups))]
        if self.key_values is not None:
            fields_after.append((5, LIST, self.key_values))
        fields_after.append((6, BINARY, a_binary(self.created_by.encode())))
        rest = a_struct(*fields_after)
        # The head ends with field 2, so what follows counts its ids from there.
        footer = self.head + bytes([rest[0] - 0x20]) + rest[1:]
        return footer + struct.pack("<I", len(footer)) + MAGIC


_templates: dict[tuple[int, ...], list[Template]] = {}


def synthetic_file(metadata: Any, leaves: list[int], group: PageGroup) -> bytes:
    """A Parquet file of the kept pages of some columns."""
    parts, offset = [MAGIC], len(MAGIC)
    groups = []
    for pages in zip(*group.chunks, strict=True):
        places = []
        for of_column in pages:
            begin, data_begin = offset, offset + len(of_column.dictionary)
            parts += [of_column.dictionary, *of_column.data]
            offset = data_begin + sum(map(len, of_column.data))
            places.append(ChunkPlace(begin, data_begin, offset, of_column.codec))
        groups.append((pages[0].last, places))
    return b"".join([*parts, template_of(metadata, tuple(leaves)).ending(groups)])


def _chunk(column: bytes, place: ChunkPlace, row_count: int) -> bytes:
    """ColumnChunk: 2 file_offset, 3 ColumnMetaData, of which `column` has the first three fields."""
    assert place.codec is not None  # by which it was chosen
    begin, size = an_int(place.begin), an_int(place.end - place.begin)
    parts = [b"\x26", begin, b"\x1c", column, b"\x15", an_int(place.codec), b"\x16", an_int(row_count)]
    parts += [b"\x16", size, b"\x16", size, b"\x26", an_int(place.data_begin)]
    if place.data_begin > place.begin:
        parts += [b"\x26", begin]
    return b"".join([*parts, b"\0\0"])


def _first_fields(leaf: Any) -> bytes:
    """ColumnMetaData: 1 type, 2 encodings, 3 path_in_schema."""
    kind, path = an_int(TYPES.index(leaf.physical_type)), a_list(BINARY, [a_binary(leaf.path.encode())])
    return a_struct((1, I32, kind), (2, LIST, _ENCODINGS), (3, LIST, path))[:-1]


def template_of(metadata: Any, leaves: tuple[int, ...]) -> Template:
    pairs, created_by = metadata.metadata, metadata.created_by or ""
    for template in _templates.get(leaves, ()):
        if template.schema.equals(metadata.schema) and template.pairs == pairs and template.created_by == created_by:
            return template
    names = [metadata.schema.column(leaf).path for leaf in leaves]
    elements = _elements(metadata, names)
    columns = [_first_fields(metadata.schema.column(leaf)) for leaf in leaves]
    root = a_struct((4, BINARY, a_binary(b"schema")), (5, I32, an_int(len(names))))
    head = a_struct((1, I32, an_int(2)), (2, LIST, a_list(STRUCT, [root, *elements])))[:-1]
    new = Template(metadata.schema, pairs, created_by, head, _arrow_schema(metadata, names), columns)
    # No lock, which a fork could leave held: each call on the dict is a step that no other thread can part.
    if sum(map(len, _templates.copy().values())) >= _TEMPLATES_MAX:
        _templates.clear()
    _templates.setdefault(leaves, []).append(new)
    return new


def _elements(metadata: Any, names: list[str]) -> list[bytes]:
    """The SchemaElements of some top-level columns without children, as the footer has them."""
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    data = sink.getvalue().to_pybytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    footer = data[-8 - length : -8]
    elements: list[tuple[str, int, bytes]] = []
    for number, kind, offset, _ in fields_at(footer, 0):
        if number == 2 and kind == LIST:
            count, _, offset = items_at(footer, offset)
            for _ in range(count):
                end = skipped(footer, offset, STRUCT)
                elements.append((*_name_and_children(footer, offset), footer[offset:end]))
                offset = end
        elif number >= 8:
            raise PagesUnknownError("an encrypted file")
    ranges: dict[str, bytes] = {}
    position = 1
    for _ in range(elements[0][1]):
        name, children, element = elements[position]
        if children == 0:
            ranges[name] = element
        remaining = 1
        while remaining:  # over everything below
            remaining += elements[position][1] - 1
            position += 1
    return [ranges[name] for name in names]


def _name_and_children(footer: bytes, offset: int) -> tuple[str, int]:
    name, children = b"", 0
    for number, _, begin, _ in fields_at(footer, offset):
        if number == 4:
            name, _ = bytes_at(footer, begin)
        elif number == 5:
            children, _ = int_at(footer, begin)
    return name.decode(), children


def _arrow_schema(metadata: Any, names: list[str]) -> bytes | None:
    """The key-value pair by which Arrow knows the types of columns again; None where the file has none."""
    stored = (metadata.metadata or {}).get(b"ARROW:schema")
    if stored is None:
        return None
    schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(stored)))
    selected = pa.schema([schema.field(name) for name in names]).serialize()
    value = base64.b64encode(selected.to_pybytes())
    return a_list(STRUCT, [a_struct((1, BINARY, a_binary(b"ARROW:schema")), (2, BINARY, a_binary(value)))])
