"""Tables that follow Iceberg metadata: right without a sync, fast after one, and never another table's rows."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import shutil
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from library_versions import needs
from log_lakes import (
    catalog,
    check_followed,
    check_rows,
    check_unreadable,
    delete_equal,
    iceberg_table,
    multiset,
    newest_metadata,
    read_iceberg,
)

pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')
pytest.importorskip("sqlalchemy", reason='the tests need a catalog: pip install "pyiceberg[sql-sqlite]"')
from pyiceberg import types
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.update import SetCurrentSchemaUpdate
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

SCHEMA = pa.schema([("a", pa.int64()), ("p", pa.string())])


def _rows(*values, p="x"):
    return pa.table([values, [p] * len(values)], schema=SCHEMA)


def _values(table, where=None):
    return sorted(table.scan(where).to_table().column("a").to_pylist())


def _made(folder, schema=SCHEMA, partitioning=("p",)):
    """(pyiceberg's table, its directory)."""
    return iceberg_table(folder, schema, *partitioning), folder / "lake" / "t"


def _add_column(their, path, kind):
    with their.update_schema() as update:
        update.add_column(path, kind)


def _rename_column(their, old, new):
    with their.update_schema() as update:
        update.rename_column(old, new)


def _delete_column(their, path):
    with their.update_schema() as update:
        update.delete_column(path)


@pytest.fixture
def pair(tmp_path):
    their, lake = _made(tmp_path)
    their.append(_rows(1, 2))
    their.append(_rows(10, 20, p=None))
    return their, lake


def test_columns_of_every_kind_are_read_as_the_library_reads_them(tmp_path):
    words = types.ListType(6, types.StructType(NestedField(7, "x", StringType(), required=True)), element_required=True)
    schema = Schema(
        NestedField(1, "u", types.UUIDType()),
        NestedField(2, "fixed", types.FixedType(4)),
        NestedField(3, "t", types.TimeType()),
        NestedField(4, "a", LongType(), required=True),
        NestedField(5, "l", words),
        NestedField(8, "m", types.MapType(9, StringType(), 10, LongType())),
        NestedField(11, "s", types.StructType(NestedField(12, "k", LongType(), required=True)), required=True),
    )
    their, lake = _made(tmp_path, schema, ())
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


def test_rule_11_expired_snapshots_are_read_again(pair):
    their, lake = pair
    table = ss.create(lake, source="iceberg")
    their.append(_rows(3))
    their.delete("a = 1")
    their.maintenance.expire_snapshots().older_than(dt.datetime.now() + dt.timedelta(days=1)).commit()
    check_followed(table, read_iceberg(lake))


@needs("pyiceberg", 0, 11, what="a rollback")
def test_a_table_that_was_rolled_back_is_followed(pair):
    their, lake = pair
    first = their.current_snapshot().snapshot_id
    their.append(_rows(3))
    table = ss.create(lake, source="iceberg")
    their.manage_snapshots().rollback_to_snapshot(first).commit()
    check_followed(table, read_iceberg(lake))
    assert _values(table) == [1, 2, 10, 20]
    _check_another_spec(their, lake, table)


def test_a_change_of_the_partition_spec_without_new_data_is_followed(pair):
    _check_another_spec(*pair, ss.create(pair[1], source="iceberg"))


def _check_another_spec(their, lake, table):
    """The snapshot is known already, and its files are in other partitions now."""
    with their.update_spec() as update:
        update.remove_field("p")
    for found in (ss.open(lake), table.refresh()):
        assert found.partitions().column("partition").to_pylist() == [""]
        check_rows(found, read_iceberg(lake))
    check_followed(table, read_iceberg(lake))


def test_rule_11_a_table_that_was_created_again_is_read_again(pair, tmp_path):
    _, lake = pair
    table = ss.create(lake, source="iceberg", index_path=tmp_path / "index")
    shutil.rmtree(lake)
    other = catalog(tmp_path)
    other.drop_table("lake.t")
    data = pa.table({"a": [7], "z": ["new"]})
    other.create_table("lake.t", data.schema).append(data)
    check_followed(table, data)


def test_equality_deletes_are_respected(tmp_path):
    """They apply to older files, and only their own readers can find the rows."""
    their, lake = _made(tmp_path, pa.schema([("a", pa.int64())]), ())
    their.append(pa.table({"a": [1, 2, 3]}))
    table = ss.create(lake, source="iceberg")
    (path,) = table.files().column("path").to_pylist()
    delete_equal(lake, "a", [2])
    table.refresh()
    for _ in ("unsynced", "synced"):
        check_unreadable(table, path)
        table.sync()


def test_equality_deletes_without_a_partition_apply_to_every_file(tmp_path):
    """A spec whose only field was removed has a void transform, and no partition."""
    their = catalog(tmp_path).create_table("lake.t", SCHEMA, properties={"format-version": "1"})
    for change in (lambda update: update.add_identity("p"), lambda update: update.remove_field("p")):
        with their.update_spec() as update:
            change(update)
        if not their.current_snapshot():
            their.append(_rows(1, 2))
    with their.transaction() as transaction:
        transaction.upgrade_table_version(2)
    lake = tmp_path / "lake" / "t"
    table = ss.create(lake, source="iceberg")
    (path,) = table.files().column("path").to_pylist()
    delete_equal(lake, "a", [2])
    check_unreadable(table.refresh(), path)


def _append_file(their, path, columns, *partition):
    """Append a file of columns {(name, field id): values}, which another writer wrote."""
    fields = [
        pa.field(name, pa.array(v).type, metadata={"PARQUET:field_id": str(n)}) for (name, n), v in columns.items()
    ]
    if not path.exists():
        pq.write_table(pa.table(list(columns.values()), schema=pa.schema(fields)), path)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
    )
    file.spec_id = their.spec().spec_id
    with their.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)


