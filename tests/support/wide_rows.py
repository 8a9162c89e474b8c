"""A table of many column types, and reading rows of it by their positions."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import predicate_strategies as base
import pyarrow as pa
from oracle import multiset

ROWS, GROUP_ROWS = 30_000, 12_000


def wide_table(rows: int = ROWS) -> pa.Table:
    """Columns of many kinds and encodings, with nulls; every value is its row's own."""
    at = np.arange(rows)
    texts = [None if i % 7 == 0 else f"text {i * 7919 % 100_003} é" for i in range(rows)]
    return pa.table(
        {
            "n": at,
            "key": pa.array([f"{i * 104_729 % 1_000_003:036x}" for i in range(rows)]),
            "few": pa.array([None if i % 11 == 0 else f"kind {i % 5}" for i in range(rows)]),
            "text": pa.array(texts, pa.large_string()),
            "price": pa.array([Decimal(i * 37 % 1999 - 1000).scaleb(-2) for i in range(rows)], pa.decimal128(15, 2)),
            "huge": pa.array([None if i % 3 else Decimal(-i) for i in range(rows)], pa.decimal128(38, 0)),
            "f": pa.array([None if i % 13 == 0 else i / 3 for i in range(rows)], pa.float32()),
            "day": pa.array(at.astype(np.int32), pa.date32()),
            "at": pa.array(at * 1000, pa.timestamp("ms", "UTC")),
            "half": pa.array(at % 2048, pa.float16()) if rows else pa.array([], pa.float16()),
            "flag": pa.array(at % 3 == 0),
            "raw": pa.array([bytes([i % 256, i // 256 % 256, 0]) for i in range(rows)], pa.binary(3)),
            "list": pa.array([[i] * (i % 3) for i in range(rows)]),
            "in": pa.array([{"x": i, "s": f"{i}"} for i in range(rows)]),
            "code": pa.array([f"c{i % 9}" for i in range(rows)]).dictionary_encode(),
        }
    )


def same(found: pa.Table, wanted: pa.Table) -> None:
    assert found.schema.names == wanted.schema.names
    assert multiset(base.rows_of(found)) == multiset(base.rows_of(wanted.cast(found.schema)))
