"""Texts of a row group larger than an array of Arrow may be: 2 GB, of memory that is allocated, not used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone.engine.scan.file_reader import FileReader

ROWS, LEAST_BYTES = 2_400, 1_000_000


@pytest.fixture(scope="module")
def texts() -> pa.ChunkedArray:
    """Each of `LEAST_BYTES` zeros and as many more as its position."""
    lengths = LEAST_BYTES + np.arange(ROWS)
    chunks = []
    for part in np.array_split(lengths, 2):
        offsets = np.append(0, np.cumsum(part)).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.zeros(int(offsets[-1]), dtype=np.uint8))]
        chunks.append(pa.Array.from_buffers(pa.string(), len(part), buffers))
    return pa.chunked_array(chunks)


def _places(column: pa.ChunkedArray) -> list[int]:
    return pc.subtract(pc.binary_length(column), LEAST_BYTES).to_pylist()


def test_some_rows_of_such_a_row_group_are_read(
    tmp_path: Path, texts: pa.ChunkedArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"k": np.arange(ROWS), "s": [""] * ROWS}), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    raw = FileReader._raw

    def large(self: FileReader, group: int, names: Sequence[str], **how: bool) -> dict[str, pa.ChunkedArray]:
        columns = raw(self, group, names, **how)
        return {**columns, "s": texts} if "s" in columns else columns

    monkeypatch.setattr(FileReader, "_raw", large)
    for plan in (table.scan("k % 30 = 7"), table.scan("s >= '' AND k >= 9", limit=5)):
        rows = plan.to_table()
        assert rows.num_rows in (5, 80) and _places(rows.column("s")) == rows.column("k").to_pylist()
    rows = table.scan("k % 30 = 7", order_by=[("k", "desc")], limit=70).to_table()
    assert rows.num_rows == 70 and _places(rows.column("s")) == rows.column("k").to_pylist()