def test_names_in_another_case_are_followed_without_a_sync(tmp_path):
    """The field's id counts, and an update of an unsynced file keeps its values."""
    their, lake = _made(tmp_path, SCHEMA, ())
    their.append(_rows(1))
    table = ss.create(lake, source="iceberg")
    _append_file(their, tmp_path / "other.parquet", {("A", 1): [2], ("P", 2): ["y"]})
    check_rows(table.refresh(), pa.table([[1, 2], ["x", "y"]], schema=SCHEMA))
    ss.open(their).update({"p": "'z'"}, "p = 'y'")
    assert multiset(read_iceberg(lake)) == multiset(pa.table([[1, 2], ["x", "z"]], schema=SCHEMA))
    check_followed(table, read_iceberg(lake))


def test_a_file_without_a_value_that_only_the_log_has_is_refused_without_a_sync(tmp_path):
    their, lake = _made(tmp_path, SCHEMA, ())
    their.append(_rows(1))
    table = ss.create(lake, source="iceberg")
    with their.update_spec() as update:
        update.add_identity("p")
    _append_file(their, tmp_path / "other.parquet", {("a", 1): [2]}, "y")
    for refused in (table.refresh, table.sync, lambda: ss.open(lake)):
        with pytest.raises(ss.SchemaError, match="whose value only the log has"):
            refused()


def test_a_file_that_returns_in_another_partition_has_its_value(pair, tmp_path):
    their, lake = pair
    _append_file(their, tmp_path / "other.parquet", {("a", 1): [3]}, "wrong")
    table = ss.create(lake, source="iceberg")
    their.delete("p = 'wrong'")
    _append_file(their, tmp_path / "other.parquet", {}, "right")
    check_followed(table, read_iceberg(lake))


def test_a_column_is_its_id(pair):
    """Renamed, dropped, added again: statistics follow the id, and old files are read by it."""
    their, lake = pair
    table = ss.create(lake, source="iceberg")
    table.create_index("a", kind="bloom")
    _rename_column(their, "a", "b")
    _add_column(their, "a", LongType())
    _add_column(their, "n", StringType())
    their.append(pa.table({"b": [3], "p": ["x"], "a": [7], "n": ["new"]}))
    check_followed(table, read_iceberg(lake))
    assert table.schema.names == ["b", "p", "a", "n"]
    assert table.scan("b = 5").files().num_rows == 0
    _delete_column(their, "b")
    check_followed(table, read_iceberg(lake))
    assert table.indexes().column("kind").to_pylist() == ["stats"]
    number = table.handle.instant.fields["n"]
    _add_column(their, "b", LongType())  # old files have another `b`, and none has this
    check_followed(table, read_iceberg(lake))
    assert table.handle.instant.fields["n"] == number


