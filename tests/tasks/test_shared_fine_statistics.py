"""Files with few row groups share a range of fine statistics: each file's entries are found by the mark of its path."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone.engine.indexes.task_result import path_mark
from skipstone.errors import CorruptionError


def _lake(folder: Path, seed: int, files: int) -> dict[str, list[pa.Table]]:
    """Files of 1 to 3 row groups, and one of 300 in the middle: their row groups by path."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    groups: dict[str, list[pa.Table]] = {}
    for number in range(files):
        count = 300 if number == files // 2 else int(rng.integers(1, 4))
        path = f"part-{number:03d}.parquet"
        rows = pa.table({"id": rng.integers(0, 2_000, 5 * count), "name": rng.choice(["a", "b", "c"], 5 * count)})
        pq.write_table(rows, folder / path, row_group_size=5)
        groups[path] = [rows.slice(5 * group, 5) for group in range(count)]
    return groups


def _places(table: ss.Table) -> pa.Table:
    from skipstone.engine.scan.prune import StatsReader

    snapshot = table.handle.snapshot
    ids = np.sort(table.files(columns=["file_id"]).column("file_id").to_numpy())
    return StatsReader(snapshot).fine_locations(ids, ())[0]


def test_each_file_is_pruned_by_its_own_entries(tmp_path: Path) -> None:
    groups = _lake(tmp_path / "lake", 1, 120)
    with ss.create(tmp_path / "lake") as table:
        places = set(
            zip(*(_places(table).column(name).to_pylist() for name in ("fine_offset", "fine_length")), strict=True)
        )
        assert 2 < len(places) < 30, "few ranges for 120 files"
        for low, high in [(0, 3), (50, 51), (500, 800), (1_990, 2_100), (3_000, 4_000)]:
            plan = table.scan(f"id >= {low} AND id < {high}")
            kept = {(row["path"], row["row_group"]) for row in plan.row_groups().to_pylist()}
            expected = {
                (path, group)
                for path, parts in groups.items()
                for group, rows in enumerate(parts)
                if rows.column("id").to_numpy().min() < high and rows.column("id").to_numpy().max() >= low
            }
            assert kept == expected
            rows = pa.concat_tables([part for parts in groups.values() for part in parts])
            ids = rows.column("id").to_numpy()
            assert plan.count() == int(((ids >= low) & (ids < high)).sum())
        assert table.scan().min("id") == int(ids.min()) and table.scan().max("id") == int(ids.max())
        assert table.verify(deep=True) == []


def test_entries_of_another_table_exclude_nothing(tmp_path: Path) -> None:
    """The task index file of another lake is copied over ours. It has the same layout, and other paths."""
    for name in ("lake", "other"):
        _lake(tmp_path / name, 2, 12)
    for number in range(12):
        (tmp_path / "other" / f"part-{number:03d}.parquet").rename(tmp_path / "other" / f"past-{number:03d}.parquet")
    for name in ("lake", "other"):
        ss.create(tmp_path / name).close()
    (ours,), (theirs,) = (list((tmp_path / name / ".skipstone/tasks").rglob("*.sbf")) for name in ("lake", "other"))
    shutil.copy(theirs, ours)
    with ss.open(tmp_path / "lake") as table, pytest.warns(UserWarning, match="of another file"):
        assert len(table.scan("id = 3000").row_groups()) == 0, "the bounds of files are not fine statistics"
        kept = table.scan("id >= 0").row_groups()
        assert set(kept.column("row_group").to_pylist()) == {None}
    with ss.open(tmp_path / "lake", strict=True) as table, pytest.raises(CorruptionError, match="of another file"):
        table.scan("id >= 0").row_groups()


def test_marks_differ() -> None:
    assert len({path_mark(f"day={number}/part-0.parquet") for number in range(100_000)}) == 100_000
