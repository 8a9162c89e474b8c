"""`skipstone create`: a directory of Parquet files, or the table of another format, is indexed in place."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from ..engine.choices import OnMisfit, TableSource
from ..engine.create import create as create_table
from .arguments import Option
from .options import AsJson, IndexPath, InterruptedCommandError, Path, split, storage_options
from .output import bytes_text, count_of, print_json, print_quarantined, progress, stdout


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
    on_misfit: Annotated[
        OnMisfit, Option("--on-misfit", help="Files that do not fit the others: end with an error, or quarantine them.")
    ] = "raise",
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
                on_misfit=on_misfit,
                index_path=index_path,
                storage_options=storage_options(),
                progress=report,
            )
    except KeyboardInterrupt:
        raise InterruptedCommandError("no index was committed; the same command starts over") from None
    with table:
        totals, quarantined = table.handle.instant.totals, table.handle.instant.quarantined
        partitions = table.partitions().num_rows
        if as_json:
            place = {"location": table.location, "index": table.handle.index_storage.uri, "version": table.version}
            sizes = {"files": totals["files"], "rows": totals["rows"], "size_bytes": totals["bytes"]}
            reasons = {file["path"]: file["reason"] for file in quarantined}
            print_json({**place, **sizes, "partitions": partitions, "quarantined": reasons})
            return
        is_partitioned = bool(table.handle.instant.partitioning)
    screen = stdout()
    in_partitions = f" in {count_of(partitions, 'partition')}" if is_partitioned else ""
    sizes_text = f"{count_of(totals['rows'], 'row')}, {bytes_text(totals['bytes'])}"
    elapsed_s = time.perf_counter() - start_s
    screen.print(f"indexed {count_of(totals['files'], 'file')}{in_partitions}: {sizes_text}, in {elapsed_s:.1f} s")
    if quarantined:
        print_quarantined({file["path"]: file["reason"] for file in quarantined}, path)
