"""Some rows of a row group by position: pyarrow decodes batches up to the last of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BATCH_ROWS = 4096
_SLICED_ROWS_MAX = 16


def rows_at_positions(
    file: pq.ParquetFile, group: int, columns: list[str], wanted: np.ndarray, *, use_threads: bool
) -> list[pa.RecordBatch]:
    """The rows at ascending positions (at least one) of some columns of a row group; `use_threads`: pyarrow's."""
    parts: list[pa.RecordBatch] = []
    start = 0
    # A batch that is released gives its memory to the next; fresh memory costs more than decoding.
    for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns, use_threads=use_threads):
        first, end = np.searchsorted(wanted, (start, start + batch.num_rows))
        if first < end:
            parts += _copied(batch, wanted[first:end] - start)
        start += batch.num_rows
        if start > wanted[-1]:
            break
    return parts


def without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column; string and binary views, of which Arrow takes no rows, become strings and binaries."""
    return column.cast(_plain(column.type)) if _is_view(column.type) else column


def _copied(batch: pa.RecordBatch, rows: np.ndarray) -> list[pa.RecordBatch]:
    """Some rows of a batch, in memory of their own if Arrow can copy them."""
    views = [i for i, dtype in enumerate(batch.schema.types) if _is_view(dtype)]
    try:
        if not views:
            return [batch.take(from_numpy(rows))]
        columns = batch.columns
        others = [i for i in range(len(columns)) if i not in views]
        copies = dict(zip(views, (_text_of(columns[i], rows) for i in views), strict=True))
        if others:
            copies.update(zip(others, batch.select(others).take(from_numpy(rows)).columns, strict=True))
        return [pa.RecordBatch.from_arrays([copies[i] for i in range(len(columns))], names=batch.schema.names)]
    except pa.ArrowNotImplementedError:  # structs of views have no take either
        return [batch.slice(row, 1) for row in rows.tolist()]


def _is_view(dtype: pa.DataType) -> bool:
    return pa.types.is_string_view(dtype) or pa.types.is_binary_view(dtype)


def _plain(dtype: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_string_view(dtype) else pa.binary()


def _text_of(column: pa.Array, rows: np.ndarray) -> pa.Array:
    """Some rows of a column of views, which have no take."""
    plain = _plain(column.type)
    if len(rows) > _SLICED_ROWS_MAX:
        return column.cast(plain).take(from_numpy(rows))
    return pa.concat_arrays([column.slice(row, 1).cast(plain) for row in rows.tolist()])
