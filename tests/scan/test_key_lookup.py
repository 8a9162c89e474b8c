"""Look-ups of many keys in one call: exactly the rows that contain one of the keys, for any coverage of the index."""

from __future__ import annotations

import decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
import skipstone.engine.scan.lookup as module

MANY = 1500  # more than are made an IN


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    draw = np.random.default_rng(0)
    for at in range(4):
        rows = {
            "a": pa.array(draw.integers(0, 20_000, 5_000), pa.int32()),
            "s": pa.array([f"k{v}" for v in draw.integers(0, 50, 5_000)]),
            "f": draw.random(5_000),
            "n": pa.array(range(at * 5_000, at * 5_000 + 5_000), pa.int64()),
        }
        (tmp_path / f"p={at % 2}").mkdir(exist_ok=True)
        pq.write_table(pa.table(rows), tmp_path / f"p={at % 2}" / f"{at}.parquet", row_group_size=1_000)
    return ss.create(tmp_path)


def _expected(table: ss.Table, wanted: set) -> int:
    return sum(v in wanted for v in table.scan(columns=["a"]).to_table().column("a").to_pylist())


def test_an_index_counts_without_a_data_file(table: ss.Table) -> None:
    table.create_index("a", kind="secondary")
    keys = pa.table({"a": pa.array(range(0, 20_000, 11), pa.int64())})
    plan = table.lookup(keys, columns=["n"])
    step = next(step for step in plan.steps if step.name == "keys")
    assert (step.index, step.uncovered) == ("secondary(a)", 0)
    before = table.handle.storage.reading()
    plan.count(check=False)
    assert table.handle.storage.reading() == before, "counted by the index alone"
    assert plan.to_table().num_rows == _expected(table, set(range(0, 20_000, 11)))


KEYS = {
    "int64": pa.array([1, 2, 3, None, 99_999], pa.int64()),
    "chunks": pa.chunked_array([[1, 2], [3]], pa.int16()),
    "list": [1, 2, 3],
    "decimal": pa.array([decimal.Decimal(1), decimal.Decimal(2), decimal.Decimal(3)]),
    "dictionary": pa.array([1, 2, 3, 3, 1], pa.int32()).dictionary_encode(),
}


