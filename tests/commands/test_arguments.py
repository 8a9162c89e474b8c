"""Words become the arguments of verbs; a word that is not understood is an error that names it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.commands import app
from skipstone.commands.arguments import UsageError

VALUES = [
    *("lake", "x = 5", "a,b", "0", "5", "-5", "007", "1.5", "1e3", ".5", "", " ", "-", "--", "é", "\udc80", "a=b"),
    *("1_000", "٣", "nan", "snapshot", "read_optimized", "Snapshot", "duckdb", "bloom", "f.parquet", "list", "none"),
    *("true", "None", "-o", "-ofile", "%", "%s"),
]


def _read(verb: str, words: list[str]) -> dict[str, Any]:
    """Return the arguments that differ from the defaults of the verb."""
    read = vars(app.parser_of(verb).parse_intermixed_args(words))
    parameters = dict(inspect.signature(app._function(verb)).parameters)
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    if parameters.pop("table", None) is not None:
        defaults |= dict.fromkeys(("index_path", "version", "fallback"))
        assert {"path", "index_path"} <= set(read)
    assert set(parameters) <= set(read) <= {*defaults, "path"}
    return {name: value for name, value in read.items() if name not in defaults or value != defaults[name]}


@pytest.mark.parametrize(
    "verb, words, expected",
    [
        ("scan", ["lake", "--where", "x = 5", "--count"], {"path": "lake", "where": "x = 5", "count": True}),
        ("scan", ["--limit=3", "lake", "-o", "f"], {"path": "lake", "limit": 3, "output": "f"}),
        ("scan", ["lake", "-of.parquet", "--json"], {"path": "lake", "as_json": True, "output": "f.parquet"}),
        ("scan", ["lake", "--where", "-x = 5"], {"path": "lake", "where": "-x = 5"}),
        ("scan", ["lake", "--where=-5<x"], {"path": "lake", "where": "-5<x"}),
        ("rollback", ["lake", "3"], {"path": "lake", "n": 3}),
        ("savepoint", ["lake", "--drop", "a"], {"path": "lake", "name": "a", "drop": True}),
        ("savepoint", ["--list", "lake"], {"path": "lake", "list_": True}),
        ("alter", ["lake", "--drop", "a", "--drop", "b"], {"path": "lake", "drop": ["a", "b"]}),
        ("demo", ["--spark"], {"spark": True}),
        ("sync", ["lake", "--every", "0.5", "--new-columns=report"],
         {"path": "lake", "every": 0.5, "new_columns": "report"}),
        ("index list", ["lake", "--json"], {"path": "lake", "as_json": True}),
        ("index add", ["lake", "a", "--kind", "secondary", "b"],
         {"path": "lake", "columns": ["a", "b"], "kind": "secondary"}),
        ("index refresh", ["lake"], {"path": "lake", "columns": []}),
    ],
)  # fmt: skip
def test_arguments(verb: str, words: list[str], expected: dict[str, Any]) -> None:
    assert _read(verb, words) == expected


@pytest.mark.parametrize(
    "words, part",
    [
        ("scan", "PATH"), ("scan lake lake", "unrecognized arguments: lake"), ("scan lake --limit x", "--limit"),
        ("scan lake --limit -1", "less than 0"), ("scan lake --where", "expected one argument"),
        ("scan lake --mode wrong", "read_optimized"), ("scan lake --coun", "--coun"),
        ("scan lake --count=yes", "--count"), ("scan lake --where --count", "expected one argument"),
        ("scan lake --limit 1.5", "invalid number"), ("advise lake --sample-files=0", "--sample-files"),
        ("advise lake --sample-files=-1", "--sample-files"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_named(words: str, part: str) -> None:
    verb, *rest = words.split()
    with pytest.raises(UsageError) as refused:
        _read(verb, rest)
    assert part in str(refused.value) and f"skipstone {verb} --help" in str(refused.value)


@given(data=st.data())
@pytest.mark.parametrize("verb", app.VERBS)
def test_no_words_are_more_than_a_usage_error(verb: str, data: st.DataObject) -> None:
    names = [name for action in app.parser_of(verb)._actions for name in action.option_strings]
    names = [*(name for name in names if name not in ("-h", "--help")), "--jso", "--no", "-x"]
    word = st.sampled_from(names) | st.sampled_from(VALUES)
    joined = st.builds("{}={}".format, st.sampled_from(names), st.sampled_from(VALUES))
    words = ["lake"] * data.draw(st.integers(0, 2)) + data.draw(st.lists(word | joined, max_size=5))
    try:
        _read(verb, words)
    except UsageError as refused:
        assert str(refused)


def test_every_verb_has_help(say) -> None:
    status, out, err = say("--help")
    assert (status, err) == (0, "") and all(verb.split()[0] in out for verb in app.VERBS)
    for verb in app.VERBS:
        status, out, err = say(*verb.split(), "--help")
        assert (status, err) == (0, "") and out.startswith(f"usage: skipstone {verb} ") and "--json" in out


def test_words_before_a_verb(say) -> None:
    assert say()[0] == 2 and say("index")[0] == 2
    status, out, err = say("verfy")
    assert (status, out) == (2, "") and "choose from" in err and "verify" in err
    status, out, err = say("index", "ad")
    assert (status, out) == (2, "") and "ad" in err
