"""Folders that name partitions, with the types and values that they have together, and small lakes of them."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

NULL = "__HIVE_DEFAULT_PARTITION__"
MICROS = pa.timestamp("us")
NIGHT = dt.datetime(2020, 1, 1)

# Texts in names of folders, the type that they have together, and their values: as Spark 4 reads them.
INFERRED = [
    (["1", "2"], pa.int32(), [1, 2]),
    (["001", "2"], pa.int32(), [1, 2]),
    (["-1", "+5"], pa.int32(), [-1, 5]),
    (["1", "2147483648"], pa.int64(), [1, 2**31]),
    (["-9223372036854775808"], pa.int64(), [-(2**63)]),
    (["9223372036854775808"], pa.decimal128(19, 0), [Decimal(2**63)]),
    (["1", "9223372036854775808"], pa.decimal128(19, 0), [Decimal(1), Decimal(2**63)]),
    (["2147483648", "9223372036854775808"], pa.decimal128(20, 0), [Decimal(2**31), Decimal(2**63)]),
    (["9" * 38], pa.decimal128(38, 0), [Decimal("9" * 38)]),
    (["1.5", "2"], pa.float64(), [1.5, 2.0]),
    (["1.5", "3000000000"], pa.string(), ["1.5", "3000000000"]),
    (["1e5"], pa.decimal128(6, 0), [Decimal(100_000)]),
    (["1e5", "1"], pa.decimal128(10, 0), [Decimal(100_000), Decimal(1)]),
    (["5."], pa.decimal128(1, 0), [Decimal(5)]),
    ([".5", "1e-3"], pa.float64(), [0.5, 0.001]),
    (["-Infinity", "1"], pa.float64(), [-math.inf, 1.0]),
    (["inf"], pa.string(), ["inf"]),
    (["2020-01-01", NULL], pa.date32(), [dt.date(2020, 1, 1), None]),
    (["2020-1-1"], pa.string(), ["2020-1-1"]),
    (["2020-01-01", "2020-02-30"], pa.string(), ["2020-01-01", "2020-02-30"]),
    (["2020-01-01 10%3A00%3A00"], MICROS, [NIGHT.replace(hour=10)]),
    (["2020-01-01 10%3A00%3A00.5"], MICROS, [NIGHT.replace(hour=10, microsecond=500_000)]),
    (["2020-01-01 10%3A00%3A00.123456"], pa.string(), ["2020-01-01 10:00:00.123456"]),
    (["2020-01-01", "2020-01-01 10%3A00%3A00"], MICROS, [NIGHT, NIGHT.replace(hour=10)]),
    (["2020-01-01 10%3A00"], pa.string(), ["2020-01-01 10:00"]),
    (["2020-01-01", "1"], pa.string(), ["2020-01-01", "1"]),
    (["true", "false"], pa.string(), ["true", "false"]),
    ([NULL, "1"], pa.int32(), [None, 1]),
    ([NULL], pa.string(), [None]),
    (["a%2Fb", "100%25", "100%", "%zz"], pa.string(), ["a/b", "100%", "100%", "%zz"]),
    (["%E9", "é", "a+b", "a=b", " "], pa.string(), ["é", "é", "a+b", "a=b", " "]),
    (["_a", ".b", "..."], pa.string(), ["_a", ".b", "..."]),
    (["0001-01-01", "9999-12-31"], pa.date32(), [dt.date.min, dt.date.max]),
]


def lake_of(root: Path, *paths: str) -> Path:
    """One file per path, whose column x is its number."""
    for number, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": [number]}), root / f"{path}.parquet")
    return root


def rows_of(table: ss.Table, *names: str) -> list[tuple]:
    """The values of some columns, by x."""
    found = table.scan().to_table()
    return [tuple(row[name] for name in names) for row in sorted(found.to_pylist(), key=lambda row: row["x"])]
