"""Compiled twin of `footer_bytes.parsed_footer`: it reads the row groups of a footer that follows its specification.

It refuses anything that it does not expect: damage, contradictions, fields in another order or of another type. The
plain twin then decides what the footer contains, or which error it has. Only `skipstone.base.lazy` imports this module.
"""

from __future__ import annotations

import numpy as np

from ...base.compiling import jit_cached, jit_helper

# Types of Thrift's compact protocol, and field ids: see `thrift` and `footer_bytes`.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
_FIELDS = 20  # more than any field id of the format
_DEPTH_MAX = 16
_COUNT_MAX, _CHUNK_BYTES_MIN = 1 << 48, 11  # a chunk is a struct, which contains another, which contains four numbers


@jit_helper
def _varint(data, offset):
    """Return (an unsigned number of at most 63 bits, where it ends; -1 if there is none)."""
    value, shift = np.int64(0), np.int64(0)
    while 0 <= offset < len(data) and shift < 63:
        byte = np.int64(data[offset])
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
        shift += 7
    return np.int64(0), np.int64(-1)


@jit_helper
def _items(data, offset):
    """Return, for a list, (how many items, their type, where they begin; -1 if it extends beyond the end)."""
    if not 0 <= offset < len(data):
        return np.int64(0), np.int64(0), np.int64(-1)
    head = np.int64(data[offset])
    count, offset = head >> 4, offset + 1
    if count == 15:
        count, offset = _varint(data, offset)
    if offset < 0 or count > len(data) - offset:
        return np.int64(0), np.int64(0), np.int64(-1)
    return count, head & 15, offset


@jit_helper
def _end_of(data, offset, kind, stack):
    """Return where a value ends; -1 if it is damaged. `stack`, int64 [_DEPTH_MAX, 2]: for each list or struct around
    the current value, how many items follow and their type; -1 items for a struct."""
    depth = 0
    while True:
        if kind in (_I16, _I32, _I64):
            _, offset = _varint(data, offset)
        elif kind == _BINARY:
            length, offset = _varint(data, offset)
            if offset >= 0:
                offset = offset + length if length <= len(data) - offset else -1
        elif kind in (_LIST, _SET, _STRUCT):
            if depth == _DEPTH_MAX:
                return np.int64(-1)
            if kind == _STRUCT:
                stack[depth, 0] = -1
            else:
                count, of, offset = _items(data, offset)
                stack[depth, 0], stack[depth, 1] = count, _BYTE if of in (_TRUE, _FALSE) else of
            depth += 1
        elif kind == _BYTE:
            offset += 1
        elif kind == _DOUBLE:
            offset += 8
        elif kind not in (_TRUE, _FALSE):  # for a field, the type of a boolean contains its value
            return np.int64(-1)
        if not 0 <= offset <= len(data):
            return np.int64(-1)
        is_next = False
        while depth > 0 and not is_next:
            if stack[depth - 1, 0] > 0:
                stack[depth - 1, 0] -= 1
                kind, is_next = stack[depth - 1, 1], True
            elif stack[depth - 1, 0] == 0:
                depth -= 1
            elif offset == len(data):
                return np.int64(-1)
            else:
                head = np.int64(data[offset])
                offset += 1
                if head == 0:
                    depth -= 1
                elif head < 16:
                    return np.int64(-1)
                else:
                    kind, is_next = head & 15, True
        if not is_next:
            return np.int64(offset)


@jit_helper
def _find_fields(data, offset, fields, stack):
    """Set `fields`, int64 [_FIELDS, 3], to the type of each field of a struct, 0 if it is missing, and where its value
    begins and ends. Return where the struct ends, -1 if it is damaged."""
    fields[:] = 0
    number = np.int64(0)
    while 0 <= offset < len(data):
        head = np.int64(data[offset])
        offset += 1
        if head == 0:
            return offset
        if head < 16:  # no writer needs the long form here, and ascending ids never repeat
            return np.int64(-1)
        number += head >> 4
        if number >= _FIELDS:
            return np.int64(-1)
        fields[number, 0], fields[number, 1] = head & 15, offset
        offset = _end_of(data, offset, head & 15, stack)
        fields[number, 2] = offset
    return np.int64(-1)


@jit_helper
def _number(data, fields, number, default):
    """Return a field's number if its type is I64; `default` if it is missing, -1 if negative or of another type."""
    if fields[number, 0] == 0:
        return np.int64(default)
    value, _ = _varint(data, fields[number, 1])
    return value >> 1 if fields[number, 0] == _I64 and value & 1 == 0 else np.int64(-1)


