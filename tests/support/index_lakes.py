"""Small lakes for tests of indexes, and what DuckDB finds in the same rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from skipstone.engine.state.instant import seal_of


def lake(path: Path, rows: pa.Table, *, files: int = 4, group: int = 3) -> ss.Table:
    """A table of several files 0.parquet, 1.parquet, ... with several row groups each."""
    path.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(rows.num_rows), files)):
        pq.write_table(rows.take(pa.array(part)), path / f"{number}.parquet", row_group_size=group)
    return ss.create(path)


def expected(rows: pa.Table, where: str, column: str = "id") -> list[int]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", rows)
        return [n for (n,) in connection.execute(f"SELECT {column} FROM rows WHERE {where} ORDER BY 1").fetchall()]


def found(table: ss.Table, where: Any, column: str = "id") -> list[int]:
    return sorted(table.scan(where).to_table()[column].to_pylist())


def changed(table: ss.Table, change: Callable[[dict], object]) -> bytes:
    """The newest instant with another content, and a checksum that fits."""
    plain = json.loads(table.handle.instant.to_bytes().partition(b"\n")[0])
    change(plain)
    document = json.dumps(plain).encode()
    return document + b"\n" + seal_of(document)
