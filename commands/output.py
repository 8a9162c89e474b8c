"""How commands show what they found: tables for people, JSON for machines, progress where somebody watches.

Answers go to stdout. Progress, notes and errors go to stderr, progress and notes only where that is a terminal. Where
stdout is no terminal nothing is folded or cut to a width, unless COLUMNS asks for one.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TextIO

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from ..engine.scan.explain import HEADINGS, cells, kept_lines, why
from ..engine.scan.explain import bytes_text as bytes_text
from ..engine.scan.plan import Plan

_UNFOLDED_WIDTH = 100_000
Tell = Callable[[str, int, int | None], None]


def stdout() -> Console:
    """The console for answers."""
    return _console(sys.stdout)


def stderr() -> Console:
    """The console for all that is no answer."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    is_narrow = stream.isatty() or "COLUMNS" in os.environ
    return Console(
        file=stream, width=None if is_narrow else _UNFOLDED_WIDTH, highlight=False, markup=False, emoji=False
    )


def note(text: str) -> None:
    """A remark for whoever watches; a pipe or a log does not get it."""
    if sys.stderr.isatty():
        stderr().print(text, style="dim")


# -- progress ---------------------------------------------------------------------------------------------------------


@contextmanager
def progress(stream: TextIO | None = None) -> Iterator[Tell | None]:
    """A function for `progress=` arguments that draws bars on stderr; None where nobody watches."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=_console(stream), transient=True) as bars:
        known: dict[str, TaskID] = {}

        def tell(step: str, done: int, total: int | None) -> None:
            if step not in known:
                for task in bars.tasks:  # steps that go on at once stand below each other
                    if task.finished:
                        bars.update(task.id, visible=False)
                known[step] = bars.add_task(step, total=total)
            bars.update(known[step], completed=done, total=total)

        yield tell


@contextmanager
def working(text: str) -> Iterator[None]:
    """A spinner on stderr while something without counts goes on."""
    if not sys.stderr.isatty():
        yield
        return
    with stderr().status(text):
        yield


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
    """The values of a column as JSON can hold them. What Python has no type for (the year 12,000), or no zone, comes as
    text."""
    try:
        found = column.to_pylist()
    except (ValueError, ArithmeticError, LookupError, pa.ArrowException):
        found = [_python(scalar) for scalar in column]
    return [plain(value) for value in found]


def _python(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (ValueError, ArithmeticError, LookupError, pa.ArrowException):
        pass
    try:
        return scalar.cast(pa.string()).as_py()
    except pa.ArrowException:  # what Arrow cannot tell as text either is of a time, and a number
        return f"{scalar.cast(pa.int64()).as_py()} {scalar.type}"


def records(found: pa.Table | pa.RecordBatch) -> list[dict[str, object]]:
    """One dict a row."""
    columns = [values(column) for column in found.columns]
    return [dict(zip(found.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def print_json(value: object) -> None:
    """All of stdout, where `--json` is given."""
    sys.stdout.write(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


# -- tables -----------------------------------------------------------------------------------------------------------


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> Table:
    """Texts under headings; those in `right` are numbers. Cells are folded, never cut."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    numbers = set(right)
    for heading in headings:
        is_number = heading in numbers
        made.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made


def count_of(count: int, one: str, many: str | None = None) -> str:
    """ "1 file", "2,000 files"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def print_explain(plan: Plan) -> None:
    """A plan's steps as a table, between what was asked and what there is to remark."""
    lines = plan.explain().splitlines()
    screen = stdout()
    for line in lines[:2]:
        screen.print(line, soft_wrap=True)
    screen.print()
    headings = list(HEADINGS)
    rows = [list(cells(step)) for step in plan.steps]
    screen.print(table(headings, rows, right={"in", "out", "uncovered", "requests", "read", "ms"}))
    for remark in plan.remarks:
        screen.print(f"  {remark}", style="yellow", soft_wrap=True)
    kept = kept_lines(plan.planning)
    if kept:
        screen.print()
        screen.print(kept[0], style="bold")
        for line in kept[1:]:
            screen.print(line, soft_wrap=True)


def print_explain_json(plan: Plan) -> None:
    """The same for machines, with the row groups that would be read."""
    planning, groups = plan.planning, _by_file(plan.row_groups())
    steps = [asdict(step) for step in plan.steps]
    asked = {"location": planning.location, "version": planning.instant.version, "where": str(plan.bound)}
    kept = [{"code": one.reason.value, "leaf": str(one.part), "files": one.files} for one in why(planning)]
    print_json({**asked, "steps": steps, "why_kept": kept, "row_groups": groups})


def _by_file(groups: pa.Table) -> dict[str, list[int] | None]:
    """file -> its row groups that would be read; None where they are not known, so that all are."""
    found: dict[str, list[int] | None] = {}
    for row in groups.to_pylist():
        if row["row_group"] is None:
            found[row["path"]] = None
        else:
            found[row["path"]] = [*(found.get(row["path"]) or []), row["row_group"]]
    return found
