"""Opening Parquet files, statistics from their footers, and rows of their row groups.

Statistics of a footer count only if writers are known to write them correctly:

- bounds that may be in another order than the values' are ignored (`footer_bytes.py`)
- float bounds exclude NaN, and no writer counts it, so the NaN count is unknown; if one bound is NaN, neither counts
- INT96 has no defined order: no bounds
- bounds of strings, binaries and fixed-size binaries may have been shortened: they prune, they are not exact
- unsigned values are stored as signed numbers and converted by their width; times have the file's own unit
- a missing count is unknown, never zero

Leaves below lists and maps are not covered.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...base import canon
from ...base.arrays import from_numpy
from ...base.versions import schema_of
from ...errors import CorruptionError, NotReadableError, SkipstoneError, StorageError
from ..storage import Entry, FileMissingError, RangeFile, Storage, UnreachableError
from .column_stats import ColumnStats, shortened
from .leaves import UNTRUSTED, leaf_types, leaves_of, plain_schema, plain_type, without_views

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from .footer_bytes import Chunk, FooterBytes, RowGroup

BoundReader = Callable[[Any], int | bytes | None]

# Errors about one file: it is damaged, changed, or missing. Any other StorageError is a failure of the system, such as
# too many open files or a missing permission: it proves nothing about the file.
FILE_ERRORS = (CorruptionError, NotReadableError, FileMissingError, UnreachableError)

_TAIL_BYTES = 64 << 10  # the part of a file that pyarrow reads first
_NOT_WHOLE = "not a whole Parquet file ({}); if it is still being written, the next sync reads it"
_BATCH_ROWS = 4096  # that are decoded at a time if few rows are wanted

# Old writers, and Spark, stored times as INT96. They are read as microseconds: as nanoseconds, pyarrow's default, times
# before 1677 and after 2262 would get another year. Spark's own reader also has nothing finer.
READ_OPTIONS = {"coerce_int96_timestamp_unit": "us"}
_PARQUET_UNIT = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


@dataclass(frozen=True)
class Footer:
    """The content of a footer: the Arrow schema (`stored_schema`: with all its metadata), row groups, and statistics
    per leaf (dotted path) and row group. `packed`: the footer of a remote file as an index stores it."""

    schema: pa.Schema
    row_groups: list[RowGroup]
    stats: dict[str, list[ColumnStats]]
    stored_schema: pa.Schema | None = None
    packed: bytes | None = None

    @property
    def row_count(self) -> int:
        return sum(g.row_count for g in self.row_groups)


def open_parquet(storage: Storage, entry: Entry, *, is_checked: bool = True) -> pq.ParquetFile:
    """Open the Parquet file of an entry by pyarrow, with `READ_OPTIONS`, and its `arrow_schema`. Raise
    CorruptionError if it is truncated or not Parquet, StorageError if it cannot be opened.

    `is_checked`: its footer was parsed when the file was added to the table. If not, it is parsed here, because pyarrow
    ends the process for the chunks of a footer that contradicts itself (see `footer_bytes.py`); the file then has
    `parsed` (FooterBytes).
    """
    if is_checked:
        return _opened(storage, entry)
    from .footer_bytes import footer_bytes

    file = _opened(storage, entry, min(entry.size_bytes, _TAIL_BYTES))
    try:
        with _refusals(entry.path, "its footer cannot be read ({})"):
            _, stored = _tail_of(file.remote or range_file(storage, entry))
            file.parsed = footer_bytes(file.metadata, entry.path, entry.size_bytes, stored)
            return file
    except BaseException:
        file.close()
        raise


def open_by_footer(storage: Storage, entry: Entry, packed: bytes) -> pq.ParquetFile:
    """Do `open_parquet` with the packed footer that an index has of the file, without reading the file's own."""
    from .packed_footer import unpacked_footer

    return _opened(storage, entry, metadata=unpacked_footer(packed, entry.path, entry.size_bytes))


def rows_of_group(file: pq.ParquetFile, group: int, columns: list[str], path: str) -> pa.Table:
    """Return some columns of a row group. Raise CorruptionError if its pages contain fewer rows than its footer
    declares, which pyarrow accepts.

    A remote file is decoded in the calling thread. A thread of pyarrow's would free a Python object, and if it does so
    while the interpreter ends, the process aborts.
    """
    rows = file.read_row_group(group, columns=columns, use_threads=file.remote is None)
    if rows.num_rows != file.metadata.row_group(group).num_rows:
        raise CorruptionError("contains fewer rows than its footer says", path=path, check="parquet")
    return rows


