"""A table as a Dataset: DuckDB's and polars' own queries skip files, give their own answers, and nothing crashes."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st

duckdb = pytest.importorskip("duckdb")
pl = pytest.importorskip("polars")

ROWS = 12


def _part(number: int) -> pa.Table:
    """One file: what every engine compares in its own way lies in each column, nulls and NaN among it."""
    rows = range(number * ROWS, number * ROWS + ROWS)
    return pa.table(
        {
            "i": pa.array([None if n % 7 == 3 else n for n in rows], pa.int64()),
            "f": pa.array([float("nan") if n % 5 == 1 else None if n % 5 == 2 else n / 2 for n in rows]),
            "s": pa.array([None if n % 6 == 5 else f"k{n % 9}" for n in rows]),
            "t": pa.array([dt.datetime(2024, 1, 1) + dt.timedelta(hours=n) for n in rows], pa.timestamp("us")),
            "b": pa.array([None if n % 4 == 0 else n % 3 == 0 for n in rows]),
            "r": pa.array([{"u": n % 4} if n % 5 else None for n in rows], pa.struct([("u", pa.int64())])),
        }
    )


@pytest.fixture(scope="module")
def everything() -> pa.Table:
    return pa.concat_tables([_part(number) for number in range(6)])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ss.Table:
    root = tmp_path_factory.mktemp("lake")
    for number in range(6):
        pq.write_table(_part(number), root / f"{number}.parquet", row_group_size=4)
    return ss.create(root)


class Spied(ss.LakeDataset):  # type: ignore[misc]
    """Notes the plans that its scans come to."""

    plans: list[ss.Plan]

    def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> ds.Scanner:
        self.filters.append(filter)
        return super().scanner(columns, filter, **options)


def _kept(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


# -- the engines' own answers -----------------------------------------------------------------------------------------

_VALUES = {
    "i": st.integers(-2, 75),
    "f": st.sampled_from([0.5, 1.0, 3.0, 17.5, float("nan")]),
    "s": st.sampled_from(["k0", "k3", "k8", "k", "z"]),
    "t": st.integers(0, 80).map(lambda n: dt.datetime(2024, 1, 1) + dt.timedelta(hours=n)),
}
_OPERATORS = ("=", "<>", "<", "<=", ">", ">=")


@st.composite
def leaves(draw: st.DrawFn) -> tuple[str, Any]:
    """A condition as SQL text and as a polars expression."""
    name = draw(st.sampled_from(list(_VALUES)))
    column, kind = pl.col(name), draw(st.integers(0, 4))
    if kind == 0:
        return f"{name} IS NULL", column.is_null()
    if kind == 1:
        values = draw(st.lists(_VALUES[name], min_size=1, max_size=4))
        return f"{name} IN ({', '.join(map(_sql, values))})", column.is_in(values)
    if kind == 2:
        number = draw(st.integers(0, 4))
        return f"r.u = {number}", pl.col("r").struct.field("u") == number
    value, operator = draw(_VALUES[name]), draw(st.sampled_from(_OPERATORS))
    compared = {
        "=": column == value,
        "<>": column != value,
        "<": column < value,
        "<=": column <= value,
        ">": column > value,
        ">=": column >= value,
    }
    return f"{name} {operator} {_sql(value)}", compared[operator]


def _sql(value: Any) -> str:
    if isinstance(value, float):
        return f"'{value}'::DOUBLE"
    if isinstance(value, dt.datetime):
        return f"TIMESTAMP '{value}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


def _joined(children: st.SearchStrategy) -> st.SearchStrategy:
    return st.one_of(
        st.tuples(children, children).map(lambda c: (f"({c[0][0]}) AND ({c[1][0]})", c[0][1] & c[1][1])),
        st.tuples(children, children).map(lambda c: (f"({c[0][0]}) OR ({c[1][0]})", c[0][1] | c[1][1])),
        children.map(lambda c: (f"NOT ({c[0]})", ~c[1])),
    )


@given(st.recursive(leaves(), _joined, max_leaves=4))
@settings(max_examples=examples(60))
def test_engines_get_the_rows_that_they_would_find_themselves(
    table: ss.Table, everything: pa.Table, where: tuple[str, Any]
) -> None:
    sql, expression = where
    lake = table.dataset()
    with duckdb.connect() as connection:
        connection.register("everything", everything)
        connection.register("lake", lake)
        wanted = connection.sql(f"SELECT * FROM everything WHERE {sql}").to_arrow_table()
        assert _kept(connection.sql(f"SELECT * FROM lake WHERE {sql}").to_arrow_table()) == _kept(wanted)
    lazy = pl.scan_pyarrow_dataset(lake).filter(expression)
    assert _kept(lazy.collect().to_arrow()) == _kept(pl.from_arrow(everything).filter(expression).to_arrow())
