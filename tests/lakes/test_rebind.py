"""Lakes that were copied or moved: no row is lost, whatever changed meanwhile, and indexes come along."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples, few_of
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS = 6


def _write(path: Path, values: list[int]) -> None:
    """Plain and uncompressed: other values of the same bounds make a file of the same size and footer."""
    table = pa.table({"k": pa.array(values, pa.int64())})
    pq.write_table(table, path, compression=None, use_dictionary=False)


def _values(number: int) -> list[int]:
    return [100 * number + 10 * i for i in range(ROWS)]


def _covered(table: ss.Table) -> dict[str, int]:
    return {row["kind"]: row["files_covered"] for row in table.indexes().to_pylist()}


def _rows(table: ss.Table, where: object = None) -> list[int]:
    return sorted(table.scan(where).to_table().column("k").to_pylist())


def _made(root: Path, files: int = 4) -> Path:
    lake = root / "lake"
    lake.mkdir(parents=True)
    for number in range(files):
        _write(lake / f"{number}.parquet", _values(number))
    with ss.create(lake) as table:
        table.create_index("k", kind="bloom")
        table.create_index("k", kind="secondary")
    return lake


def _copied(lake: Path, name: str = "copy") -> Path:
    """As `cp -r` copies: every file gets another time."""
    copy = lake.parent / name
    shutil.copytree(lake, copy, copy_function=shutil.copy)
    for file in copy.glob("*.parquet"):
        os.utime(file, ns=(1, file.stat().st_mtime_ns + 1_000_000_007))
    return copy


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return _made(tmp_path)


def test_a_moved_lake_keeps_everything_and_says_nothing(lake: Path) -> None:
    moved = lake.rename(lake.parent / "moved")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = ss.open(moved)
        assert table.scan("k = 110").files().num_rows == 1
        result = table.rebind()
    assert (result.rebound, result.uncovered, result.changed) == (0, 0, 0)
    assert table.sync() == result.version
    assert set(_covered(table).values()) == {4}


def test_a_copied_lake_says_so_and_is_read_uncovered(lake: Path) -> None:
    copy = _copied(lake)
    _write(copy / "1.parquet", [100, 101, 102, 103, 104, 150])
    assert os.path.getsize(copy / "1.parquet") == os.path.getsize(lake / "1.parquet")
    with pytest.warns(UserWarning, match=r"made at .*lake; 4 of 4 files .*rebind\(\)"):
        table = ss.open(copy)
    assert _rows(table, "k = 103") == [103]
    assert table.scan("k = 110").count() == 0
    assert table.scan().count() == 4 * ROWS
    assert (table.scan().min("k"), table.scan().max("k")) == (0, 350)
    with pytest.warns(UserWarning, match="4 of 4"):
        again = pickle.loads(pickle.dumps(table))
    assert _rows(again, "k = 103") == [103]
    with ss.open(lake) as original:
        assert _rows(original, "k = 110") == [110]


@pytest.mark.parametrize("removed", [0, 400])
def test_a_copy_of_many_files_says_so(tmp_path: Path, removed: int) -> None:
    """A sample of them is looked at, by the numbers that a partition gives; most of those may have gone."""
    lake = tmp_path / "lake"
    for number in range(600):
        (lake / f"p={number % 3}").mkdir(parents=True, exist_ok=True)
        _write(lake / f"p={number % 3}" / f"{number}.parquet", [number])
    with ss.create(lake) as table:
        paths = sorted(
            (path for path in table.files().column("path").to_pylist()), key=lambda path: int(Path(path).stem)
        )
        if removed:
            with table.transaction() as tx:
                tx.remove(paths[:removed])
    for path in paths[:removed]:
        (lake / path).unlink()
    copy = lake.parent / "copy"
    shutil.copytree(lake, copy, copy_function=shutil.copy)
    with pytest.warns(UserWarning, match=f"{600 - removed} of {600 - removed} files"):
        table = ss.open(copy)
    assert _rows(table, "k = 555") == [555]
    moved = lake.rename(tmp_path / "moved")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _rows(ss.open(moved), "k = 555") == [555]


def test_an_index_made_over_an_unrecorded_copy_says_nothing_of_the_original(lake: Path) -> None:
    copy = _copied(lake)
    index = lake.parent / "index"
    (lake / ".skipstone").rename(index)
    with pytest.warns(UserWarning, match="4 of 4"):
        table = ss.open(copy, index_path=index)
    table.drop_index("k", kind="bloom")
    _write(copy / "1.parquet", [100, 101, 102, 103, 104, 150])
    with pytest.warns(UserWarning, match="overwritten"):
        table.create_index("k", kind="bloom")
    original = ss.open(lake, index_path=index)
    assert [_rows(original, f"k = {value}") for value in _values(1)] == [[value] for value in _values(1)]


def test_what_a_person_vouches_for_keeps_its_indexes(lake: Path) -> None:
    copy = _copied(lake)
    _write(copy / "2.parquet", [200, 201, 202, 203, 204, 251])  # another greatest value: the footer tells
    with pytest.warns(UserWarning, match="4 of 4"):
        table = ss.open(copy)
    ids = ss.open(lake).file_ids(["0.parquet"]).to_pylist()
    result = table.rebind(trusted=True)
    assert (result.rebound, result.uncovered, result.changed) == (3, 0, 1)
    assert _covered(table) == {"stats": 4, "bloom": 3, "secondary": 3}
    assert table.file_ids(["0.parquet"]).to_pylist() == ids
    assert _rows(table, "k = 203") == [203]
    assert [table.scan(f"k = {value}").files().num_rows for value in (105, 205)] == [0, 1]
    assert table.verify(deep=True) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ss.open(copy).close()


def test_digests_say_which_files_are_the_same(lake: Path) -> None:
    """Uncompressed [1, 5, 9] and [1, 7, 9] have the same size and the same footer."""
    copy = _copied(lake)
    _write(copy / "1.parquet", [100, 101, 102, 103, 104, 150])
    with pytest.warns(UserWarning, match="4 of 4"):
        table = ss.open(copy)
    steps: dict[str, tuple[int, int | None]] = {}
    result = table.rebind(progress=lambda step, done, total: steps.update({step: (done, total)}))
    assert (result.rebound, result.uncovered, result.changed) == (3, 0, 1)
    assert steps["digests, bytes of files"] == (sum(f.stat().st_size for f in copy.glob("*.parquet")),) * 2
    assert _covered(table) == {"stats": 4, "bloom": 3, "secondary": 3}
    assert _rows(table, "k = 103") == [103]
    assert table.scan("k = 210").files().num_rows == 1
    assert table.verify(deep=True) == []
    table.sync(refresh=True)
    assert set(_covered(table).values()) == {4}
    assert table.scan("k = 110").files().num_rows == 0
    again = _copied(copy, "again")  # what was covered by a refresh has digests, too
    with pytest.warns(UserWarning, match="4 of 4"):
        assert ss.open(again).rebind().rebound == 4


def test_a_table_of_statistics_alone_is_not_read(lake: Path) -> None:
    with ss.open(lake) as table:
        table.drop_index("k", kind="bloom")
        table.drop_index("k", kind="secondary")
    copy = _copied(lake)
    with pytest.warns(UserWarning, match="4 of 4"):
        table = ss.open(copy)
    steps: list[str] = []
    assert table.rebind(progress=lambda step, done, total: steps.append(step)).rebound == 4
    assert "digests, bytes of files" not in steps
    assert _rows(table, "k = 110") == [110]


def test_a_rebind_that_dies_begins_again(lake: Path) -> None:
    copy = _copied(lake)
    with pytest.warns(UserWarning, match="4 of 4"):
        table = ss.open(copy)
    before = table.version

    def stop(step: str, done: int, total: int | None) -> None:
        if step.startswith("digests"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table.rebind(progress=stop)
    with pytest.warns(UserWarning, match="4 of 4"):
        table = ss.open(copy)
    assert table.version == before
    assert table.rebind().rebound == 4
    assert table.rebind().rebound == 0


def test_sync_never_keeps_what_is_known_of_a_copy(lake: Path) -> None:
    copy = _copied(lake)
    _write(copy / "1.parquet", [100, 101, 102, 103, 104, 150])
    with pytest.warns(UserWarning, match="4 of 4"):
        table = ss.open(copy)
    table.sync()
    assert _covered(table) == {"stats": 4, "bloom": 0, "secondary": 0}
    assert _rows(table, "k = 103") == [103]


@pytest.mark.parametrize("verb", ["sync", "rebind", "trusted"])
def test_files_that_were_taken_out_stay_out_of_a_copy(lake: Path, verb: str) -> None:
    with ss.open(lake) as table, table.transaction() as tx:
        tx.remove(["0.parquet"])
    with pytest.warns(UserWarning, match="3 of 3"):
        table = ss.open(_copied(lake))
    for _ in range(2):
        if verb == "sync":
            table.sync()
        else:
            table.rebind(trusted=verb == "trusted")
        assert table.scan().count() == 3 * ROWS
    assert table.sync() == table.version


def test_a_copy_with_files_more_and_less(lake: Path) -> None:
    copy = _copied(lake)
    (copy / "0.parquet").unlink()
    _write(copy / "9.parquet", _values(9))
    with pytest.warns(UserWarning, match="3 of 4"):
        table = ss.open(copy)
    result = table.rebind(trusted=True)
    assert (result.rebound, result.removed, result.added) == (3, 1, 1)
    assert _rows(table) == sorted(value for n in (1, 2, 3, 9) for value in _values(n))


def test_a_restored_lake_is_rebound_in_its_place(lake: Path) -> None:
    """The same place, other times: nothing can be said at open."""
    for file in lake.glob("*.parquet"):
        os.utime(file, ns=(1, 1_000_000_007))
    table = ss.open(lake)
    with pytest.raises(ss.NotReadableError, match="overwritten"):
        table.scan("k = 110").to_table()
    assert table.rebind(trusted=True).rebound == 4
    assert _rows(table, "k = 110") == [110]


def test_another_writer_in_the_meantime(lake: Path) -> None:
    with pytest.warns(UserWarning, match="4 of 4"):
        table = ss.open(_copied(lake))
    with pytest.warns(UserWarning, match="4 of 4"):
        other = ss.open(table.location)
    with other.transaction() as tx:
        tx.write(pa.table({"k": [7]}))
    with other.transaction() as tx:
        tx.remove(["0.parquet"])
    assert table.rebind(trusted=True).rebound == 3
    assert _rows(table) == sorted([7, *(value for n in (1, 2, 3) for value in _values(n))])


def test_the_command_rebinds(say, lake: Path) -> None:
    copy = str(_copied(lake))
    status, out, err = say("rebind", copy)
    assert status == 0
    assert "4 files rebound" in out
    assert err == ""
    changed = _copied(lake, "changed")
    _write(changed / "1.parquet", [100, 101, 102, 103, 104, 150])
    status, out, _ = say("rebind", str(changed))
    assert "3 files rebound, 0 uncovered, 1 changed" in out
    assert "sync --refresh" in out
    other = str(_copied(lake, "other"))
    status, out, _ = say("rebind", other, "--trusted", "--json")
    assert json.loads(out)["rebound"] == 4
    assert say("rebind", other, "--json")[2] == ""


KINDS = st.sampled_from(["same", "inner", "bounds", "more", "gone"])


@settings(max_examples=examples(3, 200), deadline=None)
@given(changes=st.lists(KINDS, min_size=1, max_size=5), trusted=st.booleans(), verb=st.sampled_from(["read", "rebind"]))
def test_no_row_is_lost(tmp_path_factory: pytest.TempPathFactory, changes: list[str], trusted: bool, verb: str) -> None:
    """Copies of which some files were overwritten. Who vouches does so for files whose footers agree: those are not
    overwritten with other data of the same bounds here."""
    root = tmp_path_factory.mktemp("rebind")
    copy = _copied(_made(root, len(changes)))
    want: list[int] = []
    for number, change in enumerate(changes):
        file, values = copy / f"{number}.parquet", _values(number)
        if change == "inner" and not trusted:
            values = [values[0], *(v + 1 for v in values[1:-1]), values[-1]]
        elif change == "bounds":
            values = [v + 3 for v in values]
        elif change == "more":
            values = [*values, values[-1] + 5]
        if change == "gone":
            file.unlink()
            continue
        if values != _values(number):
            _write(file, values)
        want += values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = ss.open(copy)
    if verb == "read" and "gone" not in changes:
        assert table.scan().count() == len(want)
    if verb == "rebind" or "gone" in changes:
        table.rebind(trusted=trusted)
    assert _rows(table) == sorted(want)
    for value in few_of(sorted({v + d for v in want for d in (0, 1, 3)}), 15):
        assert _rows(table, f"k = {value}") == [v for v in sorted(want) if v == value]
        assert table.lookup([value], on="k").count() == want.count(value)
    if verb == "rebind":
        assert table.verify(deep=True) == []
        table.sync(refresh=True)
        assert _rows(table, f"k >= {want[0]}" if want else "k >= 0") == sorted(want)
    shutil.rmtree(root)


PLAIN = {"compression": "NONE", "use_dictionary": False}
CHANGES = st.sampled_from(["same", "same", "k", "x", "renamed", "gone"])
INDEXES = st.lists(
    st.sampled_from([("bloom", "k"), ("secondary", "k"), ("secondary", "k", "x"), ("bloom", "t")]),
    unique=True,
    max_size=3,
)


def _table(number: int) -> pa.Table:
    values = [100_000 + number * 1000 + 10 * i for i in range(10)]
    floats, texts = [float(value) for value in values], [str(value) for value in values]
    return pa.table({"k": pa.array(values, pa.int64()), "x": floats, "t": texts})


def _overwritten(file: Path, number: int, change: str) -> pa.Table:
    """A value in the midst becomes another, in a file of the same size and footer; returns its rows. A NaN is counted
    by no footer, and by our own statistics."""
    rows = _table(number)
    old, new = {
        "k": (np.int64(rows["k"][2].as_py()), np.int64(rows["k"][2].as_py() + 3)),
        "x": (np.float64(rows["x"][2].as_py()), np.float64(np.nan)),
    }[change]
    data = file.read_bytes()
    assert data.count(old.tobytes()) == 1
    file.write_bytes(data.replace(old.tobytes(), new.tobytes()))
    values = rows.column(change).to_pylist()
    values[2] = new.item()
    return rows.set_column(rows.column_names.index(change), change, pa.array(values, rows.schema.field(change).type))


@settings(max_examples=examples(4, 300), deadline=None)
@given(
    changes=st.lists(CHANGES, min_size=1, max_size=4),
    written=st.lists(st.booleans(), min_size=4, max_size=4),
    before=INDEXES,
    after=INDEXES,
    steps=st.lists(st.sampled_from(["rollback", "optimize", "refresh", "clean"]), max_size=3),
    at_once=st.sampled_from([5, 10]),
)
def test_copies_by_digests_lose_no_row(
    tmp_path_factory: pytest.TempPathFactory, changes, written, before, after, steps, at_once
) -> None:
    """Files that others wrote, and that we did, under indexes made before and after, some merged or brought back; then
    a copy, some of whose files hold other data of the same size and footer."""
    root = tmp_path_factory.mktemp("digests")
    lake = root / "lake"
    table = ss.create(lake, schema=_table(0).schema)
    for index in before:
        table.create_index(list(index[1:]), kind=index[0])
    paths: dict[str, int] = {}
    for number, is_ours in zip(range(len(changes)), written, strict=False):
        if is_ours:
            with table.transaction() as tx:
                spec = replace(tx.task_spec(), parquet_options=PLAIN, row_group_rows=at_once)
                with ss.TaskWriter(spec) as writer:
                    writer.write(_table(number))
                tx.add_task(writer.result)
        else:
            pq.write_table(_table(number), lake / f"{number}.parquet", row_group_size=at_once, **PLAIN)
            with table.transaction() as tx:
                tx.add_files([f"{number}.parquet"])
        (path,) = {row["path"] for row in table.scan().files().to_pylist()} - paths.keys()
        paths[path] = number
    for index in after:
        if index not in before:
            table.create_index(list(index[1:]), kind=index[0])
    for step in steps:
        if step == "rollback":
            with table.transaction() as tx:
                tx.remove([next(iter(paths))])
            table.rollback(table.version)
        elif step == "optimize":
            table.optimize()
        elif step == "refresh":
            table.sync(refresh=True)
        else:
            table.clean(retain_versions=1, min_age=dt.timedelta(0))
    table.close()
    copy = _copied(lake)
    want: list[pa.Table] = []
    for (path, number), change in zip(paths.items(), changes, strict=True):
        file = copy / path
        if change == "gone":
            file.unlink()
        elif change == "renamed":
            file.rename(copy / f"renamed-{number}.parquet")
        want += [] if change == "gone" else [_table(number)]
        if change in ("k", "x"):
            want[-1] = _overwritten(file, number, change)
    rows = pa.concat_tables([_table(0).slice(0, 0), *want]).to_pylist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = ss.open(copy)
    result = table.rebind()
    assert result.rebound + result.uncovered + result.changed == sum(
        change not in ("gone", "renamed") for change in changes
    )
    assert not result.uncovered or not all(written[: len(changes)])
    if before or after:
        assert result.rebound >= changes.count("same") - result.uncovered
        assert result.changed <= changes.count("k") + changes.count("x")
    for _ in range(2):
        _same_rows(table, None, rows, lambda row: True)
        for value in (100_020, 100_023, 101_020, 101_023, 7):
            _same_rows(table, f"k = {value}", rows, lambda row, value=value: row["k"] == value)
            _same_rows(table, f"x = {value}", rows, lambda row, value=value: row["x"] == value)
            _same_rows(table, f"t = '{value}'", rows, lambda row, value=value: row["t"] == str(value))
        _same_rows(table, "x > 1e300", rows, lambda row: row["x"] != row["x"])  # NaN is greatest
        assert table.verify(deep=True) == []
        table.sync(refresh=True)
    table.close()
    shutil.rmtree(root)


def _same_rows(table: ss.Table, where: str | None, rows: list[dict], matches: Callable[[dict], bool]) -> None:
    found = [(row["k"], str(row["x"]), row["t"]) for row in table.scan(where).to_table().to_pylist()]
    assert sorted(found) == sorted((row["k"], str(row["x"]), row["t"]) for row in rows if matches(row)), where
    assert table.scan(where).count() == len(found)
