"""Tables that follow a Delta log: right without a sync, fast after one, and never another's rows."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from library_versions import needs
from log_lakes import add_of, commit, delete_rows, multiset, paths_of

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


@pytest.fixture
def lake(tmp_path):
    path = tmp_path / "lake"
    write_deltalake(str(path), _rows(1, 2), partition_by=["p"])
    write_deltalake(str(path), _rows(10, 20, p=None), mode="append")
    return path


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
    output = next(json.loads(line)["metaData"] for line in first if "metaData" in line)
    schema = json.loads(output["schemaString"])
    for field in schema["fields"]:
        field["name"] = new if field["name"] == old else field["name"]
    commit(lake, [{"metaData": {**output, "schemaString": json.dumps(schema)}}])


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
    with pytest.raises(ss.NotReadableError, match="missing"):
        table.scan().to_table()
    assert table.sync() == 1
    (lake / path).write_bytes(data)
    assert table.sync() == 2
    assert table.sync() == 2
    assert _values(table) == [1, 2, 10, 20]
    assert table.scan("a = 12345").files().num_rows == 0
    assert table.verify() == []


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
