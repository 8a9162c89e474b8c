"""Rows of values as the bytes that key-value stores keep, and back: into Python for one, into Arrow for many."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_ROW = struct.Struct("<Bqdq?")
_FIXED = np.dtype([("nulls", "u1"), ("id", "<i8"), ("price", "<f8"), ("seen", "<i8"), ("flag", "?")])
_TYPES = {"id": pa.int64(), "price": pa.float64(), "seen": pa.timestamp("us", "UTC"), "flag": pa.bool_()}
_ORDER = ["id", "price", "seen", "city", "flag"]
_SIZE = struct.Struct("<q")
_BYTES_MAX = (1 << 31) - 1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Sizes:
    """One int64: 8 bytes."""

    def encode(self, values: pa.Table) -> list[bytes]:
        data = values.column("size").to_numpy().astype("<i8").tobytes()
        return [data[start : start + 8] for start in range(0, len(data), 8)]

    def one(self, row: bytes) -> dict[str, Any]:
        return {"size": _SIZE.unpack(row)[0]}

    def many(self, rows: Sequence[bytes]) -> dict[str, pa.Array]:
        data = pa.array(rows, pa.binary()).buffers()[2]
        return {"size": pa.Array.from_buffers(pa.int64(), len(rows), [None, data])}


class Typed:
    """The five columns: a byte of null bits, those of fixed width, then the text."""

    def encode(self, values: pa.Table) -> list[bytes]:
        fixed = np.zeros(values.num_rows, dtype=_FIXED)
        for bit, name in enumerate(_ORDER):
            column = values.column(name)
            fixed["nulls"] |= np.uint8(1 << bit) * column.is_null().to_numpy().astype(np.uint8)
            if name != "city":
                plain = pc.fill_null(
                    column.cast(pa.int64()) if name == "seen" else column, False if name == "flag" else 0
                )
                fixed[name] = plain.to_numpy()
        data, width = fixed.tobytes(), _FIXED.itemsize
        texts = pc.fill_null(values.column("city").cast(pa.binary()), b"").to_pylist()
        return [data[i * width : (i + 1) * width] + text for i, text in enumerate(texts)]

    def one(self, row: bytes) -> dict[str, Any]:
        nulls, number, price, seen_us, flag = _ROW.unpack_from(row)
        if not nulls:
            seen = _EPOCH + datetime.timedelta(microseconds=seen_us)
            return {"id": number, "price": price, "seen": seen, "city": row[26:].decode(), "flag": flag}
        return {
            "id": None if nulls & 1 else number,
            "price": None if nulls & 2 else price,
            "seen": None if nulls & 4 else _EPOCH + datetime.timedelta(microseconds=seen_us),
            "city": None if nulls & 8 else row[26:].decode(),
            "flag": None if nulls & 16 else flag,
        }

    def many(self, rows: Sequence[bytes]) -> dict[str, pa.Array]:
        given = pa.array(rows, pa.binary())
        fixed = np.frombuffer(pc.binary_slice(given, 0, _FIXED.itemsize).buffers()[2], dtype=_FIXED, count=len(rows))
        texts = pc.binary_slice(given, _FIXED.itemsize, _BYTES_MAX).cast(pa.string())
        columns = {}
        for bit, name in enumerate(_ORDER):
            is_null = fixed["nulls"] & np.uint8(1 << bit) != 0
            if name == "city":
                columns[name] = pc.if_else(pa.array(is_null), None, texts)
            else:
                columns[name] = pa.array(np.ascontiguousarray(fixed[name]), mask=is_null).cast(_TYPES[name])
        return columns


ROWS: dict[str, Sizes | Typed] = {"names": Sizes(), "typed": Typed()}


def table(rows: Sizes | Typed, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.Table:
    """Keys and their rows as an Arrow table."""
    return pa.table({"key": pa.array(keys, pa.binary()), **rows.many(values)})


def unzipped(pairs: Sequence[tuple[bytes, bytes]]) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Keys and values of pairs."""
    return list(map(itemgetter(0), pairs)), list(map(itemgetter(1), pairs))
