"""Cases that a review of the newest engine parts found: each lost a row, a value or a table, or let a raw error out."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import shutil
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone.engine.scan import planning

ROWS = 5000


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch):
    """Columns are read side by side whatever the machine has."""
    monkeypatch.setattr(planning, "THREADS", 2)


def _write(lake, name, values):
    os.makedirs((lake / name).parent, exist_ok=True)
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), lake / name)
    return lake / name


def _values(table, where=None):
    return sorted(table.scan(where).to_table().column("a").to_pylist())


# -- a table removed and created again at the same place ---------------------------------------------------------------


@pytest.fixture
def outlived(tmp_path):
    """Makes (lake, a handle of a table that is no more, the values of the one in its place) of so many versions."""

    def make(old_versions, new_versions):
        _write(tmp_path, "one.parquet", [1, 2])
        old = ss.create(tmp_path)
        for number in range(old_versions - 1):
            _write(tmp_path, f"old-{number}.parquet", [number])
            old.sync()
        old.scan("a = 1").to_table(), old.handle.snapshot.removed_files()  # a handle in use: it has opened its runs
        shutil.rmtree(tmp_path)
        _write(tmp_path, "one.parquet", [7, 8, 9])
        new = ss.create(tmp_path)
        for number in range(new_versions - 1):
            _write(tmp_path, f"new-{number}.parquet", [100 + number])
            new.sync()
        return tmp_path, old, [7, 8, 9, *(100 + n for n in range(new_versions - 1))]

    return make


@pytest.mark.parametrize("versions", [(1, 1), (3, 3), (3, 1), (1, 3)])
def test_a_handle_that_outlived_its_table_tells_nothing_to_the_next_open(outlived, versions):
    lake, old, wanted = outlived(*versions)
    try:
        old.refresh()
    except ss.SkipstoneError:
        pass
    else:
        assert _values(old) == wanted
    assert _values(ss.open(lake)) == wanted


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("versions", [(1, 1), (3, 3), (3, 1), (1, 3)])
@pytest.mark.parametrize("verb", ["create_index", "write", "sync"])
def test_a_handle_that_outlived_its_table_does_not_commit_into_the_one_in_its_place(outlived, versions, verb):
    lake, old, wanted = outlived(*versions)
    try:
        if verb == "create_index":
            old.create_index("a", kind="bloom")
        elif verb == "sync":
            _write(lake, "more.parquet", [500])
            old.sync()
        else:
            with old.transaction() as tx:
                tx.write(pa.table({"a": [500]}))
    except ss.SkipstoneError:
        pass
    old.handle.forget()  # what is on disk must hold, for every process
    fresh = ss.open(lake)
    assert _values(fresh) in (wanted, sorted([*wanted, 500]))
    fresh.sync()
    assert fresh.verify(deep=True) == []
    assert [i.table_id for i in fresh.handle.timeline.instants(1, fresh.version)] == [
        fresh.handle.instant.table_id
    ] * fresh.version


# -- columns side by side ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_columns_without_a_name_have_no_statistics(tmp_path):
    """An index calls the entries of a file's row groups by the empty name; a column of it was taken for them."""
    for number in range(12):
        values = [10 * number + i for i in range(5)]
        inner = pa.array([{"": -v, "x": v} for v in values])
        rows = pa.table([values, values, inner], ["", "x", "st"])
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=2)
    table = ss.create(tmp_path)
    plan = table.scan("x = 73 AND st.x > 0")
    assert plan.to_table().to_pydict() == {"": [73], "x": [73], "st": [{"": -73, "x": 73}]}
    assert plan.row_groups().num_rows == 1
    assert table.scan(order_by=("x", "desc"), limit=2, columns=[""]).to_table().to_pydict() == {"": [114, 113]}
    for name in ("", "st."):
        for refused in (
            lambda name=name: table.create_index(name, kind="secondary"),
            lambda name=name: table.scan(order_by=name, limit=3).to_table(),
            lambda name=name: table.scan().min(name),
        ):
            with pytest.raises(ss.SchemaError):
                refused()
    with table.transaction() as tx:
        tx.write(table.scan("x < 2").to_table())
    assert (table.scan("x < 2").count(), table.verify(deep=True)) == (4, [])


def test_a_flat_dotted_column_beside_a_struct_of_that_path(tmp_path):
    data = {
        "k": list(range(ROWS)),
        "s": [{"p": i, "q": -i} for i in range(ROWS)],
        "w1": [f"w{i}" for i in range(ROWS)],
        "w2": list(range(ROWS)),
        "w3": list(range(ROWS)),
        "s.p": [f"t{i}" for i in range(ROWS)],
        "w4": list(range(ROWS)),
    }
    pq.write_table(pa.table(data), tmp_path / "x.parquet")
    found = ss.create(tmp_path).scan("k = 4321").to_table().to_pylist()
    assert found == [{name: data[name][4321] for name in data}]


# -- damage while rows are read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", ["point", "all", "count", "batches"])
def test_damaged_pages_are_our_error_and_name_the_file(tmp_path, read):
    path = tmp_path / "x.parquet"
    rows = {"k": range(ROWS), **{f"s{j}": [f"{j}u{i}" for i in range(ROWS)] for j in range(5)}}
    pq.write_table(pa.table(rows), path, compression="none", use_dictionary=False)
    table = ss.create(tmp_path)
    known, whole = path.stat(), path.read_bytes()
    path.write_bytes(whole[:4] + bytes(len(whole) - 8004) + whole[-8000:])
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))
    before = threading.active_count()
    with pytest.raises(ss.SkipstoneError, match=r"x\.parquet"):
        if read == "point":
            table.scan("k = 17").to_table()
        elif read == "all":
            table.scan().to_table()
        elif read == "count":
            table.scan("k > 17 AND s0 != '0u5'").count()
        else:
            list(table.scan().to_batches())
    assert threading.active_count() == before


