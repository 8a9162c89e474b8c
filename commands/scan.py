"""`skipstone scan`: the rows that match, as a table for people, or as CSV, JSON, Arrow or Parquet."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import pyarrow as pa

from ..engine.scan.plan import Plan
from ..errors import StorageError
from .arguments import Option
from .options import (
    AsJson,
    Ended,
    FallbackTo,
    IndexPath,
    Mode,
    Names,
    Path,
    Status,
    UsageError,
    Version,
    Where,
    opened,
    split,
)
from .output import bytes_text, count_of, note, plain, print_json, records, stdout, text_table, values, working

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN_ROWS = 20
_LISTED_ROWS_MAX = 3  # so few rows that do not fit side by side are shown one below the other
_CUT_CELLS = 32  # to which long texts are cut, where not all columns fit
_NAMES_SHOWN = 12
_BLOCKS_MAX, _PREVIEW_LINES, _PREVIEW_ROWS_MIN = 12, 60, 5


class OutputFormat(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"
    arrow = "arrow"
    parquet = "parquet"


def scan(
    path: Path,
    where: Where = None,
    columns: Names = None,
    limit: Annotated[int | None, Option(min=0, help="At most this many rows.")] = None,
    order_by: Annotated[
        str | None,
        Option("--order-by", metavar="NAMES", help="Sort by these columns, the first comes first.", show_default=False),
    ] = None,
    desc: Annotated[bool, Option("--desc", help="Sort in descending order.")] = False,
    count: Annotated[bool, Option("--count", help="Only how many rows match.")] = False,
    by: Annotated[
        str | None,
        Option("--by", metavar="NAMES", help="How many rows match by the values of columns.", show_default=False),
    ] = None,
    form: Annotated[
        OutputFormat | None,
        Option("--format", help="How rows are written; by default as FILE ends, or a table.", show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        Option("--output", "-o", metavar="FILE", help="Write all rows here.", show_default=False),
    ] = None,
    sync: Annotated[bool, Option("--sync", help="First follow the directory or the log, as sync does.")] = False,
    mode: Mode = "snapshot",
    fallback: FallbackTo = None,
    version: Version = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """The rows that match, reading only files and row groups that may hold them."""
    shape = _form(form, output, as_json, count or by is not None)
    if desc and order_by is None:
        raise UsageError("--desc goes with --order-by")
    if sync and version is not None:
        raise UsageError("--sync reads the latest version, and --version an older one: give one of them")
    with opened(path, index_path, version, fallback) as table:
        if sync:
            with working("following the directory"):
                table.sync()
        is_preview = shape is OutputFormat.table and limit is None
        order = [(name, "desc" if desc else "asc") for name in split(order_by) or ()]
        shown = _SHOWN_ROWS + 1 if is_preview else limit
        plan = table.scan(where, columns=split(columns), limit=shown, order_by=order or None, mode=mode)
        if by is not None:
            _print_groups(plan.count(by=split(by) or ()), shape)
        elif count:
            _print_count(plan, as_json or shape is OutputFormat.json)
        elif output is not None:
            _write_file(plan, shape, output, as_json)
        else:
            start_s = time.perf_counter()
            rows = (
                _print_table(plan, is_preview)
                if shape is OutputFormat.table
                else _WRITERS[shape](plan, _stdout_bytes())
            )
            _note_work(plan, rows, table.handle.instant.totals["files"], time.perf_counter() - start_s)
        if table.handle.instant.quarantined:  # of which the plan warned
            raise Ended(Status.QUARANTINED)


def _form(form: OutputFormat | None, output: str | None, as_json: bool, count: bool) -> OutputFormat:
    if output is None:
        if form is OutputFormat.parquet or (form is OutputFormat.arrow and sys.stdout.isatty()):
            raise UsageError(f"--format {form} needs a file: -o FILE")
        return form or (OutputFormat.json if as_json else OutputFormat.table)
    if count:
        raise UsageError("--count prints a number, and -o writes rows: give one of them")
    if form is None:
        suffix = os.path.splitext(output)[1].lower().removeprefix(".")
        if suffix not in [each.value for each in _WRITERS]:
            raise UsageError(f"how {output} is to be written is not clear: --format csv, json, arrow or parquet")
        return OutputFormat(suffix)
    if form is OutputFormat.table:
        raise UsageError("--format table is for the screen: with -o give csv, json, arrow or parquet")
    return form


def _print_count(plan: Plan, as_json: bool) -> None:
    with working("counting"):
        count = plan.count()
    if as_json:
        print_json({"count": count})
    else:
        print(count)


def _print_groups(groups: pa.Table, form: OutputFormat) -> None:
    if form is OutputFormat.json:
        print_json(records(groups))
        return
    cells = [[_text(value) for value in values(column)] for column in groups.columns]
    stdout().print(text_table(groups.column_names, zip(*cells, strict=True), right=groups.column_names[-1:]))


def _note_work(plan: Plan, rows: int, files_total: int, elapsed_s: float) -> None:
    source = ""
    if plan.limit is None:  # else planning ended with the rows that were wanted
        files = len(set(plan.row_groups().column("path").to_pylist()))
        source = f" from {files:,} of {count_of(files_total, 'file')}"
    read = sum(step.bytes_read for step in plan.planning.steps_so_far)
    note(f"{count_of(rows, 'row')}{source}, {bytes_text(read)} read, {elapsed_s * 1e3:,.0f} ms")


# -- for machines -----------------------------------------------------------------------------------------------------


def _write_file(plan: Plan, form: OutputFormat, path: str, as_json: bool) -> None:
    with working(f"writing {path}"), _whole_file(path) as file:
        rows = _WRITERS[form](plan, file)
    if as_json:
        print_json({"path": path, "format": form.value, "rows": rows, "size_bytes": os.path.getsize(path)})
    else:
        stdout().print(f"{path}: {count_of(rows, 'row')}, {bytes_text(os.path.getsize(path))}", soft_wrap=True)


@contextmanager
def _whole_file(path: str) -> Iterator[BinaryIO]:
    """A file that takes its name when it is complete, and is removed where it fails. Raises StorageError."""
    temporary = f"{path}.{uuid.uuid4().hex[:8]}.part"
    try:
        with open(temporary, "wb") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{path}: {error.strerror or error}") from error
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def _stdout_bytes() -> BinaryIO:
    sys.stdout.flush()
    return sys.stdout.buffer


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

    texts = [kind if _is_csv(kind) else pa.string() for kind in plan.schema.types]
    schema = pa.schema(list(zip(plan.columns, texts, strict=True)))
    rows = 0
    with pyarrow.csv.CSVWriter(file, schema) as writer:
        for batch in plan.to_batches():
            columns = [c if _is_csv(c.type) else _as_texts(c) for c in batch.columns]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            rows += batch.num_rows
    return rows


def _is_csv(kind: pa.DataType) -> bool:
    """Whether Arrow writes the type as CSV, and what it writes can be read."""
    kinds = pa.types
    is_number = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind) or kinds.is_boolean(kind)
    return is_number or kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_date32(kind)


def _as_texts(column: pa.Array) -> pa.Array:
    texts = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values(column)]
    return pa.array(texts, pa.string())


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


_WRITERS: dict[OutputFormat, Callable[[Plan, BinaryIO], int]] = {
    OutputFormat.csv: _write_csv,
    OutputFormat.json: _write_json,
    OutputFormat.arrow: _write_arrow,
    OutputFormat.parquet: _write_parquet,
}


# -- for people -------------------------------------------------------------------------------------------------------


def _print_table(plan: Plan, is_preview: bool) -> int:
    with working("reading"):
        rows = plan.to_table()
    screen = stdout()
    if rows.num_rows == 0:
        screen.print("no row matches")
        return 0
    shown = rows.slice(0, _SHOWN_ROWS) if is_preview else rows
    names, columns = shown.schema.names, [[_text(value) for value in values(column)] for column in shown.columns]
    fitting = _fitting(names, columns, screen.width)
    if fitting < len(names) and shown.num_rows <= _LISTED_ROWS_MAX:
        _print_listed(names, columns, screen)
        return shown.num_rows
    numbers = [f.name for f in shown.schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]
    row_count = shown.num_rows
    if fitting == len(names):
        screen.print(text_table(names, zip(*columns, strict=True), right=numbers))
    else:
        row_count = _print_blocks(names, columns, numbers, is_preview, screen)
    if row_count < rows.num_rows:
        screen.print(f"the first {row_count} rows: --limit shows more, --count counts them", style="dim")
    return row_count


def _print_blocks(
    names: list[str], columns: list[list[str]], numbers: list[str], is_preview: bool, screen: Console
) -> int:
    """Columns that do not fit side by side, in blocks below each other, each with the numbers of its rows. Returns how
    many rows are shown: of a preview fewer, where there are many blocks."""
    short = [[_cut(text) for text in texts] for texts in columns]
    is_cut = short != columns
    row_count = len(columns[0])
    width = screen.width - len(str(row_count)) - 2
    blocks: list[tuple[int, int]] = []
    start = 0
    while start < len(names) and len(blocks) < _BLOCKS_MAX:
        blocks.append((start, start + _fitting(names[start:], short[start:], width)))
        start = blocks[-1][1]
    if is_preview:
        row_count = min(row_count, max(_PREVIEW_LINES // len(blocks) - 3, _PREVIEW_ROWS_MIN))
    ordinals = [str(number) for number in range(1, row_count + 1)]
    for block, (first, stop) in enumerate(blocks):
        if block:
            screen.print()
        cells = [ordinals, *(texts[:row_count] for texts in short[first:stop])]
        right = ["#", *(name for name in names[first:stop] if name in numbers)]
        screen.print(text_table(["#", *names[first:stop]], zip(*cells, strict=True), right=right))
    _print_what_is_missing(names[start:], is_cut, screen)
    return row_count


def _text(value: object) -> str:
    if value is None:
        return "null"
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


def _cut(text: str) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= _CUT_CELLS else set_cell_size(text, _CUT_CELLS - 1) + "…"


def _fitting(names: list[str], columns: list[list[str]], width: int) -> int:
    """How many of the columns fit side by side; at least one."""
    from rich.cells import cell_len

    used = 0
    for number, (name, texts) in enumerate(zip(names, columns, strict=True)):
        used += max(cell_len(line) for text in [name, *texts] for line in text.splitlines() or [""])
        used += 2 if number else 0
        if used > width:
            return max(1, number)
    return len(names)


def _print_what_is_missing(names: list[str], is_cut: bool, screen: Console) -> None:
    if names:
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
        screen.print(f"{count_of(len(names), 'more column')}, to be named with --columns: {shown}", style="dim")
    if is_cut:
        screen.print(f"long values are cut to {_CUT_CELLS} characters; --format csv or json is whole", style="dim")


def _print_listed(names: list[str], columns: list[list[str]], screen: Console) -> None:
    from rich.cells import cell_len
    from rich.text import Text

    width = max(map(cell_len, names))
    for row in range(len(columns[0])):
        if row:
            screen.print()
        for name, texts in zip(names, columns, strict=True):
            padding = " " * (width - cell_len(name))
            screen.print(Text.assemble((name + padding, "bold"), "  ", texts[row]), soft_wrap=True)