def rows_at_positions(file: pq.ParquetFile, group: int, columns: list[str], wanted: np.ndarray) -> list[pa.RecordBatch]:
    """Return rows at ascending positions (at least one) in some columns of a row group. Files are read in threads."""
    parts: list[pa.RecordBatch] = []
    start = 0
    # The memory of a released batch is reused for the next; fresh memory costs more than decoding.
    for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
        first, end = np.searchsorted(wanted, (start, start + batch.num_rows))
        if first < end:
            parts += _copied(batch, wanted[first:end] - start)
        start += batch.num_rows
        if start > wanted[-1]:
            break
    return parts


def _copied(batch: pa.RecordBatch, rows: np.ndarray) -> list[pa.RecordBatch]:
    """Return some rows of a batch, in their own memory if Arrow can copy them."""
    try:
        columns = [without_views(column) for column in batch.columns]
        return [pa.RecordBatch.from_arrays(columns, names=batch.schema.names).take(from_numpy(rows))]
    except pa.ArrowNotImplementedError:  # for some types there is no `take`
        return [batch.slice(row, 1) for row in rows.tolist()]


def _opened(storage: Storage, entry: Entry, tail_bytes: int = 0, metadata: Any = None) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    _check_not_empty(storage, entry)
    with _refusals(entry.path, _NOT_WHOLE):
        source = storage.open_file(entry)
        if tail_bytes and not isinstance(source, str):
            source.prefetch([(entry.size_bytes - tail_bytes, tail_bytes)])
        file = pq.ParquetFile(source, metadata=metadata, **READ_OPTIONS)
        file.remote = None if isinstance(source, str) else source
        try:
            file.arrow_schema = schema_of(file)  # pyarrow makes it at each call; if it cannot, nothing can be read
        except BaseException:
            file.close()
            raise
        return file


def _check_not_empty(storage: Storage, entry: Entry) -> None:
    if entry.size_bytes == 0:
        storage.stat(entry.path)  # raises if it is a dangling link
        raise CorruptionError("an empty file is not Parquet", path=entry.path, check="parquet")


def _tail_of(source: RangeFile) -> tuple[bytes, bytes]:
    """Return the end of a file, which contains at least its footer, and the footer."""
    size_bytes = source.size_bytes
    tail_bytes = min(size_bytes, _TAIL_BYTES)
    tail = source.read_at(size_bytes - tail_bytes, tail_bytes)
    length = int.from_bytes(tail[-8:-4], "little")
    if tail_bytes < length + 8 <= size_bytes:
        tail = source.read_at(size_bytes - length - 8, length + 8)
    return tail, tail[-8 - length : -8]


