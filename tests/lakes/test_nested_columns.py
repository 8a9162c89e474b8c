"""Fields within columns that come, go and are renamed; and names of files in any case."""

from __future__ import annotations

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
def test_a_field_renamed_within_a_column_is_never_read_as_null(their, syncs):
    """Files that were indexed under the old name, too: null, or the values of another field, would be wrong answers."""
    from pyiceberg.types import LongType

    def changed(change):
        with their.update_schema() as update:
            change(update)
        with pytest.raises(ss.SchemaError, match=r"'s\.a', a field within a column, has another name"):
            table = ss.open(their)
            if syncs:
                table.sync()

    changed(lambda update: update.rename_column("s.a", "z"))
    changed(lambda update: update.add_column(("s", "a"), LongType()))
    with their.update_schema() as update:
        update.delete_column(("s", "z"))
    with pytest.raises(ss.SchemaError, match="another name"):  # the file's `a` is not the table's
        ss.open(their)
    new = pa.struct([("b", pa.string()), ("a", pa.int64())])
    their.overwrite(_rows(5, new, b="w", a=5))
    assert ss.open(their).scan("s.a = 5").to_table().to_pylist() == [{"id": 5, "s": {"b": "w", "a": 5}}]


def test_files_are_listed_whatever_the_case_of_their_ending(tmp_path):
    for name in ("a.PARQUET", "b.parq", "c.Parq", "d.pq", "e.PQ", "f.Parquet", "g.txt", "_h.PARQUET"):
        pq.write_table(pa.table({"k": [1]}), tmp_path / name)
    table = ss.create(tmp_path)
    assert table.scan().count() == 6
    pq.write_table(pa.table({"k": [2]}), tmp_path / "i.PARQUET")
    assert table.sync().added == ("i.PARQUET",)
