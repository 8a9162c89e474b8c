"""Indexes of expressions. DuckDB over all rows in memory is the oracle."""

from __future__ import annotations

import datetime as dt
import json
import warnings
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from index_lakes import changed, expected, found, lake
from skipstone.engine.predicates import expressions
from skipstone.engine.scan.coarse_snapshot import coarse_of
from skipstone.engine.state import instant_fields

KINDS = ("bloom", "secondary")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("email", pa.string()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("ts", pa.timestamp("us")),
        ("payload", pa.string()),
    ]
)


def rows_of(count: int = 40, first: int = 0) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "id": list(numbers),
            "email": [None if i % 7 == 3 else f"User{i}@Mail.ORG" for i in numbers],
            "n": [None if i % 11 == 5 else i for i in numbers],
            "x": [float("nan") if i % 9 == 2 else i / 4 for i in numbers],
            "ts": [dt.datetime(2024, 1, 1) + dt.timedelta(minutes=11 * i) for i in numbers],
            "payload": [json.dumps({"user": {"id": f"u{i}", "n": i}, "kind": ["a", i]}) for i in numbers],
        },
        schema=SCHEMA,
    )


CASES = [  # the expression, a predicate that it serves, and one that uses another expression
    ("lower(email)", "lower(email) = 'user12@mail.org'", "upper(email) = 'USER12@MAIL.ORG'"),
    ("lower(email)", "lower(email) IN ('user12@mail.org', 'user30@mail.org')", "lower(payload) = 'x'"),
    ("LOWER( email )", "'user12@mail.org' = lower(email)", "lower(email || '') = 'user12@mail.org'"),
    ("payload->>'$.user.id'", "(payload->>'$.user.id') = 'u17'", "(payload->>'$.user') = 'u17'"),
    ("payload->>'$.user.id'", "payload->>'$.user.id' = 'u17' AND id >= 0", "payload->>'$.kind' = 'u17'"),
    ("json_extract_string(payload, '$.user.n')", "json_extract_string(payload, '$.user.n') = '21'", "n * 1 = 21"),
    ("n % 10", "n % 10 = 5 AND id < 10", "n % 9 = 5 AND id + 1 < 10"),
    ("n + 1", "n + 1 = 14", "n + 2 = 14"),
    ("date_trunc('hour', ts)", "date_trunc('hour', ts) = TIMESTAMP '2024-01-01 02:00:00'", "hour(ts) + 1 = 3"),
    ("substr(email, 5, 2)", "substr(email, 5, 2) = '12'", "substr(email, 5, 3) = '12@'"),
    (
        "greatest(n::DECIMAL(9, 2), 2.12)",
        "greatest(n::DECIMAL(9, 2), 2.12) = 14",
        "greatest(n::DECIMAL(9, 2), 2.125::DECIMAL(9, 2)) = 2.13",
    ),
    ("x * 2", "x * 2 = 'nan'::DOUBLE AND id < 9", "x * 3 = 'nan'::DOUBLE AND id + 0 < 9"),
]


@pytest.mark.some_cases(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("expression", "where", "other"), CASES)
def test_an_expression_prunes_what_names_it(tmp_path: Path, kind: str, expression: str, where: str, other: str) -> None:
    rows = rows_of()
    table = lake(tmp_path, rows)
    table.create_index(expression, kind=kind)
    assert found(table, where) == expected(rows, where)
    assert f"{kind}(" in str(table.scan(where).explain())
    assert table.scan(where).files().num_rows <= 2
    assert found(table, other) == expected(rows, other)
    assert f"{kind}(" not in str(table.scan(other).explain())
    assert found(table, f"NOT ({where})") == expected(rows, f"NOT ({where})")
    with table.transaction() as tx:
        tx.write(rows_of(20, 1000))
    (index,) = [one for one in table.indexes().to_pylist() if one["kind"] == kind]
    assert index["files_covered"] == index["files_total"]
    both = pa.concat_tables([rows, rows_of(20, 1000)])
    assert found(table, where) == expected(both, where)
    with pytest.raises(ss.InvalidArgumentError, match="already"):
        table.create_index(expression, kind=kind)
    table.drop_index(expression, kind=kind)
    assert table.handle.instant.derived == ()


