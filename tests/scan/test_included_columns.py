"""Secondary indexes with included columns: queries that they answer without a data file, against DuckDB over all rows
and against the same table without the index."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import os
import uuid
import warnings
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples, few_of

ANSWERED = "answered by index secondary({}), no data file read"
EVENTS = pa.schema(
    [
        ("user", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("amount", pa.float64()),
        ("price", pa.decimal128(9, 2)),
        ("action", pa.string()),
        ("n", pa.int32()),
        ("tags", pa.list_(pa.int32())),
    ]
)
INCLUDED = ["ts", "amount", "price", "action"]


def events(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    floats = [None, math.nan, -0.0, 0.0, math.inf, 1.5]
    return pa.table(
        {
            "user": [None if i % 17 == 0 else f"u{i % 7}" for i in numbers],
            "ts": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=i) for i in numbers],
            "amount": [floats[i % 6] for i in numbers],
            "price": [None if i % 5 == 0 else decimal.Decimal(i) / 100 for i in numbers],
            "action": [("view", "é\0buy", "", None)[i % 4] for i in numbers],
            "n": list(numbers),
            "tags": [[i, None] for i in numbers],
        },
        schema=EVENTS,
    )


def lake(folder: Path, files: int = 4, rows: int = 60, **options: Any) -> ss.Table:
    for number in range(files):
        pq.write_table(events(number * rows, rows), folder / f"f{number}.parquet", row_group_size=rows // 3)
    return ss.create(folder, **options)


def texts(rows: pa.Table) -> list[str]:
    """The rows in an order of their own, NaN and zeros as they are."""
    return sorted(repr(list(row.values())) for row in rows.to_pylist())


def check(table: ss.Table, where: str, columns: list[str], everything: pa.Table | None = None) -> pa.Table:
    """The answer of a scan, which is DuckDB's over all rows."""
    everything = table.scan().to_table() if everything is None else everything
    plan = table.scan(where, columns=columns)
    rows = plan.to_table()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("given", everything)
        connection.execute("CREATE TABLE everything AS FROM given")  # a filter over Arrow loses NaN before DuckDB 2
        names = ", ".join(f'"{name}"' for name in columns)
        expected = connection.sql(f"SELECT {names} FROM everything WHERE {where}").to_arrow_table()
    assert rows.schema.equals(pa.schema([everything.schema.field(name) for name in columns]))
    assert texts(rows) == texts(expected.cast(rows.schema)), where
    assert table.scan(where).count() == expected.num_rows
    batches = table.scan(where, columns=columns).to_batches()
    assert texts(pa.Table.from_batches(batches, rows.schema)) == texts(rows)
    return rows


WHERES = [
    "\"user\" = 'u3'",
    "\"user\" = 'u3' AND amount > 0",
    "\"user\" IN ('u1', 'u5') AND action = 'view'",
    '"user" IS NULL',
    "\"user\" LIKE 'u%' AND price > 1",
    "\"user\" = 'u1' OR \"user\" = 'u2'",
    "(\"user\" = 'u1' AND amount = 0) OR (\"user\" = 'u2' AND length(action) > 2)",
    "\"user\" >= 'u5' AND ts < TIMESTAMPTZ '2026-01-01 03:00:00+00'",
    "\"user\" = 'u4' AND isnan(amount)",
]


def test_a_covered_query_reads_no_data_file(tmp_path: Path) -> None:
    table = lake(tmp_path)
    before = {where: table.scan(where, columns=[*INCLUDED, "user"]).to_table() for where in WHERES}
    table.create_index("user", kind="secondary", include=INCLUDED)
    for where in WHERES:
        check(table, where, ["user", *INCLUDED])
        rows = check(table, where, [*INCLUDED, "user"])
        assert rows.schema.equals(before[where].schema) and texts(rows) == texts(before[where])
        assert ANSWERED.format("user") in table.scan(where, columns=["amount"]).explain()
    for number in range(4):
        os.rename(tmp_path / f"f{number}.parquet", tmp_path / f"f{number}.away")
    opened = ss.open(tmp_path, on_stale="ignore")
    for where in WHERES:
        plan = opened.scan(where, columns=["user", *INCLUDED])
        assert texts(plan.to_table()) == texts(before[where].select(["user", *INCLUDED]))
        assert ANSWERED.format("user") in plan.explain()
        assert opened.scan(where).count() == before[where].num_rows
        ordered = opened.scan(where, columns=["price"], order_by=("price", "desc"), limit=3).to_table()
        prices = [price for price in before[where]["price"].to_pylist() if price is not None]
        assert (
            ordered["price"].drop_null().to_pylist()
            == sorted(prices, reverse=True)[: len(ordered["price"].drop_null())]
        )
    keys = pa.table({"user": ["u3", "u0"]})
    expected = before[WHERES[0]].num_rows
    assert opened.lookup(keys, columns=["ts"]).to_table().num_rows >= expected
    rows = opened.dataset().to_table(columns=["ts", "amount"], filter=(pa.compute.field("user") == "u3"))
    assert texts(rows) == texts(before[WHERES[0]].select(["ts", "amount"]))
    assert opened.scan(WHERES[0], columns=["action"]).to_polars().height == expected
    with pytest.raises(ss.NotReadableError):
        opened.scan(WHERES[0], columns=["n"]).to_table()
    with pytest.raises(ss.NotReadableError):
        opened.scan(f"{WHERES[0]} AND n > 0", columns=["ts"]).to_table()


