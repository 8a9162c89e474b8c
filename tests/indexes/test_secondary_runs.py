"""The runs of the secondary index hold what a group-by of the rows would, however they came about."""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.base.ordered_keys import OrderedCode
from skipstone.engine.indexes.secondary.format import (
    PLAIN,
    GroupValues,
    delta_coded,
    encode_entries,
    positions_of,
    run_format,
)
from skipstone.engine.indexes.secondary.key_ranges import Interval, Prefix, Values, key_ranges
from skipstone.engine.indexes.secondary.reader import SecondaryReader
from skipstone.engine.indexes.secondary.sort import ValueSorter
from skipstone.engine.state import Run, lsm
from skipstone.engine.state.lsm import write_runs
from skipstone.engine.state.run_format import files_of
from skipstone.engine.state.runs import RunReaders
from skipstone.engine.storage import open_storage, write_buffer
from skipstone.engine.storage.write_buffer import WriteBuffer
from skipstone.errors import CorruptionError, StorageError
from skipstone.hfile_like import SortedFileReader

KINDS = {
    "i": (pa.int64(), [None, -3, 0, 1, 2, 1 << 40]),
    "s": (pa.string(), [None, "", "a", "a\x00", "ab", "b", "\x01"]),
    "f": (pa.float64(), [None, -1.5, -0.0, 0.0, math.inf, math.nan]),
}
Group = tuple[int, int, int, list[tuple]]  # file id, row group, its first row, the values of its rows


@st.composite
def row_groups(draw: st.DrawFn, names: list[str], first_file: int = 0) -> list[Group]:
    found = []
    for file in range(first_file, first_file + draw(st.integers(1, 4))):
        row = 0
        number = draw(st.sampled_from([0, 1, 7])) << 32 | file
        for group in range(draw(st.integers(1, 3))):
            count = draw(st.integers(0, 12))
            values = st.tuples(*(st.sampled_from(KINDS[name][1]) for name in names))
            found.append((number, group, row, draw(st.lists(values, min_size=count, max_size=count))))
            row += count
    return found


def arrays_of(rows: list[tuple], names: list[str]) -> list[pa.Array]:
    return [pa.array([row[i] for row in rows], KINDS[name][0]) for i, name in enumerate(names)]


def same(one: object, other: object) -> bool:
    return one is other or one == other or (one != one and other != other)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as found:
        yield Path(found)


def build(
    folder: Path, groups: list[Group], names: list[str], memory: int, shard_bytes: int | None, in_threads: bool = False
) -> tuple[Run, ...]:
    name = f"{len(list(folder.iterdir()))}"
    (folder / name).mkdir()
    with ValueSorter(OrderedCode([KINDS[n][0] for n in names]), memory, str(folder)) as sorter:
        for number, group, first, rows in groups:
            sorter.add(number, group, first, arrays_of(rows, names))
        form = run_format(shard_bytes, 256)
        storage = WriteBuffer(open_storage(folder))
        with pytest.MonkeyPatch.context() as patch:
            if in_threads:  # shards are merged side by side, and each put makes room for the next
                patch.setattr(lsm, "_ENTRIES_OF_A_THREAD", 0)
                patch.setattr(write_buffer, "GATHERED_BYTES_MAX", 500)
            runs = write_runs(storage, lambda i: f"{name}/{i}", sorter.sorted(), (1, 1), form)
        storage.flush()
        return runs


def reader_of(folder: Path, runs: tuple[Run, ...], names: list[str]) -> SecondaryReader:
    return SecondaryReader(RunReaders(open_storage(folder)), runs, [KINDS[n][0] for n in names])


def check(found: SecondaryReader, groups: list[Group], asked: list, wanted: object) -> None:
    """`asked`: the parts; `wanted(row)`: what they say."""
    expected, counts = [], defaultdict(int)
    for number, group, first, rows in groups:
        for i, row in enumerate(rows):
            if wanted(row):
                expected.append((number, group, first + i))
                counts[number, group] += 1
    ranges = key_ranges(found.code, asked)
    places = found.positions(ranges)
    assert list(zip(*(c.tolist() for c in places), strict=True)) == sorted(expected, key=lambda p: (p[0], p[2]))
    told: dict[tuple[int, int], int] = defaultdict(int)
    for file, group in zip(places[0].tolist(), places[1].tolist(), strict=True):
        told[file, group] += 1
    assert told == counts
    assert (found.estimate(ranges) > 0) >= bool(expected)


@given(data=st.data())
def test_runs_answer_as_the_rows_do(data: st.DataObject, folder: Path) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2))
    groups = data.draw(row_groups(names))
    memory, shard = data.draw(st.sampled_from([(1, 1), (500, 400), (1 << 20, None)]))
    found = reader_of(folder, build(folder, groups, names, memory, shard, data.draw(st.booleans())), names)
    ask_all(data, found, groups, names)


