"""Merging filter runs: a look-up reads a bounded number of bytes, members keep their values, and sizes do not grow."""

from __future__ import annotations

import datetime as dt
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from power_cut_disk import without_flushes
from skipstone import col
from skipstone.bloom import SplitBlockFilter, shared_blocks, solve_blocks
from skipstone.engine.indexes.bloom import coarse_groups as coarse
from skipstone.engine.indexes.bloom import format as filters
from skipstone.engine.indexes.bloom import merge as filter_joining
from skipstone.engine.indexes.bloom import task_filters
from skipstone.engine.indexes.bloom.coarse_groups import WHOLE_FILE
from skipstone.engine.indexes.bloom.file_filter import FileFilter
from skipstone.engine.indexes.bloom.format import FilterRun, FilterRunWriter
from skipstone.engine.indexes.bloom.merge import OpenRun, appended_filters, join_runs, merged_all
from skipstone.engine.state import Run
from skipstone.engine.state.run_format import RATIO
from skipstone.engine.state.runs import RunReaders
from skipstone.engine.storage import Counted, LocalStorage
from skipstone.hfile_like import RowTable

SCHEMA = pa.schema([("k", pa.int64())])
FINE = (RowTable("fine", 8, 1, 32),)
File = tuple[int, "np.ndarray | None"]  # its number, and its hashes; None: it has no filter over it


def _hashes(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 64, count, dtype=np.uint64)


def _blocks(count: int) -> int:
    return shared_blocks(solve_blocks(count, 0.01))


def _filter(hashes: np.ndarray) -> SplitBlockFilter:
    return SplitBlockFilter.build_from_hashes(hashes, _blocks(len(hashes)), "int")


def _written(
    storage: Counted, name: str, files: Sequence[File], hash_name: str = "int", *, by_row_group: bool = False
) -> Run:
    """The filters of row groups are apart, with one over the file. With `by_row_group`, those of odd files are members:
    all of the hashes are in the second of two row groups."""
    with FilterRunWriter(storage, f"{name}.sbf") as writer:
        for file, hashes in files:
            members = [] if hashes is None else [(WHOLE_FILE, _filter(hashes).words)]
            if by_row_group and file % 2 and hashes is not None:
                members = [(0, np.zeros((1, 8), np.uint32)), (1, _filter(hashes).words)]
            fine = None if len(members) > 1 else FileFilter(FINE, hash_name)
            writer.add_file(file, f"tasks/{file}.sbf", fine, members, hash_name)
        return writer.finish((1, 1))


def _appended(storage: Counted, runs: tuple[Run, ...], path_of: Callable[[], str]) -> tuple[Run, ...]:
    """The runs, of which the last is what a commit brings."""
    return appended_filters(storage, runs[:-1], [OpenRun.of(storage, runs[-1])], runs[-1].segments[1], path_of)


def _paths() -> Iterator[str]:
    return (f"merged-{number}.sbf" for number in range(1_000_000))


EVERY = np.arange(20_000, dtype=np.uint64)


def _found(storage: Counted, runs: Sequence[Run], hashes: np.ndarray, hash_name: str = "int") -> set[int]:
    """The files in which some hash may be, by any run."""
    readers = RunReaders(storage)
    return {
        file for run in runs for file in _found_with(readers, run, lambda name: hashes if name == hash_name else None)
    }


def _found_with(readers: RunReaders, run: Run, hashes_under: Callable) -> set[int]:
    opened = FilterRun(readers, run)
    own = EVERY[opened.coarse.files.contains(EVERY)]
    return set(own[opened.may_contain([hashes_under], own)[0]].tolist())


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Counted]:
    with without_flushes():
        yield Counted(LocalStorage(tmp_path))


# -- joining ----------------------------------------------------------------------------------------------------------


