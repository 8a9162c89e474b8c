"""Rule 4: which changes of two writers of one version both commit, and which conflict, in both orders."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from faults import before_publishing
from lake_strategies import add_files, declare, file_row, live_paths, make_file, remove_files, values_of, write_rows
from skipstone.engine.commit.commit import commit
from skipstone.engine.storage import FileMissingError

Act = Callable[[object], None]  # what one transaction does
LIVE = ("f.parquet", "g.parquet", "h.parquet")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    _lake(tmp_path)
    return tmp_path


def _lake(root: Path) -> ss.Table:
    """f, g and h are live. new and newer are in the folder, but not in the table."""
    for number, name in enumerate((*LIVE, "new.parquet", "newer.parquet")):
        make_file(root, name, {"a": [number]})
    return ss.create(root, files=list(LIVE))


def _remove(*names: str) -> Act:
    return lambda tx: tx.remove([f"{name}.parquet" for name in names])


def _add(*names: str) -> Act:
    return lambda tx: tx.add_files([f"{name}.parquet" for name in names])


def _replace(old: str, new: str) -> Act:
    return lambda tx: tx.replace([f"{old}.parquet"], [f"{new}.parquet"])


def _write(value: int) -> Act:
    return lambda tx: tx.write(pa.table({"a": [value]}))


PAIRS = [  # two transactions on one version, and the file on which they conflict, or None
    (_remove("f"), _remove("f", "g"), "f"),
    (_remove("f"), _replace("f", "new"), "f"),
    (_replace("f", "new"), _replace("f", "newer"), "f"),
    (_replace("f", "f"), _remove("f"), "f"),
    (_add("new"), _add("newer", "new"), "new"),
    (_add("new"), _replace("f", "new"), "new"),
    (_replace("f", "new"), _replace("g", "new"), "new"),
    (_remove("f"), _remove("g"), None),
    (_remove("f"), _replace("g", "new"), None),
    (_replace("f", "new"), _replace("g", "newer"), None),
    (_add("new"), _add("newer"), None),
    (_add("new"), _remove("f", "g", "h"), None),
    (_write(1), _write(1), None),
    (_write(1), _remove("f"), None),
    (_write(1), _replace("f", "new"), None),
]


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("one, other, met", PAIRS)
def test_rule_04_two_handles(lake: Path, one: Act, other: Act, met: str | None, is_swapped: bool) -> None:
    first, second = (other, one) if is_swapped else (one, other)
    mine, theirs = ss.open(lake), ss.open(lake)

    def race() -> None:
        with mine.transaction() as late, theirs.transaction() as early:
            first(early)
            second(late)

    if met is None:
        race()
        assert (theirs.version, mine.version, mine.verify()) == (2, 3, [])
        assert values_of(mine) == _in_turn(lake / "twin", first, second)
        return
    with pytest.raises(ss.CommitConflictError, match=f"{met}.parquet") as caught:
        race()
    assert caught.value.paths == [f"{met}.parquet"]
    assert ss.open(lake).version == theirs.version == 2 and mine.version == 1
    assert values_of(ss.open(lake)) == values_of(theirs)  # the table contains nothing of the refused transaction


def _in_turn(root: Path, *acts: Act) -> list[int]:
    """The values in a lake like it after one transaction and then the other."""
    table = _lake(root)
    for act in acts:
        with table.transaction() as tx:
            act(tx)
    return values_of(table)


@pytest.mark.parametrize("one, other", list(product(["listed", "declared", "elsewhere"], repeat=2)))
def test_rule_04_one_path_added_by_both_however_it_is_declared(tmp_path: Path, one: str, other: str) -> None:
    make_file(tmp_path, "p=1/f.parquet", {"a": [1]})
    ss.create(tmp_path, schema=pa.schema([("a", pa.int64()), ("p", pa.int64())]), partitioning=["p"], files=[])
    size = (tmp_path / "p=1/f.parquet").stat().st_size

    def add(tx, how: str) -> None:
        declared = {"path": ["p=1/f.parquet"], "size_bytes": [size], "row_count": [1]}
        if how == "listed":
            tx.add_files(["p=1/f.parquet"])
        else:
            more = {"partition": pa.array([{"p": 2}])} if how == "elsewhere" else {}
            tx.add_files(pa.table({**declared, **more}))

    mine, theirs = ss.open(tmp_path), ss.open(tmp_path)
    with pytest.raises(ss.CommitConflictError) as caught, mine.transaction() as late, theirs.transaction() as early:
        add(early, one)
        add(late, other)
    assert caught.value.paths == ["p=1/f.parquet"] and ss.open(tmp_path).files().num_rows == 1


def test_rule_04_a_sync_drops_its_copy_of_what_another_added(lake: Path) -> None:
    table, other = ss.open(lake), ss.open(lake)
    before_publishing(table, lambda: add_files(other, ["new.parquet"]))
    assert table.sync() == 3 and other.version == 2
    assert sorted(live_paths(table)) == sorted([*LIVE, "new.parquet", "newer.parquet"])
    with pytest.raises(ss.CommitConflictError) as caught, ss.open(lake).transaction() as tx:
        tx.remove(["f.parquet"])
        (lake / "f.parquet").unlink()
        table.sync()
    assert caught.value.paths == ["f.parquet"]


def test_rule_04_adding_what_is_live_at_once_or_since(lake: Path) -> None:
    table = ss.open(lake)
    with pytest.raises(ss.InvalidArgumentError, match="replace"), table.transaction() as tx:
        _add("f")(tx)
    with pytest.raises(ss.InvalidArgumentError, match=r"f\.parquet"), table.transaction() as tx:
        _remove("g")(tx)
        _add("new", "f")(tx)
    with table.transaction() as tx:  # removed and added in one transaction: it is read again
        _remove("f")(tx)
        _add("f")(tx)
    assert table.version == 2 and values_of(table) == [0, 1, 2]


@pytest.mark.parametrize("returned_by", ["rollback", "restore", "add"])
def test_a_removal_of_a_file_that_was_removed_and_returned(lake: Path, returned_by: str) -> None:
    """A file that was added again is another file. A rollback or a restore returns the same file."""
    mine, other = ss.open(lake), ss.open(lake)
    is_another = returned_by == "add"
    expected = pytest.raises(ss.CommitConflictError) if is_another else contextlib.nullcontext()
    with expected as caught, mine.transaction() as tx:
        _remove("f")(tx)
        with other.transaction() as away:
            _remove("f")(away)
        if returned_by == "rollback":
            other.rollback()
        elif returned_by == "restore":
            other.restore(1)
        else:
            with other.transaction() as back:
                _add("f")(back)
    assert caught is None or caught.value.paths == ["f.parquet"]
    assert values_of(other.refresh()) == ([0, 1, 2] if is_another else [1, 2])


@pytest.mark.parametrize("is_filled_again", [False, True])
def test_rule_04_a_log_conflicts_if_its_partition_was_emptied(tmp_path: Path, is_filled_again: bool) -> None:
    """A partition that was emptied returns under another number; the slices are compared all the same."""
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64()), ("p", pa.int64())]), partitioning=["p"])
    slice_of = {"file_group": "g", "slice_instant": "1"}
    declare(table, file_row("p=1/base", kind="base", **slice_of))
    other = ss.open(tmp_path)
    with pytest.raises(ss.CommitConflictError, match="slice was replaced") as caught, other.transaction() as tx:
        tx.add_files(pa.Table.from_pylist([file_row("p=1/log", kind="log", **slice_of)]))
        remove_files(table, ["p=1/base"])
        if is_filled_again:
            declare(table, file_row("p=1/other"))
    assert caught.value.paths == ["p=1/log"]


def test_files_that_a_clean_removed_while_a_transaction_paused_are_no_damage(lake: Path) -> None:
    """A transaction whose version was cleaned conflicts. If a kept version lacks a file, that is damage."""

    def lacks_a_file(*_: object) -> None:
        raise FileMissingError("runs/aa/gone.sbf")

    with ss.open(lake) as paused, ss.open(lake) as table:
        for value in range(3):
            write_rows(table, pa.table({"a": [value]}))
        with pytest.raises(FileMissingError):
            commit(paused.handle, "optimize", lacks_a_file)
        table.clean(retain_versions=1, min_age=dt.timedelta(0))
        with pytest.raises(ss.CommitConflictError, match="version 1, at which this began, was cleaned"):
            commit(paused.handle, "optimize", lacks_a_file)
        with pytest.raises(FileMissingError):
            commit(table.handle, "optimize", lacks_a_file)
