"""Tables in an object store, on a real S3 server (`seaweed_server`): signatures, conditional puts, ranges."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import logging
import os
import pickle
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import remove_files, write_rows
from seaweed_server import KEY, SECRET, Server
from skipstone.engine.storage import (
    FileMissingError,
    StorageOptions,
    open_storage,
    relative_path,
)
from skipstone.engine.storage.object_store import PART_BYTES, ObjectStorage

obstore = pytest.importorskip("obstore", reason="object stores need obstore: pip install 'skipstone[cloud]'")
_numbers = itertools.count()
SCHEMA = pa.schema([("day", pa.int32()), ("id", pa.string()), ("n", pa.int64())])


@pytest.fixture
def root(s3_server: Server) -> str:
    """A separate prefix for each test."""
    return f"s3://{s3_server.bucket}/t{next(_numbers)}"


@pytest.fixture
def store(s3_server: Server, root: str) -> ObjectStorage:
    found = open_storage(root, s3_server.options)
    assert isinstance(found, ObjectStorage)
    return found


def rows(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table(
        {
            "day": pa.array([i % 3 for i in numbers], pa.int32()),
            "id": [f"key-{i}" for i in numbers],
            "n": pa.array(numbers, pa.int64()),
        }
    )


def put_parquet(store: ObjectStorage, path: str, table: pa.Table) -> None:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=100, compression="none", use_dictionary=False)
    store.put(path, sink.getvalue())


def numbers_of(plan: ss.Plan) -> list[int]:
    return sorted(plan.to_table().column("n").to_pylist())


# -- a table's life ----------------------------------------------------------------------------------------------------


def test_a_lake_in_a_bucket(store: ObjectStorage, root: str, s3_server: Server) -> None:
    """Create, scan, write, add, remove, sync, time travel: every answer as on a local disk."""
    for day in (0, 1, 2):
        put_parquet(store, f"day={day}/a.parquet", rows(0, 300).filter(pc.equal(rows(0, 300)["day"], day)).drop("day"))
    store.put("day=1/_SUCCESS", b"")
    options = s3_server.options
    table = ss.create(root, storage_options=options)
    assert table.location == root and table.files().num_rows == 3
    assert numbers_of(table.scan("n < 7 AND day = 1")) == [1, 4]

    table.create_index("id", kind="bloom")
    plan = table.scan("id = 'key-123'")
    assert plan.to_table().to_pylist() == [{"id": "key-123", "n": 123, "day": 0}]
    assert plan.files().num_rows == 1 and plan.row_groups().num_rows == 1
    with table.transaction() as tx:
        with ss.TaskWriter(pickle.loads(pickle.dumps(tx.task_spec()))) as task:  # with what opens the store
            task.write(rows(300, 400))
        tx.add_task(task.result)
    put_parquet(store, "day=2/b.parquet", pa.table({"id": ["late"], "n": pa.array([1000], pa.int64())}))
    with table.transaction() as tx:
        tx.add_files([f"{root}/day=2/b.parquet"])  # the table stores its path below the root
        tx.remove(["day=0/a.parquet"])
    assert "day=2/b.parquet" in table.files().column("path").to_pylist()
    expected = [n for n in range(400) if n >= 300 or n % 3] + [1000]
    assert numbers_of(table.scan()) == expected and table.scan().count() == len(expected)
    assert table.scan("id = 'key-350'").row_groups().num_rows == 1

    other = ss.open(root, storage_options=options)
    assert (other.version, numbers_of(other.scan())) == (4, expected)
    assert numbers_of(ss.open(root, version=1, storage_options=options).scan()) == list(range(300))
    assert other.sync() == 4, "removed files are still there, and no file is new"
    assert other.verify(deep=True) == []

    other.savepoint("full")
    assert numbers_of(ss.open(root, version=other.restore(3), storage_options=options).scan()) == list(range(400))
    other.restore(savepoint="full")
    assert numbers_of(other.scan()) == expected
    other.optimize()
    assert other.clean(retain_versions=1, min_age=dt.timedelta(0), delete_data=True).num_rows > 0
    again = ss.open(root, storage_options=options)
    assert numbers_of(again.scan()) == expected and again.verify(deep=True) == []
    assert numbers_of(again.scan("id = 'key-350'")) == [350]


def test_sync_sees_an_object_overwritten_with_another_of_the_same_size(
    store: ObjectStorage, root: str, s3_server: Server
) -> None:
    first, second = rows(100, 150).drop("day"), rows(150, 200).drop("day")
    put_parquet(store, "f.parquet", first)
    table = ss.create(root, storage_options=s3_server.options)
    before = store.stat("f.parquet")
    put_parquet(store, "f.parquet", second)
    after = store.stat("f.parquet")
    assert before.size_bytes == after.size_bytes and before.etag != after.etag
    with pytest.raises(ss.NotReadableError, match="overwritten"):
        table.scan().to_table()
    assert [f.kind for f in table.verify()] == ["overwritten"]
    assert table.sync() == 2 and numbers_of(table.scan()) == list(range(150, 200))
    store.delete("f.parquet")
    with pytest.raises(ss.NotReadableError, match="missing"):
        table.scan().to_table()
    assert table.sync() == 3 and table.scan().count() == 0


def test_a_removed_file_is_not_added_until_it_is_put_again(store: ObjectStorage, root: str, s3_server: Server) -> None:
    put_parquet(store, "f.parquet", rows(0, 5).drop("day"))
    table = ss.create(root, storage_options=s3_server.options)
    remove_files(table, ["f.parquet"])
    assert table.sync() == 2
    time.sleep(1.1)  # times have whole seconds, and an etag of the same bytes is the same
    put_parquet(store, "f.parquet", rows(0, 5).drop("day"))
    result = table.clean(retain_versions=1, min_age=dt.timedelta(0), delete_data=True)
    assert "data" not in result["kind"].to_pylist(), "it is another file, which was not removed"
    assert table.sync() == table.version and numbers_of(table.scan()) == list(range(5))


def test_a_lake_that_was_copied_into_a_bucket(
    store: ObjectStorage, root: str, s3_server: Server, tmp_path: Path
) -> None:
    """Files of others and of our own keep their index entries; one that was overwritten does not."""
    lake = tmp_path / "lake"
    with ss.create(lake, schema=rows(0, 1).schema) as table:
        for number in range(3):
            part = rows(10 * number, 10 * number + 10)
            pq.write_table(part, lake / f"{number}.parquet", compression="NONE", use_dictionary=False)
        table.sync()
        table.create_index("n", kind="secondary")
        table.create_index("id", kind="bloom")
        write_rows(table, rows(30, 40))
    other = pa.concat_tables([rows(10, 19), rows(20, 21)])
    pq.write_table(other, lake / "1.parquet", compression="NONE", use_dictionary=False)
    time.sleep(1.1)  # of one that has no etag the time counts, in seconds
    for file in (path for path in lake.rglob("*") if path.is_file()):
        store.put(file.relative_to(lake).as_posix(), file.read_bytes())
    with pytest.raises(ss.NotReadableError, match="adopt"):
        ss.open(root, storage_options=s3_server.options)
    result = ss.adopt(root, storage_options=s3_server.options)
    assert (result.kept, result.changed) == (3, ("1.parquet",))
    table = ss.open(root, storage_options=s3_server.options)
    assert {row["kind"]: row["files_covered"] for row in table.indexes().to_pylist()} == {
        "stats": 4,
        "secondary": 3,
        "bloom": 3,
    }
    assert numbers_of(table.scan("n = 20")) == [20, 20]
    assert numbers_of(table.scan("n = 19")) == []
    assert numbers_of(table.scan("id = 'key-35'")) == [35]
    table.close()


def test_a_delta_table_in_a_bucket(root: str, s3_server: Server) -> None:
    """deltalake reads its log with the same options; what it appends is found without a sync."""
    deltalake = pytest.importorskip("deltalake")
    options = {**s3_server.options, "allow_http": "true", "conditional_put": "etag"}
    deltalake.write_deltalake(root, rows(0, 20), partition_by=["day"], storage_options=options)
    with pytest.raises(ss.NotATableError, match=f"at {root};"):
        ss.create(f"{root}/day=1", storage_options=options)
    table = ss.create(root, storage_options=options)
    assert table.handle.log_position == "0" and numbers_of(table.scan("n < 5")) == list(range(5))
    deltalake.write_deltalake(root, rows(20, 30), mode="append", storage_options=options)
    again = ss.open(root, storage_options=options)
    assert again.version == 1 and numbers_of(again.scan("n >= 15")) == list(range(15, 30))
    assert again.sync() == 2 and again.verify(deep=True) == []
    wrong = {**options, "aws_secret_access_key": "a-wrong-secret-0123"}
    with pytest.raises(ss.StorageError) as raised:
        ss.create(root, source="delta", index_path=f"{root}-index", storage_options=wrong)
    assert_no_secret(str(raised.value), wrong)


def test_an_iceberg_table_in_a_bucket(root: str, s3_server: Server, tmp_path: Path) -> None:
    """pyiceberg's own options, which have dots in their names, are passed with ours."""
    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    own = {
        "s3.endpoint": s3_server.options["endpoint_url"],
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.region": s3_server.options["region"],
    }
    catalog = catalogs.SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=root, **own)
    catalog.create_namespace("lake")
    made = catalog.create_table("lake.flights", schema=rows(0, 20).schema)
    made.append(rows(0, 20))
    table = ss.create(made.metadata_location, source="iceberg", storage_options={**s3_server.options, **own})
    assert table.location.startswith(root) and numbers_of(table.scan("n < 5")) == list(range(5))
    assert table.verify(deep=True) == [] and SECRET not in f"{table.handle.storage_options} {vars(table)}"


