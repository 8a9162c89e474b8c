"""Check a footer, and read its row groups from its bytes.

pyarrow ends the whole process (`std::terminate`) if it reads a column chunk, or its statistics, of a footer that
contradicts itself: more chunks than the schema has leaves, level histograms whose length is not that of the levels, a
bound that is shorter than its type, a column encrypted by its own key. So this module reads the row groups, and refuses
such a footer before pyarrow reads a chunk. It parses the footer as pyarrow writes it again, which is well-formed Thrift
for any content of the file.

Which bounds are in the order of their column's type (`FooterBytes.has_ordered_bounds`):

Bounds of values that are stored and compared as signed integers count, except those of fastparquet, which orders
categories by their codes. Bounds of other values were wrong in many files before footers declared the order of bounds
(`column_orders`, 2017: parquet-mr 1.10, parquet-cpp 1.3): those of float and double if a value was NaN; those of byte
strings, decimals in bytes, half floats and unsigned numbers, which were compared as signed bytes or numbers. So they
count only

- if the footer declares for that column that its bounds are in the order of the type: then they are `min_value` and
  `max_value`, not the deprecated `min` and `max`
- and if no bug of the writer is known. Many writers compared decimals in bytes wrongly, so those count only if the
  writer is known to be right.

This is stricter than parquet-mr's `CorruptStatistics` and Arrow's `ApplicationVersion::HasCorrectStatistics`, which
accept deprecated bounds if both are equal, and in Arrow decimals of any writer. The other case that they exclude,
binaries of parquet-mr before 1.8 (PARQUET-251), has no column orders.

Format: github.com/apache/parquet-format, parquet.thrift: FileMetaData, Statistics, ColumnOrder.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from ...base.arrays import read_only
from ...base.lazy import kernels_for, load_for
from ...errors import CorruptionError
from .thrift import STOP, ItemAt, fields_at, struct_at

# Field ids.
_ROW_GROUPS, _CREATED_BY, _COLUMN_ORDERS, _ENCRYPTION = 4, 6, 7, 8
_COLUMNS, _ROW_COUNT = 1, 3
_METADATA, _CHUNK_KEY, _DICTIONARY_PAGE = 3, 8, 11
_TYPE_DEFINED = 1

_IN_BYTES = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_VERSION = re.compile(r"(\S+) version (?:v|py-)?(\d+)\.(\d+)\.(\d+)")

# The version since which a writer compares decimals in bytes as numbers. parquet-rs does not yet if their lengths
# differ (arrow-rs#10860, arrow-rs#11073); DuckDB writes no such decimals.
_DECIMALS_SINCE = {
    ("parquet-mr", "FIXED_LEN_BYTE_ARRAY"): (1, 10, 0),
    ("parquet-mr", "BYTE_ARRAY"): (1, 10, 0),
    ("parquet-cpp-arrow", "FIXED_LEN_BYTE_ARRAY"): (4, 0, 0),  # PARQUET-1655
    ("parquet-cpp-arrow", "BYTE_ARRAY"): (4, 0, 0),
    ("parquet-rs", "FIXED_LEN_BYTE_ARRAY"): (14, 0, 0),  # arrow-rs#1532
    ("delta-rs", "FIXED_LEN_BYTE_ARRAY"): (1, 0, 0),  # a later parquet-rs
    ("DuckDB", "FIXED_LEN_BYTE_ARRAY"): (1, 0, 0),
}
# Since which a writer leaves NaN out of the bounds of floats: PARQUET-1246, PARQUET-1225, IMPALA-6527; parquet-go#459.
_FLOATS_SINCE = {
    "parquet-mr": (1, 10, 0),
    "parquet-cpp": (1, 5, 0),
    "impala": (2, 12, 0),
    "github.com/parquet-go/parquet-go": (1, 0, 0),
    "github.com/segmentio/parquet-go": (1, 0, 0),
}
_UNSIGNED_SINCE = {"parquet-rs": (14, 0, 0)}  # arrow-rs#1532; all other writers since their first version

_MAGIC = b"PAR1"
_KERNELS = "engine.parquet.kernels_footer"
_CHUNK_PLAIN_NS, _FOOTER_PLAIN_NS = 25_000, 200_000
BoundsOf: TypeAlias = Callable[[bytes, bytes], tuple[Any, Any] | None]
_COUNT_MAX = 1 << 48  # of rows, values and bytes: above it, sums over many files exceed 64 bits
_STORED_AS = {"BOOLEAN": "<?", "INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}  # formats of `struct`


class Chunk(NamedTuple):
    """One column chunk as its footer describes it.

    null_count    None if the footer has none
    bounds        (least, greatest) as stored, in the fields that the column's order selects: int, float, bool or bytes;
                  None if one is missing, or is not a value of the leaf's type
    has_bounds    both exist, valid or not, or both in the other two fields
    """

    value_count: int
    compressed_bytes: int
    uncompressed_bytes: int
    null_count: int | None
    bounds: tuple[Any, Any] | None
    has_bounds: bool


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The size of one row group: rows, and bytes in the file."""

    row_count: int
    size_bytes: int


