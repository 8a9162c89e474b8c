"""The commands. Each opens, asks the library, and shows what it said; nothing is worked out here.

Errors of ours end a command with one message on stderr and status 2; `--debug` anywhere shows where they were raised.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import pyarrow.compute as pc
import typer
from rich.text import Text

from ..engine.create import create
from ..engine.lakes.log import is_log
from ..errors import SkipstoneError
from .altering import alter
from .file_slices import print_slices
from .indexing import indexes
from .keeping import clean, optimize, repair
from .listing import history, ls
from .options import AsJson, IndexPath, Mode, Names, Path, ScanMode, Version, opened, split
from .output import (
    bytes_text,
    count_of,
    print_explain,
    print_explain_json,
    print_json,
    progress,
    records,
    stderr,
    stdout,
    table,
    working,
)
from .perf import perf
from .storage_options import is_local, storage_options, taken_storage_options
from .syncing import sync
from .undoing import restore, rollback, savepoint

app = typer.Typer(
    name="skipstone",
    help="Indexes a lake of Parquet files, so that a query skips what it need not read.",
    epilog="Every command takes --json (for machines: stdout holds JSON only). --debug, anywhere, shows tracebacks; "
    "--storage-option NAME=VALUE, anywhere and repeated, opens object stores, as do environment variables like "
    "AWS_ACCESS_KEY_ID, which other users of the machine cannot see.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(indexes, name="index")


class Partitioning(StrEnum):
    hive = "hive"
    none = "none"


class Source(StrEnum):
    directory = "directory"
    delta = "delta"
    iceberg = "iceberg"


class Form(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


def run(arguments: Sequence[str]) -> None:
    """Runs one command; ends the process with its status."""
    debug = "--debug" in arguments
    if not debug:
        warnings.showwarning = _show_warning
    try:
        rest = taken_storage_options([one for one in arguments if one != "--debug"])
        app(args=rest, prog_name="skipstone")
    except SkipstoneError as error:
        if debug:
            raise
        sys.stdout.flush()
        stderr().print(Text.assemble(("error: ", "bold red"), _as_commands(str(error))), soft_wrap=True)
        sys.exit(2)


# What errors advise is Python; who types commands wants commands.
_IN_COMMANDS = {
    "; to begin an empty table there, give schema=": "",
    "or say where it is with index_path=": "or say where it is with --index-path",
    "keep the index elsewhere with index_path=": "keep the index elsewhere with --index-path",
    "; open() it, or sync() it with what changed": "; `skipstone sync` follows what changed",
    "refresh_index()": "`skipstone index refresh`",
    "create_index()": "`skipstone index add`",
    "drop_index()": "`skipstone index drop`",
    "drop_savepoint()": "`skipstone savepoint --drop`",
    "restore()": "`skipstone restore`",
    "alter()": "`skipstone alter`",
    "create()": "`skipstone create`",
    "repair()": "`skipstone repair`",
    "sync()": "`skipstone sync`",
}


def _as_commands(message: str) -> str:
    for python, command in _IN_COMMANDS.items():
        message = message.replace(python, command)
    return message


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    stderr().print(Text.assemble(("warning: ", "bold yellow"), _as_commands(str(message))), soft_wrap=True)


# -- making -----------------------------------------------------------------------------------------------------------


@app.command("create")
def create_(
    path: Path,
    partitioning: Annotated[
        Partitioning, typer.Option(help="hive: folders named key=value are columns; none: folders mean nothing.")
    ] = Partitioning.hive,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Statistics for these columns only.")] = None,
    source: Annotated[
        Source | None,
        typer.Option(help="delta, iceberg: the live files of that table's own log; by default it is looked for."),
    ] = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Index a directory of Parquet files, or the table of another format, in place: from the files' footers."""
    start = time.perf_counter()
    layout = "hive" if partitioning is Partitioning.hive else None
    with progress() as tell:
        made = create(
            path,
            partitioning=layout,
            source=None if source is None else source.value,
            columns=split(columns),
            index_path=index_path,
            storage_options=storage_options(),
            progress=tell,
        )
    with made:
        totals, pending = made.instant.totals, made.instant.pending
        partitions = made.partitions().num_rows
        if as_json:
            told = {"location": made.location, "index": made.index_storage.uri, "version": made.version}
            sizes = {"files": totals["files"], "rows": totals["rows"], "size_bytes": totals["bytes"]}
            print_json({**told, **sizes, "partitions": partitions, "pending": [dict(p) for p in pending]})
            return
    elapsed_s = time.perf_counter() - start
    screen = stdout()
    in_partitions = f" in {count_of(partitions, 'partition')}" if made.instant.partitioning else ""
    sizes_text = f"{count_of(totals['rows'], 'row')}, {bytes_text(totals['bytes'])}"
    screen.print(f"indexed {count_of(totals['files'], 'file')}{in_partitions}: {sizes_text}, in {elapsed_s:.1f} s")
    if pending:
        why = "not readable, so read by no scan" if is_log(made.instant.source) else "set aside"
        screen.print(f"{count_of(len(pending), 'file')} {why}: skipstone verify {path}", style="yellow")


