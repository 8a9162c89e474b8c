"""Tables that follow a Delta log: right without a sync, fast after one, and never another's rows."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from library_versions import needs
from log_lakes import add_of, commit, delete_rows, multiset, paths_of
from skipstone.engine.scan import lookup

deltalake = pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')
from deltalake import DeltaTable, QueryBuilder, write_deltalake  # noqa: E402
from deltalake.exceptions import DeltaError  # noqa: E402


def _rows(*values, p="x"):
    return pa.table({"a": pa.array(values, pa.int64()), "p": pa.array([p] * len(values), pa.string())})


def _theirs(lake, where="true"):
    found = QueryBuilder().register("t", DeltaTable(str(lake))).execute(f"select * from t where {where}")
    return multiset(pa.table(found.read_all()))


def _ours(table, where=None):
    return multiset(table.scan(where).to_table())


def _values(table, where=None):
    return sorted(table.scan(where).to_table().column("a").to_pylist())


def _step(plan, name):
    return next(step for step in plan.steps if step.name == name)


@pytest.fixture
def lake(tmp_path):
    path = tmp_path / "lake"
    write_deltalake(str(path), _rows(1, 2), partition_by=["p"])
    write_deltalake(str(path), _rows(10, 20, p=None), mode="append")
    return path


def test_live_files_and_typed_partition_values_come_from_the_log(lake):
    DeltaTable(str(lake)).delete("a = 1")  # the file that it was in lies there still
    table = ss.create(lake, source="delta")
    assert _values(table) == [2, 10, 20]
    assert table.files().num_rows == 2
    partitions = table.partitions().select(["p", "file_count", "row_count"]).to_pylist()
    assert sorted(partitions, key=str) == [
        {"p": "x", "file_count": 1, "row_count": 1},
        {"p": None, "file_count": 1, "row_count": 2},
    ]
    assert table.scan("p IS NULL").files().num_rows == 1
    assert table.scan("p IS NULL").count() == 2
    assert table.verify() == []


VALUES = {
    "b": pa.array([True, False, None]),
    "i": pa.array([-5, 7, None], pa.int32()),
    "d": pa.array([dt.date(1969, 1, 1), dt.date(2020, 2, 29), None]),
    "ts": pa.array([dt.datetime(2020, 1, 1, 5, 6, 7, 89), dt.datetime(1, 1, 1), None], pa.timestamp("us", "UTC")),
    "ntz": pa.array([dt.datetime(2020, 1, 1, 5, 6, 7, 89), dt.datetime(9999, 1, 1), None], pa.timestamp("us")),
    "dec": pa.array([Decimal("1.50"), Decimal("0.00"), None], pa.decimal128(9, 2)),
    "f": pa.array([1.5, -0.25, None], pa.float64()),
    "s": pa.array(["a/b=c%d e\"'é𝄞", "__HIVE_DEFAULT_PARTITION", None]),
}


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("synced", [True, False])
def test_partition_values_of_every_type_are_those_of_the_log(tmp_path, name, synced):
    """Both of the whole state, and of commits that are read one by one."""
    data = pa.table({"a": pa.array([1, 2, 3]), "k": VALUES[name]})
    lake = tmp_path / "lake"
    write_deltalake(str(lake), data.slice(0, 0), partition_by=["k"])
    if synced:
        write_deltalake(str(lake), data, mode="append")
    table = ss.create(lake, source="delta")
    if not synced:
        write_deltalake(str(lake), data, mode="append")
        table.refresh()
    assert multiset(table.scan().to_table()) == multiset(data)
    for row in range(2):
        plan = table.scan(ss.col("k") == VALUES[name][row].as_py())
        assert (plan.count(), plan.files().num_rows) == (1, 1)
        assert plan.to_table().column("a").to_pylist() == [row + 1]
    assert table.scan("k IS NULL").to_table().column("a").to_pylist() == [3]
    table.sync()
    assert multiset(table.scan().to_table()) == multiset(data)


def test_columns_of_every_kind_are_read_as_the_library_reads_them(tmp_path):
    """Also where a writer chose large or nested types that the log does not tell from others."""
    words = pa.struct([("k", pa.int64()), ("z", pa.struct([("q", pa.large_string())]))])
    data = pa.table(
        {
            "i8": pa.array([1, None], pa.int8()),
            "f": pa.array([1.5, float("nan")], pa.float32()),
            "b": pa.array([b"x", b"\xff"]),
            "large": pa.array(["x", None], pa.large_string()),
            "view": pa.array(["x", None], pa.string_view()),
            "l": pa.array([["a"], []], pa.large_list(pa.large_string())),
            "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "s": pa.array([{"k": 1, "z": {"q": "t"}}, None], words),
            "d": pa.array([Decimal("12345678901234567890.123"), None], pa.decimal128(38, 3)),
        }
    )
    lake = tmp_path / "lake"
    write_deltalake(str(lake), data)
    table = ss.create(lake, source="delta")
    write_deltalake(str(lake), data, mode="append")
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert _ours(table) == _theirs(lake)
        for where in ("s.k = 1", "large = 'x' AND s.z.q = 't'", "view = 'x'", "i8 = 1", "d > 5"):
            assert table.scan(where).count() == 2
        assert table.scan(ss.col("b") == b"\xff").count() == 2
        table.sync()


def test_rule_12_what_came_may_match_and_what_left_is_gone_without_a_sync(lake):
    """Rule 12: never stale holds for logs."""
    ss.create(lake, source="delta")
    write_deltalake(str(lake), _rows(3, 30), mode="append")
    DeltaTable(str(lake)).delete("a = 10")
    table = ss.open(lake)
    assert table.version == 1
    assert _values(table) == [1, 2, 3, 20, 30]
    assert _values(table, "a >= 20") == [20, 30]
    assert _ours(table) == _theirs(lake)
    assert table.scan("a = 10").count() == 0
    assert (table.scan().count(), table.scan().min("a"), table.scan().max("a")) == (5, 1, 30)
    assert table.scan("a = 3", limit=1).to_table().num_rows == 1
    assert sum(table.partitions().column("row_count").to_pylist()) == 5
    assert pa.table(table.scan("p = 'x'").fragments().to_table()).num_rows == 4
    new = [row for row in table.files().to_pylist() if row["file_id"] is None]
    assert len(new) == 2 and all(row["segment"] is None for row in new)
    assert _step(table.scan("a = 2"), "statistics").uncovered == 2


def test_sync_commits_the_tail_once_and_nothing_new_makes_no_version(lake):
    table = ss.create(lake, source="delta")
    write_deltalake(str(lake), _rows(3), mode="append")
    write_deltalake(str(lake), _rows(4), mode="append")
    DeltaTable(str(lake)).delete("a = 10")
    assert [table.sync() for _ in range(3)] == [2, 2, 2]
    assert _values(table) == [1, 2, 3, 4, 20]
    last = table.history().to_pylist()[-1]
    assert (last["action"], last["files_added"], last["files_removed"]) == ("sync", 3, 1)
    assert _step(table.scan("a = 2"), "statistics").uncovered == 0
    assert None not in table.files().column("file_id").to_pylist()
    assert table.scan("a = 3").files().num_rows == 1  # by statistics
    assert table.verify(deep=True) == []


def test_rule_01_a_handle_pins_a_pair(lake):
    """Rule 1: our version and the log's, both as `open()` or `refresh()` saw them."""
    table = ss.create(lake, source="delta")
    write_deltalake(str(lake), _rows(3), mode="append")
    assert _values(table) == [1, 2, 10, 20]
    table.refresh()
    assert _values(table) == [1, 2, 3, 10, 20]
    write_deltalake(str(lake), _rows(4), mode="append")
    assert _values(table) == [1, 2, 3, 10, 20]
    table.create_index("a", kind="bloom")  # moves to the version made: the log's stays
    assert table.version == 2
    assert _values(table) == [1, 2, 3, 10, 20]
    table.sync()
    assert _values(table) == [1, 2, 3, 4, 10, 20]


