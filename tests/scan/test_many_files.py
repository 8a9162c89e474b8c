"""Plans over more files than one thread reads: whatever the parts, and whatever runs hold them, the files are those
that numpy keeps."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone import col

FILES, MORE_FILES = 135_000, 1_000
DOMAIN = 10**12


class Lake:
    """A table of files that need not exist, and what is known of them: bounds of `x`, in the order of paths.

    removed   bool [files]: taken out by a later commit
    """

    def __init__(self, table: ss.Table, files: int):
        random = np.random.default_rng(7)
        self.table = table
        self.lower = random.integers(-DOMAIN, DOMAIN, FILES + MORE_FILES)[:files]
        self.upper = self.lower + random.integers(0, DOMAIN // 10, FILES + MORE_FILES)[:files]
        narrow = slice(100_000, 104_000)  # so that a list may hold every value of a file
        self.lower[narrow] = random.integers(0, 1000, 4000)
        self.upper[narrow] = self.lower[narrow] + random.integers(0, 4, 4000)
        self.lower[:3], self.upper[:3] = -(2**63), 2**63 - 1
        self.sizes = random.integers(1, 1 << 40, FILES + MORE_FILES)[:files]
        self.paths = [f"part-{i:06d}-{size:010x}.parquet" for i, size in enumerate(self.sizes.tolist())]
        self.removed = np.zeros(files, dtype=bool)

    def add(self, start: int, stop: int) -> None:
        with self.table.transaction() as tx:
            tx.add_files(self._rows(start, stop))

    def remove(self, files: list[int]) -> None:
        self.removed[files] = True
        with self.table.transaction() as tx:
            tx.remove([self.paths[i] for i in files])

    def _rows(self, start: int, stop: int) -> pa.Table:
        bounds = [pa.array(values[start:stop]) for values in (self.lower, self.upper)]
        stats = pa.StructArray.from_arrays(bounds, names=["min", "max"])
        return pa.table(
            {
                "path": self.paths[start:stop],
                "size_bytes": self.sizes[start:stop],
                "row_count": np.full(stop - start, 3),
                "stats": pa.StructArray.from_arrays([stats], names=["x"]),
            }
        )

    def check(self, where: object, keeps: np.ndarray) -> None:
        files = self.table.scan(where).files()
        kept = np.flatnonzero(keeps & ~self.removed)
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
def plain(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("many") / "table"
    lake = Lake(ss.create(folder, schema=pa.schema([("x", pa.int64())]), partitioning=None), FILES)
    lake.add(0, FILES)
    return lake


@pytest.fixture(scope="module")
def changed(plain: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("changed") / "table"
    shutil.copytree(plain.table.location, folder)
    lake = Lake(ss.open(folder), FILES + MORE_FILES)
    lake.add(FILES, FILES + MORE_FILES)
    lake.remove(list(range(50, FILES + MORE_FILES, 1000)))
    return lake


@pytest.fixture(scope="module", params=["plain", "changed"])
def lake(request: pytest.FixtureRequest) -> Lake:
    """Of one run, and of several with tombstones."""
    return request.getfixturevalue(request.param)


VALUES = st.integers(-DOMAIN, DOMAIN)


@settings(max_examples=examples(3))
@given(low=VALUES, span=st.integers(0, DOMAIN), is_lower=st.booleans())
def test_a_value_or_a_range_keeps_the_files_that_meet_it(lake: Lake, low: int, span: int, is_lower: bool) -> None:
    if is_lower:
        lake.check((col("x") >= low) & (col("x") < low + span), (lake.upper >= low) & (lake.lower < low + span))
    else:
        lake.check(col("x") == low, (lake.lower <= low) & (lake.upper >= low))


@settings(max_examples=examples(3))
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


def test_all_files_are_listed(lake: Lake) -> None:
    lake.check(None, np.ones(len(lake.paths), dtype=bool))
    assert lake.table.scan().count() == 3 * int((~lake.removed).sum())
