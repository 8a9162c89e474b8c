"""Runs of a secondary index that are merged, joined, bound to ids or damaged say what the rows say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.base.ordered_keys import OrderedCode
from skipstone.engine.indexes.secondary.format import run_format
from skipstone.engine.indexes.secondary.key_ranges import Values, key_ranges
from skipstone.engine.indexes.secondary.reader import SecondaryReader
from skipstone.engine.indexes.secondary.sort import ValueSorter
from skipstone.engine.state import Run
from skipstone.engine.state.lsm import append, compact, write_runs
from skipstone.engine.state.run_format import LEVELS_MAX, EntryBatch, files_of
from skipstone.engine.state.runs import DamagedRun, RunReaders
from skipstone.engine.storage import Counted, open_storage
from skipstone.hfile_like import SortedFileReader
from test_secondary_runs import KINDS, Group, arrays_of, ask_all, build, reader_of, row_groups

FORM = run_format(600, 256)


def _new(groups: list[Group], names: list[str]) -> EntryBatch:
    with ValueSorter(OrderedCode([KINDS[n][0] for n in names])) as sorter:
        for number, group, first, rows in groups:
            sorter.add(number, group, first, arrays_of(rows, names))
        entries = sorter.sorted()
    assert isinstance(entries, EntryBatch)
    return entries


def _ids(reader: SortedFileReader) -> list[tuple[int, int]]:
    files = files_of(reader)
    return list(zip(files.first.tolist(), files.last.tolist(), strict=True))


@given(data=st.data())
def test_commits_and_optimize_keep_every_row(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("runs")
    storage = open_storage(folder)
    readers = RunReaders(storage)
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2))
    runs: tuple[Run, ...] = ()
    every: list[Group] = []
    paths = iter(range(1000))
    for commit in range(1, data.draw(st.integers(1, 6)) + 1):
        groups = data.draw(row_groups(names, first_file=10 * commit))
        every += groups
        new = _new(groups, names)
        runs = append(storage, readers, runs, new, commit, lambda _: f"r{next(paths)}", FORM)
        if data.draw(st.integers(0, 3)) == 0:
            gone = set(data.draw(st.lists(st.sampled_from(sorted({g[0] for g in every})), max_size=3)))
            every = [g for g in every if g[0] not in gone]
            live = np.array(sorted({g[0] for g in every}), dtype=np.uint64)
            merged = compact(storage, readers, runs, lambda _: f"r{next(paths)}", FORM, live)
            runs = runs if merged is None else merged
            assert compact(storage, readers, runs, lambda _: f"r{next(paths)}", FORM, live) is None
    live = {g[0] for g in every}
    found = _OfLive(reader_of(folder, runs, names), live)
    ask_all(data, found, every, names)  # type: ignore[arg-type]


def test_an_oldest_run_that_shrinks_is_merged_with_the_others_at_once(tmp_path: Path) -> None:
    """Else `optimize` would have more to do at once."""
    storage, form = open_storage(tmp_path), run_format(None, 256)
    readers, runs = RunReaders(storage), ()
    for segment, (file, count) in enumerate([(1, 3_000), (2, 60)], 1):
        new = _new([(file, 0, 0, [(i,) for i in range(count)]), (file + 9, 0, 0, [(7,)])], ["i"])
        runs = append(storage, readers, runs, new, segment, lambda _, at=segment: f"r{at}", form)
    assert len(runs) == 2
    live = np.array([2, 10, 11], dtype=np.uint64)
    merged = compact(storage, readers, runs, lambda number: f"merged-{number}", form, live)
    assert merged is not None and len(merged) == 1 and _ids(readers.reader(merged[0])) == [(2, 2), (10, 11)]
    assert {path.name for path in tmp_path.iterdir()} == {"r1", "r2", merged[0].path}
    assert compact(storage, readers, merged, lambda number: f"again-{number}", form, live) is None


class _OfLive:
    """A reader whose answers leave out files that went: what `optimize` dropped of them is as good as what it left."""

    def __init__(self, reader: SecondaryReader, live: set[int]):
        self._reader, self._live, self.code = reader, np.array(sorted(live), dtype=np.uint64), reader.code
        self.estimate = reader.estimate

    def positions(self, ranges: object) -> tuple[np.ndarray, ...]:
        found = self._reader.positions(ranges)  # type: ignore[arg-type]
        kept = np.isin(found.file_ids, self._live)
        return tuple(column[kept] for column in found)


@given(data=st.data())
def test_a_join_finds_what_look_ups_find(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("runs")
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2))
    first, second = data.draw(row_groups(names)), data.draw(row_groups(names, first_file=50))
    runs = build(folder, first, names, 500, 400) + build(folder, second, names, 1 << 20, None)
    twice = data.draw(st.booleans())  # two builds that met speak of the same files
    runs += build(folder, first, names, 1 << 20, None) if twice else ()
    found = reader_of(folder, runs, names)
    leading = data.draw(st.integers(1, len(names)))
    wanted = data.draw(st.lists(st.tuples(*(st.sampled_from(KINDS[n][1]) for n in names[:leading])), max_size=30))
    keys = sorted(set(found.code.encode(arrays_of(wanted, names[:leading])).to_pylist())) if wanted else []
    joined = []
    for at, positions in found.join(pa.array(keys, pa.binary()), batch_rows=3):
        assert len(at) == len(positions.rows)
        joined += list(zip(at.tolist(), *(c.tolist() for c in positions), strict=True))
    expected = []
    for number, group, start, rows in first + second:
        for i, row in enumerate(rows):
            own = found.code.encode(arrays_of([row[:leading]], names[:leading]))[0].as_py()
            if own in keys:
                expected.append((keys.index(own), number, group, start + i))
    assert sorted(joined) == sorted(expected)
    assert [at for at, *_ in joined] == sorted(at for at, *_ in joined)


def test_a_run_told_of_twice_is_counted_once(tmp_path: Path) -> None:
    groups: list[Group] = [(3, 0, 0, [(1,), (1,), (2,)]), (4, 0, 0, [(1,)])]
    runs = build(tmp_path, groups, ["i"], 1 << 20, None) + build(tmp_path, groups[:1], ["i"], 1 << 20, None)
    found = reader_of(tmp_path, runs, ["i"])
    ranges = key_ranges(found.code, [Values(pa.array([1]))])
    assert found.positions(ranges).rows.tolist() == [0, 1, 0]
    assert found.hits_of(found.found(ranges)).counts.tolist() == [2, 1]


def test_many_runs_are_asked_side_by_side_where_requests_take_long(tmp_path: Path) -> None:
    runs: tuple[Run, ...] = ()
    for file in range(9):
        runs += build(tmp_path, [(file, 0, 0, [(1,), (file,)])], ["i"], 1 << 20, None)
    storage = open_storage(tmp_path)
    storage.is_remote, storage.gap_bytes = True, 1 << 16  # as an object store's
    found = SecondaryReader(RunReaders(storage), runs, [pa.int64()])
    ranges = key_ranges(found.code, [Values(pa.array([1]))])
    assert found.estimate(ranges) >= 9
    assert found.positions(ranges).file_ids.tolist() == [0, 1, 1, *range(2, 9)]
    (tmp_path / runs[4].path).unlink()
    with pytest.raises(DamagedRun) as told:
        SecondaryReader(RunReaders(storage), runs, [pa.int64()]).positions(ranges)
    assert told.value.run == runs[4]


def test_levels_stay_few_and_large_shards_stay_as_they_are(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    readers = RunReaders(storage)
    form = run_format(20_000, 2048)
    paths = iter(range(10_000))
    runs: tuple[Run, ...] = ()
    for commit in range(1, 61):
        rows = [(commit * 1000 + i,) for i in range(500)]
        new = _new([(commit, 0, 0, rows)], ["i"])
        runs = append(storage, readers, runs, new, commit, lambda _: f"r{next(paths)}", form)
        assert len({run.segments for run in runs}) <= LEVELS_MAX
    live = np.arange(1, 61, dtype=np.uint64)
    whole = compact(storage, readers, runs, lambda _: f"r{next(paths)}", form, live)
    whole = runs if whole is None else whole
    assert len({run.segments for run in whole}) <= 2 and len(whole) > 3
    new = _new([(61, 0, 0, [(61_000 + i,) for i in range(12_000)])], ["i"])
    more = (*whole, *write_runs(storage, lambda i: f"n{i}", new, (61, 61), form))
    again = compact(storage, readers, more, lambda _: f"r{next(paths)}", form, np.append(live, 61))
    assert again is not None
    stayed = {run.path for run in whole} & {run.path for run in again}
    assert len(stayed) >= len(whole) - 2  # keys above all others touch the last shard at most
    found = SecondaryReader(RunReaders(storage), again, [pa.int64()])
    for key, file, row in ((1_000, 1, 0), (60_499, 60, 499), (61_000, 61, 0), (72_999, 61, 11_999)):
        place = found.positions(key_ranges(found.code, [Values(pa.array([key]))]))
        assert (place.file_ids.tolist(), place.rows.tolist()) == ([file], [row])


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    groups: list[Group] = [(1, 0, 0, [(i,) for i in range(400)])]
    runs = build(tmp_path, groups, ["i"], 1 << 20, None)
    path = tmp_path / runs[0].path
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(data)
    found = reader_of(tmp_path, runs, ["i"])
    ranges = key_ranges(found.code, [Values(pa.array(range(400)))])
    for ask in (found.positions, lambda _: list(found.join(found.code.encode([pa.array(range(400))])))):
        with pytest.raises(DamagedRun) as told:
            ask(ranges)
        assert told.value.run == runs[0]
    path.unlink()
    with pytest.raises(DamagedRun):
        reader_of(tmp_path, runs, ["i"]).estimate(ranges)
    # Commits leave it as it is, and merge nothing with it.
    storage = open_storage(tmp_path)
    new = _new([(2, 0, 0, [(i,) for i in range(200)])], ["i"])
    with pytest.warns(UserWarning, match="damaged"):
        after = append(storage, RunReaders(storage), runs, new, 2, lambda i: f"z{i}", FORM, leave_damaged=True)
    assert after[0] == runs[0] and {run.segments for run in after} == {(1, 1), (2, 2)}


def test_a_look_up_opens_one_shard_and_reads_one_block(tmp_path: Path) -> None:
    with ValueSorter(OrderedCode([pa.int64()])) as sorter:
        sorter.add(1, 0, 0, [pa.array(np.random.default_rng(0).permutation(200_000))])
        form = run_format(100_000, 4096)
        runs = write_runs(open_storage(tmp_path), lambda i: f"{i}", sorter.sorted(), (1, 1), form)
    assert len(runs) > 5
    storage = Counted(open_storage(tmp_path))
    found = SecondaryReader(RunReaders(storage), runs, [pa.int64()])
    ranges = key_ranges(found.code, [Values(pa.array([77_777]))])
    assert found.estimate(ranges) < 1000
    opened = storage.reading()[0]
    assert len(found.positions(ranges).rows) == 1
    assert opened <= 2 and storage.reading()[0] - opened <= 1
    before = storage.reading()[0]
    assert found.positions(key_ranges(found.code, [Values(pa.array([-1, 1 << 40]))])).rows.tolist() == []
    assert storage.reading()[0] == before  # no run has keys there
