"""`explain` and `Plan.reasons`: why files are kept, in codes that stay and in the column's own values."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import bare_table, commit_rows, declare, file_row, make_file, stats_of
from library_versions import array_of
from skipstone import col
from skipstone.engine.scan.reasons import Reason, parts_of


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    """Three files of two row groups each."""
    for number in range(3):
        columns = {
            "a": [10 * number + i for i in range(10)],
            "s": [f"{number}-{i}" for i in range(10)],
            "x": [None if i == 9 else float(i) for i in range(10)],
        }
        make_file(tmp_path, f"{number}.parquet", columns, row_group_size=5)
    return ss.create(tmp_path)


def _codes(table: ss.Table, where: object) -> dict[str, list[str]]:
    """The codes of each kept file."""
    found: dict[str, list[str]] = {}
    for row in table.scan(where).reasons().to_pylist():
        found.setdefault(row["path"], []).append(row["code"])
    return found


# -- codes ------------------------------------------------------------------------------------------------------------


def test_ranges_whole_matches_and_parts_that_exclude(table: ss.Table) -> None:
    assert _codes(table, "a = 5") == {"0.parquet": ["range_overlaps"]}
    assert _codes(table, "a < 10 AND s >= '0'") == {"0.parquet": ["matches_wholly", "matches_wholly"]}
    found = _codes(table, "a = 5 OR s = '2-1'")
    assert found == {"0.parquet": ["range_overlaps", "never_true"], "2.parquet": ["never_true", "range_overlaps"]}
    assert _codes(table, None) == {f"{n}.parquet": ["no_predicate"] for n in range(3)}
    assert _codes(table, "a < 0") == {}


def test_nulls_values_and_nan(table: ss.Table) -> None:
    assert set(map(tuple, _codes(table, "x IS NULL").values())) == {("nulls_possible",)}
    assert set(map(tuple, _codes(table, "x IS NOT NULL").values())) == {("values_possible",)}
    assert set(map(tuple, _codes(table, "x > 100").values())) == {("nan_possible",)}  # footers count no NaN
    assert set(map(tuple, _codes(table, "x > 3").values())) == {("range_overlaps",)}
    assert set(map(tuple, _codes(table, "NOT (x <=> 3.0) AND a >= 0").values())) == {
        ("range_overlaps", "matches_wholly")
    }


def test_filters(table: ss.Table) -> None:
    table.create_index("s", kind="bloom")
    assert _codes(table, "s = '1-3'") == {"1.parquet": ["filter_says_maybe"]}
    assert _codes(table, "s != '1-3' AND a > 25") == {"2.parquet": ["matches_wholly", "range_overlaps"]}


def test_what_is_not_understood(table: ss.Table) -> None:
    assert _codes(table, "regexp_matches(s, '^y') AND a = 5") == {
        "0.parquet": ["unsupported_predicate", "range_overlaps"]
    }
    assert set(map(tuple, _codes(table, "s LIKE '%x'").values())) == {("unsupported_predicate",)}
    assert set(map(tuple, _codes(table, "s LIKE '0%x'").values())) == {("range_overlaps",)}


def test_columns_and_files_without_statistics(tmp_path: Path) -> None:
    make_file(tmp_path / "some", "0.parquet", {"a": [1], "b": [1]})
    assert _codes(ss.create(tmp_path / "some", columns=["a"]), "b = 7") == {"0.parquet": ["no_statistics"]}
    declared = bare_table(tmp_path / "declared")
    declare(declared, file_row("bare"), file_row("counts", **stats_of(a=(None, None, 3))), file_row("vague"))
    assert _codes(declared, "a = 7") == {name: ["no_statistics"] for name in ("bare", "counts", "vague")}
    assert "neither footers nor the program that added the files report a" in declared.scan("a = 7").explain()
    declared.drop_index("a", kind="stats")
    assert "a statistics index on a would exclude more" in declared.scan("a = 7").explain()


def test_files_that_the_statistics_do_not_cover_yet(tmp_path: Path) -> None:
    make_file(tmp_path, "0.parquet", {"a": [1, 9]})
    table = ss.create(tmp_path, columns=[])
    table.create_index("a", kind="stats", maintain="refresh")
    commit_rows(table, {"a": [1, 9]})
    text = table.scan("a = 5").explain()
    assert "the statistics do not cover it yet" in text and "refresh_index() of the statistics on a covers them" in text
    table.refresh_index("a", kind="stats")
    assert "cover" not in table.scan("a = 5").explain().split("why files are kept")[1]


def test_slices_that_compute_and_bounds_that_cross(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    declare(
        table,
        file_row("base", file_group="g", kind="base", **stats_of(a=(3, 3, 0))),
        file_row("log", file_group="g", kind="log", merge="custom", **stats_of(a=(4, 4, 0))),
        file_row("crossed", **stats_of(a=(9, 1, 0))),
    )
    assert _codes(table, "a = 7") == {n: ["slice_with_logs"] for n in ("base", "log")} | {"crossed": ["no_statistics"]}
    assert "1 other files of its slice" in table.scan("a = 7").explain("log")


def test_files_that_are_kept_with_their_slice(tmp_path: Path) -> None:
    table = bare_table(tmp_path)
    group = {"file_group": "g", "slice_instant": "2"}
    declare(
        table,
        file_row("old", file_group="g", slice_instant="1", **stats_of(a=(15, 15, 0))),
        file_row("base", **group, kind="base", **stats_of(a=(1, 5, 0))),
        file_row("log", **group, kind="log", merge="whole", **stats_of(a=(10, 20, 0))),
    )
    plan = table.scan("a = 15")
    assert _codes(table, "a = 15") == {"base": ["never_true"], "log": ["range_overlaps"]}
    assert "  1  another file of its slice is kept" in plan.explain().splitlines()
    assert "together with the other files of its slice" in plan.explain("base")
    assert plan.explain("old") == "old: skipped: a later slice of its file group replaced it"
    assert table.scan("a = 7").explain("log").splitlines()[1:] == ['  "a" = 7: true for no row; values are in [10, 20]']
    assert table.layout("a").files == 2


def test_a_long_predicate_is_shown_by_its_beginning(table: ss.Table) -> None:
    listed = table.scan(col("x").is_in(list(range(20_000)))).explain()
    assert '"x" IN (0.0e0, 1.0e0' in listed and "19.0e0, ... 19,980 more)" in listed
    terms = table.scan(" AND ".join(f"x != {i} AND (x < {i} OR x > {i})" for i in range(150))).explain()
    assert '("x" < 0.0e0 OR "x" > 0.0e0)' in terms and " more" in terms
    assert len(listed) < 5_000 and len(terms) < 30_000


def test_every_kept_file_has_one_row_per_part_and_a_part_that_keeps_it(table: ss.Table) -> None:
    wheres = ["a = 5", "a = 5 OR x > 3", "NOT (a < 25 AND s LIKE '1%')", "a < x OR a IN (1, 11)", "a <> 5 OR x = 1"]
    for where in wheres:
        plan = table.scan(where)
        rows = plan.reasons()
        parts = parts_of(plan.bound)
        assert rows.num_rows == plan.files().num_rows * len(parts)
        assert rows.schema.names == ["path", "leaf", "code", "lower", "upper"]
        for codes in _codes(table, where).values():
            assert set(codes) <= {reason.value for reason in Reason} and set(codes) != {"never_true"}


# -- the evidence, in the column's own values -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "values", "where", "span"),
    [
        (pa.string(), ["N0EGMQ", "N999DN"], "v = 'N14228'", ("N0EGMQ", "N999DN")),
        (pa.string(), ["a\nb", "日本"], "v = 'c'", ("a\\nb", "日本")),
        (pa.string(), ["a" * 90, "z"], "v = 'c'", ("a" * 39 + "…", "z")),
        (pa.binary(), [b"\x00", b"\xff"], "v = X'01'", ("0x00", "0xff")),
        (pa.uint64(), [1, 2**64 - 1], "v = 7", ("1", "18446744073709551615")),
        (pa.float64(), [-1.5, math.inf], "v = 7", ("-1.5", "inf")),
        (pa.float16(), [1.0, 3.0], "v = 2", ("1", "3")),
        (pa.decimal128(9, 2), [1, 3], "v = 2", ("1.00", "3.00")),
        (pa.decimal128(38, 2), [1, 3], "v = 2", ("1.00", "3.00")),
        (pa.bool_(), [False, True], "v = true", ("false", "true")),
        (pa.date32(), [0, 366], "v = '1970-02-01'", ("1970-01-01", "1971-01-02")),
        (pa.timestamp("us", "UTC"), [0, 1500000], "v = '1970-01-01 00:00:01'", ("1970-01-01 00:00:00Z", None)),
        (pa.timestamp("ms"), [0, 2000], "v = '1970-01-01 00:00:01'", ("1970-01-01 00:00:00", "1970-01-01 00:00:02")),
        (pa.time64("us"), [0, 2_000_000], "v = '00:00:01'", ("00:00:00", "00:00:02")),
        (pa.duration("ms"), [0, 2000], "v > v", ("0 ms", "2000 ms")),
    ],
)
def test_bounds_are_shown_as_values_of_the_column(
    tmp_path: Path, kind: pa.DataType, values: list, where: str, span: tuple[str, str | None]
) -> None:
    array = pa.array(values, pa.int64()).cast(kind) if pa.types.is_duration(kind) else array_of(values, kind)
    make_file(tmp_path, "x.parquet", {"v": array})
    table = ss.create(tmp_path)
    if pa.types.is_duration(kind):
        where = ss.col("v") == dt.timedelta(seconds=1)
    rows = table.scan(where).reasons().to_pylist()
    assert [(r["code"], r["lower"]) for r in rows] == [("range_overlaps", span[0])]
    if span[1] is not None:
        assert rows[0]["upper"] == span[1]
        assert f"range overlaps [{span[0]}, {span[1]}]" in table.scan(where).explain("x.parquet")


# -- the texts --------------------------------------------------------------------------------------------------------


def test_a_kept_file_shows_its_leaves_then_its_row_groups(table: ss.Table) -> None:
    assert table.scan("a = 5 AND s >= '0'").explain("0.parquet").splitlines() == [
        "0.parquet: kept",
        '  "a" = 5: range overlaps [0, 9]',
        "  \"s\" >= '0': true for every row; values are in [0-0, 0-9]",
        "  row group 1 of 2 may match",
        '    1  "a" = 5: range overlaps [5, 9]',
    ]
    assert table.scan("a < 10").explain("0.parquet").splitlines() == [
        "0.parquet: kept: all of its rows match",
        "  row groups 0, 1 of 2 are read",
    ]


def test_a_skipped_file_shows_what_excludes_it(table: ss.Table) -> None:
    table.create_index("s", kind="bloom")
    assert table.scan("a = 5 AND x > 0").explain("1.parquet").splitlines() == [
        "1.parquet: skipped: no row of it can match",
        '  "a" = 5: true for no row; values are in [10, 19]',
        '  "x" > 0.0e0: range overlaps [0, 8]',
    ]
    text = table.scan("s = '1-33'").explain("1.parquet")
    assert text.splitlines()[1] == "  \"s\" = '1-33': the Bloom filter does not contain it"


def test_files_without_rows_and_without_row_groups(tmp_path: Path) -> None:
    make_file(tmp_path, "empty.parquet", {"a": pa.array([], pa.int64())})
    make_file(tmp_path, "one.parquet", {"a": [1]})
    table = ss.create(tmp_path)
    assert table.scan("a = 1").explain("empty.parquet").endswith("skipped: it has no rows")
    declared = bare_table(tmp_path / "declared")
    declare(declared, file_row("far", **stats_of(a=(1, 5, 0))))
    assert "not known, so all of it is read" in declared.scan("a = 3").explain("far")


def test_the_plan_shows_why_files_are_kept_and_what_would_help(table: ss.Table) -> None:
    text = table.scan("s <> '0-0' AND s = '1-33'").explain().splitlines()
    assert text[text.index("why files are kept") + 1 :] == [
        "  1  \"s\" = '1-33': range overlaps",
        "     - a Bloom filter on s would show which of them can contain the value",
    ]
    assert "sorting by x would help" in table.scan("x > 3").explain()
    assert "files that a transaction writes" in table.scan("x > 100").explain()
    assert "true for every row" in table.scan("a < 10").explain()
    for where in (None, "a < 0"):
        assert "why files are kept" not in table.scan(where).explain()


@pytest.mark.parametrize("kind, name", [("bloom", "Bloom filter index"), ("secondary", "secondary index")])
def test_an_index_that_lacks_files_is_to_be_refreshed(table: ss.Table, kind: str, name: str) -> None:
    table.create_index("s", kind=kind, maintain="refresh")
    commit_rows(table, {"a": [0, 9], "s": ["1-0", "1-9"], "x": [0.0, 1.0]})
    advice = f"the {name} on s does not cover them: refresh_index() does that"
    assert advice in table.scan("s = '1-33'").explain()
    table.refresh_index("s", kind=kind)
    assert "cover" not in table.scan("s = '1-33'").explain()
