"""What commands have in common: arguments and options, and how a table is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from ..engine.open import open_table
from ..engine.table import Table
from .storage_options import storage_options


class Mode(StrEnum):
    snapshot = "snapshot"
    read_optimized = "read_optimized"


Path = Annotated[
    str, typer.Argument(metavar="PATH", help="The table's directory, or s3://BUCKET/PATH.", show_default=False)
]
IndexPath = Annotated[
    str | None, typer.Option("--index-path", metavar="DIR", help="Where the index lies, if not in PATH/.skipstone.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Version = Annotated[int | None, typer.Option(help="The version to read; the latest by default.")]
Names = Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns.")]
ScanMode = Annotated[Mode, typer.Option(help="read_optimized: of each file slice its base alone, without its logs.")]


@contextmanager
def opened(path: str, index_path: str | None, version: int | None = None) -> Iterator[Table]:
    """The table, closed in the end."""
    with open_table(path, index_path=index_path, version=version, storage_options=storage_options()) as found:
        yield found


def split(names: str | None) -> list[str] | None:
    """The names in "a, b"."""
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]
