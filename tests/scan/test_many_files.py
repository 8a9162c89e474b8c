"""Plans over more files than one thread reads: whatever the parts, and whatever runs hold them, the files are those
that numpy keeps."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone import col
from skipstone.engine.scan import prune
from skipstone.engine.state.runs import RunReaders

FILES, MORE_FILES = 70_000, 1_000
DOMAIN = 10**12


class Lake:
    """A table of files that need not exist, and what is known of them, in the order of paths: bounds of `x`, and of
    `t`, which is 10 i to 10 i + 9 in file i.

    null_counts   of `t`, of 3 rows: 0 in the first half
    is_live       bool [files]: added, and not removed
    """

    def __init__(self, table: ss.Table):
        files = FILES + MORE_FILES
        random = np.random.default_rng(7)
        self.table = table
        self.lower = random.integers(-DOMAIN, DOMAIN, files)
        self.upper = self.lower + random.integers(0, DOMAIN // 10, files)
        narrow = slice(60_000, 64_000)  # so that a list may hold every value of a file
        self.lower[narrow] = random.integers(0, 1000, 4000)
        self.upper[narrow] = self.lower[narrow] + random.integers(0, 4, 4000)
        self.lower[:3], self.upper[:3] = -(2**63), 2**63 - 1
        self.sizes = random.integers(1, 1 << 40, files)
        self.paths = [f"part-{i:06d}-{size:010x}.parquet" for i, size in enumerate(self.sizes.tolist())]
        self.times = 10 * np.arange(files)
        self.null_counts = random.integers(0, 4, files)
        self.null_counts[: FILES // 2] = 0
        self.is_live = np.zeros(files, dtype=bool)

    def add(self, start: int, stop: int) -> None:
        with self.table.transaction() as tx:
            tx.add_files(self._rows(start, stop))
        self.is_live[start:stop] = True

    def remove(self, files: list[int]) -> None:
        with self.table.transaction() as tx:
            tx.remove([self.paths[i] for i in files])
        self.is_live[files] = False

    def _rows(self, start: int, stop: int) -> pa.Table:
        nulls = self.null_counts[start:stop]
        times = (pa.array(self.times[start:stop] + last, mask=nulls == 3) for last in (0, 9))
        bounds = {
            "x": [pa.array(values[start:stop]) for values in (self.lower, self.upper)],
            "t": [*times, pa.array(nulls)],
        }
        of_columns = [
            pa.StructArray.from_arrays(b, names=["min", "max", "null_count"][: len(b)]) for b in bounds.values()
        ]
        return pa.table(
            {
                "path": self.paths[start:stop],
                "size_bytes": self.sizes[start:stop],
                "row_count": np.full(stop - start, 3),
                "stats": pa.StructArray.from_arrays(of_columns, names=list(bounds)),
            }
        )

    def check(self, where: object, keeps: np.ndarray) -> None:
        files = self.table.scan(where).files()
        kept = np.flatnonzero(keeps & self.is_live)
        assert files.column("path").to_pylist() == [self.paths[i] for i in kept.tolist()]
        assert np.array_equal(files.column("size_bytes").to_numpy(), self.sizes[kept])

    def keeps_any(self, values: list[int]) -> np.ndarray:
        ascending = np.unique(np.array(values, dtype=np.int64))
        first = np.searchsorted(ascending, self.lower)
        return (first < len(ascending)) & (ascending[np.minimum(first, len(ascending) - 1)] <= self.upper)

    def keeps_other(self, values: list[int]) -> np.ndarray:
        """Where not every value between a file's bounds is one of `values`."""
        ascending = np.unique(np.array(values, dtype=np.int64))
        within = np.searchsorted(ascending, self.upper, "right") - np.searchsorted(ascending, self.lower)
        return self.upper.astype(object) - self.lower.astype(object) + 1 != within


