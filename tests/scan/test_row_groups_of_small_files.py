"""The statistics of row groups are read for large files, and not for small ones. The rows are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
import skipstone.engine.scan.planning as planning
import skipstone.engine.scan.row_groups as fine

FILES, GROUPS, ROWS = 20, 4, 1_000


def lake_of(folder: Path, keys: np.ndarray) -> ss.Table:
    """Files of these values, in row groups of ROWS."""
    for number, of_file in enumerate(keys):
        rows = pa.table({"k": of_file, "n": np.arange(len(of_file))})
        pq.write_table(rows, folder / f"{number:02}.parquet", row_group_size=min(ROWS, len(of_file) // GROUPS))
    return ss.create(folder)


def rows_looked_at(plan: ss.Plan) -> int:
    (step,) = [step for step in plan.steps if step.name == "rows"]
    return step.came_in


@pytest.fixture
def pruned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many files statistics were read, each time."""
    counts: list[int] = []
    read = fine.read_fine_rows

    def counted(tasks: list, *arguments: object) -> fine.FineRows:
        counts.append(len(tasks))
        return read(tasks, *arguments)

    monkeypatch.setattr(fine, "read_fine_rows", counted)
    return counts


def test_of_small_files_no_statistics_are_read(tmp_path: Path, pruned: list[int]) -> None:
    keys = np.random.default_rng(1).integers(0, 100, (FILES, GROUPS * ROWS))
    table = lake_of(tmp_path, keys)
    plan = table.scan("k < 3")
    assert plan.to_table().num_rows == (keys < 3).sum()
    assert sum(pruned) == 0 and rows_looked_at(plan) == keys.size
    assert plan.row_groups().num_rows == FILES * GROUPS  # of all files, if they are asked for


def test_of_large_files_they_are_read(tmp_path: Path, pruned: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    keys = np.sort(np.random.default_rng(2).integers(0, 100, (FILES, GROUPS * ROWS)))  # each file for itself
    table = lake_of(tmp_path, keys)
    monkeypatch.setattr(planning, "_WHOLE_FILE_ROWS_MAX", 100)
    plan = table.scan("k < 3")
    assert plan.to_table().num_rows == (keys < 3).sum()
    assert sum(pruned) == FILES and rows_looked_at(plan) <= FILES * 2 * ROWS


def test_of_files_in_which_all_rows_match_no_statistics_are_read(tmp_path: Path, pruned: list[int]) -> None:
    keys = np.arange(FILES * GROUPS * ROWS).reshape(FILES, -1)
    table = lake_of(tmp_path, keys)
    assert table.scan("k >= 0").to_table().num_rows == keys.size
    assert sum(pruned) == 0