def test_rule_31_members_of_unlike_sizes_are_not_stretched_by_merging_again_and_again(storage: Counted) -> None:
    chance = random.Random(4)
    paths, runs, own_bytes = _paths(), (), 0
    for step in range(40):
        hashes = _hashes(step, chance.choice([3, 30, 300, 3_000, 30_000]))
        own_bytes += _filter(hashes).words.nbytes
        runs = (*runs, _written(storage, f"run-{step}", [(step, hashes)]))
        runs = (join_runs(storage, [OpenRun.of(storage, run) for run in runs], next(paths), (1, 1)),)
    (whole,) = runs
    opened = OpenRun.of(storage, whole)
    assert opened.coarse.members == opened.coarse.files.count == 40
    # 36 bytes are stored for 32 of a group of one member; a group is at most 9/8 of what its members need.
    assert opened.coarse_bytes <= 9 / 8 * own_bytes * 36 / 32
    misses = sum(len(_found(storage, runs, _hashes(1_000 + i, 1))) for i in range(200))
    # At 1%, 80 expected of 8,000; more than 130 by chance less than once in a million.
    assert misses <= 130


def test_what_was_repeated_is_left_out_again(storage: Counted) -> None:
    large, small = _hashes(1, 2_000), _hashes(2, 1_000)
    assert _blocks(2_000) == 2 * _blocks(1_000)
    every = [(1, large), *((number, _hashes(number, 2_000)) for number in range(3, 9)), (2, small)]
    both = _written(storage, "both", every)
    opened = OpenRun.of(storage, both)
    assert len(opened.coarse.hashes) == 1, "near in size: one group, in which the smaller is repeated"
    alone = join_runs(storage, [opened], "alone.sbf", (1, 1), np.array([2], dtype=np.uint64))
    assert alone is not None
    assert OpenRun.of(storage, alone).coarse_bytes == 36 * _blocks(1_000)
    assert _found(storage, [alone], small[:1]) == {2}
    assert join_runs(storage, [opened], "none.sbf", (1, 1), np.array([700], dtype=np.uint64)) is None
    assert not (Path(storage.root) / "none.sbf").exists()


def test_rule_31_the_rate_of_members_is_recorded_and_kept_by_merging(storage: Counted) -> None:
    rates = []
    for number, count in enumerate((900, 5_000)):
        words = SplitBlockFilter.build_from_hashes(_hashes(number, count), 16, "int").words
        with FilterRunWriter(storage, f"{number}.sbf") as writer:
            writer.add_file(number, None, None, [(0, words)], "int")
            writer.finish((1, 1))
        rates.append(SplitBlockFilter(words, "int").fpp)
    runs = [Run(f"{n}.sbf", (Path(storage.root) / f"{n}.sbf").stat().st_size, 2, (1, 1)) for n in range(2)]
    opened = [OpenRun.of(storage, run) for run in runs]
    assert [one.coarse.fpps for one in opened] == [[pytest.approx(rate)] for rate in rates]
    merged = join_runs(storage, opened, "merged.sbf", (1, 1))
    assert merged is not None and OpenRun.of(storage, merged).coarse.fpps == [pytest.approx(max(rates))]