@contextlib.contextmanager
def _refusals(path: str, message: str) -> Iterator[None]:
    """Turn the errors of pyarrow, or of parsing, for bytes that are not complete Parquet into a CorruptionError: the
    message with the error's first line. An error of the operating system has an errno, and becomes a StorageError."""
    try:
        yield
    except CorruptionError as error:
        if error.path is not None:
            raise
        raise CorruptionError(error.message, path=path, offset=error.offset, check=error.check) from error
    except SkipstoneError:
        raise
    except FileNotFoundError as error:
        raise FileMissingError(f"{path}: no such file") from error
    except (pa.ArrowException, OSError, ValueError, ArithmeticError, MemoryError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(f"{path}: {os.strerror(error.errno)}") from error
        raise CorruptionError(message.format(_first_line(error)), path=path, check="parquet") from error


def prefetch(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> bool:
    """Fetch a row group's chunks of some columns (top-level names) in few parallel requests, if the file, opened
    by `open_parquet`, is in an object store. Return False for a local file, which Arrow reads itself."""
    if file.remote is None:
        return False
    file.remote.prefetch(chunk_ranges(file, group, columns))
    return True


def chunk_ranges(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> list[tuple[int, int]]:
    """Return (offset, length) of each chunk of some columns of a row group (top-level names, or dotted paths of fields
    of structs)."""
    row_group, wanted = file.metadata.row_group(group), set(columns)
    below = tuple(f"{name}." for name in columns)
    ranges = []
    for i in range(row_group.num_columns):
        chunk = row_group.column(i)
        if chunk.path_in_schema in wanted or chunk.path_in_schema.startswith(below):
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
                start = chunk.dictionary_page_offset
            ranges.append((start, chunk.total_compressed_size))
    return ranges


def corruption_errors(path: str) -> contextlib.AbstractContextManager[None]:
    """Raise CorruptionError, with the file's path, for the errors of pyarrow for damaged pages."""
    return _refusals(path, "its data cannot be read ({}); restore the file, or sync() the table without it")


def range_file(storage: Storage, entry: Entry) -> RangeFile:
    """Return a file, local or remote, whose bytes are read range by range."""
    source = storage.open_file(entry)
    if isinstance(source, str):
        return RangeFile(entry.size_bytes, lambda ranges: storage.read_ranges(entry.path, ranges), entry.path)
    return source


@contextlib.contextmanager
def open_indexed(storage: Storage, row: Mapping[str, Any]) -> Iterator[pq.ParquetFile]:
    """Yield the file of a row of the manifest (path and identity), open to be indexed; `file.parsed` has its footer.

    Raise NotReadableError if another file has this path, or replaced the file while the block read it: otherwise an
    index would describe the wrong file.
    """
    entry = indexed_entry(storage, row)
    file = open_parquet(storage, entry, is_checked=False)
    with file:
        yield file
        if file.remote is None:  # an object store checks the identity at each read
            indexed_entry(storage, row)


def indexed_entry(storage: Storage, row: Mapping[str, Any]) -> Entry:
    """Return the storage's entry for a row of the manifest. Raise NotReadableError if it is another file."""
    path = row["path"]
    entry = storage.stat(path)
    if not entry.is_same(row["size_bytes"], row["modified_ns"], row["etag"]):
        what = "overwritten since it was indexed"
        raise NotReadableError(f"{path}: {what}", paths=[path], changed=what, hint="{sync} the table")
    return entry


def read_footer(
    storage: Storage,
    entry: Entry,
    wanted: Callable[[str], bool] = lambda leaf: True,
) -> Footer:
    """Return the footer of the file of `entry`, with statistics for the leaves that are `wanted`. Only the end of the
    file is read. Raise as `open_parquet`."""
    import pyarrow.parquet as pq

    from .footer_bytes import footer_bytes

    _check_not_empty(storage, entry)
    with _refusals(entry.path, _NOT_WHOLE):
        tail, stored = _tail_of(range_file(storage, entry))
        file = pq.ParquetFile(pa.BufferReader(tail), **READ_OPTIONS)
        schema = schema_of(file)
    with _refusals(entry.path, "its footer cannot be read ({})"):
        parsed = footer_bytes(file.metadata, entry.path, entry.size_bytes, stored)
        layout = _layout_of(schema, file.metadata.schema)
        return replace(_with_statistics(parsed, layout, wanted), packed=packed_where_far(storage, file.metadata))


def packed_where_far(storage: Storage, metadata: Any) -> bytes | None:
    """Return a footer in the form in which an index stores it for an object store; None for local files."""
    if not storage.is_remote:
        return None
    from .packed_footer import packed_footer

    return packed_footer(metadata)


def _with_statistics(footer: FooterBytes, layout: _Layout, wanted: Callable[[str], bool]) -> Footer:
    """Return the footer of a file of a layout, with statistics for the leaves that are `wanted`."""
    writer = footer.created_by, footer.defined
    readers = layout.readers.get(writer)
    if readers is None:
        readers = [
            (
                *(leaf, name, read if footer.has_ordered_bounds(leaf, dtype) else None),
                *(None if pa.types.is_floating(kind) else 0, not canon.is_bytes_like(dtype)),
            )
            for leaf, name, dtype, kind, read in layout.leaves
        ]
        layout.readers.clear()
        layout.readers[writer] = readers
    stats = {
        name: [_chunk_stats(chunks[leaf], read, nan_count, is_exact) for chunks in footer.chunks]
        for leaf, name, read, nan_count, is_exact in readers
        if wanted(name)
    }
    stored = marked(layout.schema, footer)
    plain = layout.plain if stored is layout.schema else marked(layout.plain, footer)
    return Footer(plain, footer.row_groups, stats, stored)


def marked(schema: pa.Schema, footer: FooterBytes) -> pa.Schema:
    """Return the schema of a file, marked as UNTRUSTED if statistics in its footer contradict themselves."""
    if any(_has_bounds_of_nothing(chunk) for chunks in footer.chunks for chunk in chunks):
        return schema.with_metadata({**(schema.metadata or {}), UNTRUSTED: b""})
    return schema


class _Layout(NamedTuple):
    """The common content of the footers of all files of one schema.

    leaves    (position, dotted path, type in statistics, Arrow's type, reader of bounds) of each that has statistics
    readers   for the writer of the newest footer (name, leaves with a defined order): (position, dotted path, reader of
              bounds if they count, NaN count, whether bounds are exact) of each of these leaves
    """

    schema: pa.Schema
    stored: Any
    plain: pa.Schema
    leaves: list[tuple[int, str, pa.DataType, pa.DataType, BoundReader | None]]
    readers: dict[tuple, list[tuple[int, str, BoundReader | None, int | None, bool]]]


_newest_layout: _Layout | None = None


def _layout_of(schema: pa.Schema, stored: Any) -> _Layout:
    """Return the layout of an Arrow schema and a pyarrow ParquetSchema. Cache the newest: most files have the schema of
    the file before."""
    global _newest_layout
    kept = _newest_layout
    if kept is not None and schema.equals(kept.schema, check_metadata=True) and stored.equals(kept.stored):
        return kept
    pa.ipc.read_schema(schema.serialize())  # pyarrow creates some that it cannot read again
    leaves, types = list(leaves_of(schema)), leaf_types(schema)
    known = []
    if len(leaves) == len(stored):  # otherwise the schema contains a type that `leaves_of` cannot walk
        known = [
            (leaf, name, types[name], kind, _bound_reader(stored.column(leaf), kind))
            for leaf, (name, kind) in enumerate(leaves)
            if name in types
        ]
    _newest_layout = layout = _Layout(schema, stored, plain_schema(schema), known, {})
    return layout


def _has_bounds_of_nothing(chunk: Chunk) -> bool:
    """Whether all values are null, of which there are no bounds. Some versions of polars count a null several times."""
    return chunk.null_count == chunk.value_count and chunk.has_bounds


def _chunk_stats(chunk: Chunk, read: BoundReader | None, nan_count: int | None, is_exact: bool) -> ColumnStats:
    values, *sizes, nulls, bounds, _ = chunk
    is_wrong = nulls is not None and not 0 <= nulls <= values
    if is_wrong or _has_bounds_of_nothing(chunk):  # nothing of these statistics is trusted
        return ColumnStats(None, None, False, False, None, nan_count, values, *sizes)
    if nulls == values:
        nan_count = 0  # if all are null, none is NaN, which no footer counts
    lower: Any = None
    upper: Any = None
    if read is not None and bounds is not None:
        lower, upper = map(read, bounds)
        if lower is None or upper is None or lower > upper:
            lower = upper = None
    is_exact = is_exact and lower is not None
    return shortened(ColumnStats(lower, upper, is_exact, is_exact, nulls, nan_count, values, *sizes))


def _bound_reader(column: Any, kind: pa.DataType) -> BoundReader | None:
    """Return a function from a raw bound of a footer to an order code or order bytes; None if bounds do not count."""
    kind = plain_type(kind)
    physical = column.physical_type
    logical = json.loads(column.logical_type.to_json())
    if canon.is_bytes_like(kind):
        return bytes if physical in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") else None
    if pa.types.is_decimal(kind):
        return _decimal_reader(kind, physical, logical)
    if pa.types.is_floating(kind):
        return _float_bound if physical in ("FLOAT", "DOUBLE") else _half_bound
    if physical == "BOOLEAN":
        return int
    if physical not in ("INT32", "INT64"):
        return None
    if pa.types.is_unsigned_integer(kind):
        mask = (1 << (32 if physical == "INT32" else 64)) - 1
        shift = 1 << 63 if pa.types.is_uint64(kind) else 0
        return lambda raw: (raw & mask) - shift
    if pa.types.is_temporal(kind):
        return _temporal_reader(kind, logical)
    return int


def _float_bound(raw: float) -> int | None:
    return None if raw != raw else canon.float_code(raw)


def _half_bound(raw: bytes) -> int | None:
    return None if len(raw) != 2 else _float_bound(float(np.frombuffer(raw, dtype=np.float16)[0]))


def _decimal_reader(kind: pa.DataType, physical: str, logical: dict) -> BoundReader | None:
    if logical.get("scale", kind.scale) != kind.scale:
        return None
    if canon.order_class(kind) == "code":
        return int if physical in ("INT32", "INT64") else _decimal_code
    width = 32 if pa.types.is_decimal256(kind) else 16
    offset = 1 << (8 * width - 1)
    if physical in ("INT32", "INT64"):
        return lambda raw: (raw + offset).to_bytes(width, "big")
    return lambda raw: (int.from_bytes(raw, "big", signed=True) + offset).to_bytes(width, "big")


def _decimal_code(raw: bytes) -> int | None:
    code = int.from_bytes(raw, "big", signed=True)
    return code if -(1 << 63) <= code < 1 << 63 else None


def _temporal_reader(kind: pa.DataType, logical: dict) -> BoundReader | None:
    """Return a reader of bounds in the unit of the Arrow type; the file may have another (Parquet has no seconds)."""
    if pa.types.is_date32(kind):
        return int if logical["Type"] == "Date" else None
    if pa.types.is_date64(kind):
        return (lambda raw: raw * 86_400_000) if logical["Type"] == "Date" else int
    if pa.types.is_duration(kind):
        return int if logical["Type"] == "None" else None
    stored = _PARQUET_UNIT.get(logical.get("timeUnit", ""))
    return int if stored == kind.unit else None


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
