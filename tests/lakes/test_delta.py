"""Tables that follow a Delta log: right without a sync, fast after one, and never another table's rows."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from library_versions import needs
from loaded_modules import run_code
from log_lakes import (
    actions_of,
    add_of,
    check_followed,
    check_rows,
    check_unreadable,
    commit,
    delete_rows,
    new_add,
    paths_of,
    read_delta,
)

deltalake = pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')
from deltalake import DeltaTable, write_deltalake  # noqa: E402
from deltalake.exceptions import DeltaError  # noqa: E402


def _rows(*values, p="x"):
    return pa.table({"a": pa.array(values, pa.int64()), "p": pa.array([p] * len(values), pa.string())})


def _append(lake, *values, p="x"):
    write_deltalake(lake, _rows(*values, p=p), mode="append", partition_by=["p"])


def _values(table, where=None):
    return sorted(table.scan(where).to_table().column("a").to_pylist())


@pytest.fixture
def lake(tmp_path):
    _append(tmp_path / "lake", 1, 2)
    _append(tmp_path / "lake", 10, 20, p=None)
    return tmp_path / "lake"


@pytest.fixture
def table(lake):
    return ss.create(lake, source="delta")


def test_columns_of_every_kind_are_read_as_the_library_reads_them(tmp_path):
    """Also large and view types, which the log does not distinguish from others."""
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
    write_deltalake(tmp_path, data)
    table = ss.create(tmp_path, source="delta")
    write_deltalake(tmp_path, data, mode="append")
    check_followed(ss.open(tmp_path), read_delta(tmp_path))
    for _ in ("unsynced", "synced"):
        table.refresh()
        for where in ("s.k = 1", "large = 'x' AND s.z.q = 't'", "view = 'x'", "i8 = 1", "d > 5"):
            assert table.scan(where).count() == 2
        assert table.scan(ss.col("b") == b"\xff").count() == 2
        table.sync()


def test_a_file_whose_deleted_rows_are_unknown_is_not_read(tmp_path, monkeypatch):
    write_deltalake(tmp_path, _rows(1, 2), configuration={"delta.enableDeletionVectors": "true"})
    table = ss.create(tmp_path, source="delta")
    (path,) = paths_of(tmp_path)
    delete_rows(tmp_path, path, [0])
    table.sync()
    monkeypatch.setattr(table.handle.log, "deleted_rows", lambda position, paths: {})
    check_unreadable(table, path)


@pytest.mark.parametrize("expired", [[1, 2, 3, 4], [2]])
def test_rule_11_a_log_whose_tail_expired_is_read_again(lake, table, expired):
    """Also if one commit is missing, so that the next number is free and the log goes on after it."""
    for value in (3, 4, 5):
        _append(lake, value)
    DeltaTable(lake).delete("a = 1")
    DeltaTable(lake).create_checkpoint()
    for version in expired:
        (lake / "_delta_log" / f"{version:020d}.json").unlink()
    assert _values(pickle.loads(pickle.dumps(ss.open(lake, version=1)))) == [1, 2, 10, 20]
    check_followed(table, read_delta(lake))
    kept = set(table.files().column("file_id").to_pylist())
    _append(lake, 6)
    table.sync()
    assert kept < set(table.files().column("file_id").to_pylist())


def test_a_location_that_deltalake_would_read_otherwise_is_refused(lake):
    copy = shutil.copytree(lake, lake.parent / "x%20y")
    with pytest.raises(ss.NotReadableError, match="deltalake would read another folder"):
        ss.create(copy)


def test_rule_11_a_log_that_is_shorter_than_it_was_is_read_again(lake):
    _append(lake, 3)
    table = ss.create(lake, source="delta")
    (lake / "_delta_log" / f"{2:020d}.json").unlink()
    check_followed(table, read_delta(lake))
    assert table.version == 2
    _append(lake, 7)  # under the number that was removed
    check_followed(table, read_delta(lake))


@pytest.mark.parametrize("appends", [1, 3])
def test_rule_11_a_table_that_was_created_again_is_read_again(lake, table, appends):
    """Another table id: with fewer commits than ours, or with more; other columns, other partitions."""
    table.create_index("a", kind="bloom")
    old = set(table.files().column("file_id").to_pylist())
    shutil.rmtree(lake / "_delta_log")
    for number in range(appends):
        data = pa.table({"a": [number], "q": [dt.date(2020, 1, 1)], "z": ["new"]})
        write_deltalake(lake, data, mode="append", partition_by=["q"])
    check_followed(table, read_delta(lake))
    assert _values(table, "q = '2020-01-01' AND z = 'new'") == list(range(appends))
    assert sum(table.partitions().column("file_count").to_pylist()) == appends
    assert not old.intersection(table.files().column("file_id").to_pylist())
    assert table.indexes().column("name").to_pylist() == ["stats", "bloom(a)"]
    table.refresh_index("a", kind="bloom")
    assert table.scan("a = 12345").files().num_rows == 0
    assert _values(ss.open(lake, version=2)) == [1, 2, 10, 20]


def test_columns_that_are_added_are_read_without_a_sync(lake, table):
    write_deltalake(lake, _rows(3).append_column("n", pa.array(["new"])), mode="append", schema_mode="merge")
    check_followed(table, read_delta(lake))
    assert table.schema.names == ["a", "p", "n"]
    table.refresh_index("n", kind="stats")
    assert table.scan("n = 'old'").files().num_rows == 0
    assert _values(table, "n IS NULL") == [1, 2, 10, 20]


def test_a_column_that_is_added_may_be_in_older_files(tmp_path):
    """Delta finds columns by name, so values that a file already has become visible."""
    write_deltalake(tmp_path, pa.table({"a": [1]}))
    (path,) = paths_of(tmp_path)
    pq.write_table(pa.table({"a": [1], "z": [7]}), tmp_path / path)
    commit(tmp_path, [{"add": new_add(tmp_path, path)}])
    table = ss.create(tmp_path, source="delta")
    write_deltalake(tmp_path, pa.table({"a": [2], "z": [8]}), mode="append", schema_mode="merge")
    check_followed(table, read_delta(tmp_path))
    assert _values(table, "z = 7") == [1]


def test_a_type_that_changes_with_all_files_is_a_new_column(lake, table):
    write_deltalake(lake, pa.table({"a": ["text"], "p": ["x"]}), mode="overwrite", schema_mode="overwrite")
    check_followed(table, read_delta(lake))


@needs("deltalake", 1, 6, what="writing another partitioning")
def test_another_partitioning_is_followed(lake, table):
    data = pa.table({"a": [1], "p": ["x"], "k": [3]})
    write_deltalake(lake, data, mode="overwrite", schema_mode="overwrite", partition_by=["k"])
    check_followed(table, read_delta(lake))
    assert table.partitions().column("partition").to_pylist() == ["k=3"]


def test_a_limit_passes_over_row_groups_of_which_every_row_is_deleted(tmp_path):
    write_deltalake(tmp_path, pa.table({"a": [0]}), configuration={"delta.enableDeletionVectors": "true"})
    (path,) = paths_of(tmp_path)
    pq.write_table(pa.table({"a": [1, 2, 3, 4, 5, 6]}), tmp_path / path, row_group_size=2)
    commit(tmp_path, [{"add": new_add(tmp_path, path)}])
    delete_rows(tmp_path, path, [0, 1])
    table = ss.create(tmp_path, source="delta")
    for limit in range(5):
        assert table.scan(limit=limit).to_table().column("a").to_pylist() == [3, 4, 5, 6][:limit]
    assert table.scan().head(1).column("a").to_pylist() == [3]


# -- columns that have other names in files ----------------------------------------------------------------------------


def test_columns_that_deltalake_maps_are_found_by_their_names_in_files(tmp_path):
    """Files and partition values have physical names, and a rename changes no file."""
    mapping = {"delta.columnMapping.mode": "name", "delta.minReaderVersion": "2", "delta.minWriterVersion": "5"}
    try:
        write_deltalake(tmp_path, _rows(1, 2), partition_by=["p"], configuration=mapping)
    except DeltaError as error:  # of deltalake 1.6.0 and older, which only read such tables
        assert "column mapping" in str(error).lower()
        pytest.skip(str(error))
    table = ss.create(tmp_path, source="delta")
    assert table.scan("a = 5").files().num_rows == 0
    _append(tmp_path, 3, p="y")
    check_rows(table.refresh(), read_delta(tmp_path))
    (metadata,) = actions_of(tmp_path, "metaData")
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["name"] = "b"
    commit(tmp_path, [{"metaData": {**metadata, "schemaString": json.dumps(schema)}}])
    check_followed(table, read_delta(tmp_path))
    assert table.schema.names == ["b", "p"]
    assert table.scan("b = 5").files().num_rows == 0
    assert _values(ss.open(tmp_path, version=1)) == [1, 2]


_IDS = {name: number for number, name in enumerate(["c1", "p2", "p3", "p4", "a", "s", "extra", "col-7aa6540d"], 1)}


def _commit_mapped(lake, mode, columns, rows=()):
    """Commit a schema of columns: name -> (physical name, type or dictionary of fields); and a file of rows."""

    def in_log(name, physical, kind):
        of = kind if isinstance(kind, str) else {"type": "struct", "fields": [in_log(n, *k) for n, k in kind.items()]}
        metadata = {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": _IDS[physical]}
        return {"name": name, "type": of, "nullable": True, "metadata": metadata if mode else {}}

    def own(physical):
        """The name in files, which may be any if columns are found by their ids."""
        return f"other {physical}" if mode == "id" else physical

    def in_file(physical, kind):
        of = {"long": pa.int64(), "string": pa.string()}.get(kind) if isinstance(kind, str) else None
        of = of or pa.struct([in_file(*field) for field in kind.values()])
        return pa.field(own(physical), of, metadata={"PARQUET:field_id": str(_IDS[physical])})

    def renamed(row, fields):
        return {own(p): row[n] if isinstance(k, str) else renamed(row[n], k) for n, (p, k) in fields.items()}

    (lake / "_delta_log").mkdir(parents=True, exist_ok=True)
    number = len(list((lake / "_delta_log").iterdir()))
    metadata = {
        "id": "0a6e7c1e-0000-4000-8000-000000000001",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [in_log(n, *k) for n, k in columns.items()]}),
        "partitionColumns": [],
        "configuration": {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "99"} if mode else {},
        "createdTime": 1,
    }
    actions = []
    if actions_of(lake, "metaData")[-1:] != [metadata]:
        actions = [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": metadata}]
    if rows:
        schema = pa.schema([in_file(*column) for column in columns.values()])
        data = pa.Table.from_pylist([renamed(row, columns) for row in rows], schema=schema)
        pq.write_table(data, lake / f"{number}.parquet")
        actions.append({"add": new_add(lake, f"{number}.parquet")})
    commit(lake, actions)


def test_columns_of_which_only_some_have_other_names_in_files_are_found_without_a_sync(tmp_path):
    """A table that was upgraded: older columns keep their names in files, and one has the name of another there."""
    columns = {"a": ("a", "long"), "name": ("extra", "string"), "extra": ("col-7aa6540d", "long")}
    rows = [{"a": 1, "name": "ann", "extra": 10}, {"a": 2, "name": "bob", "extra": 20}]
    _commit_mapped(tmp_path, "name", columns, rows[:1])
    table = ss.create(tmp_path, source="delta")
    _commit_mapped(tmp_path, "name", columns, rows[1:])
    for reader in (ss.open(tmp_path), ss.open(tmp_path, log_version=1)):
        check_rows(reader, pa.Table.from_pylist(rows))
    check_followed(table, pa.Table.from_pylist(rows))


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_fields_within_columns_are_followed(tmp_path, mode):
    """A field that is renamed, and another that gets its old name: files have neither of these names."""

    def commit_fields(fields, *values):
        columns = {"s": ("c1", {name: (physical, "long") for name, physical in fields.items()})}
        _commit_mapped(tmp_path, mode, columns, [{"s": row} for row in values])

    def check(*values):
        check_followed(table, pa.table({"s": list(values)}))

    commit_fields({"k": "p2", "v": "p3"}, {"k": 1, "v": 10})
    table = ss.create(tmp_path, source="delta")
    assert table.scan("s.k = 10").files().num_rows == 0
    commit_fields({"k": "p2", "v": "p3"}, {"k": 2, "v": 20})
    check({"k": 1, "v": 10}, {"k": 2, "v": 20})
    commit_fields({"v": "p2", "w": "p3", "k": "p4"}, {"v": 30, "w": 99, "k": 3})
    check({"v": 1, "w": 10, "k": None}, {"v": 2, "w": 20, "k": None}, {"v": 30, "w": 99, "k": 3})
    assert table.scan("s.w = 10").files().num_rows == 1
    table.create_index("s.k", kind="bloom")
    table.create_index("s.w", kind="secondary")
    check({"v": 1, "w": 10, "k": None}, {"v": 2, "w": 20, "k": None}, {"v": 30, "w": 99, "k": 3})


@pytest.mark.parametrize("mode", ["name", "id"])
def test_a_mapped_column_that_was_dropped_returns_with_its_values(tmp_path, mode):
    columns = {"a": ("a", "long"), "b": ("p2", "long")}
    _commit_mapped(tmp_path, mode, columns, [{"a": 1, "b": 10}])
    _commit_mapped(tmp_path, mode, {"a": ("a", "long")}, [{"a": 2}])
    table = ss.create(tmp_path, source="delta")
    check_rows(ss.open(tmp_path, log_version=0), pa.table({"a": [1], "b": [10]}))
    _commit_mapped(tmp_path, mode, columns)
    check_followed(table, pa.table({"a": [1, 2], "b": [10, None]}))


@pytest.mark.parametrize("changes_columns", [False, True])
def test_a_file_that_returns_in_another_partition_is_read_once(lake, table, changes_columns):
    path = next(path for path in paths_of(lake) if "p=x" in path)
    add = add_of(lake, path)
    commit(lake, [{"remove": {"path": path, "partitionValues": {"p": "x"}, "size": add["size"], "dataChange": True}}])
    commit(lake, [{"add": {**add, "partitionValues": {"p": "y"}}}])
    if changes_columns:
        commit(lake, [{"metaData": actions_of(lake, "metaData")[-1]}])
    check_followed(table, read_delta(lake))
    assert _values(table, "p = 'y'") == [1, 2]


@pytest.mark.parametrize(("before", "after", "value"), [("integer", "double", "7"), ("float", "double", "0.1")])
def test_deletes_of_a_file_whose_partition_column_widened_are_respected(tmp_path, before, after, value):
    """Its value has another text: 7 is 7.0."""
    lake = tmp_path / "lake"
    (lake / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1, 2]}), lake / "f.parquet")
    features = ["typeWidening", "deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}

    def columns(kind):
        fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in (("a", "long"), ("v", kind))]
        schema = json.dumps({"type": "struct", "fields": fields})
        described = {"id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
        return {"metaData": {**described, "partitionColumns": ["v"], "configuration": {}, "createdTime": 1}}

    commit(
        lake,
        [
            {"protocol": protocol},
            columns(before),
            {"add": {**new_add(lake, "f.parquet"), "partitionValues": {"v": value}}},
        ],
    )
    table = ss.create(lake, source="delta")
    commit(lake, [columns(after)])
    table.sync()
    delete_rows(lake, "f.parquet", [0])
    table.refresh()
    for _ in ("unsynced", "synced"):
        assert table.scan().to_table().to_pylist() == [{"a": 2, "v": float(value)}]
        table.sync()


def test_names_within_columns_that_are_mapped_later_are_followed(tmp_path):
    """Mapping is turned on, and two fields exchange their names, between two looks: older files have the old names."""
    before = {"p2": ("p2", "long"), "p3": ("p3", "long")}
    _commit_mapped(tmp_path, None, {"s": ("s", before)}, [{"s": {"p2": 1, "p3": 10}}])
    table = ss.create(tmp_path, source="delta")
    _commit_mapped(tmp_path, "name", {"s": ("s", {"p3": ("p2", "long"), "p2": ("p3", "long")})})
    check_followed(table, pa.table({"s": [{"p3": 1, "p2": 10}]}))


# -- files and handles -------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_read_is_live_all_the_same(lake):
    path = paths_of(lake)[0]
    data = (lake / path).read_bytes()
    (lake / path).unlink()
    table = ss.create(lake, source="delta")
    assert path in table.scan("a = 12345").files().column("path").to_pylist()
    assert ("quarantined", path) in [(f.kind, f.path) for f in table.verify()]
    with pytest.raises(ss.NotReadableError, match="missing"):
        table.scan().to_table()
    assert table.sync() == 1
    (lake / path).write_bytes(data)
    assert [table.sync(), table.sync()] == [2, 2]
    check_followed(table, read_delta(lake))
    assert table.scan("a = 12345").files().num_rows == 0


def test_many_that_sync_and_index_in_parallel_add_files_once(lake, table):
    handles = [ss.open(lake) for _ in range(6)]
    for value in range(100, 104):
        _append(lake, value)
    with ThreadPoolExecutor(7) as pool:
        index = pool.submit(ss.open(lake).create_index, "a", "bloom")
        versions = {future.result() for future in [pool.submit(handle.sync) for handle in handles]}
        versions.add(index.result())
    table.refresh()
    assert table.history().column("action").to_pylist().count("sync") == 1
    assert versions <= {2, 3}
    assert _values(table) == [1, 2, 10, 20, 100, 101, 102, 103]
    ids = table.files().column("file_id").to_pylist()
    assert len(set(ids)) == len(ids) == 6
    assert table.verify() == []


def test_a_look_up_in_an_unchanged_table_needs_no_deltalake(lake, table):
    _append(lake, 3)
    code = (
        "import sys, skipstone as ss\n"
        f"assert ss.open({str(lake)!r}).scan('a = 3').count() == 1\n"
        "assert 'deltalake' not in sys.modules and 'pyiceberg' not in sys.modules\n"
    )
    run = run_code(code)
    assert run.returncode == 0, run.stderr