def test_a_version_reads_the_log_as_it_was_recorded(lake):
    table = ss.create(lake, source="delta")
    write_deltalake(str(lake), _rows(3), mode="append")
    table.sync()
    write_deltalake(str(lake), _rows(4), mode="append")
    assert _values(ss.open(lake, version=1)) == [1, 2, 10, 20]
    assert _values(ss.open(lake, version=2)) == [1, 2, 3, 10, 20]
    assert _values(ss.open(lake)) == [1, 2, 3, 4, 10, 20]
    shutil.rmtree(lake / "_delta_log")  # a version asks the log nothing
    assert _values(ss.open(lake, version=2)) == [1, 2, 3, 10, 20]


def test_aggregates_exclude_no_partition_for_files_of_the_tail(lake):
    """Rule 20."""
    table = ss.create(lake, source="delta")
    write_deltalake(str(lake), _rows(99), mode="append")
    table.refresh()
    assert _values(table, "a = 99") == [99]
    assert table.scan("a = 99").count() == 1


def test_only_partition_values_prune_the_tail(lake):
    table = ss.create(lake, source="delta")
    table.create_index("a", kind="bloom")
    write_deltalake(str(lake), _rows(5, p="y"), mode="append")
    table.refresh()
    assert table.scan("p = 'y'").files().num_rows == 1
    assert table.scan("p = 'x'").files().num_rows == 1
    assert table.scan("a = 12345").files().column("file_id").to_pylist() == [None]