def ask_all(data: st.DataObject, found: SecondaryReader, groups: list[Group], names: list[str]) -> None:
    (kind, values), last = KINDS[names[0]], len(names) - 1
    some = [data.draw(st.lists(st.sampled_from(KINDS[n][1]), max_size=3)) for n in names]
    parts = [Values(pa.array(v, KINDS[n][0])) for v, n in zip(some, names, strict=True)]
    check(found, groups, parts, lambda row: all(any(same(v, w) for w in s) for v, s in zip(row, some, strict=True)))
    check(found, groups, parts[:1], lambda row: any(same(row[0], w) for w in some[0]))
    kind, values = KINDS[names[last]]
    low, high = (data.draw(st.sampled_from(values)) for _ in range(2))
    opens = data.draw(st.tuples(st.booleans(), st.booleans()))
    bounds = [None if v is None else pa.scalar(v, kind) for v in (low, high)]

    def within(row: tuple) -> bool:
        if row[last] is None or not all(any(same(v, w) for w in s) for v, s in zip(row[:last], some, strict=False)):
            return False
        ranks = [math.nan if v is None else rank(v) for v in (row[last], low, high)]
        above = low is None or ranks[0] > ranks[1] or (ranks[0] == ranks[1] and not opens[0])
        return above and (high is None or ranks[0] < ranks[2] or (ranks[0] == ranks[2] and not opens[1]))

    ordered = sorted([v for v in values if v is not None and v == v])

    def rank(value: object) -> float:
        return len(ordered) if value != value else ordered.index(value)

    check(found, groups, [*parts[:last], Interval(*bounds, *opens)], within)
    if names[last] == "s":
        text = data.draw(st.sampled_from(["", "a", "a\x00", "\x01", "zz"]))
        starts = [*parts[:last], Prefix(text.encode())]
        check(
            found,
            groups,
            starts,
            lambda row: (
                row[last] is not None
                and row[last].startswith(text)
                and all(any(same(v, w) for w in s) for v, s in zip(row[:last], some, strict=False))
            ),
        )


@given(data=st.data())
def test_a_run_lists_the_files_of_its_entries(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2))
    groups = data.draw(row_groups(names))
    memory, shard = data.draw(st.sampled_from([(1, 1), (500, 400), (1 << 20, None)]))
    every = np.unique(np.array([number for number, *_, rows in groups if rows], dtype=np.uint64))
    with tempfile.TemporaryDirectory() as folder:
        for run in build(Path(folder), groups, names, memory, shard):
            with SortedFileReader(Path(folder, run.path)) as reader:
                ids = PLAIN.file_ids(reader.scan_table()["key"].combine_chunks())
                listed = files_of(reader)
                assert listed.contains(ids).all() and listed.count == listed.contains(every).sum()


@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_entries_of_dropped_files_are_left_out(tmp_path: Path, memory: int) -> None:
    with ValueSorter(OrderedCode([pa.int64()]), memory, str(tmp_path)) as sorter:
        for file in range(4):
            sorter.add(file, 0, 0, [pa.array(range(100))])
        storage = open_storage(tmp_path)
        runs = write_runs(storage, lambda i: f"r{i}", sorter.sorted({1, 3}), (1, 1), run_format())
    assert [path.name for path in tmp_path.iterdir()] == ["r0"]
    found = reader_of(tmp_path, runs, ["i"])
    ranges = key_ranges(found.code, [Values(pa.array([7]))])
    assert found.positions(ranges).file_ids.tolist() == [0, 2] and runs[0].entries == 200


def test_no_room_to_sort_in_is_said(tmp_path: Path) -> None:
    with ValueSorter(OrderedCode([pa.int64()]), 1, str(tmp_path / "gone")) as sorter:
        sorter.add(1, 0, 0, [pa.array([1, 2])])
        with pytest.raises(StorageError, match="TMPDIR"):
            sorter.add(1, 1, 2, [pa.array([3])])


@given(rows=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=30, unique=True))
def test_positions_come_back_from_their_distances(rows: list[int]) -> None:
    rows.sort()
    values = OrderedCode([pa.bool_()]).encode([pa.array([True] * len(rows))])
    entry = encode_entries([GroupValues(1, 0, 5, values).with_places(PLAIN)])
    found = positions_of(*(np.asarray(entry.values.column(i)) for i in (0, 1)), entry.values.column(2).combine_chunks())
    assert found.tolist() == list(range(5, 5 + len(rows)))
    # Distances of any width, as rows that lie far apart have.
    marks = np.zeros(len(rows), dtype=bool)
    marks[1:] = True
    more = delta_coded(np.array(rows), marks, np.array([len(rows)]))
    assert positions_of(np.array(rows[:1]), np.array([len(rows)]), more).tolist() == rows
    with pytest.raises(CorruptionError):
        positions_of(np.array(rows[:1]), np.array([len(rows) + 1]), more)
