"""`skipstone create`, `sync` and `status`: index a lake, and follow its changes."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from ..engine.choices import NewColumns, NewTypes, OnMisfit, TableSource
from ..engine.create import create as create_table
from ..errors import CommitConflictError, NotATableError, StorageError
from .arguments import (
    AsJson,
    IndexPath,
    InterruptedCommandError,
    OpenTable,
    Option,
    Path,
    Status,
    split,
    storage_options,
)
from .output import answer, bytes_text, count_of, plain, print_json, print_quarantined, stdout

if TYPE_CHECKING:
    from ..engine.commit.sync import SyncResult


def create(
    path: Path,
    partitioning: Annotated[
        Literal["hive", "none"], Option(help="hive: folders named key=value are columns; none: folders are ignored.")
    ] = "hive",
    columns: Annotated[str | None, Option(metavar="A,B", help="Statistics for these columns only.")] = None,
    source: Annotated[
        TableSource | None,
        Option(help="delta, iceberg, hudi: the live files of that table's own log; by default it is looked for."),
    ] = None,
    on_misfit: Annotated[
        OnMisfit, Option(help="Files that do not fit the others: end with an error, or quarantine them.")
    ] = "raise",
    ignore_deletes: Annotated[
        bool, Option(help="Index a folder whose index is missing, even if deleted rows reappear.")
    ] = False,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Index a directory of Parquet files, or the table of another format, in place: from the files' footers."""
    start_s = time.perf_counter()
    try:
        table = create_table(
            path,
            partitioning="hive" if partitioning == "hive" else None,
            source=source,
            columns=split(columns),
            on_misfit=on_misfit,
            ignore_deletes=ignore_deletes,
            index_path=index_path,
            storage_options=storage_options(),
        )
    except KeyboardInterrupt:
        raise InterruptedCommandError("no index was committed; the same command starts over") from None
    with table:
        totals = table.handle.instant.totals
        reasons = {file["path"]: file["reason"] for file in table.handle.instant.quarantined}
        partitions = table.partitions().num_rows
        if as_json:
            place = {"location": table.location, "index": table.handle.index_storage.uri, "version": table.version}
            sizes = {"files": totals["files"], "rows": totals["rows"], "size_bytes": totals["bytes"]}
            print_json({**place, **sizes, "partitions": partitions, "quarantined": reasons})
            return
        is_partitioned = bool(table.handle.instant.partitioning)
    in_partitions = f" in {count_of(partitions, 'partition')}" if is_partitioned else ""
    sizes_text = f"{count_of(totals['rows'], 'row')}, {bytes_text(totals['bytes'])}"
    elapsed_s = time.perf_counter() - start_s
    stdout().print(f"indexed {count_of(totals['files'], 'file')}{in_partitions}: {sizes_text}, in {elapsed_s:.1f} s")
    print_quarantined(reasons, path)


def sync(
    table: OpenTable,
    new_columns: Annotated[
        NewColumns, Option(help="Columns that the table never had: adopt them, or only name them.")
    ] = "adopt",
    new_types: Annotated[
        NewTypes, Option(help="Columns that files have in a wider type: widen the table's, or quarantine the files.")
    ] = "widen",
    refresh: Annotated[bool, Option(help="Also update every index.")] = False,
    every: Annotated[
        float | None, Option(metavar="SECONDS", minimum=0.001, help="Repeat every N seconds until interrupted.")
    ] = None,
    as_json: AsJson = False,
) -> Status:
    """Follow the directory, or the log: commit the files that were added, removed or changed.

    Status 5 if files are quarantined. With --every each round prints its result (with --json one JSON object per line).
    If the storage fails, or another writer conflicts, the next round tries again.
    """
    how = partial(table.sync, new_columns=new_columns, new_types=new_types, refresh=refresh)
    if every is not None:
        _follow(how, every, as_json)
    before = table.version
    result = how()
    is_new = result.version != before
    if as_json:
        summary = table.handle.instant.summary if is_new else {}
        print_json({"changed": is_new, "version": result.version, **summary, **_lists(result)})
    else:
        lacking = [row["name"] for row in table.indexes().to_pylist() if row["files_covered"] < row["files_total"]]
        advice = f"{', '.join(lacking)} do not cover all files: skipstone sync --refresh {table.location}"
        answer(False, None, repr(result), *([advice] if is_new and lacking else []))
        print_quarantined(result.quarantined, table.location)
    return Status.QUARANTINED if result.quarantined else Status.OK


def _follow(sync_once: Callable[..., SyncResult], every_s: float, as_json: bool) -> NoReturn:
    while True:
        start_s, now = time.monotonic(), dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        try:
            result = sync_once(progress=False)
            line, values = f"{now} {result!r}", {"version": result.version, **_lists(result)}
        except (StorageError, CommitConflictError, NotATableError) as error:  # a directory may be mounted again
            line, values = f"{now} failed: {error}", {"error": {"type": type(error).__name__, "message": str(error)}}
        print(json.dumps(plain({"time": now, **values}), ensure_ascii=False) if as_json else line, flush=True)
        try:
            time.sleep(max(0.0, start_s + every_s - time.monotonic()))
        except KeyboardInterrupt:
            raise InterruptedCommandError("stopped between two rounds") from None


def _lists(result: SyncResult) -> dict[str, Any]:
    lists = {name: list(getattr(result, name)) for name in ("added", "removed", "new_columns")}
    return {**lists, "quarantined": result.quarantined, **({"widened": result.widened} if result.widened else {})}


def status(table: OpenTable, as_json: AsJson = False) -> None:
    """Show what changed since the last sync, what is quarantined, and what each index lacks. Nothing is committed."""
    found = table.status()
    answer(as_json, {**dataclasses.asdict(found), "is_current": found.is_current}, str(found))
