"""Many keys looked up at once: the rows of a semi-join, whatever the index covers."""

from __future__ import annotations

import decimal
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import live_paths

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string()), ("f", pa.float64()), ("n", pa.int64())])
A = st.none() | st.integers(-3, 30)
S = st.none() | st.sampled_from(["", "x", "x\x00", "y", "ü", "\x01"])
F = st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")])
ROW = st.tuples(A, S, F)


def _table(rows: list[tuple], first: int) -> pa.Table:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    return pa.table([*columns, list(range(first, first + len(rows)))], schema=SCHEMA)


def _plain(value: object) -> object:
    """A value as it equals others: NaN itself, a zero every zero."""
    if isinstance(value, float):
        return "nan" if value != value else value + 0.0
    return value


def _semi_join(rows: pa.Table, keys: pa.Table) -> list[int]:
    wanted = {tuple(map(_plain, key.values())) for key in keys.to_pylist()}
    wanted = {key for key in wanted if None not in key}
    return sorted(
        row["n"] for row in rows.to_pylist() if tuple(_plain(row[name]) for name in keys.column_names) in wanted
    )


def _found(table: ss.Table, keys: object, on: object = None) -> list[int]:
    plan = table.lookup(keys, on)
    rows = plan.to_table()
    assert rows.schema == table.schema
    numbers = sorted(rows.column("n").to_pylist())
    assert plan.count() == table.lookup(keys, on).count() == len(numbers)
    named = table.lookup(keys, on, columns=["n"]).to_table()
    assert sorted(named.column("n").to_pylist()) == numbers
    explained = plan.explain()  # of one key, =
    assert "IN (" in explained or " = " in explained or not numbers
    return numbers


@settings(max_examples=examples(10, 1000))
@given(data=st.data())
def test_it_is_a_semi_join_whatever_the_index_covers(data: st.DataObject) -> None:
    import skipstone.engine.scan.lookup as module

    few = data.draw(st.sampled_from([0, 0, 1024]))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FEW_KEYS", few)
        patch.setattr(module, "SPREAD_SHARE", data.draw(st.sampled_from([0.01, 9.0])))
        table = ss.create(folder, schema=SCHEMA)
        count = 0
        index = data.draw(st.none() | st.lists(st.sampled_from("asf"), min_size=1, max_size=3, unique=True))
        if index:
            table.create_index(index, kind="secondary", maintain=data.draw(st.sampled_from(["commit", "refresh"])))
        every = []
        for step in data.draw(
            st.lists(st.sampled_from(["write", "write", "add", "remove", "refresh", "optimize"]), max_size=6)
        ):
            if step in ("write", "add"):
                rows = _table(data.draw(st.lists(ROW, min_size=1, max_size=12)), count)
                count += len(rows)
                with table.transaction() as tx:
                    if step == "write":
                        tx.write(rows)
                    else:
                        pq.write_table(rows, Path(folder, f"f{count}.parquet"), row_group_size=5)
                        tx.add_files([f"f{count}.parquet"])
                every.append(rows)
            elif step == "remove" and every:
                paths = live_paths(table)
                gone = data.draw(st.sampled_from(paths)) if paths else None
                if gone:
                    numbers = set(pq.read_table(Path(folder, gone), partitioning=None).column("n").to_pylist())
                    with table.transaction() as tx:
                        tx.remove([gone])
                    every = [
                        rows.filter(pa.array([n not in numbers for n in rows.column("n").to_pylist()], pa.bool_()))
                        for rows in every
                    ]
            elif step == "refresh" and index:
                table.refresh_index(index, kind="secondary")
            elif step == "optimize":
                table.optimize()
        rows = pa.concat_tables(every) if every else _table([], 0)
        on = data.draw(st.lists(st.sampled_from("asf"), min_size=1, max_size=3, unique=True))
        keys = _table(data.draw(st.lists(ROW, max_size=8)), 0).select(on)
        assert _found(table, keys) == _semi_join(rows, keys)


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


