"""Thrift's compact protocol, as far as Parquet's footers and page headers need it: finding fields, and writing some.

Specification: github.com/apache/thrift, doc/specs/thrift-compact-protocol.md. Truncated data raises IndexError, data of
another format ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
_BOOLEANS, _BYTE, _I16, _DOUBLE, _SET = (1, 2), 3, 4, 7, 10
_DEPTH_MAX = 16
STOP = b"\0"
ItemAt = Callable[[bytes, int], tuple[Any, int]]  # (data, where an item begins) -> (the item, where it ends)
_NO_LISTS: Mapping[int, ItemAt] = {}


def varint_at(data: bytes, offset: int) -> tuple[int, int]:
    """Return (an unsigned number, where it ends)."""
    value = data[offset]
    offset += 1
    if value < 128:
        return value, offset
    value &= 127
    shift = 7
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def int_at(data: bytes, offset: int) -> tuple[int, int]:
    """Return (a signed number, where it ends)."""
    value = data[offset]
    offset += 1
    if value > 127:
        value, offset = varint_at(data, offset - 1)
    return (value >> 1) ^ -(value & 1), offset


def bytes_at(data: bytes, offset: int) -> tuple[bytes, int]:
    """Return (a binary, where it ends)."""
    length = data[offset]
    offset += 1
    if length > 127:
        length, offset = varint_at(data, offset - 1)
    if offset + length > len(data):
        raise IndexError("a binary goes beyond the end")
    return data[offset : offset + length], offset + length


_PLAIN: Mapping[int, ItemAt] = {_I16: int_at, I32: int_at, I64: int_at, BINARY: bytes_at}


def items_at(data: bytes, offset: int) -> tuple[int, int, int]:
    """Return, for a list, (how many items, their type, where they begin)."""
    head = data[offset]
    offset += 1
    count = head >> 4
    if count == 15:
        count, offset = varint_at(data, offset)
    if count > len(data) - offset:  # an item has at least one byte
        raise IndexError("a list goes beyond the end")
    return count, head & 15, offset


def fields_at(
    data: bytes, offset: int, lists: Mapping[int, ItemAt] = _NO_LISTS, depth: int = 0
) -> Iterator[tuple[int, int, int, int, Any]]:
    """Yield, for a struct, (field id, type, where its value begins, where it ends, the value) of each field. Values are
    read by `value_at`; for the lists whose ids are in `lists`, that function reads each item."""
    if depth > _DEPTH_MAX:
        raise ValueError("structs within structs, too deep")
    number = 0
    while head := data[offset]:
        offset += 1
        if head > 15:
            number += head >> 4
        else:
            number, offset = int_at(data, offset)
        kind = head & 15
        value, end = value_at(data, offset, kind, depth, lists.get(number))
        yield number, kind, offset, end, value
        offset = end


def struct_at(data: bytes, offset: int, lists: Mapping[int, ItemAt] = _NO_LISTS, depth: int = 0) -> tuple[dict, int]:
    """Return (the values of a struct's fields by their ids, where it ends). This repeats the loop of `fields_at`,
    because through the generator a footer takes 233 us instead of 156 to 196."""
    if depth > _DEPTH_MAX:
        raise ValueError("structs within structs, too deep")
    fields: dict[int, Any] = {}
    number = 0
    while head := data[offset]:
        offset += 1
        if head > 15:
            number += head >> 4
        else:
            number, offset = int_at(data, offset)
        kind = head & 15
        read = _PLAIN.get(kind)
        if read is not None:
            fields[number], offset = read(data, offset)
        else:
            fields[number], offset = value_at(data, offset, kind, depth, lists.get(number))
    return fields, offset + 1


def value_at(data: bytes, offset: int, kind: int, depth: int = 0, item_at: ItemAt | None = None) -> tuple[Any, int]:
    """Return (a value of a type, where it ends): a number, bytes, a boolean, the dict of a struct, the items of a list
    as `item_at` reads them (without it, their number), and None for a floating-point number."""
    read = _PLAIN.get(kind)
    if read is not None:
        return read(data, offset)
    if kind in _BOOLEANS:  # for a field, the type contains the value
        return kind == 1, offset
    if kind == STRUCT:
        return struct_at(data, offset, depth=depth + 1)
    if kind in (LIST, _SET):
        count, of, offset = items_at(data, offset)
        items = []
        for _ in range(count):
            if item_at is not None:
                item, offset = item_at(data, offset)
                items.append(item)
            else:
                offset = offset + 1 if of in _BOOLEANS else value_at(data, offset, of, depth)[1]
        return count if item_at is None else items, offset
    if kind == _BYTE:
        return data[offset], offset + 1
    if kind == _DOUBLE:
        return None, offset + 8
    raise ValueError(f"no type {kind} in a footer")


def encode_varint(value: int) -> bytes:
    """Return an encoded unsigned number."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_int(value: int) -> bytes:
    """Return a number that is not negative, encoded as a signed one."""
    return encode_varint(value << 1)


def encode_binary(value: bytes) -> bytes:
    return encode_varint(len(value)) + value


def encode_list(kind: int, items: Sequence[bytes]) -> bytes:
    """Return an encoded list of values that are already encoded."""
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + encode_varint(len(items))
    return head + b"".join(items)


def encode_struct(*fields: tuple[int, int, bytes]) -> bytes:
    """Return an encoded struct of (field id, type, encoded value), ascending by id and less than 16 apart."""
    parts, before = [], 0
    for number, kind, value in fields:
        parts += [bytes([(number - before) << 4 | kind]), value]
        before = number
    return b"".join(parts) + STOP
