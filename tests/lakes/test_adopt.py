"""Tables that were copied or moved are not opened before `adopt`, which keeps the index and loses no row."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples, few_of
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS = 6
PLAIN = {"compression": "NONE", "use_dictionary": False}


def _write(path: Path, values: list[int], **options) -> None:
    """Plain and uncompressed: other values of the same bounds make a file of the same size and footer."""
    pq.write_table(pa.table({"k": pa.array(values, pa.int64())}), path, **PLAIN, **options)


def _values(number: int) -> list[int]:
    return [100 * number + 10 * i for i in range(ROWS)]


def _covered(table: ss.Table) -> dict[str, int]:
    return {row["kind"]: row["files_covered"] for row in table.indexes().to_pylist()}


def _rows(table: ss.Table, where: object = None) -> list[int]:
    return sorted(table.scan(where).to_table().column("k").to_pylist())


def _made(root: Path, files: int = 4, **options) -> Path:
    lake = root / "lake"
    lake.mkdir(parents=True)
    for number in range(files):
        _write(lake / f"{number}.parquet", _values(number), **options)
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


def test_a_pickle_is_of_its_table(lake: Path) -> None:
    table = ss.open(lake, on_stale="raise")
    plan, handle = pickle.dumps(table.scan()), pickle.dumps(table)
    (lake / "new.parquet").write_bytes((lake / next(iter(table.files()["path"].to_pylist()))).read_bytes())
    with pytest.raises(ss.NotReadableError, match="changed since"):
        pickle.loads(handle).scan()
    shutil.rmtree(lake / ".skipstone")
    again = ss.create(lake)
    again.create_index("k", kind="bloom")
    again.create_index("k", kind="secondary")
    for pickled in (plan, handle):
        with pytest.raises(ss.NotATableError, match="created again"):
            pickle.loads(pickled)


@pytest.mark.parametrize("how", ["copied", "copied with times", "moved"])
def test_a_table_at_another_place_is_refused_until_it_is_adopted(lake: Path, how: str) -> None:
    copies = {"copied": _copied, "moved": lambda lake: lake.rename(lake.parent / "moved")}
    place = copies.get(how, lambda lake: shutil.copytree(lake, lake.parent / "copy"))(lake)
    for _ in range(2):
        with pytest.raises(
            ss.NotReadableError, match=r"copied or moved.*recorded at .*lake.*ss\.adopt\(path\)"
        ) as raised:
            ss.open(place)
        assert "skipstone adopt" in str(raised.value)
    result = ss.adopt(place)
    assert (result.kept, result.changed, result.added, result.removed, result.quarantined) == (4, (), (), (), {})
    table = ss.open(place)
    assert table.version == result.version
    assert set(_covered(table).values()) == {4}
    assert [table.scan(f"k = {value}").files().num_rows for value in (110, 105)] == [1, 0]
    assert [_rows(table, f"k = {value}") for value in _values(1)] == [[value] for value in _values(1)]
    assert table.scan().count() == 4 * ROWS
    assert table.verify(deep=True) == []
    assert table.sync() == table.version
    assert pickle.loads(pickle.dumps(table)).scan().count() == 4 * ROWS
    assert ss.adopt(place).version == table.version, "nothing to do creates no version"
    if how != "moved":
        with ss.open(lake) as original:
            assert _rows(original, "k = 110") == [110]


def test_without_adopting_the_files_of_a_copy_can_be_listed(lake: Path) -> None:
    copy = _copied(lake)
    with pytest.warns(UserWarning, match="copied or moved"):
        table = ss.open(copy, fallback="list")
    assert _rows(table, "k = 110") == [110]


@pytest.mark.parametrize("change", ["time", "rows"])
def test_one_table_under_two_names(lake: Path, tmp_path: Path, change: str) -> None:
    """A disk that is mounted at two places: its files have the recorded times at both."""
    other = tmp_path / "other"
    shutil.copytree(lake, other)  # with times
    index = tmp_path / "index"
    shutil.move(lake / ".skipstone", index)
    shutil.rmtree(other / ".skipstone")
    ss.adopt(other, index_path=index)
    for place in (lake, other):
        with ss.open(place, index_path=index) as table:
            assert _rows(table, "k = 110") == [110]
            assert _rows(ss.open(place, index_path=index, version=1), "k = 110") == [110]
    if change == "time":
        os.utime(other / "0.parquet", ns=(1, 1_000_000_007))
    else:
        _write(other / "0.parquet", [7])
    assert ss.adopt(other, index_path=index).kept == (4 if change == "time" else 3)
    with pytest.raises(ss.NotReadableError, match="adopt"):
        ss.open(lake, index_path=index)


def test_versions_from_before_a_copy(lake: Path) -> None:
    """A copy has other times, so the files of an older version cannot be compared; a move keeps them."""
    copy = _copied(lake)
    ss.adopt(copy)
    with pytest.raises(ss.NotReadableError, match="version 1 is older than the copy"):
        ss.open(copy, version=1)
    moved = lake.rename(lake.parent / "moved")
    ss.adopt(moved)
    assert _rows(ss.open(moved, version=1)) == sorted(value for number in range(4) for value in _values(number))


def test_a_file_whose_values_are_in_another_column_is_named_and_no_row_is_wrong(tmp_path: Path) -> None:
    copy = _copied(_made(tmp_path, row_group_size=4))
    pq.write_table(pa.table({"j": pa.array(_values(1), pa.int64())}), copy / "1.parquet", row_group_size=4, **PLAIN)
    result = ss.adopt(copy)
    assert (result.kept, result.changed, result.removed) == (3, ("1.parquet",), ())
    want = sorted(v for number in (0, 2, 3) for v in _values(number))
    table = ss.open(copy)
    assert _rows(table, "k IS NOT NULL") == want and table.scan("k IS NOT NULL").count() == len(want)
    assert _covered(table) == {"stats": 4, "bloom": 3, "secondary": 3}
    table.sync(refresh=True)
    assert set(_covered(table).values()) == {4}
    assert table.sync(refresh=True) == table.version, "nothing to do creates no version"
    assert _rows(table, "k = 110") == []


@pytest.mark.parametrize("change", ["truncated", "empty", "no Parquet"])
def test_a_file_that_cannot_be_read_is_quarantined(tmp_path: Path, change: str) -> None:
    copy = _copied(_made(tmp_path))
    file = copy / "1.parquet"
    data = file.read_bytes()
    file.write_bytes({"truncated": data[:-10], "empty": b"", "no Parquet": b"x" * len(data)}[change])
    result = ss.adopt(copy)
    assert (result.kept, result.changed, list(result.quarantined)) == (3, (), ["1.parquet"])
    with pytest.warns(UserWarning, match="quarantined"), ss.open(copy) as table:
        for where in (None, "k >= 100", "k = 110"):
            with pytest.raises(ss.NotReadableError, match=r"1\.parquet"):
                _rows(table, where)
        assert _rows(table, "k = 210") == [210]


def test_an_index_without_its_files_is_not_adopted(lake: Path) -> None:
    copy = lake.parent / "copy"
    shutil.copytree(lake / ".skipstone", copy / ".skipstone")
    _write(copy / "other.parquet", [1])
    with pytest.raises(ss.NotATableError, match="none of the files"):
        ss.adopt(copy)


def test_a_link_to_a_table_is_no_other_place(lake: Path) -> None:
    link = lake.parent / "link"
    link.symlink_to(lake)
    assert _rows(ss.open(link), "k = 110") == [110]


def test_files_of_file_groups_are_kept_by_their_size_or_the_copy_is_refused(tmp_path: Path) -> None:
    """A log read as a base would add its rows; without it, deleted rows would return."""
    lake = tmp_path / "lake"
    table = ss.create(lake, schema=pa.schema([("k", pa.int64())]))
    _write(lake / "b.parquet", [1, 2])
    (lake / "b.log").write_bytes(b"a log of another format")
    (lake / "l.parquet").write_bytes(b"a log, though its name is that of a Parquet file")
    kinds = {"b.parquet": "base", "b.log": "delete", "l.parquet": "log"}
    rows = []
    for path, kind in kinds.items():
        status = (lake / path).stat()
        file = {"path": path, "size_bytes": status.st_size, "row_count": 2, "modified": status.st_mtime_ns}
        rows.append(file | {"file_group": "g", "slice_instant": "1", "kind": kind})
    with table.transaction() as tx:
        tx.add_files(pa.Table.from_pylist(rows))
    copy = _copied(lake)
    result = ss.adopt(copy)
    assert (result.kept, result.changed, result.added, result.removed) == (3, (), (), ())
    assert ss.open(copy).slices().to_pylist() == ss.open(lake).slices().to_pylist()
    assert ss.open(copy).sync() == result.version
    for number, path in enumerate(kinds):
        for change in ("missing", "longer"):
            other = _copied(lake, f"{number} {change}")
            (other / path).unlink()
            if change == "longer":
                (other / path).write_bytes(b"x" * 10_000)
            with pytest.raises(ss.NotReadableError, match=path) as raised:
                ss.adopt(other)
            assert raised.value.paths == [path]


def test_ids_and_removed_files_stay(lake: Path) -> None:
    """A file that was removed from the table and is still on storage is not added again."""
    with ss.open(lake) as table, table.transaction() as tx:
        tx.remove(["0.parquet"])
    ids = ss.open(lake).handle.snapshot.find(["1.parquet"])
    copy = _copied(lake)
    for _ in range(2):
        assert ss.adopt(copy).kept == 3
        with ss.open(copy) as table:
            assert table.sync() == table.version
            assert table.scan().count() == 3 * ROWS
            assert table.handle.snapshot.find(["1.parquet"]) == ids


def test_a_live_file_is_not_recorded_as_the_one_that_it_replaced(lake: Path) -> None:
    """Their sizes are equal. A sync that found the file missing for a while left it out for good, and a clean deleted
    it."""
    table = ss.open(lake)
    _write(lake / "1.parquet", _values(9))
    with table.transaction() as tx:
        tx.replace(["1.parquet"], ["1.parquet"])
    copy = _copied(lake)
    ss.adopt(copy)
    adopted, expected = ss.open(copy), _rows(table)
    (copy / "1.parquet").rename(copy / "hidden")
    adopted.sync()
    (copy / "hidden").rename(copy / "1.parquet")
    adopted.sync()
    assert _rows(adopted) == expected


def _interrupt(*args: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_a_table_restored_from_a_backup_is_adopted_in_its_place(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files have other times."""
    for file in lake.glob("*.parquet"):
        os.utime(file, ns=(1, 1_000_000_007))
    table = ss.open(lake)
    with pytest.raises(ss.NotReadableError, match="overwritten"):
        table.scan("k = 110").to_table()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("skipstone.engine.adopt.sync_directory", _interrupt)
        ss.adopt(lake)
    with pytest.raises(ss.NotReadableError, match="its adoption is not complete"):
        ss.open(lake)
    assert ss.adopt(lake).kept == 4
    assert _rows(table.refresh(), "k = 110") == [110]


