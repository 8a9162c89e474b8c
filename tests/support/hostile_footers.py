"""Parquet files with one false field: a number, a length, a list or a field of the footer, of a page's header or
of a filter's, rewritten by the structure that thrift gives it."""

from __future__ import annotations

import datetime as dt
import decimal
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from library_versions import parquet_options

BOOLEAN_TRUE, BOOLEAN_FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_INTEGERS = (I16, I32, I64)
ABSURD_INTEGERS = [-1, 0, 1, 7, -(1 << 31), (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 62), (1 << 63) - 1, -(1 << 63)]


@dataclass
class Value:
    """A thrift value. `value`: an int, bytes, a list of Values, or, of a struct, a list of (field id, Value)."""

    kind: int
    value: Any
    of: int = 0  # a list's element type
    count: int | None = None  # a list's count, where it is not that of its items

    def field(self, number: int) -> Value:
        """Of a struct: the field of that id."""
        return next(value for name, value in self.value if name == number)

    def put(self, number: int, value: Value | None) -> None:
        """Of a struct: set or remove the field of that id."""
        others = [(name, field) for name, field in self.value if name != number]
        self.value = sorted([*others, *([] if value is None else [(number, value)])], key=lambda field: field[0])


# -- reading and writing ----------------------------------------------------------------------------------------------


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
        shift += 7


def read_zigzag(data: bytes, offset: int) -> tuple[int, int]:
    """(the signed number at an offset, where it ends), as Thrift and Avro write it."""
    raw, offset = _varint(data, offset)
    return (raw >> 1) ^ -(raw & 1), offset


def parse(data: bytes, offset: int, kind: int = STRUCT) -> tuple[Value, int]:
    """(the value at an offset, where it ends)."""
    if kind in (BOOLEAN_TRUE, BOOLEAN_FALSE):
        return Value(kind, None), offset
    if kind == BYTE:
        return Value(kind, data[offset]), offset + 1
    if kind in _INTEGERS:
        number, offset = read_zigzag(data, offset)
        return Value(kind, number), offset
    if kind == DOUBLE:
        return Value(kind, data[offset : offset + 8]), offset + 8
    if kind == BINARY:
        length, offset = _varint(data, offset)
        return Value(kind, data[offset : offset + length]), offset + length
    if kind in (LIST, SET):
        head = data[offset]
        count, offset = (head >> 4, offset + 1) if head >> 4 < 15 else _varint(data, offset + 1)
        items = []
        for _ in range(count):
            item, offset = parse(data, offset, head & 15) if head & 15 > 2 else (Value(1, data[offset]), offset + 1)
            items.append(item)
        return Value(kind, items, of=head & 15), offset
    assert kind == STRUCT, kind
    fields: list[tuple[int, Value]] = []
    number = 0
    while data[offset]:
        head = data[offset]
        offset += 1
        if head >> 4:
            number += head >> 4
        else:
            number, offset = read_zigzag(data, offset)
        value, offset = parse(data, offset, head & 15)
        fields.append((number, value))
    return Value(kind, fields), offset + 1


def _write_varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def zigzag(value: int) -> bytes:
    return _write_varint((value << 1) ^ (value >> 63))


def dump(value: Value) -> bytes:
    kind = value.kind
    if kind in (BOOLEAN_TRUE, BOOLEAN_FALSE):
        return b""
    if kind == BYTE:
        return bytes([value.value & 255])
    if kind in _INTEGERS:
        return zigzag(value.value)
    if kind == DOUBLE:
        return value.value
    if kind == BINARY:
        return _write_varint(len(value.value) if value.count is None else value.count) + value.value
    if kind in (LIST, SET):
        count = len(value.value) if value.count is None else value.count
        head = bytes([count << 4 | value.of]) if 0 <= count < 15 else bytes([0xF0 | value.of]) + _write_varint(count)
        return head + b"".join(bytes([v.value or 1]) if value.of <= 2 else dump(v) for v in value.value)
    parts, before = [], 0
    for number, field in value.value:
        step = number - before
        parts.append(bytes([step << 4 | field.kind]) if 0 < step < 16 else bytes([field.kind]) + zigzag(number))
        parts.append(dump(field))
        before = number
    return b"".join(parts) + b"\0"