def test_an_object_overwritten_while_it_is_read_is_found_out(store: ObjectStorage) -> None:
    store.put("f", b"a" * 1000)
    file = store.open_file(store.stat("f"))
    assert file.read(10) == b"a" * 10
    store.put("f", b"b" * 1000)
    with pytest.raises(ss.NotReadableError, match="overwritten while it was being read"):
        file.read(10)


@pytest.mark.parametrize(
    ("data", "index", "suffixes"),
    [
        ("{here}", "{root}/index", {".parquet"}),
        ("{root}/data", "{here}", {".sbf", ".json", ""}),
        ("{root}/data", "{root}/index", set()),
    ],
)
def test_the_index_may_be_in_another_storage(
    data: str, index: str, suffixes: set[str], root: str, s3_server: Server, tmp_path: Path
) -> None:
    data, index = (place.format(here=tmp_path / "here", root=root) for place in (data, index))
    options = s3_server.options
    table = ss.create(data, schema=SCHEMA, partitioning=["day"], index_path=index, storage_options=options)
    table.create_index("id", kind="bloom")
    write_rows(table, rows(0, 90))
    again = ss.open(data, index_path=index, storage_options=options)
    assert numbers_of(again.scan("id = 'key-7'")) == [7] and again.sync() == again.version
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == suffixes


