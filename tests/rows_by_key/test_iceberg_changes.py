"""delete, update and upsert of an Iceberg table commit through pyiceberg, and change exactly the right rows."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from log_lakes import catalog, delete_equal, delete_positions, multiset

pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')
pytest.importorskip("sqlalchemy", reason='the tests need a catalog: pip install "pyiceberg[sql-sqlite]"')
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import BinaryType, DecimalType, ListType, LongType, NestedField, StructType, UUIDType

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("s", pa.string()), ("day", pa.int32())])
ROWS = [{"id": i, "v": i * 10, "s": f"s{i}", "day": i % 2} for i in range(8)]


def _rows(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _made(folder: Path, identity: tuple[str, ...] = ("day",), rows: list[dict[str, Any]] = ROWS) -> Any:
    """pyiceberg's table, with some files."""
    their = catalog(folder).create_table("lake.t", SCHEMA)
    if identity:
        with their.update_spec() as update:
            for name in identity:
                update.add_identity(name)
    for start in range(0, len(rows), 4):
        their.append(_rows(rows[start : start + 4]))
    return their


def _registered(their: Any, metadata: Path) -> Any:
    """The table after a commit past its catalog."""
    their.catalog.drop_table("lake.t")
    return their.catalog.register_table("lake.t", f"file://{metadata}")


