"""Parquet's own bloom filters of a column, as they lie in a file: nothing but the footer and the filters is read.

A filter is a header and a bitset. The header is a struct in thrift's compact protocol: 1 the bitset's size in bytes, 2
to 4 unions for algorithm, hash and compression, each with one known choice. Parquet keeps no checksum
of them, so they are believed as its data pages are; but one that does not hold the least and the greatest value that
the footer has of its row group is not believed.

https://github.com/apache/parquet-format/blob/master/BloomFilter.md
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ....base.arrays import binary_array, from_numpy
from ....bloom import SplitBlockFilter, probes_for
from ....errors import CorruptionError, InvalidArgumentError, SchemaError
from ...parquet.footers import corruption_errors
from ...parquet.leaves import leaf_position, plain_type
from ...parquet.thrift import struct_at
from ...storage import Storage
from .hashed_values import filter_hash, stored_name

if TYPE_CHECKING:
    import pyarrow.parquet as pq

HEADER_BYTES_MAX = 64
BITSET_BYTES_MAX = 128 << 20
_AT_ONCE_BYTES = 16 << 20
_BLOCK_BYTES = 32
_SIZE_FIELD = 0x15  # field 1, a number of 32 bits


@dataclass(frozen=True)
class FilterPlace:
    """Where the filter of one row group lies; `length` is None where the footer lacks it."""

    offset: int
    length: int | None


class ParquetFilters:
    """The filters of one column of an open file.

    Raises SchemaError where there are none, or none that can be believed.

    Attributes:
        kind: the Arrow type in which the column is read.
        hash_name: what they hashed (`indexes/bloom/hashed_values.py`).
        row_groups: how many there are.
    """

    def __init__(self, storage: Storage, path: str, size_bytes: int, file: pq.ParquetFile, column: str):
        self._storage, self._path, self._size_bytes = storage, path, size_bytes
        with corruption_errors(path):
            metadata, schema = file.metadata, file.arrow_schema
            position = leaf_position(schema, metadata.num_columns, column)
            if position is None:
                raise SchemaError(f"{path}: where {column!r} lies among its columns is not known")
            self.kind, leaf = plain_type(position[1]), metadata.schema.column(position[0])
            chunks = [metadata.row_group(i).column(position[0]) for i in range(metadata.num_row_groups)]
            self.places = [_filter_place(chunk, path) for chunk in chunks]
            self.row_groups = len(chunks)
            stored = file.parsed.chunks
            self._bounds = [_bounds(group[position[0]].bounds, leaf) for group in stored]
            name = stored_name(self.kind, leaf)
        if chunks and not any(self.places):
            raise SchemaError(f"{path}: it has no Parquet filter of {column!r}")
        if name is None:
            raise SchemaError(
                f"{path}: a Parquet filter of {self.kind} stored as {leaf.physical_type} cannot be believed"
            )
        self.hash_name = name

    def __iter__(self) -> Iterator[SplitBlockFilter | None]:
        """The filter of each row group; None where it has none, or one whose size has no rung: it may hold anything.

        Raises CorruptionError for one that is damaged, SchemaError for one of another algorithm.
        """
        starts = self._starts()
        for place, bounds in zip(self.places, self._bounds, strict=True):
            bitset = None if place is None else self._bitset(place, next(starts))
            if bitset is None or (len(bitset) // _BLOCK_BYTES).bit_count() != 1:
                yield None
                continue
            read = SplitBlockFilter.from_parquet(bitset, filter_hash(self.hash_name).partition(":")[2])
            self._check_bounds(read, bounds)
            yield read

    def _starts(self) -> Iterator[bytes]:
        """The bytes at each place: all where their number is known, else the header and what follows. Some places at a
        time, since filters lie side by side."""
        ranges: list[tuple[int, int]] = []
        for place in self.places:
            if place is None:
                continue
            length = place.length or HEADER_BYTES_MAX
            if not 4 <= place.offset < self._size_bytes or length > BITSET_BYTES_MAX + HEADER_BYTES_MAX:
                raise self._damaged(f"a filter of {length:,} bytes at {place.offset:,}", "filter place")
            ranges.append((place.offset, min(length, self._size_bytes - place.offset)))
            if sum(length for _, length in ranges) >= _AT_ONCE_BYTES:
                yield from self._storage.read_ranges(self._path, ranges)
                ranges = []
        yield from self._storage.read_ranges(self._path, ranges)

    def _bitset(self, place: FilterPlace, start: bytes) -> bytes:
        size_bytes, header_bytes = self._header(start, place)
        if place.length not in (None, header_bytes + size_bytes):
            raise self._damaged(f"a filter of {size_bytes:,} bytes in a place of {place.length:,}", "filter size")
        if place.offset + header_bytes + size_bytes > self._size_bytes:
            raise self._damaged(f"a filter of {size_bytes:,} bytes passes the end", "filter size")
        if place.length is not None:
            return start[header_bytes:]
        return self._storage.read_ranges(self._path, [(place.offset + header_bytes, size_bytes)])[0]

    def _header(self, data: bytes, place: FilterPlace) -> tuple[int, int]:
        """(bytes of the bitset, bytes of the header)."""
        try:
            size_bytes, choices, header_bytes = parse_header(data[:HEADER_BYTES_MAX])
        except ValueError as error:
            raise self._damaged(f"a filter's header at {place.offset:,}: {error}", "filter header") from None
        if choices != [1, 1, 1]:
            raise SchemaError(f"{self._path}: a Parquet filter of another algorithm, hash or compression")
        if size_bytes % _BLOCK_BYTES or not _BLOCK_BYTES <= size_bytes <= BITSET_BYTES_MAX:
            raise self._damaged(f"a filter of {size_bytes:,} bytes", "filter size")
        return size_bytes, header_bytes

    def _check_bounds(self, stored: SplitBlockFilter, bounds: pa.Array | None) -> None:
        if bounds is not None:
            probes = probes_for(bounds, stored.hash)
            hits = stored.contains_hashes(probes.hashes)
            if probes.other_hashes is not None:
                hits |= stored.contains_hashes(probes.other_hashes)
            if not probes.fill_known(hits).all():
                raise SchemaError(f"{self._path}: a Parquet filter lacks a value that the footer has: not believed")

    def _damaged(self, what: str, check: str) -> CorruptionError:
        return CorruptionError(f"it names {what}", path=self._path, check=check)


def _filter_place(chunk: Any, path: str) -> FilterPlace | None:
    if not hasattr(chunk, "bloom_filter_offset"):
        raise InvalidArgumentError(
            f"{path}: pyarrow {pa.__version__} does not read where Parquet's filters are: install pyarrow 25 or newer, "
            'or use source="data"'
        )
    offset, length = chunk.bloom_filter_offset, chunk.bloom_filter_length
    return None if offset is None else FilterPlace(offset, None if length is None or length <= 0 else length)


def _bounds(bounds: tuple[Any, Any] | None, leaf: Any) -> pa.Array | None:
    """The least and the greatest value, as they are stored; None where they may have been cut short."""
    physical = leaf.physical_type
    if bounds is None:
        return None
    if physical in ("INT32", "INT64"):
        return from_numpy(np.array(bounds, dtype=np.int64))
    if physical in ("FLOAT", "DOUBLE"):
        return from_numpy(np.array(bounds, dtype=np.float64))
    if physical == "FIXED_LEN_BYTE_ARRAY" and leaf.logical_type.type == "DECIMAL":
        return binary_array(bounds)
    return None


def parse_header(data: bytes) -> tuple[int, list[int], int]:
    """(size of the bitset in bytes; which choice each of algorithm, hash and compression is; bytes read) of a
    BloomFilterHeader. Raises ValueError for anything else."""
    try:
        fields, length = struct_at(data, 0)
    except IndexError:
        raise ValueError("it ends too soon") from None
    unions = [fields.pop(number, None) for number in (2, 3, 4)]
    if not all(isinstance(union, dict) and list(union.values()) == [{}] for union in unions):
        raise ValueError("a choice of algorithm, hash or compression is missing")
    size_bytes = fields.pop(1, -1)
    if fields or size_bytes < 0 or data[0] != _SIZE_FIELD:
        raise ValueError("it has other fields than its own, or no size")
    return size_bytes, [next(iter(union)) for union in unions], length
