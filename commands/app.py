"""The command `skipstone`: one file a verb, or a few verbs of one kind. Each opens a table, calls it, and prints.

    create, sync, rebind, alter, index            make an index, and keep it up
    maintain (optimize, clean, repair), undo (rollback, restore, savepoint)
    listing (ls, history, slices), verify, doctor, inspect, layout, advise, report, perf, explain, scan, demo
    arguments  what follows a verb, read without typer where it is plain
    options    arguments that commands share, statuses, how a table is opened
    output     tables for people, JSON for machines, progress: the only place that prints tables

An error ends a command with one message on stderr and a status of `options.Status`; `--debug` shows where it was
raised. With `--json`, stdout holds one JSON value or nothing, and stderr one JSON object a line.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from ..engine.observing import SLOW_PLAN_VARIABLE
from ..errors import CommitConflictError, SkipstoneError, SkipstoneWarning
from .arguments import Option, for_typer, read_plain
from .options import Ended, InterruptedCommandError, Status, UsageError, take_storage_options
from .output import plain, stderr

if TYPE_CHECKING:
    import typer

_EPILOG = (
    "Every command takes --json (for machines: stdout holds JSON only; an error is a JSON object on stderr). "
    "--debug, anywhere, shows tracebacks; --storage-option NAME=VALUE, anywhere and repeated, opens object stores, as "
    "do environment variables like AWS_ACCESS_KEY_ID, which other users of the machine cannot see.\n\n"
    "Status: 0 done; 1 an error; 2 a command that cannot be read; 3 verify, doctor, inspect or demo found something "
    "wrong; 4 a conflict with another writer, nothing changed: try again; 5 scan or sync is done, but files are "
    "quarantined, and their rows are missing; 130 interrupted."
)
# The file of each verb, in the order of the help.
_VERBS = {
    "create": "create",
    "sync": "sync",
    "rebind": "rebind",
    "alter": "alter",
    "optimize": "maintain",
    "clean": "maintain",
    "repair": "maintain",
    "rollback": "undo",
    "restore": "undo",
    "savepoint": "undo",
    "ls": "listing",
    "history": "listing",
    "slices": "listing",
    "verify": "verify",
    "doctor": "doctor",
    "inspect": "inspect",
    "perf": "perf",
    "layout": "layout",
    "advise": "advise",
    "report": "report",
    "explain": "explain",
    "scan": "scan",
    "demo": "demo",
    "index": "index",
}


def _print_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"skipstone {version('skipstone')}")
        raise Ended(Status.OK)


def _options(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of the command itself."""


def _app_for(arguments: Sequence[str]) -> typer.Typer:
    """The parser with the verb that is called alone; with all of them where the first argument is none: for the help,
    and for suggestions."""
    import typer

    app = typer.Typer(
        name="skipstone",
        help="Indexes a lake of Parquet files, so that a query skips what it need not read.",
        epilog=_EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(for_typer(_options))
    for verb in arguments[:1] if arguments and arguments[0] in _VERBS else _VERBS:
        module = _module_of(verb)
        if verb == "index":
            indexes = typer.Typer(help="Add, list, drop and refresh indexes.", no_args_is_help=True)
            for name, function in module.VERBS.items():
                indexes.command(name)(for_typer(function))
            app.add_typer(indexes, name=verb)
        else:
            app.command(verb)(for_typer(getattr(module, verb)))
    return app


def _module_of(verb: str) -> ModuleType:
    return importlib.import_module(f".{_VERBS[verb]}", __package__)


def _is_done(arguments: Sequence[str]) -> bool:
    """Runs a verb whose arguments are plain; False for one that typer has to read."""
    verb, *rest = arguments or [""]
    if verb not in _VERBS:
        return False
    if verb == "index":
        function = _module_of(verb).VERBS.get(rest.pop(0) if rest else "")
    else:
        function = getattr(_module_of(verb), verb)
    given = None if function is None else read_plain(function, rest)
    if given is None:
        return False
    function(**given)
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and end the process with its status (`options.Status`).

    Args:
        arguments: what follows `skipstone`; None for the process's own.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    debug, as_json = "--debug" in arguments, "--json" in arguments
    if not debug:
        warnings.showwarning = _show_json_warning if as_json else _show_warning
    if SLOW_PLAN_VARIABLE in os.environ:
        logging.basicConfig(format="%(message)s")  # warnings of slow plans, on stderr
    try:
        rest = take_storage_options([argument for argument in arguments if argument != "--debug"])
        status = Status.OK
        if not _is_done(rest):
            status = _app_for(rest)(args=rest, prog_name="skipstone", standalone_mode=not as_json)
    except Ended as end:
        status = Status(end.status)
    except SkipstoneError as error:
        if debug:
            raise
        status = _status_of(error)
        _print_error(error, status, as_json)
    except InterruptedCommandError as error:
        status = Status.INTERRUPTED
        _print_error(error, status, as_json, title="interrupted")
    except KeyboardInterrupt:  # before there was anything to keep
        status = Status.INTERRUPTED
    except BrokenPipeError:  # whoever read stdout has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush fails as well
        status = Status.ERROR
    except Exception as error:  # of the parser, which is part of typer or beside it, as the version has it
        if not hasattr(error, "format_message"):
            raise
        status = Status.USAGE
        _print_error(UsageError(error.format_message()), status, as_json)
    sys.exit(int(status or Status.OK))


# How hints of errors name verbs and arguments here; hints that name others are left out.
_WORDS = {
    "open": "any other command",
    "index_path": "--index-path",
    "on_misfit": "--on-misfit quarantine",
    "refresh_index": "`skipstone index refresh`",
    "create_index": "`skipstone index add`",
    "drop_index": "`skipstone index drop`",
    "drop_savepoint": "`skipstone savepoint --drop`",
    **{name: f"`skipstone {name}`" for name in ("create", "sync", "rebind", "alter", "repair", "restore", "verify")},
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
        fields = vars(error).items()  # typer adds what begins with underscores
        details = {k: v for k, v in fields if k not in _MESSAGE and not k.startswith("_") and v is not None}
        hint = error.hint_worded(_WORDS) if isinstance(error, SkipstoneError) else None
        details |= {} if hint is None else {"hint": hint}
        kind = "Interrupted" if status is Status.INTERRUPTED else type(error).__name__
        _print_json_line({"error": {"type": kind, "message": message, "status": int(status), **details}})
    else:
        _print_titled(title, "bold red", message)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _print_titled("warning", "bold yellow", _worded(message))


def _print_titled(title: str, style: str, message: str) -> None:
    from rich.text import Text

    stderr().print(Text.assemble((f"{title}: ", style), message), soft_wrap=True)


def _show_json_warning(message: Warning | str, *_: object, **__: object) -> None:
    _print_json_line({"warning": _worded(message)})


def _print_json_line(value: dict[str, Any]) -> None:
    sys.stderr.write(json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n")


def _worded(error: Exception | str) -> str:
    return error.worded(_WORDS) if isinstance(error, (SkipstoneError, SkipstoneWarning)) else str(error)
