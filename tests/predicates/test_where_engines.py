"""Parts of a predicate that another engine tests: what they may be, what they may not, and all that a plan answers."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone import col
from skipstone.engine.predicates.sql_allowed import has_low_arrow

ROWS = pa.table(
    {
        "n": pa.array(range(40), pa.int64()),
        "k": pa.array([i // 10 for i in range(40)], pa.int32()),
        "s": pa.array([None if i % 7 == 3 else "abC"[i % 3] * (1 + i % 2) for i in range(40)]),
        "d": pa.array([None if i % 5 == 4 else [0.5, float("nan"), -1.0, 7.0][i % 4] for i in range(40)]),
        "ts": pa.array([dt.datetime(2024, 1, 1) + dt.timedelta(hours=i) for i in range(40)], pa.timestamp("us")),
        "tags": pa.array([["x"] * (i % 3) if i % 4 else None for i in range(40)]),
    }
)


def _write(root: Path) -> None:
    for k in range(4):
        pq.write_table(ROWS.slice(k * 10, 10), root / f"{k}.parquet", row_group_size=5)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ss.Table:
    root = tmp_path_factory.mktemp("engines")
    _write(root)
    table = ss.create(root)
    table.create_index("n", kind="secondary")
    table.create_index("k", kind="bloom")
    return table


def _numbers(plan: ss.Plan) -> list[int]:
    return sorted(plan.to_table().column("n").to_pylist())


# -- a plan with such parts -------------------------------------------------------------------------------------------


def test_counts_extremes_limits_and_columns(table: ss.Table) -> None:
    plan = table.scan("n % 7 = 3 AND k >= 1", columns=["s"], limit=2)
    assert plan.count() == 5 and plan.min("n") == 10 and plan.max("n") == 38
    assert plan.to_table().column_names == ["s"] and plan.to_table().num_rows == 2
    assert table.scan("k = 1 AND n + 0 >= 0").count() == 10, "never counted from metadata alone"
    assert table.scan("1 + 1 = 2").count() == 40 and table.scan("lower('A') = 'b'").count() == 0
    assert table.scan("k = 1 AND length('ab') = 2").count() == 10


def test_explain_says_who_tests_what(table: ss.Table) -> None:
    text = table.scan("k = 2 AND lower(s) = 'aa'").explain()
    assert "tested on the rows by DuckDB, so it prunes nothing: lower(s) = 'aa'" in text
    text = table.scan((pc.field("k") == 2) & (pc.utf8_lower(pc.field("s")) == "aa")).explain()
    assert "tested on the rows by pyarrow" in text
    assert "lower(s) = 'aa'" in table.scan("k = 2 AND lower(s) = 'aa'").explain("2.parquet")
    table.scan("lower(s) = 'aa'").reasons()


def test_another_engine_sees_only_rows_that_are_left(table: ss.Table) -> None:
    """A cast that fails for rows of other files, or that another test excludes, does not fail."""
    assert table.scan("s::INT = 1 AND s IS NULL").count() == 0
    assert table.scan("s IS NOT NULL OR s::INT = 1").count() == len(ROWS) - ROWS["s"].null_count
    for wrong in ("s::INT = 1", "s LIKE 'a!' ESCAPE '!'", "s LIKE 'a' ESCAPE 'ab'"):
        with pytest.raises(ss.PredicateError):
            table.scan(wrong).count()


# -- parameters and the clock -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "params", "plain"),
    [
        ("n = ?", [7], "n = 7"),
        ("n > ? AND n < ?", [3, 6], "n IN (4, 5)"),
        ("n = $b OR n = $a", {"a": 1, "b": 2}, "n IN (1, 2)"),
        ("n = $2 OR n = $1", [1, 2], "n IN (1, 2)"),
        ("n IN ?", [[1, 2, 3]], "n IN (1, 2, 3)"),
        ("n IN ?", [np.array([1, 2]).tolist()], "n IN (1, 2)"),
        ("lower(s) = ? AND k = ?", ["a", 1], "lower(s) = 'a' AND k = 1"),
        ("s = ?", ["it's' OR TRUE --"], "FALSE"),
        ("s = ?", ["$a ? now()"], "FALSE"),
        ("s IS NOT DISTINCT FROM ?", [None], "s IS NULL"),
        ("ts < ?", [dt.datetime(2024, 1, 1, 2)], "n < 2"),
        ("ts = ?", [np.datetime64("2024-01-01T03", "h")], "n = 3"),
        ("ts >= $t", {"t": dt.datetime(2024, 1, 2, 14, tzinfo=dt.UTC)}, "n >= 38"),
        ("ts::DATE = ?", [dt.date(2024, 1, 2)], "ts >= '2024-01-02'"),
        ("n = ? - 1", [decimal.Decimal("8")], "n = 7"),
        ("n = 0 - ?", [-7], "n = 7"),
        ("d = ?", [float("nan")], "isnan(d)"),
        ("len(tags) = ?", [2], "len(tags) = 2"),
        ("list_contains(?, n)", [[1, 5]], "n IN (1, 5)"),
    ],
)
def test_parameters_are_values(table: ss.Table, where: str, params: object, plain: str) -> None:
    assert _numbers(table.scan(where, params=params)) == _numbers(table.scan(plain))


@pytest.mark.parametrize(
    ("where", "params"),
    [("n = ?", None), ("n = ?", []), ("n = ?", [1, 2]), ("n = $a", {"b": 1}), ("n = $a", {}), ("n = 1", [1]),
     ("n = ?", {"a": 1}), ("n = $a", [1]), ("n = ?", "1"), ([("n", "=", 1)], [1]), ("n = ?", [object()])],
)  # fmt: skip
def test_parameters_that_do_not_fit_are_refused(table: ss.Table, where: object, params: object) -> None:
    with pytest.raises(ss.PredicateError):
        table.scan(where, params=params)


def test_the_clock_is_read_once_a_plan(table: ss.Table) -> None:
    plan = table.scan("ts < now() AND now() = current_timestamp")
    assert plan.count() == 40 and str(plan.bound) == str(plan.bound)
    assert table.scan("ts > now()").files().num_rows == 0, "it prunes"
    assert table.scan("ts + INTERVAL 1 DAY < now() AND date_trunc('day', ts) < today()").count() == 40


# -- what is refused --------------------------------------------------------------------------------------------------

REFUSED = """
(SELECT 1) = 1
n IN (SELECT 1)
EXISTS (SELECT 1)
n = ANY (SELECT 1)
n = (FROM range(3))
SELECT 1
row_number() OVER () = 1
sum(n) > 1
count(*) > 1
max(n) = 3
unnest(tags) = 'x'
random() > 0.5
uuid() = s
gen_random_uuid() = s
nextval('q') = 1
setseed(0.5) IS NULL
current_setting('threads') = '1'
current_database() = 'memory'
current_user = 'duckdb'
current_query() = ''
version() = '' AND getvariable('x') = 1
getenv('HOME') = '/root'
version() LIKE 'v%'
json_serialize_plan('SELECT current_setting(''secret_directory'')', optimize := true) LIKE '%/%'
json_serialize_sql('SELECT 1') LIKE '%'
txid_current() > 0
pg_sleep(1) IS NULL
sleep_ms(1000) IS NULL
read_text('/etc/passwd') = ''
n IN (SELECT content FROM read_text('/etc/passwd'))
s = (SELECT content FROM read_csv('/etc/passwd'))
EXISTS (FROM '/etc/passwd')
EXISTS (FROM ROWS)
n = 1) FROM range(10) WHERE (true
n = 1; DROP TABLE x
ATTACH 'x.db'
COPY t TO 'x'
PRAGMA version
SET threads = 4
LOAD httpfs
* = 1
COLUMNS(*) = 1
#1 = 1
ago(INTERVAL 1 DAY) < ts
age(ts) > INTERVAL 1 DAY
no_such_function(n) = 1
lower(nothing) = 'a'
length(s, s, s) = 1
s + 1 = INTERVAL 1 DAY
ts
tags
n = 1 AND
lower(s = 'a'
error('x') = 1
query('SELECT 1') = 1
s LIKE 'a' ESCAPE '\\' '
""".strip().splitlines()


@pytest.mark.parametrize("where", REFUSED)
def test_what_is_no_row_predicate_is_refused_when_it_is_planned(table: ss.Table, where: str) -> None:
    with pytest.raises(ss.PredicateError) as caught:
        table.scan(where)
    assert caught.value.text


def test_a_refusal_shows_the_place(table: ss.Table) -> None:
    for where, what in (("k = 1 AND lower(s) = 'a' || random()", "random()"), ("abs(n) = (SELECT 1)", "(SELECT 1)")):
        with pytest.raises(ss.PredicateError) as caught:
            table.scan(where)
        error = caught.value
        assert error.text[error.position :].startswith(what)


def test_a_text_of_which_duckdb_says_nothing_is_refused(table: ss.Table) -> None:
    with pytest.raises(ss.PredicateError):  # DuckDB 1.4 ends the text at the NUL
        table.scan("ts >= TIMESTAMP '2024-01-05 12:00:0\0s LIKE '%b'0\xff.5'")
    with pytest.raises(ss.PredicateError, match=r"not a predicate|DuckDB cannot test this"):  # DuckDB 2, and 1
        table.scan("ts >= TIMESTAMP '2024-01-05 12:00:s LIKE '%b'0\xff.5'")


def test_a_name_hints_at_its_like(table: ss.Table) -> None:
    with pytest.raises(ss.PredicateError, match="did you mean tags"):
        table.scan("len(tagz) = 1")
    assert _numbers(table.scan("LEN(TAGS) = 2 AND N < 6")) == [2, 5]
    with pytest.raises(ss.PredicateError, match="case matters"):
        table.scan(col("TAGS").is_null())


def test_names_that_differ_in_case_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2], "A": [2, 1], "n": [0, 1]}), tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    assert _numbers(table.scan('"A" = 1')) == [1] and _numbers(table.scan("a = 1 AND abs(a) = 1")) == [0]
    assert _numbers(table.scan((col("a") == 2) & (col("A") == 1))) == [1]
    for where in ('abs(a) = abs("A")', 'a = 1 OR "A" = 1'):
        with pytest.raises(ss.PredicateError, match="in case alone"):
            table.scan(where)


def test_an_arrow_above_a_comparison_gets_a_hint(tmp_path: Path) -> None:
    texts = ['{"user": "ann"}', '{"user": "bob"}', None]
    for day, payload in enumerate(texts, 1):
        row = {"payload": pa.array([payload]), "day": pa.array([dt.date(2024, 1, day)]), "l": pa.array([[day]])}
        pq.write_table(pa.table(row), tmp_path / f"{day}.parquet")
    table = ss.create(tmp_path)
    plan = table.scan("payload->>'user' = 'bob' AND day >= '2024-01-02'")
    assert plan.files().num_rows == 2 and plan.count() == 1, "the date prunes"
    for where, is_low in {
        "payload->'user' = '\"bob\"'": True,
        "(payload->'user') = '\"bob\"'": False,
        "payload->>'user' = 'bob'": False,
        "len(list_filter(l, x -> x > 1)) = 1": False,
        "payload->>'user' IN ('bob') AND len(list_filter(l, lambda x: x > 1)) = 1": False,
    }.items():
        assert has_low_arrow(where) == is_low, where
        try:
            shown = str(table.scan(where).explain())
        except ss.PredicateError:  # DuckDB cannot bind it
            continue
        assert ("in parentheses" in shown) == is_low, where


# -- other engines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "file_count"),
    [
        ((pc.field("k") == 2) & (pc.field("n") + 1 > 25), 1),
        ((pc.field("k") == 2) & pc.starts_with(pc.field("s"), "A", ignore_case=True), 1),
        (~(pc.field("n") * 2 > 60), 4),
        (pc.is_in(pc.field("n"), value_set=pa.array([1, 3]), skip_nulls=True) | (pc.field("k") == 3), 4),
        (pc.if_else(pc.field("k") == 1, pc.field("n") > 15, pc.field("s") == "a"), 4),
        (pc.field("d").is_null(nan_is_null=True) & (pc.field("k") < 1), 1),
        (pc.list_value_length(pc.field("tags")) == 2, 4),
        (pc.field("d").cast(pa.int64(), safe=False) == 0, 4),
        (pc.match_substring_regex(pc.field("s"), "^b+$"), 4),
    ],
    ids=str,
)
def test_pyarrow_tests_what_is_pyarrows(table: ss.Table, expression: pc.Expression, file_count: int) -> None:
    plan = table.scan(expression)
    assert plan.files().num_rows == file_count
    assert _numbers(plan) == sorted(ROWS.filter(expression)["n"].to_pylist())
    assert plan.count() == ROWS.filter(expression).num_rows


def test_pyarrow_expressions_that_pyarrow_refuses(table: ss.Table) -> None:
    for expression in (pc.field("n") + 1, pc.field("nothing") + 1 > 2, pc.field("s") + 1 > 2):
        with pytest.raises(ss.PredicateError):
            table.scan(expression)


def test_polars_expressions(table: ss.Table) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.from_arrow(ROWS)
    for expression, file_count in (
        (pl.col("k") == 2, 1),
        ((pl.col("k") == 2) & (pl.col("s") == "a") & pl.col("d").is_not_null(), 1),
        ((pl.col("k") == 2) & (pl.col("s").str.to_lowercase() == "aa"), 1),
        (pl.col("n").is_in([1, 25]), 2),
        (~(pl.col("k") <= 1) & (pl.col("ts") < dt.datetime(2024, 1, 2)), 1),
        (pl.col("s").is_null() | (pl.col("n") % 2 == 0), 4),
        (pl.col("tags").list.len() == 2, 4),
    ):
        plan = table.scan(expression)
        assert _numbers(plan) == sorted(frame.filter(expression)["n"].to_list()), str(expression)
        assert plan.files().num_rows == file_count, str(expression)
    assert table.scan(pl.col("n").is_in([1, 2**64 - 1, None])).count() == 1
    for expression in (pl.col("n") + 1, pl.col("nothing") == 1, pl.col("nothing").abs() == 1):
        with pytest.raises(ss.PredicateError):
            table.scan(expression)


# -- how large a predicate may be --------------------------------------------------------------------------------------


def test_a_list_that_is_a_parameter_is_never_text(table: ss.Table) -> None:
    numbers = [*range(5, 100), *range(10**18, 10**18 + 52_000)]  # as text more than a predicate may have
    assert _numbers(table.scan("n IN ?", params=[numbers])) == list(range(5, 40))
    assert _numbers(table.scan("k < 3 AND NOT n NOT IN $l", params={"l": numbers})) == list(range(5, 30))
    assert _numbers(table.scan("s IN ? OR n = $2", params=[["AbC", "aa", None, *map(str, numbers)], 1])) == [
        n for n, s in enumerate(ROWS["s"].to_pylist()) if s == "aa" or n == 1
    ]
    assert table.scan("n IN ?", params=[[]]).count() == 0
    assert table.scan("n NOT IN ?", params=[[1, None]]).count() == 0
    assert _numbers(table.scan("n::SMALLINT IN ? AND n < 5", params=[(1, 2)])) == [1, 2]
    assert _numbers(table.scan("lower(s) IN ? AND n < 9", params=[{"a", "b"}])) == [
        n for n, s in enumerate(ROWS["s"].to_pylist()[:9]) if s is not None and s.lower() in ("a", "b")
    ]
    with pytest.raises(ss.PredicateError, match="test the column itself"):
        table.scan("lower(s) IN ?", params=[[*map(str, numbers)]])


def test_what_is_too_large_is_refused_with_the_way_out(table: ss.Table) -> None:
    with pytest.raises(ss.PredicateError, match=r"1,000,000.*params") as caught:
        table.scan("n IN (" + ",".join(map(str, range(200_000))) + ")")
    assert len(str(caught.value)) < 1_000
    pattern = "%a_" + "b%_" * 30_000
    with pytest.raises(ss.PredicateError, match="LIKE pattern has 90,003 characters"):
        table.scan(col("s").like(pattern))
    assert table.scan(f"s LIKE '{pattern}'").count() == 0, "DuckDB tests it"
    long = "a" * 100_000
    assert table.scan(col("s").like(long)).count() == table.scan(col("s").like(long + "%")).count() == 0
    assert table.scan(col("s").like("%a_" + "b%_" * 16_000)).count() == 0


@pytest.mark.parametrize("value", [10**5000, -(10**5000), decimal.Decimal("1e5000")], ids=["int", "less", "decimal"])
def test_a_number_of_too_many_digits(table: ss.Table, value: object) -> None:
    for ask in (
        lambda: table.scan("n = ?", params=[value]),
        lambda: table.scan("n IN ?", params=[[value]]),
        lambda: table.scan(col("n") == value),
        lambda: table.scan([("n", "=", value)]),
        lambda: table.lookup([value], on="n").count(),
    ):
        with pytest.raises(ss.SkipstoneError):
            ask()


# -- floats compared with integers -------------------------------------------------------------------------------------


def test_floats_compared_with_integers(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "u": pa.array([2**63, 2**63 + 1, 2**64 - 1, 5, None], pa.uint64()),
            "i": pa.array([2**53, 2**53 + 1, 2**62, 5, None], pa.int64()),
        }
    )
    pq.write_table(rows, tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    connection = duckdb.connect(":memory:")
    connection.register("lake", rows)
    for name, value in [("u", 2.0**63), ("u", 2.0**64), ("i", 2.0**53), ("i", 2.0**62), ("i", 5.0)]:
        exact = sum(one is not None and one == value for one in rows[name].to_pylist())
        where = f"{name} = {value!r}" + ("" if "e" in repr(value) else "e0")
        as_doubles = connection.execute(f"SELECT count(*) FROM lake WHERE {where}").fetchall()[0][0]
        assert table.scan(where).count() == table.scan(f"{name} = ?", params=[value]).count() == as_doubles, where
        for plan in (table.scan(col(name) == value), table.scan([(name, "=", value)]), table.lookup([value], on=name)):
            assert plan.count() == plan.to_table().num_rows == exact, where


# -- polars expressions over several rows -----------------------------------------------------------------------------


def test_polars_expressions_that_read_other_rows_are_refused(table: ss.Table) -> None:
    """Each part of the rows would have another sum, and each file another first row."""
    pl = pytest.importorskip("polars")
    n = pl.col("n")
    for test in (
        *(n.sum() > 5, n == n.max(), pl.len() > 2, n.cum_sum() > 2, n.rank() > 1, n.shift(1) > 1, n.quantile(0.5) > 1),
        *(n.max().over("s") > 1, n.sort() > 1, n.is_first_distinct(), n.is_unique(), (n > 1).any(), n.diff() > 1),
        *(n.fill_null(strategy="forward") > 1, n.arg_max() > 1, n.bitwise_and() > 1, n.peak_max(), n.reverse() > 1),
        *(n.filter(n > 1) > 1, n.cumulative_eval(pl.element().sum()) > 1, pl.col("s").str.join() == "x"),
        *(n.is_in([1, 2]) & (n.sum() > 2), ~(n.is_null() | (n.mean() > 2))),
    ):
        with pytest.raises(ss.PredicateError, match="by itself"):
            table.scan(test).to_table()
    frame = pl.from_arrow(ROWS)
    for test in (
        *(n.abs() > 1, n.clip(1, 2) == 2, pl.when(n > 1).then(True).otherwise(False), n.hash() == 0, n.log() > 1),
        *(pl.col("s").str.slice(0, 1) == "a", pl.col("s").str.reverse() == "b", pl.any_horizontal(n > 1, n < 0)),
        pl.when(pl.lit(True)).then(True).otherwise(n > 1),  # polars makes a constant of it
    ):
        assert table.scan(test).count() == frame.filter(test).height


# -- polars' is_between with nulls -------------------------------------------------------------------------------------


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("ends", [(None, 5), (5, None), (None, None), (3, 7)])
@pytest.mark.parametrize("closed", ["both", "left", "right", "none"])
def test_polars_between_with_a_null(table: ss.Table, ends: tuple[int | None, int | None], closed: str) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(ROWS)
    for name in ("n", "d"):
        between = polars.col(name).is_between(*ends, closed=closed)
        for test in (between, ~between, between.is_null() & (polars.col("n") < 9)):
            assert _numbers(table.scan(test)) == frame.filter(test)["n"].to_list()
