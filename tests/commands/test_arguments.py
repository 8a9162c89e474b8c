"""Plain arguments are read as typer reads them; what is not plain is left to it."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from skipstone.commands import app, index
from skipstone.commands.arguments import for_typer, read_plain

VERBS = {
    **{
        name: getattr(importlib.import_module(f"skipstone.commands.{file}"), name)
        for name, file in app._VERBS.items()
        if name != "index"
    },
    **{f"index {name}": function for name, function in index.VERBS.items()},
}
VALUES = [
    *("lake", "x = 5", "a,b", "0", "5", "-5", "007", "1.5", "1e3", ".5", "", " ", "-", "--", "é", "\udc80", "a=b"),
    *("1_000", "٣", "snapshot", "read_optimized", "Snapshot", "duckdb", "bloom", "csv", "CSV", "list", "delta", "none"),
    *("true", "None", "-o", "-ofile"),
]


def _names(verb: Callable[..., None]) -> list[str]:
    command = typer.main.get_command(_typer_of(verb, lambda **_: None))
    return [name for each in command.params for name in [*each.opts, *each.secondary_opts] if name.startswith("-")]


def _typer_of(verb: Callable[..., None], call: Callable[..., None]) -> typer.Typer:
    only = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    only.command()(for_typer(functools.wraps(verb)(call)))
    return only


def _read_by_typer(verb: Callable[..., None], words: list[str]) -> dict[str, Any] | None:
    """What typer gives the verb; None where it does not call it."""
    calls: list[dict[str, Any]] = []
    try:
        _typer_of(verb, lambda **given: calls.append(given))(args=words, prog_name="x", standalone_mode=False)
    except Exception as error:
        assert hasattr(error, "format_message"), error
    return calls[0] if calls else None


def _whole(verb: Callable[..., None], given: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(verb).parameters.values()
    return {each.name: given.get(each.name, each.default) for each in parameters}


@given(data=st.data())
@pytest.mark.parametrize("name", VERBS)
def test_plain_arguments_are_read_as_by_typer(name: str, data: st.DataObject) -> None:
    verb = VERBS[name]
    names = [*_names(verb), "--jso", "--no", "-x", "--help", "-h"]
    word = st.sampled_from(names) | st.sampled_from(VALUES)
    joined = st.builds("{}={}".format, st.sampled_from(names), st.sampled_from(VALUES))
    words = ["lake"] * data.draw(st.integers(0, 2)) + data.draw(st.lists(word | joined, max_size=5))
    plain = read_plain(verb, words)
    if plain is not None:
        assert _whole(verb, plain) == _read_by_typer(verb, words), words


@pytest.mark.parametrize(
    "name, words, expected",
    [
        ("scan", ["lake", "--where", "x = 5", "--count"], {"path": "lake", "where": "x = 5", "count": True}),
        ("scan", ["--limit=3", "lake", "-o", "f.csv"], {"path": "lake", "limit": 3, "output": "f.csv"}),
        ("scan", ["lake", "--format", "csv"], {"path": "lake", "form": "csv"}),
        ("rollback", ["lake", "3"], {"path": "lake", "version": 3}),
        ("alter", ["lake", "--drop", "a", "--drop", "b"], {"path": "lake", "drop": ["a", "b"]}),
        ("demo", ["--no-spark"], {"spark": False}),
        ("sync", ["lake", "--every", "0.5", "--new-columns=report"],
         {"path": "lake", "every": 0.5, "new_columns": "report"}),
        ("index list", ["lake", "--json"], {"path": "lake", "as_json": True}),
    ],
)  # fmt: skip
def test_plain_arguments(name: str, words: list[str], expected: dict[str, Any]) -> None:
    """Those of every day need no typer."""
    assert read_plain(VERBS[name], words) == expected


@pytest.mark.parametrize(
    "words",
    [[], ["--help"], ["lake", "lake"], ["lake", "--limit", "x"], ["lake", "--limit", "-1"], ["lake", "--where"],
     ["lake", "--mode", "wrong"], ["lake", "--coun"], ["lake", "--count=yes"], ["lake", "--", "x"], [""],
     ["lake", "--where", "--count"], ["lake", "--limit", "1", "--limit", "2"], ["lake", "-oFILE"]],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_typer(words: list[str]) -> None:
    assert read_plain(VERBS["scan"], words) is None
