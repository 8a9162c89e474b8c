"""`skipstone create`: a directory of Parquet files, or the table of another format, is indexed in place."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from ..engine.choices import TableSource
from ..engine.create import create as create_table
from ..engine.lakes import is_log
from .arguments import Option
from .options import AsJson, IndexPath, InterruptedCommandError, Path, split, storage_options
from .output import bytes_text, count_of, print_json, progress, stdout


def create(
    path: Path,
    partitioning: Annotated[
        Literal["hive", "none"],
        Option(help="hive: folders named key=value are columns; none: folders mean nothing."),
    ] = "hive",
    columns: Annotated[str | None, Option(metavar="A,B", help="Statistics for these columns only.")] = None,
    source: Annotated[
        TableSource | None,
        Option(help="delta, iceberg, hudi: the live files of that table's own log; by default it is looked for."),
    ] = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Index a directory of Parquet files, or the table of another format, in place: from the files' footers."""
    start_s = time.perf_counter()
    try:
        with progress() as report:
            table = create_table(
                path,
                partitioning="hive" if partitioning == "hive" else None,
                source=source,
                columns=split(columns),
                index_path=index_path,
                storage_options=storage_options(),
                progress=report,
            )
    except KeyboardInterrupt:
        raise InterruptedCommandError("no index was committed; the same command starts over") from None
    with table:
        totals, pending = table.handle.instant.totals, table.handle.instant.pending
        partitions = table.partitions().num_rows
        if as_json:
            place = {"location": table.location, "index": table.handle.index_storage.uri, "version": table.version}
            sizes = {"files": totals["files"], "rows": totals["rows"], "size_bytes": totals["bytes"]}
            reasons = {file["path"]: file["reason"] for file in pending}
            print_json({**place, **sizes, "partitions": partitions, "quarantined": reasons})
            return
        is_partitioned, of_log = bool(table.handle.instant.partitioning), is_log(table.handle.instant.source)
    screen = stdout()
    in_partitions = f" in {count_of(partitions, 'partition')}" if is_partitioned else ""
    sizes_text = f"{count_of(totals['rows'], 'row')}, {bytes_text(totals['bytes'])}"
    elapsed_s = time.perf_counter() - start_s
    screen.print(f"indexed {count_of(totals['files'], 'file')}{in_partitions}: {sizes_text}, in {elapsed_s:.1f} s")
    if pending:
        why = "not readable, so read by no scan" if of_log else "set aside"
        screen.print(f"{count_of(len(pending), 'file')} {why}: skipstone verify {path}", style="yellow")
