"""Writing one run: rows in any order in, one immutable sorted-block file out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...hfile_like import SortedFileWriter
from ..storage import Storage
from ..timeline import Run

_ROWS_AT_ONCE = 1 << 17


def run_path(transaction: str, name: str) -> str:
    """Where a run lies; folders by the transaction's first letters keep each of a bounded size."""
    return f"runs/{transaction[:2]}/{transaction}-{name}.sbf"


def write_run(
    storage: Storage,
    path: str,
    keys: pa.Array,
    rows: pa.Table,
    segments: tuple[int, int],
    deleted: np.ndarray | None = None,
) -> Run:
    """Sorts rows by key and writes them as a run. Durable and whole on return, absent on an exception."""
    order = pc.array_sort_indices(keys)
    keys, rows = keys.take(order), rows.take(order)
    gone = None if deleted is None else pa.array(deleted).take(order)
    with storage.create(path) as sink, SortedFileWriter(sink, schema=rows.schema, use="both") as writer:
        for start in range(0, len(keys), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            writer.write(keys[part], rows.slice(start, _ROWS_AT_ONCE), None if gone is None else gone[part])
        writer.close()
        return Run(path, writer.size_bytes, writer.num_entries, segments)