def test_empty_files_and_files_without_statistics(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    _write(lake / "0.parquet", _values(0))
    _write(lake / "1.parquet", [])
    ss.create(lake, columns=[])
    copy = _copied(lake)
    assert ss.adopt(copy).kept == 2
    assert _rows(ss.open(copy)) == _values(0)


def test_an_interrupted_adoption_is_done_again(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted at each step: the table is refused until the place is recorded."""
    copy = _copied(lake)
    _write(copy / "1.parquet", [100, 103, 150])
    steps = ["_same_files", "sync_directory", "_record_place"]
    for step in steps:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(f"skipstone.engine.adopt.{step}", _interrupt)
            ss.adopt(copy)
        with pytest.raises(ss.NotReadableError, match="adopt"):
            ss.open(copy)
    result = ss.adopt(copy)
    assert result.kept == 4, "files that an earlier attempt added are in the table"
    assert _rows(ss.open(copy), "k < 200") == sorted([*_values(0), 100, 103, 150])
    assert ss.open(copy).verify(deep=True) == []


def test_another_writer_during_an_adoption(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file stays removed if a writer removes it through the former name."""
    from skipstone.engine import adopt as module

    index = lake.parent / "index"
    (lake / ".skipstone").rename(index)
    copy = _copied(lake)
    other, compare = ss.open(lake, index_path=index), module._same_files

    def late(*args):
        same = compare(*args)
        if other.version == 3:
            with other.transaction() as tx:
                tx.remove(["0.parquet"])
        return same

    monkeypatch.setattr(module, "_same_files", late)
    assert ss.adopt(copy, index_path=index).kept == 3
    assert _rows(ss.open(copy, index_path=index)) == sorted(value for n in (1, 2, 3) for value in _values(n))


def test_a_table_that_follows_a_log_needs_no_adoption(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    lake = tmp_path / "lake"
    deltalake.write_deltalake(lake, pa.table({"k": [1, 2]}))
    version = ss.create(lake).version
    moved = lake.rename(tmp_path / "moved")
    assert _rows(ss.open(moved)) == [1, 2]
    assert ss.adopt(moved).version == version


def test_the_command_adopts(say, lake: Path) -> None:
    copy = str(_copied(lake))
    status, _, err = say("scan", copy)
    assert status == 1 and "`skipstone adopt`" in err
    assert [(one.name, one.remedy) for one in ss.doctor(copy) if one.name == "table"] == [("table", "skipstone adopt")]
    status, out, err = say("adopt", copy)
    assert (status, err) == (0, "")
    assert "4 files kept, 0 changed, 0 added, 0 removed" in out
    changed = _copied(lake, "changed")
    _write(changed / "1.parquet", [100, 103])
    (changed / "2.parquet").unlink()
    status, out, _ = say("adopt", str(changed))
    assert status == 0
    assert "2 files kept, 1 changed, 0 added, 1 removed" in out
    assert "changed: 1.parquet" in out and "removed: 2.parquet" in out and "sync --refresh" in out
    other = _copied(lake, "other")
    (other / "3.parquet").write_bytes(b"PAR1")
    status, out, _ = say("adopt", str(other), "--json")
    assert status == 5
    result = json.loads(out)
    assert result["kept"] == 3 and list(result["quarantined"]) == ["3.parquet"]


CHANGES = st.sampled_from(["same", "same", "k", "x", "rows", "groups", "renamed", "missing"])
INDEXES = st.lists(
    st.sampled_from([("bloom", "k"), ("secondary", "k"), ("secondary", "k", "x"), ("bloom", "t")]),
    unique=True,
    max_size=3,
)


def _table(number: int) -> pa.Table:
    values = [100_000 + number * 1000 + 10 * i for i in range(10)]
    floats, texts = [float(value) for value in values], [str(value) for value in values]
    return pa.table({"k": pa.array(values, pa.int64()), "x": floats, "t": texts})


def _overwritten(file: Path, number: int, change: str, at_once: int) -> pa.Table:
    """Overwrite a file so that its footer changes; return its rows."""
    rows = _table(number)
    if change in ("k", "x"):  # the greatest value of a column
        *values, last = rows.column(change).to_pylist()
        changed = pa.array([*values, last + 3], rows.schema.field(change).type)
        rows = rows.set_column(rows.column_names.index(change), change, changed)
    elif change == "rows":
        rows = pa.concat_tables([rows, rows.slice(2, 3)])
    else:
        at_once = 3
    pq.write_table(rows, file, row_group_size=at_once, **PLAIN)
    return rows


@settings(max_examples=examples(3), deadline=None)
@given(
    changes=st.lists(CHANGES, min_size=1, max_size=4),
    written=st.lists(st.booleans(), min_size=4, max_size=4),
    before=INDEXES,
    after=INDEXES,
    steps=st.lists(st.sampled_from(["restore", "optimize", "refresh"]), max_size=3),
    at_once=st.sampled_from([5, 10]),
)
def test_no_row_is_lost(
    tmp_path_factory: pytest.TempPathFactory, changes, written, before, after, steps, at_once
) -> None:
    """Files of Skipstone and of other writers, with indexes created before and after, some merged or restored; then a
    copy, some of whose files were overwritten."""
    root = tmp_path_factory.mktemp("adopt")
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
        if step == "restore":
            version = table.version
            with table.transaction() as tx:
                tx.remove([next(iter(paths))])
            table.restore(version)
        elif step == "optimize":
            table.optimize()
        else:
            table.sync(refresh=True)
    table.close()
    copy = _copied(lake)
    want: list[pa.Table] = []
    for (path, number), change in zip(paths.items(), changes, strict=True):
        file = copy / path
        if change == "missing":
            file.unlink()
        elif change == "renamed":
            file.rename(copy / f"renamed-{number}.parquet")
        want += [] if change == "missing" else [_table(number)]
        if change in ("k", "x", "rows", "groups"):
            want[-1] = _overwritten(file, number, change, at_once)
    rows = pa.concat_tables([_table(0).slice(0, 0), *want]).to_pylist()
    if all(change in ("renamed", "missing") for change in changes):
        with pytest.raises(ss.NotATableError, match="none of the files"):
            ss.adopt(copy)
        return
    result = ss.adopt(copy)
    by_path = dict(zip(paths, changes, strict=True))
    assert result.kept == changes.count("same")
    assert set(result.changed) == {p for p, change in by_path.items() if change in ("k", "x", "rows", "groups")}
    assert set(result.removed) == {p for p, change in by_path.items() if change in ("renamed", "missing")}
    table = ss.open(copy)
    for _ in range(2):
        _check_rows(table, None, rows, lambda row: True)
        for value in few_of([100_020, 100_093, 101_020, 101_090, 101_093, 7], 4):
            for where, key in ((f"k = {value}", value), (f"x = {value}", value), (f"t = '{value}'", str(value))):
                _check_rows(table, where, rows, lambda row, where=where, key=key: row[where[0]] == key)
        assert table.verify(deep=True) == []
        table.sync(refresh=True)


def _check_rows(table: ss.Table, where: str | None, rows: list[dict], matches: Callable[[dict], bool]) -> None:
    found = [(row["k"], row["x"], row["t"]) for row in table.scan(where).to_table().to_pylist()]
    assert sorted(found) == sorted((row["k"], row["x"], row["t"]) for row in rows if matches(row)), where
    assert table.scan(where).count() == len(found)


def test_written_files_of_many_types_are_recognized(tmp_path: Path) -> None:
    """The statistics recorded by the writer agree with the footers of the files."""
    decimals = [decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")]
    times = [dt.datetime(1960, 1, 1), None, dt.datetime(2026, 5, 17, 1, 2, 3, 4)]
    columns = {
        "i": pa.array([3, None, -1], pa.int8()),
        "u": pa.array([2**64 - 1, 0, None], pa.uint64()),
        "zero": [0.0, -0.0, None],
        "nan": pa.array([float("nan"), 1.0, None], pa.float32()),
        "all_nan": [float("nan")] * 3,
        "none": pa.array([None] * 3, pa.string()),
        "text": ["a" * 200, "\u00fc" * 100, None],
        "bytes": [b"\xff" * 80, b"", None],
        "fixed": pa.array([b"abcd", b"\xff\xff\xff\xff", None], pa.binary(4)),
        "flag": [True, False, None],
        "small": pa.array(decimals, pa.decimal128(9, 2)),
        "large": pa.array(decimals, pa.decimal256(60, 2)),
        "day": pa.array([dt.date(1900, 1, 1), None, dt.date(2100, 1, 1)]),
        "at": pa.array(times, pa.timestamp("us", "UTC")),
        "ns": pa.array(times, pa.timestamp("ns")),
        "time": pa.array([dt.time(1, 2, 3), None, dt.time(4)], pa.time64("us")),
        "coded": pa.array(["x", "y", None]).dictionary_encode(),
        "struct": [{"a": 1, "b": "x"}, None, {"a": None, "b": None}],
        "list": [[1, 2], None, []],
    }
    rows = pa.table(columns)
    table = ss.create(tmp_path / "lake", schema=rows.schema)
    with table.transaction() as tx:
        tx.write(rows)
    with table.transaction() as tx:
        tx.write(rows.slice(0, 0))
    pq.write_table(rows, tmp_path / "lake" / "other.parquet", row_group_size=2)
    table.sync()
    copy = _copied(tmp_path / "lake")
    result = ss.adopt(copy)
    assert (result.kept, result.changed, result.added) == (table.files().num_rows, (), ())


def test_the_command_lists_the_first_files_and_the_next_step(say, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    for number in range(25):
        _write(lake / f"{number}.parquet", [number])
    ss.create(lake).close()
    copy = _copied(lake)
    for number in range(25):
        _write(copy / f"{number}.parquet", [number, 1])
    _, out, _ = say("adopt", str(copy))
    *_, more, remedy = out.splitlines()
    assert more == "... and 5 more (--json shows all)" and remedy.startswith("to index the changed and added files")
