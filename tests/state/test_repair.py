"""Going on after versions that were lost: beyond every name, and never beside a writer that waits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from skipstone.engine.state import timeline as timelines
from timeline_lakes import commit, file, lake, opened, rows


@pytest.mark.parametrize("loss", ["gone", "damaged", "copied", "three"])
def test_repair_goes_on_beyond_every_name_that_ever_stood(tmp_path: Path, loss: str) -> None:
    table = lake(tmp_path)
    table.create_index("x", kind="bloom")
    lost = [5, 6, 7] if loss == "three" else [7]
    for version in lost:
        if loss in ("gone", "three"):
            file(tmp_path, version).unlink()
        elif loss == "damaged":
            file(tmp_path, version).write_bytes(b"not an instant")
        else:
            shutil.copy(file(tmp_path, 3), file(tmp_path, version))
    timelines._seen.clear()
    told = ss.repair(tmp_path, dry_run=True)
    assert (told.base, list(told.lost), told.version, told.is_needed) == (lost[0] - 1, lost, lost[0] - 1, True)
    made = ss.repair(tmp_path)
    assert (made.version, made.base, list(made.lost)) == (8, lost[0] - 1, lost)
    table = opened(tmp_path, strict=True)
    assert table.version == 8 and rows(table) == list(range(2, lost[0]))
    assert table.verify(deep=True) == []
    assert table.history()["action"].to_pylist()[-1] == "repair"
    assert table.history()["version"].to_pylist() == [*range(1, lost[0]), 8]
    for version in lost:
        with pytest.raises(ss.NotATableError, match="was lost"):
            opened(tmp_path, version=version)
    assert not ss.repair(tmp_path).is_needed and opened(tmp_path).version == 8
    assert commit(table, 9) == 9 and table.scan("x = 9").count() == 1
    table.optimize(), table.clean(retain_versions=1)
    assert rows(opened(tmp_path)) == [*range(2, lost[0]), 9]


def test_who_began_before_a_repair_commits_after_it(tmp_path: Path) -> None:
    table = lake(tmp_path, 5)
    writer = ss.open(tmp_path)
    with writer.transaction() as tx:
        tx.write(pa.table({"x": [99]}))
        commit(table, 6)
        file(tmp_path, 6).unlink()
        ss.repair(tmp_path)
    assert writer.version == 8 and rows(opened(tmp_path)) == [2, 3, 4, 5, 99]


def test_a_repair_and_a_writer_never_both_take_a_lost_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that has looked already, and waits before its put, while the version after its base is given up."""
    table = lake(tmp_path, 5)
    other = ss.open(tmp_path)
    real = timelines.Timeline.publish

    def publish(self, instant) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(timelines.Timeline, "publish", real)
            if instant.version == 6:
                commit(other, 6)
                file(tmp_path, 6).unlink()
                ss.repair(tmp_path)
        return real(self, instant)

    monkeypatch.setattr(timelines.Timeline, "publish", publish)
    assert commit(table, 99) == 8 and rows(opened(tmp_path)) == [2, 3, 4, 5, 99]


def test_a_repair_that_was_broken_off_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake(tmp_path)
    file(tmp_path, 6).unlink()
    timelines._seen.clear()
    with monkeypatch.context() as patch:
        patch.setattr(timelines.Timeline, "publish", lambda self, instant: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ss.repair(tmp_path)
    (tmp_path / ".skipstone/timeline/HINT").unlink()
    fallen = ss.open(tmp_path)
    assert fallen.version == 5
    with pytest.raises(ss.CorruptionError, match="repair"):
        commit(fallen, 99)
    assert ss.repair(tmp_path).version == 7 and commit(table.refresh(), 8) == 8


def test_an_older_gap_that_is_accepted_is_told_no_more(tmp_path: Path) -> None:
    lake(tmp_path)
    file(tmp_path, 4).unlink()
    made = ss.repair(tmp_path)
    assert (made.base, made.lost, made.version) == (6, (4,), 7)
    table = opened(tmp_path)
    assert rows(table) == [2, 3, 4, 5, 6] and table.verify(deep=True) == []
    assert json.loads(file(tmp_path, 4).read_bytes())["lost"] == 4


def test_nothing_is_repaired_where_nothing_is_whole(tmp_path: Path) -> None:
    with pytest.raises(ss.NotATableError, match="no version that is whole"):
        ss.repair(tmp_path)
    lake(tmp_path, 1)
    file(tmp_path, 1).write_bytes(b"")
    with pytest.raises(ss.NotATableError, match="no version that is whole"):
        ss.repair(tmp_path)
