"""`skipstone scan`: the rows that match, as a table, CSV or JSON."""

from __future__ import annotations

import json
import sys
import time

import pyarrow as pa
import pyarrow.csv
from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from ..engine.scan.plan import Plan
from .output import bytes_text, count_of, note, plain, print_json, records, stdout, table, values, working

SHOWN_ROWS = 20
_LISTED_ROWS_MAX = 3  # so few rows that do not fit side by side are shown one below the other


def print_count(plan: Plan, as_json: bool) -> None:
    """How many rows match."""
    with working("counting"):
        count = plan.count()
    if as_json:
        print_json({"count": count})
    else:
        print(count)


def limit_of(form: str, limit: int | None) -> int | None:
    """How many rows to ask a plan for: a table without a limit shows the first rows, and whether there are more."""
    return SHOWN_ROWS + 1 if form == "table" and limit is None else limit


def print_rows(plan: Plan, form: str, limit: int | None, files_total: int) -> None:
    """The rows, in the form asked for: "table", "csv" or "json". CSV and JSON are written as they are read.

    `limit` is what the user asked for, the plan's is `limit_of` it.
    """
    start = time.perf_counter()
    if form == "csv":
        count = _print_csv(plan)
    elif form == "json":
        count = _print_json(plan)
    else:
        count = _print_table(plan, limit)
    elapsed_ms = (time.perf_counter() - start) * 1e3
    read = sum(step.bytes_read for step in plan.steps)
    files = len(set(plan.row_groups().column("path").to_pylist()))
    note(
        f"{count_of(count, 'row')} from {files:,} of {count_of(files_total, 'file')}, "
        f"{bytes_text(read)} read, {elapsed_ms:,.0f} ms"
    )


def _print_csv(plan: Plan) -> int:
    kinds = plan.schema.types
    texts = [kind if _is_csv(kind) else pa.string() for kind in kinds]
    schema = pa.schema(list(zip(plan.columns, texts, strict=True)))
    count = 0
    sys.stdout.flush()
    with pyarrow.csv.CSVWriter(sys.stdout.buffer, schema) as writer:
        for batch in plan.to_batches():
            columns = [c if _is_csv(c.type) else _as_texts(c) for c in batch.columns]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            count += batch.num_rows
    return count


def _is_csv(kind: pa.DataType) -> bool:
    """Whether Arrow writes the type as CSV, and what it writes can be read."""
    kinds = pa.types
    is_number = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind) or kinds.is_boolean(kind)
    return is_number or kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_date32(kind)


def _as_texts(column: pa.Array) -> pa.Array:
    texts = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values(column)]
    return pa.array(texts, pa.string())


def _print_json(plan: Plan) -> int:
    count = 0
    sys.stdout.write("[")
    for batch in plan.to_batches():
        for row in records(batch):
            sys.stdout.write(",\n " if count else "\n ")
            sys.stdout.write(json.dumps(row, ensure_ascii=False, allow_nan=False))
            count += 1
    sys.stdout.write("\n]\n" if count else "]\n")
    return count


def _print_table(plan: Plan, limit: int | None) -> int:
    with working("reading"):
        rows = plan.to_table()
    screen = stdout()
    if rows.num_rows == 0:
        screen.print("no row matches")
        return 0
    shown = rows.slice(0, SHOWN_ROWS) if limit is None else rows
    columns = [[_text(value) for value in values(column)] for column in shown.columns]
    fitting = _fitting(shown.schema.names, columns, screen)
    if fitting < shown.num_columns and shown.num_rows <= _LISTED_ROWS_MAX:
        _print_listed(shown.schema.names, columns, screen)
        return shown.num_rows
    names = shown.schema.names[:fitting]
    numbers = [f.name for f in shown.schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]
    screen.print(table(names, zip(*columns[:fitting], strict=True), right=numbers))
    if fitting < shown.num_columns:
        left = shown.schema.names[fitting:]
        screen.print(
            f"{count_of(len(left), 'more column')}, to be named with --columns: {', '.join(left)}", style="dim"
        )
    if shown.num_rows < rows.num_rows:
        screen.print(f"the first {shown.num_rows} rows: --limit shows more, --count counts them", style="dim")
    return shown.num_rows


def _text(value: object) -> str:
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


def _fitting(names: list[str], columns: list[list[str]], screen: Console) -> int:
    """How many of the columns fit side by side; at least one."""
    used = 0
    for at, (name, texts) in enumerate(zip(names, columns, strict=True)):
        widest = max(Measurement.get(screen, screen.options, Text(t)).maximum for t in [name, *texts])
        used += widest + (2 if at else 0)
        if used > screen.width:
            return max(1, at)
    return len(names)


def _print_listed(names: list[str], columns: list[list[str]], screen: Console) -> None:
    width = max(map(len, names))
    for row in range(len(columns[0])):
        if row:
            screen.print()
        for name, texts in zip(names, columns, strict=True):
            screen.print(Text.assemble((name.ljust(width), "bold"), "  ", texts[row]), soft_wrap=True)
