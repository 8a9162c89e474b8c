"""Soundness was not bought by keeping everything: what can be skipped is skipped, and filters keep their promise."""

from __future__ import annotations

import math
import os
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone import col


def test_partition_values_prune_before_any_statistics_are_read(tmp_path: Path) -> None:
    for year in (2019, 2020):
        for name in ("a b", "c%2Fd", "__HIVE_DEFAULT_PARTITION__"):
            folder = tmp_path / f"year={year}" / f"name={name}"
            os.makedirs(folder)
            pq.write_table(pa.table({"k": [year]}), folder / "f.parquet")
    table = ss.create(tmp_path)
    cases = {
        "year = 2020": 3,
        "year > 2020": 0,
        "name = 'c/d'": 2,
        "name IS NULL": 2,
        "name IS NOT NULL AND year != 2019": 2,
        "name LIKE 'a%'": 2,
        "year = 2020 AND name = 'a b'": 1,
        "NOT (year = 2020 OR name = 'c/d')": 1,
        "year IN (2019, 7) AND name IS NULL": 1,
        "year = 2020 OR k = 2019": 6,
        "name != 'a b'": 2,
        "name <=> NULL": 2,
    }
    for where, files in cases.items():
        plan = table.scan(where)
        assert plan.files().num_rows == files, where
        if "k" not in where:
            step = plan.steps[0]
            assert (step.name, step.came_in, step.went_out) == ("partitions", 6, files), where
            assert plan.count() == files, where


def _uuid_lake(root: Path, files: int, groups: int, rows: int) -> list[list[str]]:
    rng = np.random.default_rng(7)
    made = []
    for number in range(files):
        ids = [str(uuid.UUID(bytes=rng.bytes(16))) for _ in range(groups * rows)]
        made.append(ids)
        pq.write_table(
            pa.table({"id": ids, "n": list(range(len(ids)))}), root / f"{number:02}.parquet", row_group_size=rows
        )
    return made


@pytest.mark.parametrize("fpp", [0.1, 0.01])
def test_filters_prune_files_and_row_groups_at_the_false_positive_rate_asked_for(tmp_path: Path, fpp: float) -> None:
    made = _uuid_lake(tmp_path, files=10, groups=5, rows=300)
    table = ss.create(tmp_path)
    table.create_index("id", kind="bloom", fpp=fpp)
    every = [i for ids in made for i in ids]
    for value in every[::1499]:
        plan = table.scan(col("id") == value)
        assert plan.to_table().column("id").to_pylist() == [value]
        assert plan.row_groups().num_rows <= 1 + 50 * fpp + 4 * math.sqrt(50 * fpp)
    tries = 60
    files = groups = 0
    for number in range(tries):
        plan = table.scan(col("id") == f"{number:08x}-0000-4000-8000-{number * 7919:012x}")
        files += plan.files().num_rows
        groups += plan.row_groups().num_rows
    # Ten files and fifty row groups per try; four standard deviations above what is promised: a file is read if one of
    # its row groups is.
    for found in (files, groups):
        assert found <= 50 * tries * fpp + 4 * math.sqrt(50 * tries * fpp)
    several = table.scan(col("id").is_in([made[0][0], made[9][-1]]))
    assert several.count() == 2
    assert several.files().num_rows <= 2 + 100 * fpp + 4
    assert {"00.parquet", "09.parquet"} <= set(several.files().column("path").to_pylist())


def test_nothing_of_a_skipped_file_is_read(tmp_path: Path) -> None:
    for number in range(4):
        pq.write_table(pa.table({"a": pc.add(pa.array(range(1000)), 1000 * number)}), tmp_path / f"{number}.parquet")
    table = ss.create(tmp_path)
    for number in (0, 1, 3):
        (tmp_path / f"{number}.parquet").unlink()
    assert table.scan("a = 2500").to_table().num_rows == 1
