"""Parquet files whose footers are those of other writers: what pyarrow wrote, with its footer written again."""

from __future__ import annotations

from pathlib import Path

from hostile_footers import BINARY, I32, I64, STRUCT, Value, dump, footer_of, with_footer

_SCHEMA, _ROW_GROUPS, _CREATED_BY, _COLUMN_ORDERS = 2, 4, 6, 7
_CONVERTED, _SCALE, _PRECISION, _LOGICAL = 6, 7, 8, 10
_COLUMNS, _META_DATA, _STATISTICS = 1, 3, 12
_MAX, _MIN, _NULL_COUNT, _MAX_VALUE, _MIN_VALUE = 1, 2, 3, 5, 6
_DECIMAL = 5
Bounds = tuple[bytes, bytes]


def rewrite_footer(
    path: Path,
    created_by: str | None,
    *,
    has_orders: bool,
    deprecated: Bounds | None = None,
    bounds: Bounds | None = None,
    decimal: tuple[int, int] | None = None,
) -> None:
    """Gives the first column of a file other statistics in each row group: (min, max) in the deprecated fields, and in
    those that replaced them. `decimal`: (precision, scale) that the footer states for the column's bytes."""
    data = path.read_bytes()
    begin, footer = footer_of(data)
    name = None if created_by is None else Value(BINARY, created_by.encode("utf-8", "surrogateescape"))
    footer.put(_CREATED_BY, name)
    if not has_orders:
        footer.put(_COLUMN_ORDERS, None)
    for group in footer.field(_ROW_GROUPS).value:
        statistics = Value(STRUCT, [(_NULL_COUNT, Value(I64, 0))])
        for pair, low, high in ((deprecated, _MIN, _MAX), (bounds, _MIN_VALUE, _MAX_VALUE)):
            if pair is not None:
                statistics.put(low, Value(BINARY, pair[0]))
                statistics.put(high, Value(BINARY, pair[1]))
        group.field(_COLUMNS).value[0].field(_META_DATA).put(_STATISTICS, statistics)
    if decimal is not None:
        element = footer.field(_SCHEMA).value[1]
        for number, value in ((_CONVERTED, _DECIMAL), (_SCALE, decimal[1]), (_PRECISION, decimal[0])):
            element.put(number, Value(I32, value))
        element.put(_LOGICAL, None)
    path.write_bytes(with_footer(data, begin, dump(footer)))