def test_names_that_writers_replace_are_followed_without_a_sync(tmp_path):
    """`user name` is `user_x20name` in a file, and `2nd` is `_2nd`; the field's id counts."""
    inner = pa.struct([("x-y", pa.int64())])
    schema = pa.schema(
        [("a", pa.int64()), ("user name", pa.string()), ("2nd", pa.int64()), ("s", inner), ("l", pa.list_(inner))]
    )
    their, lake = _made(tmp_path, schema, ())
    rows = [{"a": n, "user name": f"u{n}", "2nd": n, "s": {"x-y": n}, "l": [{"x-y": n}]} for n in (1, 2)]
    their.append(pa.Table.from_pylist(rows[:1], schema))
    table = ss.create(lake, source="iceberg")
    their.append(pa.Table.from_pylist(rows[1:], schema))
    check_rows(ss.open(lake), pa.Table.from_pylist(rows, schema))
    check_followed(table, pa.Table.from_pylist(rows, schema))
    assert table.scan().max("user name") == "u2"


def test_doubles_are_read_from_files_instead_of_manifests(tmp_path):
    """pyiceberg reads those of manifests as 32-bit floats."""
    schema = pa.schema([("a", pa.int64()), ("v", pa.float64())])
    their, lake = _made(tmp_path, schema, ["v"])
    rows = [{"a": 1, "v": 0.1}, {"a": 2, "v": 0.10000000149011612}, {"a": 3, "v": None}]
    their.append(pa.Table.from_pylist(rows, schema))
    table = ss.create(lake, source="iceberg")
    assert table.scan().to_table().sort_by("a").to_pylist() == rows
    assert table.scan("v = 0.1e0").to_table().to_pylist() == rows[:1]


def test_types_that_widen_keep_their_statistics(tmp_path):
    their, lake = _made(tmp_path, pa.schema([("a", pa.int32())]), ())
    their.append(pa.table({"a": pa.array([1, 2], pa.int32())}))
    table = ss.create(lake, source="iceberg")
    with their.update_schema() as update:
        update.update_column("a", LongType())
    their.append(pa.table({"a": [1 << 40]}))
    check_followed(table, read_iceberg(lake))
    assert table.scan("a = 5").files().num_rows == 0


def test_only_values_that_every_file_is_partitioned_by_are_partitions(tmp_path):
    """A value by which some files are not partitioned is a usual column, and so is one that a transform changed."""
    schema = pa.schema([("a", pa.int64()), ("p", pa.string()), ("t", pa.timestamp("us"))])
    their, lake = _made(tmp_path, schema)
    when = [dt.datetime(2020, 1, 1), dt.datetime(2021, 1, 1)]
    their.append(pa.table([[1, 2], ["x", "y"], when], schema=schema))
    table = ss.create(lake, source="iceberg")
    assert sorted(table.partitions().column("partition").to_pylist()) == ["p=x", "p=y"]
    assert table.scan("t = '2021-01-01'").files().num_rows == 1
    with their.update_spec() as update:
        update.add_field("t", DayTransform(), "t_day")
    assert table.refresh().partitions().num_rows == 2
    with their.update_spec() as update:
        update.remove_field("p")
        update.remove_field("t_day")
    their.append(pa.table([[3, 4], ["x", "y"], when], schema=schema))
    assert table.refresh().partitions().column("partition").to_pylist() == [""]
    check_followed(table, read_iceberg(lake))
    assert table.partitions().column("partition").to_pylist() == [""]


def test_files_without_ids_are_read_by_the_mapping_of_names(tmp_path):
    """Files of other writers that were added; a rename afterwards is followed."""
    their, lake = _made(tmp_path, SCHEMA, ())
    pq.write_table(_rows(5, 6), tmp_path / "made.parquet")
    their.add_files([f"file://{tmp_path}/made.parquet"])
    table = ss.create(lake, source="iceberg")
    assert _values(table, "a = 5") == [5]
    assert table.scan("a = 7").files().num_rows == 0
    assert table.files().column("path").to_pylist() == [str(tmp_path / "made.parquet")]  # outside the table
    _rename_column(their, "a", "b")
    pq.write_table(_rows(8).rename_columns(["b", "p"]), tmp_path / "more.parquet")
    their.add_files([f"file://{tmp_path}/more.parquet"])
    check_followed(table, read_iceberg(lake))