def test_indexes_are_built_over_what_is_committed(lake):
    table = ss.create(lake, source="delta")
    write_deltalake(str(lake), _rows(5), mode="append")
    table.refresh()
    table.create_index("a", kind="bloom")
    assert _values(table, "a = 5") == [5]
    covered = {row["name"]: row["files_covered"] for row in ss.open(lake, version=2).indexes().to_pylist()}
    assert covered == {"stats": 2, "bloom(a)": 2}
    table.sync()
    table.refresh_index("a", kind="bloom")
    assert _values(table, "a = 5") == [5]
    assert table.scan("a = 6").files().num_rows == 0


@needs("deltalake", 1, 4, what="writing deletion vectors")
@pytest.mark.parametrize("kind", [None, "secondary"])
def test_rule_02_a_new_deletion_vector_is_another_identity(tmp_path, kind):
    """Rule 2: path, size and time are as they were, and the deleted rows would be counted."""
    lake = tmp_path / "lake"
    data = pa.table({"a": list(range(10))})
    write_deltalake(str(lake), data, configuration={"delta.enableDeletionVectors": "true"})
    write_deltalake(str(lake), pa.table({"a": [100]}), mode="append")
    table = ss.create(lake, source="delta")
    assert table.scan().count() == 11
    if kind:
        table.create_index("a", kind=kind)
    path = next(p for p in paths_of(lake) if json.loads(add_of(lake, p)["stats"])["numRecords"] == 10)
    for rows in ([2], [2, 5]):
        delete_rows(lake, path, rows)
        table.refresh()
        for _ in ("unsynced", "synced"):
            assert path in table.files().column("path").to_pylist()
            assert table.scan("a = 2").files().column("path").to_pylist() == [path]
            _check_deletes(table, rows)
            table.sync()
            if kind:
                table.refresh_index("a", kind=kind)
        assert table.scan("a = 100").count() == 1
    assert kind or table.version == 3
    assert table.scan("a = 50").files().num_rows == 0  # its bounds still prune
    _check_deletes(ss.create(lake, source="delta", index_path=tmp_path / "index"), rows)
    _check_deletes(ss.open(lake, version=2 if kind is None else 3), [2])


@needs("deltalake", 1, 4, what="writing deletion vectors")
def test_deleted_rows_are_not_in_the_answers_of_an_index(tmp_path):
    """Rows of included columns, of which a deletion vector takes some."""
    lake = tmp_path / "lake"
    data = pa.table({"a": [i % 3 for i in range(10)], "b": [f"b{i}" for i in range(10)]})
    write_deltalake(str(lake), data, configuration={"delta.enableDeletionVectors": "true"})
    write_deltalake(str(lake), pa.table({"a": [1], "b": ["other"]}), mode="append")
    table = ss.create(lake, source="delta")
    table.create_index("a", kind="secondary", include=["b"])
    path = next(p for p in paths_of(lake) if json.loads(add_of(lake, p)["stats"])["numRecords"] == 10)
    for rows in ([4], [4, 7]):
        delete_rows(lake, path, rows)
        table.refresh()
        left = sorted([f"b{i}" for i in (1, 4, 7) if i not in rows] + ["other"])
        for step in ("unsynced", "synced", "indexed"):
            plan = table.scan("a = 1", columns=["b"])
            assert sorted(plan.to_table()["b"].to_pylist()) == left
            assert (table.scan("a = 1").count(), table.scan("a = 1 AND b >= 'b5'").count()) == (
                len(left),
                len(left) - 1,
            )
            assert ("no data file read" in plan.explain()) == (step == "indexed")
            if step == "unsynced":
                table.sync()
            else:
                table.refresh_index("a", kind="secondary")


def _check_deletes(table, rows):
    """Rule 19: a file with deletes is kept, and what its metadata count is never an answer."""
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


def test_deletes_that_cannot_be_told_are_not_read_past(tmp_path, monkeypatch):
    lake = tmp_path / "lake"
    write_deltalake(str(lake), _rows(1, 2), configuration={"delta.enableDeletionVectors": "true"})
    table = ss.create(lake, source="delta")
    (path,) = paths_of(lake)
    delete_rows(lake, path, [0])
    table.sync()
    monkeypatch.setattr(table.handle.log, "deleted_rows", lambda position, paths: {})
    for ask in (lambda plan: plan.count(), lambda plan: plan.to_table(), lambda plan: plan.max("a")):
        with pytest.raises(ss.NotReadableError) as caught:
            ask(table.scan())
        assert caught.value.paths == [path]


