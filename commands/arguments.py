"""What follows a verb: how its parameters are described, and a reading of plain arguments without typer.

typer, with pydantic, takes as long to load as a look-up. So the description of a parameter is ours, and arguments that
leave nothing to say are read here: words that a verb has, each with a value that its type has. Help, an abbreviation, a
mistake and whatever else is typer's, which is then given the same description.
"""

from __future__ import annotations

import enum
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_INTEGER, _NUMBER = re.compile(r"[0-9]{1,15}"), re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
_NONE = type(None)


class Argument:
    """A word at its place. `details` are typer's names of what the help says of it."""

    def __init__(self, **details: Any):
        self.details = details


class Option(Argument):
    """A word after its name; without `names` that of its parameter."""

    def __init__(self, *names: str, **details: Any):
        super().__init__(**details)
        self.names = names


class _NotPlainError(Exception):
    """Typer's to read."""


def read_plain(verb: Callable[..., None], words: Sequence[str]) -> dict[str, Any] | None:
    """What the words give the verb, by the names of its parameters; None where that is typer's to say."""
    places: list[inspect.Parameter] = []
    options: dict[str, tuple[inspect.Parameter, bool]] = {}  # the parameter of a name, and what a switch sets it to
    for parameter in _parameters(verb):
        named = _described(parameter)
        if not isinstance(named, Option):
            places.append(parameter)
            continue
        for names in named.names or ("--" + parameter.name.replace("_", "-"),):
            for name, is_on in zip(names.split("/"), (True, False), strict=False):
                options[name] = parameter, is_on
    try:
        given = dict(_read(iter(words), places, options))
    except _NotPlainError:
        return None
    is_complete = all(each.name in given or each.default is not inspect.Parameter.empty for each in places)
    return given if is_complete else None


def for_typer(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with descriptions of typer's."""
    import typer

    @functools.wraps(verb)
    def called(**given: Any) -> None:
        verb(**given)

    def translated(parameter: inspect.Parameter) -> inspect.Parameter:
        described = _described(parameter)
        names = described.names if isinstance(described, Option) else ()
        kind = (typer.Option if isinstance(described, Option) else typer.Argument)(*names, **described.details)
        return parameter.replace(annotation=typing.Annotated[_type(parameter), kind])

    parameters = [translated(parameter) for parameter in _parameters(verb)]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


# -- words ------------------------------------------------------------------------------------------------------------


def _read(
    words: Iterator[str], places: list[inspect.Parameter], options: dict[str, tuple[inspect.Parameter, bool]]
) -> Iterator[tuple[str, Any]]:
    left = iter(places)
    seen: dict[str, list[str]] = {}
    for word in words:
        if not word.startswith("-"):
            place = next(left, None)
            if place is None:
                raise _NotPlainError
            yield place.name, _value(place, word)
            continue
        name, has_value, value = word.partition("=")
        if name not in options or (has_value and not name.startswith("--")):
            raise _NotPlainError
        parameter, is_on = options[name]
        is_many = _type(parameter) == list[str] | None
        if parameter.name in seen and not is_many:
            raise _NotPlainError
        values = seen.setdefault(parameter.name, [])
        if _type(parameter) is bool:
            if has_value:
                raise _NotPlainError
            yield parameter.name, is_on
            continue
        values.append(value if has_value else next(words, "-"))
        if values[-1].startswith("-"):  # an option, or nothing
            raise _NotPlainError
        yield parameter.name, [_text(each) for each in values] if is_many else _value(parameter, values[0])


def _value(parameter: inspect.Parameter, word: str) -> Any:
    """The word as the parameter's type has it."""
    kind, text = _type(parameter), _text(word)
    kinds = [each for each in typing.get_args(kind) if each is not _NONE]
    if _NONE in typing.get_args(kind):
        kind = kinds[0] if len(kinds) == 1 else None
    if kind is str:
        return text
    if typing.get_origin(kind) is typing.Literal and text in typing.get_args(kind):
        return text
    if isinstance(kind, enum.EnumMeta) and text in [member.value for member in typing.cast("type[enum.Enum]", kind)]:
        return kind(text)
    pattern = {int: _INTEGER, float: _NUMBER}.get(kind)
    if pattern is not None and pattern.fullmatch(text):
        number = kind(text)
        if number >= _described(parameter).details.get("min", number):
            return number
    raise _NotPlainError


def _text(word: str) -> str:
    """A text with something in it that UTF-8 can hold."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise _NotPlainError from None
    if not word:
        raise _NotPlainError
    return word


# -- parameters -------------------------------------------------------------------------------------------------------


def _parameters(verb: Callable[..., None]) -> list[inspect.Parameter]:
    """The verb's parameters, with types for annotations."""
    hints = typing.get_type_hints(verb, include_extras=True)
    return [each.replace(annotation=hints[each.name]) for each in inspect.signature(verb).parameters.values()]


def _described(parameter: inspect.Parameter) -> Argument:
    return parameter.annotation.__metadata__[0]


def _type(parameter: inspect.Parameter) -> Any:
    return parameter.annotation.__origin__
