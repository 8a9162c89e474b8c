"""What a predicate requires of a text: TRUE(part) implies TRUE(what is required), with DuckDB, pyarrow and polars as
oracles; and the grams of a text: a value has those of each text that it contains."""

from __future__ import annotations

import itertools
import re
import sys

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.base import lazy
from skipstone.engine.indexes.ngram import grams
from skipstone.engine.indexes.ngram.probe import Grams, grams_required
from skipstone.engine.predicates import And, Node, Or, Residual, Term, prepare
from skipstone.engine.predicates.required_texts import NOTHING, AllOf, AnyOf, Text, required_of, texts_of_regex

SCHEMA = pa.schema([("x", pa.string())])
# ASCII with every special sign, characters whose small letter is ASCII, letters with case, digits, CJK.
SIGNS = "abkisABKIS019%_\\.*+?|()[]^$ \u0130\u017f\u212aéÉßẞжЖ日本語한ｋ😀\n"
texts = st.text(st.sampled_from(SIGNS), max_size=14)
words = st.sampled_from(
    ["", "a", "kis", "KIS", "biskai", "b1a2c3", "019019", "日本語", "é", "İsk", "K9", "ſab", "a%b", "x_y"]
)
values = st.lists(st.builds("".join, st.lists(words | texts, max_size=4)), min_size=1, max_size=12)


def _meets(required: object, marks: set[int]) -> bool:
    if isinstance(required, Grams):
        return marks.issuperset(required.buckets)
    assert isinstance(required, AllOf | AnyOf)
    return (all if isinstance(required, AllOf) else any)(_meets(part, marks) for part in required.parts)


def _marks(value: str, ignore_case: bool) -> set[int]:
    """The buckets that an index has of one value."""
    bits = np.zeros((1, grams.BLOCK_BYTES), dtype=np.uint8)
    grams.mark_grams(grams.as_bytes(pa.array([value]), ignore_case), 0, 1, ignore_case, bits)
    return set(np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist())


def _asserted(node: Node) -> list[Node]:
    if isinstance(node, And | Or):
        return [part for child in node.children for part in _asserted(child)]
    return [node] if isinstance(node, Term | Residual) else []


def _check(where: object, outcomes: list[bool | None], rows: list[str]) -> bool:
    """Each value for which the predicate is TRUE has the grams that it requires. Return whether any are required."""
    bound = prepare(where, SCHEMA)
    parts = _asserted(bound)
    if len(parts) != 1:
        return False
    required = required_of(parts[0], "x")
    for ignore_case in (False, True) if required is not None else ():
        needs = grams_required(required, ignore_case)
        for value, outcome in zip(rows, outcomes, strict=True):
            assert not outcome or _meets(needs, _marks(value, ignore_case)), (where, value, required, ignore_case)
    return required is not None and grams_required(required, True) != NOTHING


def _by_duckdb(where: str, rows: list[str]) -> list[bool | None] | None:
    try:
        found = duckdb.from_arrow(pa.table({"x": rows})).project(where).fetchall()
    except duckdb.Error:
        return None
    return [outcome for (outcome,) in found]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


CALLS = r"""
x LIKE {}
x LIKE {} ESCAPE '\'
x ILIKE {}
x ILIKE {} ESCAPE 'a'
contains(x, {})
starts_with(x, {})
prefix(x, {})
suffix(x, {})
ends_with(x, {})
x ^@ {}
x = {}
lower(x) LIKE {}
lcase(x) = {}
contains(lower(x), {})
x SIMILAR TO {}
regexp_matches(x, {})
regexp_matches(x, {}, 'i')
regexp_matches(x, {}, 'l')
regexp_full_match(x, {}, 's')
contains(x, {}) AND length(x) > 2
""".strip().splitlines()


@settings(max_examples=examples(25))
@given(call=st.sampled_from(CALLS), rows=values, data=st.data())
def test_what_duckdb_finds_has_what_is_required(call: str, rows: list[str], data: st.DataObject) -> None:
    needle = data.draw(st.sampled_from(rows).flatmap(_part_of) | texts)
    if "lower" in call or "lcase" in call:
        needle = needle.lower()
    pattern = needle
    if "LIKE" in call:
        pattern = data.draw(st.sampled_from([f"%{needle}%", f"{needle}%", f"%{needle}", f"_%{needle}_", needle]))
    where = call.format(_quoted(pattern))
    outcomes = _by_duckdb(where, rows)
    if outcomes is not None and "\0" not in where:
        try:
            bound = prepare(where, SCHEMA)
        except ValueError:
            return
        if len(_asserted(bound)) == 1:
            _check(where, outcomes, rows)


