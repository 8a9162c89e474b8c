"""`skipstone index add`, `refresh`, `drop` and `list`."""

from __future__ import annotations

import json
from typing import Annotated

from ..engine.choices import IndexKindName, Maintenance
from ..engine.table import Table
from .arguments import Argument, AsJson, OpenTable, Option
from .output import cell, print_json, print_rows

_KINDS = (
    "bloom: which values files may contain; secondary: which rows contain them; stats: bounds of files; ngram: texts."
)
_NEW_COLUMNS = (
    "bloom, ngram: an index each; secondary: together one key; stats: one index. A list column: its elements. Any "
    "other text is an expression, as in 'lower(email)'."
)
_FPP = "Of a filter: how often a row group without the value is read. Default: 0.001."
IndexKind = Annotated[IndexKindName, Option(help=_KINDS)]


def index_add(
    table: OpenTable,
    columns: Annotated[list[str], Argument(metavar="COLUMN", help=_NEW_COLUMNS)],
    kind: IndexKind = "bloom",
    fpp: Annotated[float | None, Option(help=_FPP)] = None,
    maintain: Annotated[
        Maintenance, Option(help="commit: what is written later is indexed with it; refresh: by index refresh.")
    ] = "commit",
    ignore_case: Annotated[
        bool, Option(help="Of ngram: ILIKE and other tests that ignore case use it as well.")
    ] = False,
    include: Annotated[
        list[str] | None, Option(help="Of a secondary index: a column whose values it contains. Repeat it for several.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build indexes over the files that exist, while others write."""
    folded = ignore_case or None
    table.create_index(columns, kind, fpp=fpp, maintain=maintain, ignore_case=folded, include=include)
    _print_indexes(table, as_json)


def index_refresh(
    table: OpenTable,
    columns: Annotated[
        list[str] | None, Argument(metavar="COLUMN", help="The columns of the indexes; all indexes by default.")
    ] = None,
    kind: Annotated[IndexKindName | None, Option(help="Default: bloom with COLUMN, all kinds without.")] = None,
    as_json: AsJson = False,
) -> None:
    """Index the files that indexes lack: those of columns and a kind, or without COLUMN all indexes."""
    if columns:
        table.refresh_index(columns, kind or "bloom")
    for row in [] if columns else table.indexes().to_pylist():
        if kind in (None, row["kind"]):
            table.refresh_index(row["columns"], row["kind"])
    _print_indexes(table, as_json)


def index_drop(
    table: OpenTable,
    columns: Annotated[list[str], Argument(metavar="COLUMN", help="The columns of the index.")],
    kind: IndexKind = "bloom",
    as_json: AsJson = False,
) -> None:
    """Drop indexes."""
    table.drop_index(columns, kind)
    _print_indexes(table, as_json)


def index_list(table: OpenTable, as_json: AsJson = False) -> None:
    """List the indexes: what they cover and how large they are."""
    _print_indexes(table, as_json)


def _print_indexes(table: Table, as_json: bool) -> None:
    rows = [{**row, "options": json.loads(row["options"])} for row in table.indexes().to_pylist()]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        row["options"] = ", ".join(f"{name} {cell(value)}" for name, value in row["options"].items()) or None
    print_rows(rows, ["name", "files_covered", "files_total", "size_bytes", "options"])
