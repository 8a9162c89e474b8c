"""Runs of a secondary index that are merged, joined, bound to ids or damaged say what the rows say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.base.ordered_keys import OrderedCode
from skipstone.engine.indexes.entry_sorting import add_part
from skipstone.engine.indexes.kind import CommitContext
from skipstone.engine.indexes.secondary.format import PLAIN, run_format
from skipstone.engine.indexes.secondary.key_ranges import Values, key_ranges
from skipstone.engine.indexes.secondary.reader import SecondaryReader
from skipstone.engine.indexes.secondary.sort import KeyPartSpec, ValueSorter, encoding_of
from skipstone.engine.indexes.task_result import AddedFiles, temporary_paths
from skipstone.engine.state import IndexState, Run
from skipstone.engine.state.lsm import append, compact, write_runs
from skipstone.engine.state.merge_policy import LEVELS_MAX
from skipstone.engine.state.run_format import EntryBatch, files_of
from skipstone.engine.state.runs import DamagedRun, RunReaders
from skipstone.engine.storage import Counted, open_storage
from skipstone.engine.tasks.spec import TaskSpec
from skipstone.engine.tasks.writer import TaskWriter
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

    def counts(self, ranges: object) -> tuple[np.ndarray, ...]:
        found = self._reader.counts(ranges)  # type: ignore[arg-type]
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


def test_a_join_by_the_first_columns_finds_every_row(tmp_path: Path) -> None:
    rows = [(f"{'x' * (i % 7)}{i % 50}", i) for i in range(3000)]
    with ValueSorter(OrderedCode([pa.string(), pa.int64()])) as sorter:
        sorter.add(1, 0, 0, [pa.array([row[i] for row in rows]) for i in range(2)])
        runs = write_runs(open_storage(tmp_path), lambda i: f"{i}", sorter.sorted(), (1, 1), run_format())
    found = SecondaryReader(RunReaders(open_storage(tmp_path)), runs, [pa.string(), pa.int64()])
    wanted = sorted({row[0] for row in rows})[::2]
    keys = found.code.encode([pa.array(wanted)]).to_pylist()
    hits = [
        (wanted[a], r)
        for at, p in found.join(pa.array(sorted(keys), pa.binary()))
        for a, r in zip(at, p.rows, strict=True)
    ]
    assert sorted(hits) == sorted((text, i) for text, i in rows if text in set(wanted))


def test_a_run_told_of_twice_is_counted_once(tmp_path: Path) -> None:
    groups: list[Group] = [(3, 0, 0, [(1,), (1,), (2,)]), (4, 0, 0, [(1,)])]
    runs = build(tmp_path, groups, ["i"], 1 << 20, None) + build(tmp_path, groups[:1], ["i"], 1 << 20, None)
    found = reader_of(tmp_path, runs, ["i"])
    ranges = key_ranges(found.code, [Values(pa.array([1]))])
    assert found.positions(ranges).rows.tolist() == [0, 1, 0]
    assert found.counts(ranges).counts.tolist() == [2, 1]


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
    assert found.positions(ranges, rows_max=10) is not None and found.positions(ranges, rows_max=9) is None
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


def test_optimize_drops_files_that_went(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    readers = RunReaders(storage)
    groups: list[Group] = [(file, 0, 0, [(i,) for i in range(20)]) for file in range(8)]
    runs = build(tmp_path, groups, ["i"], 1 << 20, None)
    live = np.arange(5, dtype=np.uint64)
    merged = compact(storage, readers, runs, lambda i: f"m{i}", FORM, live)
    assert merged is not None and sum(run.entries for run in merged) == 5 * 20
    assert [_ids(readers.reader(run)) for run in merged] == [[(0, 4)]] * len(merged)
    nothing = np.empty(0, dtype=np.uint64)
    assert compact(storage, readers, merged, lambda i: f"n{i}", FORM, nothing) == ()


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    groups: list[Group] = [(1, 0, 0, [(i,) for i in range(400)])]
    runs = build(tmp_path, groups, ["i"], 1 << 20, None)
    path = tmp_path / runs[0].path
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(data)
    found = reader_of(tmp_path, runs, ["i"])
    ranges = key_ranges(found.code, [Values(pa.array(range(400)))])
    for ask in (found.positions, found.counts, lambda _: list(found.join(found.code.encode([pa.array(range(400))])))):
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


@given(data=st.data())
def test_what_tasks_wrote_is_bound_to_ids(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("table")
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2, unique=True))
    schema = pa.schema([("p", pa.int32()), *((n, KINDS[n][0]) for n in names), ("at", pa.int64())])
    spec = TaskSpec(
        str(folder),
        str(folder / ".index"),
        "0" * 32,
        schema,
        ("p",),
        True,
        (),
        (KeyPartSpec(tuple(names), tuple(KINDS[n][0] for n in names)),),
        row_group_rows=3,
        file_rows=data.draw(st.sampled_from([4, 100])),
    )
    results, written = [], 0
    for _ in range(data.draw(st.integers(1, 3))):
        values = st.tuples(*(st.sampled_from(KINDS[n][1]) for n in names))
        rows = data.draw(st.lists(values, max_size=14))
        parts = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
        at = pa.array(range(written, written + len(rows)), pa.int64())
        written += len(rows)
        with TaskWriter(spec) as task:
            task.write(pa.table([pa.array(parts, pa.int32()), *arrays_of(rows, names), at], schema=schema))
        results += task.result
    total = sum(r.files.num_rows for r in results)
    ids = data.draw(st.permutations([(i % 3) << 32 | i for i in range(total)]))
    bound, start = [], 0
    for result in results:
        bound.append(np.array(ids[start : start + result.files.num_rows], dtype=np.uint64))
        start += result.files.num_rows
    index_storage = open_storage(folder / ".index")
    kinds = [KINDS[n][0] for n in names]
    columns = {name: number for number, name in enumerate(names, 1)}
    index = IndexState(1, "secondary", tuple(columns.values()), {}, "commit")
    added = [AddedFiles(result, own, own) for result, own in zip(results, bound, strict=True)]
    work = CommitContext(None, SimpleNamespace(ids=columns), results, added, None, None)  # type: ignore[arg-type]
    assert work.parts_of(index, encoding_of([pa.date32()] * len(names))) is None
    found = work.parts_of(index, encoding_of(kinds))
    assert (found is not None) == bool(results)
    if found is None:
        return
    parts, left_out = found
    assert left_out == []

    def of_files(keys: pa.BinaryArray, ids_of: Callable) -> pa.BinaryArray:
        return PLAIN.of_files(keys, ids_of(PLAIN.file_ids(keys)))

    with ValueSorter(OrderedCode(kinds), data.draw(st.sampled_from([300, 1 << 20])), str(folder)) as sorter:
        for part, own in parts:
            add_part(sorter, index_storage, part, own, of_files)
        runs = append(index_storage, RunReaders(index_storage), (), sorter.sorted(), 1, lambda i: f"r{i}", FORM)
    groups = []
    for result, own in zip(results, bound, strict=True):
        for path, number in zip(result.files.column("path").to_pylist(), own.tolist(), strict=True):
            with pq.ParquetFile(folder / path) as file:
                first = 0
                for group in range(file.metadata.num_row_groups):
                    read = file.read_row_group(group, columns=names)
                    rows = list(zip(*(read.column(n).to_pylist() for n in names), strict=True))
                    groups.append((number, group, first, rows))
                    first += len(rows)
    ask_all(data, reader_of(folder / ".index", runs, names), groups, names)
    assert all((folder / ".index" / path).exists() for path in temporary_paths(results))


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
