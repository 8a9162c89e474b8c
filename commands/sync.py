"""`skipstone sync`: what it added, removed and set aside."""

from __future__ import annotations

from typing import Annotated

import typer

from ..engine.choices import NewColumns
from .options import AsJson, IndexPath, Path, opened
from .output import count_of, print_json, progress, stdout

_SHOWN = 10


def sync(
    path: Path,
    new_columns: Annotated[
        NewColumns, typer.Option(help="Columns that the table never had: take them in, or only name them.")
    ] = "adopt",
    refresh: Annotated[bool, typer.Option("--refresh", help="Then bring every index up to date.")] = False,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Follow the directory: commit the files that appeared, went, or changed."""
    with opened(path, index_path) as table:
        before = table.version
        with progress() as report:
            result = table.sync(new_columns=new_columns, refresh=refresh, progress=report)
        is_new = result.version != before
        lacking = {row["name"]: row["files_total"] - row["files_covered"] for row in table.indexes().to_pylist()}
        if as_json:
            outcome = {"changed": is_new, "version": result.version, **(table.handle.instant.summary if is_new else {})}
            print_json(
                {
                    **outcome,
                    "added": list(result.added),
                    "removed": list(result.removed),
                    "quarantined": result.quarantined,
                    "new_columns": list(result.new_columns),
                    "pending": len(result.quarantined),
                }
            )
            return
    screen = stdout()
    if is_new:
        added, removed = count_of(len(result.added), "file"), count_of(len(result.removed), "file")
        screen.print(f"version {result.version}: {added} added, {removed} removed")
    else:
        screen.print(f"nothing new: version {result.version} stands")
    if result.new_columns:
        what = "new columns" if new_columns == "adopt" else "columns that are not the table's"
        screen.print(f"{what}: {', '.join(result.new_columns)}", soft_wrap=True)
    for name, count in lacking.items() if is_new else ():
        if count:
            screen.print(f"{name} does not cover {count_of(count, 'file')}: skipstone sync --refresh {path}")
    if result.quarantined:
        screen.print(f"{count_of(len(result.quarantined), 'file')} set aside:", style="yellow")
        for name, reason in list(result.quarantined.items())[:_SHOWN]:
            screen.print(f"  {name}: {reason}", style="yellow", soft_wrap=True, markup=False)
        if len(result.quarantined) > _SHOWN:
            screen.print(f"  and more: skipstone verify {path}", style="yellow")
