"""What it costs to read few rows of a row group, and reading them where pages cannot be skipped: a Parquet reader
decompresses whole column chunks, but decodes batch by batch, so it can stop at the last row that is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...arrays import from_numpy
from .footers import prefetch

if TYPE_CHECKING:
    import pyarrow.parquet as pq

BATCH_ROWS = 4096
_SLICED_ROWS_MAX = 16
_NS_A_BYTE = 1.0  # what decompression takes, and decoding by kind: measured, and only their ratios matter
_NS_A_VALUE = {"bytes": 15, "other": 4}
_DICTIONARY_BYTES_A_VALUE = 2  # chunks of strings below that are dictionary codes throughout


def sought(file: pq.ParquetFile, group: int, columns: list[str], wanted: np.ndarray) -> list[pa.RecordBatch]:
    """The wanted rows (ascending positions, at least one) of some columns of a row group."""
    prefetch(file, group, columns)
    return picked(file, group, columns, wanted)


def picked(file: pq.ParquetFile, group: int, columns: list[str] | None, wanted: np.ndarray) -> list[pa.RecordBatch]:
    """`sought`, of a file that is in memory."""
    parts: list[pa.RecordBatch] = []
    start = 0
    # A batch that is let go gives its memory to the next; fresh memory costs more than decoding.
    for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
        first, end = np.searchsorted(wanted, (start, start + batch.num_rows))
        if first < end:
            parts += _copied(batch, wanted[first:end] - start)
        start += batch.num_rows
        if start > wanted[-1]:
            break
    return parts


def _copied(batch: pa.RecordBatch, rows: np.ndarray) -> list[pa.RecordBatch]:
    """Some rows of a batch, in memory of their own where that can be: the batch may go."""
    views = [i for i, kind in enumerate(batch.schema.types) if _is_view(kind)]
    try:
        if not views:
            return [batch.take(from_numpy(rows))]
        columns = batch.columns
        others = [i for i in range(len(columns)) if i not in views]
        taken = dict(zip(views, (_text_of(columns[i], rows) for i in views), strict=True))
        if others:
            taken.update(zip(others, batch.select(others).take(from_numpy(rows)).columns, strict=True))
        return [pa.RecordBatch.from_arrays([taken[i] for i in range(len(columns))], names=batch.schema.names)]
    except pa.ArrowNotImplementedError:  # structs of views have no take either
        return [batch.slice(row, 1) for row in rows.tolist()]


def _is_view(kind: pa.DataType) -> bool:
    return pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)


def _text_of(column: pa.Array, rows: np.ndarray) -> pa.Array:
    """Some rows of a column of views, which have no take."""
    plain = pa.string() if pa.types.is_string_view(column.type) else pa.binary()
    if len(rows) > _SLICED_ROWS_MAX:
        return column.cast(plain).take(from_numpy(rows))
    return pa.concat_arrays([column.slice(row, 1).cast(plain) for row in rows.tolist()])


def dealt(costs: dict[str, float]) -> tuple[list[str], list[str]]:
    """Columns for two readers of about equal cost."""
    parts: tuple[list[str], list[str]] = ([], [])
    totals = [0.0, 0.0]
    for name in sorted(costs, key=lambda n: -costs[n]):
        lighter = int(totals[1] < totals[0])
        parts[lighter].append(name)
        totals[lighter] += costs[name]
    return parts


def cost_ns(chunk: Any) -> float:
    """Roughly what a column chunk takes to decode, in nanoseconds."""
    each = _NS_A_VALUE["bytes" if chunk.physical_type == "BYTE_ARRAY" and not is_coded(chunk) else "other"]
    return chunk.num_values * each + chunk.total_uncompressed_size * _NS_A_BYTE


def is_coded(chunk: Any) -> bool:
    """True for a chunk of strings that holds dictionary codes and nothing else: those are cheaper left as codes."""
    is_small = chunk.total_uncompressed_size < _DICTIONARY_BYTES_A_VALUE * chunk.num_values
    return chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page and is_small
