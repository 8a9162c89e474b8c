"""Times that old writers, and Spark, store as INT96: microseconds of any year, by every way to read them."""

from __future__ import annotations

import datetime as dt
import operator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples, few_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from library_versions import needs
from skipstone import col

OPERATORS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
EDGES = [
    dt.datetime.min, dt.datetime(1500, 3, 1, 1, 2, 3, 4), dt.datetime(1677, 9, 21), dt.datetime(1970, 1, 1),
    dt.datetime(1970, 1, 1) - dt.timedelta(microseconds=1), dt.datetime(2262, 4, 12), dt.datetime(2300, 1, 1),
    dt.datetime.max,
]  # fmt: skip
INSTANTS = st.one_of(st.sampled_from(EDGES), st.datetimes())
FILES = st.lists(st.lists(st.none() | INSTANTS, min_size=1, max_size=4), min_size=1, max_size=4)
QUESTIONS = st.lists(st.tuples(st.sampled_from(sorted(OPERATORS)), INSTANTS), min_size=1, max_size=4)


def _write(path: Path, first: int, instants: list[dt.datetime | None], *, with_schema: bool = True) -> None:
    times = pa.array(instants, pa.timestamp("us"))
    rows = {"k": range(first, first + len(times)), "t": times, "s": pa.StructArray.from_arrays([times], ["t"])}
    options = {"use_deprecated_int96_timestamps": True, "store_schema": with_schema}
    pq.write_table(pa.table(rows), path, row_group_size=2, **options)


@needs("pyarrow", 26, what="writing INT96 of any year and before 1970")
@given(FILES, QUESTIONS, st.sampled_from(["bloom", "secondary", None]), st.booleans())
@example([[each] for each in EDGES], few_of([(sign, each) for sign in "<=" for each in EDGES], 4), "secondary", True)
@example([[each] for each in EDGES], few_of([("=", each) for each in EDGES], 3), "bloom", False)
@settings(max_examples=examples(2))
def test_every_year_is_found_and_read(tmp_path_factory: pytest.TempPathFactory, files, questions, kind, with_schema):
    root = tmp_path_factory.mktemp("lake")
    expected: list[dt.datetime | None] = []
    table = None
    for number, instants in enumerate(files):
        _write(root / f"{number}.parquet", len(expected), instants, with_schema=with_schema)
        expected += instants
        if table is None:  # the first file is indexed by a build, the others by sync
            table = ss.create(root)
            if kind is not None:
                table.create_index("t", kind=kind)
    table.sync()
    assert table.scan().to_table().sort_by("k").column("t").to_pylist() == expected
    assert table.scan().fragments().to_table().sort_by("k").column("t").to_pylist() == expected
    given_values = [each for each in expected if each is not None]
    assert table.scan().min("t") == min(given_values, default=None)
    assert table.scan().max("t") == max(given_values, default=None)
    for sign, value in questions:
        wanted = [k for k, each in enumerate(expected) if each is not None and OPERATORS[sign](each, value)]
        for where in (
            OPERATORS[sign](col("t"), value),
            OPERATORS[sign](col("s.t"), value),
            f"t {sign} TIMESTAMP '{value}'",
        ):
            for reader in ("pyarrow", "duckdb"):
                rows = table.scan(where, ["k", "t"], reader=reader).to_table().sort_by("k")
                assert rows.column("k").to_pylist() == wanted, where
                assert rows.column("t").to_pylist() == [expected[k] for k in wanted], where
            assert table.scan(where).count() == len(wanted), where
    if given_values:
        keys = sorted(set(given_values))[:2]
        found = table.lookup(pa.table({"t": pa.array(keys, pa.timestamp("us"))}), on="t").to_table().sort_by("k")
        assert found.column("k").to_pylist() == [k for k, each in enumerate(expected) if each in keys]


@needs("pyarrow", 26, what="writing INT96 of any year and before 1970")
def test_every_year_is_read_beside_strings_that_come_as_codes(tmp_path: Path) -> None:
    times = [EDGES[i % len(EDGES)] for i in range(3000)]
    rows = pa.table({"k": range(3000), "s": ["text"] * 3000, "t": pa.array(times, pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    assert ss.create(tmp_path).scan(col("k") >= 1000).to_table() == rows.slice(1000)


@needs("pyarrow", 26, what="writing INT96 of any year and before 1970")
def test_finer_instants_are_cut_to_microseconds_as_spark_does(tmp_path: Path) -> None:
    nanoseconds = [1, -1, 1500, -1500, 10**18 + 999]
    times = pa.array(nanoseconds, pa.timestamp("ns"))
    pq.write_table(pa.table({"t": times}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    table = ss.create(tmp_path)
    table.create_index("t", kind="secondary")
    assert table.schema.field("t").type == pa.timestamp("us")
    microseconds = [each // 1000 for each in nanoseconds]
    assert table.scan().to_table().column("t").cast(pa.int64()).to_pylist() == microseconds
    assert table.scan(col("t") < dt.datetime(1970, 1, 1)).count() == 2


def test_nanoseconds_beside_int96_are_refused(tmp_path: Path) -> None:
    """Nothing tells whether the instants of the one fit the other: INT96 has no bounds."""
    _write(tmp_path / "a.parquet", 0, [dt.datetime(9999, 1, 1)])
    rows = pa.table({"k": [1], "t": pa.array([1], pa.timestamp("ns"))})
    pq.write_table(rows, tmp_path / "b.parquet")
    with pytest.raises(ss.SchemaError, match="its instants do not all fit"):
        ss.create(tmp_path)
