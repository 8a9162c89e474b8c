"""`Table.sync` follows added, removed and changed files of a directory; files removed from the table stay removed."""

from __future__ import annotations

import os
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss


def _write(folder, name, values, when=None):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), path)
    if when is not None:
        os.utime(path, ns=(when, when))
    return path


def _values(table):
    return sorted(table.scan().to_table().column("a").to_pylist())


@pytest.fixture
def lake(tmp_path):
    _write(tmp_path, "one.parquet", [1, 2])
    return tmp_path


def test_a_table_that_begins_empty_elsewhere_is_synced(tmp_path):
    table = ss.create(tmp_path / "lake", schema=pa.schema([("a", pa.int64())]), index_path=tmp_path / "index")
    assert table.sync() == 1 and not (tmp_path / "lake").exists()
    with table.transaction() as tx:
        tx.write(pa.table({"a": [1]}))
    assert table.sync() == 2


def test_a_missing_directory_removes_no_file(tmp_path):
    behind = ss.create(tmp_path / "lake", schema=pa.schema([("a", pa.int64())]), index_path=tmp_path / "index")
    with ss.open(tmp_path / "lake", index_path=tmp_path / "index").transaction() as tx:
        tx.write(pa.table({"a": [1]}))
    (tmp_path / "lake").rename(tmp_path / "unmounted")
    with pytest.raises(ss.NotATableError, match="no such directory"):
        behind.sync()


def test_a_directory_that_is_moved_while_it_is_listed_removes_no_file(lake, tmp_path_factory, monkeypatch):
    from skipstone.engine.lakes import directory

    index = tmp_path_factory.mktemp("index")
    table, elsewhere, list_folder = ss.create(lake, index_path=index), lake.with_name("elsewhere"), directory._folder

    def moving(storage, folder):
        if lake.exists():
            lake.rename(elsewhere)
        return list_folder(storage, folder)

    monkeypatch.setattr(directory, "_folder", moving)
    with pytest.raises(ss.NotATableError, match="no such directory"):
        table.sync()
    monkeypatch.undo()
    elsewhere.rename(lake)
    with ss.open(lake, index_path=index) as again:
        assert again.version == 1 and _values(again) == [1, 2]


def test_rule_03_files_of_an_open_transaction_do_not_appear(lake):
    table = ss.create(lake)
    with table.transaction() as tx:
        with ss.TaskWriter(tx.task_spec()) as task:
            task.write(pa.table({"a": [5]}))
        other = ss.open(lake)
        assert other.sync() == 1
        assert _values(other) == [1, 2]
        tx.add_task(task.result)
    assert _values(table) == [1, 2, 5]
    assert table.sync() == 2


def test_rule_05_a_file_that_returns_has_a_new_id(lake):
    table = ss.create(lake)
    before = table.files().column("file_id").to_pylist()
    path = lake / "one.parquet"
    data, when = path.read_bytes(), path.stat().st_mtime_ns
    path.unlink()
    table.sync()
    path.write_bytes(data)
    os.utime(path, ns=(when, when))
    table.sync()
    assert _values(table) == [1, 2]
    assert not set(before) & set(table.files().column("file_id").to_pylist())


def test_syncs_next_to_writers_lose_and_double_nothing(lake):
    ss.create(lake)
    errors = []

    def run(work):
        try:
            for number in range(6):
                work(number)
        except Exception as error:
            errors.append(error)

    def write(number):
        with ss.open(lake).transaction() as tx:
            tx.write(pa.table({"a": [100 + number]}))

    def drop(number):
        _write(lake, f"dropped-{number}.parquet", [200 + number])
        ss.open(lake).sync()

    threads = [threading.Thread(target=run, args=(work,)) for work in (write, drop, lambda _: ss.open(lake).sync())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    table = ss.open(lake)
    table.sync()
    assert _values(table) == [1, 2, *range(100, 106), *range(200, 206)]
    assert table.sync() == table.version


def test_rule_03_what_is_committed_while_the_directory_is_listed_stays(lake, monkeypatch):
    """The listing is older than the version with which it is compared, and lacks files that were added since."""
    import skipstone.engine.commit.sync as module

    table = ss.create(lake)
    listing = module.list_parquet

    def list_then_commit(*arguments):
        found = listing(*arguments)
        monkeypatch.undo()
        other = ss.open(lake)
        with other.transaction() as tx:
            tx.write(pa.table({"a": [7]}))
        _write(lake, "one.parquet", [5, 6, 7])
        other.sync()
        return found

    monkeypatch.setattr(module, "list_parquet", list_then_commit)
    table.sync()
    assert _values(table) == [5, 6, 7, 7]
    assert table.sync() == table.version


def test_rule_03_a_file_named_through_a_link_or_the_parent_folder_is_counted_once(lake, tmp_path_factory):
    link = tmp_path_factory.mktemp("links") / "lake"
    link.symlink_to(lake)
    _write(lake, "two.parquet", [3])
    _write(lake, "k/three.parquet", [4])
    table = ss.create(link, files=["one.parquet"])
    with table.transaction() as tx:
        tx.add_files([f"../{lake.name}/two.parquet"])
        tx.add_files([str(lake / "k" / "three.parquet")])
    assert table.files()["path"].to_pylist() == ["one.parquet", "two.parquet", "k/three.parquet"]
    assert table.sync() == table.version
    again = ss.open(lake)
    with pytest.raises(ss.InvalidArgumentError, match="replace"), again.transaction() as tx:
        tx.add_files([str(link / "two.parquet")])


@pytest.mark.parametrize("name", ["_hidden.parquet", "_folder/f.parquet", "f.dat"])
def test_a_file_added_by_name_stays_though_no_listing_shows_it(lake, name):
    table = ss.create(lake)
    path = _write(lake, name, [5])
    with table.transaction() as tx:
        tx.add_files([name])
    assert table.sync() == 2
    assert _values(table) == [1, 2, 5]
    _write(lake, name, [6, 7], when=10**18)
    assert table.sync() == 3
    assert _values(table) == [1, 2, 6, 7]
    path.unlink()
    table.sync()
    assert _values(table) == [1, 2]


def test_files_elsewhere_are_not_followed(lake, tmp_path_factory):
    table = ss.create(lake)
    elsewhere = _write(tmp_path_factory.mktemp("elsewhere"), "f.parquet", [5])
    with table.transaction() as tx:
        tx.add_files([str(elsewhere)])
        tx.add_files(pa.table({"path": ["s3://bucket/f.parquet"], "size_bytes": [9], "row_count": [3]}))
    assert table.sync() == 2
    assert table.files().num_rows == 3


def test_an_index_in_a_visible_folder_of_the_lake_is_none_of_its_files(tmp_path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    table = ss.create(tmp_path, index_path=tmp_path / "index")
    assert table.sync() == 1
    assert table.verify() == []
