"""Bad input and odd lakes: what is refused is one of our errors, with a sentence that helps."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from loaded_modules import run_code
from skipstone import col


def _lake(root: Path, files: int = 2) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        rows = {"a": [10 * number + i for i in range(6)], "s": ["x", "y", None, "z", "w", f"v{number}"]}
        pq.write_table(pa.table(rows), root / f"f{number}.parquet", row_group_size=2)
    return root


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    return ss.create(_lake(tmp_path / "lake"))


def _create(table: ss.Table, **options: object) -> ss.Table:
    """Another table, over files of its own."""
    return ss.create(_lake(Path(table.location) / "n"), **options)


def _write(table: ss.Table, data: object) -> None:
    with table.transaction() as tx:
        tx.write(data)


def _add(table: ss.Table, files: object) -> None:
    with table.transaction() as tx:
        tx.add_files(files)


ARGUMENTS: dict[str, tuple[Callable[[ss.Table], object], type[Exception], str]] = {
    "a version as text": (lambda t: ss.open(t.location, version="1"), ss.InvalidArgumentError, "version"),
    "a version that is no whole number": (
        lambda t: ss.open(t.location, version=1.5),
        ss.InvalidArgumentError,
        "version",
    ),
    "a version before the first": (lambda t: ss.open(t.location, version=-1), ss.NotATableError, "-1"),
    "no such version": (lambda t: ss.open(t.location, version=9), ss.NotATableError, "9"),
    "a version and a time": (
        lambda t: ss.open(t.location, version=1, as_of=dt.datetime.max),
        ss.InvalidArgumentError,
        "only one of",
    ),
    "a time as text": (lambda t: ss.open(t.location, as_of="2020-01-01"), ss.InvalidArgumentError, "as_of"),
    "a time before the table": (
        lambda t: ss.open(t.location, as_of=dt.datetime(2000, 1, 1)),
        ss.NotATableError,
        "began after",
    ),
    "a location that is none": (lambda t: ss.open(None), ss.InvalidArgumentError, "directory"),
    "a location that is a number": (lambda t: ss.create(5), ss.InvalidArgumentError, "location"),
    "an index path that is a number": (
        lambda t: ss.open(t.location, index_path=5),
        ss.InvalidArgumentError,
        "index_path",
    ),
    "a location that UTF-8 cannot hold": (lambda t: ss.open("\udcff"), ss.InvalidArgumentError, "UTF-8"),
    "a file of another host": (lambda t: ss.open("file://host/lake"), ss.StorageError, "host"),
    "groups by a number": (lambda t: t.scan().count(by=5), ss.InvalidArgumentError, "by="),
    "values of nothing": (lambda t: t.scan().distinct(None), ss.InvalidArgumentError, "by="),
    "keys of a number": (lambda t: t.lookup([1], on=5), ss.InvalidArgumentError, "on="),
    "keys of a name that UTF-8 cannot hold": (lambda t: t.lookup([1], on="\udcff"), ss.SchemaError, "no column"),
    "a connection that is none": (lambda t: t.scan().to_duckdb("x"), ss.InvalidArgumentError, "connection="),
    "a column that UTF-8 cannot hold": (lambda t: t.scan(columns=["\udcff"]), ss.SchemaError, "no column"),
    "an order that UTF-8 cannot hold": (lambda t: t.scan(order_by="\udcff", limit=1), ss.SchemaError, "no column"),
    "a greatest value that UTF-8 cannot hold": (lambda t: t.scan().max("\udcff"), ss.SchemaError, "no column"),
    "a file that UTF-8 cannot hold": (lambda t: t.scan().explain("\udcff"), ss.InvalidArgumentError, "not a file"),
    "a new name that UTF-8 cannot hold": (lambda t: t.alter(rename={"a": "\udcff"}), ss.InvalidArgumentError, "names"),
    "partitions named twice": (
        lambda t: ss.create(Path(t.location) / "n", schema=t.schema, partitioning=["a", "a"]),
        ss.SchemaError,
        "twice",
    ),
    "a text for a flag": (lambda t: t.clean(dry_run="no"), ss.InvalidArgumentError, "dry_run="),
    "a text for the flag that deletes": (lambda t: t.clean(delete_data="no"), ss.InvalidArgumentError, "delete_data="),
    "an unknown scheme": (lambda t: ss.open("ftp://host/lake"), ss.StorageError, "ftp"),
    "a table twice": (lambda t: ss.create(t.location), ss.InvalidArgumentError, "sync()"),
    "no files named": (lambda t: _create(t, files=[]), ss.SkipstoneError, "files"),
    "files that are numbers": (lambda t: _create(t, files=[1]), ss.SkipstoneError, "files"),
    "files that are a number": (lambda t: _create(t, files=3), ss.SkipstoneError, "files"),
    "a file that is not there": (lambda t: _create(t, files=["no.parquet"]), ss.NotATableError, "no.parquet"),
    "columns that are a number": (lambda t: _create(t, columns=5), ss.SkipstoneError, "columns"),
    "statistics of no column": (lambda t: _create(t, columns=["zz"]), ss.SchemaError, "zz"),
    "partitioning that is a number": (lambda t: _create(t, partitioning=5), ss.SkipstoneError, "partitioning"),
    "partitioning by no column": (lambda t: _create(t, partitioning=["zz"]), ss.SchemaError, "zz"),
    "a schema that is none": (lambda t: ss.create(t.location + "/n", schema={"a": 1}), ss.SkipstoneError, "schema"),
    "a schema with a name twice": (
        lambda t: ss.create(t.location + "/n", schema=pa.schema([("a", pa.int8()), ("a", pa.int8())])),
        ss.SchemaError,
        "'a'",
    ),
    "a source that is unknown": (lambda t: ss.create(t.location, source="zz"), ss.InvalidArgumentError, "zz"),
    "a mode that is unknown": (lambda t: t.scan(mode="zz"), ss.InvalidArgumentError, "zz"),
    "an unknown column in the text": (lambda t: t.scan("zz = 1"), ss.PredicateError, "zz"),
    "an unknown column in a tuple": (lambda t: t.scan([("zz", "=", 1)]), ss.PredicateError, "zz"),
    "an unknown column in an object": (lambda t: t.scan(col("zz") == 1), ss.PredicateError, "zz"),
    "a text against a number": (lambda t: t.scan("a = 'x'").to_table(), ss.PredicateError, "x"),
    "SQL cut short": (lambda t: t.scan("a = 1 AND"), ss.PredicateError, "a = 1 AND"),
    "SQL of two statements": (lambda t: t.scan("a = 1; DROP TABLE t"), ss.PredicateError, "DROP"),
    "SQL that is empty": (lambda t: t.scan(""), ss.PredicateError, ""),
    "a predicate that is a number": (lambda t: t.scan(5), ss.PredicateError, "int"),
    "a tuple cut short": (lambda t: t.scan([("a",)]), ss.PredicateError, "a"),
    "an operator that is none": (lambda t: t.scan([("a", "~", 1)]), ss.PredicateError, "~"),
    "an unknown column to read": (lambda t: t.scan(columns=["zz"]), ss.SchemaError, "zz"),
    "columns to read that are a number": (lambda t: t.scan(columns=5), ss.SkipstoneError, "column"),
    "a column to read twice": (lambda t: t.scan(columns=["a", "a"]), ss.SchemaError, "twice"),
    "a column to read that is a number": (lambda t: t.scan(columns=[5]), ss.SkipstoneError, "column"),
    "a limit below zero": (lambda t: t.scan(limit=-1), ss.InvalidArgumentError, "-1"),
    "a limit that is true": (lambda t: t.scan(limit=True), ss.InvalidArgumentError, "True"),
    "a partition that is not there": (lambda t: t.files("p=1"), ss.InvalidArgumentError, "p=1"),
    "a partition that is a number": (lambda t: t.files(5), ss.InvalidArgumentError, "5"),
    "an index of an unknown kind": (lambda t: t.create_index("a", kind="zz"), ss.InvalidArgumentError, "zz"),
    "an index of no column": (lambda t: t.create_index([], kind="bloom"), ss.InvalidArgumentError, "column"),
    "an index of an unknown column": (lambda t: t.create_index("zz", kind="bloom"), ss.SchemaError, "zz"),
    "an index of a number": (lambda t: t.create_index(5, kind="bloom"), ss.SkipstoneError, "5"),
    "a probability of nothing": (lambda t: t.create_index("a", kind="bloom", fpp=0), ss.InvalidArgumentError, "fpp"),
    "a probability of one": (lambda t: t.create_index("a", kind="bloom", fpp=1), ss.InvalidArgumentError, "fpp"),
    "a probability that is NaN": (
        lambda t: t.create_index("a", kind="bloom", fpp=float("nan")),
        ss.InvalidArgumentError,
        "fpp",
    ),
    "maintenance that is unknown": (
        lambda t: t.create_index("a", kind="bloom", maintain="zz"),
        ss.InvalidArgumentError,
        "zz",
    ),
    "an index to drop that is not there": (lambda t: t.drop_index("a", kind="bloom"), ss.InvalidArgumentError, "'a'"),
    "an index to refresh that is not there": (
        lambda t: t.refresh_index("a", kind="bloom"),
        ss.InvalidArgumentError,
        "'a'",
    ),
    "rows that are text": (lambda t: _write(t, "rows"), ss.InvalidArgumentError, "str"),
    "rows that are nothing": (lambda t: _write(t, None), ss.InvalidArgumentError, "NoneType"),
    "rows with a column too many": (lambda t: _write(t, pa.table({"zz": [1]})), ss.SchemaError, "zz"),
    "rows with a column twice": (
        lambda t: _write(t, pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])),
        ss.SchemaError,
        "'a'",
    ),
    "rows of another type": (lambda t: _write(t, pa.table({"a": ["text"]})), ss.SchemaError, "'a'"),
    "rows that do not fit": (lambda t: _write(t, pa.table({"a": [2.5]})), ss.SchemaError, "'a'"),
    "a file added that is not there": (lambda t: _add(t, ["no.parquet"]), ss.StorageError, "no.parquet"),
    "a file added twice": (lambda t: _add(t, ["f0.parquet"]), ss.InvalidArgumentError, "replace()"),
    "a table of files without a path": (lambda t: _add(t, pa.table({"size_bytes": [1]})), ss.SchemaError, "path"),
    "a table of files with a null": (
        lambda t: _add(t, pa.table({"path": [None], "size_bytes": [1], "row_count": [1]})),
        ss.SchemaError,
        "path",
    ),
    "a file without a name": (lambda t: _add(t, [""]), ss.InvalidArgumentError, "names no file"),
    "a file named with a NUL": (
        lambda t: _add(t, pa.table({"path": ["a\0"], "size_bytes": [1], "row_count": [1]})),
        ss.InvalidArgumentError,
        "names no file",
    ),
    "a new name that is empty": (lambda t: t.alter(rename={"a": ""}), ss.SchemaError, "needs a name"),
    "a new column without a name": (lambda t: t.alter(add={"": pa.int64()}), ss.SchemaError, "needs a name"),
    "a type that is a text": (lambda t: t.alter(widen={"a": "int64"}), ss.InvalidArgumentError, "pyarrow types"),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> ss.Table:
    return ss.create(_lake(tmp_path_factory.mktemp("shared") / "lake"))


@pytest.mark.filterwarnings("ignore:.*changed since the last sync")  # some cases put files into the folder
@pytest.mark.parametrize("case", ARGUMENTS)
def test_bad_input_is_one_of_our_errors_and_changes_nothing(shared: ss.Table, case: str) -> None:
    table, (act, kind, word) = shared, ARGUMENTS[case]
    with pytest.raises(kind) as caught:
        act(table)
    assert isinstance(caught.value, ss.SkipstoneError)
    assert word in str(caught.value)
    assert ss.open(table.location).version == 1
    assert ss.open(table.location).scan().count() == 12


def test_a_transaction_is_used_within_its_block_only(table: ss.Table) -> None:
    with table.transaction() as tx:
        pass
    with pytest.raises(ss.InvalidArgumentError):
        tx.write(pa.table({"a": [1]}))
    with table.transaction() as tx, pytest.raises(ss.InvalidArgumentError, match="f9"):
        tx.remove(["f9.parquet"])


# -- what is not there, or is not Parquet -----------------------------------------------------------------------------


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
        _add(table, ["bad.parquet"])
    raised = pytest.raises(ss.CorruptionError, match=r"bad\.parquet")
    with raised, table.transaction() as tx, ss.TaskWriter(tx.task_spec()) as task:
        task.add_files(["bad.parquet"])
    assert ss.open(lake).version == 1


def test_a_lake_of_nothing_but_broken_files_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ss.CorruptionError, match=r"a\.parquet"):
        ss.create(tmp_path)
    assert not (tmp_path / ".skipstone/timeline").exists()


def test_names_that_are_not_text_do_not_stop_a_listing(tmp_path: Path) -> None:
    lake = _lake(tmp_path / "lake")
    shutil.copy(lake / "f0.parquet", os.fsencode(lake) + b"/\xff.parquet")
    table = ss.create(lake)  # the file cannot be named in an index: it is told of, not lost in silence
    assert table.scan().count() == 12
    assert [f.kind for f in table.verify()] == ["quarantined"]


def test_columns_with_one_name_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "f.parquet")
    with pytest.raises(ss.SchemaError, match="'a'"):
        ss.create(tmp_path)


# -- odd lakes --------------------------------------------------------------------------------------------------------


def test_empty_tables_empty_files_and_nulls_only(tmp_path: Path) -> None:
    nothing = ss.create(tmp_path / "nothing", schema=pa.schema([("a", pa.int64())]))
    lake = tmp_path / "lake"
    lake.mkdir()
    pq.ParquetWriter(lake / "groupless.parquet", pa.schema([("a", pa.int64())])).close()
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), lake / "rowless.parquet")
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


def test_huge_texts_and_long_common_prefixes(tmp_path: Path) -> None:
    prefix = "é" * 150
    texts = ["m" * 1_000_000 + str(i) for i in range(3)] + [prefix + t for t in ("a", "b", "")] + ["\U0010ffff" * 80]
    lake = tmp_path / "lake"
    lake.mkdir()
    for number in range(0, len(texts), 2):
        pq.write_table(pa.table({"s": texts[number : number + 2]}), lake / f"{number}.parquet", row_group_size=1)
    table = ss.create(lake)
    with table.transaction() as tx:
        tx.write(pa.table({"s": texts}))
    for indexed in (False, True):
        if indexed:
            table.create_index("s", kind="bloom")
        for text in texts:
            assert table.scan(col("s") == text).count() == 2
            assert table.scan(col("s") >= text).count() == 2 * sum(t.encode() >= text.encode() for t in texts)
            assert table.scan(col("s") <= text).count() == 2 * sum(t.encode() <= text.encode() for t in texts)
        assert table.scan(col("s").starts_with(prefix)).count() == 6
    assert table.scan(col("s") == "zz").row_groups().num_rows == 0


def test_unicode_and_odd_paths(tmp_path: Path) -> None:
    lake = tmp_path / "озеро %41 a=b #?[x]"
    for name in ("日本/файл {1}.parquet", "a'b\"c\n.parquet", "%2F.parquet", "x=y/z.parquet"):
        (lake / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": [len(name)]}), lake / name)
    table = ss.create(lake, partitioning=None)
    assert table.scan("a > 0").to_table().num_rows == 4
    assert ss.open(str(lake)).scan().count() == 4
    with table.transaction() as tx:
        tx.remove([str(lake / "%2F.parquet"), "./日本/файл {1}.parquet"])
    assert table.scan().to_table().num_rows == 2


# Whom the process turns into may be let into neither the package nor the interpreter's library. So all is done once
# before, to a lake of its own: nothing is imported after.
_AS_ANOTHER = """
import os, sys, pyarrow as pa, skipstone as ss

