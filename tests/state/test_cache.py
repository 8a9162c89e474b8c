"""The one cache of the process: bounded by a budget in bytes, and never a part of an answer."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples, few_of
from hypothesis import given, settings
from hypothesis import strategies as st
from power_cut_disk import without_flushes
from skipstone.engine.state import cache
from skipstone.engine.state.cache import IDLE_QUESTIONS, Cache

pytestmark = pytest.mark.usefixtures("at_any_place")

COMMITS, ROWS = 6, 40


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    before = ss.cache_info().budget_bytes
    ss.set_cache_budget(0)
    ss.set_cache_budget(before)
    yield
    ss.set_cache_budget(before)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ss.Table]:
    """Copies of lakes, opened."""
    origins = [_lake(tmp_path_factory.mktemp("origin"), add).location for add in (0, 1)]
    return lambda path, add=0: ss.open(shutil.copytree(origins[add], path, dirs_exist_ok=True))


def _lake(path: Path, add: int = 0) -> ss.Table:
    """Row i of all is {id: i, s: "k" and i + add}; an index of each kind."""
    with without_flushes():
        table = ss.create(path, schema=pa.schema([("id", pa.int64()), ("s", pa.string())]))
        table.create_index("id", kind="secondary")
        table.create_index("s", kind="bloom")
        for commit in range(COMMITS):
            with table.transaction() as tx:
                ids = range(commit, COMMITS * ROWS, COMMITS)
                tx.write(pa.table({"id": ids, "s": [f"k{i + add}" for i in ids]}))
    return table


def _check(table: ss.Table, add: int = 0) -> None:
    for i in (0, 7, COMMITS * ROWS - 1):
        rows = [{"id": i, "s": f"k{i + add}"}]
        assert table.scan(f"id = {i}").to_table().to_pylist() == rows
        assert table.scan(f"s = 'k{i + add}'").to_table().to_pylist() == rows
    assert table.scan("id < 10 AND s > 'k'").count() == 10
    assert table.files().num_rows == COMMITS


def _check_sums() -> ss.CacheInfo:
    info = ss.cache_info()
    assert sum(info.by_root.values()) == info.used_bytes <= info.budget_bytes
    assert (info.entries == 0) == (info.used_bytes == 0)
    return info


def test_answers_are_the_same_under_any_budget(tmp_path: Path, lake: Callable) -> None:
    lake(tmp_path)
    for budget_bytes in few_of((0, 500, 5_000, 10_000, 0, 1 << 20), 3):
        ss.set_cache_budget(budget_bytes)
        for options in ({}, {"cache": "coarse"}):
            with ss.open(tmp_path, **options) as table:
                _check(table)
                _check(table)
                assert _check_sums().budget_bytes == budget_bytes
    assert ss.cache_info().used_bytes > 10_000


def test_threads_share_a_small_budget(tmp_path: Path, lake: Callable) -> None:
    lakes = [lake(tmp_path / "a"), lake(tmp_path / "b", add=1)]
    ss.set_cache_budget(20_000)
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait(60)
        for _ in range(examples(1)):
            with ss.open(lakes[number % 2].location, cache="coarse" if number < 2 else None) as own:
                _check(own, number % 2)
            _check(lakes[number % 2], number % 2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    _check_sums()


def test_a_table_that_was_created_again_reads_nothing_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if all its names are the same."""
    for name, add in (("old", 0), ("new", 1)):
        numbers = iter(range(10_000))
        monkeypatch.setattr(uuid, "uuid4", lambda numbers=numbers: uuid.UUID(int=next(numbers) << 96))
        _lake(tmp_path / name / "lake", add)
    names = [sorted(p.name for p in (tmp_path / n).rglob("runs/**/*.sbf")) for n in ("old", "new")]
    assert names[0] == names[1] and len(names[0]) > COMMITS
    shutil.move(tmp_path / "old" / "lake", tmp_path / "lake")
    _check(ss.open(tmp_path / "lake"))
    assert _check_sums().used_bytes > 0
    shutil.rmtree(tmp_path / "lake")
    shutil.move(tmp_path / "new" / "lake", tmp_path / "lake")
    _check(ss.open(tmp_path / "lake"), add=1)


