"""Few rows of a row group: columns side by side, decoded no further than the last row that is wanted.

A Parquet reader decompresses whole column chunks, but decodes batch by batch, so it can stop. The columns are dealt to
two readers of about equal cost. A point look-up that the index has brought here most likely finds its row, so the
second begins before the first knows which it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...arrays import from_numpy
from ..ingest.footers import prefetch

if TYPE_CHECKING:
    import pyarrow.parquet as pq

BATCH_ROWS = 4096
_NS_A_BYTE = 1.0  # what decompression takes, and decoding by kind: measured, and only their ratios matter
_NS_A_VALUE = {"decimal": 25, "bytes": 15, "other": 4}
_DICTIONARY_BYTES_A_VALUE = 2  # chunks of strings below that are dictionary codes throughout


class Beside:
    """Reads some columns of a row group in a thread of its own, until it is told the last row, and reaches it.

    Used as a context manager: the thread has ended, and its file is closed, when the block is left.
    """

    def __init__(self, open_file: Callable[[], pq.ParquetFile], group: int, columns: list[str]):
        self._open_file, self._group, self._columns = open_file, group, columns
        self._wanted: np.ndarray | None = None
        self._is_cancelled = False
        self._batches: list[tuple[int, pa.RecordBatch]] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="skipstone-columns", daemon=True)

    def __enter__(self) -> Beside:
        if self._columns:
            self._thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._is_cancelled = True
        if self._columns:
            self._thread.join()

    def tell(self, wanted: np.ndarray) -> None:
        """Which rows are wanted (ascending positions, at least one): reading ends with the last of them."""
        self._wanted = wanted

    def rows(self, wanted: np.ndarray) -> pa.Table:
        """The wanted rows (ascending positions, at least one). Raises what reading raised."""
        self.tell(wanted)
        if not self._columns:
            return pa.table({})
        self._thread.join()
        if self._error is not None:
            raise self._error
        return pa.Table.from_batches([row for start, batch in self._batches for row in _picked(batch, start, wanted)])

    def _run(self) -> None:
        try:
            with self._open_file() as file:
                start = 0
                for batch in _batches(file, self._group, self._columns):
                    wanted = self._wanted
                    # A batch that is let go gives its memory to the next; fresh memory costs more than decoding.
                    if wanted is None or _picked(batch, start, wanted):
                        self._batches.append((start, batch))
                    start += batch.num_rows
                    if self._is_cancelled or (wanted is not None and start > wanted[-1]):
                        return
        except BaseException as error:
            self._error = error


def rows_at(file: pq.ParquetFile, group: int, columns: list[str], wanted: np.ndarray) -> pa.Table:
    """The wanted rows (ascending positions, at least one) of some columns of a row group."""
    parts: list[pa.RecordBatch] = []
    start = 0
    if columns:
        for batch in _batches(file, group, columns):
            parts += _picked(batch, start, wanted)
            start += batch.num_rows
            if start > wanted[-1]:
                break
    return pa.Table.from_batches(parts) if parts else pa.table({})


def _batches(file: pq.ParquetFile, group: int, columns: list[str]) -> Any:
    prefetch(file, group, columns)
    return file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False)


def _picked(batch: pa.RecordBatch, start: int, wanted: np.ndarray) -> list[pa.RecordBatch]:
    """The wanted rows of a batch whose first row is row `start`."""
    first, end = np.searchsorted(wanted, (start, start + batch.num_rows))
    return [batch.slice(int(row) - start, 1) for row in wanted[first:end]]  # string views have no take


def picked_rows(batch: pa.RecordBatch, start: int, wanted: np.ndarray) -> list[pa.RecordBatch]:
    """`_picked`, in memory of its own: the batch may go."""
    first, end = np.searchsorted(wanted, (start, start + batch.num_rows))
    if first == end:
        return []
    at = from_numpy(wanted[first:end] - start)
    columns = []
    for column in batch.columns:
        if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):  # these have no take
            plain = pa.string() if pa.types.is_string_view(column.type) else pa.binary()
            column = pa.concat_arrays([column.slice(row, 1).cast(plain) for row in at.to_pylist()])
        else:
            column = column.take(at)
        columns.append(column)
    return [pa.RecordBatch.from_arrays(columns, names=batch.schema.names)]


def dealt(costs: dict[str, float], ahead: float, second: list[str]) -> tuple[list[str], list[str]]:
    """Columns for two readers of about equal cost. The first has something to do before that costs `ahead`; the second
    has those named in any case."""
    parts: tuple[list[str], list[str]] = ([], list(second))
    totals = [ahead, sum(costs[name] for name in second)]
    for name in sorted((n for n in costs if n not in second), key=lambda n: -costs[n]):
        lighter = int(totals[1] < totals[0])
        parts[lighter].append(name)
        totals[lighter] += costs[name]
    return parts


def cost_ns(chunk: Any, kind: pa.DataType) -> float:
    """Roughly what a column chunk takes to decode, in nanoseconds."""
    if pa.types.is_decimal(kind):
        each = _NS_A_VALUE["decimal"]
    else:
        each = _NS_A_VALUE["bytes" if chunk.physical_type == "BYTE_ARRAY" and not is_coded(chunk) else "other"]
    return chunk.num_values * each + chunk.total_uncompressed_size * _NS_A_BYTE


def is_coded(chunk: Any) -> bool:
    """True for a chunk of strings that holds dictionary codes and nothing else: those are cheaper left as codes."""
    is_small = chunk.total_uncompressed_size < _DICTIONARY_BYTES_A_VALUE * chunk.num_values
    return chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page and is_small
