"""`skipstone ls`, `history` and `slices`: what a table consists of, from the index; no storage is listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc

from .arguments import Option
from .options import AsJson, FallbackTo, IndexPath, Path, UsageError, Version, opened
from .output import bytes_text, count_of, print_json, records, stdout, text_table

SHOWN_ROWS = 1_000
_PARTITION_COLUMNS = ("partition", "file_count", "row_count", "size_bytes")
_FILE_COLUMNS = ("path", "row_count", "size_bytes")
_HEADINGS = {"partition": "partition", "path": "file", "file_count": "files", "row_count": "rows", "size_bytes": "size"}
_SHOW: dict[str, Callable] = {"file_count": "{:,}".format, "row_count": "{:,}".format, "size_bytes": bytes_text}


def ls(
    path: Path,
    files: Annotated[bool, Option("--files", help="List files instead of partitions.")] = False,
    partitions: Annotated[bool, Option("--partitions", help="List partitions (the default).")] = False,
    partition: Annotated[
        str | None, Option(metavar="KEY=VALUE/...", help="The files of one partition.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None,
        Option(min=0, help=f"At most this many lines; {SHOWN_ROWS:,} by default, all with --json.", show_default=False),
    ] = None,
    fallback: FallbackTo = None,
    version: Version = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Partitions, or files, with their rows and sizes: from the index, nothing is listed."""
    if partitions and (files or partition is not None):
        raise UsageError("--partitions lists partitions; --files and --partition list files: give one")
    with opened(path, index_path, version, fallback) as table:
        one_by_one = files or partition is not None
        rows = table.files(partition) if one_by_one else table.partitions()
        shown = rows.slice(0, (rows.num_rows if as_json else SHOWN_ROWS) if limit is None else limit)
        if as_json:
            print_json(records(shown))
            return
        nameless = "(beside the partitions)" if table.handle.instant.partitioning else "(all)"
        _print_rows(shown, _FILE_COLUMNS if one_by_one else _PARTITION_COLUMNS, nameless)
        screen = stdout()
        if shown.num_rows < rows.num_rows:
            screen.print(f"... {rows.num_rows - shown.num_rows:,} more: --limit shows them", style="dim")
        file_count = rows.num_rows if one_by_one else _total(rows, "file_count")
        counts = [count_of(file_count, "file")]
        if not one_by_one and table.handle.instant.partitioning:
            counts.insert(0, count_of(rows.num_rows, "partition"))
        counts += [count_of(_total(rows, "row_count"), "row"), bytes_text(_total(rows, "size_bytes"))]
        screen.print(f"{', '.join(counts)}; version {table.version}", style="dim")


def _print_rows(rows: pa.Table, wanted: tuple[str, ...], nameless: str) -> None:
    cells = [
        [_SHOW[name](row[name]) if name in _SHOW else row[name] or nameless for name in wanted]
        for row in rows.select(wanted).to_pylist()
    ]
    stdout().print(text_table([_HEADINGS[name] for name in wanted], cells, right=["rows", "size", "files"]))


def _total(rows: pa.Table, name: str) -> int:
    return pc.sum(rows.column(name)).as_py() or 0


def history(path: Path, index_path: IndexPath = None, as_json: AsJson = False) -> None:
    """The versions: what each did, and when; then the transactions that are in flight."""
    with opened(path, index_path) as table:
        rows = table.history()
        if as_json:
            print_json(records(rows))
            return
        headings = ["version", "time (UTC)", "action", "files added", "removed", "files then", "rows then", "detail"]
        cells = [_instant(row) if row["state"] == "completed" else _in_flight(row) for row in rows.to_pylist()]
        stdout().print(text_table(headings, cells, right=[headings[0], *headings[3:-1]]))


def _instant(row: dict) -> list[str]:
    return [
        str(row["version"]),
        _time(row),
        row["action"],
        f"+{row['files_added']:,}" if row["files_added"] else "-",
        f"-{row['files_removed']:,}" if row["files_removed"] else "-",
        f"{row['files']:,}",
        f"{row['rows']:,}",
        row["detail"] or "",
    ]


def _in_flight(row: dict) -> list[str]:
    """The row of a transaction that has no version yet."""
    return ["-", _time(row), f"{row['action']}, in flight", "-", "-", "-", "-", ""]


def _time(row: dict) -> str:
    return row["time"].strftime("%Y-%m-%d %H:%M:%S")


# -- slices -----------------------------------------------------------------------------------------------------------


def slices(
    path: Path,
    partition: Annotated[
        str | None, Option(metavar="KEY=VALUE/...", help="Those of one partition.", show_default=False)
    ] = None,
    every: Annotated[bool, Option("--all", help="Superseded slices, too.")] = False,
    version: Version = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """File slices: the base of each file group, and the logs that are read over it."""
    with opened(path, index_path, version) as table:
        listed = table.slices(partition, latest=not every)
    if as_json:
        print_json(records(listed))
        return
    rows = listed.to_pylist()
    cells = [
        [
            row["partition"] or "(all)",
            row["file_group"] or "-",
            row["slice_instant"] or "-",
            row["base"] or "-",
            bytes_text(row["base_size_bytes"]) if row["base"] else "-",
            f"{row['log_count']:,}" if row["log_count"] else "-",
            bytes_text(row["log_bytes"]) if row["log_count"] else "-",
            _state(row),
        ]
        for row in rows
    ]
    headings = ["partition", "file group", "instant", "base", "size", "logs", "their size", "state"]
    screen = stdout()
    screen.print(text_table(headings, cells, right=["size", "logs", "their size"]))
    compacted = sum(row["is_compacted"] for row in rows)
    screen.print(f"{count_of(len(rows), 'slice')}, {compacted:,} of them without logs", style="dim")


def _state(row: dict) -> str:
    if not row["is_latest"]:
        return "superseded" if row["base"] or row["log_count"] else "dead"
    return "pending" if row["is_pending"] else "read"