def test_files_that_are_compacted_and_vacuumed_are_followed(lake):
    table = ss.create(lake, source="delta")
    write_deltalake(str(lake), _rows(3), mode="append")
    their = DeltaTable(str(lake))
    their.optimize.compact()
    their.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    table.refresh()
    assert _ours(table) == _theirs(lake)
    table.sync()
    assert _ours(table) == _theirs(lake)
    assert table.verify() == []


def test_rule_11_a_log_whose_tail_expired_is_read_anew(lake):
    """Rule 11."""
    table = ss.create(lake, source="delta")
    for value in (3, 4, 5):
        write_deltalake(str(lake), _rows(value), mode="append")
    DeltaTable(str(lake)).delete("a = 1")
    DeltaTable(str(lake)).create_checkpoint()
    for version in (1, 2, 3, 4):
        (lake / "_delta_log" / f"{version:020d}.json").unlink()
    table.refresh()
    assert _ours(table) == _theirs(lake)
    table.sync()
    assert _ours(table) == _theirs(lake)
    kept = set(table.files().column("file_id").to_pylist())
    write_deltalake(str(lake), _rows(6), mode="append")
    table.sync()
    assert kept < set(table.files().column("file_id").to_pylist())


def test_a_gap_in_the_log_is_no_end_of_it(lake):
    """A commit that expired before its checkpoint was seen: the next number is free, and the log goes on."""
    table = ss.create(lake, source="delta")
    for value in (3, 4):
        write_deltalake(str(lake), _rows(value), mode="append")
    DeltaTable(str(lake)).create_checkpoint()
    (lake / "_delta_log" / f"{2:020d}.json").unlink()
    table.refresh()
    assert _values(table) == [1, 2, 3, 4, 10, 20]


def test_rule_11_a_log_that_is_shorter_than_it_was_is_read_anew(lake):
    write_deltalake(str(lake), _rows(3), mode="append")
    table = ss.create(lake, source="delta")
    (lake / "_delta_log" / f"{2:020d}.json").unlink()
    table.refresh()
    assert _values(table) == [1, 2, 10, 20]
    assert table.sync() == 2
    write_deltalake(str(lake), _rows(7), mode="append")  # takes the number that was free again
    assert _values(ss.open(lake)) == [1, 2, 7, 10, 20]
    table.sync()
    assert _values(table) == [1, 2, 7, 10, 20]


@pytest.mark.parametrize("appends", [1, 3])
def test_rule_11_a_table_that_was_made_anew_is_read_anew(lake, appends):
    """Another table id: with fewer commits than ours, or with more; other columns, other partitions."""
    table = ss.create(lake, source="delta")
    table.create_index("a", kind="bloom")
    old = set(table.files().column("file_id").to_pylist())
    shutil.rmtree(lake / "_delta_log")
    for number in range(appends):
        data = pa.table({"a": [number], "q": [dt.date(2020, 1, 1)], "z": ["new"]})
        write_deltalake(str(lake), data, mode="append", partition_by=["q"])
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert table.schema.names == ["a", "q", "z"]
        assert _values(table, "q = '2020-01-01' AND z = 'new'") == list(range(appends))
        assert table.scan("a = 20").count() == 0
        assert sum(table.partitions().column("file_count").to_pylist()) == appends
        table.sync()
    assert not old.intersection(table.files().column("file_id").to_pylist())
    assert table.indexes().column("name").to_pylist() == ["stats", "bloom(a)"]
    table.refresh_index("a", kind="bloom")
    assert table.scan("a = 12345").files().num_rows == 0
    assert _values(ss.open(lake, version=2)) == [1, 2, 10, 20]


def test_columns_that_come_are_there_at_once(lake):
    table = ss.create(lake, source="delta")
    more = _rows(3).append_column("n", pa.array(["new"]))
    write_deltalake(str(lake), more, mode="append", schema_mode="merge")
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert table.schema.names == ["a", "p", "n"]
        assert _values(table, "n = 'new'") == [3]
        assert _values(table, "n IS NULL") == [1, 2, 10, 20]
        assert _ours(table) == _theirs(lake)
        table.sync()
    table.refresh_index("n", kind="stats")
    assert table.scan("n = 'old'").files().num_rows == 0
    assert _values(table, "n IS NULL") == [1, 2, 10, 20]


