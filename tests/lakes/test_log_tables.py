"""Tables that follow the log of another format, one suite for all: right without a sync, fast after one, and never
another table's rows. The special cases of each format are in test_delta.py, test_iceberg.py and test_hudi.py."""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
import skipstone as ss
from library_versions import needs
from log_lakes import LogLake, iceberg_table, lake_of, multiset
from skipstone.engine.scan import lookup

SOURCES = ["delta", "iceberg", "hudi"]


def _values(table: ss.Table, where: str | None = None, name: str = "a") -> list[int]:
    return sorted(table.scan(where).to_table().column(name).to_pylist())


def _uncovered(plan: ss.Plan) -> int:
    return next(step.uncovered for step in plan.steps if step.name == "statistics")


@pytest.fixture(params=SOURCES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LogLake:
    """A table of two partitions, each of one file of two rows."""
    made = lake_of(request.param, tmp_path)
    made.append(1, 2)
    made.append(10, 20, p="y")
    return made


def _create(lake: LogLake, **options: object) -> ss.Table:
    return ss.create(lake.path, source=lake.source, **options)


def test_rule_12_changes_are_seen_without_a_sync_and_committed_once(lake: LogLake) -> None:
    """Rules 12 and 20: answers are never stale, and aggregates exclude no partition for files of the tail."""
    name, x = lake.name, lake.within("x")
    _create(lake)
    lake.append(3)
    lake.append(30)
    lake.delete(10)
    table = ss.open(lake.path)
    assert table.version == 1
    assert _values(table, None, name) == lake.values() == [1, 2, 3, 20, 30]
    assert _values(table, f"{name} >= 20", name) == [20, 30] and table.scan(f"{name} = 10").count() == 0
    plan = table.scan()
    assert (plan.count(), plan.min(name), plan.max(name)) == (5, 1, 30)
    assert table.scan(f"{name} = 3", limit=1).to_table().num_rows == 1
    assert not lake.has_row_counts or sum(table.partitions().column("row_count").to_pylist()) == 5
    assert table.scan(x).count() == 4 and table.scan(lake.within("y")).files().num_rows == 1
    assert pa.table(table.scan(x).fragments().to_table()).num_rows == 4
    new = [row for row in table.files().to_pylist() if row["file_id"] is None]
    assert len(new) == 3 and all(row["segment"] is None for row in new)
    assert table.scan(x).files().num_rows == 3  # partition values prune the tail, and nothing else
    assert table.scan(f"{x} AND {name} = 12345").files().column("file_id").to_pylist() == [None, None]
    assert _uncovered(table.scan(f"{name} = 2")) == 3
    assert [table.sync() for _ in range(3)] == [2, 2, 2]
    assert _values(table, None, name) == lake.values()
    last = table.history().to_pylist()[-1]
    assert (last["action"], last["files_added"], last["files_removed"]) == ("sync", 3, 1)
    assert _uncovered(table.scan(f"{name} = 2")) == 0 and None not in table.files().column("file_id").to_pylist()
    assert table.scan(f"{name} = 3").files().num_rows == 1 and table.scan(f"{name} = 31").files().num_rows == 0
    assert table.verify(deep=True) == []


def test_rule_01_a_handle_pins_a_pair_of_versions(lake: LogLake) -> None:
    """Rule 1: our version and the log's, both as `open()` or `refresh()` saw them."""
    name, before = lake.name, [1, 2, 10, 20]
    table = _create(lake)
    lake.append(3)
    assert _values(table, None, name) == before
    table.refresh()
    lake.append(4)
    table.create_index(name, kind="bloom")  # moves to the version made: the log's stays
    assert table.version == 2 and _values(table, None, name) == [1, 2, 3, 10, 20]
    assert _values(table, f"{name} = 3", name) == [3]  # the index covers what is committed
    assert {row["files_covered"] for row in table.indexes().to_pylist()} == {2}
    table.sync(refresh=True)
    lake.append(5)
    assert _values(table, None, name) == [1, 2, 3, 4, 10, 20]
    assert table.scan(f"{name} = 6").files().num_rows == 0
    assert _values(ss.open(lake.path), None, name) == lake.values()
    if lake.log is not None:
        lake.log.rename(lake.log.with_name("moved"))  # an older version is read without the log
    for version, values in ((1, before), (3, [1, 2, 3, 4, 10, 20])):
        assert _values(ss.open(lake.path, version=version), None, name) == values


def test_upkeep_leaves_the_tail_to_a_sync(lake: LogLake) -> None:
    """optimize, clean and savepoints are about what is committed."""
    name, table = lake.name, _create(lake)
    table.create_index(name, kind="bloom")
    for value in (3, 4):
        lake.append(value)
        table.sync()
    lake.delete(1)
    lake.append(5)
    table.refresh()
    table.savepoint("before")
    table.optimize()
    table.clean(retain_versions=1, min_age=dt.timedelta(0))
    assert _values(table, None, name) == lake.values() == [2, 3, 4, 5, 10, 20]
    assert _values(ss.open(lake.path, savepoint="before"), None, name) == [1, 2, 3, 4, 10, 20]
    assert table.files().column("file_id").null_count == 2
    table.sync()
    table.optimize()
    assert _values(table, None, name) == lake.values() and table.scan(f"{name} = 6").files().num_rows == 0
    assert table.verify(deep=True) == []


def test_rule_11_the_log_belongs_to_its_writers(lake: LogLake) -> None:
    table, before = _create(lake), sorted(map(str, lake.path.rglob("*.parquet")))
    for act in (
        lambda: table.transaction().__enter__(),
        lambda: table.alter(rename={lake.name: "b"}),
        lambda: table.clean(delete_data=True),
        lambda: table.rollback(),
        lambda: table.restore(version=1),
        table.handle.check_owns_files,
    ):
        with pytest.raises(ss.InvalidArgumentError, match=f"{lake.source} log"):
            act()
    table.clean()
    assert sorted(map(str, lake.path.rglob("*.parquet"))) == before
    assert _values(table, None, lake.name) == lake.values()


def test_an_index_elsewhere_does_not_change_the_lake(lake: LogLake, tmp_path: Path) -> None:
    table = _create(lake, index_path=tmp_path / "index", columns=[lake.name])
    assert table.indexes().column("columns").to_pylist() == [[lake.name]]
    lake.append(3)
    before = sorted(map(str, lake.path.rglob("*")))
    assert table.scan(f"{lake.name} = 3", refresh="sync").count() == 1 and table.version == 2
    assert sorted(map(str, lake.path.rglob("*"))) == before
    assert _values(ss.open(lake.path, index_path=tmp_path / "index"), None, lake.name) == lake.values()


def test_two_handles_that_sync_concurrently_add_files_once(lake: LogLake) -> None:
    """Rule 4: if both added one path, the second sync drops its copy."""
    first, second = _create(lake), ss.open(lake.path)
    lake.append(3)
    assert [first.sync(), second.sync()] == [2, 2]
    assert _values(second, None, lake.name) == lake.values() and second.files().num_rows == 3


def test_bad_input_gets_our_errors(lake: LogLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ss.NotATableError, match=lake.source.title()):
        ss.create(tmp_path / "empty", source=lake.source)
    with pytest.raises(ss.InvalidArgumentError, match="paimon"):
        ss.create(lake.path, source="paimon")
    with pytest.raises(ss.InvalidArgumentError, match="schema"):
        _create(lake, schema=pa.schema([("a", pa.int64())]))
    with pytest.raises(ss.SchemaError, match="nothing_like_it"):
        _create(lake, columns=["nothing_like_it"])
    with pytest.raises(ss.InvalidArgumentError, match="refresh"):
        _create(lake).scan(refresh="always")
    for module in lake.modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ss.InvalidArgumentError, match=rf"skipstone\[{lake.source}\]"):
        _create(lake, index_path=tmp_path / "index")


