"""How commands print: tables for people, JSON for machines, progress on a terminal.

Results go to stdout. Progress, notes and errors go to stderr, progress and notes only where that is a terminal. Where
stdout is no terminal nothing is folded or cut to a width, unless COLUMNS sets one. What JSON does without (rich) is
loaded by what needs it.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import pyarrow as pa

from ..engine.scan.steps import bytes_text as bytes_text
from ..engine.scan.steps import count_of as count_of
from .options import InterruptedCommandError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID
    from rich.table import Table

_UNFOLDED_WIDTH = 100_000
_QUARANTINED_SHOWN = 10
Report = Callable[[str, int, int | None], None]


def stdout() -> Console:
    """The console for results."""
    return _console(sys.stdout)


def stderr() -> Console:
    """The console for everything else."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    is_narrow = stream.isatty() or "COLUMNS" in os.environ
    return Console(
        file=stream, width=None if is_narrow else _UNFOLDED_WIDTH, highlight=False, markup=False, emoji=False
    )


def note(text: str) -> None:
    """A remark for a person at a terminal; a pipe or a log does not get it."""
    if sys.stderr.isatty():
        stderr().print(text, style="dim")


# -- progress ---------------------------------------------------------------------------------------------------------


@contextmanager
def progress(stream: TextIO | None = None) -> Iterator[Report | None]:
    """A function for `progress=` arguments that draws bars on stderr; None where that is no terminal."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    counts = (MofNCompleteColumn(), TimeRemainingColumn())
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), *counts)
    with Progress(*columns, console=_console(stream), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(step: str, done: int, total: int | None) -> None:
            if step not in tasks:
                for task in bars.tasks:  # steps that run at once are shown below each other
                    if task.finished:
                        bars.update(task.id, visible=False)
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done, total=total)

        yield report


@contextmanager
def working(text: str) -> Iterator[None]:
    """A spinner on stderr while something without counts goes on."""
    if not sys.stderr.isatty():
        yield
        return
    with stderr().status(text):
        yield


def confirm(question: str) -> bool:
    """Asks at the terminal. Raises InterruptedCommandError after Ctrl-C, or where nobody is there."""
    import typer

    try:
        return typer.confirm(question)
    except typer.Abort:
        raise InterruptedCommandError("nothing was done") from None


# -- values -----------------------------------------------------------------------------------------------------------


def plain(value: object) -> object:
    """A value as JSON can hold it: NaN and infinities as texts, times in ISO 8601, bytes in hexadecimal."""
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (bytes, memoryview)):
        return value.hex()
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    return str(value)


def values(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """The values of a column as JSON can hold them. A value or a zone that Python has no type for (the year 12,000)
    comes as text."""
    try:
        objects = column.to_pylist()
    except (ValueError, ArithmeticError, LookupError, pa.ArrowException):
        objects = [_python(scalar) for scalar in column]
    return [plain(value) for value in objects]


def _python(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (ValueError, ArithmeticError, LookupError, pa.ArrowException):
        pass
    try:
        return scalar.cast(pa.string()).as_py()
    except pa.ArrowException:  # a time that Arrow cannot print either: its number
        return f"{scalar.cast(pa.int64()).as_py()} {scalar.type}"


def records(rows: pa.Table | pa.RecordBatch) -> list[dict[str, object]]:
    """One dict a row."""
    columns = [values(column) for column in rows.columns]
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def print_json(value: object) -> None:
    """All of stdout, where `--json` is given."""
    sys.stdout.write(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_quarantined(reasons: Mapping[str, str], path: str) -> None:
    """Quarantined files (path -> reason) of the table at `path`, on stderr."""
    screen = stderr()
    screen.print(f"{count_of(len(reasons), 'file')} quarantined:", style="yellow")
    for name, reason in list(reasons.items())[:_QUARANTINED_SHOWN]:
        screen.print(f"  {name}: {reason}", style="yellow", soft_wrap=True, markup=False)
    if len(reasons) > _QUARANTINED_SHOWN:
        screen.print(f"  and more: skipstone verify {path}", style="yellow")


# -- tables -----------------------------------------------------------------------------------------------------------


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> Table:
    """Texts under headings; those in `right` are numbers. Cells are folded, never cut."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    numbers = set(right)
    for heading in headings:
        is_number = heading in numbers
        grid.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    return grid
