"""Bad input and odd lakes: errors are Skipstone errors with a sentence that helps."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import add_files, make_file, remove_files, write_rows
from loaded_modules import run_code
from skipstone import col


def _lake(root: Path, files: int = 2) -> Path:
    for number in range(files):
        rows = {"a": [10 * number + i for i in range(6)], "s": ["x", "y", None, "z", "w", f"v{number}"]}
        make_file(root, f"f{number}.parquet", rows, row_group_size=2)
    return root


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    return ss.create(_lake(tmp_path / "lake"))


def _create(table: ss.Table, **options: object) -> ss.Table:
    """Another table, over other files."""
    return ss.create(_lake(Path(table.location) / "n"), **options)


NAMES = {"ss": ss, "pa": pa, "dt": dt, "col": col, "Path": Path, "_create": _create}
NAMES |= {"add_files": add_files, "remove_files": remove_files, "write_rows": write_rows}
REFUSED: dict[type[Exception], dict[str, str]] = {  # calls with a table `t`, and a part of the message
    ss.InvalidArgumentError: {
        "ss.open(t.location, version='1')": "version",
        "ss.open(t.location, version=1.5)": "version",
        "ss.open(t.location, version=1, as_of=dt.datetime.max)": "only one of",
        "ss.open(t.location, as_of='2020-01-01')": "as_of",
        "ss.open(None)": "directory",
        "ss.create(5)": "location",
        "ss.open(t.location, index_path=5)": "index_path",
        r"ss.open('\udcff')": "UTF-8",
        "t.scan().count(by=5)": "by=",
        "t.scan().distinct(None)": "by=",
        "t.lookup([1], on=5)": "on=",
        "t.scan().to_duckdb('x')": "connection=",
        r"t.scan().explain('\udcff')": "not a file",
        r"t.alter(rename={'a': '\udcff'})": "names",
        "t.clean(dry_run='no')": "dry_run=",
        "t.clean(delete_data='no')": "delete_data=",
        "ss.create(t.location)": "sync()",
        "ss.create(t.location, source='zz')": "zz",
        "t.scan(mode='zz')": "zz",
        "t.files('p=1')": "p=1",
        "t.files(5)": "5",
        "t.create_index('a', kind='zz')": "zz",
        "t.create_index([], kind='bloom')": "column",
        "t.create_index('a', kind='bloom', maintain='zz')": "zz",
        "t.drop_index('a', kind='bloom')": "'a'",
        "t.refresh_index('a', kind='bloom')": "'a'",
        "write_rows(t, 'rows')": "str",
        "write_rows(t, None)": "NoneType",
        "add_files(t, ['f0.parquet'])": "replace()",
        "add_files(t, [''])": "names no file",
        r"add_files(t, pa.table({'path': ['a\x00'], 'size_bytes': [1], 'row_count': [1]}))": "names no file",
        "_create(t, columns=5)": "columns",
        "_create(t, partitioning=5)": "partitioning",
        "ss.create(t.location + '/n', schema={'a': 1})": "schema",
        "t.create_index(5, kind='bloom')": "5",
        "t.clean(min_age=3600)": "min_age is",
        "t.purge(min_age=3)": "min_age",
        "t.restore()": "version or a savepoint",
        "t.restore(None)": "version or a savepoint",
        "t.restore(1, savepoint='s')": "version or a savepoint",
        "t.restore(savepoint='s')": "no savepoint 's'",
        "ss.open(t.location, version=1).restore(1)": "read-only",
        "ss.open(t.location, version=1).rollback()": "read-only",
        "ss.open(t.location, version=1).distributed_transaction()": "version 1",
        "t.distributed_transaction(key=5)": "key=",
        "ss.open(t.location, on_stale='always')": "on_stale",
        "ss.open(t.location, fallback='guess')": "fallback",
        "t.slices('p=3')": "p=3",
        "t.slices(latest='yes')": "latest",
        "t.layout(3)": "column",
    },
    ss.NotATableError: {
        "_create(t, files=[])": "files= names no file",
        "ss.open(t.location, version=-1)": "-1",
        "ss.open(t.location, version=9)": "9",
        "ss.open(t.location, as_of=dt.datetime(2000, 1, 1))": "began after",
        "_create(t, files=['no.parquet'])": "no.parquet",
    },
    ss.StorageError: {
        "ss.open('file://host/lake')": "host",
        "ss.open('ftp://host/lake')": "ftp",
        "add_files(t, ['no.parquet'])": "no.parquet",
    },
    ss.SchemaError: {
        "ss.create(t.location + '/n', schema=t.schema.remove(1), partitioning=['a'])": "a column that is not a",
        "t.scan(columns=5)": "a list of column names",
        "t.scan(columns=[5])": "no column 5",
        r"t.lookup([1], on='\udcff')": "no column",
        r"t.scan(columns=['\udcff'])": "no column",
        r"t.scan(order_by='\udcff', limit=1)": "no column",
        r"t.scan().max('\udcff')": "no column",
        "ss.create(Path(t.location) / 'n', schema=t.schema, partitioning=['a', 'a'])": "twice",
        "_create(t, columns=['zz'])": "zz",
        "_create(t, partitioning=['zz'])": "zz",
        "ss.create(t.location + '/n', schema=pa.schema([('a', pa.int8()), ('a', pa.int8())]))": "'a'",
        "t.scan(columns=['zz'])": "zz",
        "t.scan(columns=['a', 'a'])": "twice",
        "t.create_index('zz', kind='bloom')": "zz",
        "write_rows(t, pa.table({'zz': [1]}))": "zz",
        "write_rows(t, pa.table([pa.array([1]), pa.array([2])], names=['a', 'a']))": "'a'",
        "write_rows(t, pa.table({'a': ['text']}))": "'a'",
        "write_rows(t, pa.table({'a': [2.5]}))": "'a'",
        "add_files(t, pa.table({'size_bytes': [1]}))": "path",
        "add_files(t, pa.table({'path': [None], 'size_bytes': [1], 'row_count': [1]}))": "path",
        "t.alter(rename={'a': ''})": "needs a name",
        "t.alter(add={'': pa.int64()})": "needs a name",
        "t.layout('nope')": "nope",
    },
    ss.PredicateError: {
        "t.scan('zz = 1')": "zz",
        "t.scan([('zz', '=', 1)])": "zz",
        "t.scan(col('zz') == 1)": "zz",
        "t.scan(col('a') == 'x').to_table()": "x",
        "t.scan('a = 1 AND')": "a = 1 AND",
        "t.scan('a = 1; DROP TABLE t')": "DROP",
        "t.scan('')": "",
        "t.scan(5)": "int",
        "t.scan([('a',)])": "a",
        "t.scan([('a', '~', 1)])": "~",
    },
}


ODD_VALUES: dict[str, tuple[str, Sequence]] = {  # calls that refuse these values, and a part of the message
    "_create(t, files={!r})": ("files", [[1], 3]),
    "t.scan(limit={!r})": ("limit is", [-1, True]),
    "t.files(columns={!r})": ("columns=", [["zz"], "path", ["path", "path"], [5], 5]),
    "t.create_index('a', kind='bloom', fpp={})": ("fpp", [0, 1, "float('nan')"]),
    "t.clean(retain_versions={!r})": ("retain_versions is", [0, True]),
    "ss.set_cache_budget({!r})": ("bytes", [-1, 1.5, True, "64", None]),
    "t.alter({})": (
        "=",
        [
            *("rename='a'", "rename={'a': 1}", "drop=5", "widen={'a': 'int64'}", "widen=['a']"),
            *("add={'c': 'int64'}", "add={1: pa.int64()}", "add=['c']", "order=[1]"),
        ],
    ),
    "t.restore({!r})": ("version", [0, -1, 2, "1", 1.0, True]),
    "t.rollback({!r})": ("restore()", [0, -1, 1, 99, "1", 1.0, True, None]),
    "t.savepoint({!r})": ("savepoint's name", ["", " ", "a\nb", "\ud800", None, 3, b"s"]),
    "t.drop_savepoint({!r})": ("no savepoint", ["t", None, 3]),
    "ss.open(t.location, savepoint={!r})": ("no savepoint", ["t", 3]),
    "t.distributed_transaction().task_spec({}=0)": (
        "",
        ["row_group_rows", "row_group_bytes", "file_rows", "file_bytes"],
    ),
    "add_files(t, {!r})": ("path", [5, [5], b"x", {"x": 1}]),
    "remove_files(t, {!r})": ("path", [5, [5], b"x", {"x": 1}]),
}
for call, (part, values) in ODD_VALUES.items():
    REFUSED[ss.InvalidArgumentError] |= {call.format(value): part or value for value in values}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> ss.Table:
    return ss.create(_lake(tmp_path_factory.mktemp("shared") / "lake"))


@pytest.mark.filterwarnings("ignore:.*changed since the last sync")  # some calls put files into the folder
@pytest.mark.parametrize(("error", "call"), [(error, call) for error, calls in REFUSED.items() for call in calls])
def test_bad_input_is_one_of_our_errors_and_changes_nothing(
    shared: ss.Table, error: type[Exception], call: str
) -> None:
    with pytest.raises(error) as caught:
        eval(call, {**NAMES, "t": shared})
    assert isinstance(caught.value, ss.SkipstoneError)
    assert REFUSED[error][call] in str(caught.value)
    assert ss.open(shared.location).version == 1
    assert ss.open(shared.location).scan().count() == 12


def test_a_transaction_is_used_within_its_block_only(table: ss.Table) -> None:
    with table.transaction() as tx:
        pass
    with pytest.raises(ss.InvalidArgumentError):
        tx.write(pa.table({"a": [1]}))
    with table.transaction() as tx, pytest.raises(ss.InvalidArgumentError, match="f9"):
        tx.remove(["f9.parquet"])
    with table.transaction() as tx, pytest.raises(ss.InvalidArgumentError, match="`result` of a TaskWriter"):
        tx.add_task("no result")


def test_a_directory_that_is_missing_or_is_a_file_is_no_table(tmp_path: Path) -> None:
    for call in (ss.open, ss.create):
        with pytest.raises(ss.NotATableError, match="no such directory"):
            call(tmp_path / "missing")
    (tmp_path / "file").write_bytes(b"x")
    for call in (ss.open, ss.create):
        with pytest.raises(ss.NotATableError):
            call(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ss.NotATableError, match="no Parquet"):
        ss.create(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):  # what people catch
        ss.open(tmp_path / "empty")


NOT_PARQUET = {
    "empty": lambda good: b"",
    "text": lambda good: b"a,b\n1,2\n" * 50,
    "cut at the end": lambda good: good[:-20],
    "cut in the middle": lambda good: good[: len(good) // 2],
    "a footer of noise": lambda good: good[:-60] + b"\x7f" * 52 + good[-8:],
    "a footer longer than the file": lambda good: good[:-8] + (10**6).to_bytes(4, "little") + b"PAR1",
}


@pytest.mark.parametrize("what", NOT_PARQUET)
def test_a_file_that_is_not_whole_is_quarantined_in_a_listing_and_an_error_by_name(tmp_path: Path, what: str) -> None:
    lake = _lake(tmp_path / "lake")
    good = (lake / "f0.parquet").read_bytes()
    (lake / "bad.parquet").write_bytes(NOT_PARQUET[what](good))
    with pytest.raises(ss.CorruptionError, match=r"bad\.parquet"):
        ss.create(lake, files=["bad.parquet"])
    table = ss.create(lake)
    assert table.scan().count() == 12
    assert [(f.kind, f.path) for f in table.verify()] == [("quarantined", "bad.parquet")]
    assert "quarantined: bad.parquet: " in table.scan().explain()
    with pytest.raises(ss.CorruptionError, match=r"bad\.parquet"):
        add_files(table, ["bad.parquet"])
    raised = pytest.raises(ss.CorruptionError, match=r"bad\.parquet")
    with raised, table.transaction() as tx, ss.TaskWriter(tx.task_spec()) as task:
        task.add_files(["bad.parquet"])
    assert ss.open(lake).version == 1


def test_names_that_are_not_text_do_not_stop_a_listing(tmp_path: Path) -> None:
    lake = _lake(tmp_path / "lake")
    shutil.copy(lake / "f0.parquet", os.fsencode(lake) + b"/\xff.parquet")
    table = ss.create(lake)  # no index can name the file: it is reported
    assert table.scan().count() == 12
    assert [f.kind for f in table.verify()] == ["quarantined"]


def test_a_lake_of_broken_files_alone_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ss.CorruptionError, match=r"a\.parquet"):
        ss.create(tmp_path)
    assert not (tmp_path / ".skipstone/timeline").exists()


def test_columns_with_one_name_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "f.parquet")
    with pytest.raises(ss.SchemaError, match="'a'"):
        ss.create(tmp_path)


def test_empty_tables_empty_files_and_nulls_only(tmp_path: Path) -> None:
    nothing = ss.create(tmp_path / "nothing", schema=pa.schema([("a", pa.int64())]))
    lake = tmp_path / "lake"
    make_file(lake, "rowless.parquet", {"a": pa.array([], pa.int64())})
    pq.ParquetWriter(lake / "groupless.parquet", pa.schema([("a", pa.int64())])).close()
    rowless = ss.create(lake)
    for table in (nothing, rowless):
        table.create_index("a", kind="bloom")
        for where in (None, "a = 1", "a IS NULL", "NOT (a > 5)", "a = a"):
            assert table.scan(where).to_table().num_rows == table.scan(where).count() == 0, where
            assert table.scan(where).files().num_rows == table.scan(where).row_groups().num_rows == 0
            assert list(table.scan(where).to_batches()) == []
    pq.write_table(pa.table({"a": pa.array([None] * 5, pa.int64())}), tmp_path / "nulls.parquet")
    nulls = ss.create(tmp_path, files=["nulls.parquet"])
    nulls.create_index("a", kind="bloom")
    assert nulls.scan("a IS NULL").count() == 5
    assert nulls.scan("a = 1 OR a != 1").files().num_rows == 0


def test_a_file_uri_names_what_its_escapes_say(tmp_path: Path) -> None:
    root, outside = tmp_path / "a b%20c é", tmp_path / "out side"
    for folder in (root, outside):
        make_file(folder, "f 1.parquet", {"a": [len(folder.name)]})
    host_named = root.as_uri().replace("file://", "file://localhost")
    table = ss.create(root.as_uri(), index_path=(tmp_path / "in dex").as_uri(), files=[(root / "f 1.parquet").as_uri()])
    assert table.location == str(root) and sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["a b%20c é", "in dex", "out side"]
    )
    file = outside / "f 1.parquet"
    add_files(table, [file.as_uri()])
    described = pa.table({"path": [file.as_uri()], "size_bytes": [file.stat().st_size], "row_count": [1]})
    with pytest.raises(ss.InvalidArgumentError, match="in the table already"), table.transaction() as tx:
        tx.add_files(described)
    for uri in (root.as_uri(), host_named, root.as_uri().replace("file://", "file:")):
        found = ss.open(uri, index_path=tmp_path / "in dex")
        assert sorted(found.scan().to_table().column("a").to_pylist()) == [len(outside.name), len(root.name)]


_WITHOUT_WORKING_DIRECTORY = """
import os, sys
import skipstone as ss

lake, place = sys.argv[1:]
os.chdir(place)
os.rmdir(place)
table = ss.create(lake)
print(table.scan("lower(s) = 'y' AND n % 2 = 0").to_table().column("n").to_pylist())
for action in (lambda: ss.open("lake"), lambda: ss.create(lake, index_path="index")):
    try:
        action()
    except ss.StorageError as error:
        print(error)
"""


def test_a_working_directory_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    make_file(tmp_path, "lake/a.parquet", {"n": [1, 2, 3], "s": ["x", "Y", "y"]})
    ran = run_code(_WITHOUT_WORKING_DIRECTORY, tmp_path / "lake", tmp_path / "here")
    rows, *errors = ran.stdout.splitlines()
    assert rows == "[2]"
    assert [error.split(": ")[0] for error in errors] == ["lake", "index"]
    assert all("pass an absolute path" in error for error in errors)
