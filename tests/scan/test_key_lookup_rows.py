"""Many keys looked up at once: the rows that hold one of them, all and only these, whatever an index knows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import predicate_strategies as base
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_in_use import kernels
from lake_strategies import data_schemas
from oracle import multiset
from skipstone.base.ordered_keys import ordered_class
from skipstone.engine.parquet.leaves import leaf_array
from skipstone.engine.scan import lookup

MANY = 1500  # more than are made an IN


def _table(root: Path, values: pa.Array, files: int = 5) -> ss.Table:
    size = -(-len(values) // files)
    for number in range(files):
        part = values.slice(number * size, size)
        rows = {"k": part, "n": pa.array(range(number * size, number * size + len(part)), pa.int64())}
        pq.write_table(pa.table(rows), root / f"{number}.parquet", row_group_size=100)
    return ss.create(root)


@pytest.mark.parametrize("is_indexed", [False, True])
def test_extremes_are_of_the_rows_that_were_looked_up(tmp_path: Path, is_indexed: bool) -> None:
    """Nothing is asked of the row groups of a look-up but its keys: that all their rows match is not so."""
    table = _table(tmp_path, pa.array([f"v{i % 2500}" for i in range(5000)]))
    if is_indexed:
        table.create_index("k", kind="secondary")
    keys = pa.table({"k": [f"v{i}" for i in range(150, 150 + MANY)]})
    plan = table.lookup(keys)
    assert (plan.min("n"), plan.max("n")) == (150, 2500 + 149 + MANY)
    assert plan.count() == plan.to_table().num_rows == 2 * MANY
    assert (plan.min("k"), plan.max("k")) == (min(keys["k"].to_pylist()), max(keys["k"].to_pylist()))


@pytest.mark.parametrize("is_indexed", [False, True])
def test_where_rows_lie(tmp_path: Path, is_indexed: bool) -> None:
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


def test_deleted_rows_lie_nowhere_and_are_counted(tmp_path: Path) -> None:
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
    """Python's times have none: the greatest key was one below, and the last file was not looked at."""
    table = _table(tmp_path, pa.array(range(5000), pa.int64()).cast(kind))
    for first in (0, 499, 1201, 3003):
        keys = pa.array(range(first, first + MANY), pa.int64()).cast(kind)
        plan = table.lookup(pa.table({"k": keys}))
        assert sorted(plan.to_table()["n"].to_pylist()) == list(range(first, first + MANY))


@pytest.mark.parametrize("count", [3, MANY])
def test_keys_of_a_type_that_is_none_are_refused(tmp_path: Path, count: int) -> None:
    table = _table(tmp_path, pa.array(range(100), pa.int64()))
    with pytest.raises(ss.SchemaError, match="'k' are list"):
        table.lookup(pa.table({"k": [[1]] * count}))


def _key(row: dict, names: list[str]) -> tuple | None:
    """What a row holds in some columns, so that equal values are equal; None where one is null."""
    values = [row[name] for name in names]
    return None if None in values else tuple(base._key(value, value) for value in values)


@st.composite
def _tables(draw: st.DrawFn, root: str, schema: pa.Schema, names: list[str]) -> tuple[ss.Table, list[pa.Table]]:
    """A table with some secondary indexes, made before some of its files and after others; and its rows."""
    table, parts = ss.create(root, schema=schema), []
    for number in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(0, 2))):
            columns = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
            if columns not in [row["columns"] for row in table.indexes().to_pylist() if row["kind"] == "secondary"]:
                table.create_index(columns, kind="secondary", maintain=draw(st.sampled_from(["commit", "refresh"])))
        rows = draw(base.tables(schema, max_rows=16))
        parts.append(rows)
        with table.transaction() as tx:
            if draw(st.booleans()):
                tx.write(rows)
            else:
                pq.write_table(rows, Path(root, f"{number}.parquet"), row_group_size=draw(st.integers(1, 9)))
                tx.add_files([f"{number}.parquet"])
    return table, parts


@settings(max_examples=examples(4))
@given(data=st.data())
def test_a_look_up_finds_the_rows_that_hold_a_key(data: st.DataObject) -> None:
    """Keys of any columns, against indexes of them, of the first of them, of others, and of none."""
    schema = data.draw(data_schemas())
    leaves = [n for n, kind in base.leaf_columns(schema).items() if ordered_class(kind) is not None]
    names = data.draw(st.lists(st.sampled_from(leaves), min_size=1, max_size=3, unique=True))
    with tempfile.TemporaryDirectory() as folder:
        table, parts = data.draw(_tables(folder, schema, leaves))
        some = pa.concat_tables([*parts, data.draw(base.tables(schema, max_rows=8))])
        taken = data.draw(st.lists(st.integers(0, some.num_rows - 1), max_size=20)) if some.num_rows else []
        some = some.take(pa.array(taken, pa.int64()))
        keys = pa.table({name: leaf_array(some, name) for name in names})
        wanted = {key for row in base.rows_of(some) if (key := _key(row, names)) is not None}
        expected = [row for row in base.rows_of(pa.concat_tables(parts)) if _key(row, names) in wanted]
        few, are_used = data.draw(st.tuples(st.sampled_from([-1, 1024]), st.booleans()))
        share = data.draw(st.sampled_from([0.01, 9.0]))
        with mock.patch.multiple(lookup, FEW_KEYS=few, SPREAD_SHARE=share), kernels(are_used=are_used):
            for reader in ("pyarrow", "duckdb"):
                plan = table.lookup(keys, reader=reader)
                assert multiset(base.rows_of(plan.to_table())) == multiset(expected)
            assert plan.count() == table.lookup(keys).count() == len(expected)
            for name in names:
                values = [base._key(row[name], row[name]) for row in expected]
                for found, best in ((plan.min(name), min), (plan.max(name), max)):
                    told = base.rows_of(pa.table({name: pa.array([found], keys.schema.field(name).type)}))[0][name]
                    assert (told is None and not values) or base._key(told, told) == best(values)
