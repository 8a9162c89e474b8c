"""`skipstone doctor`, `perf`, `layout`, `advise`, `report`: what is wrong, what calls cost, what would help."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

from ..errors import StorageError
from .arguments import (
    Argument,
    AsJson,
    IndexPath,
    OpenTable,
    Option,
    Status,
    TableAt,
    UsageError,
    storage_options,
)
from .output import answer, count_of, print_json, print_rows, stdout, working

ScanLog = Annotated[str | None, Option(metavar="FILE", help="A log of scans: SKIPSTONE_SCAN_LOG.")]


def doctor(
    path: Annotated[
        str | None, Argument(metavar="PATH", help="A table's directory; without it only the environment.")
    ] = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> Status:
    """Check versions, compiled kernels, Java, and a table: storage, clocks, damage, coverage. Status 3 for findings."""
    from ..engine.doctor import doctor as examine

    with working("looking"):
        checks = examine(path, index_path=index_path, storage_options=storage_options())
    findings = sum(check.is_finding for check in checks)
    rows = [asdict(check) for check in checks]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ["status", "name", "detail", "remedy"])
        nothing = "nothing found; `skipstone verify --deep` reads every byte"
        stdout().print(count_of(findings, "finding") if findings else nothing, style="bold")
    return Status.FINDINGS if findings else Status.OK


# -- perf -------------------------------------------------------------------------------------------------------------


def perf(table: TableAt, as_json: AsJson = False) -> None:
    """Measure what the index saves: partitions, files and the file-system view's calls, against listing the storage."""
    from ..engine.perf import ROUNDS, perf_of
    from ..engine.progress import progress_function

    result = perf_of(table, progress_function(None))
    calls = [asdict(call) for call in result.calls]
    if as_json:
        print_json({**asdict(result), "calls": calls})
        return
    print_rows(calls, list(calls[0]))
    note = "cold: opened again, without a cache; warm: the same handle again; listing: names alone, without an index"
    files = count_of(result.partition_files, "file")
    answer(False, None, f"partition {result.partition or '(all)'}: {files}. Medians of {ROUNDS}. {note}.")


# -- layout -----------------------------------------------------------------------------------------------------------


def layout(
    table: TableAt,
    column: Annotated[str, Argument(metavar="COLUMN", help="A column, or a.b in a struct.")],
    as_json: AsJson = False,
) -> None:
    """Show how the values of a column are spread over the files: whether bounds can separate files."""
    spread = table.layout(column)
    head = {"location": table.location, "version": table.version, "column": spread.column, "type": str(spread.type)}
    head_text = f"{spread.column} ({spread.type}) in {count_of(spread.files, 'file')} of {table.location}"
    figures = {name: value for name, value in vars(spread).items() if name not in (*head, "domain", "starts", "ends")}
    answer(as_json, {**head, **figures}, head_text, *(f"{name:<17}{figure}" for name, figure in spread.figures()))


# -- advice -----------------------------------------------------------------------------------------------------------


def advise(
    table: OpenTable,
    queries: Annotated[
        str | None, Option(metavar="FILE", help="WHERE clauses or SELECTs, each ended by ; or each on a line.")
    ] = None,
    from_log: ScanLog = None,
    sample_files: Annotated[int, Option(metavar="N", minimum=1, help="Try on at most this many files.")] = 32,
    as_json: AsJson = False,
) -> None:
    """Try indexes on a sample: what each would let queries skip, and what it costs."""
    if (queries is None) == (from_log is None):
        raise UsageError("advice is for the queries of --queries or of --from-log: give one of them")
    texts = None if queries is None else _read_statements(queries)
    advice = table.advise(texts, log=from_log, sample_files=sample_files)
    suggested = [{**asdict(one), "saved_share": one.saved_share, "code": one.code} for one in advice.suggestions]
    unread = [{"text": text, "reason": reason} for text, reason in advice.unread]
    answer(as_json, {**asdict(advice), "suggestions": suggested, "unread": unread}, str(advice))


def _read_statements(path: str) -> list[str]:
    """Return the statements of a file. Raises StorageError if it cannot be read."""
    from ..engine.advice.queries import statements

    try:
        with open(path, encoding="utf-8-sig") as file:
            return statements(file.read())
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: the queries cannot be read ({error})") from error


def report(
    table: TableAt,
    output: Annotated[str, Option("--output", "-o", metavar="FILE", help="The file of the page.")] = "report.html",
    from_log: ScanLog = None,
    as_json: AsJson = False,
) -> None:
    """Draw a table as one page that needs no network: sizes, columns, indexes, timeline, what scans skipped."""
    table.report(output, log=from_log)
    answer(as_json, {"output": os.path.abspath(output)}, output)
