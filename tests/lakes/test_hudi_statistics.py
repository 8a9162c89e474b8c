"""Statistics of log files from Hudi's metadata table: slices with logs that they rule out, and what is not believed."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import pytest
import skipstone as ss
from hudi_tables import AVRO, HudiTable, hfile, log_block, statistics

pytest.importorskip("fastavro")
hudi = pytest.importorskip("hudi")
_ZIPS = Path(__file__).parent / "hudi_tables"


def _table(folder, **properties):
    """A table with a slice of a base (v 1), and a log over it (v 5 to 6)."""
    made = HudiTable(folder / "t", 9, "MERGE_ON_READ", **properties)
    write = made.begin()
    group = made.insert(write, "p=x", {"a": 1, "c": 1})
    made.complete(write)
    write = made.begin()
    made.update(write, group, {"a": 5, "b": 6})
    made.complete(write)
    return made, group


def _created(made):
    return ss.create(made.folder, index_path=made.folder.parent / "index")


def _kept(table, where):
    return table.scan(where).files().num_rows > 0


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_slice_with_logs_is_skipped_by_what_the_metadata_table_says_of_them(is_compacted, tmp_path):
    made, group = _table(tmp_path)
    if is_compacted:
        made.compact_statistics()
    table = _created(made)
    assert [v for v in range(9) if _kept(table, f"v = {v}")] == [1, 5, 6]
    assert not _kept(table, "k = 'd'")
    assert _kept(table, "k = 'b'")
    assert _kept(table, "v IS NULL")  # nulls are not counted
    assert table.scan("v >= 5").count() == 2
    assert table.scan("v < 9").count() == 3  # not the rows of base and log together
    assert table.scan("v = 5").to_table().column("k").to_pylist() == ["a"]
    write = made.begin()
    made.update(write, group, {"c": 8})
    made.complete(write)
    assert _kept(ss.open(made.folder, index_path=tmp_path / "index"), "v = 7")  # not synced yet
    table.sync()
    assert not _kept(table, "v = 9")
    assert table.scan("v = 8").to_table().column("k").to_pylist() == ["c"]


def test_what_the_metadata_table_costs_is_a_listing_and_its_files(tmp_path):
    made, _ = _table(tmp_path)
    names = "hoodie.table.metadata.partitions"
    (tmp_path / "other").mkdir()
    other, _ = _table(tmp_path / "other", **{names: "files"})
    with_statistics, without = _created(made), _created(other)
    more = with_statistics.handle.storage.reading().requests - without.handle.storage.reading().requests
    assert 2 <= more <= 3
    assert _kept(without, "v = 7")


def _rewritten(made, values):
    for path in made.column_stats.iterdir():
        path.unlink()
    (made.column_stats / "col-stats-0000-0_0-0-0_20270101000000000.hfile").write_bytes(hfile(values))


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param((5, 6, "LongWrapper", 4, True), id="deleted"),
        pytest.param((None, 6, "LongWrapper", 4), id="no least"),
        pytest.param((5, None, "LongWrapper", 4), id="no greatest"),
        pytest.param((None, None, "LongWrapper", 4), id="neither: nulls alone, or a type that was passed over"),
        pytest.param((6, 5, "LongWrapper", 4), id="the wrong way round"),
        pytest.param((5, 6, "IntWrapper", 3), id="of another type"),
        pytest.param((5, 6, "LongWrapper", 16), id="of a time"),
        pytest.param(("5", "6", "StringWrapper", 7), id="of a text"),
        pytest.param((b"5", b"6", "BytesWrapper", 10), id="of a decimal"),
    ],
)
def test_statistics_that_say_nothing_for_sure_keep_a_slice(bounds, tmp_path):
    made, group = _table(tmp_path)
    (name,) = (Path(path).name for path in group.logs)
    _rewritten(made, [statistics(name, "v", *bounds)])
    assert _kept(_created(made), "v = 7")
    _rewritten(made, [statistics(name, "v", 5, 6, "LongWrapper", 4), statistics(name, "v", *bounds)])
    assert _kept(ss.create(made.folder, index_path=tmp_path / "again"), "v = 7")


@pytest.mark.parametrize(
    ("kind", "wrapper", "bounds", "sample", "is_known"),
    [
        ("double", "DoubleWrapper", (1.0, 2.0), "x = 5.0", True),
        ("double", "DoubleWrapper", (1.0, math.nan), "x = 5.0", False),
        ("double", "DoubleWrapper", (1.0, 2.0), "x > 5.0", False),  # NaN may be there, and is greater
        ("string", "StringWrapper", ("a", "\ud7ff"), "x = '\U0001f600'", True),
        ("string", "StringWrapper", ("a", "\uffff"), "x = '\U0001f600'", False),  # greater, but not in UTF-16
        ({"type": "int", "logicalType": "date"}, "DateWrapper", (0, 9), "x = DATE '2000-01-01'", True),
        ({"type": "int", "logicalType": "date"}, "DateWrapper", (-99999, 9), "x = DATE '2000-01-01'", False),
        ("boolean", "BooleanWrapper", (False, False), "x", True),
        ("int", "IntWrapper", (1, 2), "x = 5", True),
    ],
)
def test_bounds_count_where_every_order_agrees(kind, wrapper, bounds, sample, is_known, tmp_path):
    schema = {**AVRO, "fields": [*AVRO["fields"], {"name": "x", "type": ["null", kind]}]}
    made = HudiTable(tmp_path / "t", 9, "MERGE_ON_READ")
    write = made.begin()
    group = made.insert(write, "p=x", {"a": 1})
    made.complete(write, schema)
    write = made.begin()
    made.update(write, group, {"a": 5})
    made.complete(write, schema)
    (name,) = (Path(path).name for path in group.logs)
    _rewritten(made, [statistics(name, "x", *bounds, wrapper, None)])
    assert _kept(_created(made), sample) is not is_known


@pytest.mark.parametrize("damage", ["cut", "magic", "version", "entries", "sizes", "codec", "zip", "schema", "gone"])
def test_a_metadata_table_that_is_not_understood_is_as_if_it_were_not_there(damage, tmp_path):
    made, group = _table(tmp_path)
    (name,) = (Path(path).name for path in group.logs)
    data = hfile([statistics(name, "v", 5, 6, "LongWrapper", 4)])
    trailer = len(data) - 4096
    fields = data.index(b"\x38\x01\x60\x01", trailer)  # one entry, gzip
    broken = {
        "cut": data[:-10],
        "magic": data[:trailer] + b"x" + data[trailer + 1 :],
        "version": data[:-1] + b"\2",
        "entries": data[: fields + 1] + b"\2" + data[fields + 2 :],
        "sizes": data[:8] + b"\x7f" + data[9:],
        "codec": data[: fields + 3] + b"\7" + data[fields + 4 :],
        "zip": data[:60] + bytes(20) + data[80:],
        "schema": hfile([b"not Avro, but .log. is in it"]),
        "gone": b"",
    }[damage]
    path = made.column_stats / "col-stats-0000-0_0-0-0_20270101000000000.hfile"
    for other in made.column_stats.iterdir():
        other.unlink()
    if damage == "gone":
        made.column_stats.rmdir()
    else:
        path.write_bytes(broken)
    assert _kept(_created(made), "v = 7")
    if damage != "gone":
        path.unlink()
        block = log_block(4, {0: "20270101000000000"}, broken)
        (made.column_stats / ".col-stats-0000-0_20270101000000000.log.1_0-0-0").write_bytes(block)
        assert _kept(ss.create(made.folder, index_path=tmp_path / "again"), "v = 7")


def test_logs_of_which_rows_are_merged_column_by_column_are_not_ruled_out(tmp_path):
    made, _ = _table(tmp_path, **{"hoodie.table.partial.update.mode": "KEEP_VALUES"})
    assert _kept(_created(made), "v = 7")


@pytest.mark.parametrize("is_compacted", [False, True])
def test_what_hudi_itself_wrote_of_its_logs_rules_slices_out(is_compacted, tmp_path):
    with zipfile.ZipFile(_ZIPS / "v9_txns_simple_meta.zip") as file:
        file.extractall(tmp_path)
    path = tmp_path / "v9_txns_simple_meta"
    for one in (path / ".hoodie/metadata/column_stats").iterdir():
        if (one.suffix == ".hfile") is not is_compacted:
            one.unlink()
    table = ss.create(path, index_path=tmp_path / "index")
    rows = table.scan().to_table()
    theirs = hudi.HudiTable(str(path)).read()
    assert sorted(rows.column("txn_id").to_pylist()) == sorted(
        key for batch in theirs for key in batch.column("txn_id").to_pylist()
    )
    assert set(table.scan().files().column("kind").to_pylist()) == {"base", "log", "delete"}
    for where in (
        "txn_ts = 5",
        "merchant_name = 'A'",
        "txn_id > 'U'",
        "txn_date < DATE '2000-01-01'",
        "currency = 'A'",
    ):
        assert not _kept(table, where)
    for name in ("txn_ts", "merchant_name", "txn_id", "txn_date", "txn_datetime", "is_international"):
        for value in set(rows.column(name).drop_null().to_pylist()):
            count = rows.column(name).to_pylist().count(value)
            assert table.scan(ss.col(name) == value).count() == count