STATS_OF = ("date_trunc('hour', ts)", "n + 1", "x * 2", "lower(email)", "n % 5")
VALUES = {
    "date_trunc('hour', ts)": "TIMESTAMP '2024-01-01 0{}:00:00'",
    "n + 1": "{}",
    "x * 2": "{}::DOUBLE",
    "lower(email)": "'user{}@mail.org'",
    "n % 5": "{}",
}
FORMS = ("{e} = {v}", "{e} < {v}", "{e} >= {v}", "{e} IN ({v}, {w})", "{e} BETWEEN {v} AND {w}", "NOT ({e} > {v})")
FORMS = (*FORMS, "{e} IS NULL", "{e} IS NOT NULL", "{e} > {v} OR id = 3", "{e} <> {v} AND {e} < {w}")


@settings(max_examples=examples(6))
@given(data=st.data())
def test_statistics_of_expressions_exclude_no_row(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chosen = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=30))
    rows = rows_of(61).take(pa.array(chosen))
    table = lake(tmp_path_factory.mktemp("lake"), rows, files=data.draw(st.integers(1, 5)))
    expressions = data.draw(st.lists(st.sampled_from(STATS_OF), min_size=1, max_size=2, unique=True))
    table.create_index(expressions, kind="stats")
    more = rows_of(61).take(pa.array(data.draw(st.lists(st.integers(0, 60), max_size=5)), pa.int64()))
    cut = data.draw(st.integers(0, more.num_rows))
    for part in (more.slice(0, cut), more.slice(cut)):
        if part.num_rows:
            with table.transaction() as tx:
                tx.write(part)
    if data.draw(st.booleans()):
        table.update({"n": "n + 1"}, where="id % 3 = 0")
        rows, more = (
            duckdb.sql("SELECT * REPLACE (CASE WHEN id % 3 = 0 THEN n + 1 ELSE n END AS n) FROM one").to_arrow_table()
            for one in (rows, more)
        )
    if data.draw(st.booleans()):
        table.delete("id % 4 = 1")
        both = pa.concat_tables([rows, more])
        rows, more = both.filter(pc.not_equal(pc.bit_wise_and(both["id"], 3), 1)), more.slice(0, 0)
    for _ in range(3):
        e = data.draw(st.sampled_from(expressions))
        v, w = (VALUES[e].format(data.draw(st.integers(0, 9))) for _ in range(2))
        where = data.draw(st.sampled_from(FORMS)).format(e=e, v=v, w=w)
        assert found(table, where) == expected(pa.concat_tables([rows, more]), where), where
        maintained = data.draw(st.sampled_from([table.optimize, lambda: table.sync(refresh=True), lambda: None]))
        maintained()


def test_statistics_of_an_expression_prune_files(tmp_path: Path) -> None:
    rows = rows_of()
    table = lake(tmp_path, rows)
    table.create_index(["n % 100", "lower(email)"], kind="stats")
    for where in ("n % 100 = 35", "lower(email) = 'user12@mail.org'", "n % 100 > 37 AND id >= 0"):
        assert found(table, where) == expected(rows, where)
        assert table.scan(where).files().num_rows <= 2, where
    assert table.scan("n % 99 = 35").files().num_rows > 1
    with table.transaction() as tx:
        tx.write(rows_of(20, 1000))
    assert table.scan("n % 100 = 35").files().num_rows == 1  # the commit kept the statistics of the expression
    assert found(table, "n % 100 = 35") == [35]
    pq.write_table(rows_of(20, 2000), tmp_path / "attached.parquet")
    table.sync()
    assert table.scan("n % 100 = 35").files().num_rows == 2  # no task wrote this file
    table.refresh_index("n % 100", kind="stats")
    assert table.scan("n % 100 = 35").files().num_rows == 1
    version = table.version
    table.optimize()
    assert found(table, "n % 100 = 35") == [35]
    table.drop_index("lower(email)", kind="stats")
    assert table.version > version and len(table.handle.instant.derived) == 1
    with pytest.raises(ss.SchemaError, match="bloom, secondary"):
        lake(tmp_path / "lists", pa.table({"id": [1], "tags": [[1]]})).create_index("tags", kind="stats")


def test_ranges_and_prefixes_by_a_secondary_index(tmp_path: Path) -> None:
    rows = rows_of()
    table = lake(tmp_path, rows)
    table.create_index("lower(email)", kind="secondary")
    table.create_index(["n % 10", "email"], kind="secondary")
    for where in (
        "lower(email) LIKE 'user1%'",
        "lower(email) >= 'user35' AND lower(email) < 'user37'",
        "lower(email) IS NULL",
        "lower(email) BETWEEN 'user2' AND 'user21'",
        "n % 10 = 3 AND email = 'User13@Mail.ORG'",
    ):
        assert found(table, where) == expected(rows, where)
        assert "secondary(" in str(table.scan(where).explain()), where


