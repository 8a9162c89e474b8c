"""Files of the timeline that are lost or replaced: no read loops, and none answers for another version."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from skipstone.engine.state import timeline
from timeline_lakes import VERSIONS, commit, file, lake, opened, rows

pytestmark = pytest.mark.usefixtures("at_any_place", "small_folders")


@pytest.fixture(scope="module")
def small_folders() -> Iterator[None]:
    """Folders of the timeline end after four versions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline, "VERSIONS_A_FOLDER", 4)
        yield


@pytest.mark.parametrize(("of", "over"), [(3, 6), (3, 5), (6, 4), (6, 7), (3, 7), (5, 6)])
def test_rule_44_an_instant_under_another_name_is_damage_and_names_the_file(tmp_path: Path, of: int, over: int) -> None:
    lake(tmp_path)
    shutil.copy(file(tmp_path, of), file(tmp_path, over))
    message = rf"{over:010d}\.json: contains version {of}"
    with pytest.raises(ss.CorruptionError, match=message):
        opened(tmp_path, version=over)
    if over >= VERSIONS:
        for act in (opened, lambda root: ss.open(root).history()):
            with pytest.raises(ss.CorruptionError, match=message):
                act(tmp_path)
        assert rows(opened(tmp_path, version=4)) == [2, 3, 4]
    else:
        table = opened(tmp_path)
        assert rows(table) == [2, 3, 4, 5, 6]
        assert [f.path for f in table.verify(deep=True)] == [timeline.instant_path(over)]
        assert commit(table, 7) == 7 and rows(opened(tmp_path)) == [2, 3, 4, 5, 6, 7]


def test_an_instant_of_another_table_is_damage_under_its_own_number_too(tmp_path: Path) -> None:
    lake(tmp_path / "mine"), lake(tmp_path / "other", 9)
    shutil.copy(file(tmp_path / "other", 4), file(tmp_path / "mine", 4))
    with pytest.raises(ss.CorruptionError, match=r"0004\.json: an instant of another table"):
        opened(tmp_path / "mine", version=4)
    table = opened(tmp_path / "mine")
    found = {f.path: f.message for f in table.verify(deep=True)}
    assert set(found) == {timeline.instant_path(v) for v in (4, 5)}
    assert "another table" in found[timeline.instant_path(4)]
    shutil.copy(file(tmp_path / "other", 7), file(tmp_path / "mine", 7))
    with pytest.raises(ss.CorruptionError, match=r"0007\.json: an instant of another table"):
        opened(tmp_path / "mine")
    with pytest.raises(ss.CorruptionError, match=r"0007\.json: an instant of another table"):
        commit(table, 99)


def test_a_version_that_was_replaced_by_another_is_noticed(tmp_path: Path) -> None:
    """Whole, of this table, under its own number: only the next version names another checksum."""
    lake(tmp_path, 3)
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    table, fork = opened(tmp_path), opened(tmp_path.with_name("copy"))
    commit(fork, 44)
    stale = opened(tmp_path)
    commit(table, 4), commit(table, 5)
    shutil.copy(file(tmp_path.with_name("copy"), 4), file(tmp_path, 4))
    [finding] = opened(tmp_path).verify(deep=True)
    assert (finding.kind, finding.path) == ("damaged", timeline.instant_path(5))
    with pytest.raises(ss.CorruptionError, match=r"0005\.json: follows another version 4"):
        commit(stale, 99)
    assert rows(opened(tmp_path)) == [2, 3, 4, 5]


def test_rule_44_a_commit_is_not_acknowledged_under_a_lost_name(tmp_path: Path) -> None:
    stale = lake(tmp_path, 3)
    other = opened(tmp_path)
    for number in (4, 5, 6):
        commit(other, number)
    file(tmp_path, 4).unlink()
    with pytest.raises(
        ss.CorruptionError, match=r"0005\.json: follows version 4, which is missing.*open\(\) the table"
    ):
        commit(stale, 99)
    assert not file(tmp_path, 4).exists() and not list(tmp_path.glob("*.parquet"))[5:]
    table = opened(tmp_path)  # an older gap is a finding and blocks no writer
    assert [(f.kind, f.path) for f in table.verify()] == [("missing", timeline.instant_path(4))]
    assert commit(table, 7) == 7 and stale.refresh().version == 7 and rows(stale) == [2, 3, 4, 5, 6, 7]
    assert table.history()["version"].to_pylist() == [1, 2, 3, 5, 6, 7]
    table.clean(retain_versions=2)
    assert table.optimize() and rows(opened(tmp_path)) == [2, 3, 4, 5, 6, 7]