@dataclass(frozen=True)
class FooterBytes:
    """The content of a footer.

    created_by     the writer's name and version; "" if they are missing or cannot be decoded
    leaves         pyarrow's ColumnSchema of each leaf
    defined        the positions of the leaves whose bounds are in the order of their type
    row_groups     their sizes
    chunks         for each row group, by leaf
    """

    created_by: str
    leaves: list[Any]
    defined: frozenset[int]
    row_groups: list[RowGroup]
    chunks: list[list[Chunk]]

    def has_ordered_bounds(self, leaf: int, kind: pa.DataType) -> bool:
        """Return True if the bounds of a leaf, by its position, order as the values of its Arrow type do."""
        physical = self.leaves[leaf].physical_type
        if physical == "INT96":
            return False
        if self.created_by.startswith("fastparquet"):
            return False
        is_unsigned, is_float = pa.types.is_unsigned_integer(kind), physical in ("FLOAT", "DOUBLE")
        if physical not in _IN_BYTES and not is_unsigned and not is_float:
            return True
        if leaf not in self.defined or not self.created_by:  # bounds in a footer without a writer do not count
            return False
        named = _VERSION.match(self.created_by)
        name, version = (named[1], tuple(map(int, named.groups()[1:]))) if named else ("", ())
        if is_float:
            return version >= _FLOATS_SINCE.get(name, ())
        if is_unsigned:
            return version >= _UNSIGNED_SINCE.get(name, ())
        if pa.types.is_decimal(kind):
            since = _DECIMALS_SINCE.get((name, physical))
            return since is not None and version >= since
        return True


def footer_bytes(
    metadata: Any, path: str | None = None, size_bytes: int | None = None, stored: bytes | None = None
) -> FooterBytes:
    """Parse the footer of pyarrow's FileMetaData.

    Args:
        path: of the file, for errors.
        size_bytes: of the file; None if it is not known, and offsets are not checked.
        stored: the bytes of the footer in its file. Most writers write the same bytes as pyarrow; then they are not
            parsed again.

    Raises CorruptionError for a footer that contradicts itself, or is encrypted, even in part.
    """
    leaves = _leaves_of(metadata.schema)
    kernels = kernels_for(_KERNELS, _CHUNK_PLAIN_NS * len(leaves.columns) * metadata.num_row_groups)
    try:
        fields = footer = None
        if stored is not None:
            footer = _read_by_kernel(kernels, stored, leaves, size_bytes)
            if footer is None:
                fields = _fields_of(stored)
                if _ENCRYPTION in fields:  # pyarrow ends the process if it writes such a footer again
                    raise ValueError("it is encrypted, and no key is known")
        data = rewritten(metadata)
        if stored is None or data != stored:
            footer, fields = _read_by_kernel(kernels, data, leaves, size_bytes), None
        return footer or parsed_footer(_fields_of(data) if fields is None else fields, leaves, size_bytes)
    except (ValueError, IndexError, KeyError, OSError) as error:
        reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise CorruptionError(f"its footer cannot be read ({reason})", path=path, check="parquet") from error


class _Leaves(NamedTuple):
    """The leaves of a pyarrow ParquetSchema.

    levels    the argument of `kernels_footer.read_footer`
    bounds    per leaf, a function from two stored bounds to their values; None if they are not valid
    """

    schema: Any
    columns: list[Any]
    levels: np.ndarray
    bounds: list[BoundsOf]


_newest_leaves: _Leaves | None = None