REFUSED = [
    ("random() + n", "random"),
    ("sum(n)", "sum"),
    ("(SELECT 1) + n", "subquery"),
    ("n + now()", "."),
    ("list_value(n)", "order"),
    ("{'a': n}", "."),
    ("1 + 2", "no expression of columns"),
    ("nope + 1", "nope"),
    ("date_trunc('hour', ts::TIMESTAMPTZ)", "time zone"),
    ("strftime(ts::TIMESTAMPTZ, '%H')", "time zone"),
    ("CASE WHEN n > 1 THEN 1 ELSE 2 END", "cannot be indexed"),
    ("least(n::DECIMAL(9, 2), 1.005::DECIMAL(9, 2))", "cannot be indexed"),
    ("id, n", "."),
    ("lower(email", "."),
]


def test_expressions_that_are_refused(tmp_path: Path) -> None:
    table = lake(tmp_path, rows_of())
    for text, message in REFUSED:
        with pytest.raises((ss.SchemaError, ss.PredicateError), match=message):
            table.create_index(text, kind="bloom")
        assert table.version == 1, text


def test_a_column_of_that_name_wins(tmp_path: Path) -> None:
    rows = pa.table({"a": [1, 2], "a + 1": [7, 9]})
    pq.write_table(rows, tmp_path / "a.parquet")
    table = ss.create(tmp_path)
    table.create_index("a + 1", kind="secondary")
    assert table.indexes().to_pylist()[-1]["columns"] == ["a + 1"]
    assert table.scan('"a + 1" = 9').to_table()["a"].to_pylist() == [2]
    assert table.scan("a + 1 = 3").to_table()["a"].to_pylist() == [2]
    assert table.scan("a + 1 = 9").count() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_documents_that_duckdb_refuses_raise_as_in_duckdb(tmp_path: Path, kind: str) -> None:
    """Their file is not covered, so that it is read by each query, which raises."""
    rows = rows_of(8)
    bad = rows.set_column(5, "payload", pa.array(["{", *rows["payload"].to_pylist()[1:]]))
    pq.write_table(rows, tmp_path / "good.parquet")
    pq.write_table(bad, tmp_path / "bad.parquet")
    table = ss.create(tmp_path)
    with pytest.warns(UserWarning, match="not indexed"):
        table.create_index("payload->>'$.user.id'", kind=kind)
    (index,) = [one for one in table.indexes().to_pylist() if one["kind"] == kind]
    assert (index["files_covered"], index["files_total"]) == (1, 2)
    with pytest.raises(ss.PredicateError):
        table.scan("(payload->>'$.user.id') = 'nobody'").to_table()
    with table.transaction() as tx:
        tx.write(bad)
    (index,) = [one for one in table.indexes().to_pylist() if one["kind"] == kind]
    assert (index["files_covered"], index["files_total"]) == (1, 3)


DOCUMENTS = st.sampled_from(
    [
        None, "{}", "null", "7", '"a"', "[1, 2]", '{"a": 1}', '{"a": "1"}', '{"a": 1.0}', '{"a": null}',
        '{"a": {"b": 1}}', '{"a": [1]}', '{"a": "x", "a": "y"}', '{"a": true}', '{"a": "\\u00e4"}', '{"a": "ä"}',
        '{"a": 1e0}', '{"a": 12345678901234567890123}', '{"A": 1}', '{"a": ' + "[" * 60 + "1" + "]" * 60 + "}",
        ' {"a" : "x" } ',
    ]
)  # fmt: skip
SOUGHT = st.sampled_from(["1", "1.0", "x", "y", "ä", "true", "null", "", "[1]", '{"b":1}', "12345678901234567890123"])


