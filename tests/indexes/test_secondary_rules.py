"""Rule 24 for secondary indexes, and odd values and writers."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone import col
from skipstone.engine.indexes import entry_sorting

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("p", pa.int32())])


@pytest.mark.parametrize("is_built", [False, True])
def test_rule_24_nulls_and_nan_are_entries(tmp_path: Path, is_built: bool) -> None:
    """Over [7, null], `x != 5` is one row, not two."""
    schema = pa.schema([("x", pa.int64()), ("f", pa.float64())])
    rows = pa.table({"x": [7, None], "f": [math.nan, None]}, schema=schema)
    table = ss.create(tmp_path, schema=schema)
    for step in ("write", "index") if is_built else ("index", "write"):
        if step == "index":
            table.create_index("x", kind="secondary")
            table.create_index("f", kind="secondary")
        else:
            with table.transaction() as tx:
                tx.write(rows)
    for where, count in (
        (col("x") != 5, 1),
        (col("x") != 7, 0),
        (~(col("x") == 5), 1),
        (col("x").is_null(), 1),
        (col("f") > 5.0, 1),
        (col("f") != 5.0, 1),
        (col("f") <= 5.0, 0),
        (col("f") == math.nan, 1),
    ):
        assert table.scan(where).count() == count, where
        assert table.scan(where).to_table().num_rows == count, where


@pytest.mark.parametrize("kind", [pa.binary(3), pa.binary()], ids=str)
def test_prefixes_of_binaries_hold_any_byte(tmp_path: Path, kind: pa.DataType) -> None:
    """Keys contain binaries of one length unchanged, without escapes; the bytes after them are not part of them."""
    values = [b"\0ab", b"\1ab", b"\0\0\0", b"\1\1\1", b"\1\2a", b"abc", b"\xff\xff\xff", None]
    pq.write_table(pa.table({"x": pa.array(values, kind)}), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    table.create_index("x", kind="secondary")
    short = [b"\0", b"\0a", b"\1", b"\1\1", b"\1a", b"\1\2", b"\0\0\0", b"\xff\xff"]
    for text in (*short, b"\0\0\0\0", b"\xff" * 4, b"abc\0"):
        expected = [value for value in values if value is not None and value.startswith(text)]
        plan = table.scan(col("x").starts_with(text))
        assert plan.count() == len(expected)
        assert plan.to_table()["x"].to_pylist() == expected
    assert table.scan(col("x").like("\1_%")).count() == 3


def test_a_value_too_long_to_be_a_key_leaves_its_file_uncovered(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=SCHEMA, partitioning=["p"])
    table.create_index("s", kind="secondary")
    long = "x" * (1 << 20)
    with table.transaction() as tx:
        tx.write(pa.table({"k": [1, 2], "s": [long, "b"], "p": [0, 1]}, schema=SCHEMA))
    (index,) = [index for index in table.handle.instant.indexes if index.kind == "secondary"]
    assert len(index.coverage.holes) == 1
    assert table.scan(col("s") == long).to_table().num_rows == 1
    assert table.scan(col("s") == "b").to_table().num_rows == 1
    with pytest.warns(UserWarning, match="too long to be a key"):
        table.refresh_index("s", kind="secondary")
    assert table.scan(col("s") != "b").count() == 1


@pytest.mark.filterwarnings("error")
def test_a_writer_that_is_given_up_at_the_last_moment_raises_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are removed before it reads them: the error is not that of a damaged run or a missing file."""
    table = ss.create(tmp_path, schema=SCHEMA)
    table.create_index("k", kind="secondary")
    rows = pa.table({"k": [1], "s": ["a"], "p": [1]}, schema=SCHEMA)
    with table.transaction() as tx:
        tx.write(rows)
    real = entry_sorting.add_part

    def meanwhile(*given: object):
        ss.open(tmp_path).clean(min_age=dt.timedelta(0), delete_data=True)
        return real(*given)

    monkeypatch.setattr(entry_sorting, "add_part", meanwhile)
    with pytest.raises(ss.CommitConflictError, match="gave this transaction up"), table.transaction() as tx:
        tx.write(rows)
    assert ss.open(tmp_path).scan(col("k") == 1).count() == 1
