"""Tables named by objects of deltalake and pyiceberg, by a catalog, and by the versions of the log."""

from __future__ import annotations

import pickle
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from loaded_modules import run_code
from log_lakes import iceberg_table, read_delta
from skipstone.engine.lakes.detect import locate

deltalake = pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')
from deltalake import DeltaTable, write_deltalake  # noqa: E402


def _rows(*values):
    return pa.table({"a": pa.array(values, pa.int64())})


def _values(table, where=None):
    return sorted(table.scan(where).to_table().column("a").to_pylist())


def _append(lake, *values):
    write_deltalake(str(lake), _rows(*values), mode="append")


@pytest.fixture
def lake(tmp_path):
    path = tmp_path / "a lake, ü"
    for value in range(3):  # versions 0, 1, 2
        _append(path, value)
    return path


def test_a_delta_table_object_is_indexed_at_the_latest_version_of_its_log(lake):
    table = ss.create(DeltaTable(str(lake), version=1))
    assert table.location == str(lake)
    assert table.handle.instant.source["version"] == 2
    assert _values(table) == [0, 1, 2]
    assert _values(ss.open(DeltaTable(str(lake)))) == [0, 1, 2]


def test_a_delta_table_object_is_opened_at_its_version(lake):
    ss.create(lake)
    _append(lake, 3)
    _append(lake, 4)
    opened = ss.open(DeltaTable(str(lake), version=3))
    assert _values(opened) == [0, 1, 2, 3]
    assert _values(pickle.loads(pickle.dumps(opened))) == [0, 1, 2, 3]
    with pytest.raises(ss.InvalidArgumentError, match="read-only"):
        opened.sync()
    latest = ss.open(DeltaTable(str(lake)))
    assert _values(latest) == [0, 1, 2, 3, 4]
    latest.sync()
    assert latest.handle.instant.source["version"] == 4


def test_the_storage_options_of_a_table_object_open_the_object_store():
    options = {"endpoint": "http://127.0.0.1:9", "access_key_id": "k", "secret_access_key": "s" * 9}

    class Store:
        __module__ = "deltalake.table"
        table_uri = "s3://bucket/lake/"
        _storage_options = options

        def version(self):
            return 0

    place = locate(Store())
    assert (place.path, place.storage_options) == ("s3://bucket/lake", options)
    assert locate(Store(), storage_options={"region": "x"}).storage_options == {"region": "x"}


def test_every_version_of_a_delta_log_is_read_by_its_number(lake):
    table = ss.create(lake)
    for value in (3, 4, 5):
        _append(lake, value)
        if value == 4:
            DeltaTable(str(lake)).delete("a = 1")
            table.sync()
    for version in range(7):
        wanted = sorted(read_delta(lake, version=version).column("a").to_pylist())
        opened = ss.open(lake, log_version=version)
        assert _values(opened) == wanted
        assert opened.scan().count() == len(wanted)
        assert _values(opened, "a >= 2") == [value for value in wanted if value >= 2]
    assert ss.open(lake, log_version=5).version == 2
    with pytest.raises(ss.NotATableError, match="no version 7"):
        ss.open(lake, log_version=7)


def test_a_log_version_that_a_version_recorded_outlives_the_log(lake):
    table = ss.create(lake)
    table.create_index("a", kind="bloom")
    _append(lake, 3)
    table.sync()
    for version in range(4):
        (lake / "_delta_log" / f"{version:020d}.json").rename(lake / f"{version}.moved")
    opened = ss.open(lake, log_version=2)
    assert (opened.version, _values(opened)) == (2, [0, 1, 2])


def test_a_log_version_is_of_tables_that_follow_a_log(tmp_path):
    folder = tmp_path / "plain"
    folder.mkdir()
    pq.write_table(_rows(1), folder / "a.parquet")
    ss.create(folder)
    with pytest.raises(ss.InvalidArgumentError, match="for a table that follows a"):
        ss.open(folder, log_version=1)
    with pytest.raises(ss.InvalidArgumentError, match="log_version"):
        ss.open(folder, log_version=1, version=1)
    with pytest.raises(ss.InvalidArgumentError, match="indexed as 'directory'"):
        ss.open(folder, source="delta")


