"""How many requests wait for each other far away: a number that grows again is a defect, whatever this machine is like.

`bench/support/far.py` counts what begins after what has ended; `make bench NAME=waits` shows a larger table.
"""

from __future__ import annotations

import importlib.util
import io
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import write_rows

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
            write_rows(table, waits.rows(1_000_000 + 100 * commit, 100))
        yield bucket


def counted(bucket: Any, work: Callable[[], Any]) -> int:
    with bucket.counting() as waits:
        work()
        return waits.now


def waited_cold(bucket: Any, waits: ModuleType, work: Callable[[], Any], waits_max: int) -> int:
    """The waits of a process that has read nothing yet. On a busy machine requests that are sent side by side may look
    as if one waited for another, so more than `waits_max` are counted again."""
    for _ in range(5):
        waits.forget()
        found = counted(bucket, work)
        if found <= waits_max:
            break
    return found


def needle(waits: ModuleType, number: int) -> ss.Expression:
    return ss.col("id") == waits.id_of(number)


def test_a_cold_needle(bucket: Any, waits: ModuleType) -> None:
    """Hint; instant, the probe for the next, ends of runs; blocks. Then pages, by the footer that the index has."""
    where = needle(waits, 12_345)
    assert waited_cold(bucket, waits, lambda: ss.open(LAKE), 2) <= 2
    assert waited_cold(bucket, waits, lambda: ss.open(LAKE).scan(where).files(), 3) <= 3
    assert waited_cold(bucket, waits, lambda: ss.open(LAKE).scan(where).to_table(), 4) <= 4
    waits.forget()
    assert ss.open(LAKE).scan(where).to_table()["n"].to_pylist() == [12_345]


def test_a_cold_needle_without_a_secondary_index(waits: ModuleType) -> None:
    """After the plan the statistics and the filters of row groups come in one wait, and the pages in another."""
    with waits.far_bucket() as bucket:
        waits.put_files(bucket, "lake", 2, 600, 200)
        table = ss.create(LAKE)
        table.create_index("id", kind="bloom")
        for commit in range(12):
            write_rows(table, waits.rows(1_000_000 + 100 * commit, 100))
        where = needle(waits, 1_000_555)
        waits.forget()
        plan = counted(bucket, lambda: ss.open(LAKE).scan(where).files())
        waits.forget()
        assert counted(bucket, lambda: ss.open(LAKE).scan(where).to_table()) == plan + 2 <= 5


def test_events_count_the_waits(bucket: Any, waits: ModuleType) -> None:
    """Those of a plan without the opening, and of a commit from its publishing on. Requests side by side that take no
    time may look as if they had followed each other."""
    events: list[ss.Event] = []
    waits.forget()
    table = ss.open(LAKE)
    stop = ss.observe(events.append)
    waited = counted(bucket, table.scan(needle(waits, 56_789)).files)
    assert 0 < waited <= events[-1].figures["waits"] <= events[-1].figures["requests"]
    write_rows(table, waits.rows(3_000_000, 10))
    assert events[-1].name == "commit" and 2 <= events[-1].figures["waits"] <= events[-1].figures["requests"]
    stop()