def test_a_column_that_comes_may_lie_in_files_that_were_there(tmp_path):
    """Delta finds columns by name: what a file held unseen is seen once the table has a column of that name."""
    lake = tmp_path / "lake"
    write_deltalake(str(lake), pa.table({"a": [1]}))
    (path,) = paths_of(lake)
    pq.write_table(pa.table({"a": [1], "z": [7]}), lake / path)
    size = (lake / path).stat().st_size
    commit(lake, [{"add": {**add_of(lake, path), "size": size}}])
    table = ss.create(lake, source="delta")
    write_deltalake(str(lake), pa.table({"a": [2], "z": [8]}), mode="append", schema_mode="merge")
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert _ours(table) == _theirs(lake)
        assert _values(table, "z = 7") == [1]
        table.sync()


def test_a_type_that_changes_with_all_files_is_a_new_column(lake):
    table = ss.create(lake, source="delta")
    data = pa.table({"a": ["text"], "p": ["x"]})
    write_deltalake(str(lake), data, mode="overwrite", schema_mode="overwrite")
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert table.scan("a = 'text'").to_table().to_pylist() == [{"a": "text", "p": "x"}]
        assert table.scan().count() == 1
        table.sync()


@needs("deltalake", 1, 6, what="writing another partitioning")
def test_a_partitioning_that_changes_begins_anew(lake):
    table = ss.create(lake, source="delta")
    data = pa.table({"a": [1], "p": ["x"], "k": [3]})
    write_deltalake(str(lake), data, mode="overwrite", schema_mode="overwrite", partition_by=["k"])
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert table.partitions().column("partition").to_pylist() == ["k=3"]
        assert _values(table, "k = 3 AND p = 'x'") == [1]
        table.sync()


def test_mapped_columns_are_found_under_the_names_of_their_files(tmp_path):
    """Column mapping by name: files and partition values speak physical names, and a rename touches no file."""
    lake = tmp_path / "lake"
    mapping = {"delta.columnMapping.mode": "name", "delta.minReaderVersion": "2", "delta.minWriterVersion": "5"}
    try:
        write_deltalake(str(lake), _rows(1, 2), partition_by=["p"], configuration=mapping)
    except DeltaError as error:  # of deltalake 1.6.0 and older, which only read such tables
        assert "column mapping" in str(error).lower()
        pytest.skip(str(error))
    table = ss.create(lake, source="delta")
    assert table.scan("a = 2 AND p = 'x'").to_table().to_pylist() == [{"a": 2, "p": "x"}]
    assert table.scan("a = 5").files().num_rows == 0
    write_deltalake(str(lake), _rows(3, p="y"), mode="append")
    table.refresh()
    assert _values(table, "p = 'y'") == [3]
    _rename(lake, "a", "b")
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert table.schema.names == ["b", "p"]
        assert table.scan("b >= 2").to_table().sort_by("b").to_pylist() == [{"b": 2, "p": "x"}, {"b": 3, "p": "y"}]
        assert _ours(table) == _theirs(lake)
        table.sync()
    assert table.scan("b = 5").files().num_rows == 0
    assert _values(ss.open(lake, version=1)) == [1, 2]


def test_columns_of_which_only_some_have_other_names_in_files_are_found_without_a_sync(tmp_path):
    """A table that was upgraded: what was there keeps its name in files, what came since has one of its own."""
    lake = tmp_path / "lake"
    (lake / "_delta_log").mkdir(parents=True)
    columns = {"a": "a", "name": "extra", "extra": "col-7aa6540d"}  # in the table, and in files

    def added(path, values):
        kinds = [pa.int64(), pa.string(), pa.int64()]
        fields = [pa.field(name, kind) for name, kind in zip(columns.values(), kinds, strict=True)]
        pq.write_table(pa.table([[value] for value in values], schema=pa.schema(fields)), lake / path)
        size = (lake / path).stat().st_size
        return {"add": {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}}

    def field(number, name, kind):
        metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": columns[name]}
        return {"name": name, "type": kind, "nullable": True, "metadata": metadata}

    fields = [field(1, "a", "long"), field(2, "name", "string"), field(3, "extra", "long")]
    schema = {"type": "struct", "fields": fields}
    metadata = {
        "id": "0a6e7c1e-0000-4000-8000-000000000002",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"},
        "createdTime": 1,
    }
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    first = [protocol, {"metaData": metadata}, added("0.parquet", [1, "ann", 10])]
    (lake / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, first)))
    table = ss.create(lake, source="delta")
    commit(lake, [added("1.parquet", [2, "bob", 20])])
    rows = [{"a": 1, "name": "ann", "extra": 10}, {"a": 2, "name": "bob", "extra": 20}]
    for found in (table.refresh(), ss.open(lake), ss.open(lake, log_version=1), table):
        assert found.scan().to_table().sort_by("a").to_pylist() == rows
        for where in ("a = 2", "name = 'bob'", "extra = 20"):
            assert found.scan(where).to_table().to_pylist() == rows[1:], where
        assert found.scan("name IS NULL OR extra IS NULL").count() == 0
        table.sync()