def _part_of(value: str) -> st.SearchStrategy[str]:
    return st.tuples(st.integers(0, len(value)), st.integers(0, len(value))).map(
        lambda ends: value[min(ends) : max(ends)]
    )


PIECES = [
    "a", "k", "s", "abc", "kis", "019", "b1a2", "日本", "é", "\\.", "\\d", "[ab]", "[^a]", "[a-c]", "[.]", ".", "\\b",
    "\\w", "^", "$",
]  # fmt: skip
REPEATS = ["", "*", "+", "?", "{2}", "{0,1}", "{1,3}", "{2,}", "+?", "*?"]
pieces = st.recursive(
    st.sampled_from(PIECES),
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds(
            "({}){}".format, inner, st.sampled_from(["", *["*", "+", "?", "{2}", "{0,1}", "{1,3}", "{2,}", "+?", "*?"]])
        ),
        st.builds("(?i){}".format, inner),
        st.builds("(?P<n>{})".format, inner),
        st.builds("(?i:{})".format, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(40))
@given(pattern=pieces, rows=values, data=st.data())
def test_texts_of_an_expression_are_in_what_it_matches(pattern: str, rows: list[str], data: st.DataObject) -> None:
    try:
        compiled = re.compile(pattern.replace("(?i)", ""))
        rows = [*rows, *data.draw(st.lists(st.from_regex(compiled), max_size=4))]
    except re.error:  # Python reads fewer expressions than RE2
        pass
    rows = [row.replace("\0", "") for row in rows if row.isprintable() or "\n" in row]
    if not rows:
        return
    where = f"regexp_matches(x, {_quoted(pattern)})"
    outcomes = _by_duckdb(where, rows)
    if outcomes is None:
        return
    _check(where, outcomes, rows)
    arrow = pc.match_substring_regex(pa.array(rows), pattern).to_pylist()
    assert arrow == outcomes
    _check(pc.match_substring_regex(pc.field("x"), pattern), arrow, rows)


@settings(max_examples=examples(15))
@given(rows=values, data=st.data())
def test_what_pyarrow_and_polars_find_has_what_is_required(rows: list[str], data: st.DataObject) -> None:
    pl = pytest.importorskip("polars")
    needle = data.draw(st.sampled_from(rows).flatmap(_part_of) | texts)
    column, frame = pa.array(rows), pl.DataFrame({"x": rows})
    for test, ignore_case in itertools.product((pc.match_substring, pc.starts_with, pc.ends_with), (False, True)):
        options = {"pattern": needle, "ignore_case": ignore_case}
        _check(test(pc.field("x"), **options), test(column, **options).to_pylist(), rows)
    for expression in (
        pl.col("x").str.contains(needle, literal=True),
        pl.col("x").str.ends_with(needle),
        pl.col("x").str.starts_with(needle),
        pl.col("x").str.contains(re.escape(needle).replace("\\ ", " ")),
    ):
        _check(expression, frame.select(expression).to_series().to_list(), rows)


def test_each_front_end_is_read() -> None:
    pl = pytest.importorskip("polars")
    for where in (
        *(call.format("'%worldwide%'" if "LIKE" in call else "'worldwide'") for call in CALLS),
        pc.match_substring(pc.field("x"), "worldwide"),
        pc.match_like(pc.field("x"), "%worldwide%"),
        pc.match_substring_regex(pc.field("x"), "worldwide[0-9]"),
        pc.ends_with(pc.field("x"), "worldwide"),
        pl.col("x").str.contains("worldwide", literal=True),
        pl.col("x").str.contains("worldwide[0-9]"),
        pl.col("x").str.ends_with("worldwide"),
        [("x", "=", "worldwide")],
    ):
        parts = _asserted(prepare(where, SCHEMA))
        found = [required_of(part, "x") for part in parts]
        assert any(each is not None and grams_required(each, True) != NOTHING for each in found), where


NOT_UNDERSTOOD = r"""
NOT contains(x, 'worldwide')
x NOT ILIKE '%worldwide%'
contains(x, 'worldwide') IS NULL
contains(x || 'y', 'worldwide')
contains('worldwide', x)
upper(x) LIKE '%WORLD%'
x !~ 'worldwide'
regexp_matches(x, 'worldwide|')
regexp_matches(x, '(?:worldwide)?')
regexp_matches(x, '(worldwide)*')
regexp_matches(x, '\Qworldwide\E')
regexp_matches(x, 'a', 'x')
x COLLATE NOCASE LIKE 'WORLD%'
coalesce(contains(x, 'worldwide'), true)
contains(x, 'worldwide') OR length(x) > 3
""".strip().splitlines()


@pytest.mark.parametrize("where", NOT_UNDERSTOOD)
def test_nothing_is_required_by_what_is_not_understood(where: str) -> None:
    try:
        bound = prepare(where, SCHEMA)
    except ValueError:  # DuckDB does not bind it
        return
    for part in [] if isinstance(bound, Or) else _asserted(bound):
        assert required_of(part, "x") in (None, NOTHING), where


@pytest.mark.parametrize(
    ("pattern", "required"),
    [
        ("foo.*bar", AllOf((Text("foo"), Text("bar")))),
        ("(foo|bar)baz", AnyOf((Text("foobaz"), Text("barbaz")))),
        ("a{3}b", Text("aaab")),
        ("x+y", AllOf((Text("x"), Text("y")))),
        ("colou?r", AnyOf((Text("color"), Text("colour")))),
        ("foo\\.b[.]r", Text("foo.b.r")),
        ("^err$", Text("err")),
        ("(?i)Foo", Text("Foo", True)),
        ("[[:alpha:]]foo", NOTHING),
        ("(?=foo)", NOTHING),
        ("foo{", NOTHING),
        ("a++b", NOTHING),
        ("(foo", NOTHING),
        ("foo)", NOTHING),
        ("[]a]", NOTHING),
        ("\\1foo", NOTHING),
        ("(" * 60 + "foo" + ")" * 60, NOTHING),
    ],
)
def test_texts_required_by_an_expression(pattern: str, required: object) -> None:
    assert texts_of_regex(pattern) == required


# -- grams ------------------------------------------------------------------------------------------------------------


def _naive(value: bytes) -> set[int]:
    """The buckets of a value's grams, by the rules as `grams.py` states them."""
    found = set()
    for i, first in enumerate(value):
        if 0x80 <= first < 0xC0:
            continue
        five = value[i : i + 5]
        is_number = (
            len(five) == 5 and all(chr(b) in "0123456789abcdefABCDEF" for b in five) and any(48 <= b < 58 for b in five)
        )
        size = 6 if first >= 0xC0 or is_number else 5
        if i + size <= len(value):
            key = int.from_bytes(value[i : i + size], "little") ^ size << 56
            found.add(key * grams.MULTIPLIER % (1 << 64) >> 48)
    return found


@settings(max_examples=examples(30))
@given(
    rows=st.lists(st.binary(max_size=30) | st.text("0129abfgAFZ@[z`{é日", max_size=40).map(str.encode), max_size=20),
    first_row=st.integers(0, 5),
    block_rows=st.integers(1, 4),
    start=st.integers(0, 3),
    ignore_case=st.booleans(),
)
def test_both_twins_mark_the_grams_of_each_block(
    rows: list[bytes], first_row: int, block_rows: int, start: int, ignore_case: bool
) -> None:
    column = pa.array([b"xxxxxx"] * start + rows, pa.large_binary()).slice(start)
    blocks = -(-(first_row + len(rows)) // block_rows) or 1
    expected = [set[int]() for _ in range(blocks)]
    for number, value in enumerate(rows):
        expected[(first_row + number) // block_rows] |= _naive(value.lower() if ignore_case else value)
    compiled = lazy.load("engine.indexes.ngram.kernels")
    for kernels in (None, compiled):
        bits = np.zeros((blocks, grams.BLOCK_BYTES), dtype=np.uint8)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grams, "kernels_for", lambda *_, k=kernels: k)
            patch.setattr(grams, "_AT_ONCE_BYTES", 7)
            grams.mark_grams(column, first_row, block_rows, ignore_case, bits)
        assert [set(np.flatnonzero(np.unpackbits(line, bitorder="little")).tolist()) for line in bits] == expected


def test_no_other_character_has_an_ascii_letter_as_its_small_one() -> None:
    """What `grams.py` says of lower() and of (?i) is true of the installed DuckDB."""
    code_points = [c for c in range(0x80, sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]
    table = pa.table({"c": [chr(c) for c in code_points]})
    found = duckdb.from_arrow(table).filter(
        r"regexp_matches(lower(c), '[\x01-\x7f]') OR regexp_matches(c, '(?i)[a-z]')"
    )
    assert {c for (c,) in found.fetchall()} == set("\u0130\u017f\u212a")
    is_caseless = grams._CASED.fullmatch
    kept = pa.table({"c": [c for c in table.column("c").to_pylist() if not is_caseless(c)]})
    assert duckdb.from_arrow(kept).filter("lower(c) <> c OR upper(c) <> c").fetchall() == []