# -- the storage -------------------------------------------------------------------------------------------------------


def test_ranges(store: ObjectStorage) -> None:
    data = bytes(range(256)) * 4096
    store.put("f", data)
    asked = [(0, 10), (5, 10), (600_000, 3), (0, 0), (len(data) - 4, 4), (20, 1)]
    assert store.read_ranges("f", asked) == [data[o : o + n] for o, n in asked]
    assert store.read_ranges("f", [(len(data) - 4, 100)]) == [data[-4:]], "short where the file ends"
    assert store.read_ranges("f", [(len(data) + 1_000_000, 5), (1, 2)]) == [b"", data[1:3]]
    assert store.read_ranges("f", []) == []
    assert store.read("f") == data and store.read_entry("f")[0] == store.stat("f")
    for read in (store.stat, store.read, lambda path: store.read_ranges(path, [(0, 1)])):
        with pytest.raises(FileMissingError, match=r"s3://test/t\d+/nothing: no such file"):
            read("nothing")


def test_a_listing_agrees_with_a_look_at_each_file(store: ObjectStorage) -> None:
    names = ["f.parquet", "p=a%2Fb/x y.parquet", "p=ü/é.parquet", "deep/er/a+b&c=[d]#?*.parquet", "p=1/__x"]
    for name in names:
        store.put(name, name.encode())
    files, folders = store.list_folder("")
    assert [f.path for f in files] == ["f.parquet"] and sorted(folders) == ["deep", "p=1", "p=a%2Fb", "p=ü"]
    found = [file for folder in ("", "p=a%2Fb", "p=ü", "deep/er", "p=1") for file in store.list_folder(folder)[0]]
    assert sorted(f.path for f in found) == sorted(names)
    assert all(store.stat(f.path) == f for f in found), "a listing returns the identities of the files"
    assert store.list_folder("p") == ([], []) and store.list_folder("deep") == ([], ["er"])
    store.delete("f.parquet")
    store.delete("f.parquet")
    with pytest.raises(ss.StorageError, match="control characters"):
        store.put("tab\there", b"")


