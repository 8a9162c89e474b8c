"""Much of many files that are far away: few requests, several at a time, as much in memory as is allowed, and the same
rows."""

from __future__ import annotations

import importlib.util
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from skipstone.engine.scan import by_polars, polars_files
from skipstone.engine.storage.threads import in_batches

pytest.importorskip("polars")
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


def read(where: str, reader: str, columns: list[str] | None) -> pa.Table:
    return ss.open(LAKE, index_path=INDEX).scan(where, reader=reader, columns=columns).to_table()


@pytest.mark.parametrize("where", ["x <= 3", "x < 99", "n < 30000", "n BETWEEN 1500 AND 1510", "text = '7'", "y < 20"])
@pytest.mark.parametrize("columns", [None, ["n", "text"], ["x"], []])
@pytest.mark.parametrize("request_bytes", [0, 2_000, 2 << 20])
def test_the_same_rows_however_they_are_fetched(
    bucket: Any, monkeypatch: pytest.MonkeyPatch, where: str, columns: list[str] | None, request_bytes: int
) -> None:
    for module in (polars_files, by_polars):
        monkeypatch.setattr(module, "REQUEST_BYTES", request_bytes)
    by_arrow, by_polars_ = (read(where, reader, columns) for reader in ("pyarrow", "polars"))
    assert by_polars_.schema == by_arrow.schema and by_polars_.num_rows == by_arrow.num_rows
    if by_arrow.num_columns:
        order = [(name, "ascending") for name in by_arrow.column_names]
        assert by_polars_.sort_by(order).equals(by_arrow.sort_by(order))


def test_a_file_is_one_request(bucket: Any) -> None:
    with bucket.counting() as waits:
        assert read("x <= 3", "polars", ["n", "x"]).num_rows == FILES * ROWS * 4 // 50
    of_data = [key for _, _, key in waits.log if key.startswith("lake/")]
    assert sorted(of_data) == [f"lake/{number:02}.parquet" for number in range(FILES)]


def test_statistics_that_skip_files_are_read_of_all(bucket: Any) -> None:
    """Bounds of whole files say nothing of z, those of row groups that no row matches."""
    with bucket.counting() as waits:
        assert read("z = 50", "polars", None).num_rows == 0
    assert not [key for _, _, key in waits.log if key.startswith("lake/")]


TENTHS = st.integers(0, 90).map(lambda n: n / 10)  # floats: what is added and taken away again need not be zero


@given(st.lists(st.integers(0, 9) | TENTHS, max_size=30), st.integers(1, 12), st.integers(1, 20), st.integers(1, 4))
@example([0.1, 0.2, 3.0, 0.1], 0.25, 1, 2)
@settings(max_examples=examples(40), deadline=None)
def test_no_more_is_held_than_is_allowed(sizes: list[float], batch_size: float, size_max: int, threads: int) -> None:
    lock, held, most = threading.Lock(), 0.0, 0.0
    peak_of_one = max(sizes, default=0)

    def work(item: tuple[int, float]) -> int:
        nonlocal held, most
        with lock:
            held += item[1]
            most = max(most, held)
        return -item[0]

    items = list(enumerate(sizes))
    found = []
    for batch in in_batches(work, [(item, item[1]) for item in items], batch_size, size_max, threads, "test"):
        assert batch and (
            sum(item[1] for item, _ in batch) <= batch_size + 1e-9 or len(batch) == 1 or batch[0][0][1] == 0
        )
        found += batch
        with lock:
            held -= sum(item[1] for item, _ in batch)
    assert found == [(item, -item[0]) for item in items]
    assert most <= max(size_max, peak_of_one) + 1e-9


def test_an_error_ends_the_threads() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError(item)
        return item

    with pytest.raises(ValueError, match="3"):
        list(in_batches(work, [(n, 1.0) for n in range(9)], 1, 2, 2, "test-far"))
    assert not [one for one in threading.enumerate() if one.name.startswith("test-far")]


@given(
    st.lists(st.tuples(st.sampled_from([0.25, 1.0, 3.0]), st.sampled_from([0.125, 0.5, 1.0])), max_size=30),
    st.integers(1, 3),
)
def test_lists_are_measured_by_what_came(items: list[tuple[float, float]], threads: int) -> None:
    """Of what is read of a file only the most that it may be is known before."""
    sized = [(item, item[0]) for item in items]
    given_out = []
    batches = in_batches(lambda item: item[0] * item[1], sized, 1.0, 2.0, threads, "test-far", lambda _, came: came)
    for batch in batches:
        assert len(batch) == 1 or sum(came for _, came in batch) <= 1.0
        given_out += [item for item, _ in batch]
    assert given_out == items
    eight = in_batches(lambda n: n, [(n, 1.0) for n in range(8)], 1.0, 2.0, threads, "test-far", lambda _, __: 0.125)
    assert [len(batch) for batch in eight] == [8]
