"""`skipstone create` and `sync`: index a lake, and follow its changes, once or again and again."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..engine.choices import NewColumns, NewTypes, OnMisfit, TableSource
from ..engine.create import create as create_table
from ..engine.table import Table
from ..errors import CommitConflictError, CorruptionError, NotATableError, SkipstoneError, StorageError
from .arguments import (
    AsJson,
    CommandExit,
    IndexPath,
    InterruptedCommandError,
    Option,
    Path,
    Status,
    UsageError,
    opened,
    split,
    storage_options,
)
from .output import bytes_text, count_of, plain, print_json, print_quarantined, stderr, stdout, whole_file

if TYPE_CHECKING:
    from ..engine.commit.sync import SyncResult

_PAUSE_S_MAX = 900.0


def create(
    path: Path,
    partitioning: Annotated[
        Literal["hive", "none"], Option(help="hive: folders named key=value are columns; none: folders mean nothing.")
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
        bool, Option(help="Index a folder whose index is missing, though deleted rows come back.")
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
    path: Path,
    new_columns: Annotated[
        NewColumns, Option(help="Columns that the table never had: adopt them, or only name them.")
    ] = "adopt",
    new_types: Annotated[
        NewTypes, Option(help="Columns that files have in a wider type: widen the table's, or quarantine the files.")
    ] = "widen",
    refresh: Annotated[bool, Option(help="Then bring every index up to date.")] = False,
    every: Annotated[
        float | None, Option(metavar="SECONDS", minimum=0.001, help="Again and again, until Ctrl-C or SIGTERM.")
    ] = None,
    rounds: Annotated[
        int | None, Option(metavar="N", minimum=1, help="With --every: stop after this many times.")
    ] = None,
    status_file: Annotated[
        str | None, Option(metavar="FILE", help="With --every: the state in JSON, replaced at each round.")
    ] = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Follow the directory, or the log: commit the files that were added, removed or changed.

    With --every each round prints one line (with --json one JSON object). If a storage fails, or another writer
    conflicts, it tries again, after longer and longer pauses. Other errors end the command, damage if two rounds find
    it. Stopped between two rounds it ends with 0, with 1 if the last round failed, or with 5 if files are quarantined.
    A single sync also ends with 5 then.
    """
    if every is None and (rounds is not None or status_file is not None):
        raise UsageError("--rounds and --status-file belong to --every")
    with opened(path, index_path) as table:
        how = {"new_columns": new_columns, "new_types": new_types, "refresh": refresh}
        if every is not None:
            raise CommandExit(int(_Watch(table, how, every, rounds, _StatusFile(status_file), as_json).run()))
        before = table.version
        result = table.sync(**how)  # type: ignore[arg-type]
        is_new = result.version != before
        if as_json:
            summary = table.handle.instant.summary if is_new else {}
            print_json({"changed": is_new, "version": result.version, **summary, **_lists(result)})
        else:
            _print_result(table, result, is_new, new_columns, path)
        if result.quarantined:
            raise CommandExit(Status.QUARANTINED)


def _print_result(table: Table, result: SyncResult, is_new: bool, new_columns: NewColumns, path: str) -> None:
    screen = stdout()
    screen.print(f"version {result.version}: {_changes(result)}" if is_new else f"nothing new: still {_of(result)}")
    if result.new_columns:
        what = "new columns" if new_columns == "adopt" else "columns that are not the table's"
        screen.print(f"{what}: {', '.join(result.new_columns)}", soft_wrap=True)
    if result.widened:
        types = ", ".join(f"{name} to {kind}" for name, kind in result.widened.items())
        screen.print(f"wider columns: {types}", soft_wrap=True)
    for row in table.indexes().to_pylist() if is_new else ():
        if lacking := row["files_total"] - row["files_covered"]:
            screen.print(f"{row['name']} does not cover {count_of(lacking, 'file')}: skipstone sync --refresh {path}")
    print_quarantined(result.quarantined, path)


def _of(result: SyncResult) -> str:
    return f"version {result.version}"


def _changes(result: SyncResult) -> str:
    return f"{count_of(len(result.added), 'file')} added, {count_of(len(result.removed), 'file')} removed"


def _lists(result: SyncResult) -> dict[str, Any]:
    return {
        "added": list(result.added),
        "removed": list(result.removed),
        "quarantined": result.quarantined,
        "new_columns": list(result.new_columns),
        **({"widened": result.widened} if result.widened else {}),
    }