# -- partition values --------------------------------------------------------------------------------------------------

TIMES = [dt.datetime(2020, 1, 1, 5, 6, 7, 89), dt.datetime(1, 1, 1), None]
VALUES = {
    "b": pa.array([True, False, None]),
    "i": pa.array([-5, 7, None], pa.int32()),
    "d": pa.array([dt.date(1969, 1, 1), dt.date(2020, 2, 29), None]),
    "ts": pa.array(TIMES, pa.timestamp("us", "UTC")),
    "ntz": pa.array([*TIMES[:1], dt.datetime(9999, 1, 1), None], pa.timestamp("us")),
    "dec": pa.array([Decimal("1.50"), Decimal("0.00"), None], pa.decimal128(9, 2)),
    "f": pa.array([1.5, -0.25, None], pa.float64()),
    "s": pa.array(["a/b=c%d e\"'é𝄞", "__HIVE_DEFAULT_PARTITION", None]),
    "empty": pa.array(["", "x", None]),
}


def _written(source: str, folder: Path, data: pa.Table) -> tuple[Path, object]:
    """Create a table partitioned by `k`. Return its path, and a function that appends to it."""
    if source == "delta":
        deltalake = pytest.importorskip("deltalake")
        deltalake.write_deltalake(folder / "lake", data.slice(0, 0), partition_by=["k"])
        return folder / "lake", lambda rows: deltalake.write_deltalake(folder / "lake", rows, mode="append")
    return folder / "lake" / "t", iceberg_table(folder, data.schema, "k").append