def test_runs_stay_if_one_is_damaged(storage: Counted) -> None:
    runs = tuple(_written(storage, f"run-{i}", [(i, _hashes(i, 3_000))]) for i in range(4))
    paths = _paths()
    for number, at in ((1, 100), (3, -30)):  # a row of a group; the footer
        path = Path(storage.root) / runs[number].path
        sound = path.read_bytes()
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at:][1:])
        files = {entry.name for entry in path.parent.iterdir()}
        with pytest.warns(UserWarning, match="damaged and left out"):
            assert merged_all(storage, runs, lambda: next(paths)) == runs
        assert {entry.name for entry in path.parent.iterdir()} == files
        new = _written(storage, f"new-{number}", [(9, _hashes(9, 3_000))])
        with pytest.warns(UserWarning, match="damaged and left out"):
            after = _appended(storage, (*runs, new), lambda: next(paths))
        assert after[: number + 1] == runs[: number + 1] and 9 in _found(storage, after[-1:], _hashes(9, 1))
        path.write_bytes(sound)


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_joining_takes_little_memory_whatever_the_size(storage: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = _hashes(1, 90_000)
    runs = [_written(storage, f"run-{i}", [(10 * i + j, hashes) for j in range(10)]) for i in range(6)]
    opened = [OpenRun.of(storage, run) for run in runs]
    assert sum(one.coarse_bytes for one in opened) > 7e6
    monkeypatch.setattr(filter_joining, "CHUNK_BYTES", 1 << 18)
    tracemalloc.start()
    merged = join_runs(storage, opened, "merged.sbf", (1, 1))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert merged is not None and len(OpenRun.of(storage, merged).coarse.hashes) == 1
    assert peak_bytes < 2e6, "rows that are read, the same to be written, with checksums"


class _Far(LocalStorage):
    """A folder whose every read is a request, as in an object store."""

    is_remote = True
    gap_bytes = 256 * 1024


def _requests(storage: Counted, run: Run, hashes: np.ndarray, readers: RunReaders) -> tuple[int, int, set[int]]:
    before = storage.reading()
    found = _found_with(readers, run, lambda _: hashes)
    after = storage.reading()
    return after[0] - before[0], after[1] - before[1], found


def test_a_value_costs_a_run_of_many_files_three_requests_and_a_hit_one_more(tmp_path: Path) -> None:
    storage, files = Counted(_Far(tmp_path)), 5_000
    with without_flushes():
        held = [(i, _hashes(i, 3)) for i in range(files)]  # hardly any false hits
        small = [_written(storage, f"run-{i}", held[i * 1000 : (i + 1) * 1000]) for i in range(5)]
        run = join_runs(storage, [OpenRun.of(storage, one) for one in small], "merged.sbf", (1, 1))
    assert run is not None
    row_bytes = 32 * files + 4
    absent = [key for key in _hashes(99_999, 6) if not _found(storage, [run], np.array([key]))][:5]
    assert len(absent) == 5
    readers = RunReaders(storage)
    requests, size_bytes, _ = _requests(storage, run, np.array(absent[:1]), readers)
    assert requests <= 3 and size_bytes <= row_bytes + 66_000, "a look at the file, its tail, one row"
    assert _requests(storage, run, np.array(absent[1:2]), readers)[:2] == (1, row_bytes)
    requests, size_bytes, found = _requests(storage, run, held[77][1][:1], readers)
    assert 77 in found and requests <= 2 and size_bytes <= row_bytes + 300_000


def test_many_values_are_read_in_few_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Counted(_Far(tmp_path))
    with without_flushes():
        run = _written(storage, "run", [(i, _hashes(i, 100_000)) for i in range(30)])  # rows of 960 bytes
    readers = RunReaders(storage)
    FilterRun(readers, run)
    many = _hashes(5, 1_000)[:1_000]
    requests, size_bytes, found = _requests(storage, run, many, readers)
    assert (requests, found >= {5}) == (1, True) and size_bytes <= run.size_bytes, "the whole group is cheaper"
    monkeypatch.setattr(coarse, "BATCH_BYTES", 1 << 20)
    in_pieces, _, again = _requests(storage, run, many, readers)
    assert again == found and in_pieces <= 6
    for module, name in ((filters, "REQUEST_BYTES_REMOTE"), (_Far, "gap_bytes")):
        monkeypatch.setattr(module, name, 1 << 10)
    few = _requests(storage, run, many[:3], readers)
    assert few[:2] == (3, 3 * 964)


# -- the public face --------------------------------------------------------------------------------------------------


def _empty(root: Path) -> ss.Table:
    table = ss.create(root, schema=SCHEMA)
    table.create_index("k", kind="bloom", fpp=0.0001)
    return table


def _keys(commit: int, count: int = 60) -> np.ndarray:
    return np.random.default_rng([3, commit]).integers(0, 1 << 60, count)


def _commit(table: ss.Table, commit: int) -> None:
    with table.transaction() as tx:
        tx.write(pa.table({"k": _keys(commit)}, schema=SCHEMA))


def _runs(table: ss.Table) -> tuple[Run, ...]:
    return next(index for index in table.handle.instant.indexes if index.kind == "bloom").runs


def _key(commit: int) -> object:
    return col("k") == int(_keys(commit)[commit % 60])


def _filter_step(table: ss.Table, where: object) -> tuple[int, int]:
    """(requests, bytes) of asking the filters."""
    plan = table.scan(where)
    plan.files()
    step = next(step for step in plan.steps if step.name == "filter")
    return step.requests, step.bytes_read


def test_a_look_up_after_many_commits_costs_a_handful_of_requests(tmp_path: Path) -> None:
    """5 requests per run if nothing is known, 2 afterwards; runs are bounded, and one is left by optimize."""
    count = examples(24)
    with without_flushes():
        table = _empty(tmp_path)
        for commit in range(count):
            _commit(table, commit)
            assert len(_runs(table)) <= np.log(2 * (commit + 1)) / np.log(RATIO) + 1
        for _ in range(2):
            runs = len(_runs(table))
            table.handle.forget()
            with ss.open(tmp_path) as fresh:
                cold, cold_bytes = _filter_step(fresh, _key(3))
                assert cold <= 5 * runs and cold_bytes <= runs * (3 << 16)
                assert _filter_step(fresh, _key(count // 2))[0] <= 2 * runs
                for commit in range(0, count, 7):
                    assert fresh.scan(_key(commit)).count() == 1
                two = [int(_keys(commit)[7]) for commit in (1, count - 2)]
                assert fresh.scan(col("k").is_in(two)).count() == 2, "one in each of two files"
            table.optimize()
        assert len(_runs(table)) == 1 and runs == 1
        version = table.version
        assert table.optimize() == version


def test_a_run_that_holds_fine_filters_is_merged_and_its_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of many row groups has fine filters, which stay where they are; a clean does not remove them."""
    monkeypatch.setattr(task_filters, "has_file_level", lambda row_groups, fpp: row_groups > 1)
    with without_flushes():
        pq.write_table(pa.table({"k": _keys(0)}), tmp_path / "a.parquet", row_group_size=15)
        table = ss.create(tmp_path)
        table.create_index("k", kind="bloom")
        built = _runs(table)
        for commit in range(1, 20):
            _commit(table, commit)
        table.optimize()
        assert len(_runs(table)) == 1 and _runs(table)[0] != built[0]
        table.clean(retain_versions=1, min_age=dt.timedelta(0))
    table.handle.forget()
    with ss.open(tmp_path, strict=True) as fresh:
        assert fresh.verify(deep=True) == []
        assert all(fresh.scan(_key(commit)).to_table().num_rows == 1 for commit in range(20))
        assert fresh.scan(_key(0)).row_groups().num_rows == 1


# -- kept in memory ---------------------------------------------------------------------------------------------------


def _used(table: ss.Table) -> int:
    return ss.cache_info().by_root.get(table.handle.index_storage.uri, 0)


def test_with_a_cache_a_value_costs_no_request(tmp_path: Path) -> None:
    with without_flushes():
        table = _empty(tmp_path)
        for commit in range(10):
            _commit(table, commit)
    table.handle.forget()
    with ss.open(tmp_path) as plain, ss.open(tmp_path, cache="coarse") as kept:
        assert _filter_step(plain, _key(0))[0] > 0 and _filter_step(plain, _key(2))[0] > 0
        without = _used(plain)
        assert _filter_step(kept, _key(1))[0] > 0
        assert _used(kept) > without
        for commit in (1, 5, 7):
            assert _filter_step(kept, _key(commit)) == (0, 0)
            assert kept.scan(_key(commit)).files().num_rows == plain.scan(_key(commit)).files().num_rows == 1
        assert _filter_step(plain, _key(2))[0] > 0
        with ss.open(tmp_path, cache="coarse") as other:  # what the process keeps serves the next handle
            assert _filter_step(other, _key(0))[1] == 0  # its files are looked at
        kept.handle.forget()
        assert _used(kept) == 0


@pytest.mark.parametrize("odd", ["all", True])
def test_odd_caches_are_refused(tmp_path: Path, odd: object) -> None:
    _empty(tmp_path)
    with pytest.raises(ss.InvalidArgumentError, match="cache"):
        ss.open(tmp_path, cache=odd)
