"""What reviewers found: each a row lost or invented, a table destroyed, or an error that was not ours."""

from __future__ import annotations

import os
import shutil
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
import skipstone.engine.scan.plan as plans
from faults import flipped, index_files


def _file(root: Path, name: str, values: list[int]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": values}), root / name)
    return root / name


def _values(table: ss.Table, where: str | None = None) -> list[int]:
    return sorted(table.scan(where).to_table().column("a").to_pylist())


def test_a_handle_that_outlives_its_table_reads_and_destroys_nothing_of_the_next(tmp_path: Path) -> None:
    _file(tmp_path, "one.parquet", [1, 2])
    old = ss.create(tmp_path)
    old.files()
    shutil.rmtree(tmp_path / ".skipstone")
    _file(tmp_path, "one.parquet", [7, 8, 9])
    ss.create(tmp_path)
    for act in (lambda: old.create_index("a", kind="bloom"), lambda: _write(old, [5])):
        with pytest.raises(ss.CommitConflictError, match="open"):
            act()
    assert _values(ss.open(tmp_path)) == [7, 8, 9]
    assert _values(old.refresh()) == [7, 8, 9]
    assert _values(ss.open(tmp_path), "a = 8") == [8]


def _write(table: ss.Table, values: list[int]) -> None:
    with table.transaction() as tx:
        tx.write(pa.table({"a": values}))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_needle_among_codes_and_dotted_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(plans, "_THREADS", threads)
    count = 5000
    coded = {f"s{j}": [f"v{i % 3}" for i in range(count)] for j in range(4)}
    pq.write_table(pa.table({"a": range(count), **coded}), tmp_path / "coded.parquet")
    found = ss.create(tmp_path).scan("a = 4321").to_table().to_pylist()
    assert found == [{"a": 4321, **{f"s{j}": f"v{4321 % 3}" for j in range(4)}}]
    dotted = {
        "a": range(count),
        "s": [{"p": i, "q": -i} for i in range(count)],
        "w1": [f"w{i}" for i in range(count)],
        "w2": range(count),
        "w3": range(count),
        "s.p": [f"t{i}" for i in range(count)],
    }
    pq.write_table(pa.table(dotted), (tmp_path / "dotted").with_suffix(".parquet"))
    table = ss.create(tmp_path, files=["dotted.parquet"], index_path=tmp_path / "index")
    expected = {"a": 5, "s": {"p": 5, "q": -5}, "w1": "w5", "w2": 5, "w3": 5, "s.p": "t5"}
    assert table.scan("a = 5").to_table().to_pylist() == [expected]


def test_damaged_pages_are_our_error(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    rows = pa.table({"a": range(5000), "s": [f"u{i}" for i in range(5000)]})
    pq.write_table(rows, path, compression="none", use_dictionary=False)
    table, stat = ss.create(tmp_path), path.stat()
    data = bytearray(path.read_bytes())
    data[4 : len(data) - 3000] = bytes(len(data) - 3004)
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    for read in (
        lambda: table.scan("a = 5").to_table(),
        lambda: table.scan("a > 5 AND s > 'u'").count(),
        lambda: list(table.scan().to_batches()),
    ):
        with pytest.raises(ss.CorruptionError, match=r"x\.parquet"):
            read()
    with pytest.warns(UserWarning, match=r"x\.parquet"):
        table.create_index("a", kind="bloom")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.decimal128(10, 2), [0.129]),
        (pa.float64(), [Decimal("12345678901234567.89")]),
        (pa.struct([("a", pa.int64())]), [{"a": 1, "b": 2}]),
        (pa.list_(pa.int64()), [["1"]]),
        (pa.list_(pa.float32()), [[0.1]]),
    ],
)
def test_nothing_is_written_that_would_come_back_changed(tmp_path: Path, kind: pa.DataType, values: list) -> None:
    table = ss.create(tmp_path / "t", schema=pa.schema([("x", kind)]))
    with pytest.raises(ss.SchemaError, match="'x'"), table.transaction() as tx:
        tx.write(pa.table({"x": values}))
    assert ss.open(tmp_path / "t").version == 1


def test_structs_of_another_order_are_read_by_name(tmp_path: Path) -> None:
    first, second = pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64()), ("a", pa.int64())])
    pq.write_table(pa.table({"x": pa.array([{"a": 1}, None], first)}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"x": pa.array([{"b": 2, "a": 3}], second)}), tmp_path / "2.parquet")
    table = ss.create(tmp_path)
    assert table.scan("x.b = 2").to_table().to_pylist() == [{"x": {"a": 3, "b": 2}}]
    assert table.scan("x.a = 1").to_table().to_pylist() == [{"x": {"a": 1, "b": None}}]
    assert table.scan("x IS NULL").count() == 1


def test_a_file_added_again_is_followed_again(tmp_path: Path) -> None:
    _file(tmp_path, "one.parquet", [1])
    path = _file(tmp_path, "two.parquet", [2])
    table, stat, data = ss.create(tmp_path), path.stat(), path.read_bytes()
    with table.transaction() as tx:
        tx.remove(["two.parquet"])
    with table.transaction() as tx:
        tx.add_files(["two.parquet"])
    path.unlink()
    table.sync()
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    table.sync()
    assert _values(table) == [1, 2]


def test_a_lake_that_is_not_mounted_is_not_emptied(tmp_path: Path) -> None:
    _file(tmp_path / "lake", "one.parquet", [1])
    table = ss.create(tmp_path / "lake", index_path=tmp_path / "index")
    shutil.rmtree(tmp_path / "lake")
    with pytest.raises(ss.NotATableError, match="directory"):
        table.sync()
    assert table.files().num_rows == 1


@pytest.mark.parametrize("kind", ["manifest", "stats", "filter", "instant"])
def test_verify_finds_and_does_not_raise(tmp_path: Path, kind: str) -> None:
    _file(tmp_path, "one.parquet", [1, 2])
    table = ss.create(tmp_path)
    table.create_index("a", kind="bloom")
    path = index_files(table)[kind][0]
    table.forget()
    for offset in (10, path.stat().st_size // 2):
        with flipped(path, offset):
            assert {f.kind for f in table.verify(deep=True)} == {"damaged"}
            assert {f.kind for f in table.verify()} <= {"damaged"}
        table.forget()
    assert table.verify(deep=True) == []


def test_files_elsewhere_keep_their_names(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    with table.transaction() as tx:
        tx.add_files(pa.table({"path": ["s3://bucket//x.parquet"], "size_bytes": [1], "row_count": [1]}))
    assert table.files().column("path").to_pylist() == ["s3://bucket//x.parquet"]


@pytest.mark.parametrize("counts", [{"null_count": -1}, {"null_count": 11}, {"null_count": 10, "min": 1, "max": 9}])
def test_statistics_that_cannot_be_are_refused(tmp_path: Path, counts: dict) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    told = {"path": ["x.parquet"], "size_bytes": [1], "row_count": [10], "stats": [{"a": counts}]}
    with pytest.raises(ss.SchemaError, match="'a'"), table.transaction() as tx:
        tx.add_files(pa.table(told))


@pytest.mark.parametrize("given", [5, [5], b"x", {"x": 1}])
def test_paths_that_are_none(tmp_path: Path, given: object) -> None:
    _file(tmp_path, "one.parquet", [1])
    table = ss.create(tmp_path)
    for act in ("add_files", "remove"):
        with pytest.raises(ss.InvalidArgumentError), table.transaction() as tx:
            getattr(tx, act)(given)
    assert table.version == 1