app.command("sync")(sync)
app.command("alter")(alter)
app.command("optimize")(optimize)
app.command("clean")(clean)
app.command("repair")(repair)
app.command("rollback")(rollback)
app.command("restore")(restore)
app.command("savepoint")(savepoint)


# -- looking ----------------------------------------------------------------------------------------------------------


app.command("ls")(ls)
app.command("history")(history)
app.command("perf")(perf)


@app.command("slices")
def slices(
    path: Path,
    partition: Annotated[
        str | None, typer.Option(metavar="KEY=VALUE/...", help="Those of one partition.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Superseded slices, too.")] = False,
    version: Version = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """File slices: the base of each file group, and the logs that are read over it."""
    with opened(path, index_path, version) as found:
        print_slices(found.slices(partition, latest=not every), as_json)


@app.command("verify")
def verify(
    path: Path,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte of the index, and every footer.")] = False,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Check that what the index names is there, whole, and what it was. Status 1 where something is wrong."""
    with opened(path, index_path) as found:
        with working("verifying"):
            findings = found.verify(deep=deep)
        if as_json:
            print_json([asdict(finding) for finding in findings])
        elif findings:
            rows = [[f.kind, f.path, f.message] for f in findings]
            stdout().print(table(["finding", "file", "what is wrong"], rows))
        else:
            checked = "every byte of the index and every footer" if deep else "index and files are as they were"
            stdout().print(f"sound: {checked}; version {found.version}", style="green")
    if findings:
        raise typer.Exit(1)


@app.command("inspect")
def inspect(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A sorted-block file.", show_default=False)],
    verify_: Annotated[bool, typer.Option("--verify", help="Check every byte; status 1 where one is wrong.")] = False,
    keys: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="Entries whose keys begin so: a text, or 0x and hexadecimal.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many entries --keys shows.")] = 20,
    everything: Annotated[
        bool, typer.Option("--all", help="Every block, group and section, not the first 10.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """What one sorted-block file holds: header, blocks, groups, sections, and where its bytes go."""
    from .inspecting import inspect_file

    if not inspect_file(file, verify_, keys, limit, everything, as_json):
        raise typer.Exit(1)


# -- reading ----------------------------------------------------------------------------------------------------------


@app.command("scan")
def scan(
    path: Path,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="A predicate; all rows by default.")] = None,
    columns: Names = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many rows.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Only how many rows match.")] = False,
    form: Annotated[Form, typer.Option("--format", help="How rows are written.")] = Form.table,
    mode: ScanMode = Mode.snapshot,
    version: Version = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """The rows that match, reading only files and row groups that may hold them."""
    from .rows import limit_of, print_count, print_rows

    shape = "json" if as_json else form.value
    with opened(path, index_path, version) as found:
        plan = found.scan(where, columns=split(columns), limit=limit_of(shape, limit), mode=mode.value)
        if count:
            print_count(plan, as_json=shape == "json")
        else:
            print_rows(plan, shape, limit, found.instant.totals["files"])


@app.command("explain")
def explain(
    path: Path,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="A predicate; all rows by default.")] = None,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="Why this file is, or is not, read.")] = None,
    mode: ScanMode = Mode.snapshot,
    version: Version = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """What a scan would read, step by step, and which index decided it."""
    with opened(path, index_path, version) as found:
        plan = found.scan(where, mode=mode.value)
        if file is not None:
            name = found.relative(os.path.abspath(file) if is_local(found.location) and os.path.exists(file) else file)
            told = plan.explain(name)
            if as_json:
                known = plan.reasons()
                mine = known.filter(pc.equal(known.column("path"), name)).drop_columns(["path"])
                print_json({"file": name, "verdict": told, "reasons": records(mine)})
            else:
                stdout().print(told, soft_wrap=True)
        elif as_json:
            print_explain_json(plan)
        else:
            print_explain(plan)


@app.command("layout")
def layout(
    path: Path,
    column: Annotated[str, typer.Argument(metavar="COLUMN", help="A column, or a.b in a struct.", show_default=False)],
    lines: Annotated[int, typer.Option(min=1, help="At most so many lines; files share one where they are more.")] = 24,
    ascii_: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII characters only.")] = False,
    version: Version = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Draw each file's least and greatest value of a column: whether files can be told apart by it, and what helps."""
    from .layout import print_layout, print_layout_json

    with opened(path, index_path, version) as found:
        told = found.layout(column)
        if as_json:
            print_layout_json(told, found.location, found.version)
        else:
            print_layout(told, found.location, lines, ascii_)


@app.command("demo")
def demo(
    path: Annotated[
        str | None, typer.Option(metavar="DIR", help="Keep the lake here; by default it is temporary.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Only so many flights, spread over the year.")] = None,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Ask Spark too.")] = True,
    as_json: AsJson = False,
) -> None:
    """A lake of real flights, its indexes, and queries answered three ways. Status 1 where answers differ."""
    from .demo import run_demo

    if not run_demo(path, rows, spark, as_json):
        raise typer.Exit(1)
