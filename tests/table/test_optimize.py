"""Optimize: it covers files, tightens aggregates and merges runs, does nothing twice, and never changes an answer."""

from __future__ import annotations

import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from faults import flipped
from lake_strategies import add_files, remove_files, write_rows

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string()), ("p", pa.string())])


def _write(table: ss.Table, p: str, *values: int) -> None:
    write_rows(
        table, pa.table({"x": list(values), "s": [f"v{v}" for v in values], "p": [p] * len(values)}, schema=SCHEMA)
    )


def _path_of(table: ss.Table, number: int) -> str:
    return table.files().sort_by("file_id")["path"][number].as_py()


def _aggregates_step(table: ss.Table, where: str) -> tuple[int, int]:
    """(partitions before, partitions after) the step of aggregates."""
    plan = table.scan(where)
    plan.files()
    return next((s.came_in, s.went_out) for s in plan.steps if s.index == "aggregates")


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    made = ss.create(tmp_path / "lake", schema=SCHEMA, partitioning=["p"])
    for p, base in (("a", 0), ("b", 100)):
        for value in range(4):
            _write(made, p, base + value * 10, base + value * 10 + 5)
    return made


def test_a_second_optimize_makes_no_version(table: ss.Table) -> None:
    remove_files(table, [_path_of(table, 0)])
    made = table.optimize()
    assert made == table.version == 10 + 1
    for _ in range(2):
        assert table.optimize() == made
    assert table.history()["action"].to_pylist()[-1] == "optimize"


def test_a_merge_that_a_restore_overtakes_is_done_again(tmp_path: Path) -> None:
    """The filter of a removed file is left out of the merged run; then another process restores the file. Its filter
    must be in the run that is published: the index covers the file, so no refresh would build it."""
    table = ss.create(tmp_path, schema=SCHEMA)
    table.create_index("x", kind="bloom", maintain="refresh")
    for value in (1, 2, 3):
        _write(table, "a", 0, value, 100)
        table.refresh_index("x", kind="bloom")
    whole = table.version
    remove_files(table, [_path_of(table, 0)])
    other = ss.open(tmp_path)

    def restore_once(step: str, done: int, total: int) -> None:
        if step == "optimize" and done == total and other.version == whole + 1:
            other.restore(whole)

    table.optimize(progress=restore_once)
    assert other.version == whole + 2 and table.history()["action"].to_pylist()[-1] == "optimize"
    assert [table.scan(f"x = {value}").to_table().num_rows for value in (0, 1, 2, 3)] == [3, 1, 1, 1]
    assert table.scan("x = 50").files().num_rows == 0


@pytest.mark.parametrize("dropped", ["column", "index"])
def test_an_optimize_of_an_older_handle_ignores_what_others_dropped(tmp_path: Path, dropped: str) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("b", pa.string()), ("x", pa.int64())]))
    table.create_index("b", kind="bloom", maintain="refresh")
    table.create_index("x", kind="secondary", maintain="refresh")
    write_rows(table, pa.table({"b": ["u"], "x": [1]}))
    behind = ss.open(tmp_path)
    if dropped == "column":
        table.alter(drop="x")
    else:
        table.drop_index("x", kind="secondary")
    behind.optimize()
    assert {row["files_covered"] for row in behind.indexes().to_pylist()} == {1}
    assert behind.scan("b = 'u'").count() == 1


def test_aggregates_are_tightened_after_a_removal(table: ss.Table) -> None:
    remove_files(table, [_path_of(table, 3)])  # a: 30, 35
    assert _aggregates_step(table, "x = 30") == (2, 1)
    table.optimize()
    assert _aggregates_step(table, "x = 30") == (2, 0)
    assert table.scan(None).max("x") == 135


def test_entries_of_removed_files_are_dropped(table: ss.Table) -> None:
    remove_files(table, [_path_of(table, n) for n in range(7)])
    before = sum(run.entries for run in table.handle.instant.indexes[0].runs)
    table.optimize()
    after = sum(run.entries for run in table.handle.instant.indexes[0].runs)
    assert after == 1 + 2 + 2 < before  # the place of the fine entries, two aggregates, two columns of a file


def test_files_that_indexes_lack_are_covered(table: ss.Table) -> None:
    table.create_index("x", kind="bloom")
    path = Path(table.location, "p=a", "made.parquet")
    pq.write_table(pa.table({"x": [7], "s": ["v7"]}), path)
    add_files(table, ["p=a/made.parquet"])
    table.optimize()
    assert {(r["files_covered"], r["files_total"]) for r in table.indexes().to_pylist()} == {(9, 9)}
    made = table.version
    assert table.optimize() == made


def test_aggregates_that_a_build_could_not_publish_are_built_again(table: ss.Table) -> None:
    """Of two concurrent builds: aggregates that a commit in between changed are not used."""
    lake = Path(table.location).parent / "narrow"
    narrow = ss.create(lake, schema=SCHEMA, partitioning=["p"])
    for value in range(3):
        _write(narrow, "a", value)
        _write(narrow, "b", 100 + value)
    other = ss.open(lake)
    narrow.drop_index("x", kind="stats")
    other = ss.open(lake)
    narrow.create_index("x", kind="stats")
    _write(other, "a", 5)
    narrow.refresh()
    narrow.optimize()
    assert _aggregates_step(narrow, "x = 50") == (2, 0)


def test_a_damaged_run_is_left_and_answers_stay(table: ss.Table) -> None:
    remove_files(table, [_path_of(table, 0)])
    run = Path(table.handle.index_storage.root, table.handle.instant.indexes[0].runs[0].path)
    table.handle.forget()
    opened = ss.open(table.location)
    size = run.stat().st_size
    with flipped(run, size // 2), flipped(run, size - 20), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = opened.optimize()
        assert opened.optimize() == made
        assert opened.scan("x = 15").to_table().num_rows == 1
        assert opened.scan("x = 0").to_table().num_rows == 0
