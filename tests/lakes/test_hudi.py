"""Tables that follow a Hudi timeline: published tables and crafted ones, compared with the `hudi` package."""

from __future__ import annotations

import itertools
import json
import os
import posixpath
import re
import shutil
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from hudi_tables import AVRO, DATA, HudiTable, log_block
from library_versions import has
from log_lakes import multiset

hudi = pytest.importorskip("hudi", reason='hudi is not installed: pip install -e ".[hudi]"')
pytest.importorskip("fastavro")
_ZIPS = Path(__file__).parent / "hudi_tables"
_NAMES = sorted(path.stem for path in _ZIPS.glob("*.zip"))
_TIME = re.compile(r"\d{14,}")


def _unzipped(name, folder):
    with zipfile.ZipFile(_ZIPS / f"{name}.zip") as file:
        file.extractall(folder)
    return folder / name


def _created(path, **more):
    return ss.create(path, index_path=path.parent / "index", **more)


def _opened(path, **more):
    return ss.open(path, index_path=path.parent / "index", **more)


def _values(table, where=None, **more):
    return sorted(table.scan(where, **more).to_table().column("v").to_pylist())


def _slices(table):
    return sorted(
        (posixpath.dirname(one["base"]), one["file_group"], one["slice_instant"], one["base"], sorted(one["logs"]))
        for one in table.slices(latest=True).to_pylist()
    )


def _their_slices(path):
    return sorted(
        (
            one.partition_path,
            one.file_id,
            one.creation_instant_time,
            one.base_file_relative_path(),
            sorted(one.log_files_relative_paths()),
        )
        for one in hudi.HudiTable(str(path)).get_file_slices()
    )


def _check_rows(ours, batches):
    if not batches:
        assert ours.num_rows == 0
        return
    theirs = pa.Table.from_batches(batches)
    assert set(theirs.column_names) == set(ours.column_names)
    assert multiset(ours) == multiset(theirs)


def _timeline(path):
    folder = path / ".hoodie" / "timeline"
    return folder if folder.is_dir() else path / ".hoodie"


def _instants(path):
    return sorted({_TIME.match(name)[0] for name in os.listdir(_timeline(path)) if _TIME.match(name)})


def _requests(table):
    return table.handle.storage.reading().requests


@pytest.mark.some_cases(5)
@pytest.mark.parametrize("name", _NAMES)
def test_slices_columns_and_rows_are_those_of_the_hudi_package(name, tmp_path):
    path = _unzipped(name, tmp_path)
    table, theirs = _created(path), hudi.HudiTable(str(path))
    assert _slices(table) == _their_slices(path)
    assert {f.name: f.type for f in theirs.get_schema()}.items() <= {f.name: f.type for f in table.schema}.items()
    options = hudi.HudiReadOptions().with_hudi_option("hoodie.read.use.read_optimized.mode", "true")
    _check_rows(table.scan(mode="read_optimized").to_table(), theirs.read(options))
    _check_rows(table.scan().to_table(), theirs.read())
    assert table.scan().count() == sum(batch.num_rows for batch in theirs.read())
    assert table.sync() == 1


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("name", [name for name in _NAMES if name != "v6_empty"])
def test_a_table_is_followed_instant_by_instant(name, tmp_path):
    path = _unzipped(name, tmp_path)
    timeline, times = _timeline(path), _instants(path)
    files = {time: [n for n in os.listdir(timeline) if n.startswith(time)] for time in times}
    (tmp_path / "later").mkdir()
    for time in times[1:]:
        for file in files[time]:
            (timeline / file).rename(tmp_path / "later" / file)
    table = _created(path)
    for time in times[1:]:
        for file in files[time]:
            (tmp_path / "later" / file).rename(timeline / file)
        unsynced = _opened(path)
        assert _slices(unsynced) == _their_slices(path)
        assert unsynced.handle.log_position == time or "indexing" in str(files[time])
        table.sync()
        assert _slices(table) == _their_slices(path)
    assert _slices(table) == _slices(ss.create(path, index_path=tmp_path / "other"))


