"""Thrift's compact protocol, as far as Parquet's footers and page headers need it: finding fields, and writing some.

Specification: github.com/apache/thrift, doc/specs/thrift-compact-protocol.md. What is cut short raises IndexError, what
is no such protocol ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _SET = (1, 2), 3, (4, 5, 6), 7, 10
_DEPTH_MAX = 16
STOP = b"\0"
ItemAt = Callable[[bytes, int], tuple[Any, int]]  # (data, where an item begins) -> (the item, where it ends)
_NO_LISTS: Mapping[int, ItemAt] = {}


def varint_at(data: bytes, offset: int) -> tuple[int, int]:
    """(an unsigned number, where it ends)."""
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
    """(a signed number, where it ends)."""
    value, offset = varint_at(data, offset)
    return (value >> 1) ^ -(value & 1), offset


def bytes_at(data: bytes, offset: int) -> tuple[bytes, int]:
    """(a binary, where it ends)."""
    length = data[offset]
    offset += 1
    if length > 127:
        length, offset = varint_at(data, offset - 1)
    if offset + length > len(data):
        raise IndexError("a binary goes beyond the end")
    return data[offset : offset + length], offset + length


def items_at(data: bytes, offset: int) -> tuple[int, int, int]:
    """Of a list: (how many items, of which type, where they begin)."""
    head = data[offset]
    offset += 1
    count = head >> 4
    if count == 15:
        count, offset = varint_at(data, offset)
    if count > len(data) - offset:  # an item takes a byte at least
        raise IndexError("a list goes beyond the end")
    return count, head & 15, offset


def fields_at(data: bytes, offset: int) -> Iterator[tuple[int, int, int, int]]:
    """Of a struct: (field id, type, where its value begins, where it ends) of each field."""
    number = 0
    while data[offset] != 0:
        head = data[offset]
        offset += 1
        if head >> 4:
            number += head >> 4
        else:
            number, offset = int_at(data, offset)
        end = skipped(data, offset, head & 15)
        yield number, head & 15, offset, end
        offset = end


def struct_at(data: bytes, offset: int, lists: Mapping[int, ItemAt] = _NO_LISTS, depth: int = 0) -> tuple[dict, int]:
    """(the fields of a struct by their ids, where it ends): numbers, bytes, booleans, dicts of structs; of a list how
    many items it has, or, of those in `lists`, the items, each as that function reads it."""
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[offset]
        offset += 1
        if not head:
            return fields, offset
        if head > 15:
            number += head >> 4
        else:
            number, offset = int_at(data, offset)
        kind = head & 15
        if kind in _INTEGERS:
            value = data[offset]
            offset += 1
            if value > 127:
                value, offset = varint_at(data, offset - 1)
            fields[number] = value >> 1 ^ -(value & 1)
        elif kind == BINARY:
            fields[number], offset = bytes_at(data, offset)
        elif kind == STRUCT:
            if depth > _DEPTH_MAX:
                raise ValueError("structs within structs, too deep")
            fields[number], offset = struct_at(data, offset, depth=depth + 1)
        elif kind == LIST:
            count, _, first = items_at(data, offset)
            if number in lists:
                read, items, offset = lists[number], [], first
                for _ in range(count):
                    item, offset = read(data, offset)
                    items.append(item)
                fields[number] = items
            else:
                fields[number], offset = count, skipped(data, offset, LIST, depth)
        else:
            fields[number], offset = kind == 1, skipped(data, offset, kind, depth)


def skipped(data: bytes, offset: int, kind: int, depth: int = 0) -> int:
    """Where a value of a type ends."""
    if kind == STRUCT:
        if depth > _DEPTH_MAX:
            raise ValueError("structs within structs, too deep")
        while True:
            head = data[offset]
            offset += 1
            if not head:
                return offset
            if head < 16:
                _, offset = varint_at(data, offset)
            inner = head & 15
            if inner in _INTEGERS:
                while data[offset] > 127:
                    offset += 1
                offset += 1
            elif inner not in _BOOLEANS:
                offset = skipped(data, offset, inner, depth + 1)
    if kind == BINARY:
        length, offset = varint_at(data, offset)
        return offset + length
    if kind in (LIST, _SET):
        count, of, offset = items_at(data, offset)
        if of in _BOOLEANS:
            return offset + count
        if of in _INTEGERS:
            for _ in range(count):
                while data[offset] > 127:
                    offset += 1
                offset += 1
            return offset
        for _ in range(count):
            offset = skipped(data, offset, of, depth + 1)
        return offset
    if kind in _INTEGERS:
        return varint_at(data, offset)[1]
    if kind in _BOOLEANS:
        return offset
    if kind == _BYTE:
        return offset + 1
    if kind == _DOUBLE:
        return offset + 8
    raise ValueError(f"no type {kind} in a footer")


def varint(value: int) -> bytes:
    """An unsigned number."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def an_int(value: int) -> bytes:
    """A number that is not negative, as a signed one."""
    return varint(value << 1)


def a_binary(value: bytes) -> bytes:
    return varint(len(value)) + value


def a_list(kind: int, items: Sequence[bytes]) -> bytes:
    """A list of values that are written already."""
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + varint(len(items))
    return head + b"".join(items)


def a_struct(*fields: tuple[int, int, bytes]) -> bytes:
    """A struct of (field id, type, value written already), ascending by id and less than 16 apart."""
    parts, before = [], 0
    for number, kind, value in fields:
        parts += [bytes([(number - before) << 4 | kind]), value]
        before = number
    return b"".join(parts) + STOP
