"""Parquet files whose footers are those of other writers: what pyarrow wrote, with its footer written anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from skipstone.engine.parquet import thrift

Fields = dict[int, tuple[int, bytes]]  # of a struct: id -> (type, value as it is written)
_SCHEMA, _ROW_GROUPS, _CREATED_BY, _COLUMN_ORDERS = 2, 4, 6, 7
_ELEMENT_KIND, _CONVERTED, _SCALE, _PRECISION, _LOGICAL = 1, 6, 7, 8, 10
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
    those that replaced them. `decimal`: (precision, scale) that the column's bytes are said to be."""
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = _fields(data[begin:-8])
    if created_by is None:
        del footer[_CREATED_BY]
    else:
        footer[_CREATED_BY] = (thrift.BINARY, thrift.encode_binary(created_by.encode("utf-8", "surrogateescape")))
    if not has_orders:
        del footer[_COLUMN_ORDERS]

    def other_statistics(chunk: Fields) -> None:
        meta = _fields(chunk[_META_DATA][1])
        statistics = {_NULL_COUNT: (thrift.I64, thrift.encode_int(0))}
        for pair, low, high in ((deprecated, _MIN, _MAX), (bounds, _MIN_VALUE, _MAX_VALUE)):
            if pair is not None:
                statistics[low] = (thrift.BINARY, thrift.encode_binary(pair[0]))
                statistics[high] = (thrift.BINARY, thrift.encode_binary(pair[1]))
        meta[_STATISTICS] = (thrift.STRUCT, _struct(statistics))
        chunk[_META_DATA] = (thrift.STRUCT, _struct(meta))

    def first_column(group: Fields) -> None:
        _change(group, _COLUMNS, [other_statistics])

    def as_decimal(element: Fields) -> None:
        assert decimal is not None
        element.pop(_LOGICAL, None)
        element[_CONVERTED] = (thrift.I32, thrift.encode_int(_DECIMAL))
        element[_SCALE] = (thrift.I32, thrift.encode_int(decimal[1]))
        element[_PRECISION] = (thrift.I32, thrift.encode_int(decimal[0]))

    _change(footer, _ROW_GROUPS, [first_column] * _count(footer, _ROW_GROUPS))
    if decimal is not None:
        _change(footer, _SCHEMA, [lambda root: None, as_decimal])
    written = _struct(footer)
    path.write_bytes(data[:begin] + written + len(written).to_bytes(4, "little") + b"PAR1")


def _fields(data: bytes) -> Fields:
    return {number: (kind, data[begin:end]) for number, kind, begin, end, _ in thrift.fields_at(data, 0)}


def _struct(fields: Fields) -> bytes:
    return thrift.encode_struct(*((number, *fields[number]) for number in sorted(fields)))


def _count(fields: Fields, number: int) -> int:
    return thrift.items_at(fields[number][1], 0)[0]


def _change(fields: Fields, number: int, changes: Sequence[Callable[[Fields], None]]) -> None:
    """Changes the first structs of a list in a struct."""
    data = fields[number][1]
    count, kind, at = thrift.items_at(data, 0)
    items = []
    for _ in range(count):
        end = thrift.value_at(data, at, kind)[1]
        items.append(data[at:end])
        at = end
    for which, change in enumerate(changes):
        item = _fields(items[which])
        change(item)
        items[which] = _struct(item)
    fields[number] = (thrift.LIST, thrift.encode_list(kind, items))
