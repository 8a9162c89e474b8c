"""Statistics from Parquet footers: no data is read.

A footer is believed where writers are known to tell the truth, and no further:

- bounds that may be in another order than the values' are none (`bound_order.py`)
- float bounds leave NaN out and nobody counts it, so the NaN count stays unknown; where one is NaN, neither counts
- INT96 has no defined order: no bounds
- bounds of strings, binaries and fixed-size binaries may have been cut short: they prune, they are not exact
- unsigned values come as signed numbers and are read back by their width; times come in the file's own unit
- a missing count is unknown, never zero

Leaves below lists and maps are not covered.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ... import canon
from ...errors import CorruptionError, SchemaError, SkipstoneError
from ..storage import Entry, FileMissingError, Storage
from .bound_order import BoundOrder
from .column_stats import ColumnStats, shortened

if TYPE_CHECKING:
    import pyarrow.parquet as pq

BoundReader = Callable[[Any], int | bytes | None]

_PARQUET_UNIT = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


@dataclass(frozen=True)
class RowGroup:
    """The size of one row group: rows, and bytes in the file."""

    row_count: int
    size_bytes: int


@dataclass(frozen=True)
class Footer:
    """What a footer says: the Arrow schema (`own`: with all that Parquet says of it), the row groups, and statistics a
    leaf (dotted path) and row group."""

    schema: pa.Schema
    row_groups: list[RowGroup]
    stats: dict[str, list[ColumnStats]]
    own: pa.Schema | None = None

    @property
    def row_count(self) -> int:
        return sum(g.row_count for g in self.row_groups)


def open_parquet(storage: Storage, entry: Entry, **options: Any) -> pq.ParquetFile:
    """The Parquet file that `entry` told of, open. Raises CorruptionError for one that is truncated or not Parquet,
    StorageError where it cannot be opened at all."""
    import pyarrow.parquet as pq

    path = entry.path
    if entry.size_bytes == 0:
        raise CorruptionError("an empty file is not Parquet", path=path, check="parquet")
    try:
        source = storage.open_file(entry)
        file = pq.ParquetFile(source, **options)
        file.remote = None if isinstance(source, str) else source
        return file
    except SkipstoneError:
        raise
    except pa.ArrowInvalid as error:
        raise CorruptionError(
            f"not a whole Parquet file ({_first_line(error)}); if it is still being written, sync() picks it up later",
            path=path,
            check="parquet",
        ) from error
    except FileNotFoundError as error:
        raise FileMissingError(f"{path}: no such file") from error
    except OSError as error:
        raise CorruptionError(
            f"cannot be read as Parquet ({_first_line(error)})", path=path, check="parquet"
        ) from error


def prefetch(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> bool:
    """Brings what a row group holds of some columns (top-level names) in few requests, side by side, where the file,
    opened by `open_parquet`, is an object store's. False for a local one, which Arrow reads by itself."""
    if file.remote is None:
        return False
    file.remote.prefetch(chunk_ranges(file, group, columns))
    return True