def test_limits_and_columns(tmp_path: Path) -> None:
    table = lake(tmp_path)
    table.create_index("user", kind="secondary", include=INCLUDED)
    plan = table.scan(WHERES[0], columns=["ts"], limit=5)
    assert plan.to_table().num_rows == 5 and sum(batch.num_rows for batch in plan.to_batches()) == 5
    assert table.scan(WHERES[0], columns=["ts"]).head(2).num_rows == 2
    assert table.scan(WHERES[0], columns=["ts"], limit=0).to_table().num_rows == 0
    every = table.scan(WHERES[0]).count()
    assert table.scan(WHERES[0], columns=[]).to_table().num_rows == every
    assert table.scan("\"user\" = 'absent'", columns=["ts"]).to_table().num_rows == 0
    assert "does not contain n, so data files are read" in table.scan(WHERES[0], columns=["n"]).explain()
    in_order = table.scan(WHERES[0], columns=["action"], order_by="ts").to_table()
    expected = table.scan(WHERES[0], columns=["ts", "action", "n"]).to_table().sort_by("ts")
    assert in_order["action"].to_pylist() == expected["action"].to_pylist()


def test_files_that_are_not_covered_are_read(tmp_path: Path) -> None:
    table = lake(tmp_path)
    table.create_index("user", kind="secondary", include=INCLUDED)
    pq.write_table(events(1000, 50), tmp_path / "new.parquet")
    table.sync()
    some = few_of(WHERES, 3)
    for where in some:
        check(table, where, ["user", "amount"])
    plan = table.scan(WHERES[0], columns=["ts"])
    plan.to_table()
    assert "4 of 5 files answered by index secondary(user), the others are read" in plan.explain()
    table.refresh_index("user", kind="secondary")
    assert ANSWERED.format("user") in table.scan(WHERES[0], columns=["ts"]).explain()
    with table.transaction() as tx:
        tx.write(events(2000, 40))
    for where in some:
        check(table, where, ["user", "amount"])
    assert ANSWERED.format("user") in table.scan(WHERES[0], columns=["ts"]).explain()
    table.optimize()
    for where in some:
        check(table, where, ["action", "user"])
    with table.transaction() as tx:
        tx.remove(["f1.parquet"])
    everything = table.scan().to_table()
    assert len(everything) == 4 * 60 + 50 + 40 - 60
    for where in some:
        check(table, where, ["price", "user"], everything)
    version = table.version
    table.restore(version - 1)
    for where in some:
        check(table, where, ["price", "user"])
    assert ANSWERED.format("user") in table.scan(WHERES[0], columns=["ts"]).explain()
    assert table.verify(deep=True) == []


def test_rule_47_a_changed_file_is_noticed(tmp_path: Path) -> None:
    """As for other answers from metadata: on a local disk files are compared, unless the table was opened otherwise."""
    table = lake(tmp_path)
    table.create_index("user", kind="secondary", include=INCLUDED)
    expected = table.scan(WHERES[0], columns=["ts"]).to_table()
    pq.write_table(events(5000, 10), tmp_path / "f2.parquet")
    for opened in (table, ss.open(tmp_path, on_stale="ignore")):
        plan = opened.scan(WHERES[0], columns=["ts"])
        if opened is table:
            with pytest.raises(ss.NotReadableError, match=r"f2\.parquet"):
                plan.to_table()
            with pytest.raises(ss.NotReadableError, match=r"f2\.parquet"):
                plan.count()
        else:
            assert texts(plan.to_table()) == texts(expected)
    table.sync(refresh=True)
    check(table, WHERES[0], ["ts", "user"])