def test_keys_of_any_form(table: ss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW_KEYS", 0)
    expected = _expected(table, {1, 2, 3})
    for is_indexed in (False, True):
        if is_indexed:
            table.create_index("a", kind="secondary")
        for name, keys in KEYS.items():
            assert table.lookup(keys, on="a").count() == expected, (name, is_indexed)


def test_wrong_keys_are_refused(table: ss.Table) -> None:
    with pytest.raises(ss.SchemaError, match="no column 'zz'"):
        table.lookup(pa.table({"zz": range(3_000)}))
    with pytest.raises(ss.SchemaError, match="the keys have no column"):
        table.lookup(pa.table({"a": [1]}), on="b")
    numbers = pa.table({"a": pa.array([1.5, 2.0, 2.0**70, float("nan"), -1.0] * 400)})
    assert table.lookup(numbers).count() == _expected(table, {2}), "a key that is no value of the column equals none"
    wide = pa.table({"a": pa.array([2**63, 2**64 - 1, 3] * 400, pa.uint64())})
    assert table.lookup(wide).count() == _expected(table, {3})
    with pytest.raises(ss.SchemaError, match="keys of 'a' are string"):
        table.lookup(pa.table({"a": [f"x{i}" for i in range(3_000)]}))
    with pytest.raises(ss.SkipstoneError, match="on="):
        table.lookup([1, 2])
    with pytest.raises(ss.InvalidArgumentError, match="on= accepts names of columns, not 1"):
        table.lookup("a", on=[1])
    with pytest.raises(ss.SkipstoneError, match="one column or more"):
        table.lookup(pa.table({}))
    assert table.lookup(table.schema.empty_table().select(["a", "s"])).to_table().num_rows == 0


def test_a_damaged_run_is_ignored_and_its_files_are_read(table: ss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW_KEYS", 0)
    monkeypatch.setattr(module, "SPREAD_SHARE", 9.0)
    table.create_index("a", kind="secondary")
    run = Path(table.handle.index_storage.root, table.handle.instant.indexes[-1].runs[0].path)
    data = bytearray(run.read_bytes())
    for at in range(100, len(data) - 4_000, 997):
        data[at] ^= 0x10
    run.write_bytes(data)
    table.handle.forget()
    opened = ss.open(table.location)
    with pytest.warns(UserWarning, match="damaged"):
        found = opened.lookup(pa.array(range(0, 20_000, 7)), on="a").to_table().num_rows
    assert found == _expected(table, set(range(0, 20_000, 7)))
    with pytest.raises(ss.CorruptionError):
        ss.open(table.location, strict=True).lookup(pa.array(range(0, 20_000, 7)), on="a").to_table()


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("reader", ["auto", "pyarrow", "duckdb"])
@pytest.mark.parametrize("is_indexed", [True, False])
def test_keys_in_many_rows_of_all_files_are_compared_during_the_read(
    tmp_path: Path, is_indexed: bool, reader: str
) -> None:
    values = [f"user-{(i * 7) % 4_000}" if i % 11 else None for i in range(12_000)]
    for number in range(6):
        part = pa.table({"k": values[number::6], "n": range(number, 12_000, 6)})
        pq.write_table(part, tmp_path / f"{number}.parquet", row_group_size=1_000)
    table = ss.create(tmp_path)
    if is_indexed:
        table.create_index("k", kind="secondary")
    wanted = [f"user-{i}" for i in range(0, 4_000, 2)]
    expected = [i for i, value in enumerate(values) if value in set(wanted)]
    plan = table.lookup([*wanted, None, "no user"], on="k", reader=reader)
    assert sorted(plan.to_table().column("n").to_pylist()) == expected
    assert plan.count() == table.lookup(wanted, on="k").positions().num_rows == len(expected)
    assert ("the index is not used" in plan.explain()) == (is_indexed and reader != "pyarrow")
    narrow = table.lookup([f"user-{i}" for i in range(2_000)], on="k", columns=["n"], limit=5).to_table()
    assert narrow.num_rows == 5 and all(int(values[n].split("-")[1]) < 2_000 for n in narrow.column("n").to_pylist())


def _table(root: Path, values: pa.Array, files: int = 5) -> ss.Table:
    size = -(-len(values) // files)
    for number in range(files):
        part = values.slice(number * size, size)
        rows = {"k": part, "n": pa.array(range(number * size, number * size + len(part)), pa.int64())}
        pq.write_table(pa.table(rows), root / f"{number}.parquet", row_group_size=100)
    return ss.create(root)


@pytest.mark.parametrize("is_indexed", [False, True])
def test_positions_of_rows(tmp_path: Path, is_indexed: bool) -> None:
    table = _table(tmp_path, pa.array([f"v{i % 2500}" for i in range(5000)]))
    if is_indexed:
        table.create_index("k", kind="secondary")
    for keys in ([f"v{i}" for i in range(900, 900 + MANY)], ["v17", "v2499", "none"], []):
        for plan in (table.lookup(keys, on="k"), table.scan(ss.col("k").is_in(keys), limit=1, columns=["n"])):
            wanted = [(f"{i // 1000}.parquet", i % 1000) for i in range(5000) if f"v{i % 2500}" in set(keys)]
            positions = plan.positions()
            assert positions.schema == pa.schema([("path", pa.string()), ("row", pa.int64())])
            assert sorted(zip(*positions.to_pydict().values(), strict=True)) == wanted
            affected = plan.affected_files()
            assert affected.schema == plan.files().schema
            assert sorted(affected["path"].to_pylist()) == sorted({path for path, _ in wanted})
    (tmp_path / "3.parquet").unlink()
    with pytest.raises(ss.NotReadableError, match=r"3\.parquet"):
        table.scan("n % 2 = 0").positions()


@pytest.mark.parametrize("is_indexed", [False, True])
def test_keys_of_several_columns_in_a_slice_with_a_rollback(tmp_path: Path, is_indexed: bool) -> None:
    rows = pa.table({"a": [i // 32 for i in range(96)], "b": ["x", "y"] * 48})
    pq.write_table(rows, tmp_path / "base")
    table = ss.create(tmp_path / "t", schema=rows.schema)
    files = {"path": [f"{tmp_path}/base", f"{tmp_path}/log"], "size_bytes": [(tmp_path / "base").stat().st_size, 9]}
    files |= {"row_count": [96, 0], "kind": ["base", "rollback"], "file_group": ["g"] * 2, "slice_instant": ["1"] * 2}
    with table.transaction() as tx:
        tx.add_files(pa.table(files))
    if is_indexed:
        table.create_index("b", kind="secondary")
    plan = table.lookup(pa.table({"a": [1, 7], "b": ["x", "y"]}))
    assert plan.to_table().to_pylist() == [{"a": 1, "b": "x"}] * 16
    assert plan.positions()["row"].to_pylist() == list(range(32, 64, 2))
    assert (plan.count(), plan.dataset().count_rows(), plan.max("a")) == (16, 16, 1)
    assert plan.count(by="b").to_pylist() == [{"b": "x", "count": 16}]
    assert table.lookup(pa.table({"a": [1], "b": ["xx"]})).files().num_rows == 0


def test_deleted_rows_have_no_position_and_are_counted(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    from log_lakes import delete_rows, paths_of

    rows = pa.table({"k": [1, 2, 1, 2, 1]})
    deltalake.write_deltalake(str(tmp_path), rows, configuration={"delta.enableDeletionVectors": "true"})
    (path,) = paths_of(tmp_path)
    delete_rows(tmp_path, path, [0, 3])
    table = ss.create(tmp_path)
    assert table.scan("k = 1").positions().to_pydict() == {"path": [path, path], "row": [2, 4]}
    table.create_index("k", kind="secondary")
    assert table.lookup([2], on="k").positions().to_pydict() == {"path": [path], "row": [1]}


@pytest.mark.parametrize("kind", [pa.time64("ns"), pa.timestamp("ns", "UTC"), pa.duration("ns")], ids=str)
def test_nanoseconds_of_keys_are_not_cut_off(tmp_path: Path, kind: pa.DataType) -> None:
    """Python's times have none, so the greatest key is below the last file's least value."""
    table = _table(tmp_path, pa.array(range(5000), pa.int64()).cast(kind))
    for first in (0, 499, 1201, 3003):
        keys = pa.array(range(first, first + MANY), pa.int64()).cast(kind)
        plan = table.lookup(pa.table({"k": keys}))
        assert sorted(plan.to_table()["n"].to_pylist()) == list(range(first, first + MANY))
    if not pa.types.is_time(kind):
        pandas_keys = keys[:2].to_pandas().tolist()  # Timestamp, Timedelta
        for few in (pandas_keys, {*pandas_keys}):
            assert sorted(table.lookup(few, on="k").to_table()["n"].to_pylist()) == [3003, 3004]
