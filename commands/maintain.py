"""`skipstone optimize`, `clean` and `repair`: what keeps a table fast, small and whole."""

from __future__ import annotations

import datetime as dt
import re
from functools import partial
from typing import Annotated

from ..engine.commit.repair import repair as repair_table
from .arguments import Option
from .options import AsJson, IndexPath, Path, UsageError, opened, storage_options
from .output import bytes_text, confirm, count_of, print_json, progress, records, stdout, text_table

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGE = re.compile(rf"(\d+(?:\.\d+)?)([{''.join(_UNITS)}])")
_SHOWN_MAX = 20


def optimize(path: Path, index_path: IndexPath = None, as_json: AsJson = False) -> None:
    """Cover what indexes lack, tighten aggregates, merge runs. Readers are not disturbed."""
    with opened(path, index_path) as table:
        before, size_before = table.version, _index_bytes(table.indexes().to_pylist())
        with progress() as report:
            table.optimize(progress=report)
        is_new = table.version != before
        indexes = table.indexes().to_pylist()
        runs = len(table.handle.instant.manifest) + sum(len(index.runs) for index in table.handle.instant.indexes)
        if as_json:
            print_json({"changed": is_new, "version": table.version, "runs": runs, "indexes": indexes})
            return
    screen = stdout()
    if is_new:
        sizes = f"indexes {bytes_text(size_before)} -> {bytes_text(_index_bytes(indexes))}"
        screen.print(f"version {table.version}: {count_of(runs, 'run')}, {sizes}")
    else:
        screen.print(f"nothing to do: still version {table.version}")


def _index_bytes(indexes: list[dict]) -> int:
    return sum(index["size_bytes"] for index in indexes)


def clean(
    path: Path,
    retain: Annotated[int, Option(metavar="N", help="Keep the last N versions.")] = 10,
    min_age: Annotated[str, Option(metavar="AGE", help="Keep what was in use less long ago: 90s, 30m, 1h, 7d.")] = "1h",
    delete_data: Annotated[
        bool, Option("--delete-data", help="Remove data files, too, that no version left names.")
    ] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show what would go.")] = False,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Remove what only old versions name, and what writers that died left behind."""
    age = _age(min_age)
    with opened(path, index_path) as table:
        with progress() as report:
            removed = table.clean(
                retain_versions=retain, min_age=age, delete_data=delete_data, dry_run=dry_run, progress=report
            )
        rows = records(removed)
        if as_json:
            print_json({"version": table.version, "dry_run": dry_run, "files": rows})
            return
    screen = stdout()
    verb = "would go" if dry_run else "removed"
    if not rows:
        screen.print(f"nothing to clean: still version {table.version}")
        return
    if dry_run:
        cells = [[str(r["kind"]), str(r["path"]), bytes_text(int(str(r["size_bytes"])))] for r in rows[:_SHOWN_MAX]]
        screen.print(text_table(["kind", "path", "size"], cells, right=["size"]))
        if len(rows) > _SHOWN_MAX:
            screen.print(f"... and {len(rows) - _SHOWN_MAX:,} more (--json shows all)", style="dim")
    total = bytes_text(sum(int(str(row["size_bytes"])) for row in rows))
    data = sum(row["kind"] == "data" for row in rows)
    screen.print(f"{verb}: {count_of(len(rows), 'file')}, {total}, {data:,} of them data; version {table.version}")


def repair(
    path: Path,
    yes: Annotated[bool, Option("--yes", help="Do it, without a question.")] = False,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Go on after versions that were lost for good: by one more, from the newest that is whole. Asks first."""
    repair_it = partial(repair_table, path, index_path=index_path, storage_options=storage_options())
    result = repair_it(dry_run=True)
    screen = stdout()
    if result.is_needed and not as_json:
        lost = ", ".join(map(str, result.lost[:_SHOWN_MAX])) + (", ..." if len(result.lost) > _SHOWN_MAX else "")
        what = (
            f"version {lost} is" if len(result.lost) == 1 else f"{count_of(len(result.lost), 'version')} ({lost}) are"
        )
        screen.print(
            f"{what} lost; version {result.base} is the newest that is whole, and the table goes on from there"
        )
        yes = yes or confirm("Are there no copies to bring back, and shall it go on without?")
    is_done = result.is_needed and yes
    if is_done:
        result = repair_it()
    if as_json:
        versions = {"version": result.version, "base": result.base, "lost": list(result.lost)}
        print_json({"needed": result.is_needed, "repaired": is_done, **versions})
    elif not result.is_needed:
        screen.print(f"nothing to repair: still version {result.version}")
    else:
        screen.print(f"version {result.version} is as version {result.base}" if is_done else "nothing was done")


def _age(text: str) -> dt.timedelta:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--min-age is a number and a unit, as 90s, 30m, 1h or 7d, not {text!r}")
    return dt.timedelta(**{_UNITS[match[2]]: float(match[1])})
