"""Old instants in archives: every version is read as before, names stay taken, and opening stays a few reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import faults
import pyarrow as pa
import pytest
import skipstone as ss
from skipstone.engine.state import timeline as timelines
from skipstone.engine.state import version_files

pytestmark = pytest.mark.usefixtures("at_any_place")

SCHEMA = pa.schema([("x", pa.int64())])
VERSIONS = 47


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of many versions, of which each test takes a copy."""
    root = tmp_path_factory.mktemp("origin") / "lake"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(version_files, "VERSIONS_A_FOLDER", 10)
        made = ss.create(root, schema=SCHEMA, partitioning=None)
        while made.version < VERSIONS:
            with made.transaction(key=f"k{made.version}") as tx:
                tx.set_commit_state({"c": "failed" if made.version % 2 else "inflight"})
    return root


@pytest.fixture
def table(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ss.Table:
    monkeypatch.setattr(version_files, "VERSIONS_A_FOLDER", 10)
    return ss.open(shutil.copytree(origin, tmp_path / "lake"))


def _folders(table: ss.Table) -> list[str]:
    return sorted(f.parent.name for f in Path(table.handle.index_storage.root).glob("timeline/*/archive.sbf"))


def test_history_and_every_version_are_as_they_were(table: ss.Table) -> None:
    before, totals = (
        table.history(),
        [ss.open(table.location, version=v).handle.instant for v in range(1, VERSIONS + 1)],
    )
    table.handle.timeline.archive(table.version)
    assert _folders(table) == ["00000", "00001", "00002"]
    table.handle.forget()
    assert ss.open(table.location).history().equals(before)
    assert [ss.open(table.location, version=v).handle.instant for v in range(1, VERSIONS + 1)] == totals
    time = before["time"][16].as_py()
    assert ss.open(table.location, as_of=time).version == 17


def test_what_is_archived_is_archived_once(table: ss.Table) -> None:
    table.handle.timeline.archive(table.version)
    files = {f: f.stat().st_mtime_ns for f in Path(table.handle.index_storage.root).rglob("timeline/*/*")}
    table.handle.timeline.archive(table.version)
    assert files == {f: f.stat().st_mtime_ns for f in Path(table.handle.index_storage.root).rglob("timeline/*/*")}


def test_a_key_lives_on_in_the_archive(table: ss.Table) -> None:
    table.handle.timeline.archive(table.version)
    with table.transaction(key="k3") as tx:
        tx.set_commit_state({"other": "failed"})
    assert tx.committed is not None
    assert (tx.committed.version, ss.open(table.location).version) == (4, VERSIONS)


@pytest.mark.parametrize("hint", ["3", "31", "", None, "999", "x" * 40])
def test_rule_08_names_stay_taken_and_the_latest_is_found_from_any_hint(table: ss.Table, hint: str | None) -> None:
    table.handle.timeline.archive(table.version)
    paths = [version_files.instant_path(v) for v in range(1, VERSIONS + 1)]
    assert all(not table.handle.index_storage.put_if_absent(path, b"{}") for path in paths)
    table.handle.forget()
    told = Path(table.handle.index_storage.root, "timeline/HINT")
    told.unlink() if hint is None else told.write_text(hint)
    assert ss.open(table.location).version == VERSIONS


def test_opening_from_a_hint_far_behind_lists_instead_of_probing(
    table: ss.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelines, "_PROBES_MAX", 4)
    table.handle.forget()
    Path(table.handle.index_storage.root, "timeline/HINT").write_text("2")
    opened = ss.open(table.location)
    assert opened.version == VERSIONS
    assert opened.handle.index_storage.reading()[0] < 30


def test_a_crash_while_archiving_loses_nothing(table: ss.Table) -> None:
    before = table.history()
    with faults.fault_at(0, faults.KilledError) as counting:
        table.handle.timeline.archive(0)
    calls = 0
    while True:
        calls += 7
        try:
            with faults.fault_at(calls, faults.KilledError, lasting=True) as counting:
                table.handle.timeline.archive(table.version)
            break
        except faults.KilledError:
            table.handle.forget()
            assert ss.open(table.location).history().equals(before)
    assert counting.calls < calls
    assert _folders(table) == ["00000", "00001", "00002"]
    table.handle.forget()
    assert ss.open(table.location).history().equals(before)