def status(path: Path, index_path: IndexPath = None, as_json: AsJson = False) -> None:
    """Show what changed since the last sync, what is quarantined, and what each index lacks. Nothing is committed."""
    with opened(path, index_path) as table:
        found = table.status()
    if as_json:
        print_json({**dataclasses.asdict(found), "is_current": found.is_current})
    else:
        stdout().print(str(found), soft_wrap=True)


# -- again and again --------------------------------------------------------------------------------------------------


@dataclass
class _StatusFile:
    """The file that monitoring reads: always a whole JSON object, or no file."""

    path: str | None
    values: dict[str, Any] = field(default_factory=dict)

    def write(self, **values: Any) -> None:
        self.values |= {"time": _now(), **values}
        if self.path is not None:
            with whole_file(self.path) as file:
                file.write(json.dumps(plain(self.values), ensure_ascii=False).encode())


@dataclass
class _Watch:
    """Rounds of `sync`, until they are stopped or one fails for good."""

    table: Table
    how: dict[str, Any]
    every_s: float
    rounds: int | None
    status_file: _StatusFile
    as_json: bool
    failures: int = 0  # in a row
    is_doubted: bool = False  # the last round found damage
    has_quarantined: bool = False  # after the last round that succeeded

    def run(self) -> Status:
        """Return OK, ERROR if the last round failed, or QUARANTINED if files are quarantined after it."""
        started = {"pid": os.getpid(), "location": self.table.location, "started": _now(), "last_success": None}
        self.status_file.write(state="syncing", rounds=0, failures=0, version=self.table.version, **started)
        try:
            with _terminated_as_interrupted():
                self._rounds()
        except InterruptedCommandError:
            pass
        except BaseException as error:
            problem = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
            self.status_file.write(state="failed", error={"type": type(error).__name__, "message": problem})
            raise
        self.status_file.write(state="stopped")
        if self.failures:
            return Status.ERROR
        return Status.QUARANTINED if self.has_quarantined else Status.OK

    def _rounds(self) -> None:
        number = 0
        while self.rounds is None or number < self.rounds:
            number += 1
            start_s = time.monotonic()
            self.status_file.write(state="syncing", rounds=number, next=None)
            self._round()
            if number != self.rounds:
                self._wait(start_s)

    def _round(self) -> None:
        before = self.table.version
        try:
            result = self.table.sync(**self.how, progress=False)
        except (StorageError, CommitConflictError, NotATableError, CorruptionError) as error:
            # A directory may be mounted again; one that is removed within a round looks damaged, but only once.
            is_damage = isinstance(error, CorruptionError)
            if is_damage and self.is_doubted:
                raise
            self.is_doubted = is_damage
            self.failures += 1
            self.table.close()  # what was opened may be what fails
            self._print_failure(error)
            return
        self.failures, self.is_doubted, self.has_quarantined = 0, False, bool(result.quarantined)
        counts = {"added": len(result.added), "removed": len(result.removed), "quarantined": len(result.quarantined)}
        self.status_file.write(failures=0, error=None, version=result.version, last_success=_now(), **counts)
        if self.as_json:
            self._print_json({"changed": result.version != before, "version": result.version, **_lists(result)})
            return
        quarantined = f", {count_of(counts['quarantined'], 'file')} quarantined" if result.quarantined else ""
        what = _changes(result) if result.version != before else "nothing new"
        stdout().print(f"{_now()} {_of(result)}: {what}{quarantined}", soft_wrap=True)

    def _print_failure(self, error: SkipstoneError) -> None:
        described = {"type": type(error).__name__, "message": str(error)}
        self.status_file.write(failures=self.failures, error=described)
        if self.as_json:
            self._print_json({"error": described})
        else:
            stderr().print(f"{_now()} failed, will be tried again: {error}", style="yellow", soft_wrap=True)

    def _print_json(self, values: dict[str, Any]) -> None:
        line = json.dumps(plain({"time": _now(), **values}), ensure_ascii=False, allow_nan=False)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def _wait(self, start_s: float) -> None:
        pause_s = min(self.every_s * 2 ** min(self.failures, 20), max(self.every_s, _PAUSE_S_MAX))
        left_s = max(0.0, start_s + pause_s - time.monotonic())
        following = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=left_s)
        state = "failing" if self.failures else "waiting"
        self.status_file.write(state=state, next=following.isoformat(timespec="seconds"))
        try:
            time.sleep(left_s)
        except KeyboardInterrupt:
            raise InterruptedCommandError("stopped between two rounds") from None


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, which supervisors send, ends the work as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
