"""Parts of a WHERE that another engine tests on rows, over every kind of lake: the rows are those of DuckDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import few_of

WHERES = [
    "lower(s) = 'aa'",
    "p = 'x' AND lower(s) = 'aa'",
    "a % 3 = 1 OR a = 17",
    "NOT (lower(s) = 'aa' AND a > 5)",
    "upper(p) = 'Y' AND a IN (11, 12, 25)",
    "(a * 2 = 24 OR s IS NULL) AND p <> 'x'",
]


def _rows(first: int, p: str) -> pa.Table:
    numbers = list(range(first, first + 10))
    texts = [None if n % 4 == 0 else ["AA", "aA", "b"][n % 3] for n in numbers]
    schema = pa.schema([("a", pa.int64()), ("s", pa.string()), ("p", pa.string())])
    return pa.table([numbers, texts, [p] * 10], schema=schema)


PARTS = [_rows(0, "x"), _rows(10, "y"), _rows(20, "x")]
Lake = tuple[ss.Table, pa.Table]


def _directory(root: Path) -> Lake:
    for i, part in enumerate(PARTS):
        pq.write_table(part, root / f"{i}.parquet")
    table = ss.create(root)
    table.create_index("a", kind="secondary")
    return table, pa.concat_tables(PARTS)


def _delta(root: Path) -> Lake:
    """With rows that were deleted, and files that came after the last sync."""
    deltalake = pytest.importorskip("deltalake")
    lake = str(root / "lake")
    deltalake.write_deltalake(lake, PARTS[0], partition_by=["p"])
    deltalake.write_deltalake(lake, PARTS[1], mode="append")
    table = ss.create(lake, source="delta")
    table.create_index("s", kind="bloom")
    deltalake.DeltaTable(lake).delete("a = 1")
    deltalake.write_deltalake(lake, PARTS[2], mode="append")
    table.refresh()
    return table, pa.concat_tables(PARTS).filter(pc.field("a") != 1)


def _iceberg(root: Path) -> Lake:
    """With deletes by position, which are applied before anything is tested."""
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    from log_lakes import catalog, delete_positions

    their = catalog(root).create_table("lake.t", PARTS[0].schema)
    for part in PARTS:
        their.append(part)
    lake = root / "lake" / "t"
    table = ss.create(lake, source="iceberg")
    (path,) = table.scan("a = 12").files()["path"].to_pylist()
    delete_positions(lake, f"file://{lake}/{path}", [2])
    return ss.open(lake), pa.concat_tables(PARTS).filter(pc.field("a") != 12)


def _slices(root: Path) -> Lake:
    """Bases to which no logs apply, in groups."""
    for i, part in enumerate(PARTS):
        pq.write_table(part, root / f"{i}.parquet")
    table = ss.create(root, files=[], schema=PARTS[0].schema)
    sizes = [(root / f"{i}.parquet").stat().st_size for i in range(3)]
    files = {"path": [f"{i}.parquet" for i in range(3)], "size_bytes": sizes, "row_count": [10] * 3}
    with table.transaction() as tx:
        tx.add_files(pa.table({**files, "file_group": ["g0", "g1", "g2"], "slice_instant": ["1"] * 3}))
    return table, pa.concat_tables(PARTS)


LAKES: dict[str, Callable[[Path], Lake]] = {
    "directory": _directory,
    "delta": _delta,
    "iceberg": _iceberg,
    "slices": _slices,
}


def _numbers(rows: pa.Table) -> list[int]:
    return sorted(rows["a"].to_pylist())


@pytest.mark.parametrize("kind", LAKES)
def test_rows_are_duckdbs(tmp_path: Path, kind: str) -> None:
    table, rows = LAKES[kind](tmp_path)
    connection = duckdb.connect(":memory:")
    connection.register("lake", rows)
    for where in WHERES if kind == "directory" else few_of(WHERES, 3):
        expected = sorted(n for (n,) in connection.execute(f"SELECT a FROM lake WHERE {where}").fetchall())
        plan = table.scan(where)
        assert _numbers(plan.to_table()) == expected, where
        assert plan.count() == len(expected) and plan.max("a") == max(expected, default=None), where
        assert _numbers(table.scan(where, columns=["a"]).to_table()) == expected, where
        assert table.scan(where, limit=2).to_table().num_rows == min(2, len(expected))
    if kind != "slices":  # of which no statistics were given
        assert table.scan("p = 'y' AND lower(s) = 'aa'").files().num_rows == 1, "what is understood beside it prunes"


@pytest.mark.parametrize("kind", LAKES)
def test_a_look_up_that_is_filtered_further(tmp_path: Path, kind: str) -> None:
    table, rows = LAKES[kind](tmp_path)
    connection = duckdb.connect(":memory:")
    connection.register("lake", rows)
    plan = table.lookup([1, 5, 12, 13, 25, 99], on="a")
    looked = plan.dataset()  # noqa: F841 - DuckDB reads it by its name
    for where in WHERES[:4]:
        query = f"SELECT a FROM lake WHERE a IN (1, 5, 12, 13, 25, 99) AND ({where})"
        expected = sorted(n for (n,) in connection.execute(query).fetchall())
        found = sorted(n for (n,) in duckdb.sql(f"SELECT a FROM looked WHERE {where}").limit(99).fetchall())
        assert found == expected, where


def test_a_log_over_a_slice_is_not_read_past(tmp_path: Path) -> None:
    table, _ = _slices(tmp_path)
    log = {"path": ["1.log"], "size_bytes": [10], "row_count": [1], "kind": ["log"], "file_group": ["g1"]}
    with table.transaction() as tx:
        tx.add_files(pa.table({**log, "slice_instant": ["1"]}))
    plan = table.scan("lower(s) = 'aa' AND a BETWEEN 10 AND 19")
    assert {"1.parquet", "1.log"} <= set(plan.files()["path"].to_pylist())
    with pytest.raises(ss.NotReadableError):
        plan.to_table()
    bases = table.scan("lower(s) = 'aa' AND a BETWEEN 10 AND 19", mode="read_optimized")
    assert _numbers(bases.to_table()) == [n for n in range(10, 20) if n % 4 and n % 3 < 2]


# -- head --------------------------------------------------------------------------------------------------------------


def test_head_is_the_first_rows(tmp_path: Path) -> None:
    table, rows = _directory(tmp_path)
    assert table.head(3).num_rows == 3 and table.head().num_rows == 5 and table.head(99).num_rows == 30
    assert set(_numbers(table.head(7))) <= set(rows["a"].to_pylist()) and table.head(0).schema == table.schema
    plan = table.scan("lower(s) = 'aa' AND a >= 10", columns=["a"])
    assert plan.head(2).num_rows == 2 and plan.head(2).column_names == ["a"] and min(_numbers(plan.head(2))) >= 10
    assert plan.head(99).num_rows == plan.count()
    assert table.scan(order_by=[("a", "desc")]).head(2)["a"].to_pylist() == [29, 28]
    assert table.scan(limit=1).head(2).num_rows == 1 == table.lookup([3], on="a").head().num_rows
    for wrong in (-1, True, 1.5, "2", None):
        with pytest.raises(ss.InvalidArgumentError, match="head"):
            plan.head(wrong)  # type: ignore[arg-type]
        with pytest.raises(ss.InvalidArgumentError, match="head"):
            table.head(wrong)  # type: ignore[arg-type]