@jit_helper
def _read_chunk(data, offset, leaf, is_ordered, size_bytes, fields, stack, chunk):
    """Fill a row of the chunks of `read_footer`. Return where the column chunk ends, -1 if it is not as expected.
    `leaf`: its row of `leaves`."""
    refused = np.int64(-1)
    end = _find_fields(data, offset, fields, stack)
    if end < 0 or fields[3, 0] != _STRUCT or fields[8, 0] != 0:  # encrypted by its own key
        return refused
    _find_fields(data, fields[3, 1], fields, stack)
    for place, number in enumerate((5, 7, 6)):
        chunk[place] = _number(data, fields, number, -1)
        if not 0 <= chunk[place] <= _COUNT_MAX:
            return refused
    begin, dictionary = _number(data, fields, 9, -1), _number(data, fields, 11, 0)
    if begin < 0 or dictionary < 0:
        return refused
    stop = begin
    if 0 < dictionary < begin:
        begin = dictionary
    stop = max(stop, begin + chunk[1])
    if size_bytes >= 0 and stop > size_bytes:
        return refused
    statistics, sizes = fields[12, 1], fields[16, 1]
    has_statistics, has_sizes = fields[12, 0], fields[16, 0]
    if (has_statistics != 0 and has_statistics != _STRUCT) or (has_sizes != 0 and has_sizes != _STRUCT):
        return refused
    if has_sizes != 0:
        _find_fields(data, sizes, fields, stack)
        if fields[1, 0] != 0 and leaf[0] == 0:  # sizes of byte arrays
            return refused
        for number in (2, 3):  # histograms of repetition and definition levels
            if fields[number, 0] == 0:
                continue
            count, _, _ = _items(data, fields[number, 1])
            if fields[number, 0] != _LIST or (count != 0 and count != leaf[number - 1] + 1):
                return refused
    chunk[3:] = -1
    if has_statistics != 0:
        _find_fields(data, statistics, fields, stack)
        if fields[3, 0] != 0:
            chunk[3] = _number(data, fields, 3, -1)
            if chunk[3] < 0:
                return refused
        for place in range(2):  # min_value and max_value, or the deprecated min and max
            number = (6 if is_ordered else 2) - place
            if fields[number, 0] == _BINARY:
                length, at = _varint(data, fields[number, 1])
                chunk[4 + 2 * place], chunk[5 + 2 * place] = at, at + length
            elif fields[number, 0] != 0:
                return refused
        other = 2 if is_ordered else 6
        if fields[other, 0] != 0 and fields[other - 1, 0] != 0 and (chunk[4] < 0 or chunk[6] < 0):
            chunk[4:] = -2
    return end


@jit_cached
def read_footer(data, leaves, size_bytes):
    """Read a footer: (whether it is as expected, writer, row groups, chunks, orders).

    data          uint8: the footer
    leaves        int64 [leaves, 3]: 1 if it is stored as BYTE_ARRAY, its greatest repetition and definition levels
    size_bytes    of the file; -1 if it is unknown
    writer        int64 [2]: [begin, end) of the writer's name
    row groups    int64 [groups]: rows
    chunks        int64 [groups, leaves, 8]: values, bytes, uncompressed bytes, nulls (-1: unknown), and [begin, end)
                  in `data` of the lower and of the upper bound (-1: missing; -2: both are in the other two fields)
    orders        bool [leaves]: whether bounds are in the order that the column's type defines
    """
    fields, stack = np.zeros((_FIELDS, 3), np.int64), np.zeros((_DEPTH_MAX, 2), np.int64)
    writer, orders = np.zeros(2, np.int64), np.zeros(len(leaves), np.bool_)
    rows, chunks = np.zeros(0, np.int64), np.zeros((0, 0, 8), np.int64)
    refused = False, writer, rows, chunks, orders
    if _find_fields(data, 0, fields, stack) < 0 or fields[4, 0] != _LIST or fields[8, 0] != 0:  # encrypted
        return refused
    groups, of, at = _items(data, fields[4, 1])
    if (groups and of != _STRUCT) or (groups * len(leaves) * _CHUNK_BYTES_MIN > len(data)):
        return refused
    if fields[6, 0] != 0:
        if fields[6, 0] != _BINARY:
            return refused
        _, writer[0] = _varint(data, fields[6, 1])
        writer[1] = fields[6, 2]
    if fields[7, 0] != 0:
        count, of, order = _items(data, fields[7, 1])
        if fields[7, 0] != _LIST or of != _STRUCT or count != len(leaves):
            return refused
        for leaf in range(count):
            order = _find_fields(data, order, fields, stack)
            orders[leaf] = fields[1, 0] != 0 and (fields[:, 0] != 0).sum() == 1
    rows, chunks = np.zeros(groups, np.int64), np.zeros((groups, len(leaves), 8), np.int64)
    for group in range(groups):
        end = _find_fields(data, at, fields, stack)
        rows[group] = _number(data, fields, 3, -1)
        if end < 0 or not 0 <= rows[group] <= _COUNT_MAX or fields[1, 0] != _LIST:
            return refused
        count, of, at = _items(data, fields[1, 1])
        if count != len(leaves) or (count and of != _STRUCT):
            return refused
        for leaf in range(count):
            chunk = chunks[group, leaf]
            at = _read_chunk(data, at, leaves[leaf], orders[leaf], size_bytes, fields, stack, chunk)
            if at < 0 or chunk[0] < rows[group] or (leaves[leaf, 1] == 0 and chunk[0] != rows[group]):
                return refused
        at = end
    return True, writer, rows, chunks, orders