@pytest.fixture
def their(tmp_path):
    """pyiceberg's table."""
    pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')
    pytest.importorskip("sqlalchemy", reason='the tests need a catalog: pip install "pyiceberg[sql-sqlite]"')
    made = iceberg_table(tmp_path, _rows().schema)
    made.append(_rows(1))
    made.append(_rows(2))
    return made


def test_an_iceberg_table_object_names_the_metadata_that_counts(their):
    table = ss.create(their)
    assert _values(table) == [1, 2]
    stale = their.catalog.load_table("lake.t")
    their.append(_rows(3))
    assert _values(ss.open(stale)) == [1, 2]
    opened = ss.open(their)
    assert _values(opened) == [1, 2, 3]
    assert _values(pickle.loads(pickle.dumps(opened))) == [1, 2, 3]
    opened.sync()
    assert _values(ss.open(stale)) == [1, 2]
    their.append(_rows(4))
    assert _values(opened.refresh()) == [1, 2, 3, 4]


def test_a_failed_commit_next_to_the_metadata_of_the_catalog_does_not_count(their):
    ss.create(their)
    now = their.metadata_location.removeprefix("file://")
    failed = now.replace("/00002-", "/00009-")
    shutil.copy(now, failed)
    their.append(_rows(3))
    opened = ss.open(their)
    assert _values(opened) == [1, 2, 3]
    again = pickle.loads(pickle.dumps(opened))
    assert _values(again.refresh()) == [1, 2, 3]


def test_a_table_of_a_catalog_is_opened_by_its_name(their, tmp_path, monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__TEST__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__TEST__URI", their.catalog.properties["uri"])
    program = """
import skipstone as ss
for table in (ss.create("lake.t", source="iceberg", catalog="test"), ss.open(name="lake.t", catalog="test")):
    print(sorted(table.scan().to_table()["a"].to_pylist()))
"""
    done = run_code(program)  # pyiceberg reads its environment once per process
    assert (done.returncode, done.stdout) == (0, "[1, 2]\n" * 2), done.stderr
    their.append(_rows(3))
    opened = ss.open("lake.t", source="iceberg", catalog=their.catalog)
    their.append(_rows(4))
    assert _values(opened.refresh()) == [1, 2, 3, 4]
    with pytest.raises(ss.NotATableError, match="no such table"):
        ss.open("lake.missing", catalog=their.catalog)
    with pytest.raises(ss.InvalidArgumentError, match="one name"):
        ss.open("lake.t", name="lake.t", catalog=their.catalog)
    with pytest.raises(ss.InvalidArgumentError, match="Iceberg tables"):
        ss.create("lake.t", source="delta", catalog=their.catalog)


def test_every_snapshot_is_read_by_its_id(their):
    table = ss.create(their)
    their.append(_rows(3, 4))
    with their.update_schema() as update:
        update.rename_column("a", "b")
    snapshots = [s.snapshot_id for s in their.snapshots()]
    their.append(pa.table({"b": pa.array([5], pa.int64())}))
    table = ss.open(their)
    table.sync()
    their.delete("b = 3")
    wanted = [[1], [1, 2], [1, 2, 3, 4]]
    for number, values in zip(snapshots, wanted, strict=True):
        opened = ss.open(their, log_version=number)
        assert _values(opened) == values
        assert _values(opened, "a > 1") == [value for value in values if value > 1]
        assert _values(pickle.loads(pickle.dumps(opened))) == values
    with pytest.raises(ss.NotATableError, match="no snapshot 7"):
        ss.open(their, log_version=7)
    with their.update_schema() as update:
        update.rename_column("b", "c")
    ss.open(their).sync()  # a version of the newest snapshot, with later names than the snapshot's
    assert ss.open(their, log_version=their.current_snapshot().snapshot_id).schema.names == ["b"]