def test_what_one_handle_read_serves_the_next(tmp_path: Path, lake: Callable) -> None:
    lake(tmp_path)
    ss.set_cache_budget(0)
    ss.set_cache_budget(1 << 20)
    bytes_read, misses = [], []
    for _ in range(2):
        before = ss.cache_info()
        with ss.open(tmp_path, on_stale="ignore") as table:
            read = table.handle.index_storage.reading().bytes_read
            _check(table)
            bytes_read.append(table.handle.index_storage.reading().bytes_read - read)
        after = _check_sums()
        misses.append(after.misses - before.misses)
        assert after.hits > before.hits
    assert bytes_read[1] < bytes_read[0] / 2 and misses[1] < misses[0] / 2


_STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 7), st.integers(0, 1500)),
    st.tuples(st.just("get"), st.integers(0, 7), st.just(0)),
    st.tuples(st.just("load"), st.integers(0, 7), st.integers(0, 1500)),
    st.tuples(st.just("question"), st.just(0), st.integers(1, 2 * IDLE_QUESTIONS)),
    st.tuples(st.just("forget"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("budget"), st.just(0), st.sampled_from([0, 400, 1000, 3000, 9000])),
)


class _Model:
    """A cache as a list of [name, thing, bytes, last question], least recently used first."""

    def __init__(self) -> None:
        self.held: list[list] = []
        self.budget, self.question = 3000, 0

    def used(self) -> int:
        return sum(size for _, _, size, _ in self.held)

    def get(self, name: int) -> object:
        for at, held in enumerate(self.held):
            if held[0] == name:
                held[3] = self.question
                self.held.append(self.held.pop(at))
                return held[1]
        return None

    def put(self, name: int, thing: object, size: int) -> object:
        found = next((held[1] for held in self.held if held[0] == name), None)
        if found is None and size <= self.budget:
            self.held.append([name, thing, size, self.question])
            self.shrink()
        return thing if found is None else found

    def load(self, name: int, thing: object, size: int) -> object:
        found = self.get(name)
        if found is not None:
            return found
        idle = 0  # how many of the least recently used are evicted
        while self.used() - sum(held[2] for held in self.held[:idle]) + size > self.budget:
            if idle == len(self.held) or self.question - self.held[idle][3] <= IDLE_QUESTIONS:
                return None
            idle += 1
        self.held = self.held[idle:]
        return self.put(name, thing, size)

    def shrink(self) -> None:
        while self.used() > self.budget:
            self.held.pop(0)


@settings(max_examples=examples(20))
@given(steps=st.lists(_STEPS, max_size=40))
def test_a_cache_does_what_a_list_does(steps: list[tuple[str, int, int]]) -> None:
    mine, model = Cache(3000), _Model()
    for number, (step, name, size) in enumerate(steps):
        key, thing = ((f"root {name % 3}", name), "thing"), f"thing {number}"
        whole = size + cache._ENTRY_BYTES
        if step == "put":
            assert mine.put(key, thing, size) == model.put(name, thing, whole)
        elif step == "get":
            assert mine.get(key) == model.get(name)
        elif step == "load":
            assert mine.load_if_room(key, size, lambda thing=thing: thing) == model.load(name, thing, whole)
        elif step == "question":
            model.question += size
            for _ in range(size):
                mine.begin_query()
        elif step == "forget":
            mine.forget(lambda run, name=name: run[0] == f"root {name}")
            model.held = [held for held in model.held if held[0] % 3 != name]
        else:
            mine.set_budget(size)
            model.budget = size
            model.shrink()
        assert [key[0][1] for key in mine._entries] == [held[0] for held in model.held]
        info = mine.info()
        assert info.used_bytes == model.used() == sum(info.by_root.values()) and info.entries == len(model.held)


def test_room_is_reserved_for_what_is_being_loaded_and_it_is_loaded_once() -> None:
    mine = Cache(3000)

    def load() -> str:
        assert mine.load_if_room((("r",), 1), 2000, lambda: "again") is None  # it is being loaded
        assert mine.load_if_room((("r",), 2), 2000, lambda: "other") is None  # no room next to it
        return "first"

    assert mine.load_if_room((("r",), 1), 2000, load) == "first"
    with pytest.raises(OSError, match="gone"):
        mine.load_if_room((("r",), 3), 100, _fail)
    assert mine.load_if_room((("r",), 3), 100, lambda: "third") == "third"
    assert mine.info().entries == 2


def _fail() -> str:
    raise OSError("gone")
