"""File slices: the rules for which files of a file group are read, each with the case that breaks without it, and the
tables that list slices and groups."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import bare_table, declare, file_row, kept_paths, make_file, stats_of

ONE, NINE = stats_of(a=(1, 1, 0)), stats_of(a=(9, 9, 0))


def base(path: str, instant: str | None = "1", group: str = "g", **more) -> dict:
    return file_row(path, file_group=group, slice_instant=instant, **more)


def log(path: str, instant: str | None = "1", group: str = "g", merge: str = "whole", **more) -> dict:
    return file_row(path, file_group=group, slice_instant=instant, kind="log", merge=merge, **more)


def real_base(root: Path, path: str, values: list[int], instant: str = "1", **more) -> dict:
    """A base that exists on disk, in a folder next to the table."""
    make_file(root, path, {"a": values, "b": [0] * len(values)})
    declared = stats_of(a=(min(values), max(values), 0))
    declared |= {"size_bytes": os.path.getsize(root / path), "row_count": len(values)}
    return {**base(str(root / path), instant), **declared, **more}


def set_states(table: ss.Table, **states: str) -> None:
    with table.transaction() as tx:
        tx.set_commit_state(states)


def slices(table: ss.Table, *names: str, **options) -> list[tuple]:
    return [tuple(row.values()) for row in table.slices(**options).select(names).to_pylist()]


def test_rule_20_aggregates_do_not_cover_merged_files(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64()), ("p", pa.int64())]), partitioning=["p"])
    declare(
        table,
        base("p=1/b", **ONE),
        log("p=1/l", merge="partial", **ONE),
        base("p=2/b", **ONE),
        log("p=2/l", merge="custom", **ONE),
        base("p=3/b", **ONE),
    )
    assert kept_paths(table, "a IS NULL") == ["p=1/b", "p=1/l", "p=2/b", "p=2/l"]
    assert kept_paths(table, "a = 7") == ["p=2/b", "p=2/l"]


def test_rule_17_a_slice_without_a_completed_base_is_read_with_the_one_before(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(
        table,
        base("b1", "1", **ONE),
        log("l1", "1", **ONE),
        base("b2", "2", commit="compaction", **NINE),
        log("l2", "2", **stats_of(a=(5, 5, 0))),
    )
    assert kept_paths(table, None) == kept_paths(table, "a = 9") == ["b2", "l2"]
    assert kept_paths(table, "a = 1") == []  # superseded
    for state in ("inflight", "failed", "rolled_back"):
        set_states(table, compaction=state)
        assert kept_paths(table, "a = 1") == kept_paths(table, "a = 5") == ["b1", "l1", "l2"]
        assert kept_paths(table, "a = 9") == []
    set_states(table, compaction="completed")
    assert kept_paths(table, "a = 9") == ["b2", "l2"]


@pytest.mark.parametrize("old, new", [("9", "10"), ("099", "100"), ("a", "b"), ("9x", "a"), ("2024", "2024a")])
def test_rule_17_slices_are_ordered_as_numbers_or_else_as_texts(tmp_path: Path, old: str, new: str) -> None:
    table = bare_table(tmp_path)
    declare(table, base("new", new, **NINE), base("old", old, **ONE))
    assert kept_paths(table, None) == ["new"]


def test_rule_17_a_file_of_no_known_slice_is_always_read(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(table, base("b1", "1", **ONE), log("stray", None, **stats_of(a=(5, 5, 0))), base("b2", "2", **NINE))
    assert kept_paths(table, "a = 5") == ["b2", "stray"]
    assert kept_paths(table, "a = 1") == []


def test_rule_17_groups_are_unique_within_their_partition(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64()), ("p", pa.int64())]), partitioning=["p"])
    declare(table, base("p=1/f", "1", **ONE), base("p=2/f", "2", **NINE))
    assert kept_paths(table, None) == ["p=1/f", "p=2/f"]
    assert kept_paths(table, "p = 1") == ["p=1/f"]


def test_rule_18_commit_state_is_data_of_the_version_that_is_read(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(table, base("base", **ONE), log("log", commit="c17", **NINE))
    wanted = {1: [], 2: ["base", "log"]}
    for state in ("failed", "inflight", "rolled_back", "completed"):
        set_states(table, c17=state)
        wanted[table.version] = [] if state in ("failed", "rolled_back") else ["base", "log"]
    assert wanted == {1: [], 2: ["base", "log"], 3: [], 4: ["base", "log"], 5: [], 6: ["base", "log"]}
    for version, paths in wanted.items():
        assert kept_paths(ss.open(tmp_path, version=version), "a = 9") == paths
    assert table.history().column("action").to_pylist()[-1] == "commit"


def test_rule_18_states_are_checked_and_meet_other_writers(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    for wrong in ({"c1": "done"}, {"c1": None}, {1: "failed"}, "failed", [("c1", "failed")]):
        with pytest.raises(ss.InvalidArgumentError), table.transaction() as tx:
            tx.set_commit_state(wrong)
    assert table.version == 1

    def race(mine: str, theirs: str) -> None:
        with ss.open(tmp_path).transaction() as tx:
            tx.set_commit_state({"c1": mine})
            set_states(ss.open(tmp_path), c1=theirs, c2="inflight")

    race("failed", "failed")
    with pytest.raises(ss.CommitConflictError, match="c1"):
        race("inflight", "rolled_back")
    assert ss.open(tmp_path).version == 4


@pytest.mark.parametrize("log_is_first", [True, False])
def test_rule_4_a_log_meets_the_completion_of_the_compaction_that_supersedes_its_slice(
    tmp_path: Path, log_is_first: bool
) -> None:
    table = bare_table(tmp_path)
    declare(table, base("b1", "1", **ONE), base("b2", "2", commit="c2", **ONE))
    set_states(table, c2="inflight")
    with pytest.raises(ss.CommitConflictError, match="l1"), ss.open(tmp_path).transaction() as tx:
        if log_is_first:
            tx.set_commit_state({"c2": "completed"})
            declare(table, log("l1", "1", **NINE))
        else:
            tx.add_files(pa.Table.from_pylist([log("l1", "1", **NINE)]))
            set_states(table, c2="completed")


def test_rule_36_read_optimized_is_the_latest_base_alone(tmp_path: Path) -> None:
    table = bare_table(tmp_path / "t")
    declare(
        table,
        real_base(tmp_path, "b1.parquet", [1, 2], "1"),
        real_base(tmp_path, "b2.parquet", [1, 2, 3], "2"),
        log("log", "2", merge="custom", **NINE),
        file_row("gone", file_group="g", slice_instant="2", kind="delete"),
        real_base(tmp_path, "b3.parquet", [7], "3", commit="c3"),
        log("only", "1", group="h", **ONE),
    )
    set_states(table, c3="inflight")
    plan = table.scan(mode="read_optimized")
    assert plan.files().column("path").to_pylist() == [str(tmp_path / "b2.parquet")]
    assert plan.count() == plan.to_table().num_rows == 3
    assert table.scan("a = 9", mode="read_optimized").files().num_rows == 0
    assert table.scan("a > 1", mode="read_optimized").count() == 2
    assert "only base files" in plan.explain("log") and "later slice" in plan.explain(str(tmp_path / "b1.parquet"))
    assert table.scan().files().num_rows == 4


def test_a_filter_over_bases_prunes_slices_whose_logs_are_dead(tmp_path: Path) -> None:
    table = bare_table(tmp_path / "t")
    wide = stats_of(a=(0, 100, 0))
    declare(
        table,
        {**real_base(tmp_path, "old.parquet", [50], "1"), **wide},
        {**real_base(tmp_path, "base.parquet", [10, 20], "2"), **wide},
        log("log", "2", commit="c1", **wide),
    )
    table.create_index("a", kind="bloom", fpp=0.0001)
    path = str(tmp_path / "base.parquet")
    assert kept_paths(table, "a = 15") == kept_paths(table, "a = 50") == sorted([path, "log"])  # the log is a hole
    set_states(table, c1="rolled_back")
    assert kept_paths(table, "a = 15") == kept_paths(table, "a = 50") == []
    assert kept_paths(table, "a = 20") == [path]
    assert table.scan("a = 20").count() == 1


def test_slices_and_file_groups_show_what_is_there(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    assert table.slices().num_rows == table.slices(latest=False).num_rows == table.file_groups().num_rows == 0
    declare(
        table,
        base("b1", "9", size_bytes=5),
        log("l1", "9"),
        base("b2", "10", commit="c2"),
        log("l2", "10", commit="c3"),
        file_row("block", file_group="g", slice_instant="11", kind="delete"),
        file_row("plain"),
        log("only", None, group="h"),
    )
    names = ("file_group", "slice_instant", "base", "logs", "is_pending", "is_compacted")
    plain, only = (None, None, "plain", [], False, True), ("h", None, None, ["only"], True, False)
    assert slices(table, *names) == [("g", "10", "b2", ["l2", "block"], True, False), plain, only]
    assert slices(table, *names, latest=False) == [
        ("g", "9", "b1", ["l1"], False, False),
        ("g", "10", "b2", ["l2"], False, False),
        ("g", "11", None, ["block"], True, False),
        plain,
        only,
    ]
    assert slices(table, "log_count", "log_bytes", "base_size_bytes", "dead") == [
        (2, 2000, 1000, []),
        (0, 0, 1000, []),
        (1, 1000, None, []),
    ]
    set_states(table, c2="inflight", c3="failed")
    assert slices(table, *names)[0] == ("g", "9", "b1", ["l1", "block"], True, False)
    assert slices(table, "slice_instant", "is_latest", "dead", latest=False)[:3] == [
        ("9", True, []),
        ("10", False, ["b2", "l2"]),
        ("11", True, []),
    ]
    names = ["partition", "file_group", "slices", "latest_instant", "files", "size_bytes", "uncompacted_logs"]
    assert table.file_groups().column_names == names
    assert [tuple(row.values()) for row in table.file_groups().to_pylist()] == [
        ("", "g", 3, "11", 5, 4005, 2),
        ("", None, 1, None, 1, 1000, 0),
        ("", "h", 1, None, 1, 1000, 1),
    ]
    assert slices(ss.open(tmp_path, version=2), "base") == [("b2",), ("plain",), (None,)]


def test_slices_of_one_partition(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64()), ("p", pa.int64())]), partitioning=["p"])
    declare(table, base("p=1/f"), log("p=1/l"), base("p=2/f"))
    assert slices(table, "partition", "base", "logs", partition="p=1") == [("p=1", "p=1/f", ["p=1/l"])]
    assert slices(table, "partition") == [("p=1",), ("p=2",)]
    assert table.file_groups("p=2").column("partition").to_pylist() == ["p=2"]


CHANGES: dict[str, Callable] = {
    "a log in slice 1": lambda tx: tx.add_files(pa.Table.from_pylist([log("late", "1")])),
    "a log in slice 2": lambda tx: tx.add_files(pa.Table.from_pylist([log("later", "2")])),
    "a log of another group": lambda tx: tx.add_files(pa.Table.from_pylist([log("other", "1", group="h")])),
    "a base of slice 2": lambda tx: tx.add_files(pa.Table.from_pylist([base("b2", "2")])),
    "slice 1 replaced": lambda tx: tx.replace(["b1", "l1"], pa.Table.from_pylist([base("b1-new", "1")])),
    "its log taken out": lambda tx: tx.remove(["l1"]),
}
MEETINGS = [
    ("a log in slice 1", "a base of slice 2", True),
    ("a log in slice 1", "slice 1 replaced", True),
    ("a log in slice 2", "a base of slice 2", False),
    ("a log in slice 2", "slice 1 replaced", False),
    ("a log of another group", "a base of slice 2", False),
    ("a log in slice 1", "a log in slice 2", False),
    ("a log in slice 1", "its log taken out", False),
]


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("one, other, is_conflict", MEETINGS)
def test_rule_04_a_log_that_joined_a_slice_which_another_replaced(
    tmp_path: Path, one: str, other: str, is_conflict: bool, is_swapped: bool
) -> None:
    table = bare_table(tmp_path)
    declare(table, base("b1"), log("l1"), base("h1", group="h"))
    first, second = (other, one) if is_swapped else (one, other)

    def both() -> None:
        mine, theirs = ss.open(tmp_path), ss.open(tmp_path)
        with mine.transaction() as tx:
            CHANGES[second](tx)
            with theirs.transaction() as before:
                CHANGES[first](before)

    if is_conflict:
        with pytest.raises(ss.CommitConflictError, match="late"):
            both()
        assert table.refresh().version == 3
    else:
        both()
        assert table.refresh().version == 4