def test_a_limit_passes_over_row_groups_of_which_every_row_is_deleted(tmp_path):
    lake = tmp_path / "lake"
    write_deltalake(str(lake), pa.table({"a": [0]}), configuration={"delta.enableDeletionVectors": "true"})
    (path,) = paths_of(lake)
    pq.write_table(pa.table({"a": [1, 2, 3, 4, 5, 6]}), lake / path, row_group_size=2)
    first = lake / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    add = next(action["add"] for action in actions if "add" in action)
    add |= {"size": (lake / path).stat().st_size, "stats": None}
    first.write_text("\n".join(map(json.dumps, actions)))
    delete_rows(lake, path, [0, 1])
    table = ss.create(lake, source="delta")
    for limit in range(5):
        assert table.scan(limit=limit).to_table().column("a").to_pylist() == [3, 4, 5, 6][:limit]
    assert table.scan().head(1).column("a").to_pylist() == [3]


def _rename(lake, old, new):
    """A commit that calls a mapped column otherwise, by hand: deltalake has no verb for it."""
    first = (lake / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    told = next(json.loads(line)["metaData"] for line in first if "metaData" in line)
    schema = json.loads(told["schemaString"])
    for field in schema["fields"]:
        field["name"] = new if field["name"] == old else field["name"]
    commit(lake, [{"metaData": {**told, "schemaString": json.dumps(schema)}}])


def _mapped_lake(lake, mode, fields, rows):
    """A Delta table of a column `s` whose fields (name, physical name) are mapped, with one file, by hand."""
    lake.mkdir(exist_ok=True)
    log = lake / "_delta_log"
    log.mkdir(exist_ok=True)
    version = len(list(log.glob("*.json")))

    def mapped(name, physical, kind, number):
        metadata = {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": number}
        return {"name": name, "type": kind, "nullable": True, "metadata": metadata}

    numbers = {physical: int(physical[1:]) for _, physical in fields}
    inner = {"type": "struct", "fields": [mapped(n, p, "long", numbers[p]) for n, p in fields]}
    schema = {"type": "struct", "fields": [mapped("s", "c1", inner, 1)]}
    metadata = {
        "id": "0a6e7c1e-0000-4000-8000-000000000001",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "99"},
        "createdTime": 1,
    }
    actions = [{"metaData": metadata}]
    if not version:
        actions.insert(0, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}})
    if rows:
        named = [(n, p) if mode == "name" else (n, f"other{p}") for n, p in fields]  # ids alone count
        kind = pa.struct(
            [
                pa.field(own, pa.int64(), metadata={"PARQUET:field_id": str(numbers[p])})
                for (_, own), (_, p) in zip(named, fields, strict=True)
            ]
        )
        values = [{own: row.get(name) for name, own in named} for row in rows]
        column = pa.field("c1", kind, metadata={"PARQUET:field_id": "1"})
        path = f"{version}.parquet"
        pq.write_table(pa.table([pa.array(values, kind)], schema=pa.schema([column])), lake / path)
        size = (lake / path).stat().st_size
        add = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
        actions.append({"add": add})
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_fields_within_columns_are_followed(tmp_path, mode):
    """A field that is renamed, and another that gets its old name: files hold neither of these names."""
    lake = tmp_path / "lake"
    _mapped_lake(lake, mode, [("k", "p2"), ("v", "p3")], [{"k": 1, "v": 10}])
    table = ss.create(lake, source="delta")

    def same(*rows):
        for _ in ("unsynced", "synced"):
            table.refresh()
            assert sorted(table.scan().to_table().column("s").to_pylist(), key=str) == sorted(rows, key=str)
            for name in rows[0]:
                for value in (1, 2, 3, 10, 20, 30, 99):
                    wanted = [row for row in rows if row[name] == value]
                    assert table.scan(f"s.{name} = {value}").to_table().column("s").to_pylist() == wanted
            table.sync()

    same({"k": 1, "v": 10})
    assert table.scan("s.k = 10").files().num_rows == 0
    _mapped_lake(lake, mode, [("k", "p2"), ("v", "p3")], [{"k": 2, "v": 20}])
    same({"k": 1, "v": 10}, {"k": 2, "v": 20})
    _mapped_lake(lake, mode, [("v", "p2"), ("w", "p3"), ("k", "p4")], [{"k": 3, "v": 30, "w": 99}])
    same({"v": 1, "w": 10, "k": None}, {"v": 2, "w": 20, "k": None}, {"v": 30, "w": 99, "k": 3})
    assert table.scan("s.w = 10").files().num_rows == 1
    table.create_index("s.k", kind="bloom")
    table.create_index("s.w", kind="secondary")
    same({"v": 1, "w": 10, "k": None}, {"v": 2, "w": 20, "k": None}, {"v": 30, "w": 99, "k": 3})
    assert table.verify() == []


