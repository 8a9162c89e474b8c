"""Cases that reviews of the engine found: each lost a row, a value or a table, or raised an error that is not ours."""

from __future__ import annotations

import contextlib
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


@pytest.mark.some_cases(8)
@pytest.mark.parametrize(("old_versions", "new_versions"), [(1, 1), (3, 3), (3, 1), (1, 3)])
@pytest.mark.parametrize("verb", ["refresh", "create_index", "write", "sync"])
def test_a_handle_that_outlived_its_table_does_not_change_the_one_in_its_place(
    tmp_path, old_versions, new_versions, verb
):
    _write(tmp_path, "one.parquet", [1, 2])
    old = ss.create(tmp_path)
    for number in range(old_versions - 1):
        _write(tmp_path, f"old-{number}.parquet", [number])
        old.sync()
    old.scan("a = 1").to_table(), old.handle.snapshot.removed_files()  # the handle has opened its runs
    shutil.rmtree(tmp_path)
    _write(tmp_path, "one.parquet", [7, 8, 9])
    new, wanted = ss.create(tmp_path), [7, 8, 9, *range(100, 99 + new_versions)]
    for value in wanted[3:]:
        _write(tmp_path, f"new-{value}.parquet", [value])
        new.sync()
    try:
        if verb == "refresh":
            assert _values(old.refresh()) == wanted
        elif verb == "create_index":
            old.create_index("a", kind="bloom")
        elif verb == "sync":
            _write(tmp_path, "more.parquet", [500])
            old.sync()
        else:
            with old.transaction() as tx:
                tx.write(pa.table({"a": [500]}))
    except ss.SkipstoneError:
        pass
    if verb == "refresh":
        assert _values(ss.open(tmp_path)) == wanted
    old.handle.forget()  # the bytes on the disk must be right for every process
    fresh = ss.open(tmp_path)
    assert _values(fresh) in (wanted, [*wanted, 500])
    fresh.sync()
    assert fresh.verify(deep=True) == []
    ids = {instant.table_id for instant in fresh.handle.timeline.instants(1, fresh.version)}
    assert ids == {fresh.handle.instant.table_id}


# -- columns side by side ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_columns_without_a_name_have_no_statistics(tmp_path):
    """An index names the entries of row groups with the empty text; a column of that name was mistaken for them."""
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


@pytest.mark.parametrize(
    "read",
    [
        lambda table: table.scan("k = 17").to_table(),
        lambda table: table.scan().to_table(),
        lambda table: table.scan("k > 17 AND s0 != '0u5'").count(),
        lambda table: list(table.scan().to_batches()),
    ],
)
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
        read(table)
    assert threading.active_count() == before


# -- written values  -------------------------------------------------------------------------------


