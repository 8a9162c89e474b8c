"""A file that is not the planned one, or is replaced while it is read: an error that names it and states what to do,
never rows of another file."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone.engine.scan import file_reader as reading_rows
from skipstone.engine.scan.file_reader import matches_in_file, verify_unchanged
from skipstone.engine.scan.row_groups import row_groups_of
from skipstone.engine.storage import Counted, open_storage

NAME = "a=1/f.parquet"
WHERE = "k >= 5 AND s != 'none'"


def _rows(first: int, count: int = 40) -> pa.Table:
    keys = np.arange(first, first + count)
    return pa.table({"k": keys, "s": [f"s{key}" for key in keys], "n": keys * 2})


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    """Two files; one of them is to change."""
    for value, first in ((1, 0), (2, 1000)):
        (tmp_path / f"a={value}").mkdir()
        pq.write_table(_rows(first), tmp_path / f"a={value}" / "f.parquet", row_group_size=8)
    return ss.create(tmp_path)


def _touch(path: Path) -> None:
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000))


def _same_size(path: Path) -> None:
    """Other bytes, and as many."""
    before = path.stat()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"s7", b"z7"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    assert path.stat().st_size == before.st_size


def _rewritten(rows: pa.Table, row_group_size: int = 8) -> Callable[[Path], None]:
    def rewrite(path: Path) -> None:
        pq.write_table(rows, path, row_group_size=row_group_size)
        _touch(path)

    return rewrite


def _replaced(path: Path) -> None:
    """By renaming: who has the old file open keeps it."""
    pq.write_table(_rows(7000), path.with_suffix(".new"), row_group_size=8)
    os.replace(path.with_suffix(".new"), path)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300])


CHANGES: dict[str, Callable[[Path], None]] = {
    "touched": _touch,
    "same size": _same_size,
    "other rows": _rewritten(_rows(5000)),
    "fewer row groups": _rewritten(_rows(0, 9)),
    "other columns": _rewritten(_rows(0).drop_columns(["s"])),
    "other types": _rewritten(_rows(0).set_column(0, "k", pa.array([f"k{i}" for i in range(40)]))),
    "replaced": _replaced,
    "half written": _cut,
    "gone": Path.unlink,
}
READS: dict[str, Callable[[ss.Table], Any]] = {
    "to_table": lambda table: table.scan(WHERE).to_table(),
    "to_table, all columns match": lambda table: table.scan().to_table(),
    "to_batches": lambda table: list(table.scan(WHERE).to_batches()),
    "to_reader": lambda table: table.scan(WHERE).to_reader().read_all(),
    "to_pandas": lambda table: table.scan(WHERE).to_pandas(),
    "count": lambda table: table.scan(WHERE).count(),
    "min": lambda table: table.scan(WHERE).min("n"),
    "fragments": lambda table: table.scan(WHERE).fragments().to_table(),
}


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changed_since_it_was_indexed_is_not_read(
    table: ss.Table, tmp_path: Path, change: str, read: str
) -> None:
    CHANGES[change](tmp_path / NAME)
    with pytest.raises(ss.NotReadableError, match=rf"{NAME}: .*sync\(\)") as caught:
        READS[read](table)
    assert caught.value.paths == [NAME]
    assert table.scan("k >= 1000").to_table().num_rows == 40  # the other one
    if change == "half written":  # rule 56: its rows do not go silently
        table.sync()
        with pytest.raises(ss.NotReadableError, match=rf"{NAME}: .*quarantined \(not a whole Parquet file.*sync\(\)"):
            READS[read](table)
        (tmp_path / NAME).unlink()
    if change not in ("other columns", "other types"):
        table.sync()
        READS[read](table)


def test_an_error_over_the_planned_file_stays_what_it_is(table: ss.Table, tmp_path: Path) -> None:
    planning = table.scan(WHERE).planning
    task = next(task for task in planning.tasks if task.path == NAME)
    with pytest.raises(KeyError), verify_unchanged(task, planning.storage):
        raise KeyError("of another thing")
    with pytest.raises(ss.NotReadableError, match="overwritten"), verify_unchanged(task, planning.storage):
        _touch(tmp_path / NAME)
        raise KeyError("a column of the other file")


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("when", ["before it is opened", "once it is open"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("read", ["to_table", "to_batches", "count"])
def test_a_file_that_changes_while_it_is_read_gives_no_rows(
    table: ss.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, when: str, read: str
) -> None:
    _change_at_open(monkeypatch, tmp_path, CHANGES[change], when)
    with pytest.raises(ss.NotReadableError, match=rf"{NAME}: .*sync\(\)"):
        READS[read](table)


def _change_at_open(monkeypatch: pytest.MonkeyPatch, root: Path, change: Callable[[Path], None], when: str) -> None:
    real, left = reading_rows.open_parquet, [change]

    def open_parquet(storage: Any, asked: Any, **options: Any) -> Any:
        file = real(storage, asked, **options) if when == "once it is open" else None
        if getattr(asked, "path", asked) == NAME and left:
            left.pop()(root / NAME)
        return real(storage, asked, **options) if file is None else file

    monkeypatch.setattr(reading_rows, "open_parquet", open_parquet)


@pytest.mark.parametrize("change", CHANGES)
def test_an_executor_hands_on_no_rows_read_after_a_change(table: ss.Table, tmp_path: Path, change: str) -> None:
    """It yields row group by row group: rows before the change are the planned file's, and none follow."""
    plan = table.scan(WHERE)
    task = next(task for task in plan.planning.tasks if task.path == NAME)
    task, context = pickle.loads(pickle.dumps((task, plan.planning.context)))
    (groups,) = row_groups_of([task], context, open_storage(context.index_location))
    reader = matches_in_file(task, groups, context, Counted(open_storage(context.location)))
    assert next(reader)[1].column("k").to_pylist() == [5, 6, 7]
    CHANGES[change](tmp_path / NAME)
    with pytest.raises(ss.NotReadableError, match=rf"{NAME}: .*sync\(\)"):
        list(reader)


def test_a_filter_is_not_built_of_another_file_than_was_indexed(table: ss.Table, tmp_path: Path) -> None:
    _same_size(tmp_path / NAME)
    with pytest.warns(UserWarning, match=rf"{NAME}: overwritten since it was indexed; sync\(\)"):
        table.create_index("s", kind="bloom")
    with pytest.raises(ss.NotReadableError, match=NAME):
        table.scan("s = 's7'").to_table()
