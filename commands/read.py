"""`skipstone scan`, `explain`, `ls`, `history` and `slices`: the rows of a table, and what it consists of."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

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
    UNFOLDED_WIDTH,
    answer,
    answer_rows,
    bytes_text,
    cell,
    count_of,
    print_json,
    print_rows,
    records,
    stdout,
    text_table,
    values,
    working,
)

if TYPE_CHECKING:
    from ..engine.scan.plan import Plan
    from ..engine.table import Table

LISTED_ROWS_MAX = 1_000  # of `ls`, unless --limit or --json is given
_PREVIEW_ROWS = 20
Format = Literal["table", "csv", "json", "arrow", "parquet"]


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
    by: Annotated[str | None, Option(metavar="NAMES", help="How many rows match by the values of columns.")] = None,
    form: Annotated[
        Format | None, Option("--format", help="How rows are written; by default as FILE ends, or a table.")
    ] = None,
    output: Annotated[str | None, Option("--output", "-o", metavar="FILE", help="Write all rows here.")] = None,
    sync: Annotated[bool, Option(help="Sync first.")] = False,
    mode: Mode = "snapshot",
    as_json: AsJson = False,
) -> Status:
    """Print the rows that match, reading only files and row groups that may contain them."""
    chosen = _format(form, output, as_json, count or by is not None)
    if desc and order_by is None:
        raise UsageError("--desc goes with --order-by")
    if sync and table.handle.is_pinned:
        raise UsageError("--sync reads the latest version, and --version an older one: give one of them")
    if sync:
        table.sync()
    is_preview = chosen == "table" and limit is None
    order = [(name, "desc" if desc else "asc") for name in split(order_by) or ()]
    rows_max = _PREVIEW_ROWS + 1 if is_preview else limit
    plan = table.scan(where, columns=split(columns), limit=rows_max, order_by=order or None, mode=mode)
    if by is not None:
        _print_groups(plan.count(by=split(by) or ()), chosen)
    elif count:
        with working("counting"):
            number = plan.count()
        print_json({"count": number}) if chosen == "json" else print(number)
    elif output is not None:
        _write_file(plan, chosen, output, as_json)
    else:
        sys.stdout.flush()
        _print_table(plan, is_preview) if chosen == "table" else _WRITERS[chosen](plan, sys.stdout.buffer)
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
        _print_groups(rows, "json" if as_json else "table")
    return _status_of(table)


def _status_of(table: Table) -> Status:
    return Status.QUARANTINED if table.handle.instant.quarantined else Status.OK


def _format(form: Format | None, output: str | None, as_json: bool, is_count: bool) -> Format:
    if output is None:
        if form == "parquet" or (form == "arrow" and sys.stdout.isatty()):
            raise UsageError(f"--format {form} needs a file: -o FILE")
        return form or ("json" if as_json else "table")
    if is_count:
        raise UsageError("--count prints a number, and -o writes rows: give one of them")
    if form == "table":
        raise UsageError("--format table is for the screen: with -o give csv, json, arrow or parquet")
    if form is None:
        form = next((each for each in _WRITERS if output.lower().endswith(f".{each}")), None)
    if form is None:
        raise UsageError(f"how {output} is to be written is not clear: --format csv, json, arrow or parquet")
    return form


def _print_groups(groups: pa.Table, form: Format) -> None:
    if form == "json":
        print_json(records(groups))
        return
    stdout().print(text_table(groups.column_names, _cells(groups), right=groups.column_names[-1:]))


def _cells(rows: pa.Table) -> list[tuple[str, ...]]:
    return list(zip(*([cell(value) for value in values(column)] for column in rows.columns), strict=True))


# -- rows for machines ------------------------------------------------------------------------------------------------


def _write_file(plan: Plan, form: Format, path: str, as_json: bool) -> None:
    from ..engine.report import whole_file

    with working(f"writing {path}"), whole_file(path) as file:
        rows = _WRITERS[form](plan, file)
    size_bytes = os.path.getsize(path)
    summary = {"path": path, "format": form, "rows": rows, "size_bytes": size_bytes}
    answer(as_json, summary, f"{path}: {count_of(rows, 'row')}, {bytes_text(size_bytes)}")


def _write_arrow(plan: Plan, file: BinaryIO) -> int:
    return _write_batches(plan, lambda schema: pa.ipc.new_stream(file, schema))


def _write_parquet(plan: Plan, file: BinaryIO) -> int:
    import pyarrow.parquet as pq

    return _write_batches(plan, lambda schema: pq.ParquetWriter(file, schema, compression="zstd"))


def _write_batches(plan: Plan, open_writer: Callable[[pa.Schema], Any]) -> int:
    reader = plan.to_reader()
    rows = 0
    with open_writer(reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _write_csv(plan: Plan, file: BinaryIO) -> int:
    import pyarrow.csv

    types = [dtype if _is_csv(dtype) else pa.string() for dtype in plan.schema.types]
    schema = pa.schema(list(zip(plan.columns, types, strict=True)))
    rows = 0
    with pyarrow.csv.CSVWriter(file, schema) as writer:
        for batch in plan.to_batches():
            columns = [column if _is_csv(column.type) else _as_texts(column) for column in batch.columns]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            rows += batch.num_rows
    return rows


def _is_csv(dtype: pa.DataType) -> bool:
    """Return whether Arrow writes the type as CSV that can be read again."""
    kinds = pa.types
    is_number = kinds.is_integer(dtype) or kinds.is_floating(dtype) or kinds.is_decimal(dtype)
    is_text = kinds.is_string(dtype) or kinds.is_large_string(dtype)
    return is_number or is_text or kinds.is_boolean(dtype) or kinds.is_date32(dtype)


def _as_texts(column: pa.Array) -> pa.Array:
    return pa.array([None if value is None else cell(value) for value in values(column)], pa.string())


def _write_json(plan: Plan, file: BinaryIO) -> int:
    rows = 0
    file.write(b"[")
    for batch in plan.to_batches():
        for row in records(batch):
            text = json.dumps(row, ensure_ascii=False, allow_nan=False)
            file.write(b",\n " if rows else b"\n ")
            file.write(text.encode("utf-8", "surrogatepass"))
            rows += 1
    file.write(b"\n]\n" if rows else b"]\n")
    return rows


_WRITERS: dict[Format, Callable[[Plan, BinaryIO], int]] = {
    "csv": _write_csv,
    "json": _write_json,
    "arrow": _write_arrow,
    "parquet": _write_parquet,
}


# -- rows for people --------------------------------------------------------------------------------------------------


def _print_table(plan: Plan, is_preview: bool) -> None:
    """Print rows as a table, or if that is wider than a screen, each row as a list; of a preview the first."""
    with working("reading"):
        rows = plan.to_table()
    screen = stdout()
    if rows.num_rows == 0:
        screen.print("no row matches")
        return
    shown = rows.slice(0, _PREVIEW_ROWS) if is_preview else rows
    names, lines = shown.schema.names, _cells(shown)
    numbers = [f.name for f in shown.schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]
    table = text_table(names, lines, right=numbers)
    if screen.measure(table, options=screen.options.update(max_width=UNFOLDED_WIDTH)).maximum <= screen.width:
        screen.print(table)
    else:
        lines = lines[:1] if is_preview else lines
        for line in lines:
            screen.print(text_table(["column", "value"], zip(names, line, strict=True)))
    if len(lines) < rows.num_rows:
        count = count_of(len(lines), "row")
        screen.print(f"the first {count}: --limit shows more, --columns chooses, --count counts them", style="dim")


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
        if row["row_group"] is None:
            groups[row["path"]] = None
        else:
            groups[row["path"]] = [*(groups.get(row["path"]) or []), row["row_group"]]
    query = {"location": planning.location, "version": planning.instant.version, "where": str(plan.bound)}
    reasons = [{"code": one.reason.value, "leaf": str(one.part), "files": one.files} for one in why(planning)]
    print_json({**query, "steps": [asdict(s) for s in plan.steps], "why_kept": reasons, "row_groups": groups})


# -- contents ---------------------------------------------------------------------------------------------------------


def ls(
    table: TableOrListing,
    files: Annotated[bool, Option(help="List files instead of partitions.")] = False,
    partition: Partition = None,
    limit: Annotated[
        int | None, Option(metavar="N", minimum=0, help=f"Lines; {LISTED_ROWS_MAX:,} by default, all with --json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List partitions, or files, with their rows and sizes: from the index, without listing the storage."""
    is_files = files or partition is not None
    rows = table.files(partition) if is_files else table.partitions()
    rows_max = limit if limit is not None else rows.num_rows if as_json else LISTED_ROWS_MAX
    shown = rows.slice(0, rows_max)
    if as_json:
        print_json(records(shown))
        return
    names = ["path", "row_count"] if is_files else ["partition", "file_count", "row_count"]
    nameless = "(next to the partitions)" if table.handle.instant.partitioning else "(all)"
    listed = [{**row, "partition": row["partition"] or nameless} for row in shown.to_pylist()]
    print_rows(listed, [*names, "size_bytes"])
    if shown.num_rows < rows.num_rows:
        stdout().print(f"... {rows.num_rows - shown.num_rows:,} more: --limit shows them", style="dim")
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