def test_a_table_is_read_as_of_an_instant(tmp_path):
    path = _unzipped("v9_txns_nonpart_nometa", tmp_path)
    table, theirs = _created(path), hudi.HudiTable(str(path))
    for time in _instants(path):
        then = _opened(path, log_version=time)
        options = hudi.HudiReadOptions().with_as_of_timestamp(time)
        assert {one[3] for one in _slices(then)} == {
            s.base_file_relative_path() for s in theirs.get_file_slices(options)
        }
        _check_rows(then.scan().to_table(), theirs.read(options))
    first = _opened(path, log_version=int(_instants(path)[1]))
    assert [len(one[4]) for one in _slices(first)] == [1]  # the package lists the logs of later commits, too
    assert _slices(table) == _their_slices(path)
    with pytest.raises(ss.NotATableError, match="archived"):
        _opened(path, log_version="20200101000000000")


def test_a_look_at_an_unchanged_table_is_two_requests_and_a_sync_costs_what_changed(tmp_path):
    made = HudiTable(tmp_path / "t")
    for number in range(30):
        made.commit_insert(f"p={number}", {str(number): number})
    table = _created(made.folder)
    before = _requests(table)
    assert table.sync() == 1
    assert _requests(table) - before <= 2
    made.commit_insert("p=7", {"new": 7})
    before = _requests(table)
    result = table.sync()
    assert len(result.added) == 1 and not result.removed
    assert _requests(table) - before <= 7  # the properties, the timeline, the commit, the new file's size and footer


def test_record_keys_become_a_secondary_index(tmp_path):
    path = _unzipped("v6_simplekeygen_nonhivestyle_overwritetable", tmp_path)
    table = _created(path)
    table.create_index("_hoodie_record_key", kind="secondary")
    (key,) = table.scan().to_table().column("_hoodie_record_key").to_pylist()
    plan = table.scan(f"_hoodie_record_key = '{key}'")
    assert plan.count() == 1
    assert "secondary" in plan.explain()
    assert table.scan("_hoodie_record_key = 'none'").files().num_rows == 0


def test_a_path_of_a_transformed_value_prunes_nothing(tmp_path):
    path = _unzipped("v6_timebasedkeygen_nonhivestyle", tmp_path)
    table = _created(path)
    rows = table.scan().to_table().select(["id", "ts_str", "_hoodie_partition_path"]).to_pylist()
    for row in rows:  # 2023-04-01T12:01:00.123Z is in 2023/04/01/12
        assert row["ts_str"].replace("-", "/")[:10] == row["_hoodie_partition_path"][:10]
        found = table.scan(f"ts_str = '{row['ts_str']}'").to_table()
        assert found.column("id").to_pylist() == [row["id"]]
        plan = table.scan(f"_hoodie_partition_path = '{row['_hoodie_partition_path']}'")
        assert row["id"] in plan.to_table().column("id").to_pylist()
        assert plan.files().num_rows == 1
    assert table.handle.instant.partitioning == ("_hoodie_partition_path",)


@pytest.mark.parametrize("is_hive", [True, False])
def test_values_of_dropped_partition_columns_come_from_the_path(is_hive, tmp_path):
    names = {
        "hoodie.datasource.write.drop.partition.columns": "true",
        "hoodie.datasource.write.hive_style_partitioning": str(is_hive).lower(),
        "hoodie.datasource.write.partitionpath.urlencode": "true",
        "hoodie.table.keygenerator.class": "org.apache.hudi.keygen.SimpleKeyGenerator",
    }
    made = HudiTable(tmp_path / "t", drops_partition=True, **names)
    write = made.begin()
    for value in ("a%2Fb", "__HIVE_DEFAULT_PARTITION__"):
        made.insert(write, f"p={value}" if is_hive else value, {value: 1})
    made.complete(write)
    table = _created(made.folder)
    found = table.scan().to_table()
    assert dict(zip(found.column("k").to_pylist(), found.column("p").to_pylist(), strict=True)) == {
        "a%2Fb": "a/b",
        "__HIVE_DEFAULT_PARTITION__": None,
    }
    assert table.scan("p = 'a/b'").files().num_rows == 1


def _one_row(tmp_path, version=6, kind="MERGE_ON_READ", **properties):
    made = HudiTable(tmp_path / "t", version, kind, **properties)
    return made, made.commit_insert("p=x", {"a": 1})