@pytest.mark.some_cases(6)
@pytest.mark.parametrize("source", SOURCES[:2])
@pytest.mark.parametrize("name", VALUES)
def test_partition_values_of_every_type_are_those_of_the_log(tmp_path: Path, source: str, name: str) -> None:
    """Values of single commits, and of the whole state."""
    values = VALUES[name]
    if (source, name) == ("delta", "empty"):
        pytest.skip("Delta has no empty strings as partition values: they are null")
    data = pa.table({"a": pa.array([1, 2, 3]), "k": values})
    path, append = _written(source, tmp_path, data)
    tail = ss.create(path, source=source)
    append(data)
    tail.refresh()
    whole = ss.create(path, source=source, index_path=tmp_path / "whole")
    for state in ("unsynced", "synced"):
        for table in (tail, whole):
            assert multiset(table.scan().to_table()) == multiset(data)
            for row in range(2):
                plan = table.scan(ss.col("k") == values[row].as_py())
                # pyiceberg reads doubles of manifests as 32-bit floats
                is_known = table is whole or state == "synced" or source == "delta" or name != "f"
                assert (plan.count(), plan.files().num_rows) == (1, 1 if is_known else 3)
                assert plan.to_table().column("a").to_pylist() == [row + 1]
            assert table.scan("k IS NULL").to_table().column("a").to_pylist() == [3]
            table.sync()


# -- deleted rows ------------------------------------------------------------------------------------------------------


@needs("deltalake", 1, 4, what="writing deletion vectors")
@pytest.mark.some_cases(4)
@pytest.mark.parametrize("include", [None, [], ["p"]], ids=["no index", "index", "included column"])
@pytest.mark.parametrize("source", SOURCES[:2])
def test_rule_02_deletes_are_another_identity_of_their_file(
    tmp_path: Path, source: str, include: list[str] | None
) -> None:
    """Rules 2 and 19: path, size and time stay, and counts from metadata or entries of an index never answer."""
    lake = lake_of(source, tmp_path, is_partitioned=False)
    lake.append(*range(10))
    lake.append(100)
    table = _create(lake)
    steps = ["unsynced", "synced"]
    if include is not None:
        table.create_index("a", kind="secondary", include=include or None)
        steps.append("indexed")
    (path,) = table.scan("a = 5").files().column("path").to_pylist()
    for rows in ([2], [2, 5]):
        lake.delete_positions(path, rows)
        table.refresh()
        for step in steps:
            assert path in table.files().column("path").to_pylist()
            _check_deletes(table, rows)
            if include:
                plan = table.scan("a IN (1, 2, 7)", columns=["a", "p"])
                assert sorted(plan.to_table()["a"].to_pylist()) == [1, 7]
                assert table.scan("a IN (1, 2, 7) AND p = 'x'").count() == 2
                assert ("no data file read" in plan.explain()) == (step == "indexed")
            elif step != "indexed":
                assert table.scan("a = 2").files().column("path").to_pylist() == [path]
            if step == "synced" and include is not None:
                table.refresh_index("a", kind="secondary")
            table.sync()
        assert table.scan("a = 100").count() == 1
    assert include is not None or table.version == 3
    assert table.scan("a = 50").files().num_rows == 0  # its bounds still prune
    _check_deletes(_create(lake, index_path=tmp_path / "index"), rows)
    _check_deletes(ss.open(lake.path, version=2 if include is None else 3), [2])


def _check_deletes(table: ss.Table, rows: list[int]) -> None:
    left = [value for value in range(10) if value not in rows]
    assert _values(table, "a < 50") == left
    assert _values(table, "a < 9") == left[:-1]
    assert (table.scan("a < 50").count(), table.scan("a = 2").count()) == (len(left), 0)
    assert table.scan("a IN (1, 2, 3)", reader="duckdb").to_table().num_rows == 2
    for share in (0.01, 9.0):
        with mock.patch.multiple(lookup, FEW_KEYS=-1, SPREAD_SHARE=share):
            found = table.lookup([0, 1, 2, 7], on="a")
            assert (found.count(), found.min("a"), found.max("a"), found.to_table().num_rows) == (3, 0, 7, 3)
    assert table.scan("a != 4").count() == table.scan("a != 4").to_table().num_rows == len(left)  # with 100, without 4
    assert (table.scan("a < 50").min("a"), table.scan("a BETWEEN 1 AND 2").max("a")) == (0, 1)
    assert table.scan("a < 50", columns=[]).to_table().num_rows == len(left)
    assert table.scan("a < 50", limit=3).to_table().num_rows == 3
    with pytest.raises(ss.NotReadableError):  # a Dataset cannot leave rows out
        table.scan("a < 50").fragments()
