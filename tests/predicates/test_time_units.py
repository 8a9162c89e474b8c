"""Two columns that count time in different units or zones are compared by value."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone import col
from skipstone.engine.predicates import Column, Comparison

NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DAY_NS = 86_400 * 10**9
FAMILIES = {
    "instant": [
        *(pa.date32(), pa.timestamp("s"), pa.timestamp("ms", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
        *(pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("ns", "America/New_York")),
    ],
    "time": [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
    "duration": [pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns")],
}
OPS = {"<": operator.lt, "<=": operator.le, "=": operator.eq, "<>": operator.ne, ">": operator.gt, ">=": operator.ge}
MOMENTS_NS = [0, 1, -1, 10**9, 10**9 + 1, -(10**9), DAY_NS, DAY_NS - 1, 2**63 - 1, -(2**63), 253_402_214_400 * 10**9]
MOMENTS_NS += [2**31 * DAY_NS, 2**63 * 10**6, -(2**63) * 10**6]


def _unit_ns(kind: pa.DataType) -> int:
    return DAY_NS if pa.types.is_date(kind) else NS[kind.unit]


def _counts(kind: pa.DataType) -> st.SearchStrategy[int]:
    unit = _unit_ns(kind)
    low, high = -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
    if pa.types.is_timestamp(kind) and kind.unit == "s":  # a file keeps them as milliseconds
        low, high = -(2**63 // 1000), 2**63 // 1000
    if pa.types.is_time(kind):
        low, high = 0, DAY_NS // unit - 1
    near = [n // unit + step for n in MOMENTS_NS for step in (0, 1)]
    return st.sampled_from([n for n in near if low <= n <= high]) | st.integers(max(low, -2), 2)


@settings(max_examples=examples(3))
@given(st.data())
def test_they_are_compared_by_value(data: st.DataObject) -> None:
    family = st.sampled_from(FAMILIES[data.draw(st.sampled_from(sorted(FAMILIES)))])
    kinds = data.draw(st.tuples(family, family))
    pair = st.tuples(*(st.none() | _counts(kind) for kind in kinds))
    files = data.draw(st.lists(st.lists(pair, min_size=1, max_size=3), min_size=1, max_size=3))
    with tempfile.TemporaryDirectory() as folder:
        for at, rows in enumerate(files):
            columns = {
                name: pa.array([row[side] for row in rows], kind)
                for side, (name, kind) in enumerate(zip("ab", kinds, strict=True))
            }
            pq.write_table(pa.table({**columns, "n": [at] * len(rows)}), Path(folder, f"{at}.parquet"))
        table = ss.create(folder)
        units = [_unit_ns(kind) for kind in kinds]
        for op, holds in OPS.items():
            outcomes = [
                [None if None in row else holds(row[0] * units[0], row[1] * units[1]) for row in rows] for rows in files
            ]
            test = Comparison("!=" if op == "<>" else op, Column("a"), Column("b"))
            for where, wanted in ((test, True), (~test, False)):
                expected = sorted(at for at, rows in enumerate(outcomes) for outcome in rows if outcome is wanted)
                plan = table.scan(where)
                assert sorted(plan.to_table().column("n").to_pylist()) == expected, where
                assert plan.count() == len(expected), where
        same = [(a is b) if None in (a, b) else a * units[0] == b * units[1] for rows in files for a, b in rows]
        test = col("a").eq_missing(col("b"))
        assert table.scan(test).count() == sum(same) and table.scan(~test).count() == len(same) - sum(same)


def test_columns_that_count_different_things_are_refused(tmp_path: Path) -> None:
    kinds = {"t": pa.timestamp("s"), "c": pa.time64("us"), "d": pa.duration("s")}
    pq.write_table(pa.table({name: pa.array([0], kind) for name, kind in kinds.items()}), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    for left, right in (("t", "c"), ("c", "d"), ("d", "t")):
        with pytest.raises(ss.PredicateError, match=f"column '{left}' .* column '{right}' .* cannot be compared"):
            table.scan(col(left) == col(right)).count()


_ON_ANOTHER_MACHINE = """
import datetime as dt, sys
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

folder = sys.argv[1]
evening = dt.datetime(2024, 1, 5, 22, 30, tzinfo=dt.timezone.utc)
instants = pa.array([evening, evening + dt.timedelta(hours=2), None], pa.timestamp("us", "UTC"))
pq.write_table(pa.table({"id": [1, 2, 3], "seen": instants}), f"{folder}/a.parquet")
table = ss.create(folder)
for where in sys.argv[2:]:
    print(table.scan(where).to_table().column("id").to_pylist(), table.scan(where).count())
"""


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Pacific/Kiritimati"])
def test_functions_of_instants_are_in_utc_on_every_machine(zone: str, tmp_path: Path) -> None:
    wheres = [
        *("hour(seen) = 22", "extract(hour FROM seen) = 22", "seen::DATE = DATE '2024-01-05'"),
        "strftime(seen, '%H') = '22'",
        *("date_trunc('day', seen) = '2024-01-05 00:00:00+00'", "seen::VARCHAR LIKE '2024-01-05 22%'"),
        *("seen::TIMESTAMP = TIMESTAMP '2024-01-05 22:30:00'", "date_trunc('day', seen) <= '2024-01-05 00:00:00+00'"),
    ]
    command = [sys.executable, "-c", _ON_ANOTHER_MACHINE, str(tmp_path), *wheres]
    ran = subprocess.run(command, env={**os.environ, "TZ": zone}, stdout=subprocess.PIPE, text=True, check=True)
    assert dict(zip(wheres, ran.stdout.splitlines(), strict=True)) == dict.fromkeys(wheres, "[1] 1")
