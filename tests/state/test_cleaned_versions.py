"""Cleaned versions shrink in their place: history stays, names stay taken, and writers go past them."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import write_rows
from skipstone.engine.state import timeline

pytestmark = pytest.mark.usefixtures("at_any_place")

SCHEMA = pa.schema([("x", pa.int64())])
VERSIONS = 47


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of many versions, of which each test takes a copy."""
    root = tmp_path_factory.mktemp("origin") / "lake"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline, "VERSIONS_A_FOLDER", 10)
        made = ss.create(root, schema=SCHEMA, partitioning=None)
        while made.version < VERSIONS:
            with made.transaction(key=f"k{made.version}") as tx:
                tx.set_commit_state({"c": "failed" if made.version % 2 else "inflight"})
    return root


@pytest.fixture
def table(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ss.Table:
    monkeypatch.setattr(timeline, "VERSIONS_A_FOLDER", 10)
    return ss.open(shutil.copytree(origin, tmp_path / "lake"))


def _clean(table: ss.Table) -> None:
    table.clean(retain_versions=5, min_age=dt.timedelta(0))


def _stored(table: ss.Table) -> dict[int, int]:
    """version -> the size of its file."""
    return {v: entry.size_bytes for v, entry in table.handle.timeline.names(1, table.version).items()}


def test_history_is_as_it_was_and_cleaned_versions_say_so(table: ss.Table) -> None:
    before, sizes = table.history(), _stored(table)
    _clean(table)
    after = _stored(table)
    assert all(after[v] < sizes[v] for v in range(1, VERSIONS - 4)) and after[VERSIONS] == sizes[VERSIONS]
    table.handle.forget()
    table = ss.open(table.location)
    assert table.history().slice(0, VERSIONS).equals(before) and table.verify(deep=True) == []
    for version in (1, 17, VERSIONS - 5):
        with pytest.raises(ss.NotATableError, match=f"version {version} was cleaned"):
            ss.open(table.location, version=version)
        with pytest.raises(ss.NotATableError, match=f"version {version} was cleaned"):
            table.restore(version)
    with pytest.raises(ss.NotATableError, match="was cleaned"):
        ss.open(table.location, as_of=before["time"][16].as_py())
    assert ss.open(table.location, as_of=before["time"][VERSIONS - 2].as_py()).version == VERSIONS - 1


def test_what_is_shrunk_is_shrunk_once(table: ss.Table) -> None:
    _clean(table)
    files = {f: f.stat().st_mtime_ns for f in Path(table.handle.index_storage.root).rglob("timeline/*/*.json")}
    _clean(table)
    assert files == {f: f.stat().st_mtime_ns for f in Path(table.handle.index_storage.root).rglob("timeline/*/*.json")}


def test_a_key_outlives_its_version(table: ss.Table) -> None:
    _clean(table)
    with table.transaction(key="k3") as tx:
        tx.set_commit_state({"other": "failed"})
    assert tx.committed is not None
    assert (tx.committed.version, ss.open(table.location).version) == (4, VERSIONS + 1)


@pytest.mark.parametrize("verb", ["clean", "purge"])
def test_rule_08_a_retry_under_a_key_moves_no_handle_to_a_cleaned_version(tmp_path: Path, verb: str) -> None:
    """It lists no files, so the table would look empty, and the next commit would rest on it."""
    table = ss.create(tmp_path / "lake", schema=SCHEMA, partitioning=None)
    stale = ss.open(table.location)
    for number, key in enumerate(("k", None)):
        with table.transaction(key=key) as tx:
            tx.write(pa.table({"x": [number]}))
    now = dt.timedelta(0)
    table.purge(min_age=now) if verb == "purge" else table.clean(retain_versions=1, min_age=now)
    assert table.handle.timeline.find(2).is_shrunk
    with stale.transaction(key="k") as tx:
        tx.write(pa.table({"x": [0]}))
    assert tx.committed is not None and tx.committed.version == 2
    assert stale.version == table.version and stale.scan().count() == 2
    write_rows(stale, pa.table({"x": [2]}))
    assert sorted(ss.open(table.location).scan().to_table()["x"].to_pylist()) == [0, 1, 2]


def test_rule_07_a_writer_that_began_before_cleaned_versions_reads_all_of_them(table: ss.Table) -> None:
    """One gave it up, and was cleaned since; another appends nothing that rests on what was removed."""
    early, given_up = ss.open(table.location), ss.open(table.location)
    with pytest.raises(ss.CommitConflictError, match="gave this transaction up"), given_up.transaction() as tx:
        with ss.TaskWriter(tx.task_spec()) as task:
            task.write(pa.table({"x": [1]}))
        tx.add_task(task.result)
        ss.open(table.location).clean(retain_versions=100, min_age=dt.timedelta(0), delete_data=True)
        table.refresh()
        for number in range(12):
            with table.transaction() as other:
                other.set_commit_state({"c": "failed" if number % 2 else "inflight"})
        _clean(table)
        assert table.handle.timeline.find(VERSIONS + 1).is_shrunk
    write_rows(early, pa.table({"x": [2]}))
    assert ss.open(table.location).scan().to_table()["x"].to_pylist() == [2]


@pytest.mark.parametrize("hint", ["3", "31", "", None, "999", "x" * 40])
def test_rule_08_names_stay_taken_and_the_latest_is_found_from_any_hint(table: ss.Table, hint: str | None) -> None:
    _clean(table)
    paths = [timeline.instant_path(v) for v in range(1, VERSIONS + 1)]
    assert all(not table.handle.index_storage.put_if_absent(path, b"{}") for path in paths)
    table.handle.forget()
    file = Path(table.handle.index_storage.root, "timeline/HINT")
    file.unlink() if hint is None else file.write_text(hint)
    assert ss.open(table.location).version == VERSIONS + 1


def test_opening_from_a_hint_far_behind_lists_instead_of_probing(
    table: ss.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "_PROBES_MAX", 4)
    table.handle.forget()
    Path(table.handle.index_storage.root, "timeline/HINT").write_text("2")
    opened = ss.open(table.location)
    assert opened.version == VERSIONS
    assert opened.handle.index_storage.reading()[0] < 30
