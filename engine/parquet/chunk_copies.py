"""Writing a Parquet file again with new values in some columns: the chunks of the others are copied as they are stored.

A chunk is copied if the new file would store its column in the same way: the leaves have equal types and levels, and
Arrow reads the same type. The writer of the old file is one without known errors in its pages, because readers work
around errors by the name of a file's writer, which is pyarrow now. Bounds are copied if they order as the column's type
does. The offsets of page indexes and Bloom filters are left out.

Format: github.com/apache/parquet-format, parquet.thrift: FileMetaData, RowGroup, ColumnChunk, ColumnMetaData.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import pyarrow as pa

from ...errors import CorruptionError
from ..storage import Storage
from .footer_bytes import metadata_of, rewritten
from .footers import chunk_range, open_parquet
from .leaves import leaves_of
from .thrift import I64, LIST, STRUCT, ItemAt, encode_int, encode_list, encode_struct, fields_at, struct_at, value_at

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_WRITERS = re.compile(r"(parquet-cpp-arrow|parquet-rs) version \d\d|DuckDB version |parquet-mr version 1\.1\d\.")
_MAGIC = b"PAR1"
_ROWS_MAX = 1 << 26  # pyarrow splits a larger row group
# Field ids.
_ROW_COUNT, _ROW_GROUPS = 3, 4
_METADATA = 3
_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _STATISTICS, _BLOOM_FILTER = 9, 10, 11, 12, (14, 15)


class CopiedColumns:
    """Columns of a file that are copied into a new one, a row group at a time.

    names    of the columns, top-level; empty if all are written
    """

    def __init__(self, storage: Storage, path: str, schema: pa.Schema, names: Collection[str]):
        """`schema`: of the new file. `names`: the columns that get no new values, and that the file has under these
        names. Raises as `open_parquet`."""
        self._storage, self._path = storage, path
        with open_parquet(storage, storage.stat(path), is_checked=False) as file:
            self._file = file
            self._groups = iter([i for i in range(file.metadata.num_row_groups) if file.metadata.row_group(i).num_rows])
            self._stored = _row_groups(file.metadata)
            self._leaves = _equal_leaves(file, schema, names)
        self.names = {top for top, _ in self._leaves.values()}

    def next_group(self, sink: BinaryIO, row_count: int) -> dict[str, bytes]:
        """Write the chunks of the next row group: the path of a leaf -> its chunk as the new footer describes it.
        Raises CorruptionError if the row group has another number of rows."""
        number = next(self._groups, None)
        if number is None or self._file.metadata.row_group(number).num_rows != row_count:
            raise CorruptionError("its row groups are not those that were read", path=self._path, check="parquet")
        columns, copied = self._file.metadata.row_group(number), {}
        ranges = [chunk_range(columns.column(leaf)) for leaf in self._leaves]
        chunks = self._storage.read_ranges(self._path, ranges)
        for (leaf, (_, has_bounds)), (start, length), data in zip(self._leaves.items(), ranges, chunks, strict=True):
            if len(data) != length:
                raise CorruptionError("ends within a column chunk", path=self._path, check="parquet")
            stored = _moved(self._stored[number][leaf], sink.tell() - start, has_bounds)
            sink.write(data)
            copied[columns.column(leaf).path_in_schema] = stored
        return copied


class CopyingWriter:
    """A `ParquetWriter` that writes some columns of each row group, and copies the chunks of the others."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema, copied: CopiedColumns, options: dict[str, Any]):
        import pyarrow.parquet as pq

        self._sink, self._schema, self._copied = _Sink(sink), schema, copied
        self._options, self._footers = {**options, "metadata_collector": []}, options["metadata_collector"]
        self._names = [name for name in schema.names if name not in copied.names]
        self._chunks: list[tuple[int, dict[str, bytes]]] = []  # bytes copied before a row group; what is copied of it
        self._copied_bytes = 0  # pyarrow does not count them in its offsets
        self._writer = pq.ParquetWriter(
            self._sink, pa.schema([schema.field(name) for name in self._names]), **self._options
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._sink.is_open = False  # the footer of a file with the written columns alone
        self._writer.close()
        if kind is None:
            footer = self._footer()
            self._sink.sink.write(b"".join((footer, struct.pack("<I", len(footer)), _MAGIC)))
            self._footers.append(metadata_of(footer))

    def write_table(self, rows: pa.Table, row_group_size: int) -> None:
        """Write a row group."""
        self._writer.write_table(rows.select(self._names), row_group_size=row_group_size)
        start = self._sink.sink.tell()
        self._chunks.append((self._copied_bytes, self._copied.next_group(self._sink.sink, rows.num_rows)))
        self._copied_bytes += self._sink.sink.tell() - start

    def _footer(self) -> bytes:
        """The footer of an empty file of the schema, with the row groups."""
        import pyarrow.parquet as pq

        (written,) = self._options["metadata_collector"]
        with pq.ParquetWriter(pa.BufferOutputStream(), self._schema, **self._options):
            pass
        empty = self._options["metadata_collector"].pop()
        paths = [empty.schema.column(leaf).path for leaf in range(empty.num_columns)]
        groups = []
        for number, (stored, (distance, copied)) in enumerate(zip(_row_groups(written), self._chunks, strict=True)):
            of_group = written.row_group(number)
            moved = [_moved(chunk, distance, has_bounds=True) for chunk in stored]
            of_paths = {of_group.column(i).path_in_schema: chunk for i, chunk in enumerate(moved)} | copied
            chunks = [of_paths[path] for path in paths]
            plain, packed = (sum(_chunk_bytes(chunk, field) for chunk in chunks) for field in (6, 7))
            sizes = [(2, I64, encode_int(plain)), (3, I64, encode_int(of_group.num_rows)), (6, I64, encode_int(packed))]
            groups.append(encode_struct((1, LIST, encode_list(STRUCT, chunks)), *sizes))
        data = rewritten(empty)
        fields = {number: (number, kind, data[begin:end]) for number, kind, begin, end, _ in fields_at(data, 0)}
        fields[_ROW_COUNT] = _ROW_COUNT, I64, encode_int(written.num_rows)
        fields[_ROW_GROUPS] = _ROW_GROUPS, LIST, encode_list(STRUCT, groups)
        return encode_struct(*(fields[number] for number in sorted(fields)))


class _Sink:
    """What pyarrow writes to. While it is not open, nothing is written."""

    def __init__(self, sink: BinaryIO):
        self.sink, self.is_open, self.closed = sink, True, False

    def write(self, data: bytes) -> int:
        return self.sink.write(data) if self.is_open else len(data)

    def tell(self) -> int:
        return self.sink.tell()

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _equal_leaves(file: pq.ParquetFile, schema: pa.Schema, names: Collection[str]) -> dict[int, tuple[str, bool]]:
    """leaf of the file -> (its column, whether its bounds are copied) of the columns that are copied."""
    import pyarrow.parquet as pq

    if not _WRITERS.match(file.parsed.created_by):
        return {}
    with pq.ParquetWriter(pa.BufferOutputStream(), schema, store_decimal_as_integer=True) as writer:
        pass
    stored, wanted, kinds = file.metadata.schema, writer.writer.metadata.schema, list(leaves_of(file.arrow_schema))
    by_path = {(column := wanted.column(i)).path: column for i in range(len(wanted.names))}
    paths = {stored.column(leaf).path for leaf in range(len(stored.names))}
    has_dots = any("." in name for name in (*schema.names, *file.arrow_schema.names))
    if has_dots or (len(paths), len(by_path), len(kinds)) != (len(stored.names), len(wanted.names), len(stored.names)):
        return {}  # a path may be that of two leaves
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    if any(group.num_rows > _ROWS_MAX or group.column(0).file_path for group in groups):
        return {}
    leaves: dict[str, list[int]] = {}
    for leaf in range(len(stored.names)):
        leaves.setdefault(stored.column(leaf).path.split(".")[0], []).append(leaf)
    result = {}
    for name in names:
        position = file.arrow_schema.get_field_index(name)
        if position < 0 or file.arrow_schema.field(position).type != schema.field(name).type:
            continue
        of_column = leaves.get(name, [])
        pairs = [(stored.column(leaf), by_path.get(stored.column(leaf).path)) for leaf in of_column]
        if pairs and all(new is not None and old.equals(new) for old, new in pairs):
            for leaf in of_column:
                kind = kinds[leaf][1]
                result[leaf] = name, kind is not None and file.parsed.has_ordered_bounds(leaf, kind)
    return result


# -- Thrift -----------------------------------------------------------------------------------------------------------


def _raw_at(data: bytes, offset: int) -> tuple[bytes, int]:
    end = value_at(data, offset, STRUCT)[1]
    return data[offset:end], end


_LISTS: dict[int, ItemAt] = {_ROW_GROUPS: partial(struct_at, lists={1: _raw_at})}


def _row_groups(metadata: Any) -> list[list[bytes]]:
    """Of each row group, its column chunks as they are written."""
    return [group[1] for group in struct_at(rewritten(metadata), 0, _LISTS)[0][_ROW_GROUPS]]


def _metadata_fields(chunk: bytes) -> list[tuple[int, int, bytes, Any]]:
    """(field id, type, as it is written, value) of the metadata of a column chunk."""
    begin = next(begin for number, _, begin, _, _ in fields_at(chunk, 0) if number == _METADATA)
    return [(number, kind, chunk[low:high], value) for number, kind, low, high, value in fields_at(chunk, begin)]


def _chunk_bytes(chunk: bytes, field: int) -> int:
    return next(value for number, _, _, value in _metadata_fields(chunk) if number == field)


def _moved(chunk: bytes, distance: int, has_bounds: bool) -> bytes:
    """A column chunk that lies `distance` bytes further on."""
    fields, data_page = [], _chunk_bytes(chunk, _DATA_PAGE)
    for number, kind, raw, value in _metadata_fields(chunk):
        is_dropped = number in (_INDEX_PAGE, *_BLOOM_FILTER) or (number == _STATISTICS and not has_bounds)
        if is_dropped or (number == _DICTIONARY_PAGE and not 0 < value < data_page):
            continue
        is_offset = number in (_DATA_PAGE, _DICTIONARY_PAGE)
        fields.append((number, kind, encode_int(value + distance) if is_offset else raw))
    return encode_struct((2, I64, encode_int(0)), (_METADATA, STRUCT, encode_struct(*fields)))
