"""Fields within columns that come, go and are renamed; and names of files in any case."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from log_lakes import catalog

BEFORE = pa.struct([("a", pa.int64()), ("b", pa.string())])


def _rows(number, kind, **values):
    return pa.table({"id": pa.array([number], pa.int64()), "s": pa.array([values], kind)})


@pytest.fixture
def their(tmp_path):
    """pyiceberg's table, with one file."""
    pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')
    pytest.importorskip("sqlalchemy", reason='the tests need a catalog: pip install "pyiceberg[sql-sqlite]"')
    made = catalog(tmp_path).create_table("lake.t", _rows(1, BEFORE, a=1, b="x").schema)
    made.append(_rows(1, BEFORE, a=1, b="x"))
    ss.create(made)
    return made


def _same(their):
    wanted = sorted(their.scan().to_arrow().to_pylist(), key=str)
    for table in (ss.open(their), ss.open(their)):
        assert sorted(table.scan().to_table().to_pylist(), key=str) == wanted
        names = {name for row in wanted for name, value in row["s"].items() if not isinstance(value, str)}
        for name in names:
            for value in (1, 2, 7):
                assert table.scan(f"s.{name} = {value}").count() == sum(row["s"][name] == value for row in wanted)
        table.sync()


def test_fields_that_come_and_go_within_a_column(their):
    from pyiceberg.types import LongType

    with their.update_schema() as update:
        update.add_column(("s", "c"), LongType())
    _same(their)
    their.append(_rows(2, pa.struct([*BEFORE, ("c", pa.int64())]), a=2, b="y", c=7))
    _same(their)
    with their.update_schema() as update:
        update.delete_column(("s", "b"))
    _same(their)


@pytest.mark.parametrize("syncs", [False, True])
def test_a_field_renamed_within_a_column_is_followed_by_its_id(their, syncs):
    """In files that were indexed under the old name, too: null, or the values of another field, would be wrong."""
    from pyiceberg.types import LongType

    def changed(change):
        with their.update_schema() as update:
            change(update)
        if syncs:
            ss.open(their).sync()
        _same(their)

    changed(lambda update: update.rename_column("s.a", "z"))
    changed(lambda update: update.add_column(("s", "a"), LongType()))  # the old file's `a` is not this one
    their.append(_rows(2, pa.struct([("z", pa.int64()), ("b", pa.string()), ("a", pa.int64())]), z=2, b="y", a=7))
    table = ss.open(their)
    table.sync()
    table.create_index("s.a", kind="bloom")
    table.create_index("s.z", kind="secondary")
    _same(their)
    for name, value in (("a", 1), ("z", 7), ("a", 2)):
        assert table.scan(f"s.{name} = {value}").files().num_rows == 0
    with pytest.raises(ss.NotReadableError, match="fields within column 's' have other names"):
        table.scan("s.z = 1").fragments()
    changed(lambda update: update.delete_column(("s", "z")))
    new = pa.struct([("b", pa.string()), ("a", pa.int64())])
    their.overwrite(_rows(5, new, b="w", a=5))
    _same(their)


@pytest.mark.parametrize("drops_first", [False, True])
def test_a_field_that_was_dropped_is_not_the_new_one_of_its_name(their, drops_first):
    from pyiceberg.types import LongType

    def change(way, *args):
        with their.update_schema() as update:
            getattr(update, way)(("s", "a"), *args)

    if drops_first:  # the table is made when no schema of it names what the file holds
        change("delete_column")
        ss.create(their, index_path=f"{their.location()}-index")
        table = ss.open(their, index_path=f"{their.location()}-index")
    else:
        table = ss.open(their)
        change("delete_column")
        table.sync()
    change("add_column", LongType())
    for _ in range(2):
        table = table.refresh() or table
        assert table.scan("s.a = 1").count() == 0
        assert table.scan("s.a IS NULL").to_table().to_pylist() == [{"id": 1, "s": {"b": "x", "a": None}}]
        table.sync()


def test_fields_within_lists_and_maps_are_followed(tmp_path):
    pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')
    pytest.importorskip("sqlalchemy", reason='the tests need a catalog: pip install "pyiceberg[sql-sqlite]"')
    inner = pa.struct([("a", pa.int64()), ("b", pa.string())])
    schema = pa.schema([("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))])
    rows = [{"l": [{"a": 1, "b": "x"}, None], "m": [("k", {"a": 2, "b": None})]}, {"l": None, "m": []}]
    their = catalog(tmp_path).create_table("lake.t", schema)
    their.append(pa.Table.from_pylist(rows, schema))
    ss.create(their)
    with their.update_schema() as update:
        update.rename_column("l.element.a", "b2").rename_column("m.value.b", "a2")
    for table in (ss.open(their), ss.open(their)):
        assert table.scan().to_table().to_pylist() == their.scan().to_arrow().to_pylist()
        table.sync()


def test_a_column_that_cannot_be_read_is_refused_where_it_is_asked_for(their):
    """A field that begins with a default, in a file that lacks it: the other columns are read."""
    name = their.metadata_location.removeprefix("file://")
    metadata = json.loads(Path(name).read_text())
    schema = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    new = {"id": 9, "name": "c", "required": False, "type": "long", "initial-default": 7}
    schema["fields"][1]["type"]["fields"].append(new)
    Path(name).write_text(json.dumps({**metadata, "last-column-id": 9}))
    table = ss.open(their.location())
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


def test_files_are_listed_whatever_the_case_of_their_ending(tmp_path):
    for name in ("a.PARQUET", "b.parq", "c.Parq", "d.pq", "e.PQ", "f.Parquet", "g.txt", "_h.PARQUET"):
        pq.write_table(pa.table({"k": [1]}), tmp_path / name)
    table = ss.create(tmp_path)
    assert table.scan().count() == 6
    pq.write_table(pa.table({"k": [2]}), tmp_path / "i.PARQUET")
    assert table.sync().added == ("i.PARQUET",)
