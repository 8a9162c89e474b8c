"""Served tables with renames, deletes, older versions and writers, and what clients would misread; killed servers."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from iceberg_server import client, planned_paths, request, served, serving_process
from lake_strategies import commit_rows, make_file
from library_versions import needs

pytest.importorskip("starlette", reason='starlette is not installed: pip install -e ".[serve]"')
pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')
from pyiceberg.exceptions import NoSuchTableError, RESTError
from pyiceberg.expressions import EqualTo, GreaterThan, IsNull

pytestmark = needs("pyiceberg", 0, 11, what="a client that the server plans for")

MODES = ("server", "client")


def _lake(folder, files):
    for name, rows in files.items():
        make_file(folder / "lake", f"{name}.parquet", rows)
    return ss.create(folder / "lake")


def _tables(uri, name="lake.t"):
    return [client(uri, mode).load_table(name) for mode in MODES]


def _values(table, column, *arguments, **options):
    found = table.scan(*arguments, **options).to_arrow().column(column).to_pylist()
    return sorted(found, key=lambda value: (value is None, value))


def test_columns_are_their_ids(tmp_path):
    table = _lake(tmp_path, {"0": {"a": [1, 2], "b": ["x", "y"]}})
    uri = served({"lake.t": tmp_path / "lake"})
    ids = {field.name: field.field_id for field in _tables(uri)[0].schema().fields}
    before = table.version
    table.alter(rename={"a": "n"}, add={"c": pa.float64()}, widen={})
    commit_rows(table, {"n": [3], "b": ["z"], "c": [0.5]})
    for loaded in _tables(uri):
        now = {field.name: field.field_id for field in loaded.schema().fields}
        assert (now["n"], now["b"]) == (ids["a"], ids["b"]) and now["c"] not in ids.values()
        assert _values(loaded, "n") == [1, 2, 3]
        assert _values(loaded, "c") == [0.5, None, None]
        assert _values(loaded, "n", EqualTo("n", 3)) == [3]
        assert _values(loaded, "n", IsNull("c")) == [1, 2]
        old = loaded.scan(snapshot_id=before).to_arrow()
        assert old.column_names == ["a", "b"] and sorted(old.column("a").to_pylist()) == [1, 2]
        assert loaded.scan(EqualTo("n", 2), snapshot_id=before).to_arrow().column("a").to_pylist() == [2]
    table.alter(drop="b")
    for loaded in _tables(uri):
        assert loaded.scan().to_arrow().column_names == ["n", "c"] and _values(loaded, "n") == [1, 2, 3]


def test_a_name_that_another_column_takes_over_is_never_misread(tmp_path):
    """Files have no ids: by name, old values would be read as values of the new column."""
    table = _lake(tmp_path, {"0": {"a": [1, 2], "b": ["x", "y"]}})
    uri = served({"lake.t": tmp_path / "lake"})
    stale = client(uri).load_table("lake.t")
    table.alter(drop="a")
    table.alter(add={"a": pa.int64()})
    commit_rows(table, {"b": ["z"], "a": [3]})
    planned, read = _tables(uri)
    for scan in (stale.scan(), planned.scan()):
        with pytest.raises(RESTError, match="passed to another column"):
            scan.to_arrow()
    now = planned.current_snapshot().snapshot_id
    with pytest.raises(RESTError, match="another one than in newer files"):
        planned.scan(snapshot_id=now).to_arrow()
    assert _values(planned, "a", EqualTo("b", "z"), snapshot_id=now) == [3]
    with pytest.raises(FileNotFoundError, match="see-the-table-property"):
        read.scan().to_arrow()
    assert "another one than in newer files" in read.properties["skipstone.manifests"]


def test_a_client_that_loaded_the_table_before_a_rename_is_not_misled(tmp_path):
    table = _lake(tmp_path, {"0": {"a": [1, 2], "b": ["x", "y"]}})
    stale = client(served({"lake.t": tmp_path / "lake"})).load_table("lake.t")
    table.alter(rename={"a": "n"})
    commit_rows(table, {"n": [3], "b": ["z"]})
    with pytest.raises(ValueError, match=r"NameMapping|find field with name"):
        stale.scan().to_arrow()
    assert _values(stale.refresh(), "n") == [1, 2, 3]


def test_deleted_rows_and_older_versions(tmp_path):
    table = _lake(tmp_path, {str(n): {"k": list(range(n * 10, n * 10 + 10))} for n in range(3)})
    uri = served({"lake.t": tmp_path / "lake"})
    versions = {table.version: list(range(30))}
    table.delete("k % 3 = 0")
    versions[table.version] = [k for k in range(30) if k % 3]
    commit_rows(table, {"k": [100]})
    versions[table.version] = [*versions[table.version - 1], 100]
    for loaded in _tables(uri):
        assert {s.snapshot_id for s in loaded.metadata.snapshots} >= set(versions)
        for version, expected in versions.items():
            assert _values(loaded, "k", snapshot_id=version) == expected
            assert _values(loaded, "k", GreaterThan("k", 25), snapshot_id=version) == [k for k in expected if k > 25]
        assert _values(loaded, "k") == versions[table.version] and loaded.scan().count() == len(versions[table.version])
    assert len(planned_paths(_tables(uri)[0].scan(EqualTo("k", 100)))) == 1
    status, answer = request(uri, "/v1/namespaces/lake/tables/t/plan", {"snapshot-id": 999})
    assert (status, answer["error"]["type"]) == (400, "BadRequestException") and "999" in answer["error"]["message"]


def test_deletion_vectors_of_delta_are_refused(tmp_path):
    deltalake = pytest.importorskip("deltalake", reason='deltalake is not installed: pip install -e ".[delta]"')
    from log_lakes import delete_rows, paths_of

    lake = str(tmp_path / "lake")
    for first in (0, 10):
        deltalake.write_deltalake(lake, pa.table({"k": list(range(first, first + 10))}), mode="append")
    ss.create(lake, index_path=tmp_path / "index").close()
    uri = served({"lake.t": {"path": lake, "index_path": tmp_path / "index"}})
    path = next(p for p in paths_of(lake) if pq.read_table(f"{lake}/{p}").column("k")[0].as_py() == 0)
    delete_rows(lake, path, [1, 3])
    planned, read = _tables(uri)
    with pytest.raises(RESTError, match="logs or deletes"):
        planned.scan().to_arrow()
    with pytest.raises(FileNotFoundError):  # there are no manifests
        read.scan().to_arrow()
    assert "logs or deletes" in read.properties["skipstone.manifests"]
    with ss.open(lake, index_path=tmp_path / "index") as table:
        table.sync()
    assert _values(planned, "k", GreaterThan("k", 12)) == list(range(13, 20))  # in files without deletes
    for loaded in (planned.refresh(), read.refresh()):
        assert _values(loaded, "k", snapshot_id=2) == list(range(20))


def test_deletes_and_renames_of_iceberg(tmp_path):
    pytest.importorskip("sqlalchemy", reason='the tests need a catalog: pip install "pyiceberg[sql-sqlite]"')
    from log_lakes import catalog, delete_equal, delete_positions, newest_metadata

    their = catalog(tmp_path).create_table("lake.t", pa.schema([("k", pa.int64()), ("v", pa.string())]))
    lake = tmp_path / "lake" / "t"
    their.append(pa.table({"k": list(range(10)), "v": ["a"] * 10}))
    ss.create(newest_metadata(lake), index_path=tmp_path / "index").close()
    uri = served({"lake.t": {"path": lake, "index_path": tmp_path / "index"}})
    first = their.current_snapshot().snapshot_id
    with their.update_schema() as update:
        update.rename_column("v", "w")
    their.append(pa.table({"k": list(range(10, 20)), "w": ["b"] * 10}))
    for loaded in _tables(uri):
        assert loaded.metadata.table_uuid == their.metadata.table_uuid
        assert _values(loaded, "w", EqualTo("k", 3)) == ["a"]
        assert _values(loaded, "k", EqualTo("w", "b")) == [*range(10, 20)]
        assert loaded.scan(snapshot_id=first).to_arrow().column("v").to_pylist() == ["a"] * 10
    assert len(planned_paths(_tables(uri)[0].scan(EqualTo("w", "b")))) == 1
    path = next(task.file.file_path for task in their.scan(EqualTo("w", "a")).plan_files())
    delete_positions(lake, path, [0, 5])
    for loaded in _tables(uri):
        assert _values(loaded, "k") == sorted({*range(20)} - {0, 5})
    delete_equal(lake, "k", [12])
    with pytest.raises(NotImplementedError, match="equality deletes"):  # by pyiceberg
        _tables(uri)[0].scan().to_arrow()


def test_hudi(tmp_path):
    pytest.importorskip("hudi", reason='hudi is not installed: pip install -e ".[hudi]"')
    from hudi_tables import HudiTable

    hudi = HudiTable(tmp_path / "lake", kind="MERGE_ON_READ")
    write = hudi.begin()
    group = hudi.insert(write, "x", {"a": 1, "b": 2})
    hudi.insert(write, "y", {"c": 3})
    hudi.complete(write)
    ss.create(hudi.folder, index_path=tmp_path / "index").close()
    uri = served({"lake.t": {"path": hudi.folder, "index_path": tmp_path / "index"}})
    for loaded in _tables(uri):
        assert _values(loaded, "v") == [1, 2, 3] and _values(loaded, "v", EqualTo("p", "y")) == [3]
    before = _tables(uri)[0].current_snapshot().snapshot_id
    write = hudi.begin()
    hudi.update(write, group, {"a": 10})
    hudi.complete(write)
    planned, read = _tables(uri)
    with pytest.raises(RESTError, match="logs or deletes"):
        planned.scan().to_arrow()
    with pytest.raises(FileNotFoundError):
        read.scan().to_arrow()
    assert _values(planned, "v", snapshot_id=before) == [1, 2, 3]


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array([1], pa.uint64()), "'odd' is uint64"),
        (pa.array([1], pa.duration("us")), "'odd' is duration"),
        (pa.array([{"x": 1}], pa.struct([("x", pa.uint32())])), "'odd.x' is uint32"),
    ],
)
def test_columns_that_clients_misread_are_refused(tmp_path, column, reason):
    _lake(tmp_path, {"0": {"k": [1], "odd": column}})
    status, answer = request(served({"lake.t": tmp_path / "lake"}), "/v1/namespaces/lake/tables/t")
    assert status == 406 and reason in answer["error"]["message"]


def test_files_with_field_ids_of_their_own_are_refused(tmp_path):
    """Clients follow ids in a file instead of the mapping of names."""
    fields = [pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "2"})]
    fields.append(pa.field("b", pa.int64(), metadata={"PARQUET:field_id": "1"}))
    _lake(tmp_path, {"0": {"a": [1], "b": [10]}})
    pq.write_table(pa.table([[2], [20]], schema=pa.schema(fields)), tmp_path / "lake" / "1.parquet")
    with ss.open(tmp_path / "lake") as table:
        table.sync()
    planned, read = _tables(served({"lake.t": tmp_path / "lake"}))
    assert _values(planned, "b", EqualTo("a", 1)) == [10]
    with pytest.raises(RESTError, match=r"1\.parquet: its columns have their own field ids"):
        planned.scan().to_arrow()
    assert "field ids" in read.properties["skipstone.manifests"]


def test_partition_values_come_from_the_folders(tmp_path):
    """Also if files have a column of that name; null, too."""
    for year, month in ((2023, 1), (2023, "__HIVE_DEFAULT_PARTITION__"), ("__HIVE_DEFAULT_PARTITION__", 2)):
        make_file(tmp_path / "lake", f"year={year}/month={month}/Ä=1/0.parquet", {"k": [1, 2], "month": [7, 8]})
    ss.create(tmp_path / "lake").close()
    uri = served({"lake.t": tmp_path / "lake"})
    for loaded in _tables(uri):
        assert _values(loaded, "month") == [1, 1, 2, 2, None, None]
        assert _values(loaded, "year", EqualTo("month", 2)) == [None, None]
        assert _values(loaded, "k", IsNull("month")) == [1, 2] and _values(loaded, "k", EqualTo("month", 7)) == []
        assert _values(loaded, "month", EqualTo("year", 2023)) == [1, 1, None, None]
    for term in (EqualTo("month", 2), EqualTo("Ä", 1)):
        with pytest.raises(RESTError, match="does not select"):  # pyiceberg 0.12 would find no row
            client(uri).load_table("lake.t").scan(term, selected_fields=("k",)).to_arrow()


def test_dates_and_times_of_partitions(tmp_path):
    rows = {"k": [1, 2], "day": ["2024-01-31", "2024-02-29"], "t": ["2024-01-31 10:00:00", "1969-02-28 00:00:00"]}
    for k, day, moment in zip(*rows.values(), strict=True):
        make_file(tmp_path / "lake", f"day={day}/t={moment.replace(':', '%3A')}/0.parquet", {"k": [k]})
    ss.create(tmp_path / "lake").close()
    uri = served({"lake.t": tmp_path / "lake"})
    for loaded in _tables(uri):
        found = loaded.scan().to_arrow().sort_by("k")
        assert found.column("day").cast(pa.string()).to_pylist() == rows["day"]
        assert found.column("t").cast(pa.string()).to_pylist() == [f"{moment}.000000" for moment in rows["t"]]
        assert _values(loaded, "k", GreaterThan("day", "2024-02-01")) == [2]
        assert _values(loaded, "k", GreaterThan("t", "2024-01-01T00:00:00")) == [1]
    _, answer = request(uri, "/v1/namespaces/lake/tables/t/plan", {})  # as the protocol has them, for other clients
    partitions = [task["data-file"]["partition"] for task in answer["file-scan-tasks"]]
    assert sorted(partitions) == [["2024-01-31", "2024-01-31T10:00:00"], ["2024-02-29", "1969-02-28T00:00:00"]]


def test_files_that_changed_since_the_sync_are_not_planned(tmp_path):
    _lake(tmp_path, {"0": {"k": [1]}, "1": {"k": [2]}})
    planned, _ = _tables(served({"lake.t": tmp_path / "lake"}))
    pq.write_table(pa.table({"k": [3, 4, 5]}), tmp_path / "lake" / "1.parquet")
    assert _values(planned, "k", EqualTo("k", 1)) == [1]
    with pytest.raises(RESTError, match=r"1\.parquet"):
        planned.scan().to_arrow()
    with ss.open(tmp_path / "lake") as table:
        table.sync()
    assert _values(planned, "k") == [1, 3, 4, 5]


def test_an_index_that_lags_prunes_less(tmp_path):
    table = _lake(tmp_path, {"0": {"k": ["a", "z"]}, "1": {"k": ["b", "y"]}})
    table.create_index("k", kind="bloom", maintain="refresh")
    planned, _ = _tables(served({"lake.t": tmp_path / "lake"}))
    make_file(tmp_path / "lake", "2.parquet", {"k": ["c", "x"]})
    table.sync()
    assert planned_paths(planned.scan(EqualTo("k", "m"))) == ["2.parquet"]
    assert _values(planned, "k", EqualTo("k", "c")) == ["c"]


def test_a_killed_server_and_two_servers_with_a_writer(tmp_path):
    table = _lake(tmp_path, {"0": {"k": [0]}})
    catalog = tmp_path / "catalog.toml"
    catalog.write_text('[tables."lake.t"]\npath = "lake"\n')  # relative to the catalog's folder
    with serving_process(catalog) as (uri, process):
        assert _values(_tables(uri)[0], "k") == [0]
        process.kill()
        process.wait()
        with pytest.raises(OSError):
            client(uri)
    seen: list[list[int]] = []
    with serving_process(catalog) as (first, _), serving_process(catalog) as (second, _):
        done = threading.Event()

        def read(uri: str) -> None:
            tables = _tables(uri)
            while not done.wait(0.2):
                for loaded in tables:
                    seen.append(_values(loaded.refresh(), "k"))

        readers = [threading.Thread(target=read, args=(uri,)) for uri in (first, second)]
        for reader in readers:
            reader.start()
        for number in range(1, 8):
            if number == 4:
                table.delete("k = 2")
            commit_rows(table, {"k": [number]})
            for _ in range(3000):  # however slow the machine is, readers meet several versions
                if len(seen) >= number:
                    break
                time.sleep(0.01)
        done.set()
        for reader in readers:
            reader.join()
        assert _values(_tables(first)[0], "k") == _values(_tables(second)[1], "k") == [0, 1, 3, 4, 5, 6, 7]
    states = [[*range(n)] for n in range(1, 5)] + [[0, 1, 3, *range(4, n)] for n in range(4, 9)]
    assert len(seen) > 4 and all(one in states for one in seen), seen


def test_a_table_without_an_index(tmp_path):
    (tmp_path / "lake").mkdir()
    uri = served({"lake.t": tmp_path / "lake"})
    with pytest.raises(NoSuchTableError, match="no Skipstone index"):
        client(uri).load_table("lake.t")
