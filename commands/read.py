"""`skipstone scan`, `explain`, `ls`, `history` and `slices`: the rows of a table, and what it consists of."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa

from .arguments import (
    Argument,
    AsJson,
    Mode,
    Names,
    OpenTable,
    Option,
    Partition,
    Status,
    TableAt,
    TableOrListing,
    UsageError,
    Where,
    split,
)
from .output import (
    answer,
    answer_rows,
    bytes_text,
    count_of,
    print_json,
    print_rows,
    print_table,
    records,
    stdout,
    working,
)

if TYPE_CHECKING:
    from ..engine.scan.plan import Plan
    from ..engine.table import Table

LISTED_ROWS_MAX = 1_000  # of `ls` for people
_PREVIEW_ROWS = 20


def scan(
    table: TableOrListing,
    where: Where = None,
    columns: Names = None,
    limit: Annotated[int | None, Option(metavar="N", minimum=0, help="At most this many rows.")] = None,
    order_by: Annotated[
        str | None, Option(metavar="NAMES", help="Sort by these columns, the first comes first.")
    ] = None,
    desc: Annotated[bool, Option(help="Sort in descending order.")] = False,
    count: Annotated[bool, Option(help="Only how many rows match.")] = False,
    output: Annotated[
        str | None, Option("--output", "-o", metavar="FILE.parquet", help="Write all rows here, as Parquet.")
    ] = None,
    sync: Annotated[bool, Option(help="Sync first.")] = False,
    mode: Mode = "snapshot",
    as_json: AsJson = False,
) -> Status:
    """Print the rows that match, reading only files and row groups that may contain them."""
    if output is not None and (count or not output.lower().endswith(".parquet")):
        raise UsageError("-o writes rows, to a file that ends in .parquet; --count and --json print")
    if desc and order_by is None:
        raise UsageError("--desc goes with --order-by")
    if sync:
        table.sync()
    is_preview = limit is None and output is None and not (as_json or count)
    order = [(name, "desc" if desc else "asc") for name in split(order_by) or ()]
    rows_max = _PREVIEW_ROWS + 1 if is_preview else limit
    plan = table.scan(where, columns=split(columns), limit=rows_max, order_by=order or None, mode=mode)
    if count:
        with working("counting"):
            number = plan.count()
        answer(as_json, {"count": number}, str(number))
    elif output is not None:
        _write_parquet(plan, output, as_json)
    elif as_json:
        _print_json(plan)
    else:
        _print_rows(plan, is_preview)
    return _status_of(table)  # the plan warned of them


def sql(
    table: TableAt,
    query: Annotated[str, Argument(metavar="QUERY", help="A SELECT of DuckDB; the table is called self in it.")],
    explain: Annotated[bool, Option(help="Show which files are read, and by which conditions.")] = False,
    as_json: AsJson = False,
) -> Status:
    """Run a query of DuckDB, reading only files and row groups that it needs."""
    if explain:
        text = table.sql(query, explain=True)
        answer(as_json, {"explain": text.splitlines()}, text)
    else:
        with working("reading"):
            rows = table.sql(query).to_arrow_table()
        if as_json:
            print_json(records(rows))
        else:
            print_table(rows)
    return _status_of(table)


def _status_of(table: Table) -> Status:
    return Status.QUARANTINED if table.handle.instant.quarantined else Status.OK


def _write_parquet(plan: Plan, path: str, as_json: bool) -> None:
    import pyarrow.parquet as pq

    from ..engine.storage.local import LocalStorage

    reader = plan.to_reader()
    rows = 0
    with (
        working(f"writing {path}"),
        LocalStorage(os.curdir).create(os.path.abspath(path)) as file,
        pq.ParquetWriter(file, reader.schema, compression="zstd") as writer,
    ):
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    size_bytes = os.path.getsize(path)
    summary = {"path": path, "rows": rows, "size_bytes": size_bytes}
    answer(as_json, summary, f"{path}: {count_of(rows, 'row')}, {bytes_text(size_bytes)}")


def _print_json(plan: Plan) -> None:
    """Print an array of rows, batch by batch."""
    sys.stdout.flush()
    before = b"[\n "
    for batch in plan.to_batches():
        for row in records(batch):
            text = json.dumps(row, ensure_ascii=False, allow_nan=False)
            sys.stdout.buffer.write(before + text.encode("utf-8", "surrogatepass"))
            before = b",\n "
    sys.stdout.buffer.write(b"[]\n" if before.startswith(b"[") else b"\n]\n")


def _print_rows(plan: Plan, is_preview: bool) -> None:
    with working("reading"):
        rows = plan.to_table()
    if rows.num_rows == 0:
        stdout().print("no row matches")
        return
    shown = print_table(rows.slice(0, _PREVIEW_ROWS) if is_preview else rows, is_preview)
    if shown < rows.num_rows:
        count = count_of(shown, "row")
        stdout().print(f"the first {count}: --limit shows more, --columns chooses, --count counts them", style="dim")


# -- plans ------------------------------------------------------------------------------------------------------------


def explain(
    table: TableAt,
    where: Where = None,
    file: Annotated[str | None, Option(metavar="FILE", help="Why this file is, or is not, read.")] = None,
    mode: Mode = "snapshot",
    as_json: AsJson = False,
) -> None:
    """Show what a scan would read, step by step, and which index decided it."""
    plan = table.scan(where, mode=mode)
    if file is not None:
        is_local = "://" not in table.location and os.path.exists(file)
        _print_file(plan, table.handle.relative(os.path.abspath(file) if is_local else file), as_json)
    elif as_json:
        _print_plan_json(plan)
    else:
        stdout().print(plan.explain(), soft_wrap=True)


def _print_file(plan: Plan, name: str, as_json: bool) -> None:
    import pyarrow.compute as pc

    verdict, reasons = plan.explain(name), plan.reasons()
    of_file = reasons.filter(pc.equal(reasons.column("path"), name)).drop_columns(["path"])
    answer(as_json, {"file": name, "verdict": verdict, "reasons": records(of_file)}, verdict)


def _print_plan_json(plan: Plan) -> None:
    """Print the same for machines, with the row groups that would be read; null: all of the file."""
    from ..engine.scan.explain import why

    planning = plan.planning
    groups: dict[str, list[int] | None] = {}
    for row in plan.row_groups().to_pylist():
        is_whole = row["row_group"] is None
        groups[row["path"]] = None if is_whole else [*(groups.get(row["path"]) or ()), row["row_group"]]
    query = {"location": planning.location, "version": planning.instant.version, "where": str(plan.bound)}
    reasons = [{"code": one.reason.value, "leaf": str(one.part), "files": one.files} for one in why(planning)]
    print_json({**query, "steps": [asdict(s) for s in plan.steps], "why_kept": reasons, "row_groups": groups})


# -- contents ---------------------------------------------------------------------------------------------------------


def ls(
    table: TableOrListing,
    files: Annotated[bool, Option(help="List files instead of partitions.")] = False,
    partition: Partition = None,
    as_json: AsJson = False,
) -> None:
    """List partitions, or files, with their rows and sizes: from the index, without listing the storage."""
    is_files = files or partition is not None
    rows = table.files(partition) if is_files else table.partitions()
    if as_json:
        print_json(records(rows))
        return
    names = ["path", "row_count"] if is_files else ["partition", "file_count", "row_count"]
    nameless = "(next to the partitions)" if table.handle.instant.partitioning else "(all)"
    listed = rows.slice(0, LISTED_ROWS_MAX).to_pylist()
    shown = [{**row, "partition": row["partition"] or nameless} for row in listed]
    print_rows(shown, [*names, "size_bytes"], rows.num_rows)
    counts = [count_of(rows.num_rows if is_files else _total(rows, "file_count"), "file")]
    if not is_files and table.handle.instant.partitioning:
        counts.insert(0, count_of(rows.num_rows, "partition"))
    counts += [count_of(_total(rows, "row_count"), "row"), bytes_text(_total(rows, "size_bytes"))]
    stdout().print(f"{', '.join(counts)}; version {table.version}", style="dim")


def _total(rows: pa.Table, name: str) -> int:
    return sum(filter(None, rows.column(name).to_pylist()))


def history(table: OpenTable, as_json: AsJson = False) -> None:
    """List the versions: what each did, and when."""
    names = ["version", "time", "action", "files_added", "files_removed", "files", "rows", "detail"]
    answer_rows(as_json, table.history(), names)


def slices(
    table: TableAt,
    partition: Partition = None,
    every: Annotated[bool, Option("--all", help="Superseded slices, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List file slices: the base of each file group, and the logs that are read over it."""
    names = ["partition", "file_group", "slice_instant", "base", "base_size_bytes", "log_count", "log_bytes"]
    answer_rows(as_json, table.slices(partition, latest=not every), [*names, "is_latest", "is_pending"])
