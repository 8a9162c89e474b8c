"""`skipstone doctor`, `perf`, `layout`, `advise`, `report`: what is wrong, what calls cost, what would help."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

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
from .output import answer, bytes_text, count_of, print_json, print_rows, stdout, working

if TYPE_CHECKING:
    from ..engine.advice.advise import Suggestion
    from ..engine.doctor import Check
    from ..engine.handle import Handle

Queries = Annotated[
    str | None, Option(metavar="FILE", help="WHERE clauses or SELECTs, each ended by ; or each on a line.")
]
ScanLog = Annotated[str | None, Option(metavar="FILE", help="A log of scans: SKIPSTONE_SCAN_LOG.")]
_STYLES = {"ok": "green", "note": "dim", "warning": "yellow", "problem": "bold red"}


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
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        _print_checks(checks, findings)
    return Status.FINDINGS if findings else Status.OK


def _print_checks(checks: list[Check], findings: int) -> None:
    screen = stdout()
    width = max(len(check.name) for check in checks)
    for check in checks:
        style = _STYLES[check.status]
        screen.print(f"{check.status:<8}{check.name:<{width}}  {check.detail}", style=style, soft_wrap=True)
        if check.remedy:
            screen.print(f"{' ' * (width + 10)}-> {check.remedy}", style=style, soft_wrap=True)
    nothing = "nothing found; `skipstone verify --deep` reads every byte"
    screen.print(count_of(findings, "finding") if findings else nothing, style="bold")


# -- perf -------------------------------------------------------------------------------------------------------------


def perf(
    table: TableAt,
    partition: Annotated[
        str | None, Option(metavar="KEY=VALUE/...", help="The partition to list; by default the largest.")
    ] = None,
    rounds: Annotated[int, Option(metavar="N", minimum=1, help="Run each call this often; show medians.")] = 5,
    listing: Annotated[bool, Option(help="List the storage, to compare.")] = True,
    as_json: AsJson = False,
) -> None:
    """Measure what the index saves: partitions, files and the file-system view's calls, against listing the storage."""
    from ..engine.perf import perf_of
    from ..engine.progress import progress_function

    result = perf_of(table, partition, rounds, listing, progress_function(None))
    if as_json:
        print_json(result)
        return
    which = f"partition {result['partition']}" if result["partition"] else "the one partition"
    stdout().print(
        f"{table.location} at version {table.version}: {count_of(result['files'], 'file')} in "
        f"{count_of(result['partitions'], 'partition')}; {which} has {count_of(result['partition_files'], 'file')}; "
        f"manifest {bytes_text(result['manifest_bytes'])} in {count_of(result['manifest_runs'], 'run')}, with indexes "
        f"{bytes_text(result['index_bytes'])}",
        soft_wrap=True,
    )
    times = ("cold", "warm", "listing")
    rows = [{**call, **{f"{t} ms": call[f"{t}_s"] and 1e3 * call[f"{t}_s"] for t in times}} for call in result["calls"]]
    print_rows(rows, ["name", "hudi", "answers", "cold ms", "warm ms", "requests", "bytes", "listing ms"])
    note = "cold: opened again, without a cache; warm: the same handle again; listing: names alone, without an index"
    stdout().print(f"Medians of {rounds}. {note}.", style="dim", soft_wrap=True)


# -- layout -----------------------------------------------------------------------------------------------------------

_FIGURES = (
    *("files", "files_with_bounds", "files_without_values", "files_unknown", "lower", "upper"),
    *("depth_mean", "depth_p50", "depth_p99", "depth_max", "share_read"),
)


def layout(
    table: TableAt,
    column: Annotated[str, Argument(metavar="COLUMN", help="A column, or a.b in a struct.")],
    as_json: AsJson = False,
) -> None:
    """Show how the values of a column are spread over the files: whether bounds can separate files."""
    spread = table.layout(column)
    location, at = table.location, table.version
    if as_json:
        figures = {name: getattr(spread, name) for name in _FIGURES}
        head = {"location": location, "version": at, "column": spread.column, "type": str(spread.type)}
        print_json({**head, **figures})
        return
    head_text = f"{spread.column} ({spread.type}) in {count_of(spread.files, 'file')} of {location}"
    answer(False, None, head_text, *(f"{name:<17}{figure}" for name, figure in spread.figures()))


# -- advice -----------------------------------------------------------------------------------------------------------


def advise(
    table: OpenTable,
    queries: Queries = None,
    from_log: ScanLog = None,
    sample_files: Annotated[int, Option(metavar="N", minimum=1, help="Try on at most this many files.")] = 32,
    as_json: AsJson = False,
) -> None:
    """Try indexes on a sample: what each would let queries skip, and what it costs."""
    if (queries is None) == (from_log is None):
        raise UsageError("advice is for the queries of --queries or of --from-log: give one of them")
    texts = None if queries is None else _read_statements(queries)
    advice = table.advise(texts, log=from_log, sample_files=sample_files)
    if as_json:
        suggested = [{**asdict(one), "saved_share": one.saved_share, "code": one.code} for one in advice.suggestions]
        unread = [{"text": text, "reason": reason} for text, reason in advice.unread]
        print_json({**asdict(advice), "suggestions": suggested, "unread": unread})
        return
    first = [f"in a shell: {_add_command(table.handle, one)}" for one in advice.suggestions[:1]]
    stdout().print("\n".join([str(advice), *first]), soft_wrap=True)


def _add_command(handle: Handle, first: Suggestion) -> str:
    index_path = handle.index_storage.uri
    where = [] if index_path == f"{handle.location}/.skipstone" else ["--index-path", index_path]
    include = [word for name in first.include for word in ("--include", name)]
    words = [handle.location, *first.columns, "--kind", first.kind, *include, *where]
    return shlex.join(["skipstone", "index", "add", *words])


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
    queries: Queries = None,
    as_json: AsJson = False,
) -> None:
    """Draw a table as one page that needs no network: sizes, columns, indexes, timeline, what scans skipped."""
    advice = None if queries is None else table.advise(_read_statements(queries))
    table.report(output, log=from_log, advice=advice)
    size_bytes = os.path.getsize(output)
    value = {"output": os.path.abspath(output), "size_bytes": size_bytes}
    answer(as_json, value, f"{output}: {bytes_text(size_bytes)}")
