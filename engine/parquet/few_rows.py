"""Some rows of a row group by position: pyarrow decodes batches up to the last of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BATCH_ROWS = 4096


def rows_at_positions(
    file: pq.ParquetFile, group: int, columns: list[str], wanted: np.ndarray, *, use_threads: bool
) -> list[pa.RecordBatch]:
    """Return rows at ascending positions (at least one) in some columns of a row group. `use_threads`: pyarrow's."""
    parts: list[pa.RecordBatch] = []
    start = 0
    # The memory of a released batch is reused for the next; fresh memory costs more than decoding.
    for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=use_threads):
        first, end = np.searchsorted(wanted, (start, start + batch.num_rows))
        if first < end:
            parts += _copied(batch, wanted[first:end] - start)
        start += batch.num_rows
        if start > wanted[-1]:
            break
    return parts


def without_views(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return a column in which string and binary views, of which Arrow takes no rows, become strings and binaries."""
    if pa.types.is_string_view(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_binary_view(column.type) else column


def _copied(batch: pa.RecordBatch, rows: np.ndarray) -> list[pa.RecordBatch]:
    """Return some rows of a batch, in their own memory if Arrow can copy them."""
    try:
        if any(pa.types.is_string_view(dtype) or pa.types.is_binary_view(dtype) for dtype in batch.schema.types):
            columns = [without_views(column) for column in batch.columns]
            batch = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        return [batch.take(from_numpy(rows))]
    except pa.ArrowNotImplementedError:  # structs of views have no `take` either
        return [batch.slice(row, 1) for row in rows.tolist()]