def test_what_is_created_is_whole_or_absent(store: ObjectStorage) -> None:
    big = os.urandom(1 << 20) * ((2 * PART_BYTES >> 20) + 1)
    with store.create("big") as file:
        for start in range(0, len(big), 1 << 20):
            file.write(big[start : start + (1 << 20)])
        with pytest.raises(FileMissingError):
            store.stat("big")
    assert store.read("big") == big
    with pytest.raises(KeyError), store.create("never") as file:
        file.write(big)
        raise KeyError
    with pytest.raises(FileMissingError):
        store.stat("never")
    with store.create("empty"):
        pass
    assert store.stat("empty").size_bytes == 0 and store.read("empty") == b""


def test_one_of_several_conditional_puts_wins(store: ObjectStorage, root: str, s3_server: Server) -> None:
    stores = [open_storage(root, s3_server.options) for _ in range(4)]
    with ThreadPoolExecutor(len(stores)) as pool:
        for number in range(4):
            put = lambda me, path=f"race/{number}": stores[me].put_if_absent(path, b"%d" % me)  # noqa: E731
            won = list(pool.map(put, range(len(stores))))
            assert won.count(True) == 1 and store.read(f"race/{number}") == b"%d" % won.index(True)


# -- paths, options, credentials -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, wanted",
    [
        ("a/b.parquet", "a/b.parquet"),
        ("./a/../b.parquet", "b.parquet"),
        ("../lake/b.parquet", "b.parquet"),
        ("../lakes/b.parquet", "s3://test/lakes/b.parquet"),
        ("s3://test/lake/a/b.parquet", "a/b.parquet"),
        ("s3a://test/lake//a/b.parquet", "a/b.parquet"),
        ("s3://test/lakes/b.parquet", "s3://test/lakes/b.parquet"),
        ("s3a://test/lakes/b.parquet", "s3://test/lakes/b.parquet"),
        ("s3a://other//b.parquet", "s3a://other//b.parquet"),
        ("hdfs://host/b.parquet", "hdfs://host/b.parquet"),
    ],
)
def test_a_path_has_one_name(path: str, wanted: str) -> None:
    """The trap: absolute paths in one place, relative in another."""
    assert relative_path(open_storage("s3://test/lake/"), path) == wanted


def test_paths_that_name_nothing_in_a_bucket(tmp_path: Path) -> None:
    storage = open_storage("s3a://test/lake", {"region": "x"})
    assert storage.uri == "s3://test/lake"
    with pytest.raises(ss.InvalidArgumentError, match="relative to that"):
        relative_path(storage, "/data/x.parquet")
    with pytest.raises(ss.StorageError, match="is on another storage"):
        storage.read("s3://elsewhere/x")
    assert relative_path(open_storage(tmp_path), "s3://test/x.parquet") == "s3://test/x.parquet"
    for location, error in [
        ("s3:///x", "names no bucket"),
        ("s3://test/../../x", "leads out"),
    ]:
        with pytest.raises(ss.InvalidArgumentError, match=error):
            open_storage(location)
    with pytest.raises(ss.StorageError, match="hdfs:// is not known"):
        open_storage("hdfs://host/x")
    account = open_storage("abfss://box@me.dfs.core.windows.net/lake", {"account_key": "a2V5"})
    assert account.uri == "abfss://box@me.dfs.core.windows.net/lake"
    assert open_storage("gs://box/lake", {"skip_signature": "true"}).uri == "gs://box/lake"


