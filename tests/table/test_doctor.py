"""`doctor`: problems are found with a remedy, sound tables have none, and no file is left behind."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import skipstone as ss
from lake_strategies import make_file


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    for number in range(3):
        make_file(root, f"{number}.parquet", {"id": [f"{number}-{i}" for i in range(20)]})
    with ss.create(root) as table:
        table.create_index("id", kind="bloom")
    return root


def _checks(lake: Path) -> dict[str, ss.Check]:
    return {check.name: check for check in ss.doctor(lake)}


def test_a_sound_table_has_no_finding_and_no_file_is_left_behind(lake: Path) -> None:
    before = sorted(file for file in lake.rglob("*") if file.is_file())
    checks = _checks(lake)
    assert [check for check in checks.values() if check.is_finding] == []
    assert {"python", "numpy", "pyarrow", "numba", "kernels", "table", "storage", "clock", "files"} <= set(checks)
    assert checks["bloom(id)"].status == "ok"
    assert "table" not in {check.name for check in ss.doctor()}
    assert sorted(file for file in lake.rglob("*") if file.is_file()) == before


def test_files_that_are_not_indexed_quarantined_files_and_damage_are_found(lake: Path) -> None:
    make_file(lake, "3.parquet", {"id": ["new"]})
    (lake / "4.parquet").write_bytes(b"PAR1 this is none PAR1")
    ss.open(lake).sync()
    checks = _checks(lake)
    assert checks["bloom(id)"].status == "warning"
    assert "1 of 4" in checks["bloom(id)"].detail
    assert "4.parquet" in checks["quarantined file"].detail
    (lake / "0.parquet").unlink()
    assert _checks(lake)["missing file"].status == "problem"
    run = max((lake / ".skipstone").rglob("*.sbf"), key=lambda file: file.stat().st_size)
    run.write_bytes(run.read_bytes()[:-20])
    assert any(check.status == "problem" for check in _checks(lake).values())


def test_a_folder_without_a_table(tmp_path: Path) -> None:
    check = _checks(tmp_path)["table"]
    assert (check.status, check.is_finding) == ("problem", True)
    assert "create" in check.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_storage_that_is_read_only(lake: Path) -> None:
    folders = [lake / ".skipstone", *(f for f in (lake / ".skipstone").rglob("*") if f.is_dir())]
    try:
        for folder in folders:
            folder.chmod(0o500)
        assert _checks(lake)["storage"].status == "warning"
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_a_clock_that_is_ahead(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 600 * 1_000_000_000)
    check = _checks(lake)["clock"]
    assert check.status == "warning"
    assert "ahead" in check.detail


def test_a_moved_table(lake: Path) -> None:
    moved = lake.with_name("moved")
    lake.rename(moved)
    assert _checks(moved)["table"].remedy == "skipstone adopt"


def test_without_a_compiler_and_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    checks = {check.name: check for check in ss.doctor()}
    assert checks["kernels"].status == "warning"
    assert (checks["java"].status, checks["java"].remedy != "") == ("warning", True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    assert {check.name: check for check in ss.doctor()}["java"].status == "ok"


def test_the_command(say, lake: Path) -> None:
    status, output, _ = say("doctor", str(lake))
    assert status == 0 and "nothing found" in output
    (lake / "0.parquet").unlink()
    status, output, _ = say("doctor", str(lake), "--json")
    assert status == 3
    assert [check["name"] for check in json.loads(output) if check["status"] == "problem"] == ["missing file"]
