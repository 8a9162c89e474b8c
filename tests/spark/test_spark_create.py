"""Attaching by executors gives the table that attaching here gives, and the same errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone import spark_adapter as sks
from skipstone.spark_adapter import executors
from spark_in_process import run_here


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)


def test_many_files_go_in_parts_with_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_PART_FILES_MIN", 5)
    draw = np.random.default_rng(1)
    for at in range(40):
        pq.write_table(pa.table({"k": draw.integers(0, 1000, 20)}), tmp_path / f"{at}.parquet")
    steps: list[tuple[str, int, int | None]] = []
    table = sks.create(None, tmp_path, progress=lambda *told: steps.append(told))
    assert (table.version, table.files().num_rows, steps[-1]) == (1, 40, ("footers, parts", 8, 8))
    tasks = [p.name for p in (tmp_path / ".skipstone" / "tasks").rglob("*.sbf")]
    assert len(tasks) == 8 and not [name for name in tasks if "listing" in name]
    assert table.verify(deep=True) == []
    with pytest.raises(ss.InvalidArgumentError, match="already indexed"):
        sks.create(None, tmp_path)
    for path in (tmp_path / "3.parquet", tmp_path / "gone.parquet"):
        other = tmp_path.parent / f"{path.stem}-index"
        path.write_bytes(b"nothing") if path.exists() else None
        with pytest.raises((ss.CorruptionError, ss.NotATableError)) as caught:
            sks.create(None, tmp_path, files=["1.parquet", path.name], index_path=other)
        with pytest.raises(type(caught.value)) as here:
            ss.create(tmp_path, files=["1.parquet", path.name], index_path=other)
        assert str(caught.value) == str(here.value)
        assert not list(other.rglob("*.sbf")), "what the others wrote is removed"
