"""`skipstone sync`: what it added, removed and quarantined; once, or again and again."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from ..engine.choices import NewColumns, NewTypes
from ..engine.table import Table
from ..errors import CommitConflictError, CorruptionError, NotATableError, SkipstoneError, StorageError
from .arguments import Option
from .options import AsJson, Ended, IndexPath, InterruptedCommandError, Path, Status, UsageError, opened
from .output import count_of, plain, print_json, print_quarantined, progress, stderr, stdout

if TYPE_CHECKING:
    from ..engine.commit.sync import SyncResult

_PAUSE_S_MAX = 900.0


def sync(
    path: Path,
    new_columns: Annotated[
        NewColumns, Option(help="Columns that the table never had: take them in, or only name them.")
    ] = "adopt",
    new_types: Annotated[
        NewTypes, Option(help="Columns that files have in a wider type: widen the table's, or quarantine the files.")
    ] = "widen",
    refresh: Annotated[bool, Option("--refresh", help="Then bring every index up to date.")] = False,
    every: Annotated[
        float | None, Option(metavar="SECONDS", min=0.001, help="Again and again, until Ctrl-C or SIGTERM.")
    ] = None,
    rounds: Annotated[int | None, Option(metavar="N", min=1, help="With --every: stop after this many times.")] = None,
    status_file: Annotated[
        str | None, Option(metavar="FILE", help="With --every: says in JSON how it goes, replaced at each round.")
    ] = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Follow the directory, or the log: commit the files that appeared, went, or changed.

    With --every each round prints one line (with --json one JSON object). A storage that fails, or a conflict with
    another writer, is tried again, after longer and longer pauses; other errors end the command, damage where two
    rounds find it. Stopped between two rounds it ends with 0, with 1 if the last round failed, or with
    5 if files are quarantined. A single sync also ends with 5 then.
    """
    if every is None and (rounds is not None or status_file is not None):
        raise UsageError("--rounds and --status-file belong to --every")
    with opened(path, index_path) as table:
        if every is not None:
            how = {"new_columns": new_columns, "new_types": new_types, "refresh": refresh}
            watch = _Watch(table, how, every, rounds, _StatusFile(status_file), as_json)
            raise Ended(int(watch.run()))
        before = table.version
        with progress() as report:
            result = table.sync(new_columns=new_columns, new_types=new_types, refresh=refresh, progress=report)
        is_new = result.version != before
        lacking = {row["name"]: row["files_total"] - row["files_covered"] for row in table.indexes().to_pylist()}
        if as_json:
            outcome = {"changed": is_new, "version": result.version, **(table.handle.instant.summary if is_new else {})}
            print_json({**outcome, **_lists(result)})
            raise Ended(Status.QUARANTINED if result.quarantined else Status.OK)
    screen = stdout()
    if is_new:
        screen.print(f"version {result.version}: {_changes(result)}")
    else:
        screen.print(f"nothing new: still version {result.version}")
    if result.new_columns:
        what = "new columns" if new_columns == "adopt" else "columns that are not the table's"
        screen.print(f"{what}: {', '.join(result.new_columns)}", soft_wrap=True)
    if result.widened:
        types = ", ".join(f"{name} to {kind}" for name, kind in result.widened.items())
        screen.print(f"wider columns: {types}", soft_wrap=True)
    for name, count in lacking.items() if is_new else ():
        if count:
            screen.print(f"{name} does not cover {count_of(count, 'file')}: skipstone sync --refresh {path}")
    if result.quarantined:
        print_quarantined(result.quarantined, path)
        raise Ended(Status.QUARANTINED)


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


# -- again and again --------------------------------------------------------------------------------------------------


@dataclass
class _StatusFile:
    """What monitoring reads: always a whole JSON object, or no file."""

    path: str | None
    values: dict[str, Any] = field(default_factory=dict)

    def write(self, **values: Any) -> None:
        self.values |= {"time": _now(), **values}
        if self.path is None:
            return
        temporary = f"{self.path}.{os.getpid()}.tmp"
        try:
            try:
                with open(temporary, "w", encoding="utf-8") as file:
                    json.dump(plain(self.values), file, ensure_ascii=False)
                os.replace(temporary, self.path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.remove(temporary)
                raise
        except OSError as error:
            raise StorageError(f"{self.path}: the status file cannot be written ({error.strerror})") from error


@dataclass
class _Watch:
    """Rounds of `sync`, until somebody stops them or one fails for good."""

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
        """Returns OK, ERROR if the last round failed, or QUARANTINED if files are quarantined after it."""
        started = {"pid": os.getpid(), "location": self.table.location, "started": _now(), "last_success": None}
        self.status_file.write(state="syncing", rounds=0, failures=0, version=self.table.version, **started)
        try:
            with _terminated_as_interrupted():
                self._rounds()
        except InterruptedCommandError:
            self.status_file.write(state="stopped")
            return self._status()
        except BaseException as error:
            problem = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
            self.status_file.write(state="failed", error={"type": type(error).__name__, "message": problem})
            raise
        self.status_file.write(state="stopped")
        return self._status()

    def _status(self) -> Status:
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
            result = self.table.sync(**self.how)
        except (StorageError, CommitConflictError, NotATableError, CorruptionError) as error:
            # A directory may be mounted again; one that goes away within a round looks damaged, but only once.
            is_damage = isinstance(error, CorruptionError)
            if is_damage and self.is_doubted:
                raise
            self.is_doubted = is_damage
            self.failures += 1
            self.table.close()  # what was opened may be what fails
            self.status_file.write(failures=self.failures, error={"type": type(error).__name__, "message": str(error)})
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
        stdout().print(f"{_now()} version {result.version}: {what}{quarantined}", soft_wrap=True)

    def _print_failure(self, error: SkipstoneError) -> None:
        if self.as_json:
            self._print_json({"error": {"type": type(error).__name__, "message": str(error)}})
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
        self.status_file.write(state="failing" if self.failures else "waiting", next=_text(following))
        try:
            time.sleep(left_s)
        except KeyboardInterrupt:
            raise InterruptedCommandError("stopped between two rounds") from None


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, which supervisors send, ends what is done here as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _now() -> str:
    return _text(dt.datetime.now(dt.UTC))


def _text(time: dt.datetime) -> str:
    return time.isoformat(timespec="seconds")