def _check(folder: Path, table: ss.Table, rows: list[dict[str, Any]]) -> None:
    """pyiceberg, this handle and a new one read these rows, and an index that exists covers every file."""
    their = catalog(folder).load_table("lake.t")
    expected = multiset(their.scan().to_arrow())
    assert expected == multiset(pa.Table.from_pylist(rows, schema=table.schema))
    for handle in (table, ss.open(their)):
        assert multiset(handle.scan().to_table()) == expected
    assert table.verify(deep=True) == []
    file_count = table.files().num_rows
    assert all(covered == file_count for covered in table.indexes()["files_covered"].to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> ss.Table:
    table = ss.create(_made(tmp_path))
    table.create_index("id", kind="secondary")
    return table


def test_the_verbs_commit_a_snapshot(lake: ss.Table, tmp_path: Path) -> None:
    foreseen = lake.delete("id IN (1, 5)", dry_run=True)
    done = lake.delete("id IN (1, 5)")
    assert (done.rows_deleted, done.files) == (2, foreseen.files) and done.files_rewritten == 2
    rows = [row for row in ROWS if row["id"] not in (1, 5)]
    _check(tmp_path, lake, rows)
    assert lake.update({"s": "'new'", "v": "v + 1"}, "id >= 6").rows_updated == 2
    rows = [{**row, "s": "new", "v": row["v"] + 1} if row["id"] >= 6 else row for row in rows]
    _check(tmp_path, lake, rows)
    done = lake.upsert(pa.table({"id": [2, 100], "v": [-1, -2]}), on="id")
    assert (done.rows_updated, done.rows_inserted) == (1, 1)
    rows = [{**row, "v": -1} if row["id"] == 2 else row for row in rows]
    _check(tmp_path, lake, [*rows, {"id": 100, "v": -2, "s": None, "day": None}])
    their = catalog(tmp_path).load_table("lake.t")
    assert [s.summary.operation.value for s in their.metadata.snapshots][-3:] == ["overwrite"] * 3
    assert "commit.retry.num-retries" not in their.properties
    assert lake.delete("id = 77").version == lake.version  # no row, no snapshot
    assert len(catalog(tmp_path).load_table("lake.t").metadata.snapshots) == len(their.metadata.snapshots)


def test_rows_move_to_the_partition_of_their_new_value(lake: ss.Table, tmp_path: Path) -> None:
    assert lake.update({"day": "7"}, "id < 3").rows_updated == 3
    rows = [{**row, "day": 7} if row["id"] < 3 else row for row in ROWS]
    _check(tmp_path, lake, rows)
    assert lake.scan("day = 7").count() == 3
    assert catalog(tmp_path).load_table("lake.t").scan("day == 7").to_arrow().num_rows == 3


def test_a_retry_with_the_key_changes_nothing(lake: ss.Table, tmp_path: Path) -> None:
    first = lake.update({"v": "v + 1"}, "true", key="job 7")
    again = ss.open(catalog(tmp_path).load_table("lake.t")).update({"v": "v + 1"}, "true", key="job 7")
    assert (first.rows_updated, again.rows_updated) == (8, 0)
    _check(tmp_path, lake, [{**row, "v": row["v"] + 1} for row in ROWS])


def test_deletes_of_other_engines_are_applied(tmp_path: Path) -> None:
    their = _made(tmp_path, ())
    path = next(task.file.file_path for task in their.scan().plan_files() if task.file.record_count)
    gone = their.scan().to_arrow()  # the delete file names rows of one file by position
    first = {row["id"] for row in gone.to_pylist()[:4]}
    metadata = delete_positions(tmp_path / "lake" / "t", path, [0])
    table = ss.create(_registered(their, metadata))
    left = table.scan().to_table().to_pylist()
    assert len(left) == 7
    deleted = next(row for row in ROWS if row not in left)
    victim = next(row["id"] for row in left if (row["id"] in first) == (deleted["id"] in first))
    assert table.update({"s": "'u'"}, f"id = {victim}").rows_updated == 1
    _check(tmp_path, table, [{**row, "s": "u"} if row["id"] == victim else row for row in left])


def test_a_file_under_equality_deletes_is_refused(tmp_path: Path) -> None:
    their = _made(tmp_path, ())
    table = ss.create(_registered(their, delete_equal(tmp_path / "lake" / "t", "id", [3])))
    with pytest.raises(ss.NotReadableError):
        table.delete("id = 2")
    assert len(catalog(tmp_path).load_table("lake.t").metadata.snapshots) == 3


def test_columns_that_changed(lake: ss.Table, tmp_path: Path) -> None:
    their = catalog(tmp_path).load_table("lake.t")
    with their.update_schema() as update:
        update.rename_column("v", "value")
        update.delete_column("s")
        update.update_column("day", field_type=LongType())
    with their.update_schema() as update:
        update.add_column("v", LongType())
    lake.update({"v": "value + 1"}, "id IN (1, 2)")
    values = [{"id": r["id"], "value": r["v"], "day": r["day"], "v": None} for r in ROWS]
    _check(tmp_path, lake, [{**r, "v": r["value"] + 1} if r["id"] in (1, 2) else r for r in values])


def test_files_of_an_older_partition_spec(lake: ss.Table, tmp_path: Path) -> None:
    their = catalog(tmp_path).load_table("lake.t")
    with their.update_spec() as update:
        update.remove_field("day")
        update.add_identity("s")
    lake.delete("id = 3")
    _check(tmp_path, lake, [row for row in ROWS if row["id"] != 3])
    files = catalog(tmp_path).load_table("lake.t").inspect.files().to_pylist()
    assert {file["spec_id"] for file in files} == {1, 2}


def test_types_of_iceberg(tmp_path: Path) -> None:
    inner = StructType(NestedField(11, "x", LongType()), NestedField(12, "l", ListType(13, LongType(), False)))
    types = [LongType(), UUIDType(), DecimalType(12, 3), BinaryType(), inner]
    schema = Schema(*(NestedField(i + 1, f"c{i}", kind, required=i == 0) for i, kind in enumerate(types)))
    their = catalog(tmp_path).create_table("lake.t", schema)
    one = {"c1": uuid.UUID(int=7).bytes, "c2": Decimal("1.500"), "c3": b"ab", "c4": {"x": 1, "l": [1, None]}}
    their.append(pa.Table.from_pylist([{"c0": i, **one} for i in range(4)], schema=their.schema().as_arrow()))
    table = ss.create(their)
    table.update({"c2": "c2 + 1"}, "c0 = 2")
    table.upsert(table.scan("c0 = 3").to_table().set_column(0, "c0", pa.array([9])), on="c0")
    result = sorted(catalog(tmp_path).load_table("lake.t").scan().to_arrow().to_pylist(), key=lambda row: row["c0"])
    assert [row["c0"] for row in result] == [0, 1, 2, 3, 9]
    assert [str(row["c2"]) for row in result] == ["1.500", "1.500", "2.500", "1.500", "1.500"]
    assert all(row["c3"] == b"ab" and row["c4"] == one["c4"] and str(row["c1"]).endswith("07") for row in result)


def test_partitions_by_other_transforms(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("t", pa.timestamp("us"))])
    their = catalog(tmp_path).create_table("lake.t", schema)
    times = [dt.datetime(2024, 1, 1, hour) for hour in range(6)]
    their.append(pa.table([range(6), times], schema=schema))
    with their.update_spec() as update:
        update.add_field("t", DayTransform(), "t_day")
    table = ss.create(their)
    try:
        import pyiceberg_core  # noqa: F401
    except ImportError:
        with pytest.raises(ss.InvalidArgumentError, match=r"pyiceberg.core"):
            table.upsert(pa.table([[77], times[:1]], schema=schema), on="id")
    else:
        table.upsert(pa.table([[77], times[:1]], schema=schema), on="id")
        assert table.scan("id = 77").count() == 1


def _data_files(folder: Path) -> set[Path]:
    return set((folder / "lake" / "t" / "data").rglob("*.parquet"))


