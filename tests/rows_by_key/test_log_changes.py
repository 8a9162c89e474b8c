"""delete, update and upsert of Delta and Iceberg tables commit through deltalake and pyiceberg, and change exactly the
right rows."""

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
from library_versions import has
from log_lakes import (
    catalog,
    delete_equal,
    delete_positions,
    delete_rows,
    iceberg_table,
    multiset,
    paths_of,
    read_delta,
)

pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')
pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')
pytest.importorskip("sqlalchemy", reason='the tests need a catalog: pip install "pyiceberg[sql-sqlite]"')
import deltalake
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import BinaryType, DecimalType, ListType, LongType, NestedField, StructType, UUIDType

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("s", pa.string()), ("day", pa.int32())])
ROWS = [{"id": i, "v": i * 10, "s": f"s{i}", "day": i % 2} for i in range(8)]
can_replace = pytest.mark.skipif(not has("deltalake", 1, 6), reason="deltalake 1.6 removes files by name")


def _rows(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


class Delta:
    """A Delta table, as deltalake changes and reads it."""

    exchange = "skipstone.engine.rows_by_key.delta.DeltaExchange"

    def __init__(self, root: Path, partitioning: tuple[str, ...], rows: list[dict[str, Any]]):
        self.folder, self._by = root / "t", list(partitioning) or None
        for start in range(0, len(rows), 4):
            self.append(rows[start : start + 4])

    def their(self) -> Any:
        return deltalake.DeltaTable(self.folder)

    def source(self) -> Any:
        """What `create` and `open` accept."""
        return self.folder

    def append(self, rows: list[dict[str, Any]]) -> None:
        deltalake.write_deltalake(self.folder, _rows(rows), mode="append", partition_by=self._by)

    def delete(self, id: int) -> None:
        self.their().delete(f"id = {id}")

    def update(self, row: dict[str, Any]) -> None:
        self.their().update(updates={"v": f"{row['v']}"}, predicate=f"id = {row['id']}")

    def read(self) -> pa.Table:
        return read_delta(self.folder).cast(SCHEMA)

    def versions(self) -> int:
        return self.their().version()

    def live_files(self) -> set[Path]:
        return {self.folder / path for path in paths_of(self.folder)}

    def data_files(self) -> set[Path]:
        return {path for path in self.folder.rglob("*.parquet") if ".skipstone" not in path.parts}


class Iceberg:
    """An Iceberg table of a catalog, as pyiceberg changes and reads it."""

    exchange = "skipstone.engine.rows_by_key.iceberg.IcebergExchange"

    def __init__(self, root: Path, partitioning: tuple[str, ...], rows: list[dict[str, Any]]):
        self.root, self.folder = root, root / "lake" / "t"
        iceberg_table(root, SCHEMA, *partitioning)
        for start in range(0, len(rows), 4):
            self.append(rows[start : start + 4])

    def their(self) -> Any:
        return catalog(self.root).load_table("lake.t")

    def source(self) -> Any:
        return self.their()

    def append(self, rows: list[dict[str, Any]]) -> None:
        self.their().append(_rows(rows))

    def delete(self, id: int) -> None:
        self.their().delete(f"id == {id}")

    def update(self, row: dict[str, Any]) -> None:
        self.their().overwrite(_rows([row]), overwrite_filter=f"id == {row['id']}")

    def read(self) -> pa.Table:
        return self.their().scan().to_arrow()

    def versions(self) -> int:
        return len(self.their().metadata.snapshots)

    def live_files(self) -> set[Path]:
        files = self.their().inspect.files().to_pylist()
        return {Path(file["file_path"].removeprefix("file://")) for file in files}

    def data_files(self) -> set[Path]:
        return set((self.folder / "data").rglob("*.parquet"))

    def registered(self, metadata: Path) -> Any:
        """The table after a commit past its catalog."""
        their = self.their()
        their.catalog.drop_table("lake.t")
        return their.catalog.register_table("lake.t", f"file://{metadata}")


Log = Delta | Iceberg
LOGS = [pytest.param(Delta, marks=can_replace), Iceberg]


@pytest.fixture(params=LOGS, ids=["delta", "iceberg"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    return request.param(tmp_path, ("day",), ROWS)


@pytest.fixture
def iceberg(tmp_path: Path) -> Iceberg:
    return Iceberg(tmp_path, ("day",), ROWS)


@pytest.fixture
def lake(log: Log) -> ss.Table:
    return _indexed(log)


def _indexed(log: Log) -> ss.Table:
    table = ss.create(log.source())
    table.create_index("id", kind="secondary")
    return table


def _check(log: Log, table: ss.Table, rows: list[dict[str, Any]]) -> None:
    """The log's library, this handle and a new one read these rows, and an index that exists covers every file."""
    expected = multiset(log.read())
    assert expected == multiset(pa.Table.from_pylist(rows, schema=table.schema))
    for handle in (table, ss.open(log.source())):
        assert multiset(handle.scan().to_table()) == expected
    assert table.verify(deep=True) == []
    file_count = table.files().num_rows
    assert all(covered == file_count for covered in table.indexes()["files_covered"].to_pylist())


def test_the_verbs_commit_a_version(lake: ss.Table, log: Log) -> None:
    foreseen = lake.delete("id IN (1, 5)", dry_run=True)
    done = lake.delete("id IN (1, 5)")
    assert (done.rows_deleted, done.files) == (2, foreseen.files) and done.files_rewritten == 2
    rows = [row for row in ROWS if row["id"] not in (1, 5)]
    _check(log, lake, rows)
    assert lake.update({"s": "'new'", "v": "v + 1", "day": "7"}, "id >= 6").rows_updated == 2
    rows = [{**row, "s": "new", "v": row["v"] + 1, "day": 7} if row["id"] >= 6 else row for row in rows]
    _check(log, lake, rows)
    assert lake.scan("day = 7").count() == 2
    done = lake.upsert(pa.table({"id": [2, 100], "v": [-1, -2]}), on="id")
    assert (done.rows_updated, done.rows_inserted) == (1, 1)
    rows = [{**row, "v": -1} if row["id"] == 2 else row for row in rows]
    _check(log, lake, [*rows, {"id": 100, "v": -2, "s": None, "day": None}])
    versions = log.versions()
    assert lake.delete("id = 77").rows_deleted == 0 and log.versions() == versions  # no row, no version
    if isinstance(log, Iceberg):
        their = log.their()
        assert [s.summary.operation.value for s in their.metadata.snapshots][-3:] == ["overwrite"] * 3
        assert "commit.retry.num-retries" not in their.properties
    else:
        actions = pa.table(log.their().get_add_actions(flatten=True))
        assert set(actions["min.id"].to_pylist()) == {0, 2, 3, 6, 7, 100} or actions["min.id"].null_count == 0
        assert not list(log.folder.glob("skipstone-*/_delta_log/*"))


def test_a_retry_with_the_key_changes_nothing(lake: ss.Table, log: Log) -> None:
    first = lake.update({"v": "v + 1"}, "true", key="job 7")
    again = ss.open(log.source()).update({"v": "v + 1"}, "true", key="job 7")
    assert (first.rows_updated, again.rows_updated) == (8, 0)
    _check(log, lake, [{**row, "v": row["v"] + 1} for row in ROWS])


@pytest.mark.some_cases(7)
@pytest.mark.parametrize("other", ["append", "delete", "update", "ours", "properties"])
def test_another_writer_is_a_conflict(lake: ss.Table, log: Log, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the plan and the commit: nothing of this change is committed, and nothing of the other is lost."""
    if isinstance(log, Iceberg):
        if other == "properties":
            pytest.skip("pyiceberg commits over them")
        with log.their().transaction() as tx:
            tx.set_properties({"write.update.isolation-level": "snapshot", "write.delete.isolation-level": "snapshot"})
    rows, before = list(ROWS), set[Path]()

    def meanwhile(self: Any) -> None:
        monkeypatch.undo()
        if other == "append":
            rows.append({"id": 50, "v": 1, "s": "x", "day": 0})
            log.append(rows[-1:])
        elif other == "delete":
            log.delete(2)
            rows.remove(ROWS[2])
        elif other == "properties":
            log.their().alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
        else:
            rows[2] = {**rows[2], "v": 99}
            if other == "update":
                log.update(rows[2])
            else:
                ss.open(log.source()).update({"v": "99"}, "id = 2")
        before.update(log.data_files())
        self._commit()

    monkeypatch.setattr(f"{log.exchange}._commit", meanwhile)
    with pytest.raises(ss.CommitConflictError):
        lake.upsert(pa.table({"id": [2, 50], "v": [1000, 1000]}), on="id")
    lake.sync(refresh=True)
    _check(log, lake, rows)
    assert log.live_files() <= log.data_files() < before  # what this change wrote is removed


def test_an_error_leaves_no_files(lake: ss.Table, log: Log) -> None:
    before = log.data_files()

    def stop(step: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.delete("id IN (1, 5)", progress=stop)
    with pytest.raises(ss.PredicateError):
        lake.update({"day": "CASE WHEN id = 5 THEN 3000000000 ELSE 1 END"}, "true")
    assert log.data_files() == before


@pytest.mark.parametrize("kind", LOGS, ids=["delta", "iceberg"])
@settings(max_examples=examples(2), deadline=None)
@given(seed=st.integers(0, 2**32), partitioning=st.sampled_from([(), ("day",), ("s", "day")]))
def test_rows_are_those_of_a_list(
    kind: type[Log], seed: int, partitioning: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = random.Random(seed)

    def row(id: int) -> dict[str, Any]:
        return {"id": id, "v": rng.choice([None, 1, 2]), "s": rng.choice([None, "a", "b"]), "day": rng.choice([0, 1])}

    rows = [row(i) for i in range(12)]
    log = kind(tmp_path_factory.mktemp("log"), partitioning, rows)
    table = ss.create(log.source())
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
            log.append(rows[-1:])
        table.sync(refresh=True)
        _check(log, table, rows)


# -- Delta alone ------------------------------------------------------------------------------------------------------


@can_replace
def test_a_file_with_a_deletion_vector(tmp_path: Path) -> None:
    """deltalake cannot remove it by its path alone; other files can be changed, and its deleted rows stay deleted."""
    folder = Delta(tmp_path, (), ROWS).folder
    deltalake.DeltaTable(folder).alter.add_feature(
        deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    delete_rows(folder, paths_of(folder)[0], [0])
    table = ss.create(folder)
    left = table.scan().to_table().to_pylist()
    (deleted,) = (row["id"] for row in ROWS if row not in left)
    same_file, other_file = deleted + 1, (deleted + 4) % 8  # each file has four rows, and the first is deleted
    with pytest.raises(ss.InvalidArgumentError, match="deletion vector"):
        table.delete(f"id = {same_file}")
    assert table.delete(f"id = {other_file}").rows_deleted == 1
    assert multiset(table.scan().to_table()) == multiset(_rows([row for row in left if row["id"] != other_file]))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"delta.enableChangeDataFeed": "true"}, "enableChangeDataFeed"),
        ({"delta.appendOnly": "true"}, "appendOnly"),
        ({"delta.constraints.positive": "v >= 0"}, "constraints"),
    ],
)
@can_replace
def test_properties_that_are_refused(tmp_path: Path, properties: dict[str, str], message: str) -> None:
    log = Delta(tmp_path, ("day",), ROWS)
    table = log.their()
    if "delta.constraints.positive" in properties:
        table.alter.add_constraint({"positive": "v >= 0"})
    else:
        table.alter.set_table_properties(properties)
    with pytest.raises(ss.InvalidArgumentError, match=f"(?s){message}.*deltalake.*affected_files"):
        ss.create(log.folder).delete("id = 1")
    assert multiset(log.read()) == multiset(_rows(ROWS))


@can_replace
def test_a_path_that_deltalake_encodes_is_refused(tmp_path: Path) -> None:
    log = Delta(tmp_path, ("s",), [{"id": 1, "v": 1, "s": "a b", "day": 0}])
    table = ss.create(log.folder)
    with pytest.raises(ss.InvalidArgumentError, match="otherwise"):
        table.delete("id = 1")
    table.upsert(_rows([{"id": 2, "v": 2, "s": "c d%/", "day": 0}]), on="id")  # new files may have any name
    assert sorted(log.read()["id"].to_pylist()) == [1, 2]
    assert sorted(table.scan().to_table()["s"].to_pylist()) == ["a b", "c d%/"]


@pytest.mark.skipif(has("deltalake", 1, 6), reason="deltalake 1.6 removes files by name")
def test_an_old_deltalake_is_refused(tmp_path: Path) -> None:
    lake = _indexed(Delta(tmp_path, ("day",), ROWS))
    with pytest.raises(ss.InvalidArgumentError, match=r"1\.6.*DeltaTable\.delete.*affected_files"):
        lake.delete("id = 1")


# -- Iceberg alone ----------------------------------------------------------------------------------------------------


def test_deletes_of_other_engines_are_applied(tmp_path: Path) -> None:
    log = Iceberg(tmp_path, (), ROWS)
    path = next(iter(log.their().scan().plan_files())).file.file_path
    table = ss.create(log.registered(delete_positions(log.folder, path, [0])))
    left = table.scan().to_table().to_pylist()
    (deleted,) = (row["id"] for row in ROWS if row not in left)
    same_file = deleted + 1  # each file has four rows, and the first is deleted
    assert table.update({"s": "'u'"}, f"id = {same_file}").rows_updated == 1
    _check(log, table, [{**row, "s": "u"} if row["id"] == same_file else row for row in left])


def test_a_file_under_equality_deletes_is_refused(tmp_path: Path) -> None:
    log = Iceberg(tmp_path, (), ROWS)
    table = ss.create(log.registered(delete_equal(log.folder, "id", [3])))
    with pytest.raises(ss.NotReadableError):
        table.delete("id = 2")
    assert log.versions() == 3


def test_columns_that_changed(iceberg: Iceberg) -> None:
    lake, their = _indexed(iceberg), iceberg.their()
    with their.update_schema() as update:
        update.rename_column("v", "value")
        update.delete_column("s")
        update.update_column("day", field_type=LongType())
    with their.update_schema() as update:
        update.add_column("v", LongType())
    lake.update({"v": "value + 1"}, "id IN (1, 2)")
    values = [{"id": r["id"], "value": r["v"], "day": r["day"], "v": None} for r in ROWS]
    _check(iceberg, lake, [{**r, "v": r["value"] + 1} if r["id"] in (1, 2) else r for r in values])


def test_files_of_an_older_partition_spec(iceberg: Iceberg) -> None:
    lake, their = _indexed(iceberg), iceberg.their()
    with their.update_spec() as update:
        update.remove_field("day")
        update.add_identity("s")
    lake.delete("id = 3")
    _check(iceberg, lake, [row for row in ROWS if row["id"] != 3])
    files = iceberg.their().inspect.files().to_pylist()
    assert {file["spec_id"] for file in files} == {1, 2}


def test_types_of_iceberg(tmp_path: Path) -> None:
    inner = StructType(NestedField(11, "x", LongType()), NestedField(12, "l", ListType(13, LongType(), False)))
    types = [LongType(), UUIDType(), DecimalType(12, 3), BinaryType(), inner]
    schema = Schema(*(NestedField(i + 1, f"c{i}", kind, required=i == 0) for i, kind in enumerate(types)))
    their = iceberg_table(tmp_path, schema)
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
    their = iceberg_table(tmp_path, schema)
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


def test_a_commit_that_is_not_confirmed(iceberg: Iceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have succeeded, so no file is removed."""
    from pyiceberg.catalog.sql import SqlCatalog

    lake, real = _indexed(iceberg), SqlCatalog.commit_table

    def lost(*arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", real)
        real(*arguments)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    with pytest.raises(ss.StorageError, match="did not confirm"):
        lake.delete("id = 3")
    lake.sync(refresh=True)
    _check(iceberg, lake, [row for row in ROWS if row["id"] != 3])


def test_refused(iceberg: Iceberg) -> None:
    their = iceberg.their()
    ss.create(their)
    with pytest.raises(ss.InvalidArgumentError, match="catalog"):
        ss.open(iceberg.folder).delete("true")
    with their.transaction() as tx:
        tx.set_properties({"write.format.default": "orc"})
    with pytest.raises(ss.InvalidArgumentError, match=r"write\.format\.default"):
        ss.open(their).delete("true")


def test_format_version_3_is_refused(iceberg: Iceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg cannot write its manifests, and does not keep the ids of rows."""
    from skipstone.engine.lakes.iceberg_catalog import CatalogTable

    table, real = ss.create(iceberg.their()), CatalogTable.load

    def load(self: CatalogTable) -> Any:
        loaded = real(self)
        loaded.metadata = loaded.metadata.model_copy(update={"format_version": 3})
        return loaded

    monkeypatch.setattr(CatalogTable, "load", load)
    with pytest.raises(ss.InvalidArgumentError, match="row ids"):
        table.delete("id = 1")