def _leaves_of(schema: Any) -> _Leaves:
    """Return the leaves of a schema. Cache the newest: most files have the schema of the file before."""
    global _newest_leaves
    kept = _newest_leaves
    if kept is None or not schema.equals(kept.schema):
        columns = [schema.column(leaf) for leaf in range(len(schema))]
        levels = [
            (one.physical_type == "BYTE_ARRAY", one.max_repetition_level, one.max_definition_level) for one in columns
        ]
        bounds = [_bounds_of(one.physical_type, one.length) for one in columns]
        kept = _Leaves(schema, columns, np.array(levels, dtype=np.int64).reshape(-1, 3), bounds)
        _newest_leaves = kept
    return kept


def _fields_of(data: bytes) -> dict[int, Any]:
    return struct_at(data, 0, _FILE_LISTS)[0]


def parsed_footer(fields: dict[int, Any], leaves: _Leaves, size_bytes: int | None) -> FooterBytes:
    """Return the plain twin of `kernels_footer.read_footer`. Raises ValueError or KeyError."""
    orders = fields.get(_COLUMN_ORDERS, ())
    defined = frozenset(leaf for leaf, order in enumerate(orders) if list(order) == [_TYPE_DEFINED])
    groups = [_group(group, leaves, defined, size_bytes) for group in fields[_ROW_GROUPS]]
    created_by = _text(fields.get(_CREATED_BY, b""))
    sizes, chunks = [group for group, _ in groups], [chunks for _, chunks in groups]
    return FooterBytes(created_by, leaves.columns, defined, sizes, chunks)


def _read_by_kernel(
    kernels: ModuleType | None, data: bytes, leaves: _Leaves, size_bytes: int | None
) -> FooterBytes | None:
    """Return the content of a footer; None if the kernel refuses it."""
    if kernels is None:
        return None
    read = kernels.read_footer(read_only(data), leaves.levels, -1 if size_bytes is None else size_bytes)
    is_expected, (begin, end), row_counts, numbers, orders = read
    if not is_expected:
        return None
    groups, parsed = [], []
    for row_count, rows in zip(row_counts.tolist(), numbers.tolist(), strict=True):
        chunks = []
        for bounds_of, (values, packed, plain, nulls, low_at, low_end, high_at, high_end) in zip(
            leaves.bounds, rows, strict=True
        ):
            has_bounds = low_at != -1 and high_at != -1
            bounds = bounds_of(data[low_at:low_end], data[high_at:high_end]) if low_at >= 0 and high_at >= 0 else None
            chunks.append(Chunk(values, packed, plain, None if nulls < 0 else nulls, bounds, has_bounds))
        groups.append(RowGroup(row_count, sum(chunk.compressed_bytes for chunk in chunks)))
        parsed.append(chunks)
    defined = frozenset(np.flatnonzero(orders).tolist())
    return FooterBytes(_text(data[begin:end]), leaves.columns, defined, groups, parsed)


def row_groups_of(metadata: Any) -> list[RowGroup]:
    """Return the row groups in pyarrow's FileMetaData of a file that this process has written: nothing is checked."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [sum(group.column(leaf).total_compressed_size for leaf in range(group.num_columns)) for group in groups]
    return [RowGroup(group.num_rows, size) for group, size in zip(groups, sizes, strict=True)]


def rewritten(metadata: Any) -> bytes:
    """Return the footer of pyarrow's FileMetaData as pyarrow writes it: only the Thrift bytes, as in a pickle."""
    data: bytes = metadata.__reduce__()[1][0].to_pybytes()
    return data


def metadata_of(footer: bytes) -> Any:
    """Return pyarrow's FileMetaData of a footer, read like a file, because unpickling a damaged footer ends the
    process. Raise ArrowException or OSError."""
    import pyarrow.parquet as pq

    return pq.read_metadata(pa.BufferReader(b"".join((_MAGIC, footer, struct.pack("<I", len(footer)), _MAGIC))))


def expect_footers(count: int) -> None:
    """Load the kernel now if that many footers justify it."""
    load_for(_KERNELS, count * _FOOTER_PLAIN_NS)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return ""