@pytest.mark.parametrize("version", [6, 9])
def test_a_log_of_deletes_keeps_no_slice_and_one_of_rows_does(version, tmp_path):
    made, group = _one_row(tmp_path, version)
    made.commit_update(group, {}, ["a"])
    table = _created(made.folder)
    assert table.scan("v = 2").files().num_rows == 0
    with pytest.raises(ss.NotReadableError):
        table.scan("v = 1").fragments()
    made.commit_update(group, {"a": 2})
    table.sync()
    assert table.scan("v = 2").files().num_rows == 3


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("version", [6, 8, 9])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ", "MERGE_ON_READ with Parquet logs"])
@pytest.mark.parametrize(
    "partitions", [("",), ("x", "y"), ("p=x", "p=y"), ("2024/01/02", "2024/01/03"), ("p=a b%2Fc",)]
)
def test_tables_of_every_shape_are_read_as_by_the_hudi_package(version, kind, partitions, tmp_path):
    properties = {
        "hoodie.table.partition.fields": "p" if partitions[0] else "",
        "hoodie.datasource.write.hive_style_partitioning": str(partitions[0].startswith("p=")).lower(),
        "hoodie.datasource.write.partitionpath.urlencode": str("%" in partitions[0]).lower(),
    }
    made = HudiTable(tmp_path / "t", version, kind.split(" ")[0], has_parquet_logs=kind.endswith("logs"), **properties)
    write = made.begin()
    groups = [made.insert(write, name, {f"{i}a": i, f"{i}b": 10 + i}) for i, name in enumerate(partitions)]
    made.complete(write)
    table = _created(made.folder)
    made.commit_update(groups[0], {"0a": 70}, ["0b"])
    dead = made.begin()
    made.update(dead, groups[0], {"0a": 80})
    made.crash(dead)
    made.roll_back(dead)
    write = made.begin("replacecommit" if made.layout == 1 else "clustering")
    made.replace(write, groups[1:], partitions[-1], {"new": 5})
    made.complete(write)
    theirs = hudi.HudiTable(str(made.folder))
    for reader in (_opened(made.folder), table):
        table.sync()
        rows = reader.scan().to_table()
        assert dict(zip(rows.column("k").to_pylist(), rows.column("v").to_pylist(), strict=True)) == made.rows()
        _check_rows(rows, theirs.read())
        assert [s[:4] for s in _slices(reader)] == [s[:4] for s in _their_slices(made.folder)]
        for value in (0, 5, 10, 70, 80):
            wanted = list(made.rows().values()).count(value)
            assert reader.scan(f"v = {value}").count() == wanted
            if has("duckdb", 2):
                assert reader.sql(f"SELECT count(*) FROM self WHERE v = {value}").fetchall() == [(wanted,)]
        if partitions[0]:
            assert reader.scan("_hoodie_partition_path = 'nowhere'").files().num_rows == 0
    options = hudi.HudiReadOptions().with_hudi_option("hoodie.read.use.read_optimized.mode", "true")
    _check_rows(table.scan(mode="read_optimized").to_table(), theirs.read(options))