def refusals(lake):
    table = ss.open(lake)
    assert table.scan("a = 3").to_table().num_rows == 1
    told = []
    try:
        with table.transaction() as tx:
            tx.write(pa.table({"a": [1]}))
    except ss.StorageError as error:
        told.append(str(error))
    try:
        table.create_index("s", kind="bloom")
    except ss.StorageError as error:
        told.append(str(error))
    return told

allowed, lake = sys.argv[1:]
assert refusals(allowed) == []
os.setuid(65534)
print(*refusals(lake), sep="\\n")
"""


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="another user is needed to be refused")
def test_a_folder_that_one_may_only_read_is_an_error_for_writers_and_none_for_readers() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own may be closed again by another run of it
        Path(folder).chmod(0o755)
        lakes = [str(_lake(Path(folder, name))) for name in ("allowed", "lake")]
        for lake in lakes:
            ss.create(lake).create_index("a", kind="bloom")
        done = run_code(_AS_ANOTHER, *lakes)
    refused = done.stdout.splitlines()
    assert len(refused) == 2 and all("ermission denied" in line for line in refused), done.stderr


def test_a_file_uri_names_what_its_escapes_say(tmp_path: Path) -> None:
    root, outside = tmp_path / "a b%20c é", tmp_path / "out side"
    for folder in (root, outside):
        folder.mkdir()
        pq.write_table(pa.table({"a": [len(folder.name)]}), folder / "f 1.parquet")
    host_named = root.as_uri().replace("file://", "file://localhost")
    table = ss.create(root.as_uri(), index_path=(tmp_path / "in dex").as_uri(), files=[(root / "f 1.parquet").as_uri()])
    assert table.location == str(root) and sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["a b%20c é", "in dex", "out side"]
    )
    file = outside / "f 1.parquet"
    with table.transaction() as tx:
        tx.add_files([file.as_uri()])
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
    (tmp_path / "lake").mkdir()
    (tmp_path / "here").mkdir()
    pq.write_table(pa.table({"n": [1, 2, 3], "s": ["x", "Y", "y"]}), tmp_path / "lake" / "a.parquet")
    ran = run_code(_WITHOUT_WORKING_DIRECTORY, tmp_path / "lake", tmp_path / "here")
    rows, *errors = ran.stdout.splitlines()
    assert rows == "[2]"
    assert [error.split(": ")[0] for error in errors] == ["lake", "index"]
    assert all("pass an absolute path" in error for error in errors)
