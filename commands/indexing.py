"""`skipstone index`: indexes added, listed, dropped and refreshed."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from ..engine.table import Table
from .options import AsJson, IndexPath, Path, opened
from .output import bytes_text, print_json, progress, stdout, table

indexes = typer.Typer(help="Add, list, drop and refresh indexes.", no_args_is_help=True)


class Kind(StrEnum):
    bloom = "bloom"
    stats = "stats"


class Maintained(StrEnum):
    commit = "commit"
    refresh = "refresh"


IndexKind = Annotated[Kind, typer.Option(help="bloom: which values files may hold; stats: what they span.")]


@indexes.command("add")
def index_add(
    path: Path,
    columns: Annotated[
        list[str],
        typer.Argument(metavar="COLUMN", help="Each gets a filter; statistics are one index.", show_default=False),
    ],
    kind: IndexKind = Kind.bloom,
    fpp: Annotated[float, typer.Option(help="How often a row group without the value is read all the same.")] = 0.01,
    maintain: Annotated[
        Maintained, typer.Option(help="commit: what is written later is indexed at once; refresh: by index refresh.")
    ] = Maintained.commit,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Build indexes over the files that are there, while others write."""
    with opened(path, index_path) as found:
        with progress() as tell:
            found.create_index(columns, kind.value, fpp=fpp, maintain=maintain.value, progress=tell)
        _print_indexes(found, as_json)


@indexes.command("refresh")
def index_refresh(
    path: Path,
    columns: Annotated[
        list[str] | None, typer.Argument(metavar="COLUMN", help="Default: every column with such an index.")
    ] = None,
    kind: Annotated[Kind | None, typer.Option(help="The kind of index; every kind by default.")] = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Cover the files that indexes lack."""
    with opened(path, index_path) as found:
        known = found.indexes().to_pylist()
        with progress() as tell:
            for one in Kind if kind is None else [kind]:
                asked = [name for row in known if row["kind"] == one.value for name in row["columns"]]
                if columns and (kind is not None or not _are_indexed(columns, known)):
                    asked = columns  # the library tells what is wrong with those that have no such index
                elif columns:
                    asked = [name for name in columns if name in asked]
                if asked:
                    found.refresh_index(asked, one.value, progress=tell)
        _print_indexes(found, as_json)


def _are_indexed(columns: list[str], known: list[dict]) -> bool:
    return {name for row in known for name in row["columns"]}.issuperset(columns)


@indexes.command("drop")
def index_drop(
    path: Path,
    columns: Annotated[list[str], typer.Argument(metavar="COLUMN", help="Whose index goes.", show_default=False)],
    kind: IndexKind = Kind.bloom,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Take indexes away."""
    with opened(path, index_path) as found:
        found.drop_index(columns, kind.value)
        _print_indexes(found, as_json)


@indexes.command("list")
def index_list(path: Path, index_path: IndexPath = None, as_json: AsJson = False) -> None:
    """The indexes: what they cover and how large they are."""
    with opened(path, index_path) as found:
        _print_indexes(found, as_json)


def _print_indexes(found: Table, as_json: bool) -> None:
    rows = [{**row, "options": json.loads(row["options"])} for row in found.indexes().to_pylist()]
    if as_json:
        print_json(rows)
        return
    cells = [
        [
            row["name"],
            f"{row['files_covered']:,} of {row['files_total']:,}",
            bytes_text(row["size_bytes"]),
            ", ".join(_option(name, value) for name, value in row["options"].items() if name != "maintain") or "-",
            {"commit": "at each commit", "refresh": "by index refresh"}[row["options"]["maintain"]],
        ]
        for row in rows
    ]
    headings = ["index", "files covered", "size", "options", "kept up"]
    stdout().print(table(headings, cells, right=["files covered", "size"]))


def _option(name: str, value: float) -> str:
    return f"shards of {bytes_text(int(value))}" if name == "shard_bytes" else f"{name} {value}"