def test_options_are_checked_and_never_shown(root: str, s3_server: Server, tmp_path: Path) -> None:
    for wrong in ({"region": None}, {3: "x"}, "key=value", {"KEY": "a", "key": "b"}):
        with pytest.raises(ss.InvalidArgumentError, match="storage_options"):
            ss.open(root, storage_options=wrong)
    with pytest.raises(ss.InvalidArgumentError, match="bogus") as raised:
        ss.open(root, storage_options={**s3_server.options, "bogus": SECRET})
    assert SECRET not in str(raised.value)
    with pytest.raises(ss.InvalidArgumentError, match="is a local folder"):
        ss.open(tmp_path, storage_options=s3_server.options)
    options = StorageOptions(s3_server.options)
    assert SECRET not in repr(options) and KEY not in f"{options}" and hash(options) == hash(StorageOptions(options))
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    "wrong", [{"aws_secret_access_key": "a-wrong-secret-0123"}, {"aws_access_key_id": "a-wrong-key-0123"}]
)
def test_wrong_signatures_are_reported(wrong: dict, root: str, s3_server: Server) -> None:
    given = {**s3_server.options, **wrong}
    for do in (
        lambda: ss.open(root, storage_options=given),
        lambda: ss.create(root, schema=SCHEMA, storage_options=given),
        lambda: open_storage(root, given).put("x", b"x"),
        lambda: open_storage(root, given).list_folder(""),
        lambda: open_storage(root, given).delete("x"),
        lambda: open_storage(root, given).put_if_absent("x", b"x"),
    ):
        with pytest.raises(ss.StorageError, match=r"access denied .*check the credentials") as raised:
            do()
        assert_no_secret(str(raised.value) + repr(raised.value), given)
        assert raised.value.__cause__ is None and raised.value.__suppress_context__, (
            "the message of obstore contains more"
        )


def test_nothing_there(root: str, s3_server: Server) -> None:
    options = s3_server.options
    with pytest.raises(ss.NotATableError, match="no Skipstone index here"):
        ss.open(root, storage_options=options)
    with pytest.raises(ss.NotATableError, match="no Parquet files below it"):
        ss.create(root, storage_options=options)
    open_storage(root, options).put("f.parquet", b"PAR1")
    with pytest.raises(ss.NotATableError, match="is a file"):
        ss.create(f"{root}/f.parquet", storage_options=options)
    with pytest.raises(ss.CorruptionError, match=r"f\.parquet"):
        ss.create(root, storage_options=options)
    ss.create(f"{root}/new", schema=SCHEMA, storage_options=options)
    with pytest.raises(ss.InvalidArgumentError, match="already indexed"):
        ss.create(f"{root}/new", schema=SCHEMA, storage_options=options)


def assert_no_secret(text: str | bytes, options: dict) -> None:
    data = text.encode() if isinstance(text, str) else text
    for name, value in options.items():
        if "key" in name or "secret" in name:
            assert value.encode() not in data, f"{name} is written"


def test_credentials_are_written_nowhere(
    root: str, s3_server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture
) -> None:
    """In none of our files, local or in the bucket, no log, no output. test_credentials.py tests what objects show."""
    caplog.set_level(logging.DEBUG)
    options = s3_server.options
    index = str(tmp_path / "index")
    for table in (
        ss.create(f"{root}/a", schema=SCHEMA, partitioning=["day"], storage_options=options),
        ss.create(f"{root}/b", schema=SCHEMA, partitioning=["day"], index_path=index, storage_options=options),
    ):
        table.create_index("id", kind="bloom")
        write_rows(table, rows(0, 60))
        print(table.scan("id = 'key-7'").to_table())
    files = [p.read_bytes() for p in Path(index).rglob("*") if p.is_file()]
    client = open_storage(root, options)
    files += [bytes(client._client.get(one["path"]).bytes()) for batch in client._client.list() for one in batch]
    assert len(files) > 10
    for data in files:
        assert_no_secret(data, options)
    out, err = capfd.readouterr()
    assert_no_secret(out + err + caplog.text, options)


def test_credentials_from_the_environment(root: str, s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    options = s3_server.options
    ss.create(root, schema=SCHEMA, storage_options=options)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, options[name.lower()])
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint_url"])
    assert ss.open(root).version == 1
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret-of-no-use")
    with pytest.raises(ss.StorageError, match="access denied") as raised:
        ss.open(root)
    assert "another-secret" not in str(raised.value)


def test_a_forked_process_gets_an_error(root: str, s3_server: Server) -> None:
    """From a handle that it inherited, and from one that it opens. Without the error both would hang."""
    table = ss.create(root, schema=pa.schema([("id", pa.int64())]), storage_options=s3_server.options)
    for work in (table.refresh, table.history, lambda: ss.open(root, storage_options=s3_server.options)):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                signal.alarm(60)
                work()
            except ss.StorageError as error:
                status = 0 if "spawn" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_missing_obstore_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ss.StorageError, match=r"pip install 'skipstone\[cloud\]'"):
        open_storage("s3://no-such-bucket-of-mine/x")