@pytest.mark.parametrize("broken", ["size", "kind", "cut", "version"])
def test_a_log_that_is_not_understood_may_contain_rows(broken, tmp_path):
    made, group = _one_row(tmp_path)
    write = made.commit_update(group, {}, ["a"])
    (path,) = group.logs
    file = made.folder / path
    data = file.read_bytes()
    file.write_bytes(
        {
            "size": data[:-8] + bytes(8),
            "kind": log_block(9, {0: write.time}),
            "cut": data[: len(data) // 2],
            "version": data[:17] + b"\x07" + data[18:],
        }[broken]
    )
    assert _created(made.folder).scan("v = 2").files().num_rows == 2


def test_an_unknown_part_of_a_timeline_is_refused_by_name(tmp_path):
    made, _ = _one_row(tmp_path / "action")
    (made.timeline / f"{made.tick()}.vanish").write_text("{}")
    with pytest.raises(ss.NotReadableError, match=r"\.vanish"):
        _created(made.folder)
    made, _ = _one_row(tmp_path / "commit")
    made.put(made.tick(), "deltacommit", "completed", b"no json")
    with pytest.raises(ss.NotReadableError, match=r"\.deltacommit: not the metadata"):
        _created(made.folder)
    for name, properties in {
        "version": {"hoodie.table.version": "3"},
        "layout": {"hoodie.timeline.layout.version": "2"},
        "bootstrap": {"hoodie.bootstrap.base.path": "s3://b/t"},
    }.items():
        made, _ = _one_row(tmp_path / name, **properties)
        with pytest.raises(ss.NotReadableError, match=r"hoodie\.properties"):
            _created(made.folder)
    made, _ = _one_row(tmp_path / "name")
    shutil.copy(next(made.folder.glob("p=x/*.parquet")), made.folder / "p=x" / "part-0.parquet")
    with pytest.raises(ss.NotReadableError, match=r"part-0\.parquet"):
        _created(made.folder)
    made, _ = _one_row(tmp_path / "folder")
    shutil.copytree(made.folder / "p=x", made.folder / "copy")
    (made.folder / "copy" / ".hoodie_partition_metadata").unlink()
    with pytest.raises(ss.NotReadableError, match="hoodie_partition_metadata"):
        _created(made.folder)


@pytest.mark.parametrize("plan", [None, b'{"earliestCommitToRetain": null, "totalFilesDeleted": 1}'])
def test_a_state_whose_files_were_cleaned_is_refused(plan, tmp_path):
    """Also if the clean kept a number of file versions, and so names no earliest commit."""
    made, group = _one_row(tmp_path, kind="COPY_ON_WRITE")
    first = max(made.completed_at)
    made.commit_update(group, {"a": 2})
    table = _created(made.folder)
    assert made.clean() == 1
    (clean,) = made.timeline.glob("*.clean")
    if plan is not None:
        clean.write_bytes(plan)
    assert table.sync() == 1
    with pytest.raises(ss.NotATableError, match="cleaned"):
        _opened(made.folder, log_version=first)
    assert _values(_opened(made.folder, log_version=clean.name.split(".")[0])) == [2]


def test_a_restore_undoes_commits(tmp_path):
    made, group = _one_row(tmp_path, kind="COPY_ON_WRITE")
    write = made.commit_update(group, {"a": 2})
    table = _created(made.folder)
    for path in [*made.timeline.glob(f"{write.time}*"), *made.folder.glob(f"*/*_{write.time}.parquet")]:
        path.unlink()
    made.put(made.tick(), "restore", "completed")
    for reader in (_opened(made.folder), table):
        table.sync()
        assert _values(reader) == [1]


def test_columns_are_added_by_commits(tmp_path):
    made, _ = _one_row(tmp_path, kind="COPY_ON_WRITE")
    table = _created(made.folder)
    fields = [*AVRO["fields"], {"name": "w", "type": ["null", "double"]}]
    made.complete(made.begin(), {**AVRO, "fields": fields})
    table.sync()
    assert table.schema.field("w").type == pa.float64()
    assert table.scan("w IS NULL").count() == 1


@pytest.mark.parametrize("version", [6, 9])
def test_a_float_that_widened_is_read_by_its_text_as_hudi_reads_it(version, tmp_path):
    made = HudiTable(tmp_path / "t", version)
    write = made.begin()
    made.insert(write, "p=x", {"a": 1})
    (path,) = (made.folder / "p=x").glob("*.parquet")
    pq.write_table(pq.ParquetFile(path).read().append_column("w", pa.array([0.1], pa.float32())), path)
    write.stats = {"p=x": [{"path": f"p=x/{path.name}"}]}
    fields = [[*AVRO["fields"], {"name": "w", "type": ["null", kind]}] for kind in ("float", "double")]
    made.complete(write, {**AVRO, "fields": fields[0]})
    table = _created(made.folder)
    made.complete(made.begin(), {**AVRO, "fields": fields[1]})
    for reader in (_opened(made.folder), table):
        table.sync()
        assert reader.scan("w = 0.1e0", columns=["w"]).to_table().to_pylist() == [{"w": 0.1}]


def test_a_hudi_table_is_detected(tmp_path):
    made, _ = _one_row(tmp_path)
    assert _created(made.folder).handle.instant.source["kind"] == "hudi"
    with pytest.raises(ss.NotATableError, match="Hudi table"):
        ss.create(made.folder / "p=x")


def test_a_slice_with_a_log_is_merged_by_the_hudi_package(tmp_path):
    made, group = _one_row(tmp_path)
    made.commit_update(group, {"a": 2, "b": 5})
    table = _created(made.folder)
    assert _values(table, "v > 1") == [2, 5]
    assert table.scan("v = 1").count() == 0
    found = table.scan("k = 'b'", columns=["_hoodie_partition_path", "v"]).to_table().to_pylist()
    assert found == [{"_hoodie_partition_path": "p=x", "v": 5}]
    assert table.scan(limit=1).to_table().num_rows == 1
    plan = table.scan()
    assert (plan.min("v"), plan.max("v"), plan.distinct("v").to_pylist()) == (2, 5, [2, 5])
    assert plan.count(by=["p", "v"]).to_pylist() == [{"p": "x", "v": 2, "count": 1}, {"p": "x", "v": 5, "count": 1}]
    newest = table.scan("v < 9", columns=["k"], order_by=[("v", "desc")], limit=1)
    assert newest.to_table().to_pylist() == [{"k": "b"}]
    found = table.lookup(pa.table({"k": ["b", "a"], "v": [5, 5]}), columns=["p"])
    assert (found.to_table().to_pylist(), found.count(), found.min("v")) == ([{"p": "x"}], 1, 5)
    assert _values(table, mode="read_optimized") == [1]


def test_rows_of_a_log_that_is_half_in_flight_are_refused_by_name(tmp_path):
    made, group = _one_row(tmp_path)
    made.commit_update(group, {"a": 2})
    (path,) = group.logs
    with (made.folder / path).open("ab") as file:  # writers append if the storage can
        file.write(log_block(DATA, {0: made.begin().time}))
    plan = _created(made.folder).scan("v = 2")
    assert plan.files().num_rows == 2
    with pytest.raises(ss.NotReadableError, match=r"log\.1.*not done.*Spark"):
        plan.to_table()


@pytest.mark.parametrize(
    "names",
    [
        {"hoodie.record.merge.mode": "CUSTOM", "hoodie.compaction.payload.class": "org.my.Counter"},
        {"hoodie.allow.operation.metadata.field": "true"},  # logs may have deletes that hudi-rs returns
        *(  # hudi-rs would compare the times of commits
            {"hoodie.record.merge.mode": "EVENT_TIME_ORDERING", "hoodie.table.precombine.field": name}
            for name in ("v.w", "V", "none")
        ),
    ],
)
def test_a_merge_that_hudi_rs_does_otherwise_is_refused_by_name(tmp_path, names):
    made, group = _one_row(tmp_path, **names)
    made.commit_update(group, {"a": 2})
    plan = _created(made.folder).scan("v = 3")
    assert plan.files().num_rows == 2
    with pytest.raises(ss.NotReadableError, match="log"):
        plan.to_table()


@pytest.mark.parametrize("name", ["v6_timebasedkeygen_nonhivestyle", "v9_txns_nonpart_nometa"])
def test_rows_between_two_instants_are_those_of_an_incremental_read(name, tmp_path):
    path = _unzipped(name, tmp_path)
    _created(path)
    completed = {}
    for file in os.listdir(_timeline(path)):
        match = re.match(r"(\d{14,})(?:_(\d+))?\.\w*commit$", file)
        if match:
            completed[match[1]] = match[2] or match[1]  # layout 2 counts by completion
    times = ["0", *sorted(completed)]
    for first, last in list(itertools.combinations(times, 2))[::3]:
        options = hudi.HudiReadOptions().with_query_type(hudi.HudiQueryType.Incremental)
        options = options.with_start_timestamp(completed.get(first, first)).with_end_timestamp(completed[last])
        then = _opened(path, log_version=last)
        where = f"_hoodie_commit_time > '{first}' AND _hoodie_commit_time <= '{last}'"
        batches = [batch for batch in hudi.HudiTable(str(path)).read(options) if batch.num_rows]
        _check_rows(then.scan(where).to_table(), batches)


@pytest.mark.parametrize(
    "broken",
    [
        {"partitionToWriteStats": [1]},
        {"partitionToWriteStats": {"p=x": [{"fileId": "a", "path": "../../other/a_0-0-0_1.parquet"}]}},
        {"partitionToWriteStats": {"/etc": []}},
        {"partitionToReplaceFileIds": {"p=x": [7]}},
        {"extraMetadata": {"schema": 7}},
        {"extraMetadata": {"schema": '{"type": "record", "name": "t"}'}},
        {"extraMetadata": {"schema": '{"type": ["int", "string"]}'}},
        {"extraMetadata": {"latest_schema": "{}"}},
    ],
)
def test_metadata_of_a_commit_that_is_not_well_formed_is_refused_by_name(broken, tmp_path):
    made, _ = _one_row(tmp_path)
    table = _created(made.folder)
    made.put(made.tick(), "deltacommit", "completed", json.dumps(broken).encode())
    with pytest.raises(ss.NotReadableError, match=r"\.deltacommit"):
        table.sync()


@pytest.mark.parametrize("version", [6, 9])
def test_commits_that_complete_out_of_order_are_not_missed(version, tmp_path):
    made, group = _one_row(tmp_path, version, "COPY_ON_WRITE")
    slow = made.begin()
    made.insert(slow, "p=x", {"slow": 5})
    made.commit_update(group, {"a": 2})
    table = _created(made.folder)
    then = table.handle.log_position
    assert then.endswith(f"~{slow.time}")
    made.complete(slow)
    assert table.sync() == 2
    assert _values(table) == [2, 5]
    table.handle.pin_log(then)  # as an unpickled handle is pinned
    assert _values(table) == [2]


def test_a_commit_that_was_requested_late_and_completed_early_is_not_missed(tmp_path):
    made, _ = _one_row(tmp_path, kind="COPY_ON_WRITE")
    early = made.tick()  # the clock of another writer is behind
    made.commit_insert("p=x", {"b": 2})
    table = _created(made.folder)
    write = made.begin()
    for path in made.timeline.glob(f"{write.time}.*"):
        path.rename(path.with_name(path.name.replace(write.time, early)))
    write.time = early
    made.insert(write, "p=x", {"c": 3})
    made.complete(write)
    assert _values(_opened(made.folder)) == [1, 2, 3]
    table.sync()
    assert table.scan("v = 3").count() == 1


def test_instants_that_a_savepoint_keeps_do_not_begin_the_timeline(tmp_path):
    made, _ = _one_row(tmp_path, kind="COPY_ON_WRITE")
    first = max(made.completed_at)
    before = ss.create(made.folder, index_path=tmp_path / "before")
    for number in range(3):
        made.commit_insert("p=x", {str(number): number + 5})
    kept = (made.timeline / f"{first}.commit").read_bytes()
    made.archive(1)
    (made.timeline / f"{first}.commit").write_bytes(kept)
    (made.timeline / f"{first}.savepoint").write_bytes(b"")
    _created(made.folder)
    before.sync()
    for table in (before, _opened(made.folder)):
        assert _values(table) == [1, 5, 6, 7]
    assert _values(_opened(made.folder, log_version=first)) == [1]


@pytest.mark.parametrize("metadata", [b"", b"{}", b'{"partitionToWriteStats": {}, "extraMetadata": {}}'])
def test_files_that_commits_do_not_name_are_found_by_listing(metadata, tmp_path):
    made, _ = _one_row(tmp_path, kind="COPY_ON_WRITE", **{"hoodie.table.create.schema": ""})
    for path in made.timeline.glob("*.commit"):
        path.write_bytes(metadata)
    table = _created(made.folder)
    write = made.begin()
    made.insert(write, "p=y", {"b": 2})
    made.put(write.time, write.action, "completed", metadata)
    assert table.schema.names[-3:] == ["k", "v", "p"]  # of a base file
    for reader in (_opened(made.folder), table):
        table.sync()
        assert _values(reader) == [1, 2]


def test_a_partition_without_its_mark_is_known_by_the_commits(tmp_path):
    made, _ = _one_row(tmp_path, kind="COPY_ON_WRITE")
    (made.folder / "p=x" / ".hoodie_partition_metadata").unlink()
    assert _values(_created(made.folder)) == [1]


def test_stats_without_sizes_or_ids_are_enough(tmp_path):
    made, group = _one_row(tmp_path)
    table = _created(made.folder)
    for value, names in enumerate([{"path"}, {"path", "fileId"}, {"fileId"}], start=2):
        write = made.begin()
        made.update(write, group, {"a": value})
        write.stats = {"p=x": [{name: stat[name] for name in names} for stat in write.stats["p=x"]]}
        made.complete(write)
        table.sync()
        assert _values(table) == [value]


def test_rows_are_changed_by_hudi_itself(tmp_path):
    """Hudi keeps its own indexes and timeline, so the verbs refuse, and name what to call."""
    table = _created(_unzipped("v6_trips_8i1u", tmp_path))
    before = table.scan().count()
    for change in (
        lambda: table.delete("true"),
        lambda: table.update({"rider": "'x'"}, "true"),
        lambda: table.upsert(pa.table({"uuid": ["x"], "rider": ["y"]}), on="uuid"),
    ):
        with pytest.raises(ss.InvalidArgumentError, match=r"(?s)Hudi's own writers.*timeline.*affected_files"):
            change()
    assert _opened(tmp_path / "v6_trips_8i1u").scan().count() == before
