"""Statistics cut into shards by key range and into blocks with summaries: a look-up reads its own part and no other."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.engine.indexes.stats import format as stats
from skipstone.engine.scan import prune
from skipstone.engine.state import Run
from skipstone.engine.state import lsm as writing
from skipstone.engine.state.runs import RunReaders
from skipstone.engine.storage import local

WIDE = [f"c{number:02}" for number in range(100)]
FILES = 1000


def _declared(names: list[str], **bounds: tuple) -> pa.Table:
    """Files that are only declared, with (minima, maxima) of columns, or with counts of nulls too."""
    count = len(names)
    nothing = np.zeros(count, dtype=np.int64)
    parts = [
        pa.StructArray.from_arrays([*map(pa.array, (*one, nothing)[:3])], ["min", "max", "null_count"])
        for one in bounds.values()
    ]
    return pa.table(
        {
            "path": names,
            "size_bytes": np.full(count, 10),
            "row_count": np.full(count, 10),
            "stats": pa.StructArray.from_arrays(parts, list(bounds)),
        }
    )


def _add(table: ss.Table, names: list[str], **bounds: tuple) -> None:
    with table.transaction() as tx:
        tx.add_files(_declared(names, **bounds))


def _paths(table: ss.Table, where: object) -> list[str]:
    return table.scan(where).files().column("path").to_pylist()


@contextmanager
def _reads() -> Iterator[list[tuple[str, int, int]]]:
    """(path, offset, length) of every range that is read of any file."""
    found: list[tuple[str, int, int]] = []
    real = local.LocalStorage.read_ranges

    def read_ranges(self, path, ranges):
        found.extend((path, offset, length) for offset, length in ranges)
        return real(self, path, ranges)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local.LocalStorage, "read_ranges", read_ranges)
        yield found


def _check_ranges(runs: tuple[Run, ...]) -> None:
    """Shards of one run stand together, in the order of their keys, and no key range meets another."""
    for before, after in pairwise(runs):
        if before.segments == after.segments:
            assert before.first_key <= before.last_key <= after.first_key <= after.last_key


# -- one column of many -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[ss.Table, dict[str, np.ndarray]]:
    """Each file contains one value per column, of a hundred columns. Blocks and writes are as small as the table: a
    column has some blocks alone, as it has in a table of a hundred thousand files."""
    schema = pa.schema([(name, pa.int64()) for name in WIDE])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, "BLOCK_BYTES", 60_000)
        patch.setattr(writing, "_ROWS_AT_ONCE", FILES)
        table = ss.create(tmp_path_factory.mktemp("wide"), schema=schema, columns=[])
        table.create_index(WIDE, kind="stats", shard_bytes=20_000)
        values = {name: np.random.default_rng(n).integers(0, 2**60, FILES) for n, name in enumerate(WIDE)}
        _add(table, [f"f{n}" for n in range(FILES)], **{name: (v, v) for name, v in values.items()})
    return table, values


def test_a_look_up_opens_the_shard_of_its_column_and_no_other(wide: tuple[ss.Table, dict]) -> None:
    table, values = wide
    index = table.handle.instant.indexes[1]
    size = sum(run.size_bytes for run in index.runs)
    assert len(index.runs) > 30 and max(run.size_bytes for run in index.runs) < 3 * 20_000
    _check_ranges(index.runs)
    for name in ("c00", "c42", "c43", "c99"):
        prefix = stats.file_prefix(table.handle.instant.columns[name])
        holding = [run.path for run in index.runs if run.may_contain(prefix)]
        assert len(holding) == 1
        table.handle.forget()
        fresh = ss.open(table.location, on_stale="ignore")
        with _reads() as found:
            plan = fresh.scan(f"{name} = {values[name][7]}")
            assert plan.files().column("path").to_pylist() == ["f7"]
        assert {path for path, *_ in found} == {*holding, *(run.path for run in table.handle.instant.manifest)}
        of_index = [length for path, _, length in found if path in holding]
        assert len(of_index) <= 2 and sum(of_index) < 0.03 * size
        assert sum(step.bytes_read for step in plan.steps) == sum(length for *_, length in found)
        assert sum(step.requests for step in plan.steps) >= len(found)


# -- one block of many ------------------------------------------------------------------------------------------------


def test_a_clustered_point_reads_one_block(tmp_path: Path) -> None:
    count = 100_000
    table = ss.create(tmp_path, schema=pa.schema([("c", pa.int64()), ("r", pa.int64())]))
    low, scattered = np.arange(count) * 10, np.random.default_rng(0).permutation(count)
    _add(table, [f"f{n}" for n in range(count)], c=(low, low + 9), r=(scattered, scattered))
    (run,) = table.handle.instant.indexes[0].runs
    prefix = stats.file_prefix(table.handle.instant.columns["c"])
    blocks = [b for b in table.handle.readers.reader(run).blocks() if b.first_key.startswith(prefix)]
    assert len(blocks) >= 3
    table.handle.forget()
    fresh = ss.open(tmp_path)
    assert _paths(fresh, "c = -1") == []  # the footer, whose summaries answer
    with _reads() as found:
        plan = fresh.scan("c = 5005")
        assert plan.files().column("path").to_pylist() == ["f500"]
    of_index = [(offset, length) for path, offset, length in found if path == run.path]
    assert of_index == [(blocks[0].offset, blocks[0].length)]
    step = next(step for step in plan.steps if step.name == "statistics")
    assert (step.came_in, step.went_out, step.bytes_read) == (count, 1, blocks[0].length)
    for where in ("c < 0", "c > 2000000", "c IS NULL", "c = 5005 AND c = 900000"):
        with _reads() as found:
            assert _paths(fresh, where) == []
        assert not [path for path, *_ in found if path == run.path], where
    sought = int(scattered[500])
    with _reads() as found:  # the scattered column is only asked about the files that the clustered one left
        assert _paths(fresh, f"c BETWEEN 4000 AND 6000 AND r = {sought}") == ["f500"]
    assert len([path for path, *_ in found if path == run.path]) == 2


# -- over many commits ------------------------------------------------------------------------------------------------


VALUES = st.integers(-20, 20)
ROWS = 10  # of each file
Bounds = tuple[int, int, int]  # the least and the greatest value, and how many of `s` are null


@given(data=st.data())
@settings(max_examples=examples(6))
def test_random_histories_in_tiny_shards_and_blocks(data: st.DataObject) -> None:
    """Commits, removals and indexes over files with bounds: what is kept is what brute force over the bounds keeps,
    also if a run is pruned in pieces, as one of very many files is."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(stats, "BLOCK_BYTES", data.draw(st.sampled_from([200, 1000, 5000])))
        patch.setattr(writing, "_ROWS_AT_ONCE", data.draw(st.sampled_from([20, 1 << 17])))
        patch.setattr(prune, "PIECE_ENTRIES", data.draw(st.sampled_from([8, 1 << 20])))
        patch.setattr(prune, "KEPT_FILES_MAX", data.draw(st.sampled_from([0, 1000])))
        schema = pa.schema([("a", pa.int64()), ("s", pa.string()), ("p", pa.int64())])
        parts = ["p"] if data.draw(st.booleans()) else []
        table = ss.create(root, schema=schema if parts else schema.remove(2), partitioning=parts, columns=[])
        shard_bytes = data.draw(st.sampled_from([1, 1000, 4000]))
        for columns in data.draw(st.sampled_from([[["a", "s"]], [["a"], ["s"]]])):
            table.create_index(columns, kind="stats", shard_bytes=shard_bytes)
        live: dict[str, Bounds | None] = {}
        for commit in range(data.draw(st.integers(1, 5))):
            _change(data.draw, table, live, commit, bool(parts))
            for index in table.handle.instant.indexes:
                _check_ranges(index.runs)
            handle = table if data.draw(st.booleans()) else ss.open(root)
            _check_questions(data.draw, handle, live)
        assert {finding.kind for finding in table.verify(deep=True)} <= {"missing"}  # files that were only declared


