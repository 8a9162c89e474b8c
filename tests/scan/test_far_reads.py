"""Much of many files that are far away: few requests, several at a time, as much in memory as is allowed, and the same
rows."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone.engine.scan import file_reader as reading_rows

pytest.importorskip("obstore")

FILES, ROWS, GROUP_ROWS = 24, 3_000, 1_000
LAKE, INDEX = "s3://far/lake", "s3://far/index"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    """Files, and an index of them, in the bucket of bench/support/far.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("far_of_bench", Path(__file__).parents[2] / "bench/support/far.py")
    assert spec is not None and spec.loader is not None
    far = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(far)
    with far.far_bucket() as bucket:
        for number in range(FILES):
            first = number * ROWS
            rows = {"n": np.arange(first, first + ROWS), "x": np.arange(ROWS) % 50, "y": np.arange(ROWS) * 0.5}
            rows["z"] = np.arange(ROWS) % 10 + 90 * (np.arange(ROWS) >= GROUP_ROWS)
            rows["text"] = pa.array([f"{i * 7919 % 100_003}" for i in range(ROWS)])
            sink = io.BytesIO()
            pq.write_table(pa.table(rows), sink, row_group_size=GROUP_ROWS)
            bucket.put(f"lake/{number:02}.parquet", sink.getvalue())
        ss.create(LAKE, index_path=INDEX)
        yield bucket


def read(where: str, columns: list[str] | None) -> pa.Table:
    return ss.open(LAKE, index_path=INDEX).scan(where, columns=columns).to_table()


@pytest.fixture(scope="module")
def expected_rows(bucket: Any) -> Callable[[str, tuple[str, ...] | None], pa.Table]:
    """What is read as usual, once for each question."""
    return cache(lambda where, columns: read(where, None if columns is None else list(columns)))


@pytest.mark.some_cases(18)
@pytest.mark.parametrize("where", ["x <= 3", "x < 99", "n < 30000", "n BETWEEN 1500 AND 1510", "text = '7'", "y < 20"])
@pytest.mark.parametrize("columns", [None, ("n", "text"), ("x",), ()])
@pytest.mark.parametrize("prefetch_bytes", [0, 20_000, 8 << 20])
def test_the_same_rows_however_they_are_fetched(
    expected_rows: Callable, monkeypatch: pytest.MonkeyPatch, where: str, columns: tuple | None, prefetch_bytes: int
) -> None:
    expected = expected_rows(where, columns)
    monkeypatch.setattr(reading_rows, "_FILE_PREFETCH_BYTES_MAX", prefetch_bytes)
    found = read(where, None if columns is None else list(columns))
    assert found.schema == expected.schema and found.num_rows == expected.num_rows
    if expected.num_columns:
        order = [(name, "ascending") for name in expected.column_names]
        assert found.sort_by(order).equals(expected.sort_by(order))


def test_a_file_is_one_request(bucket: Any) -> None:
    with bucket.counting() as waits:
        assert read("x <= 3", ["n", "x"]).num_rows == FILES * ROWS * 4 // 50
    of_data = [key for _, _, key in waits.log if key.startswith("lake/")]
    assert sorted(of_data) == [f"lake/{number:02}.parquet" for number in range(FILES)]


def test_statistics_that_skip_files_are_read_of_all(bucket: Any) -> None:
    """Bounds of whole files say nothing of z, those of row groups that no row matches."""
    with bucket.counting() as waits:
        assert read("z = 50", None).num_rows == 0
    assert not [key for _, _, key in waits.log if key.startswith("lake/")]
