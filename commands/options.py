"""What commands have in common: arguments, options, statuses, and how a table is opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Annotated

from ..engine.choices import Fallback, ScanMode
from ..engine.open import open_table
from ..engine.table import Table
from ..errors import InvalidArgumentError, SkipstoneError
from .arguments import Argument, Option


class Status(IntEnum):
    """What a process ends with. The help of the command line names them."""

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


class Ended(Exception):
    """The command is done, with this status."""

    def __init__(self, status: int):
        super().__init__(status)
        self.status = status


Path = Annotated[str, Argument(metavar="PATH", help="The table's directory, or s3://BUCKET/PATH.", show_default=False)]
IndexPath = Annotated[
    str | None, Option("--index-path", metavar="DIR", help="Where the index lies, if not in PATH/.skipstone.")
]
AsJson = Annotated[bool, Option("--json", help="Answer in JSON.")]
Version = Annotated[int | None, Option(help="The version to read; the latest by default.")]
Names = Annotated[str | None, Option(metavar="A,B", help="Only these columns.")]
Mode = Annotated[ScanMode, Option(help="read_optimized: of each file slice its base alone, without its logs.")]
FallbackTo = Annotated[
    Fallback | None,
    Option("--fallback", help="list: where no index can be read, list the directory and read footers."),
]
Where = Annotated[str | None, Option(metavar="SQL", help="A predicate; all rows by default.")]


@contextmanager
def opened(
    path: str, index_path: str | None, version: int | None = None, fallback: Fallback | None = None
) -> Iterator[Table]:
    """The table, closed in the end. Raises InterruptedCommandError, saying what is kept, after Ctrl-C within."""
    with open_table(
        path, index_path=index_path, version=version, storage_options=storage_options(), fallback=fallback
    ) as table:
        before = table.version
        try:
            yield table
        except KeyboardInterrupt:
            raise InterruptedCommandError(_what_is_kept(path, index_path, before, table.handle.is_pinned)) from None


def _what_is_kept(path: str, index_path: str | None, before: int, is_reading: bool) -> str:
    nothing = f"nothing was committed, and version {before} is as it was"
    if is_reading:
        return nothing
    try:
        with open_table(path, index_path=index_path, storage_options=storage_options()) as table:
            latest = table.version
    except SkipstoneError:
        return f"what is committed after version {before} is kept: skipstone history {path}"
    if latest == before:
        return nothing
    versions = f"version {latest}" if latest == before + 1 else f"versions {before + 1} to {latest}"
    return f"{versions} came meanwhile and is kept (skipstone history {path}); the same command goes on from there"


def split(names: str | None) -> list[str] | None:
    """The names in "a, b"."""
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


# -- object stores ----------------------------------------------------------------------------------------------------

_STORAGE_OPTION = "--storage-option"
_storage_options: dict[str, str] = {}


def take_storage_options(arguments: Sequence[str]) -> list[str]:
    """Takes `--storage-option NAME=VALUE` out of the arguments, wherever it is, and keeps it for
    `storage_options`; returns the others."""
    _storage_options.clear()
    others, rest = [], iter(arguments)
    for argument in rest:
        name, has_value, value = argument.partition("=")
        if name != _STORAGE_OPTION:
            others.append(argument)
            continue
        key, is_pair, text = (value if has_value else next(rest, "")).partition("=")
        if not key or not is_pair:
            raise UsageError(f"{_STORAGE_OPTION} takes NAME=VALUE, as in region=eu-west-1")
        _storage_options[key] = text
    return others


def storage_options() -> dict[str, str] | None:
    """The command line's options for object stores; None where there are none."""
    return dict(_storage_options) or None


def is_local(location: str) -> bool:
    """True for a table in a folder of this machine."""
    return "://" not in location