def test_a_lost_newest_version_is_reported_and_nothing_is_committed_over_it(tmp_path: Path) -> None:
    table = lake(tmp_path)
    file(tmp_path, VERSIONS).unlink()
    timeline._seen.clear()
    with pytest.warns(UserWarning, match=rf"version {VERSIONS} was created and is missing; version 5 is the newest"):
        fallen = ss.open(tmp_path)
    assert fallen.version == 5 and rows(fallen) == [2, 3, 4, 5]
    with pytest.warns(UserWarning, match="restore the file"):
        table.refresh()
    with pytest.raises(ss.CorruptionError, match="restore the file"):
        ss.open(tmp_path, strict=True)
    assert [(f.kind, f.path) for f in fallen.verify()] == [("missing", timeline.instant_path(VERSIONS))]
    before = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    for act in (lambda: commit(fallen, 99), lambda: fallen.savepoint("s"), lambda: fallen.clean(retain_versions=1)):
        with pytest.raises(ss.CorruptionError, match=r"0006\.json: version 6 was created.*restore the file"):
            act()
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == before


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_abort_removes_nothing_that_a_lost_version_may_name(tmp_path: Path, goes_on: bool) -> None:
    table = lake(tmp_path, 3)
    work = table.distributed_transaction()
    with ss.TaskWriter(work.task_spec()) as task:
        task.write(pa.table({"x": [4]}))
    with work.resume() as tx:
        tx.add_task(task.result)
    if goes_on:
        commit(ss.open(tmp_path), 5)
    file(tmp_path, 4).unlink()
    timeline._seen.clear()
    before = sorted(tmp_path.glob("*.parquet"))
    work.abort(task.result)
    assert len(before) == 3 + goes_on and sorted(tmp_path.glob("*.parquet")) == before


@pytest.mark.parametrize("is_hinted", [True, False])
def test_a_table_is_not_empty_if_every_version_after_cleaned_ones_is_lost(tmp_path: Path, is_hinted: bool) -> None:
    """A cleaned version lists no files."""
    table, stale = lake(tmp_path), opened(tmp_path)
    for number in (7, 8, 9):
        commit(table, number)
    table.clean(retain_versions=2, min_age=dt.timedelta(0))
    kept = [v for v in range(1, table.version + 1) if not table.handle.timeline.find(v).is_shrunk]
    assert kept[0] > stale.version
    for version in kept:
        file(tmp_path, version).unlink()
    if not is_hinted:
        (tmp_path / ".skipstone/timeline/HINT").unlink()
    timeline._seen.clear()
    with pytest.raises(ss.CorruptionError, match="was cleaned, and no later"):
        ss.open(tmp_path)
    with pytest.raises(ss.CorruptionError, match="was cleaned, and no later"):
        commit(stale, 99)


_STEP = st.tuples(
    st.sampled_from(["commit", "commit", "stale", "lose", "copy", "swap", "hint", "open", "refresh", "old"]),
    st.integers(0, 9),
    st.integers(0, 9),
)


@settings(max_examples=examples(6), deadline=None, phases=[Phase.generate])
@given(st.lists(_STEP, min_size=4, max_size=10), st.integers(0, 1000))
def test_rule_44_whatever_is_lost_or_copied_no_answer_is_silently_wrong(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], seed: int
) -> None:
    """The model: the rows of each version when it was created. A read returns these, raises one of our errors, or warns
    and returns those of an older version; and the next open shows what a commit acknowledged."""
    root = tmp_path_factory.mktemp("lake")
    chance = random.Random(seed)
    lake(root, 3)
    made = {1: [], 2: [2], 3: [2, 3]}
    handle, number = ss.open(root), 100

    def fresh(read: Callable[[], ss.Table] = lambda: ss.open(root)) -> ss.Table | None:
        timeline._seen.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                table = read()
            except ss.SkipstoneError:
                return None
        assert rows(table) == made[table.version]
        assert table.version == max(made) or caught
        return table

    hint = root / ".skipstone/timeline/HINT"
    for step, one, other in steps:
        # A newest version that is lost together with the hint is forgotten.
        while len(hint.read_bytes()) < 32 and not any(file(root, v).exists() for v in range(max(made), max(made) + 3)):
            del made[max(made)]
        versions = sorted(made)
        first, second = versions[one % len(versions)], versions[other % len(versions)]
        if step in ("commit", "stale"):
            table = handle if step == "stale" else fresh()
            if table is None:
                continue
            number += 1
            timeline._seen.clear()
            with contextlib.suppress(ss.SkipstoneError):
                version = commit(table, number)
                assert version not in made
                made[version] = sorted([*made[max(made)], number])
                assert rows(table) == made[version]
                again = fresh()
                assert again is not None and again.version == version
        elif step == "lose":
            file(root, chance.choice([first, max(made)])).unlink(missing_ok=True)
        elif step == "copy" and file(root, first).exists():
            text = file(root, first).read_bytes()
            over = file(root, chance.choice([second, max(made) + 1]))
            over.parent.mkdir(exist_ok=True)
            over.write_bytes(text)
        elif step == "swap" and file(root, first).exists() and file(root, second).exists():
            one_text, other_text = file(root, first).read_bytes(), file(root, second).read_bytes()
            file(root, first).write_bytes(other_text), file(root, second).write_bytes(one_text)
        elif step == "hint":
            hint.write_bytes(chance.choice([b"", b"2", b"999999"]))
        elif step == "open":
            fresh()
        elif step == "refresh":
            fresh(lambda version=first: ss.open(root, version=version).refresh())
        elif step == "old":
            with contextlib.suppress(ss.SkipstoneError):
                assert rows(ss.open(root, version=first)) == made[first]