FLAT = pa.list_(pa.int64())
REQUIRED = pa.struct([pa.field("a", pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    ("kind", "given", "is_exact"),
    [
        (pa.decimal128(10, 2), pa.array([0.129]), False),
        (pa.decimal128(4, 1), pa.array([decimal.Decimal("1.25")]), False),
        (pa.float32(), pa.array([0.1]), False),
        (pa.float64(), pa.array([2**53 + 1]), False),
        (pa.int32(), pa.array([2**40]), False),
        (pa.int8(), pa.array([1.5]), False),
        (pa.uint8(), pa.array([-1]), False),
        (pa.date32(), pa.array([dt.datetime(2020, 1, 1, 5)]), False),
        (pa.timestamp("s"), pa.array([dt.datetime(2020, 1, 1, 0, 0, 0, 5)]), False),
        (pa.float64(), pa.array([decimal.Decimal("12345678901234567.89")]), False),
        (pa.struct([("a", pa.int64())]), pa.array([{"a": 1, "b": 2}]), False),
        (pa.struct([("a", pa.int64())]), pa.array([{"z": 1}]), False),
        (FLAT, pa.array([["1"]]), False),
        (pa.list_(pa.float32()), pa.array([[0.1]]), False),
        (pa.struct([("a", pa.float32())]), pa.array([{"a": 0.1}]), False),
        (pa.struct([*REQUIRED, pa.field("b", pa.int64(), nullable=False)]), pa.array([{"a": 1}]), False),
        (pa.map_(pa.string(), pa.int64()), pa.array([[("a", "5")]], pa.map_(pa.string(), pa.string())), False),
        (FLAT, pa.array([[1, None], None], pa.large_list(pa.int64())), True),
        (pa.large_list(pa.int64()), pa.array([[1, None], None], pa.list_(pa.int32())), True),
        (pa.map_(pa.string(), pa.int64()), pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), True),
        (pa.list_(pa.field("item", pa.int64(), nullable=False)), pa.array([[1, 2], None]), True),
        (REQUIRED, pa.array([{"a": 1}, {"a": 2}]), True),
        (pa.struct([(".a", pa.int64())]), pa.array([{".a": 1}], pa.struct([(".a", pa.int32())])), True),
        (pa.int32(), pa.array([5, 6]).dictionary_encode(), True),
    ],
    ids=lambda side: str(side.type if isinstance(side, pa.Array) else side),
)
def test_a_value_is_written_exactly_or_refused(tmp_path, kind, given, is_exact):
    table = ss.create(tmp_path / "new", schema=pa.schema([("x", kind)]))
    may_fail = contextlib.nullcontext() if is_exact else pytest.raises(ss.SchemaError, match="'x'")
    with may_fail, table.transaction() as tx:
        tx.write(pa.table({"x": given}))
    assert table.scan().to_table().column("x").to_pylist() == (given.to_pylist() if is_exact else [])


# -- following a directory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [
        ["remove f", "add f"],
        ["remove f", "add g", "add f"],  # its partition was emptied, and has another number
        ["remove f", "declare f", "remove f", "add f"],  # without its time
        ["remove f", "declare f", "remove f", "restore"],
        ["remove f, add f"],
        ["overwrite, add f, add one"],
    ],
)
def test_rule_03_a_file_added_again_is_no_longer_one_that_was_taken_out(tmp_path, steps):
    """It may be missing for a while, and no clean deletes it."""
    _write(tmp_path, "p=2/one.parquet", [1])
    path = _write(tmp_path, "p=1/f.parquet", [2])
    table = ss.create(tmp_path)
    _write(tmp_path, "p=1/g.parquet", [3])
    names = {"f": "p=1/f.parquet", "g": "p=1/g.parquet", "one": "p=2/one.parquet"}
    declared = pa.table({"path": [names["f"]], "size_bytes": [path.stat().st_size], "row_count": [1]})
    for step in steps:
        if step == "restore":
            table.restore(1)
            continue
        with table.transaction() as tx:
            for verb, *given in map(str.split, step.split(", ")):
                if verb == "overwrite":
                    tx.overwrite()
                elif verb == "remove":
                    tx.remove([names[each] for each in given])
                else:
                    tx.add_files(declared if verb == "declare" else [names[each] for each in given])
    known, data = path.stat(), path.read_bytes()
    path.unlink()
    table.sync()
    path.write_bytes(data)
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))
    table.sync()
    assert _values(table) == [1, 2, 3]
    table.clean(retain_versions=1, min_age=dt.timedelta(0), delete_data=True)
    assert _values(table) == [1, 2, 3]


def test_a_clean_next_to_a_file_added_to_a_partition_that_was_emptied_is_a_conflict(tmp_path):
    _write(tmp_path, "p=2/one.parquet", [1])
    _write(tmp_path, "p=1/f.parquet", [2])
    table = ss.create(tmp_path)
    _write(tmp_path, "p=1/g.parquet", [3])
    for verb, name in (("remove", "f"), ("add_files", "g")):
        with table.transaction() as tx:
            getattr(tx, verb)([f"p=1/{name}.parquet"])
    with pytest.raises(ss.CommitConflictError, match="a clean removed it"), table.transaction() as tx:
        tx.add_files(["p=1/f.parquet"])
        ss.open(tmp_path).clean(retain_versions=1, min_age=dt.timedelta(0), delete_data=True)
    assert _values(ss.open(tmp_path)) == [1, 3]


def test_a_link_back_to_its_own_folder_is_not_followed_endlessly(tmp_path):
    _write(tmp_path, "one.parquet", [1])
    (tmp_path / "back").symlink_to(".")
    table = ss.create(tmp_path)
    assert table.files().column("path").to_pylist() == ["one.parquet"]