def test_names_within_columns_that_are_mapped_later_are_followed(tmp_path):
    """Mapping is turned on, and a field renamed, between two looks: files of before have the names of before."""
    lake = tmp_path / "lake"
    write_deltalake(str(lake), pa.table({"s": [{"p2": 1, "p3": 10}]}))
    table = ss.create(lake, source="delta")
    (path,) = paths_of(lake)
    rows = pa.table({"c1": [{"p2": 1, "p3": 10}]})
    pq.write_table(rows, lake / path)
    (first,) = (lake / "_delta_log").glob("*.json")
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    metadata = next(line["metaData"] for line in lines if "metaData" in line)
    schema = json.loads(metadata["schemaString"])
    (s,) = schema["fields"]
    for number, field in enumerate([s, *s["type"]["fields"]], start=1):
        field["metadata"] = {"delta.columnMapping.physicalName": field["name"], "delta.columnMapping.id": number}
    s["type"]["fields"][0]["name"], s["type"]["fields"][1]["name"] = "p3", "p2"  # they change places
    configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}
    mapped = {**metadata, "schemaString": json.dumps(schema), "configuration": configuration}
    pq.write_table(pa.table({"s": [{"p2": 1, "p3": 10}]}), lake / path)
    add = {**add_of(lake, path), "size": (lake / path).stat().st_size}
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    commit(lake, [protocol, {"metaData": mapped}, {"add": add}])
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert table.scan("s.p2 = 10").to_table().to_pylist() == [{"s": {"p3": 1, "p2": 10}}]
        assert table.scan("s.p2 = 1").count() == 0
        table.sync()


def test_a_file_that_cannot_be_read_is_live_all_the_same(lake):
    path = paths_of(lake)[0]
    data = (lake / path).read_bytes()
    (lake / path).unlink()
    table = ss.create(lake, source="delta")
    assert path in table.scan("a = 12345").files().column("path").to_pylist()
    assert ("quarantined", path) in [(f.kind, f.path) for f in table.verify()]
    with pytest.raises(ss.NotReadableError, match="gone"):
        table.scan().to_table()
    assert table.sync() == 1
    (lake / path).write_bytes(data)
    assert table.sync() == 2
    assert table.sync() == 2
    assert _values(table) == [1, 2, 10, 20]
    assert table.scan("a = 12345").files().num_rows == 0
    assert table.verify() == []


def test_times_of_old_spark_are_read_whole(tmp_path):
    """INT96, which pyarrow reads as nanoseconds: the year 1 would come out as another."""
    lake = tmp_path / "lake"
    times = pa.array([dt.datetime(1, 1, 1), dt.datetime(2020, 1, 1), None], pa.timestamp("us", "UTC"))
    write_deltalake(str(lake), pa.table({"t": times}))
    (path,) = paths_of(lake)
    pq.write_table(pa.table({"t": times}), lake / path, use_deprecated_int96_timestamps=True)
    commit(lake, [{"add": {**add_of(lake, path), "size": (lake / path).stat().st_size}}])
    table = ss.create(lake, source="delta")
    table.create_index("t", kind="bloom")
    for _ in range(2):
        assert multiset(table.scan().to_table()) == multiset(pa.table({"t": times}))
        assert table.scan(ss.col("t") == dt.datetime(1, 1, 1, tzinfo=dt.UTC)).count() == 1
        assert table.scan().fragments().to_table().column("t").to_pylist() == times.to_pylist()
        commit(lake, [{"add": {**add_of(lake, path), "size": (lake / path).stat().st_size}}])
        table.refresh()


def test_rule_11_the_log_is_its_owners(lake):
    table = ss.create(lake, source="delta")
    (path,) = paths_of(lake)[:1]
    before = multiset(table.scan().to_table())
    for act in (
        lambda: table.transaction().__enter__(),
        lambda: table.alter(rename={"a": "b"}),
        lambda: table.clean(delete_data=True),
        lambda: table.rollback(),
        lambda: table.restore(version=1),
        table.handle.check_owns_files,
    ):
        with pytest.raises(ss.InvalidArgumentError, match="delta log"):
            act()
    table.clean()
    assert (lake / path).exists()
    assert multiset(table.scan().to_table()) == before


