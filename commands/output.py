"""How commands print: tables for people, JSON for machines.

Results go to stdout. Notes and errors go to stderr, notes only if that is a terminal. If stdout is not a terminal,
nothing is folded or cut to a width, unless COLUMNS sets one. Only tables and notes load rich.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa

from ..engine.scan.steps import bytes_text as bytes_text
from ..engine.scan.steps import count_of as count_of
from .arguments import InterruptedCommandError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid

_UNFOLDED_WIDTH = 100_000
_LISTED_MAX = 20


def stdout() -> Console:
    """Return the console for results."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return the console for everything else."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    is_narrow = stream.isatty() or "COLUMNS" in os.environ
    return Console(
        file=stream, width=None if is_narrow else _UNFOLDED_WIDTH, highlight=False, markup=False, emoji=False
    )


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show a spinner on stderr during work without counts."""
    if not sys.stderr.isatty():
        yield
        return
    with stderr().status(text):
        yield


def confirm(question: str) -> bool:
    """Ask at the terminal. Raises InterruptedCommandError after Ctrl-C, or if there is no input."""
    try:
        return input(f"{question} [y/N]: ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        raise InterruptedCommandError("nothing was done") from None


# -- values -----------------------------------------------------------------------------------------------------------


def plain(value: object) -> object:
    """Return a value as JSON: NaN and infinities as texts, times in ISO 8601, bytes in hexadecimal."""
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
    """Return the values of a column as JSON. A value or a zone without a Python type (the year 12,000) is a text."""
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
    """Return one dict per row."""
    columns = [values(column) for column in rows.columns]
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def cell(value: object) -> str:
    """Return a value as a cell of a table: "null", a text as it is, everything else as JSON."""
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


# -- printing ---------------------------------------------------------------------------------------------------------


def print_json(value: object) -> None:
    """Print the whole answer of a command with `--json`."""
    sys.stdout.write(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def answer(as_json: bool, value: object, *lines: str) -> None:
    """Print the whole answer of a command: a value as JSON, or lines for people."""
    if as_json:
        print_json(value)
        return
    for line in lines:
        print(line)


def first_lines(lines: Sequence[str]) -> list[str]:
    """Return the first lines of a list for people, and how many more there are."""
    more = len(lines) - _LISTED_MAX
    return [*lines[:_LISTED_MAX], *([f"... and {more:,} more (--json shows all)"] if more > 0 else [])]


def print_quarantined(reasons: Mapping[str, str], path: str) -> None:
    """Print the quarantined files (path -> reason) of the table at `path` on stderr."""
    if not reasons:
        return
    lines = first_lines([f"  {name}: {reason}" for name, reason in reasons.items()])
    text = "\n".join([f"{count_of(len(reasons), 'file')} quarantined (skipstone verify {path} names all):", *lines])
    stderr().print(text, style="yellow", soft_wrap=True)


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> Grid:
    """Return texts under headings; those in `right` are numbers. Cells are folded, never cut."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    numbers = set(right)
    for heading in headings:
        is_number = heading in numbers
        grid.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(text) for text in row))
    return grid


def print_table(rows: pa.Table, is_preview: bool = False) -> int:
    """Print rows as a table, or if that is wider than a screen, each row as a list; then of a preview only the first.

    Return how many rows were printed.
    """
    screen, names = stdout(), rows.column_names
    numbers = [
        field.name for field in rows.schema if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    ]
    lines = list(zip(*([cell(value) for value in values(column)] for column in rows.columns), strict=True))
    grid = text_table(names, lines, right=numbers)
    if screen.measure(grid, options=screen.options.update(max_width=_UNFOLDED_WIDTH)).maximum <= screen.width:
        screen.print(grid)
        return len(lines)
    lines = lines[:1] if is_preview else lines
    for line in lines:
        screen.print(text_table(["column", "value"], zip(names, line, strict=True)))
    return len(lines)


def answer_rows(as_json: bool, rows: pa.Table, names: Sequence[str] | None = None) -> None:
    """Print the whole answer of a command: rows as JSON, or some of their columns as a table."""
    if as_json:
        print_json(records(rows))
    else:
        print_rows(rows.to_pylist(), names or rows.column_names)


def print_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str], total: int = 0) -> None:
    """Print some fields of rows as a table. `total`: how many rows there are, if these are the first."""
    from ..engine.shown import cell_text

    numbers = [name for name in names if any(isinstance(row[name], int | float) for row in rows)]
    cells = [[cell_text(name, row[name]) for name in names] for row in rows]
    stdout().print(text_table([_heading(name) for name in names], cells, right=map(_heading, numbers)))
    if total > len(rows):
        stdout().print(f"... {total - len(rows):,} more: --json shows all", style="dim")


def _heading(name: str) -> str:
    plural = f"{name.removesuffix('_count')}s" if name.endswith("_count") else name
    return plural.removesuffix("_bytes").replace("_", " ")
