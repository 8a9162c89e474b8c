"""`skipstone sync`: what it added, removed and set aside."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from .options import AsJson, IndexPath, Path, opened
from .output import count_of, print_json, progress, stdout

_SHOWN = 10


class NewColumns(StrEnum):
    adopt = "adopt"
    report = "report"


def sync(
    path: Path,
    new_columns: Annotated[
        NewColumns, typer.Option(help="Columns that the table never had: take them in, or only name them.")
    ] = NewColumns.adopt,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Follow the directory: commit the files that appeared, went, or changed."""
    with opened(path, index_path) as found:
        before = found.version
        with progress() as tell:
            made = found.sync(new_columns=new_columns.value, progress=tell)
        is_new = made.version != before
        lacking = {row["name"]: row["files_total"] - row["files_covered"] for row in found.indexes().to_pylist()}
        if as_json:
            told = {"changed": is_new, "version": made.version, **(found.instant.summary if is_new else {})}
            print_json(
                {
                    **told,
                    "added": list(made.added),
                    "removed": list(made.removed),
                    "quarantined": made.quarantined,
                    "new_columns": list(made.new_columns),
                    "pending": len(made.quarantined),
                }
            )
            return
    screen = stdout()
    if is_new:
        added, removed = count_of(len(made.added), "file"), count_of(len(made.removed), "file")
        screen.print(f"version {made.version}: {added} added, {removed} removed")
    else:
        screen.print(f"nothing new: version {made.version} stands")
    if made.new_columns:
        told_of = "new columns" if new_columns is NewColumns.adopt else "columns that are not the table's"
        screen.print(f"{told_of}: {', '.join(made.new_columns)}", soft_wrap=True)
    for name, count in lacking.items() if is_new else ():
        if count:
            screen.print(f"{name} does not speak of {count_of(count, 'file')}: skipstone index refresh {path}")
    if made.quarantined:
        screen.print(f"{count_of(len(made.quarantined), 'file')} set aside:", style="yellow")
        for name, reason in list(made.quarantined.items())[:_SHOWN]:
            screen.print(f"  {name}: {reason}", style="yellow", soft_wrap=True, markup=False)
        if len(made.quarantined) > _SHOWN:
            screen.print(f"  and more: skipstone verify {path}", style="yellow")