def test_only_pages_with_rows_are_read_where_the_index_covers(table: ss.Table) -> None:
    table.create_index("a", kind="secondary")
    keys = pa.table({"a": pa.array(range(0, 20_000, 11), pa.int64())})
    plan = table.lookup(keys, columns=["n"])
    step = next(step for step in plan.steps if step.name == "keys")
    assert (step.index, step.uncovered) == ("secondary(a)", 0)
    before = table.handle.storage.reading()
    plan.count(check=False)
    assert table.handle.storage.reading() == before, "counted by the index alone"
    assert plan.to_table().num_rows == _expected(table, set(range(0, 20_000, 11)))


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([1, 2, 3, None, 99_999], pa.int64()),
        pa.chunked_array([[1, 2], [3]], pa.int16()),
        [1, 2, 3],
        pa.array([decimal.Decimal(1), decimal.Decimal(2), decimal.Decimal(3)]),
        pa.array([1, 2, 3, 3, 1], pa.int32()).dictionary_encode(),
    ],
    ids=["int64", "chunks", "list", "decimal", "dictionary"],
)
@pytest.mark.parametrize("is_indexed", [False, True])
def test_keys_come_in_any_form(
    table: ss.Table, keys: object, is_indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import skipstone.engine.scan.lookup as module

    monkeypatch.setattr(module, "FEW_KEYS", 0)
    if is_indexed:
        table.create_index("a", kind="secondary")
    assert table.lookup(keys, on="a").count() == _expected(table, {1, 2, 3})


def test_a_partition_column_may_be_part_of_the_key(table: ss.Table) -> None:
    table.create_index("a", kind="secondary")
    keys = pa.table({"p": pa.array([1, 1, 0], pa.int32()), "a": [5, 6, 7]})
    rows = table.scan().to_table().to_pylist()
    expected = sorted(r["n"] for r in rows if (r["p"], r["a"]) in {(1, 5), (1, 6), (0, 7)})
    assert sorted(table.lookup(keys).to_table().column("n").to_pylist()) == expected


def test_what_is_wrong_with_keys_is_told(table: ss.Table) -> None:
    with pytest.raises(ss.SchemaError, match="no column 'zz'"):
        table.lookup(pa.table({"zz": range(3_000)}))
    with pytest.raises(ss.SchemaError, match="the keys have no column"):
        table.lookup(pa.table({"a": [1]}), on="b")
    numbers = pa.table({"a": pa.array([1.5, 2.0, 2.0**70, float("nan"), -1.0] * 400)})
    assert table.lookup(numbers).count() == _expected(table, {2}), "what is no value of the column equals none"
    wide = pa.table({"a": pa.array([2**63, 2**64 - 1, 3] * 400, pa.uint64())})
    assert table.lookup(wide).count() == _expected(table, {3})
    with pytest.raises(ss.SchemaError, match="keys of 'a' are string"):
        table.lookup(pa.table({"a": [f"x{i}" for i in range(3_000)]}))
    with pytest.raises(ss.SkipstoneError, match="on="):
        table.lookup([1, 2])
    with pytest.raises(ss.InvalidArgumentError, match="on= takes names of columns, not 1"):
        table.lookup("a", on=[1])
    with pytest.raises(ss.SkipstoneError, match="one column or more"):
        table.lookup(pa.table({}))
    assert (
        table.lookup(pa.table({"a": pa.array([], pa.int32()), "s": pa.array([], pa.string())})).to_table().num_rows == 0
    )


def test_a_damaged_run_is_left_out_and_its_files_are_compared(table: ss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    import skipstone.engine.scan.lookup as module

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


@pytest.mark.parametrize("reader", ["auto", "pyarrow", "duckdb"])
@pytest.mark.parametrize("is_indexed", [True, False])
def test_keys_in_many_rows_of_all_files_are_compared_while_these_are_read(
    tmp_path: Path, is_indexed: bool, reader: str
) -> None:
    values = [f"user-{(i * 7) % 4_000}" if i % 11 else None for i in range(24_000)]
    for number in range(6):
        part = pa.table({"k": values[number::6], "n": range(number, 24_000, 6)})
        pq.write_table(part, tmp_path / f"{number}.parquet", row_group_size=1_000)
    table = ss.create(tmp_path)
    if is_indexed:
        table.create_index("k", kind="secondary")
    wanted = [f"user-{i}" for i in range(0, 4_000, 2)]
    expected = [i for i, value in enumerate(values) if value in set(wanted)]
    plan = table.lookup([*wanted, None, "nobody"], on="k", reader=reader)
    assert sorted(plan.to_table().column("n").to_pylist()) == expected
    assert plan.count() == table.lookup(wanted, on="k").positions().num_rows == len(expected)
    assert ("the index is not used" in plan.explain()) == (is_indexed and reader != "pyarrow")
    narrow = table.lookup([f"user-{i}" for i in range(2_000)], on="k", columns=["n"], limit=5).to_table()
    assert narrow.num_rows == 5 and all(int(values[n].split("-")[1]) < 2_000 for n in narrow.column("n").to_pylist())