def _change(draw: st.DrawFn, table: ss.Table, live: dict[str, Bounds | None], commit: int, has_parts: bool) -> None:
    """Files with bounds, or without any, come; some go."""
    gone = [name for name in live if draw(st.integers(0, 3)) == 0] if draw(st.booleans()) else []
    count = draw(st.integers(0, 40))
    start, width = draw(VALUES), draw(st.integers(0, 5))
    names = [f"p={n % 3}/{commit}-{n}" if has_parts else f"{commit}-{n}" for n in range(count)]
    step, nulls_step = draw(st.sampled_from([0, 1, 7])), draw(st.sampled_from([0, 1, ROWS]))
    low = np.array([start + (step * n) % 23 for n in range(count)], dtype=np.int64)
    high = low + width
    nulls = np.array([(nulls_step * n) % (ROWS + 1) for n in range(count)], dtype=np.int64)
    texts = [pa.array([_text(v) for v in bounds.tolist()], mask=nulls == ROWS) for bounds in (low, high)]
    with table.transaction() as tx:
        if count:
            files = _declared(names, a=(low, high), s=(*texts, nulls))
            is_silent = draw(st.integers(0, 4)) == 0
            tx.add_files(files.drop_columns(["stats"]) if is_silent else files)
            bounds = zip(low.tolist(), high.tolist(), nulls.tolist(), strict=True)
            live.update(zip(names, [None] * count if is_silent else bounds, strict=True))
        if gone:
            tx.remove(gone)
    for name in gone:
        del live[name]