def _group(
    group: dict[int, Any], leaves: _Leaves, defined: frozenset[int], size_bytes: int | None
) -> tuple[RowGroup, list[Chunk]]:
    row_count, columns = group[_ROW_COUNT], group[_COLUMNS]
    if not 0 <= row_count <= _COUNT_MAX:
        raise ValueError(f"a row group of {row_count:,} rows")
    if len(columns) != len(leaves.columns):
        raise ValueError(f"a row group has {len(columns):,} column chunks, the schema {len(leaves.columns):,} leaves")
    chunks = []
    for number, (column, leaf) in enumerate(zip(columns, leaves.columns, strict=True)):
        chunk = _chunk(column, leaf, leaves.bounds[number], number in defined, size_bytes)
        # Each row has one value of a leaf that is not in a list, and at least one of a leaf that is.
        if chunk.value_count < row_count or (not leaf.max_repetition_level and chunk.value_count > row_count):
            raise ValueError(f"{chunk.value_count:,} values of leaf {number} in a row group of {row_count:,} rows")
        chunks.append(chunk)
    return RowGroup(row_count, sum(chunk.compressed_bytes for chunk in chunks)), chunks


def _chunk(column: dict[int, Any], leaf: Any, bounds_of: BoundsOf, is_defined: bool, size_bytes: int | None) -> Chunk:
    if _CHUNK_KEY in column:
        raise ValueError("a column is encrypted, and no key is known")
    fields = column[_METADATA]
    values, plain, packed, begin = fields[5], fields[6], fields[7], fields[9]
    if not (0 <= values <= _COUNT_MAX and 0 <= packed <= _COUNT_MAX and 0 <= plain <= _COUNT_MAX):
        raise ValueError(f"a column chunk of {values:,} values in {packed:,} bytes, {plain:,} uncompressed")
    end = begin
    if 0 < fields.get(_DICTIONARY_PAGE, 0) < begin:
        begin = fields[_DICTIONARY_PAGE]
    end = max(begin + packed, end)
    if size_bytes is not None and not 0 <= begin <= end <= size_bytes:
        raise ValueError(f"a column chunk of {packed:,} bytes at {begin:,} in a file of {size_bytes:,}")
    statistics, sizes = fields.get(12, {}), fields.get(16, {})
    for count, level in ((sizes.get(2, 0), leaf.max_repetition_level), (sizes.get(3, 0), leaf.max_definition_level)):
        if count not in (0, level + 1):
            raise ValueError(f"a histogram of {count:,} levels where there are {level + 1:,}")
    if 1 in sizes and leaf.physical_type != "BYTE_ARRAY":
        raise ValueError(f"the size of byte arrays in a column of {leaf.physical_type}")
    low, high = (statistics.get(number) for number in ((6, 5) if is_defined else (2, 1)))
    has_bounds = any({number, number - 1} <= statistics.keys() for number in (2, 6))
    bounds = bounds_of(low, high) if low is not None and high is not None else None
    return Chunk(values, packed, plain, statistics.get(3), bounds, has_bounds)


def _bounds_of(physical_type: str, length: int) -> BoundsOf:
    if physical_type in _STORED_AS:
        stored = struct.Struct(_STORED_AS[physical_type])

        def unpacked(low: bytes, high: bytes) -> tuple[Any, Any] | None:
            if not len(low) == len(high) == stored.size:
                return None
            return stored.unpack(low)[0], stored.unpack(high)[0]

        return unpacked
    if physical_type == "FIXED_LEN_BYTE_ARRAY":  # some writers shorten long bounds
        return lambda low, high: (low, high) if 0 < len(low) <= length and 0 < len(high) <= length else None
    return lambda low, high: (low, high) if physical_type == "BYTE_ARRAY" else None


def bare_chunk_at(data: bytes, offset: int) -> tuple[bytes, int]:
    """Return (a column chunk up to the offsets of its pages, where it ends). Raise ValueError if it has no metadata."""
    end, kept = offset, None
    for number, _, begin, stop, _ in fields_at(data, offset):
        end = stop
        if number == _METADATA:
            ends = [last for field, _, _, last, _ in fields_at(data, begin) if field <= _DICTIONARY_PAGE]
            kept = max(ends, default=begin)
    if kept is None:
        raise ValueError("a column chunk without metadata")
    return data[offset:kept] + STOP + STOP, end + 1


_FILE_LISTS: dict[int, ItemAt] = {
    _ROW_GROUPS: partial(struct_at, lists={_COLUMNS: struct_at}),
    _COLUMN_ORDERS: struct_at,
}