def test_a_name_that_the_mapping_gives_to_another_column_moves_the_values_of_files_without_ids(tmp_path):
    """A new column gets the old name of a renamed one: old files without ids then contain the new column."""
    their, lake = _made(tmp_path, SCHEMA, ())
    pq.write_table(_rows(5, 6), tmp_path / "without.parquet")
    their.add_files([f"file://{tmp_path}/without.parquet"])
    their.append(_rows(7))
    table = ss.create(lake, source="iceberg")
    table.create_index("a", kind="bloom")
    _rename_column(their, "a", "b")
    table.sync(refresh=True)
    covered = {row["kind"]: row["files_covered"] for row in table.indexes().to_pylist()}
    assert covered == {"stats": 2, "bloom": 2}  # a rename alone keeps the indexes
    _add_column(their, "a", LongType())
    check_followed(table, read_iceberg(lake))
    table.sync(refresh=True)
    check_rows(table, read_iceberg(lake))
    assert _values(table, "a = 5") == [5] and table.scan("b = 5").count() == 0


def test_the_metadata_file_may_be_named(pair):
    """A catalog names the file that counts: that of a failed commit may have a higher number."""
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


@pytest.mark.parametrize("ending", [".metadata.json", ".gz.metadata.json", ".metadata.json.gz"])
@pytest.mark.parametrize("hint", ["2", None])
def test_a_version_hint_leads_to_the_newest(pair, ending, hint):
    """Tables of a Hadoop catalog: v3.metadata.json, and a hint that may be old; files may be compressed."""
    their, lake = pair
    folder = lake / "metadata"
    locations = [entry.metadata_file for entry in their.metadata.metadata_log] + [their.metadata_location]
    for number, location in enumerate(locations):
        newest = shutil.move(location.removeprefix("file://"), folder / f"v{number + 1}.metadata.json")
    if "gz" in ending:
        (folder / f"v{len(locations)}{ending}").write_bytes(gzip.compress(newest.read_bytes()))
        newest.unlink()
    if hint is not None:
        (folder / "version-hint.text").write_text(hint)
    assert _values(ss.create(lake, source="iceberg")) == [1, 2, 10, 20]


