"""The verbs that change rows: delete, upsert."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import pyarrow.parquet as pq

from ..engine.rows_by_key.verbs import Change
from ..errors import InvalidArgumentError
from .arguments import Argument, AsJson, OpenTable, Option, split
from .output import answer, confirm, count_of, first_lines

Yes = Annotated[bool, Option(help="Do it without asking.")]
DryRun = Annotated[bool, Option(help="Only show which files and how many rows would change.")]
Key = Annotated[str | None, Option(metavar="NAME", help="A retry with the same key has no effect.")]


def delete(
    table: OpenTable,
    where: Annotated[str, Option(metavar="SQL", help="Rows for which this is TRUE are deleted; 'true' for all.")],
    dry_run: DryRun = False,
    key: Key = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete rows: files that contain some are written again without them. Asks first."""
    _change(partial(table.delete, where), dry_run, key, yes, as_json)


def upsert(
    table: OpenTable,
    rows: Annotated[str, Argument(metavar="ROWS", help="A Parquet file with the new rows.")],
    on: Annotated[str, Option(metavar="COLUMNS", help="The columns of the key, separated by commas.")],
    when_matched: Annotated[
        Literal["update", "delete", "nothing"], Option(help="What happens to rows whose key is in the file.")
    ] = "update",
    when_not_matched: Annotated[
        Literal["insert", "nothing"], Option(help="What happens to rows of the file whose key the table does not have.")
    ] = "insert",
    dry_run: DryRun = False,
    key: Key = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Update the rows whose key is in a Parquet file, and insert the others. Asks first."""
    try:
        source = pq.read_table(rows, partitioning=None)
    except (OSError, ValueError) as error:  # pyarrow's errors are among them
        raise InvalidArgumentError(f"{rows}: cannot be read as Parquet: {error}") from None
    verb = partial(
        table.upsert,
        source,
        split(on) or [],
        when_matched=None if when_matched == "nothing" else when_matched,
        when_not_matched=None if when_not_matched == "nothing" else when_not_matched,
    )
    _change(verb, dry_run, key, yes, as_json)


def _change(verb: Callable[..., Change], dry_run: bool, key: str | None, yes: bool, as_json: bool) -> None:
    """Show what a verb would do, and do it if that is confirmed: with --json only by --yes."""
    change = verb(dry_run=True)
    is_something = bool(change.files or change.rows_inserted)
    if is_something and not (dry_run or yes):
        answer(False, None, *([] if as_json else [_summary(change)]))
        dry_run = as_json or not confirm("Change these rows?")
    if not dry_run:
        change = verb(key=key)
    head = "nothing was done; would change" if dry_run else f"version {change.version}"
    files = [f"{file}: {count_of(count, 'row')}" for file, count in change.files.items()] if dry_run else []
    value = {"dry_run": dry_run, **dataclasses.asdict(change)}
    answer(as_json, value, *first_lines(files), f"{head}: {_summary(change)}")


def _summary(change: Change) -> str:
    counts = {"deleted": change.rows_deleted, "updated": change.rows_updated, "inserted": change.rows_inserted}
    done = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "0"
    return f"rows {done}; {count_of(change.files_rewritten, 'file')} written again"
