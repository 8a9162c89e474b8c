"""Results that show themselves: tables of an index in notebooks and at prompts, versions with what a call did."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from .scan.steps import bytes_text

_MARK = b"skipstone.shown"  # in the metadata of a schema
_ROWS_MAX, _CELL_MAX = 60, 60


class VersionResult(int):
    """The version that a call ended at, an int; at a prompt it shows what the call did."""

    def __new__(cls, version: int, shown: str) -> VersionResult:
        self = super().__new__(cls, version)
        self._shown = shown
        return self

    _shown: str

    def __repr__(self) -> str:
        return self._shown

    def __format__(self, form: str) -> str:
        return format(int(self), form)

    def __reduce__(self) -> tuple[Any, ...]:
        return VersionResult, (int(self), self._shown)


def shown(table: pa.Table) -> pa.Table:
    """Mark a table, so that IPython, notebooks and interactive Python show its rows as a table."""
    _install()
    if not table.num_columns:  # pyarrow would forget how many rows it has
        return table
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _MARK: b"1"})


def _install() -> None:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        formatters = shell.display_formatter.formatters
        for kind, function in (("text/html", _html_of), ("text/plain", _print_plain)):
            if pa.Table not in formatters[kind].type_printers:
                formatters[kind].for_type(pa.Table, function)
    elif hasattr(sys, "ps1") and getattr(sys.displayhook, "__module__", None) != __name__:
        before = sys.displayhook

        def display(value: object) -> None:
            if isinstance(value, pa.Table) and _is_marked(value):
                print(text_of(value))
                value = None
            before(value)

        sys.displayhook = display


def _is_marked(table: pa.Table) -> bool:
    return _MARK in (table.schema.metadata or {})


def _print_plain(table: pa.Table, printer: Any, _cycle: bool) -> None:
    printer.text(text_of(table) if _is_marked(table) else repr(table))


def _html_of(table: pa.Table) -> str | None:
    from . import html

    if not _is_marked(table):
        return None
    notes = [text for text in (_more(table), note_of(table)) if text]
    return html.page(html.grid(*cells_of(table)), html.lines(notes, dim=True))


def text_of(table: pa.Table) -> str:
    """Return the rows of a table as text: names above, numbers to the right, at most 60 rows."""
    names, rows, numbers = cells_of(table)
    more = _more(table)
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        aligned = zip(names, cells, widths, strict=True)
        return "  ".join(c.rjust(w) if name in numbers else c.ljust(w) for name, c, w in aligned).rstrip()

    lines = [line(names), line(["-" * w for w in widths]), *map(line, rows), *([more] if more else [])]
    return "\n".join(lines + ([note] if (note := note_of(table)) else []))


def note_of(table: pa.Table) -> str:
    """Return what people should know of a result besides its rows; empty for nothing."""
    return (table.schema.metadata or {}).get(b"note", b"").decode()


def cells_of(table: pa.Table) -> tuple[list[str], list[list[str]], set[str]]:
    """Return the names of a table's columns, its first rows as texts, and the names of columns of numbers."""
    names, head = table.column_names, table.slice(0, _ROWS_MAX)
    columns = [
        [_shortened(cell_text(name, value)) for value in column.to_pylist()]
        for name, column in zip(names, head.columns, strict=True)
    ]
    numbers = {field.name for field in table.schema if pa.types.is_integer(field.type)}
    return names, [list(row) for row in zip(*columns, strict=True)], numbers


def _more(table: pa.Table) -> str:
    more = table.num_rows - _ROWS_MAX
    return f"... {more:,} more rows" if more > 0 else ""


def cell_text(name: str, value: object) -> str:
    """Return a value of a column as people read it: sizes have units, times are to the second, and null is "-"."""
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        is_size = name.endswith(("_bytes", "size")) or name.startswith("bytes_")
        return bytes_text(value) if is_size else f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _shortened(text: str) -> str:
    return text if len(text) <= _CELL_MAX else f"{text[: _CELL_MAX - 1]}…"