@given(documents=st.lists(DOCUMENTS, min_size=4, max_size=24), sought=SOUGHT, kind=st.sampled_from(KINDS))
@settings(max_examples=examples(3))
def test_random_documents_return_what_duckdb_does(
    documents: list, sought: str, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = pa.table({"id": pa.array(range(len(documents)), pa.int64()), "j": pa.array(documents, pa.string())})
    table = lake(tmp_path_factory.mktemp("lake"), rows)
    table.create_index("j->>'$.a'", kind=kind)
    for path in ("j->>'$.a'", "j->>'a'", "json_extract_string(j, '$.a')"):
        assert found(table, f"({path}) = '{sought}'") == expected(rows, f"({path}) = '{sought}'")


TEXTS = ["email", "lower(email)", "upper({0})", "trim({0})", "substr({0}, 2, 3)", "reverse({0})", "{0} || 'x'"]
TEXTS += ["left({0}, 4)"]
WHOLE = ["n", "n + 1", "abs({0})", "{0} * 2", "{0} - 7", "{0} % 5", "length(email)"]


@given(data=st.data())
@settings(max_examples=examples(3))
def test_random_expressions_return_what_duckdb_does(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    forms = data.draw(st.sampled_from([TEXTS, WHOLE]))
    expression = forms[0]
    for _ in range(data.draw(st.integers(1, 3))):
        expression = data.draw(st.sampled_from(forms[1:])).format(expression)
    rows = rows_of(24)
    table = lake(tmp_path_factory.mktemp("lake"), rows)
    kind = data.draw(st.sampled_from(KINDS))
    if expression in ("email", "n"):
        return
    table.create_index(expression, kind=kind)
    values = expected(rows, f"{expression} IS NOT NULL", expression)
    value = data.draw(st.sampled_from(values))
    text = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
    for where in (f"{expression} = {text}", f"{expression} <> {text}", f"{expression} IN ({text}, NULL)"):
        assert found(table, where) == expected(rows, where), where


def test_changes_of_the_schema(tmp_path: Path) -> None:
    """Renames of the columns within follow; a drop drops the index, and reports it."""
    rows = rows_of()
    table = lake(tmp_path, rows)
    table.create_index("lower(email)", kind="secondary")
    table.create_index("n + 1", kind="bloom")
    before = table.version
    table.alter(rename={"email": "address"})
    shown = [one["columns"] for one in table.indexes().to_pylist() if one["kind"] == "secondary"]
    assert shown == [["lower(address)"]]
    renamed = rows.rename_columns(["id", "address", *rows.column_names[2:]])
    where = "lower(address) = 'user12@mail.org'"
    assert found(table, where) == expected(renamed, where)
    assert "secondary(lower(address))" in str(table.scan(where).explain())
    with table.transaction() as tx:
        tx.write(renamed.slice(12, 1))
    assert found(table, where) == [12, 12]
    table.alter(widen={"n": pa.int64()})
    assert found(table, "n + 1 = 14") == expected(renamed, "n + 1 = 14")
    with table.transaction() as tx:
        tx.write(renamed.slice(13, 1).set_column(2, "n", pa.array([13], pa.int64())))
    assert found(table, "n + 1 = 14") == [13, 13]
    table.restore(before)
    assert found(table, where) == expected(renamed, where)
    with pytest.warns(UserWarning, match="lower"):
        table.alter(drop="address")
    assert [one["kind"] for one in table.indexes().to_pylist()] == ["stats", "bloom"]
    assert ss.open(tmp_path).verify(deep=True) == []


def test_another_version_of_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that are not pinned serve under the version that built the index; else `explain` says what to do."""
    rows = rows_of()
    table = lake(tmp_path, rows)
    table.create_index("lower(email)", kind="bloom")
    table.create_index("reverse(email)", kind="bloom")
    pinned, other = "lower(email) = 'user12@mail.org'", "reverse(email) = 'GRO.liaM@21resU'"
    assert table.scan(other).files().num_rows == 1
    monkeypatch.setattr(expressions, "version", lambda: "0.9.7")
    assert table.scan(pinned).files().num_rows == 1
    plan = table.scan(other)
    assert plan.files().num_rows == 4
    assert "rebuild" in str(plan.explain())
    assert found(table, other) == [12]
    with table.transaction() as tx:
        tx.write(rows.slice(12, 1))
    assert [one["files_covered"] for one in table.indexes().to_pylist() if one["kind"] == "bloom"] == [5, 4]
    table.refresh_index("reverse(email)", "bloom")
    assert table.scan(other).files().num_rows == 2
    assert found(table, other) == [12, 12]


GOLDEN = [  # (expression over the columns, value): in every version of DuckDB
    ("lower('ÄBC ß İ')", "äbc ß i"),
    ("upper('äbc ß ŉ')", "ÄBC ẞ ŉ"),
    ("length('añ😀')", 3),
    ("strlen('añ😀')", 7),
    ("substr('añ😀b', 2, 2)", "ñ😀"),
    ("substring('abc', -2, 2)", "bc"),
    ("left('añ😀', 2)", "añ"),
    ("right('añ😀', 1)", "😀"),
    ("trim('  a ')", "a"),
    ("ltrim('  a ')", "a "),
    ("rtrim('  a ')", "  a"),
    ("replace('aXbX', 'X', '')", "ab"),
    ("'a' || 'b'", "ab"),
    ("concat('a', NULL, 'b')", "ab"),
    ("abs(-7)", 7),
    ("7 - 9", -2),
    ("7 * 6", 42),
    ("date_trunc('week', TIMESTAMP '1969-12-30 23:00:00')::TIMESTAMP", dt.datetime(1969, 12, 29)),
    ("date_trunc('hour', TIMESTAMP '1969-12-31 23:59:59.999999')", dt.datetime(1969, 12, 31, 23)),
    ("year(DATE '0001-01-01')", 1),
    ("month(TIMESTAMP '2024-02-29 00:00:00')", 2),
    ("day(DATE '2024-02-29')", 29),
    ("hour(TIMESTAMP '2024-02-29 23:59:59')", 23),
    ("'{\"a\": {\"b\": 1.50}}'->>'$.a.b'", "1.5"),
    ('\'{"a": "x", "a": "y"}\'->>\'$.a\'', "x"),
    ("'{\"a\": null}'->>'$.a'", None),
    ('\'{"a": [1, {"c": "ä"}]}\'->>\'$.a[1].c\'', "ä"),
    ("json_extract_string('{\"a\": true}', 'a')", "true"),
    ("json_extract_string('[1, 2]', '$[1]')", "2"),
]


def test_pinned_functions_have_the_values_of_the_table() -> None:
    with duckdb.connect() as connection:
        for text, value in GOLDEN:
            assert connection.execute(f"SELECT {text}").fetchone() == (value,), text


def test_the_table_has_every_pinned_function() -> None:
    texts = " ".join(text for text, _ in GOLDEN)
    assert not [
        name
        for name in expressions.PINNED - {"+"}
        if f"{name}(" not in texts and f" {name} " not in texts and f"'{name}'" not in texts
    ]


NODES = [
    ["column", "INTEGER", 5],
    ["lower", "VARCHAR"],
    ["lower(email); DROP", "VARCHAR", ["column", "VARCHAR", 0]],
    ["lower", "VARCHAR) FROM x; --", ["column", "VARCHAR", 0]],
    ["read_text", "VARCHAR", ["constant", "VARCHAR", "/etc/passwd"]],
    ["constant", "VARCHAR", ["x"]],
    "lower(email)",
]


@pytest.mark.parametrize("node", NODES, ids=str)
def test_hostile_expressions_are_damage_or_cover_nothing(tmp_path: Path, node: Any) -> None:
    table = lake(tmp_path, rows_of())
    table.create_index("lower(email)", kind="bloom")
    sealed = changed(table, lambda plain: plain["derived"][0]["expression"].update(node=node))
    if node == NODES[4]:  # it is well formed, and DuckDB may not compute it
        instant = instant_fields.parse_instant(sealed, path="x")
        schema = pa.schema([])
        with pytest.raises(ss.SchemaError, match="read_text"):
            expressions.Computation(instant.derived[0].expression.node, schema, "").values([])
        return
    with pytest.raises(ss.CorruptionError):
        instant_fields.parse_instant(sealed, path="x")


def test_advice_names_expressions(tmp_path: Path) -> None:
    table = lake(tmp_path, rows_of(2000), files=20, group=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        advice = table.advise(["lower(email) = 'user12@mail.org'", "lower(email) = 'user1999@mail.org'"])
    assert ("lower(email)",) in [one.columns for one in advice.suggestions if one.kind in KINDS]


def test_a_coarse_copy_leaves_expressions_out(tmp_path: Path) -> None:
    table = lake(tmp_path, rows_of())
    table.create_index("lower(email)", kind="bloom")
    coarse = coarse_of(table.handle, ["n"])
    kept = dict(coarse.prune([str(tmp_path / f"{i}.parquet") for i in range(4)], "n < 5"))
    assert [Path(path).name for path in kept] == ["0.parquet"]
