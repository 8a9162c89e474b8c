"""Tables that follow an Iceberg table's metadata: right without a sync, fast after one, and never another's rows."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import sys
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from library_versions import needs
from log_lakes import catalog, delete_equal, multiset, newest_metadata, read_iceberg

pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')
pytest.importorskip("sqlalchemy", reason='the tests need a catalog: pip install "pyiceberg[sql-sqlite]"')
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    FixedType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimeType,
    UUIDType,
)

SCHEMA = pa.schema([("a", pa.int64()), ("p", pa.string())])


def _rows(*values, p="x"):
    return pa.table([values, [p] * len(values)], schema=SCHEMA)


def _values(table, where=None):
    return sorted(table.scan(where).to_table().column("a").to_pylist())


def _made(folder, schema=SCHEMA, identity=("p",)):
    """(pyiceberg's table, its directory)."""
    their = catalog(folder).create_table("lake.t", schema)
    with their.update_spec() as update:
        for name in identity:
            update.add_identity(name)
    return their, folder / "lake" / "t"


@pytest.fixture
def pair(tmp_path):
    their, lake = _made(tmp_path)
    their.append(_rows(1, 2))
    their.append(_rows(10, 20, p=None))
    return their, lake


def test_columns_of_every_kind_are_read_as_the_library_reads_them(tmp_path):
    words = ListType(6, StructType(NestedField(7, "x", StringType(), required=True)), element_required=True)
    schema = Schema(
        NestedField(1, "u", UUIDType()),
        NestedField(2, "fixed", FixedType(4)),
        NestedField(3, "t", TimeType()),
        NestedField(4, "a", LongType(), required=True),
        NestedField(5, "l", words),
        NestedField(8, "m", MapType(9, StringType(), 10, LongType())),
        NestedField(11, "s", StructType(NestedField(12, "k", LongType(), required=True)), required=True),
    )
    their = catalog(tmp_path).create_table("lake.t", schema)
    lake = tmp_path / "lake" / "t"
    arrow = their.schema().as_arrow()
    ids = pa.array([bytes(range(16)), None], pa.binary(16))
    values = [
        pa.ExtensionArray.from_storage(arrow.field("u").type, ids),
        pa.array([b"abcd", None], pa.binary(4)),
        pa.array([dt.time(1, 2, 3), None], pa.time64("us")),
        pa.array([1, 2]),
        pa.array([[{"x": "q"}], None], arrow.field("l").type),
        pa.array([[("k", 1)], None], arrow.field("m").type),
        pa.array([{"k": 1}, {"k": 2}], arrow.field("s").type),
    ]
    data = pa.Table.from_arrays(values, schema=arrow)
    their.append(data)
    table = ss.create(lake, source="iceberg")
    their.append(data)
    table.refresh()
    for _ in ("unsynced", "synced"):
        found = table.scan().to_table()
        assert multiset(found.drop(["u"])) == multiset(read_iceberg(lake).drop(["u"]))
        assert found.column("u").to_pylist() == [uuid.UUID(bytes=bytes(range(16))), None] * 2
        assert table.scan("u = '00010203-0405-0607-0809-0a0b0c0d0e0f'").count() == 2
        assert table.scan("u <> '00010203-0405-0607-0809-0a0b0c0d0e0f'").count() == 0
        assert table.scan("a = 2 AND s.k = 2").count() == 2
        assert table.scan(ss.col("fixed") == b"abcd").count() == 2
        table.sync()


def test_rule_11_snapshots_that_expired_are_read_anew(pair):
    """Rule 11."""
    their, lake = pair
    table = ss.create(lake, source="iceberg")
    their.append(_rows(3))
    their.delete("a = 1")
    their.maintenance.expire_snapshots().older_than(dt.datetime.now() + dt.timedelta(days=1)).commit()
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert _values(table) == [2, 3, 10, 20]
        table.sync()


@needs("pyiceberg", 0, 11, what="a rollback")
def test_a_table_that_was_rolled_back_is_followed(pair):
    their, lake = pair
    first = their.current_snapshot().snapshot_id
    their.append(_rows(3))
    table = ss.create(lake, source="iceberg")
    their.manage_snapshots().rollback_to_snapshot(first).commit()
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert _values(table) == [1, 2, 10, 20]
        table.sync()


@pytest.mark.parametrize(
    "is_rolled_back", [pytest.param(True, marks=needs("pyiceberg", 0, 11, what="a rollback")), False]
)
def test_a_change_of_the_partition_spec_without_new_data_is_followed(pair, is_rolled_back):
    """The snapshot is the one that is known, and its files lie in other partitions."""
    their, lake = pair
    first = their.current_snapshot().snapshot_id
    if is_rolled_back:
        their.append(_rows(3))
    table = ss.create(lake, source="iceberg")
    if is_rolled_back:
        their.manage_snapshots().rollback_to_snapshot(first).commit()
        table.sync()
    with their.update_spec() as update:
        update.remove_field("p")
    for found in (ss.open(lake), table.refresh()):
        assert found.partitions().column("partition").to_pylist() == [""]
        assert multiset(found.scan().to_table()) == multiset(read_iceberg(lake))
    table.sync()
    assert multiset(ss.open(lake).scan().to_table()) == multiset(read_iceberg(lake))


def test_rule_11_a_table_that_was_made_anew_is_read_anew(pair, tmp_path):
    _, lake = pair
    table = ss.create(lake, source="iceberg", index_path=tmp_path / "index")
    shutil.rmtree(lake)
    other = catalog(tmp_path)
    other.drop_table("lake.t")
    data = pa.table({"a": [7], "z": ["new"]})
    other.create_table("lake.t", data.schema).append(data)
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert table.scan("z = 'new'").to_table().to_pylist() == [{"a": 7, "z": "new"}]
        assert table.scan().count() == 1
        table.sync()


def _check_unreadable(table, where, path):
    for ask in (lambda plan: plan.count(), lambda plan: plan.to_table(), lambda plan: plan.max("a")):
        with pytest.raises(ss.NotReadableError) as caught:
            ask(table.scan(where))
        assert caught.value.paths == [path]


def test_equality_deletes_are_respected(tmp_path):
    """They apply to files that were there before them; which rows they mean only their own readers can tell."""
    their, lake = _made(tmp_path, pa.schema([("a", pa.int64())]), ())
    their.append(pa.table({"a": [1, 2, 3]}))
    table = ss.create(lake, source="iceberg")
    (path,) = table.files().column("path").to_pylist()
    delete_equal(lake, "a", [2])
    table.refresh()
    for _ in ("unsynced", "synced"):
        _check_unreadable(table, "a <= 3", path)
        table.sync()


def test_a_column_is_its_id(pair):
    """Renamed, dropped, made again: statistics follow the id, and old files are read by it."""
    their, lake = pair
    table = ss.create(lake, source="iceberg")
    table.create_index("a", kind="bloom")
    with their.update_schema() as update:
        update.rename_column("a", "b")
    with their.update_schema() as update:
        update.add_column("a", LongType())
        update.add_column("n", StringType())
    their.append(pa.table({"b": [3], "p": ["x"], "a": [7], "n": ["new"]}))
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert table.schema.names == ["b", "p", "a", "n"]
        assert multiset(table.scan().to_table()) == multiset(read_iceberg(lake))
        assert table.scan("b = 20").to_table().column("b").to_pylist() == [20]
        assert table.scan("a = 7").to_table().column("b").to_pylist() == [3]
        assert table.scan("a IS NULL").count() == 4
        table.sync()
    assert table.scan("b = 5").files().num_rows == 0
    with their.update_schema() as update:
        update.delete_column("b")
    table.sync()
    assert multiset(table.scan().to_table()) == multiset(read_iceberg(lake))
    assert table.indexes().column("kind").to_pylist() == ["stats"]


def test_names_that_writers_replace_are_followed_without_a_sync(tmp_path):
    """`user name` is `user_x20name` in a file, `2nd` is `_2nd`: there it is the field's id that counts."""
    inner = pa.struct([("x-y", pa.int64())])
    schema = pa.schema(
        [("a", pa.int64()), ("user name", pa.string()), ("2nd", pa.int64()), ("s", inner), ("l", pa.list_(inner))]
    )
    their = catalog(tmp_path).create_table("lake.t", schema)
    lake = tmp_path / "lake" / "t"
    rows = [{"a": n, "user name": f"u{n}", "2nd": n, "s": {"x-y": n}, "l": [{"x-y": n}]} for n in (1, 2)]
    their.append(pa.Table.from_pylist(rows[:1], schema))
    table = ss.create(lake, source="iceberg")
    their.append(pa.Table.from_pylist(rows[1:], schema))
    for found in (table.refresh(), ss.open(lake), table):
        assert found.scan().to_table().sort_by("a").to_pylist() == rows
        for where in ("\"user name\" = 'u2'", '"2nd" = 2', 's."x-y" = 2'):
            assert found.scan(where).to_table().to_pylist() == rows[1:], where
        assert found.scan('"user name" IS NULL').count() == 0 and found.scan().max("user name") == "u2"
        table.sync()


def test_doubles_are_read_from_files_whatever_a_manifest_says(tmp_path):
    """pyiceberg reads those of manifests as 32-bit floats."""
    their = catalog(tmp_path).create_table("lake.t", pa.schema([("a", pa.int64()), ("v", pa.float64())]))
    with their.update_spec() as update:
        update.add_field("v", IdentityTransform(), "v")
    rows = [{"a": 1, "v": 0.1}, {"a": 2, "v": 0.10000000149011612}, {"a": 3, "v": None}]
    their.append(pa.Table.from_pylist(rows, pa.schema([("a", pa.int64()), ("v", pa.float64())])))
    table = ss.create(tmp_path / "lake" / "t", source="iceberg")
    assert table.scan().to_table().sort_by("a").to_pylist() == rows
    assert table.scan("v = 0.1e0").to_table().to_pylist() == rows[:1]


def test_types_that_widen_keep_their_statistics(tmp_path):
    their, lake = _made(tmp_path, pa.schema([("a", pa.int32())]), ())
    their.append(pa.table({"a": pa.array([1, 2], pa.int32())}))
    table = ss.create(lake, source="iceberg")
    with their.update_schema() as update:
        update.update_column("a", LongType())
    their.append(pa.table({"a": [1 << 40]}))
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert _values(table) == [1, 2, 1 << 40]
        assert _values(table, f"a = {1 << 40}") == [1 << 40]
        table.sync()
    assert table.scan("a = 5").files().num_rows == 0


def test_only_values_that_every_file_is_partitioned_by_are_partitions(tmp_path):
    """Specs that change: what some files are not partitioned by is a column as others; transforms are none."""
    schema = pa.schema([("a", pa.int64()), ("p", pa.string()), ("t", pa.timestamp("us"))])
    their = catalog(tmp_path).create_table("lake.t", schema)
    lake = tmp_path / "lake" / "t"
    with their.update_spec() as update:
        update.add_field("p", IdentityTransform(), "p")
    when = [dt.datetime(2020, 1, 1), dt.datetime(2021, 1, 1)]
    their.append(pa.table([[1, 2], ["x", "y"], when], schema=schema))
    table = ss.create(lake, source="iceberg")
    assert table.partitions().column("partition").to_pylist() in (["p=x", "p=y"], ["p=y", "p=x"])
    assert table.scan("t = '2021-01-01'").files().num_rows == 1
    with their.update_spec() as update:
        update.add_field("t", DayTransform(), "t_day")
    assert table.refresh().partitions().num_rows == 2
    with their.update_spec() as update:
        update.remove_field("p")
        update.remove_field("t_day")
    their.append(pa.table([[3, 4], ["x", "y"], when], schema=schema))
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert table.partitions().column("partition").to_pylist() == [""]
        assert _values(table, "p = 'x'") == [1, 3]
        assert multiset(table.scan().to_table()) == multiset(read_iceberg(lake))
        table.sync()


def test_files_without_ids_are_read_by_the_mapping_of_names(tmp_path):
    """Files of others that were taken over; a rename afterwards is followed."""
    their, lake = _made(tmp_path, SCHEMA, ())
    pq.write_table(_rows(5, 6), tmp_path / "made.parquet")
    their.add_files([f"file://{tmp_path}/made.parquet"])
    table = ss.create(lake, source="iceberg")
    assert _values(table, "a = 5") == [5]
    assert table.scan("a = 7").files().num_rows == 0
    assert table.files().column("path").to_pylist() == [str(tmp_path / "made.parquet")]  # outside the table
    with their.update_schema() as update:
        update.rename_column("a", "b")
    pq.write_table(_rows(8).rename_columns(["b", "p"]), tmp_path / "more.parquet")
    their.add_files([f"file://{tmp_path}/more.parquet"])
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert table.scan("b >= 6").to_table().sort_by("b").column("b").to_pylist() == [6, 8]
        assert multiset(table.scan().to_table()) == multiset(read_iceberg(lake))
        table.sync()


def test_a_name_that_the_mapping_gives_to_another_column_moves_the_values_of_files_without_ids(tmp_path):
    """A new column takes the old name of a renamed one: the old files without ids hold the new column."""
    their, lake = _made(tmp_path, SCHEMA, ())
    pq.write_table(_rows(5, 6), tmp_path / "without.parquet")
    their.add_files([f"file://{tmp_path}/without.parquet"])
    their.append(_rows(7))
    table = ss.create(lake, source="iceberg")
    table.create_index("a", kind="bloom")
    with their.update_schema() as update:
        update.rename_column("a", "b")
    table.sync(refresh=True)
    covered = {row["kind"]: row["files_covered"] for row in table.indexes().to_pylist()}
    assert covered == {"stats": 2, "bloom": 2}  # a rename alone keeps the indexes
    with their.update_schema() as update:
        update.add_column("a", LongType())
    for _ in ("not synced", "synced"):
        table.refresh()
        assert multiset(table.scan().to_table()) == multiset(read_iceberg(lake))
        assert _values(table, "a = 5") == [5]
        assert table.scan("b = 5").count() == 0
        assert table.scan("b = 7").count() == 1
        table.sync(refresh=True)


def test_the_metadata_file_may_be_named(pair):
    """Where a catalog says what counts: one of a commit that failed may lie there under a higher number."""
    their, lake = pair
    counts = their.metadata_location
    table = ss.create(counts, source="iceberg")
    their.append(_rows(3))
    later = newest_metadata(lake)
    assert _values(ss.open(counts)) == [1, 2, 10, 20]
    assert _values(ss.open(f"file://{later}")) == [1, 2, 3, 10, 20]
    assert _values(table.refresh()) == [1, 2, 10, 20]
    (later.parent / f"{later.name.split('-')[0]}-lost.metadata.json").write_bytes(later.read_bytes())
    with pytest.raises(ss.NotReadableError, match="catalog"):
        ss.open(lake)
    assert _values(ss.open(their.metadata_location)) == [1, 2, 3, 10, 20]


def test_a_version_hint_leads_to_the_newest(pair):
    """Tables of a Hadoop catalog: v3.metadata.json, and a hint that may be late."""
    their, lake = pair
    folder = lake / "metadata"
    locations = [entry.metadata_file for entry in their.metadata.metadata_log] + [their.metadata_location]
    for number, location in enumerate(locations):
        shutil.move(location.removeprefix("file://"), folder / f"v{number + 1}.metadata.json")
    (folder / "version-hint.text").write_text("2")
    assert _values(ss.create(lake, source="iceberg")) == [1, 2, 10, 20]


def test_an_empty_table_gains_files(tmp_path):
    their, lake = _made(tmp_path)
    table = ss.create(lake, source="iceberg")
    assert (table.scan().count(), table.files().num_rows) == (0, 0)
    their.append(_rows(1))
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert _values(table) == [1]
        table.sync()


def test_bad_input_gets_our_errors(pair, tmp_path, monkeypatch):
    _, lake = pair
    with pytest.raises(ss.NotATableError, match="Iceberg"):
        ss.create(tmp_path / "lake", source="iceberg")
    newest = newest_metadata(lake)
    text = newest.read_text()
    newest.write_text(text[: len(text) // 2])
    with pytest.raises(ss.StorageError, match="pyiceberg"):
        ss.create(lake, source="iceberg")
    newest.write_text(json.dumps({**json.loads(text), "format-version": 99}))
    with pytest.raises(ss.StorageError, match="pyiceberg"):
        ss.create(lake, source="iceberg")
    newest.write_text(text)
    monkeypatch.setitem(sys.modules, "pyiceberg.table", None)
    with pytest.raises(ss.InvalidArgumentError, match=r"skipstone\[iceberg\]"):
        ss.create(lake, source="iceberg")