def test_the_end_of_a_large_run_comes_with_the_nodes_of_its_index(waits: ModuleType) -> None:
    """Open: the end and a look at it; then the block: no node is read after it."""
    from skipstone.engine.state import Run
    from skipstone.engine.state.runs import RunReaders, written_as
    from skipstone.engine.storage import open_storage
    from skipstone.hfile_like import SortedFileWriter

    count, noise = 12_000, np.random.default_rng(0).bytes(12_000 << 10)
    keys = sorted(noise[16 * place : 16 * place + 16] for place in range(count))
    values = pa.array([noise[place << 10 : (place + 1) << 10] for place in range(count)], pa.binary())
    sink = io.BytesIO()
    with SortedFileWriter(sink, schema=pa.schema([("value", pa.binary())]), block_size=6 << 10) as writer:
        writer.write(keys, pa.record_batch({"value": values}))
        for name, data in written_as("runs/aa/large.sbf").items():
            writer.put_meta(name, data)
    run = Run("runs/aa/large.sbf", len(sink.getvalue()), count, (1, 1), keys[0].hex(), keys[-1].hex())
    with waits.far_bucket() as bucket:
        bucket.put(f"lake/{run.path}", sink.getvalue())
        for number in (0, count // 2, count - 1):
            waits.forget()
            readers = RunReaders(open_storage(LAKE))
            assert counted(bucket, lambda readers=readers: readers.reader(run)) <= 1
            reader = readers.reader(run)
            index = reader.footer.index
            assert len(sink.getvalue()) - int(index.offsets[-1] + index.lengths[-1]) > 1 << 16
            assert counted(bucket, lambda reader=reader, number=number: reader.get(keys[number])) <= 1
            assert reader.get(keys[number]) == {"value": values[number].as_py()}


def test_a_cold_row_of_included_columns(waits: ModuleType) -> None:
    """As a cold plan: no data file is read."""
    with waits.far_bucket() as bucket:
        waits.put_files(bucket, "lake", FILES, ROWS_A_FILE, ROWS_A_FILE // 3)
        table = ss.create(LAKE)
        table.create_index("id", kind="secondary", include=["n"])
        for commit in range(12):
            write_rows(table, waits.rows(1_000_000 + 100 * commit, 100))
        for number in (12_345, 1_000_555):
            where = needle(waits, number)
            waits.forget()
            assert counted(bucket, lambda where=where: ss.open(LAKE).scan(where, columns=["n"]).to_table()) <= 4
            assert ss.open(LAKE).scan(where, columns=["n"]).to_table()["n"].to_pylist() == [number]


def test_a_warm_needle(bucket: Any, waits: ModuleType) -> None:
    table = ss.open(LAKE)
    assert table.scan(needle(waits, 23_456)).to_table().num_rows == 1
    assert counted(bucket, lambda: table.scan(needle(waits, 34_567)).files()) <= 1
    assert counted(bucket, lambda: table.scan(needle(waits, 45_678)).to_table()) <= 2
    assert counted(bucket, table.refresh) <= 1


def test_a_value_that_statistics_know(bucket: Any, waits: ModuleType) -> None:
    assert waited_cold(bucket, waits, lambda: ss.open(LAKE).scan("n = 777").to_table(), 4) <= 4


def test_a_small_commit(bucket: Any, waits: ModuleType) -> None:
    """Data; what the data are; what was added since and the runs to be merged; runs; instant; hint."""
    table = ss.open(LAKE)
    write_rows(table, waits.rows(2_000_000, 100))
    firsts = (2_000_100, 2_000_200, 2_000_300)
    numbers = [counted(bucket, lambda first=first: write_rows(table, waits.rows(first, 100))) for first in firsts]
    assert min(numbers) <= 6 and max(numbers) <= 8, "a filter run that is merged, and not small, is read in three"
    assert ss.open(LAKE).scan(needle(waits, 2_000_250)).to_table()["n"].to_pylist() == [2_000_250]
    assert ss.open(LAKE).verify(deep=True) == []


def test_footers_are_read_many_at_once(bucket: Any, waits: ModuleType) -> None:
    waits.put_files(bucket, "many", 100, 10, 10)
    assert counted(bucket, lambda: ss.create("s3://far/many")) <= 18


def test_a_hint_is_never_believed(bucket: Any, waits: ModuleType) -> None:
    """The copy of an instant in the hint is only used to read early: an old, foreign, cut or changed copy gives the
    same answers."""
    table, where = ss.open(LAKE), needle(waits, 3_000_050)
    before = bucket.get("lake/.skipstone/timeline/HINT").bytes().to_bytes()
    write_rows(table, waits.rows(3_000_000, 100))
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
