"""The command `skipstone`. Each verb is a function that calls an open table, and prints.

    create_sync  create, sync, status                     read      scan, sql, explain, ls, history, slices
    change       delete, upsert
    index        index add, refresh, drop, list     maintain  optimize, clean, rollback, restore, alter, verify, ...
    inspect      inspect                            diagnose  doctor, perf, layout, advise, report
    demo         demo                                     serve     serve
    arguments    the parser, and options that verbs share; `output`: tables for people, JSON for machines, progress

An error ends a command with one message on stderr and a status of `arguments.Status`; `--debug` shows where it was
raised. With `--json`, stdout contains one JSON value or nothing, and stderr one JSON object per line.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..engine.observing import SLOW_PLAN_VARIABLE
from ..errors import CommitConflictError, SkipstoneError, SkipstoneWarning
from .arguments import (
    InterruptedCommandError,
    Parser,
    Status,
    UsageError,
    add_parameters,
    call,
    take_storage_options,
)
from .output import plain, stderr

_DESCRIPTION = "Index lakes of Parquet files, so that queries read only the files that can match."
_EPILOG = (
    "Every command accepts --json (for machines: stdout contains JSON only; an error is a JSON object on stderr). "
    "--debug, anywhere, shows tracebacks; --storage-option NAME=VALUE, anywhere and repeated, opens object stores, as "
    "do environment variables like AWS_ACCESS_KEY_ID, which other users of the machine cannot see. "
    "Status: 0 done; 1 an error; 2 invalid arguments; 3 verify, doctor, inspect or demo found something "
    "wrong; 4 a conflict with another writer, nothing changed: try again; 5 scan or sync is done, but files are "
    "quarantined, and their rows are missing; 130 interrupted."
)
# The module of each verb, in the order of the help.
VERBS = {
    "create": "create_sync",
    "sync": "create_sync",
    "status": "create_sync",
    **dict.fromkeys(("adopt", "alter", "optimize", "clean", "purge", "rollback", "restore", "savepoint"), "maintain"),
    **dict.fromkeys(("ls", "history", "slices"), "read"),
    **dict.fromkeys(("delete", "upsert"), "change"),
    "verify": "maintain",
    "inspect": "inspect",
    **dict.fromkeys(("doctor", "perf", "advise", "report", "layout"), "diagnose"),
    "explain": "read",
    "scan": "read",
    "sql": "read",
    "serve": "serve",
    "demo": "demo",
    **dict.fromkeys(("index add", "index refresh", "index drop", "index list"), "index"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and end the process with its status (`arguments.Status`).

    Args:
        arguments: what follows `skipstone`; None for the process's own.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    debug, as_json = "--debug" in arguments, "--json" in arguments
    if not debug:
        warnings.showwarning = partial(_show_warning, as_json)
    if SLOW_PLAN_VARIABLE in os.environ:
        logging.basicConfig(format="%(message)s")  # warnings of slow plans, on stderr
    status = Status.OK
    try:
        status = _run(take_storage_options([argument for argument in arguments if argument != "--debug"]))
        sys.stdout.flush()  # or the flush of the ending process meets the closed pipe
    except SkipstoneError as error:
        if debug and not isinstance(error, UsageError):
            raise
        status = _status_of(error)
        _print_error(error, status, as_json)
    except InterruptedCommandError as error:
        status = Status.INTERRUPTED
        _print_error(error, status, as_json, title="interrupted")
    except KeyboardInterrupt:  # before there was anything to keep
        status = Status.INTERRUPTED
    except BrokenPipeError:  # the reader of stdout has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush fails as well
        status = Status.ERROR
    sys.exit(int(status))


def _run(words: Sequence[str]) -> Status:
    count = 2 if words[:1] == ["index"] else 1
    verb = " ".join(words[:count])
    if verb not in VERBS:
        return _help(words)
    given = parser_of(verb).parse_intermixed_args(words[count:])
    return Status(call(_function(verb), vars(given)) or Status.OK)


def parser_of(verb: str) -> Parser:
    """Return the parser of one verb."""
    function = _function(verb)
    parser = Parser(prog=f"skipstone {verb}", description=inspect.getdoc(function), allow_abbrev=False)
    add_parameters(parser, function)
    return parser


def _function(verb: str) -> Callable[..., int | None]:
    return getattr(importlib.import_module(f".{VERBS[verb]}", __package__), verb.replace(" ", "_"))


def _help(words: Sequence[str]) -> Status:
    """Answer words that do not begin with a verb: --help, --version, a mistake."""
    from importlib.metadata import version

    parser = Parser(prog="skipstone", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"skipstone {version('skipstone')}")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for verb in VERBS:
        commands.add_parser(verb, help=(inspect.getdoc(_function(verb)) or "").partition("\n")[0])
    parser.parse_args(words[1:] if words[:1] == ["index"] else words)
    parser.print_help()
    return Status.USAGE


# How hints of errors name verbs and arguments here; hints that name others are left out.
_WORDS = {
    "open": "any other command",
    "index_path": "--index-path",
    "on_misfit": "--on-misfit quarantine",
    "ignore_deletes": "--ignore-deletes",
    "refresh_index": "`skipstone index refresh`",
    "create_index": "`skipstone index add`",
    "drop_index": "`skipstone index drop`",
    "drop_savepoint": "`skipstone savepoint --drop`",
    **{name: f"`skipstone {name}`" for name in ("create", "sync", "adopt", "alter", "restore", "verify")},
}
_MESSAGE = ("message", "bare_message")  # what is printed of an error in any case


def _status_of(error: SkipstoneError) -> Status:
    if isinstance(error, CommitConflictError):
        return Status.CONFLICT
    return Status.USAGE if isinstance(error, UsageError) else Status.ERROR


def _print_error(error: Exception, status: Status, as_json: bool, title: str = "error") -> None:
    sys.stdout.flush()
    message = _worded(error)
    if as_json:
        fields = vars(error).items()
        details = {k: v for k, v in fields if k not in _MESSAGE and not k.startswith("_") and v is not None}
        hint = error.hint_worded(_WORDS) if isinstance(error, SkipstoneError) else None
        details |= {} if hint is None else {"hint": hint}
        kind = "Interrupted" if status is Status.INTERRUPTED else type(error).__name__
        _print_json_line({"error": {"type": kind, "message": message, "status": int(status), **details}})
    else:
        _print_titled(title, "bold red", message)


def _show_warning(as_json: bool, message: Warning | str, *_: object, **__: object) -> None:
    if as_json:
        _print_json_line({"warning": _worded(message)})
    else:
        _print_titled("warning", "bold yellow", _worded(message))


def _print_titled(title: str, style: str, message: str) -> None:
    from rich.text import Text

    stderr().print(Text.assemble((f"{title}: ", style), message), soft_wrap=True)


def _print_json_line(value: dict[str, Any]) -> None:
    sys.stderr.write(json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n")


def _worded(error: Exception | str) -> str:
    return error.worded(_WORDS) if isinstance(error, (SkipstoneError, SkipstoneWarning)) else str(error)