def nodes(value: Value, path: tuple = ()) -> Iterator[tuple[tuple, Value]]:
    """Every value in a tree, each with the field ids that lead to it; "*" for a list's items."""
    yield path, value
    if value.kind == STRUCT:
        for number, field in value.value:
            yield from nodes(field, (*path, number))
    elif value.kind in (LIST, SET) and value.of > 2:
        for item in value.value:
            yield from nodes(item, (*path, "*"))


# -- files ------------------------------------------------------------------------------------------------------------


def footer_of(data: bytes) -> tuple[int, Value]:
    """(where a file's footer begins, the footer)."""
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return begin, parse(data, begin)[0]


def with_footer(data: bytes, begin: int, footer: bytes) -> bytes:
    return data[:begin] + footer + struct.pack("<I", len(footer)) + b"PAR1"


def rows(count: int = 60) -> pa.Table:
    """Rows of many types, nested ones too; `id` counts up, and `s` is a text that is different in each row."""
    numbers = list(range(count))
    some = [None if i % 5 == 0 else i for i in numbers]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "s": [f"k{i:04d}" for i in numbers],
            "f": pa.array([None if i is None else i / 4 for i in some], pa.float64()),
            "d": pa.array([None if i is None else decimal.Decimal(i) / 100 for i in some], pa.decimal128(9, 2)),
            "t": pa.array([dt.datetime(2024, 1, 1) + dt.timedelta(minutes=i) for i in numbers], pa.timestamp("us")),
            "u": pa.array(some, pa.uint32()),
            "b": pa.array([i % 2 == 0 for i in numbers]),
            "h": pa.array([f"{i:04d}".encode() for i in numbers], pa.binary(4)),
            "n": pa.array([{"x": i, "y": [str(i)]} for i in numbers]),
            "l": pa.array([[i, i + 1] if i % 3 else None for i in numbers], pa.list_(pa.int32())),
            "m": pa.array([[("k", i)] for i in numbers], pa.map_(pa.string(), pa.int64())),
        }
    )


def base_files() -> list[bytes]:
    """Whole files to harm: of several codecs, page versions, filters and page indexes."""
    kinds: list[dict[str, Any]] = [
        {"bloom_filter_options": {"id": True, "s": True}, "write_page_index": True, "row_group_size": 20},
        {"data_page_version": "2.0", "compression": "zstd", "row_group_size": 30, "bloom_filter_options": {"id": True}},
        {"use_dictionary": False, "compression": "none", "data_page_size": 64, "store_schema": False},
        {"use_dictionary": False, "column_encoding": {"id": "DELTA_BINARY_PACKED", "s": "DELTA_BYTE_ARRAY"}},
    ]
    files = []
    for options in kinds:
        sink = BytesIO()
        pq.write_table(rows(), sink, **parquet_options(options))
        files.append(sink.getvalue())
    return files


# -- harm -------------------------------------------------------------------------------------------------------------


