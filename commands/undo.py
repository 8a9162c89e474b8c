"""`skipstone rollback`, `restore` and `savepoint`: what was done is undone, and versions get names."""

from __future__ import annotations

from typing import Annotated

from ..engine.table import Table
from .arguments import Argument, Option
from .options import AsJson, IndexPath, Path, UsageError, opened
from .output import count_of, print_json, records, stdout, text_table


def rollback(
    path: Path,
    version: Annotated[int, Argument(metavar="VERSION", help="The commit to undo.", show_default=False)],
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Undo one commit: what it added goes, what it took out comes back; what came after it stays."""
    with opened(path, index_path) as table:
        before = table.version
        table.rollback(version)
        _print_change(table, before, as_json, rolled_back=version)


def restore(
    path: Path,
    version: Annotated[int | None, Option(help="The version whose files are to be live again.")] = None,
    savepoint: Annotated[str | None, Option(metavar="NAME", help="The same, by the name of a savepoint.")] = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Make the live files those of an older version again; the schema and the indexes stay as they are."""
    with opened(path, index_path) as table:
        before = table.version
        table.restore(version, savepoint=savepoint)
        named = version if savepoint is None else table.handle.instant.version_of_savepoint(savepoint)
        _print_change(table, before, as_json, restored=named)


def savepoint(
    path: Path,
    name: Annotated[
        str | None, Argument(metavar="NAME", help="What the latest version is to be called.", show_default=False)
    ] = None,
    drop: Annotated[bool, Option("--drop", help="Take the savepoint of that name away.")] = False,
    list_: Annotated[bool, Option("--list", help="Show the savepoints.")] = False,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Give the latest version a name, which keeps it from being cleaned; or drop a name, or list them."""
    if list_ == (name is not None) or (drop and name is None):
        raise UsageError("give the NAME of a savepoint to make, or to --drop; or --list alone")
    with opened(path, index_path) as table:
        if name is None:
            _print_savepoints(table, as_json)
            return
        named = table.handle.instant.savepoints.get(name) if drop else table.version
        version = table.drop_savepoint(name) if drop else table.savepoint(name)
        if as_json:
            print_json({"version": version, "savepoint": name, "of": named, "dropped": drop})
        elif drop:
            stdout().print(f"savepoint {name!r} is dropped; version {named} stays until it is cleaned")
        else:
            stdout().print(f"savepoint {name!r}: version {named}")


def _print_change(table: Table, before: int, as_json: bool, **action: int | None) -> None:
    latest = table.handle.instant.summary
    is_new = table.version != before and latest.items() >= action.items()  # else the latest is another's
    summary = latest if is_new else {"files_added": 0, "files_removed": 0}
    added, removed = summary["files_added"], summary["files_removed"]
    totals = table.handle.instant.totals
    if as_json:
        counts = {"files_back": added, "files_removed": removed, "files": totals["files"], "rows": totals["rows"]}
        print_json({"changed": is_new, "version": table.version, **action, **counts})
        return
    screen = stdout()
    if is_new:
        screen.print(f"version {table.version}: {count_of(added, 'file')} came back, {removed:,} went")
        lacking = {row["name"]: row["files_total"] - row["files_covered"] for row in table.indexes().to_pylist()}
        for name, count in lacking.items():
            if count:
                screen.print(f"{name} does not cover {count_of(count, 'file')}: skipstone index refresh")
    else:
        screen.print(f"nothing to change: still version {table.version}")
    screen.print(f"{count_of(totals['files'], 'file')}, {count_of(totals['rows'], 'row')}", style="dim")


def _print_savepoints(table: Table, as_json: bool) -> None:
    rows = table.savepoints()
    if as_json:
        print_json(records(rows))
        return
    cells = [
        [r["name"], str(r["version"]), r["time"].strftime("%Y-%m-%d %H:%M:%S") if r["time"] else "lost"]
        for r in rows.to_pylist()
    ]
    stdout().print(text_table(["savepoint", "version", "time (UTC)"], cells, right=["version"]))
