"""Soundness was not bought by keeping everything: what can be skipped is skipped, and filters keep their promise."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import skipstone as ss


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


def test_nothing_of_a_skipped_file_is_read(tmp_path: Path) -> None:
    for number in range(4):
        pq.write_table(pa.table({"a": pc.add(pa.array(range(1000)), 1000 * number)}), tmp_path / f"{number}.parquet")
    table = ss.create(tmp_path)
    for number in (0, 1, 3):
        (tmp_path / f"{number}.parquet").unlink()
    assert table.scan("a = 2500").to_table().num_rows == 1