# -- what is written is kept, or refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.decimal128(10, 2), pa.array([0.129])),
        (pa.float64(), pa.array([decimal.Decimal("12345678901234567.89")])),
        (pa.struct([("a", pa.int64())]), pa.array([{"a": 1, "b": 2}])),
        (pa.struct([("a", pa.int64())]), pa.array([{"z": 1}])),
        (pa.list_(pa.int64()), pa.array([["1"]])),
        (pa.list_(pa.float32()), pa.array([[0.1]])),
        (pa.struct([("a", pa.float32())]), pa.array([{"a": 0.1}])),
        (pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)]), pa.array([{"a": 1}])),
        (pa.map_(pa.string(), pa.int64()), pa.array([[("a", "5")]], pa.map_(pa.string(), pa.string()))),
    ],
    ids=lambda side: str(side.type if isinstance(side, pa.Array) else side),
)
def test_a_value_that_the_column_cannot_hold_is_refused(tmp_path, kind, given):
    table = ss.create(tmp_path / "new", schema=pa.schema([("x", kind)]))
    with pytest.raises(ss.SchemaError, match="'x'"), table.transaction() as tx:
        tx.write(pa.table({"x": given}))
    assert table.scan().count() == 0


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.list_(pa.int64()), pa.array([[1, None], None], pa.large_list(pa.int64()))),
        (pa.large_list(pa.int64()), pa.array([[1, None], None], pa.list_(pa.int32()))),
        (pa.map_(pa.string(), pa.int64()), pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))),
        (pa.list_(pa.field("item", pa.int64(), nullable=False)), pa.array([[1, 2], None])),
        (pa.struct([pa.field("a", pa.int64(), nullable=False)]), pa.array([{"a": 1}, {"a": 2}])),
        (pa.struct([(".a", pa.int64())]), pa.array([{".a": 1}], pa.struct([(".a", pa.int32())]))),
        (pa.int32(), pa.array([5, 6]).dictionary_encode()),
    ],
    ids=lambda side: str(side.type if isinstance(side, pa.Array) else side),
)
def test_a_value_that_the_column_holds_exactly_is_written(tmp_path, kind, given):
    table = ss.create(tmp_path / "new", schema=pa.schema([("x", kind)]))
    with table.transaction() as tx:
        tx.write(pa.table({"x": given}))
    assert table.scan().to_table().column("x").to_pylist() == given.to_pylist()


# -- schemas of many files ---------------------------------------------------------------------------------------------


def test_structs_whose_children_come_in_another_order_are_one_column(tmp_path):
    for name, kind, value in (
        ("a", pa.struct([("a", pa.int64())]), {"a": 1}),
        ("b", pa.struct([("b", pa.int64()), ("a", pa.int64())]), {"b": 2, "a": 3}),
        ("c", pa.struct([("b", pa.int64())]), {"b": 4}),
    ):
        pq.write_table(pa.table({"x": pa.array([value], kind)}), tmp_path / f"{name}.parquet")
    table = ss.create(tmp_path)
    wanted = [{"a": 1, "b": None}, {"a": 3, "b": 2}, {"a": None, "b": 4}]
    assert sorted(table.scan().to_table().column("x").to_pylist(), key=str) == sorted(wanted, key=str)
    assert table.scan("x.b = 2").to_table().column("x").to_pylist() == [{"a": 3, "b": 2}]
    assert table.scan("x.a IS NULL").count() == 1


def test_instants_that_no_common_type_holds_are_refused_or_read(tmp_path):
    far = dt.datetime(9999, 12, 31)
    pq.write_table(pa.table({"x": pa.array([far], pa.timestamp("us"))}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([1], pa.timestamp("ns"))}), tmp_path / "b.parquet")
    try:
        table = ss.create(tmp_path)
    except ss.SchemaError:
        return
    assert table.scan("x > timestamp '9000-01-01'").count() == 1


# -- following a directory ---------------------------------------------------------------------------------------------


def test_rule_03_a_file_added_again_is_no_longer_one_that_was_taken_out(tmp_path):
    _write(tmp_path, "one.parquet", [1])
    path = _write(tmp_path, "f.parquet", [2])
    table = ss.create(tmp_path)
    with table.transaction() as tx:
        tx.remove(["f.parquet"])
    with table.transaction() as tx:
        tx.add_files(["f.parquet"])
    known, data = path.stat(), path.read_bytes()
    path.unlink()
    table.sync()
    path.write_bytes(data)
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))
    table.sync()
    assert _values(table) == [1, 2]


def test_a_directory_that_is_not_there_does_not_empty_the_table(tmp_path):
    lake = tmp_path / "lake"
    _write(lake, "one.parquet", [1])
    table = ss.create(lake, index_path=tmp_path / "index")
    lake.rename(tmp_path / "elsewhere")  # as where a disk is not mounted
    with pytest.raises(ss.SkipstoneError, match="lake"):
        table.sync()
    (tmp_path / "elsewhere").rename(lake)
    assert _values(ss.open(lake, index_path=tmp_path / "index")) == [1]
    assert table.version == 1


def test_a_link_back_to_its_own_folder_is_not_followed_for_ever(tmp_path):
    _write(tmp_path, "one.parquet", [1])
    (tmp_path / "back").symlink_to(".")
    table = ss.create(tmp_path)
    assert table.files().column("path").to_pylist() == ["one.parquet"]