@pytest.fixture(scope="module")
def in_pieces() -> Iterator[None]:
    """In pieces, as of more files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prune, "PIECE_ENTRIES", 1 << 14)
        yield


@pytest.fixture(scope="module")
def table_of_many(tmp_path_factory: pytest.TempPathFactory, in_pieces: None) -> Lake:
    schema = pa.schema([("x", pa.int64()), ("t", pa.int64())])
    lake = Lake(ss.create(tmp_path_factory.mktemp("many"), schema=schema, partitioning=None))
    lake.add(0, FILES)
    return lake


@pytest.fixture(scope="module", params=["one run", "several runs"])
def lake(table_of_many: Lake, request: pytest.FixtureRequest) -> Lake:
    """As it was made; then with two more runs, and tombstones."""
    if request.param == "several runs":
        table_of_many.add(FILES, FILES + MORE_FILES)
        table_of_many.remove(list(range(50, FILES + MORE_FILES, 1000)))
    return table_of_many


VALUES = st.integers(-DOMAIN, DOMAIN)


@settings(max_examples=examples(2))
@given(low=VALUES, span=st.integers(0, DOMAIN), is_lower=st.booleans())
def test_a_value_or_a_range_keeps_the_files_that_meet_it(lake: Lake, low: int, span: int, is_lower: bool) -> None:
    if is_lower:
        lake.check((col("x") >= low) & (col("x") < low + span), (lake.upper >= low) & (lake.lower < low + span))
    else:
        lake.check(col("x") == low, (lake.lower <= low) & (lake.upper >= low))


@settings(max_examples=examples(2))
@given(
    seed=st.integers(0, 2**32),
    count=st.sampled_from([2, 15, 16, 300, 3000]),
    center=VALUES | st.just(0),
    span=st.sampled_from([1000, 10**9, 10**12]),
    ends=st.lists(st.sampled_from([-(2**63), 2**63 - 1, 0]), max_size=2),
)
def test_a_list_keeps_the_files_that_hold_one_of_it(lake, seed, count, center, span, ends) -> None:
    values = [*(center + np.random.default_rng(seed).integers(0, span, count)).tolist(), *ends]
    lake.check(col("x").is_in(values), lake.keeps_any(values))
    lake.check(~col("x").is_in(values), lake.keeps_other(values))


@settings(max_examples=examples(2))
@given(value=VALUES, ends=st.tuples(*[st.integers(0, 10 * FILES)] * 2).map(sorted))
def test_a_clustered_column_beside_it_narrows_them(lake: Lake, value: int, ends: list[int]) -> None:
    first, stop = ends
    begins, goes_on = lake.times < stop, lake.times + 9 >= first
    has_time = lake.null_counts < 3
    meets = (lake.lower <= value) & (lake.upper >= value)
    in_time = (col("t") >= first) & (col("t") < stop)
    lake.check((col("x") == value) & in_time, meets & has_time & begins & goes_on)
    outside = (lake.times < first) | (lake.times + 9 >= stop)
    lake.check((col("x") == value) & ~in_time, meets & has_time & outside)
    lake.check((col("x") == value) & col("t").is_null(), meets & (lake.null_counts > 0))


def test_whole_blocks_are_counted_by_their_summaries(lake: Lake) -> None:
    """Where a block leaves one outcome for all of its files; none of these can be read."""
    first, stop = 70, FILES // 2 - 5
    in_range = (lake.times >= 10 * first) & (lake.times < 10 * stop) & lake.is_live
    where = (col("t") >= 10 * first) & (col("t") < 10 * stop) & (col("x") >= -(2**63))
    assert lake.table.scan((col("t") >= 10 * first) & (col("t") < 10 * stop)).count() == 3 * int(in_range.sum())
    assert lake.table.scan(where).files().num_rows == int(in_range.sum())


def test_all_files_are_listed(lake: Lake) -> None:
    lake.check(None, np.ones(len(lake.paths), dtype=bool))
    assert lake.table.scan().count() == 3 * int(lake.is_live.sum())


_BOUNDS = st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([0, 1, 4, None]))


@settings(max_examples=examples(12))
@given(files=st.lists(_BOUNDS, min_size=1, max_size=60), wanted=st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_null_counts_are_looked_up_where_every_row_may_match(files, wanted, tmp_path_factory):
    """Of large runs a point reads bounds first, and null counts of files whose bounds are one value: what is kept, and
    what matches whole, is what all statistics say."""
    lower = [None if nulls == 4 else low for low, _, nulls in files]
    upper = [None if nulls == 4 else low + more for low, more, nulls in files]
    stats = pa.StructArray.from_arrays(
        [pa.array(lower, pa.int64()), pa.array(upper, pa.int64()), pa.array([n for *_, n in files], pa.int64())],
        names=["min", "max", "null_count"],
    )
    paths = [f"part-{i:03d}.parquet" for i in range(len(files))]
    rows = pa.table({"path": paths, "size_bytes": [9] * len(files), "row_count": [4] * len(files)})
    rows = rows.append_column("stats", pa.StructArray.from_arrays([stats], names=["x"]))
    folder = tmp_path_factory.mktemp("lake") / "table"
    with ss.create(folder, schema=pa.schema([("x", pa.int64())]), partitioning=None) as table:
        with table.transaction() as tx:
            tx.add_files(rows)
        answers = []
        for is_kept in (True, False):
            with mock.patch.object(RunReaders, "keeps", lambda *_, is_kept=is_kept: is_kept):
                plan = table.scan(col("x").is_in(wanted))
                kept = plan.files().column("path").to_pylist()
                answers.append((kept, plan.planning.pruned.only_true.tolist()))
    assert answers[0] == answers[1]
    known = zip(paths, lower, upper, (n for *_, n in files), strict=True)
    whole = {path for path, low, high, nulls in known if low is not None and low == high in wanted and nulls == 0}
    assert {path for path, is_whole in zip(*answers[1], strict=True) if is_whole} >= whole
