"""A small lake of many versions, and opening it like a process that has read nothing yet."""

from __future__ import annotations

import warnings
from pathlib import Path

import pyarrow as pa
import skipstone as ss
from skipstone.engine.state import timeline

SCHEMA = pa.schema([("x", pa.int64())])
VERSIONS = 6


def commit(table: ss.Table, number: int) -> int:
    with table.transaction() as tx:
        tx.write(pa.table({"x": [number]}))
    return table.version


def lake(root: Path, versions: int = VERSIONS) -> ss.Table:
    """Version v contains the numbers 2..v."""
    table = ss.create(root, schema=SCHEMA, partitioning=None)
    for number in range(2, versions + 1):
        commit(table, number)
    table.handle.forget()
    return table


def file(root: Path, version: int) -> Path:
    return root / ".skipstone" / timeline.instant_path(version)


def rows(table: ss.Table) -> list[int]:
    return sorted(table.scan().to_table()["x"].to_pylist())


def opened(root: Path, **options) -> ss.Table:
    """As a process that has read nothing yet, with warnings as errors."""
    timeline._seen.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ss.open(root, **options)
