"""`delete` and `upsert` ask, foresee what they would change, and change it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss


@pytest.fixture
def lake(tmp_path: Path) -> str:
    root = tmp_path / "lake"
    root.mkdir()
    for number in range(3):
        ids = [f"k{number}{i}" for i in range(10)]
        pq.write_table(pa.table({"id": ids, "v": range(10)}), root / f"f{number}.parquet")
    ss.create(root)
    return str(root)


def test_delete_asks_first(say, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    foreseen = "rows 2 deleted; 1 file written again"
    status, out, _ = say("delete", lake, "--where", "id IN ('k01', 'k02')", "--dry-run")
    assert (status, out) == (0, f"f0.parquet: 2 rows\nnothing was done; would change: {foreseen}\n")
    for answer, version in (("n", 1), ("y", 2)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        assert say("delete", lake, "--where", "id IN ('k01', 'k02')")[0] == 0
        assert ss.open(lake).version == version
    assert say("delete", lake, "--where", "id = 'k01'")[1] == "version 2: rows 0; 0 files written again\n"
    done = json.loads(say("delete", lake, "--where", "true", "--json")[1])
    assert (done["dry_run"], done["rows_deleted"]) == (True, 28)
    done = json.loads(say("delete", lake, "--where", "true", "--json", "--yes")[1])
    assert (done["dry_run"], done["version"]) == (False, 3) and ss.open(lake).scan().count() == 0


def test_upsert(say, lake: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": ["k11", "new"], "v": [100, 200]}), rows)
    done = json.loads(say("upsert", lake, str(rows), "--on", "id", "--yes", "--json", "--key", "job")[1])
    assert (done["version"], done["rows_updated"], done["rows_inserted"]) == (2, 1, 1)
    say("upsert", lake, str(rows), "--on", "id", "--yes", "--key", "job")
    assert ss.open(lake).version == 2 and ss.open(lake).scan("v >= 100").count() == 2
    options = ("--when-matched", "delete", "--when-not-matched", "nothing", "--yes")
    assert "rows 2 deleted" in say("upsert", lake, str(rows), "--on", "id", *options)[1]
    status, _, err = say("upsert", lake, str(tmp_path / "none.parquet"), "--on", "id", "--yes")
    assert status == 1 and "none.parquet" in err
    assert say("upsert", lake, str(rows), "--on", "nope", "--yes")[0] == 1
