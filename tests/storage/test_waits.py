"""How many requests wait for each other far away: a number that grows again is a defect, whatever this machine is like.

`bench/support/far.py` counts what begins after what has ended; `make bench NAME=waits` shows a larger table.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
import skipstone as ss

pytest.importorskip("obstore", reason="object stores need obstore: pip install 'skipstone[cloud]'")
BENCH = Path(__file__).parents[2] / "bench"
LAKE = "s3://far/lake"
FILES, ROWS_A_FILE = 12, 6_000


@pytest.fixture(scope="module")
def waits() -> Iterator[ModuleType]:
    """bench/waits.py with bench/support/far.py, which are no part of the package."""
    package = importlib.util.module_from_spec(importlib.util.spec_from_loader("far_bench", None, is_package=True))
    package.__path__ = [str(BENCH)]
    sys.modules["far_bench"] = package
    yield importlib.import_module("far_bench.waits")
    for name in [name for name in sys.modules if name.partition(".")[0] == "far_bench"]:
        del sys.modules[name]


@pytest.fixture(scope="module", params=[0, 12], ids=["as_created", "after_12_commits"])
def bucket(request: pytest.FixtureRequest, waits: ModuleType) -> Iterator[Any]:
    """A bucket with a table of random ids, a filter and a secondary index on them."""
    with waits.far_bucket() as bucket:
        waits.put_files(bucket, "lake", FILES, ROWS_A_FILE, ROWS_A_FILE // 3)
        table = ss.create(LAKE)
        table.create_index("id", kind="bloom")
        table.create_index("id", kind="secondary")
        for commit in range(request.param):
            write(table, waits.rows(1_000_000 + 100 * commit, 100))
        yield bucket


def write(table: ss.Table, rows: pa.Table) -> None:
    with table.transaction() as tx:
        tx.write(rows)


def counted(bucket: Any, work: Callable[[], Any]) -> int:
    with bucket.counting() as waits:
        work()
        return waits.now


def needle(waits: ModuleType, number: int) -> ss.Expression:
    return ss.col("id") == waits.id_of(number)


def test_a_cold_needle(bucket: Any, waits: ModuleType) -> None:
    """Hint; instant, the probe for the next, ends of runs; blocks. Then footer; pages."""
    where = needle(waits, 12_345)
    waits.forget()
    assert counted(bucket, lambda: ss.open(LAKE)) <= 2
    waits.forget()
    assert counted(bucket, lambda: ss.open(LAKE).scan(where).files()) <= 3
    waits.forget()
    assert counted(bucket, lambda: ss.open(LAKE).scan(where).to_table()) <= 5
    waits.forget()
    assert ss.open(LAKE).scan(where).to_table()["n"].to_pylist() == [12_345]


def test_a_warm_needle(bucket: Any, waits: ModuleType) -> None:
    table = ss.open(LAKE)
    assert table.scan(needle(waits, 23_456)).to_table().num_rows == 1
    assert counted(bucket, lambda: table.scan(needle(waits, 34_567)).files()) <= 1
    assert counted(bucket, lambda: table.scan(needle(waits, 45_678)).to_table()) <= 3
    assert counted(bucket, table.refresh) <= 1


def test_a_value_that_statistics_know(bucket: Any, waits: ModuleType) -> None:
    waits.forget()
    assert counted(bucket, lambda: ss.open(LAKE).scan("n = 777").to_table()) <= 5


def test_a_small_commit(bucket: Any, waits: ModuleType) -> None:
    """Marker; data; what it is; what came since, with the runs to be merged; runs; instant; hint; marker's end."""
    table = ss.open(LAKE)
    write(table, waits.rows(2_000_000, 100))
    firsts = (2_000_100, 2_000_200, 2_000_300)
    numbers = [counted(bucket, lambda first=first: write(table, waits.rows(first, 100))) for first in firsts]
    assert min(numbers) <= 8 and max(numbers) <= 11, "a filter run that is merged, and not small, is read in three"
    assert ss.open(LAKE).scan(needle(waits, 2_000_250)).to_table()["n"].to_pylist() == [2_000_250]
    assert ss.open(LAKE).verify(deep=True) == []


def test_footers_are_read_many_at_once(bucket: Any, waits: ModuleType) -> None:
    waits.put_files(bucket, "many", 100, 10, 10)
    assert counted(bucket, lambda: ss.create("s3://far/many")) <= 18


def test_a_hint_is_never_believed(bucket: Any, waits: ModuleType) -> None:
    """The copy of an instant in the hint only says what may be read early: an old one, another's, one cut short or
    changed gives the same answers."""
    table, where = ss.open(LAKE), needle(waits, 3_000_050)
    before = bucket.get("lake/.skipstone/timeline/HINT").bytes().to_bytes()
    write(table, waits.rows(3_000_000, 100))
    after = bucket.get("lake/.skipstone/timeline/HINT").bytes().to_bytes()
    line, _, copy = after.partition(b"\n")
    old_copy = before.partition(b"\n")[2]
    text = re.sub(
        rb'"entries": ?(\d)', lambda match: b'"entries":' + str(int(match[1]) + 1).encode(), copy.split(b"\n")[0]
    )
    other_sizes = text + b"\ncrc32 %08x\n" % zlib.crc32(text)
    assert text != copy.split(b"\n")[0]
    assert copy and old_copy != copy
    for hint in (before, line + b"\n", line + b"\n" + old_copy, after[:-9], line + b"\n" + other_sizes, b"\n" + copy):
        bucket.put("lake/.skipstone/timeline/HINT", hint)
        waits.forget()
        opened = ss.open(LAKE, strict=True)
        assert (opened.version, opened.scan(where).to_table()["n"].to_pylist()) == (table.version, [3_000_050])
    bucket.put("lake/.skipstone/timeline/HINT", after)