@pytest.mark.parametrize("other", ["append", "delete", "update", "ours"])
def test_another_writer_is_a_conflict(lake: ss.Table, tmp_path: Path, other: str, monkeypatch: Any) -> None:
    """Between the plan and the commit: nothing of this change is committed, and nothing of the other is lost."""
    from skipstone.engine.rows_by_key.iceberg import IcebergExchange

    their = catalog(tmp_path).load_table("lake.t")
    with their.transaction() as tx:
        tx.set_properties({"write.update.isolation-level": "snapshot", "write.delete.isolation-level": "snapshot"})
    real, rows = IcebergExchange._commit, list(ROWS)

    def meanwhile(self: Any) -> None:
        monkeypatch.setattr(IcebergExchange, "_commit", real)
        theirs = catalog(tmp_path).load_table("lake.t")
        if other == "append":
            rows.append({"id": 50, "v": 1, "s": "x", "day": 0})
            theirs.append(_rows(rows[-1:]))
        elif other == "delete":
            theirs.delete("id == 2")
            rows.remove(ROWS[2])
        elif other == "update":
            rows[2] = {**rows[2], "v": 99}
            theirs.overwrite(_rows([rows[2]]), overwrite_filter="id == 2")
        else:
            ss.open(theirs).update({"v": "99"}, "id = 2")
            rows[2] = {**rows[2], "v": 99}
        before.update(_data_files(tmp_path))
        real(self)

    before: set[Path] = set()
    monkeypatch.setattr(IcebergExchange, "_commit", meanwhile)
    with pytest.raises(ss.CommitConflictError):
        lake.upsert(pa.table({"id": [2, 50], "v": [1000, 1000]}), on="id")
    lake.sync(refresh=True)
    _check(tmp_path, lake, rows)
    live = {Path(file["file_path"].removeprefix("file://")) for file in their.refresh().inspect.files().to_pylist()}
    assert live <= _data_files(tmp_path) < before  # what this change wrote is removed


def test_a_commit_that_is_not_confirmed(lake: ss.Table, tmp_path: Path, monkeypatch: Any) -> None:
    """It may have succeeded, so no file is removed."""
    from pyiceberg.catalog.sql import SqlCatalog

    real = SqlCatalog.commit_table

    def lost(*arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", real)
        real(*arguments)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    with pytest.raises(ss.StorageError, match="did not confirm"):
        lake.delete("id = 3")
    lake.sync(refresh=True)
    _check(tmp_path, lake, [row for row in ROWS if row["id"] != 3])


def test_an_error_leaves_no_files(lake: ss.Table, tmp_path: Path) -> None:
    before = _data_files(tmp_path)

    def stop(step: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.delete("id IN (1, 5)", progress=stop)
    with pytest.raises(ss.PredicateError):
        lake.update({"day": "CASE WHEN id = 5 THEN 3000000000 ELSE 1 END"}, "true")
    assert _data_files(tmp_path) == before


def test_refused(tmp_path: Path) -> None:
    their = _made(tmp_path)
    ss.create(their)
    with pytest.raises(ss.InvalidArgumentError, match="catalog"):
        ss.open(tmp_path / "lake" / "t").delete("true")
    with their.transaction() as tx:
        tx.set_properties({"write.format.default": "orc"})
    with pytest.raises(ss.InvalidArgumentError, match=r"write\.format\.default"):
        ss.open(their).delete("true")


def test_format_version_3_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg cannot write its manifests, and does not keep the ids of rows."""
    from skipstone.engine.lakes.iceberg_catalog import CatalogTable

    their = _made(tmp_path)
    table, real = ss.create(their), CatalogTable.load

    def load(self: CatalogTable) -> Any:
        loaded = real(self)
        loaded.metadata = loaded.metadata.model_copy(update={"format_version": 3})
        return loaded

    monkeypatch.setattr(CatalogTable, "load", load)
    with pytest.raises(ss.InvalidArgumentError, match="row ids"):
        table.delete("id = 1")


@settings(max_examples=examples(4, 100), deadline=None)
@given(seed=st.integers(0, 2**32), identity=st.sampled_from([(), ("day",), ("s", "day")]))
def test_rows_are_those_of_a_list(
    seed: int, identity: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("iceberg")

    def row(id: int) -> dict[str, Any]:
        return {"id": id, "v": rng.choice([None, 1, 2]), "s": rng.choice([None, "a", "b"]), "day": rng.choice([0, 1])}

    rows = [row(i) for i in range(12)]
    table = ss.create(_made(folder, identity, rows))
    if rng.random() < 0.7:
        table.create_index("id", kind="secondary")
    for _ in range(3):
        ids = rng.sample(range(16), 3)
        verb = rng.choice(["delete", "update", "upsert"])
        if verb == "delete":
            table.delete(f"id IN ({ids[0]}, {ids[1]}) OR v = 2")
            rows = [r for r in rows if r["id"] not in ids[:2] and r["v"] != 2]
        elif verb == "update":
            table.update({"day": "1 - day", "s": "'u'"}, f"id < {ids[0]}")
            rows = [{**r, "day": 1 - r["day"], "s": "u"} if r["id"] < ids[0] else r for r in rows]
        else:
            new = [row(i) for i in ids]
            table.upsert(_rows(new), on="id")
            rows = [r for r in rows if r["id"] not in ids] + new
        if rng.random() < 0.3:  # another engine appends, which the next verb has to see
            rows.append(row(rng.randrange(100, 10**9)))
            catalog(folder).load_table("lake.t").append(_rows(rows[-1:]))
        table.sync(refresh=True)
        _check(folder, table, rows)
