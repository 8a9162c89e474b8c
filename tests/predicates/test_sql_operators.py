"""IS [NOT] DISTINCT FROM, LIKE with an escape of any character, and constants of dates and times."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.engine.predicates import duckdb_trees, prepare, terms_of
from skipstone.engine.predicates.duckdb_engine import constants
from skipstone.engine.predicates.duckdb_trees import Bound
from skipstone.engine.predicates.sql_operands import _plain_constant

TEXTS = ["a_b", "axb", "a%b", "a!b", "a\\b", "a'b", "aéb", "", None]
NUMBERS = [1, 2, None, 1, 2, None, 1, 2, None]
OTHERS = [1, 1, 1, 2, 2, None, None, None, None]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ss.Table:
    root = tmp_path_factory.mktemp("lake")
    columns = {"s": TEXTS, "a": NUMBERS, "b": OTHERS, "n": list(range(len(TEXTS)))}
    for at in range(3):
        pq.write_table(pa.table({name: values[at::3] for name, values in columns.items()}), root / f"{at}.parquet")
    return ss.create(root)


def _rows(table: ss.Table, where: object) -> list[int]:
    plan = table.scan(where)
    rows = sorted(plan.to_table().column("n").to_pylist())
    assert plan.count() == len(rows)
    again = sorted(table.scan(str(plan.bound)).to_table().column("n").to_pylist())
    assert again == rows, "what explain shows reads as the same predicate"
    return rows


def test_distinct_from_never_gives_null(table: ss.Table) -> None:
    pairs = list(enumerate(zip(NUMBERS, OTHERS, strict=True)))
    for where, holds in {
        "a IS DISTINCT FROM b": lambda a, b: a != b,
        "a IS NOT DISTINCT FROM b": lambda a, b: a == b,
        "NOT (a IS DISTINCT FROM b)": lambda a, b: a == b,
        "a IS DISTINCT FROM 1": lambda a, b: a != 1,
        "1 IS NOT DISTINCT FROM a": lambda a, b: a == 1,
        "a IS DISTINCT FROM NULL": lambda a, b: a is not None,
        "a IS NOT DISTINCT FROM NULL": lambda a, b: a is None,
        "a IS DISTINCT FROM a": lambda a, b: False,
        "a IS DISTINCT FROM 1.5": lambda a, b: True,
        "NOT a IS NOT DISTINCT FROM 1 AND b = 1": lambda a, b: a != 1 and b == 1,
    }.items():
        assert _rows(table, where) == [n for n, (a, b) in pairs if holds(a, b)], where


@pytest.mark.parametrize(
    ("where", "texts"),
    [
        (r"s LIKE 'a\_b' ESCAPE '\'", ["a_b"]),
        (r"s LIKE 'a\%b' escape'\' AND s <> 'ESCAPE ''!'''", ["a%b"]),
        (r"s NOT LIKE 'a\_b' ESCAPE '\' AND s LIKE 'a_b' ESCAPE '\' AND a = 1", ["a!b", "aéb"]),
        (r"NOT s LIKE 'a_b' ESCAPE '\'", [""]),
        (r"s LIKE 'a!_b' ESCAPE '!'", ["a_b"]),
        (r"s LIKE 'a!!b' ESCAPE '!'", ["a!b"]),
        (r"s LIKE 'a%%b' ESCAPE '%'", ["a%b"]),
        (r"s LIKE 'a__b' ESCAPE '_'", ["a_b"]),
        (r"s LIKE 'aéé%' ESCAPE 'é'", ["aéb"]),
        (r"s LIKE 'a''''b' ESCAPE ''''", ["a'b"]),
        (r"s LIKE 'a\\b' ESCAPE '\' -- it's ESCAPE '\'", ["a\\b"]),
        (r"s LIKE '%' ESCAPE '\' AND s LIKE '_!__' ESCAPE '!'", ["a_b"]),
    ],
)
def test_an_escape_makes_wildcards_plain(table: ss.Table, where: str, texts: list[str]) -> None:
    assert [TEXTS[n] for n in _rows(table, where)] == texts


@pytest.mark.some_cases(10)
@pytest.mark.parametrize("escape", [None, "\\", "!"])
@pytest.mark.parametrize("pattern", ["a\\%", "a\\_b", "a\\\\b", "a!_b", "a!!b", "a_b", "a%b", "%\\%"])
def test_like_has_no_escape_but_the_one_that_is_named(table: ss.Table, pattern: str, escape: str | None) -> None:
    """As in DuckDB, in a text and in `col`; a prefix that contains a backslash prunes files by it."""
    duckdb = pytest.importorskip("duckdb")
    quoted = f"s LIKE '{pattern}'" + (f" ESCAPE '{escape}'" if escape else "")
    with duckdb.connect() as connection:
        connection.register("texts", pa.table({"n": range(len(TEXTS)), "s": TEXTS}))
        wanted = [row[0] for row in connection.execute(f"SELECT n FROM texts WHERE {quoted} ORDER BY n").fetchall()]
    assert _rows(table, quoted) == _rows(table, ss.col("s").like(pattern, escape)) == wanted


@pytest.mark.parametrize(
    "where",
    [
        r"s LIKE 'a!' ESCAPE '!'",
        r"s LIKE 'a' ESCAPE 'ab'",
        r"s LIKE 'a' ESCAPE '\' '",
    ],
)
def test_an_escape_that_escapes_nothing_is_an_error(table: ss.Table, where: str) -> None:
    with pytest.raises(ss.PredicateError):
        table.scan(where).count()


@settings(max_examples=examples(60))
@given(
    day=st.dates().map(str) | st.sampled_from(["2024-02-30", "2024-13-01", "0000-01-01", "24-1-5", "infinity"]),
    time=st.just("") | st.times().map(" {}".format) | st.sampled_from([" 24:00:00", "T01:02:03", " 1:2:3"]),
    target=st.sampled_from(["DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"]),
)
def test_a_time_in_a_text_is_that_of_duckdb(day: str, time: str, target: str) -> None:
    text = Bound("constant", "VARCHAR", value=day + time)
    try:
        ours = _plain_constant(Bound("cast", target, (text,)), target)
    except LookupError:
        return  # DuckDB computes it
    assert constants([f"CAST('{day}{time}' AS {target})"], "") == [ours]


def test_dates_and_times_are_read_without_a_query() -> None:
    for target, text in (("DATE", "2024-02-29"), ("TIMESTAMP", "1999-12-31 23:59:59.5"), ("TIMESTAMP", "2024-01-05")):
        assert _plain_constant(Bound("cast", target, (Bound("constant", "VARCHAR", value=text),)), target) is not None


def test_terms_next_to_a_part_that_duckdb_cannot_write_prune(table: ss.Table) -> None:
    where = "n > 1 AND NOT (s LIKE 'a!b' ESCAPE '!')"
    assert [term.column for term in terms_of(prepare(where, table.schema))] == ["n"]
    assert _rows(table, where) == [n for n, text in enumerate(TEXTS) if n > 1 and text is not None]


def test_names_of_types_are_those_of_duckdb() -> None:
    con = duckdb.connect()
    for arrow_type, name in duckdb_trees.EXACT_TYPES.items():
        assert str(con.from_arrow(pa.table({"c": pa.nulls(0, arrow_type)})).types[0]) == name
