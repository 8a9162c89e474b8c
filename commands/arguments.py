"""The parser of the command line, and what verbs share: options, statuses, and how a table is opened.

A verb is a function that returns its status, or None for OK. Its parameters are annotated with `Argument` (a word at
its place) or `Option` (a word after its name), from which `add_parameters` makes an `argparse` parser. A parameter that
is an `OpenTable` adds PATH and the options that open the table, and gets the open table.
"""

from __future__ import annotations

import argparse
import inspect
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Annotated, Any, NoReturn

from ..engine.choices import Fallback, ScanMode
from ..engine.open import open_table
from ..engine.table import Table
from ..errors import InvalidArgumentError


class Status(IntEnum):
    """The status of the process. The help of the command line names them."""

    OK = 0
    ERROR = 1
    USAGE = 2
    FINDINGS = 3
    CONFLICT = 4
    QUARANTINED = 5  # the work is done, without the rows of quarantined files
    INTERRUPTED = 130  # as a shell has it: 128 + SIGINT


class UsageError(InvalidArgumentError):
    """Options or arguments that have no meaning, or contradict each other."""


class InterruptedCommandError(Exception):
    """Ctrl-C. The message says what is kept."""


# -- the parser -------------------------------------------------------------------------------------------------------


class Argument:
    """A word at its place. `metavar` and `help` are shown by `--help`."""

    def __init__(self, *, metavar: str | None = None, help: str = "", minimum: float | None = None):
        self.metavar, self.help, self.minimum = metavar, help, minimum


class Option(Argument):
    """A word after its name: `--name` of the parameter, unless `names` are given. A number is at least `minimum`."""

    def __init__(self, *names: str, **details: Any):
        super().__init__(**details)
        self.names = names


class Opened(Argument):
    """PATH and --index-path, and the options for which `opened` has parameters of these names; the open table."""

    def __init__(self, *options: str):
        super().__init__()
        self.options = options


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError for words that it cannot read. Names are not abbreviated."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` shows what it accepts")


def add_parameters(parser: argparse.ArgumentParser, verb: Callable[..., int | None]) -> None:
    """Add the parameters of a verb to its parser."""
    hints = typing.get_type_hints(verb, include_extras=True)
    for name, parameter in inspect.signature(verb).parameters.items():
        described = hints[name].__metadata__[0]
        if isinstance(described, Opened):
            _add_parameter(parser, "path", inspect.Parameter.empty, Path)
            for option in ("index_path", *described.options):
                _add_parameter(parser, option, None, _OPENING[option])
        else:
            _add_parameter(parser, name, parameter.default, hints[name])


def call(verb: Callable[..., int | None], given: dict[str, Any]) -> int | None:
    """Call a verb with what its parser read; with the open table, if it takes one."""
    if "table" not in inspect.signature(verb).parameters:
        return verb(**given)
    described: Opened = typing.get_type_hints(verb, include_extras=True)["table"].__metadata__[0]
    with opened(**{name: given.pop(name) for name in ("path", "index_path", *described.options)}) as table:
        return verb(table=table, **given)


def _add_parameter(parser: argparse.ArgumentParser, name: str, default: Any, annotation: Any) -> None:
    described: Argument = annotation.__metadata__[0]
    dtype = annotation.__origin__
    if type(None) in typing.get_args(dtype):
        dtype = next(one for one in typing.get_args(dtype) if one is not type(None))
    help_text = described.help.replace("%", "%%")
    if default not in (None, False, True, inspect.Parameter.empty):
        help_text += f" Default: {default}."
    details: dict[str, Any] = {"help": help_text}
    if dtype is bool:
        details |= {"action": argparse.BooleanOptionalAction if default else "store_true", "default": default}
    elif typing.get_origin(dtype) is typing.Literal:
        details |= {"choices": typing.get_args(dtype), "metavar": described.metavar}
    else:
        details |= {"type": _number(dtype, described.minimum), "metavar": described.metavar}
    is_list, is_required = dtype == list[str], default is inspect.Parameter.empty
    if isinstance(described, Option):
        details |= {"action": "append"} if is_list else {}
        names = described.names or ("--" + name.replace("_", "-"),)
        parser.add_argument(*names, dest=name, **{"default": default, **details})
        return
    if is_list:
        details["nargs"] = "+" if is_required else "*"
    elif not is_required:
        details |= {"nargs": "?", "default": default}
    parser.add_argument(name, **details)


def _number(dtype: Any, minimum: float | None) -> Callable[[str], Any]:
    if dtype not in (int, float):
        return str

    def number(text: str) -> Any:
        value = dtype(text)
        if minimum is not None and not value >= minimum:
            raise argparse.ArgumentTypeError(f"{text} is less than {minimum}")
        return value

    return number


# -- what verbs share -------------------------------------------------------------------------------------------------

Path = Annotated[str, Argument(metavar="PATH", help="The table's directory, or s3://BUCKET/PATH.")]
IndexPath = Annotated[str | None, Option(metavar="DIR", help="Where the index is, if not in PATH/.skipstone.")]
AsJson = Annotated[bool, Option("--json", help="Answer in JSON.")]
Version = Annotated[int | None, Option(metavar="N", help="The version to read; the latest by default.")]
Names = Annotated[str | None, Option(metavar="A,B", help="Only these columns.")]
Mode = Annotated[ScanMode, Option(help="read_optimized: of each file slice its base alone, without its logs.")]
FallbackTo = Annotated[
    Fallback | None, Option("--fallback", help="list: if no index can be read, list the directory and read footers.")
]
_OPENING = {"index_path": IndexPath, "version": Version, "fallback": FallbackTo}
OpenTable = Annotated[Table, Opened()]
TableAt = Annotated[Table, Opened("version")]
TableOrListing = Annotated[Table, Opened("version", "fallback")]
Where = Annotated[str | None, Option(metavar="SQL", help="A predicate; all rows by default.")]
Partition = Annotated[str | None, Option(metavar="KEY=VALUE/...", help="One partition.")]


@contextmanager
def opened(
    path: str, index_path: str | None = None, version: int | None = None, fallback: Fallback | None = None
) -> Iterator[Table]:
    """Open a table and close it at the end. After Ctrl-C, raise InterruptedCommandError."""
    with open_table(
        path, index_path=index_path, version=version, storage_options=storage_options(), fallback=fallback
    ) as table:
        before = table.version
        try:
            yield table
        except KeyboardInterrupt:
            raise InterruptedCommandError(
                f"what was committed after version {before} is kept (skipstone history {path}); the same command goes "
                "on from there"
            ) from None


def split(names: str | None) -> list[str] | None:
    """Return the names in "a, b"."""
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


_STORAGE_OPTION = "--storage-option"
_storage_options: dict[str, str] = {}


def take_storage_options(arguments: Sequence[str]) -> list[str]:
    """Keep each `--storage-option NAME=VALUE`, wherever it is, for `storage_options`. Return the other arguments."""
    _storage_options.clear()
    others, rest = [], iter(arguments)
    for argument in rest:
        name, has_value, value = argument.partition("=")
        if name != _STORAGE_OPTION:
            others.append(argument)
            continue
        key, is_pair, text = (value if has_value else next(rest, "")).partition("=")
        if not key or not is_pair:
            raise UsageError(f"{_STORAGE_OPTION} is NAME=VALUE, as in region=eu-west-1")
        _storage_options[key] = text
    return others


def storage_options() -> dict[str, str] | None:
    """Return the command line's options for object stores; None if there are none."""
    return dict(_storage_options) or None