def test_index_path_leaves_the_lake_as_it_is(lake, tmp_path):
    before = sorted(str(p) for p in lake.rglob("*"))
    table = ss.create(lake, source="delta", index_path=tmp_path / "index")
    write_deltalake(str(lake), _rows(3), mode="append")
    after = sorted(str(p) for p in lake.rglob("*"))
    assert table.sync() == 2
    assert sorted(str(p) for p in lake.rglob("*")) == after
    assert set(before) < set(after)
    assert _values(ss.open(lake, index_path=tmp_path / "index")) == [1, 2, 3, 10, 20]


def test_two_handles_that_sync_at_once_add_files_once(lake):
    """Rule 4: where both added one path, the sync that was second drops its copy."""
    first, second = ss.create(lake, source="delta"), ss.open(lake)
    write_deltalake(str(lake), _rows(3), mode="append")
    assert first.sync() == 2
    assert second.sync() == 2
    assert _values(second) == [1, 2, 3, 10, 20]
    assert second.files().num_rows == 3


def test_many_that_sync_and_index_at_once_add_files_once(lake):
    ss.create(lake, source="delta")
    handles = [ss.open(lake) for _ in range(6)]
    for value in range(100, 104):
        write_deltalake(str(lake), _rows(value), mode="append")
    with ThreadPoolExecutor(7) as pool:
        index = pool.submit(ss.open(lake).create_index, "a", "bloom")
        versions = {future.result() for future in [pool.submit(handle.sync) for handle in handles]}
        versions.add(index.result())
    table = ss.open(lake)
    assert table.history().column("action").to_pylist().count("sync") == 1
    assert versions <= {2, 3}
    assert _values(table) == [1, 2, 10, 20, 100, 101, 102, 103]
    ids = table.files().column("file_id").to_pylist()
    assert len(set(ids)) == len(ids) == 6
    assert table.verify() == []


def test_keeping_leaves_the_tail_to_a_sync(lake):
    """optimize, clean and savepoints are about what is committed."""
    table = ss.create(lake, source="delta")
    table.create_index("a", kind="bloom")
    for value in (3, 4):
        write_deltalake(str(lake), _rows(value), mode="append")
        table.sync()
    DeltaTable(str(lake)).delete("a = 1")
    write_deltalake(str(lake), _rows(5), mode="append")
    table.refresh()
    table.savepoint("before")
    table.optimize()
    table.clean(retain_versions=1, min_age=dt.timedelta(0))
    assert _values(table) == [2, 3, 4, 5, 10, 20]
    assert _values(ss.open(lake, savepoint="before")) == [1, 2, 3, 4, 10, 20]
    assert table.files().column("file_id").null_count == 2
    table.sync()
    table.optimize()
    assert _values(table) == [2, 3, 4, 5, 10, 20]
    assert table.scan("a = 6").files().num_rows == 0
    assert table.verify(deep=True) == []


def test_bad_input_gets_our_errors(lake, tmp_path):
    with pytest.raises(ss.NotATableError, match="Delta"):
        ss.create(tmp_path, source="delta")
    with pytest.raises(ss.InvalidArgumentError, match="paimon"):
        ss.create(lake, source="paimon")
    with pytest.raises(ss.InvalidArgumentError, match="schema"):
        ss.create(lake, source="delta", schema=pa.schema([("a", pa.int64())]))
    with pytest.raises(ss.SchemaError, match="nothing_like_it"):
        ss.create(lake, source="delta", columns=["nothing_like_it"])
    with pytest.raises(ss.InvalidArgumentError, match="refresh"):
        ss.create(lake, source="delta").scan(refresh="always")
    broken = lake / "_delta_log" / f"{2:020d}.json"
    broken.write_text("{ this is no commit")
    with pytest.raises(ss.StorageError, match="deltalake"):
        ss.open(lake)


def test_scan_may_sync_first(lake):
    """Rule 12."""
    table = ss.create(lake, source="delta")
    write_deltalake(str(lake), _rows(3), mode="append")
    assert table.scan("a = 3", refresh="sync").count() == 1
    assert table.version == 2


def test_columns_chosen_get_statistics(lake):
    table = ss.create(lake, source="delta", columns=["a"])
    assert table.indexes().column("columns").to_pylist() == [["a"]]


def test_a_look_up_in_a_table_that_stands_still_needs_no_deltalake(lake, tmp_path):
    ss.create(lake, source="delta")
    write_deltalake(str(lake), _rows(3), mode="append")
    code = (
        "import sys, skipstone as ss\n"
        f"table = ss.open({str(lake)!r})\n"
        "assert table.scan('a = 3').count() == 1\n"
        "assert 'deltalake' not in sys.modules and 'pyiceberg' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL)


def test_a_missing_package_is_told(lake, monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ss.InvalidArgumentError, match=r"skipstone\[delta\]"):
        ss.create(lake, source="delta")