def test_columns_are_followed_by_their_ids(tmp_path: Path) -> None:
    table = lake(tmp_path)
    table.create_index("user", kind="secondary", include=["n", "action", "amount"])
    table.alter(rename={"action": "what", "user": "who"})
    table.alter(add={"action": pa.int64()})
    where = "who = 'u3' AND what = 'view'"
    check(table, where, ["what", "who", "n"])
    assert ANSWERED.format("who") in table.scan(where, columns=["what"]).explain()
    assert "does not contain action" in table.scan(where, columns=["action"]).explain()
    check(table, where, ["action", "what"])
    table.alter(widen={"n": pa.int64()})
    for n in (5, 1 << 40):
        with table.transaction() as tx:
            tx.write(pa.table({"who": ["u3"], "what": ["view"], "n": [n], "amount": [1.0]}))
        check(table, "who = 'u3'", ["n", "what", "amount"])
    assert "5 of 6 files" in table.scan("who = 'u3'", columns=["n"]).explain()
    table.refresh_index("who", kind="secondary")
    check(table, "who = 'u3'", ["n", "what", "amount"])
    assert ANSWERED.format("who") in table.scan("who = 'u3'", columns=["n"]).explain()
    table.alter(drop=["amount"])
    check(table, "who = 'u3'", ["n", "what"])
    with table.transaction() as tx:
        tx.write(pa.table({"who": ["u3"], "what": ["view"], "n": [7]}))
    check(table, "who = 'u3'", ["n", "what"])
    (index,) = [row for row in table.indexes().to_pylist() if row["kind"] == "secondary"]
    assert json.loads(index["options"])["include"] == ["n", "what"]
    table.refresh_index("who", kind="secondary")
    table.optimize()
    check(table, "who = 'u3'", ["n", "what"])
    assert ANSWERED.format("who") in table.scan("who = 'u3'", columns=["n"]).explain()
    table.drop_index("who", kind="secondary")
    check(table, "who = 'u3'", ["n", "what"])
    assert "answered" not in table.scan("who = 'u3'", columns=["n"]).explain()


def test_partition_columns_and_defaults(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("x", pa.string()), ("p", pa.int32())])
    table = ss.create(tmp_path, schema=schema, partitioning=["p"])
    with pytest.raises(ss.SchemaError, match="partition column"):
        table.create_index("k", kind="secondary", include=["p"])
    with table.transaction() as tx:
        tx.write(pa.table({"k": [1, 2, 1, None], "x": ["a", None, "c", "d"], "p": [0, 0, 1, None]}, schema=schema))
    table.alter(add={"y": pa.scalar(7, pa.int16())})
    table.create_index("k", kind="secondary", include=["x", "y"])
    with table.transaction() as tx:
        tx.write(pa.table({"k": [1], "x": ["e"], "p": [3], "y": [9]}, schema=table.schema))
    for where in ("k = 1", "k = 1 AND p >= 1", "k IS NULL", "k = 1 AND (p = 3 OR x = 'a')"):
        check(table, where, ["p", "y", "x", "k"])
        assert ANSWERED.format("k") in table.scan(where, columns=["p", "x"]).explain()


