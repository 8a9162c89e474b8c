"""A lake of values that engines compare in their own ways, and conditions as SQL text and as polars expressions."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from hypothesis import strategies as st

FILES, ROWS_PER_FILE = 6, 12


def part(number: int) -> pa.Table:
    """The rows of one file, with nulls and NaN."""
    rows = range(number * ROWS_PER_FILE, number * ROWS_PER_FILE + ROWS_PER_FILE)
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


def all_rows() -> pa.Table:
    return pa.concat_tables([part(number) for number in range(FILES)])


def lake(root: Path, only: int | None = None) -> ss.Table:
    """A table of all files. `only`: the others are removed afterwards, so a read of another file fails."""
    for number in range(FILES):
        pq.write_table(part(number), root / f"{number}.parquet", row_group_size=4)
    table = ss.create(root)
    for number in range(FILES):
        if only not in (None, number):
            (root / f"{number}.parquet").unlink()
    return table


def row_reprs(rows: pa.Table | pl.DataFrame) -> list[str]:
    """The rows as texts, sorted. (polars 1 loses rows of a filtered struct in `to_arrow`.)"""
    return sorted(map(repr, rows.to_pylist() if isinstance(rows, pa.Table) else rows.to_dicts()))


_VALUES = {
    "i": st.integers(-2, 75),
    "f": st.sampled_from([0.5, 1.0, 3.0, 17.5, float("nan")]),
    "s": st.sampled_from(["k0", "k3", "k8", "k", "z"]),
    "t": st.integers(0, 80).map(lambda n: dt.datetime(2024, 1, 1) + dt.timedelta(hours=n)),
}
_OPERATORS = ("=", "<>", "<", "<=", ">", ">=")


@st.composite
def _leaves(draw: st.DrawFn) -> tuple[str, Any]:
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


conditions = st.recursive(_leaves(), _joined, max_leaves=4)