def test_damaged_metadata_gets_our_errors(pair):
    _, lake = pair
    newest = newest_metadata(lake)
    text = newest.read_text()
    newest.write_text(text[: len(text) // 2])
    with pytest.raises(ss.StorageError, match="pyiceberg"):
        ss.create(lake, source="iceberg")
    newest.write_text(json.dumps({**json.loads(text), "format-version": 99}))
    with pytest.raises(ss.StorageError, match="pyiceberg"):
        ss.create(lake, source="iceberg")


# -- fields within columns ---------------------------------------------------------------------------------------------

FIELDS = pa.struct([("a", pa.int64()), ("b", pa.string())])


def _row(number, kind, **values):
    return pa.table({"id": pa.array([number], pa.int64()), "s": pa.array([values], kind)})


@pytest.fixture
def nested(tmp_path):
    """pyiceberg's table of one file, and its directory, which is indexed."""
    row = _row(1, FIELDS, a=1, b="x")
    their, lake = _made(tmp_path, row.schema, ())
    their.append(row)
    ss.create(their)
    return their, lake


def test_fields_are_added_to_a_column_and_deleted(nested):
    their, lake = nested
    _add_column(their, ("s", "c"), LongType())
    check_followed(ss.open(their), read_iceberg(lake))
    their.append(_row(2, pa.struct([*FIELDS, ("c", pa.int64())]), a=2, b="y", c=7))
    check_followed(ss.open(their), read_iceberg(lake))
    _delete_column(their, ("s", "b"))
    check_followed(ss.open(their), read_iceberg(lake))


@pytest.mark.parametrize("syncs", [False, True])
def test_a_field_renamed_within_a_column_is_followed_by_its_id(nested, syncs):
    """Also in files that were indexed under the old name."""
    their, lake = nested

    def check():
        check_rows(ss.open(their), read_iceberg(lake))
        if syncs:
            check_followed(ss.open(their), read_iceberg(lake))

    _rename_column(their, "s.a", "z")
    check()
    _add_column(their, ("s", "a"), LongType())  # the old file's `a` is another column
    check()
    their.append(_row(2, pa.struct([("z", pa.int64()), ("b", pa.string()), ("a", pa.int64())]), z=2, b="y", a=7))
    check()
    table = ss.open(their)
    table.sync()
    table.create_index("s.a", kind="bloom")
    table.create_index("s.z", kind="secondary")
    check()
    for name, value in (("a", 1), ("z", 7), ("a", 2)):
        assert table.scan(f"s.{name} = {value}").files().num_rows == 0
    with pytest.raises(ss.NotReadableError, match="fields within column 's' have other names"):
        table.scan("s.z = 1").fragments()
    _delete_column(their, ("s", "z"))
    check()
    their.overwrite(_row(5, pa.struct([("b", pa.string()), ("a", pa.int64())]), b="w", a=5))
    check_followed(ss.open(their), read_iceberg(lake))


@pytest.mark.parametrize("drops_first", [False, True])
def test_a_field_that_was_dropped_is_not_the_new_one_of_its_name(nested, drops_first, tmp_path):
    their, lake = nested
    table = ss.open(their)
    _delete_column(their, ("s", "a"))
    if drops_first:  # the table is created when no schema of it names the file's field
        table = ss.create(lake, source="iceberg", index_path=tmp_path / "index")
    table.sync()
    _add_column(their, ("s", "a"), LongType())
    check_followed(table, pa.table({"id": [1], "s": [{"b": "x", "a": None}]}))


@pytest.mark.parametrize("path", [("s",), ("s", "b")])
def test_what_was_dropped_returns_with_its_values(nested, path):
    """Also in files that were indexed while the table lacked it."""
    their, lake = nested
    table = ss.open(their)
    their.append(_row(2, FIELDS, a=2, b="y"))
    before = their.current_snapshot().snapshot_id
    _delete_column(their, path)
    their.append(pa.table({"id": [3]}))
    table.refresh().sync()
    check_rows(ss.open(their, log_version=before), their.scan(snapshot_id=before).to_arrow())
    their.catalog.commit_table(their, (), (SetCurrentSchemaUpdate(schema_id=0),))
    check_followed(table, read_iceberg(lake))


def test_fields_within_lists_and_maps_are_followed(tmp_path):
    schema = pa.schema([("l", pa.list_(FIELDS)), ("m", pa.map_(pa.string(), FIELDS))])
    rows = [{"l": [{"a": 1, "b": "x"}, None], "m": [("k", {"a": 2, "b": None})]}, {"l": None, "m": []}]
    their, lake = _made(tmp_path, schema, ())
    their.append(pa.Table.from_pylist(rows, schema))
    table = ss.create(their)
    _rename_column(their, "l.element.a", "b2")
    _rename_column(their, "m.value.b", "a2")
    check_followed(ss.open(their), read_iceberg(lake))
    assert table.schema.names == ["l", "m"]


def test_a_column_that_cannot_be_read_is_refused_if_it_is_requested(nested):
    """A field with an initial default, in a file that lacks it: the other columns are read."""
    _, lake = nested
    metadata = json.loads(newest_metadata(lake).read_text())
    schema = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    new = {"id": 9, "name": "c", "required": False, "type": "long", "initial-default": 7}
    schema["fields"][1]["type"]["fields"].append(new)
    newest_metadata(lake).write_text(json.dumps({**metadata, "last-column-id": 9}))
    table = ss.open(lake)
    for _ in ("unsynced", "synced"):
        assert table.scan("id = 1", columns=["id"]).to_table().to_pylist() == [{"id": 1}]
        assert table.scan("s.c = 7").files().num_rows == table.scan("s.a = 5").files().num_rows == 1
        for plan in (table.scan(), table.scan("s.c = 7", columns=["id"]), table.scan("s.c IS NULL")):
            with pytest.raises(
                ss.NotReadableError, match=r"column 's' cannot be read: it lacks 's\.c', which has an initial default"
            ):
                plan.to_table()
        table.sync()
        with pytest.warns(UserWarning, match="not indexed"):
            table.create_index("s.c", kind="bloom")
        table.drop_index("s.c", kind="bloom")
    assert table.scan().count() == 1