def test_floats_keep_their_zeros_and_other_types_their_values(tmp_path: Path) -> None:
    """A key has one zero and one NaN, so a float that is a key is also stored unchanged."""
    types: dict[str, pa.Array] = {
        "f": pa.array([0.0, -0.0, math.nan, None, 1.0]),
        "h": pa.array(np.array([0, -0.0, 1, 2, 3], dtype=np.float16)),
        "u": pa.array([1, 2, 2**64 - 1, None, 0], pa.uint64()),
        "fixed": pa.array([b"ab", b"\0\0", None, b"zz", b"ab"], pa.binary(2)),
        "d32": pa.array([1, 2, None, 4, 5], pa.date32()),
        "t": pa.array([1, 2, None, 4, 5], pa.time64("us")),
        "ns": pa.array([1, 2, None, 4, -5], pa.timestamp("ns")),
        "zone": pa.array([1, 2, None, 4, 5], pa.timestamp("ms", "Europe/Berlin")),
        "flag": pa.array([True, None, False, True, True]),
        "long": pa.array(["a", "b", None, "d", "e"], pa.large_string()),
        "words": pa.array(["a", "b", "a", None, "a"]).dictionary_encode(),
        "bytes": pa.array([b"\xff", b"", None, b"\0", b"x"]),
        "id": pa.array([uuid.UUID(int=i).bytes for i in range(5)], pa.binary(16)),
    }
    pq.write_table(pa.table(types), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    everything = table.scan().to_table()
    names = [name for name in types if name != "f"]
    table.create_index("f", kind="secondary", include=names)
    table.create_index(["u", "d32"], kind="secondary", include=["f", "words"])
    os.rename(tmp_path / "a.parquet", tmp_path / "a.away")
    opened = ss.open(tmp_path, on_stale="ignore")
    tests = {
        "f = 0": lambda f: f == 0,
        "f >= 1": lambda f: f is not None and not f < 1,
        "f IS NULL": lambda f: f is None,
        "f <= 1": lambda f: f is not None and f <= 1,
    }
    for where, test in tests.items():
        rows = opened.scan(where, columns=list(types)).to_table()
        assert rows.schema.equals(everything.schema)
        assert texts(rows) == texts(everything.filter(pa.array(map(test, everything["f"].to_pylist())))), where
    rows = opened.scan("u = 2 AND d32 = DATE '1970-01-03'", columns=["u", "d32", "f", "words"]).to_table()
    assert rows.schema.equals(pa.schema([everything.schema.field(name) for name in rows.column_names]))
    assert texts(rows) == ["[2, datetime.date(1970, 1, 3), -0.0, 'b']"]


def test_what_cannot_be_included(tmp_path: Path) -> None:
    table = lake(tmp_path)
    for include, error in (
        (["tags"], ss.SchemaError),
        (["absent"], ss.SchemaError),
        ([], ss.InvalidArgumentError),
        (["user"], ss.InvalidArgumentError),
        (7, ss.InvalidArgumentError),
        ([7], ss.InvalidArgumentError),
    ):
        with pytest.raises(error, match="include"):
            table.create_index("user", kind="secondary", include=include)
    for kind in ("bloom", "stats"):
        with pytest.raises(ss.InvalidArgumentError, match="include"):
            table.create_index("user", kind=kind, include=["ts"])
    table.create_index("user", kind="secondary", include="ts")
    with pytest.raises(ss.InvalidArgumentError, match="already"):
        table.create_index("user", kind="secondary", include=["ts", "n"])


def test_texts_that_are_no_utf8_are_left_in_their_files(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("s", pa.string())])
    broken = pa.Array.from_buffers(pa.string(), 2, [None, *pa.array([b"\xff\xfe", b"a"]).buffers()[1:]])
    pq.write_table(pa.table([pa.array([1, 2]), broken], schema=schema), tmp_path / "bad.parquet")
    pq.write_table(pa.table({"k": [1, 2], "s": ["x", "y"]}, schema=schema), tmp_path / "good.parquet")
    table = ss.create(tmp_path)
    with pytest.warns(UserWarning, match="not indexed"):
        table.create_index("k", kind="secondary", include=["s"])
    assert table.scan("k = 1").count() == 2
    assert "1 of 2 files" in table.scan("k = 1", columns=["k"]).explain()


def test_rule_21_damaged_bytes_uncover_files(tmp_path: Path) -> None:
    """Any byte of a run that is changed makes the files be read instead, or is an error if the table is strict."""
    table = lake(tmp_path, files=3, rows=30)
    table.create_index("user", kind="secondary", include=INCLUDED)
    with table.transaction() as tx:
        tx.write(events(500, 30))
    everything = table.scan().to_table()
    expected = {where: table.scan(where, columns=["user", *INCLUDED]).to_table() for where in WHERES[:5]}
    runs = [run for index in table.handle.instant.indexes if index.kind == "secondary" for run in index.runs]
    path = tmp_path / ".skipstone" / max(runs, key=lambda run: run.size_bytes).path
    whole = path.read_bytes()
    random = np.random.default_rng(7)
    for place in random.choice(len(whole), examples(6), replace=False).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(random.integers(8))
        path.write_bytes(bytes(damaged))
        stat = os.stat(path)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1 + place))
        opened = ss.open(tmp_path)
        for where, rows in expected.items():
            with warnings.catch_warnings(action="ignore"):
                assert texts(opened.scan(where, columns=["user", *INCLUDED]).to_table()) == texts(rows)
                assert opened.scan(where).count() == rows.num_rows
    path.unlink()
    with pytest.raises(ss.SkipstoneError):
        ss.open(tmp_path, strict=True).scan(WHERES[0], columns=["ts"]).to_table()
    opened = ss.open(tmp_path)
    with warnings.catch_warnings(action="ignore"):
        check(opened, WHERES[0], ["user", "ts"], everything)
