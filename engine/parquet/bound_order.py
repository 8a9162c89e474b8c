"""Whether the bounds of a footer are in the order of their column's type.

Bounds of what is stored, and compares, as signed numbers were right in every writer: they always count. Those of byte
strings, decimals in bytes, half floats and unsigned numbers were taken by comparing signed bytes or signed numbers
before footers named the order (`column_orders`, 2017: parquet-mr 1.10, parquet-cpp 1.3). So they count only

- where the footer says for that column that its bounds are in the order of the type: then they are `min_value` and
  `max_value`; else all that pyarrow has to give are the deprecated `min` and `max`, and it does not say which it gave
- and the writer is not known to have compared otherwise all the same. Many did so with decimals in bytes, so of these
  only those of writers count that are known to be right.

This is stricter than parquet-mr's `CorruptStatistics` and Arrow's `ApplicationVersion::HasCorrectStatistics`, which
believe deprecated bounds where both are equal, and Arrow those of decimals of any writer. What they leave out beside
that, binaries of parquet-mr before 1.8 (PARQUET-251), has no column orders.

https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift: Statistics, ColumnOrder.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from ...caching import cached_property
from . import thrift

_IN_BYTES = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_VERSION = re.compile(r"(\S+) version (?:v|py-)?(\d+)\.(\d+)\.(\d+)")
_CREATED_BY, _COLUMN_ORDERS, _TYPE_DEFINED = 6, 7, 1  # field ids of FileMetaData and ColumnOrder

# From which version on a writer compares decimals in bytes as numbers. parquet-rs does not yet where their lengths
# differ (arrow-rs#10860, arrow-rs#11073); DuckDB writes no such ones.
_DECIMALS_SINCE = {
    ("parquet-mr", "FIXED_LEN_BYTE_ARRAY"): (1, 10, 0),
    ("parquet-mr", "BYTE_ARRAY"): (1, 10, 0),
    ("parquet-cpp-arrow", "FIXED_LEN_BYTE_ARRAY"): (4, 0, 0),  # PARQUET-1655
    ("parquet-cpp-arrow", "BYTE_ARRAY"): (4, 0, 0),
    ("parquet-rs", "FIXED_LEN_BYTE_ARRAY"): (14, 0, 0),  # arrow-rs#1532
    ("delta-rs", "FIXED_LEN_BYTE_ARRAY"): (1, 0, 0),  # a later parquet-rs
    ("DuckDB", "FIXED_LEN_BYTE_ARRAY"): (1, 0, 0),
}
_UNSIGNED_SINCE = {"parquet-rs": (14, 0, 0)}  # arrow-rs#1532; all other writers from the first


class BoundOrder:
    """What one footer (pyarrow's FileMetaData) says of the order of its bounds."""

    def __init__(self, metadata: Any):
        self._metadata = metadata

    def is_right(self, leaf: int, kind: pa.DataType) -> bool:
        """True where the bounds of a leaf, by its position, order as values of its Arrow type do."""
        physical = self._metadata.schema.column(leaf).physical_type
        if physical == "INT96":
            return False
        if pa.types.is_unsigned_integer(kind):
            name, version = self._writer
            return leaf in self._defined and version >= _UNSIGNED_SINCE.get(name, ())
        if physical not in _IN_BYTES:
            return True
        if pa.types.is_decimal(kind):
            name, version = self._writer
            since = _DECIMALS_SINCE.get((name, physical))
            return leaf in self._defined and since is not None and version >= since
        return leaf in self._defined

    @cached_property
    def _created_by(self) -> str:
        """The writer's name and version; "" where it gives none that can be read."""
        try:
            return self._metadata.created_by or ""
        except UnicodeDecodeError:
            return ""

    @cached_property
    def _writer(self) -> tuple[str, tuple[int, ...]]:
        """(application, version); ("", ()) where the footer does not say."""
        said = _VERSION.match(self._created_by)
        return (said[1], (int(said[2]), int(said[3]), int(said[4]))) if said else ("", ())

    @cached_property
    def _defined(self) -> frozenset[int]:
        """The leaves whose bounds are in the order of the type, says the footer. pyarrow does not pass that on, but
        writes it again: the orders follow the writer's name, at the footer's end, so nothing else is parsed. Where
        there is no name, no footer is believed."""
        if not self._created_by:
            return frozenset()
        sink = pa.BufferOutputStream()
        self._metadata.write_metadata_file(sink)
        data = sink.getvalue().to_pybytes()
        name = thrift.a_binary(self._created_by.encode())
        at = data.rfind(name) + len(name)
        if data[at : at + 1] != bytes([_COLUMN_ORDERS - _CREATED_BY << 4 | thrift.LIST]):
            return frozenset()
        count, kind, at = thrift.items_at(data, at + 1)
        defined = set()
        for leaf in range(count if kind == thrift.STRUCT else 0):
            if [field for field, *_ in thrift.fields_at(data, at)] == [_TYPE_DEFINED]:
                defined.add(leaf)
            at = thrift.skipped(data, at, thrift.STRUCT)
        return frozenset(defined)