def chunk_ranges(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> list[tuple[int, int]]:
    """(offset, length) of each column chunk that a row group holds of some columns (top-level names)."""
    row_group, wanted = file.metadata.row_group(group), set(columns)
    ranges = []
    for i in range(row_group.num_columns):
        chunk = row_group.column(i)
        if chunk.path_in_schema.split(".", 1)[0] in wanted or chunk.path_in_schema in wanted:
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
                start = chunk.dictionary_page_offset
            ranges.append((start, chunk.total_compressed_size))
    return ranges


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """What pyarrow raises for damaged pages becomes a CorruptionError that names the file."""
    try:
        yield
    except SkipstoneError:
        raise
    except (pa.ArrowException, OSError) as error:
        told = f"its data cannot be read ({_first_line(error)}); restore the file, or sync() the table without it"
        raise CorruptionError(told, path=path, check="parquet") from error


def read_footer(
    storage: Storage,
    entry: Entry,
    wanted: Callable[[str], bool] = lambda leaf: True,
    options: Mapping[str, Any] | None = None,
) -> Footer:
    """The footer of the file that `entry` told of, with statistics for the leaves that are `wanted`. `options`: how
    pyarrow opens it."""
    with open_parquet(storage, entry, **(options or {})) as file:
        try:
            return parse_footer(file.metadata, file.schema_arrow, wanted)
        except SkipstoneError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptionError(
                f"its footer cannot be read ({_first_line(error)})", path=entry.path, check="parquet"
            ) from error


def parse_footer(metadata: Any, schema: pa.Schema, wanted: Callable[[str], bool] = lambda leaf: True) -> Footer:
    """`read_footer` for a footer that is open already: pyarrow's FileMetaData and the Arrow schema of its columns."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    leaves = list(_leaves(schema))
    stats: dict[str, list[ColumnStats]] = {}
    if len(leaves) == metadata.num_columns:  # else the schema holds something that we do not know how to walk
        known, order = leaf_types(schema), BoundOrder(metadata)
        for index, (path, kind) in enumerate(leaves):
            if path not in known or not wanted(path):
                continue
            read = _bound_reader(metadata.schema.column(index), kind) if order.is_right(index, known[path]) else None
            stats[path] = [_chunk_stats(g.column(index), read, kind) for g in groups]
    return Footer(plain_schema(schema), row_groups_of(metadata), stats, schema)


def row_groups_of(metadata: Any) -> list[RowGroup]:
    """The row groups that pyarrow's FileMetaData tells of."""
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return [RowGroup(g.num_rows, sum(g.column(i).total_compressed_size for i in range(g.num_columns))) for g in groups]


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema in which columns of the same values have the same type: no dictionaries, views, "not null", metadata.
    Raises SchemaError for a type that Python cannot hash, as those may be that other packages register."""
    for field in schema:
        try:
            hash(field)
        except TypeError:
            raise SchemaError(
                f"column {field.name!r} is {field.type}, a registered type without __hash__: define that first"
            ) from None
    return pa.schema([pa.field(f.name, plain_type(f.type)) for f in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that `plain_schema` gives a column of a type."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def leaf_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """The type of each leaf that can be indexed, by dotted path through structs; where two share a path, neither."""
    found: dict[str, pa.DataType] = {}
    twice: set[str] = set()
    for path, kind in _leaves(schema):
        if path is None or kind is None or canon.order_class(kind) is None:
            continue
        if path in found:
            twice.add(path)
        found[path] = plain_type(kind)
    return {path: kind for path, kind in found.items() if path not in twice}


def leaf_position(schema: pa.Schema, count: int, path: str) -> tuple[int, pa.DataType] | None:
    """(which of a file's `count` Parquet leaves has that path, its Arrow type); None where that is not certain."""
    leaves = list(_leaves(schema))
    found = [(at, kind) for at, (name, kind) in enumerate(leaves) if name == path and kind is not None]
    return found[0] if len(found) == 1 and len(leaves) == count else None


def leaf_type(schema: pa.Schema, path: str) -> pa.DataType | None:
    """The type of one leaf, as `leaf_types` has it, found without walking the others; None where it is no such leaf."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        at = schema.get_field_index(".".join(parts[:end]))
        if at >= 0:
            return _leaf_below(schema.field(at).type, parts[end:])
    return None


def _leaf_below(kind: pa.DataType, names: list[str]) -> pa.DataType | None:
    for name in names:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return None if canon.order_class(kind) is None else plain_type(kind)


def _leaves(schema: pa.Schema) -> Iterator[tuple[str | None, pa.DataType | None]]:
    """(dotted path, type) of each Parquet leaf, in order; the path is None below a list or a map."""
    for field in schema:
        yield from _walk(field.name, field.type)


def _walk(path: str | None, kind: pa.DataType) -> Iterator[tuple[str | None, pa.DataType | None]]:
    if isinstance(kind, pa.BaseExtensionType) and canon.order_class(kind) is None:
        yield from _walk(None, kind.storage_type)
    elif pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            child = kind.field(i)
            yield from _walk(None if path is None else f"{path}.{child.name}", child.type)
    elif pa.types.is_map(kind):
        yield from _walk(None, kind.key_type)
        yield from _walk(None, kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _walk(None, kind.value_type)
    else:
        yield path, kind


def _chunk_stats(chunk: Any, read: BoundReader | None, kind: pa.DataType) -> ColumnStats:
    sizes = {"compressed_bytes": chunk.total_compressed_size, "uncompressed_bytes": chunk.total_uncompressed_size}
    counts = {"value_count": chunk.num_values, "nan_count": None if pa.types.is_floating(kind) else 0}
    found = chunk.statistics
    if found is None:
        return ColumnStats(**sizes, **counts)
    nulls = found.null_count if found.has_null_count else None
    if nulls is not None and not 0 <= nulls <= chunk.num_values:
        return ColumnStats(**sizes, **counts)  # a footer that counts wrong is not to be believed in anything
    if nulls == chunk.num_values:
        if found.has_min_max:  # bounds of no value: it is not to be believed either
            return ColumnStats(**sizes, **counts)
        counts["nan_count"] = 0  # nulls alone leave no room for NaN, which no footer counts
    lower: Any = None
    upper: Any = None
    if read is not None and found.has_min_max:
        lower, upper = read(found.min_raw), read(found.max_raw)
        if lower is None or upper is None or lower > upper:
            lower = upper = None
    exact = not canon.is_bytes_like(plain_type(kind))
    return shortened(
        ColumnStats(
            lower=lower,
            upper=upper,
            lower_exact=exact and lower is not None,
            upper_exact=exact and upper is not None,
            null_count=nulls,
            **sizes,
            **counts,
        )
    )


def _bound_reader(column: Any, kind: pa.DataType) -> BoundReader | None:
    """A function from a raw bound, as the footer holds it, to an order code or order bytes; None where bounds are not
    to be trusted."""
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
    return _float_bound(float(np.frombuffer(raw, dtype=np.float16)[0]))


def _decimal_reader(kind: pa.DataType, physical: str, logical: dict) -> BoundReader | None:
    if logical.get("scale", kind.scale) != kind.scale:
        return None
    if canon.order_class(kind) == "code":
        if physical in ("INT32", "INT64"):
            return int
        return lambda raw: _fits(int.from_bytes(raw, "big", signed=True))
    width = 32 if pa.types.is_decimal256(kind) else 16
    offset = 1 << (8 * width - 1)
    if physical in ("INT32", "INT64"):
        return lambda raw: (raw + offset).to_bytes(width, "big")
    return lambda raw: (int.from_bytes(raw, "big", signed=True) + offset).to_bytes(width, "big")


def _temporal_reader(kind: pa.DataType, logical: dict) -> BoundReader | None:
    """Bounds in the unit of the Arrow type; the file may hold another (Arrow has seconds, Parquet has not)."""
    if pa.types.is_date32(kind):
        return int if logical["Type"] == "Date" else None
    if pa.types.is_date64(kind):
        return (lambda raw: raw * 86_400_000) if logical["Type"] == "Date" else int
    if pa.types.is_duration(kind):
        return int if logical["Type"] == "None" else None
    stored = _PARQUET_UNIT.get(logical.get("timeUnit", ""))
    return int if stored == kind.unit else None


def _fits(code: int) -> int | None:
    return code if -(1 << 63) <= code < 1 << 63 else None


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