def _harm(value: Value, rng: random.Random) -> str:
    """Change one value in place. Return what was done."""
    if value.kind in _INTEGERS:
        value.value = rng.choice([*ABSURD_INTEGERS, value.value + 1, value.value - 1, value.value * 1000])
        return f"= {value.value}"
    if value.kind == BINARY:
        harm = rng.choice(["empty", "cut", "long", "noise", "length"])
        if harm == "length":
            value.count = rng.choice([1 << 20, (1 << 31) - 1, 1 << 40, (1 << 64) - 1])
            return f"says it has {value.count} bytes"
        old = value.value
        noise = bytes(rng.randrange(256) for _ in range(max(1, len(old))))
        value.value = {"empty": b"", "cut": old[: len(old) // 2], "long": old * 5000 + b"x", "noise": noise}[harm]
        return harm
    if value.kind in (LIST, SET):
        harm = rng.choice(["empty", "count", "many", "drop", "twice", "kind"])
        if harm == "count":
            value.count = rng.choice([len(value.value) + 1, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40])
            return f"says it has {value.count} items"
        if harm == "kind":
            value.of = rng.choice([BYTE, I32, BINARY, LIST, STRUCT])
            return f"of kind {value.of}"
        items = value.value
        value.value = {"empty": [], "many": items * 300, "drop": items[1:], "twice": items + items[-1:]}[harm]
        return harm
    if value.kind == STRUCT:
        fields = value.value
        if not fields:
            value.value = [(1, Value(I64, rng.choice(ABSURD_INTEGERS)))]
            return "a field more"
        which = rng.randrange(len(fields))
        harm = rng.choice(["drop", "drop", "twice", "deep", "other"])
        if harm == "drop":
            return f"without field {fields.pop(which)[0]}"
        if harm == "twice":
            fields.insert(which, fields[which])
        elif harm == "other":
            fields[which] = (fields[which][0], Value(rng.choice([BYTE, I64]), 77))
        else:
            deep = Value(STRUCT, [])
            for _ in range(rng.choice([20, 500, 10_000])):
                deep = Value(STRUCT, [(1, deep)])
            fields.append((fields[-1][0] + 1, deep))
        return f"{harm} field {fields[which][0]}"
    value.kind = BOOLEAN_TRUE if value.kind == BOOLEAN_FALSE else value.kind
    return "a flag"


def _footer_harm(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    begin, footer = footer_of(data)
    by_path: dict[tuple, list[Value]] = {}
    for path, value in nodes(footer):
        by_path.setdefault(path, []).append(value)
    collected = []
    for _ in range(1 if rng.random() < 0.8 else 3):
        path = rng.choice(list(by_path))
        collected.append(f"footer {'.'.join(map(str, path))}: {_harm(rng.choice(by_path[path]), rng)}")
    return with_footer(data, begin, dump(footer)), "; ".join(collected)


def _tail_harm(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    length = rng.choice([0, 1, len(data), len(data) - 8, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
    magic = rng.choice([b"PAR1", b"PAR1", b"PARE", b"PAR2", b"\0\0\0\0"])
    return data[:-8] + struct.pack("<I", length) + magic, f"footer length {length}, magic {magic!r}"


def _page_harm(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """A page's header, or a filter's, rewritten: the bytes behind it stay where they are, so it has the same length."""
    _, footer = footer_of(data)
    offsets = [value.value for path, value in nodes(footer) if path[-2:] in [(3, 9), (3, 11), (3, 14)]]
    offset = rng.choice(offsets)
    _, end = parse(data, offset)
    for _ in range(50):
        header, end = parse(data, offset)
        path, value = rng.choice(list(nodes(header)))
        harm = f"page at {offset}, {'.'.join(map(str, path))}: {_harm(value, rng)}"
        written = dump(header)
        if len(written) == end - offset:
            return data[:offset] + written + data[end:], harm
    return data[:offset] + bytes(rng.randrange(256) for _ in range(end - offset)) + data[end:], f"noise at {offset}"


def _byte_harm(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    begin, _ = footer_of(data)
    return harm_bytes(data, rng, 0 if rng.random() < 0.5 else begin)


def harm_bytes(data: bytes, rng: random.Random, first: int = 0) -> tuple[bytes, str]:
    """Data with other bytes at a few places, none before `first`."""
    harmed, changes = bytearray(data), []
    for _ in range(rng.choice([1, 1, 2, 8])):
        offset = rng.randrange(first, len(data))
        harmed[offset] = rng.choice([0, 255, harmed[offset] ^ (1 << rng.randrange(8)), rng.randrange(256)])
        changes.append(f"{offset}={harmed[offset]}")
    return bytes(harmed), f"bytes {changes}"


def _deep_schema(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """A schema of many groups within each other, each with a name."""
    begin, footer = footer_of(data)
    depth = rng.choice([30, 300, 3_000, 10_000])
    deepen(footer, depth)
    return with_footer(data, begin, dump(footer)), f"a schema of depth {depth}"


def deepen(footer: Value, depth: int) -> None:
    """Put so many groups within each other above a footer's columns."""
    schema = footer.field(2)
    group = Value(STRUCT, [(3, Value(I32, 1)), (4, Value(BINARY, b"g")), (5, Value(I32, 1))])
    schema.value = [schema.value[0], *[group] * depth, *schema.value[1:]]


_HARMS: list[Callable[[bytes, random.Random], tuple[bytes, str]]] = (
    [_footer_harm] * 12 + [_page_harm] * 4 + [_byte_harm] * 2 + [_tail_harm, _deep_schema]
)


def harmed(data: bytes, seed: int) -> tuple[bytes, str]:
    """A file with one wrong thing in it, or a few, and what they are."""
    rng = random.Random(seed)
    return rng.choice(_HARMS)(data, rng)