def _text(value: int) -> str:
    return f"{value + 1000:04}"


def _check_questions(draw: st.DrawFn, table: ss.Table, live: dict[str, Bounds | None]) -> None:
    v, w = draw(VALUES), draw(VALUES)
    few = draw(st.lists(VALUES | st.sampled_from([-(2**63), 2**63 - 1]), min_size=2, max_size=40))
    many = [*few, *range(100, 100 + draw(st.sampled_from([0, 20, 300])))]
    all_values = set(many)
    questions = {  # what they may be of a file whose values lie within low and high
        f"a = {v}": lambda low, high, _: low <= v <= high,
        f"s = '{_text(v)}' OR a = {w}": lambda low, high, nulls: (
            (nulls < ROWS and low <= v <= high) or low <= w <= high
        ),
        f"a > {v} AND s < '{_text(w)}'": lambda low, high, nulls: high > v and nulls < ROWS and low < w,
        f"NOT (a <= {v})": lambda low, high, _: high > v,
        "a IS NULL": lambda *_: False,
        f"a <= {v} AND s IS NULL": lambda low, high, nulls: low <= v and nulls > 0,
        "s IS NOT NULL": lambda low, high, nulls: nulls < ROWS,
        ss.col("a").is_in(many): lambda low, high, _: any(low <= one <= high for one in many),
        ~ss.col("a").is_in(many): lambda low, high, _: not {*range(low, high + 1)} <= all_values,
    }
    for where, may in questions.items():
        wanted = sorted(name for name, bounds in live.items() if bounds is None or may(*bounds))
        assert sorted(_paths(table, where)) == wanted, where
    if None not in live.values():  # counted by summaries of blocks and by bounds: none of the files can be read
        assert table.scan("a > -100 AND a < 100").count() == ROWS * len(live)


_NULLS = st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([0, 1, 4, None]))


@settings(max_examples=examples(12))
@given(files=st.lists(_NULLS, min_size=1, max_size=60), wanted=st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_null_counts_are_looked_up_where_every_row_may_match(files, wanted, tmp_path_factory):
    """Of large runs a point reads bounds first, and null counts of files whose bounds are one value: what is kept, and
    what matches whole, is what all statistics say."""
    lower = [None if nulls == 4 else low for low, _, nulls in files]
    upper = [None if nulls == 4 else low + more for low, more, nulls in files]
    stats_of = pa.StructArray.from_arrays(
        [pa.array(lower, pa.int64()), pa.array(upper, pa.int64()), pa.array([n for *_, n in files], pa.int64())],
        names=["min", "max", "null_count"],
    )
    paths = [f"part-{i:03d}.parquet" for i in range(len(files))]
    rows = pa.table({"path": paths, "size_bytes": [9] * len(files), "row_count": [4] * len(files)})
    rows = rows.append_column("stats", pa.StructArray.from_arrays([stats_of], names=["x"]))
    folder = tmp_path_factory.mktemp("lake") / "table"
    with ss.create(folder, schema=pa.schema([("x", pa.int64())]), partitioning=None) as table:
        with table.transaction() as tx:
            tx.add_files(rows)
        answers = []
        for is_kept in (True, False):
            with mock.patch.object(RunReaders, "keeps", lambda *_, is_kept=is_kept: is_kept):
                plan = table.scan(ss.col("x").is_in(wanted))
                kept = plan.files().column("path").to_pylist()
                answers.append((kept, plan.planning.pruned.only_true.tolist()))
    assert answers[0] == answers[1]
    known = zip(paths, lower, upper, (n for *_, n in files), strict=True)
    whole = {path for path, low, high, nulls in known if low is not None and low == high in wanted and nulls == 0}
    assert {path for path, is_whole in zip(*answers[1], strict=True) if is_whole} >= whole
