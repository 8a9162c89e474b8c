"""A local file of queries and the files that they skipped, one JSON object per line: for `Table.advise` and people.

Off by default. `open(scan_log=)` or the variable SKIPSTONE_SCAN_LOG turns it on. A line is written when the files of a
plan are known, by one append and without a lock, so that processes may share a file. If that fails, the error is logged
(`observing.py`), and the scan continues.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError, StorageError
from .observing import log
from .predicates import And, Node, Not, Or, Term, brief, columns_read, terms_of
from .predicates.literals import Column

VARIABLE, VALUES_VARIABLE = "SKIPSTONE_SCAN_LOG", "SKIPSTONE_SCAN_LOG_VALUES"
_BYTES_MAX = 64 << 20
_VALUES_MAX = 1_000  # of one predicate
_TEXT_MAX = 20_000  # characters of one predicate
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


class ScanLog:
    """A log of scans for `open(scan_log=)`: one line per plan.

    Args:
        path: a local file. If it is missing, it is created with access for its owner alone; its folder must exist.
        values: False writes `?` for each value, and keeps columns and operators: for private values.
        max_bytes: of the file and the one before it together. At half of it the file is renamed to `path.1`, which
            replaces an older file of that name.

    Raises InvalidArgumentError if `path` is not a local path or `max_bytes` is not a number.
    """

    def __init__(self, path: str | os.PathLike[str], *, values: bool = True, max_bytes: int = _BYTES_MAX):
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        if not isinstance(text, str) or not text or "://" in text or "\0" in text:
            raise InvalidArgumentError(f"a scan log is a local file, not {path!r}")
        if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 1:
            raise InvalidArgumentError(f"max_bytes= is a number of bytes, 1 or more, not {max_bytes!r}")
        self.path, self.values, self.max_bytes = os.path.abspath(text), bool(values), max_bytes

    def __repr__(self) -> str:
        return f"ScanLog({self.path!r}, values={self.values}, max_bytes={self.max_bytes})"

    def check(self) -> None:
        """Raises StorageError if the file cannot be written."""
        try:
            os.close(os.open(self.path, _FLAGS, 0o600))
        except OSError as error:
            raise StorageError(f"{self.path}: the scan log cannot be written ({error})") from error

    def note(self, bound: Node, key_columns: Sequence[str], facts: Callable[[], dict[str, Any]]) -> None:
        """Append a line with a plan's predicate and other facts about it. Raises nothing."""
        try:
            self._append(_entry(bound, key_columns, facts(), self.values))
        except Exception as error:  # the scan goes on, whatever happens to its log
            log(f"the scan log {self.path} was not written: {error!r}")

    def _append(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry, ensure_ascii=False, default=str).encode(errors="backslashreplace") + b"\n"
        file = os.open(self.path, _FLAGS, 0o600)
        try:
            status = os.fstat(file)
            os.write(file, line)
        finally:
            os.close(file)
        is_full = stat.S_ISREG(status.st_mode) and 2 * (status.st_size + len(line)) > self.max_bytes
        if is_full and os.path.samestat(os.stat(self.path), status):  # else another process did it
            os.replace(self.path, f"{self.path}.1")


def scan_log_of(given: object) -> ScanLog:
    """Check an argument of `open(scan_log=)`. Raises InvalidArgumentError or StorageError."""
    chosen = given if isinstance(given, ScanLog) else ScanLog(given)  # type: ignore[arg-type]  # checks what it gets
    chosen.check()
    return chosen


def scan_log_of_environment() -> ScanLog | None:
    """The log that SKIPSTONE_SCAN_LOG names, without values if SKIPSTONE_SCAN_LOG_VALUES is 0. If it is not a path,
    this is logged and ignored."""
    path = os.environ.get(VARIABLE)
    try:
        return ScanLog(path, values=os.environ.get(VALUES_VARIABLE, "1") != "0") if path else None
    except InvalidArgumentError as error:
        log(f"{VARIABLE}: {error}")
        return None


def entries_of(path: str | os.PathLike) -> Iterator[dict[str, Any] | None]:
    """Yield the lines of a log, the oldest first; None for each that cannot be read. Raises StorageError if there is no
    such file."""
    path = Path(path)
    before = path.with_name(f"{path.name}.1")
    for file in [before, path] if before.exists() else [path]:
        try:
            with open(file, encoding="utf-8", errors="replace") as lines:
                yield from (_read(line) for line in lines if line.strip())
        except OSError as error:
            raise StorageError(f"{file}: the scan log cannot be read ({error})") from error


def _read(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("where"), str) else None


def _entry(bound: Node, key_columns: Sequence[str], facts: dict[str, Any], has_values: bool) -> dict[str, Any]:
    value_count = sum(len(term.values) for term in terms_of(bound) if isinstance(term, Term))
    is_whole = has_values and value_count <= _VALUES_MAX and not key_columns
    where = str(bound) if is_whole else brief(bound) if has_values else _masked(bound)
    if key_columns:
        where = f"({', '.join(key_columns)}) IN keys"
    is_whole, where = is_whole and len(where) <= _TEXT_MAX, where[:_TEXT_MAX]
    time = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
    return {"time": time, **facts, "where": where, "is_whole": is_whole}


def _masked(node: Node) -> str:
    """A predicate with `?` for values."""
    if isinstance(node, And | Or):
        return (" AND " if isinstance(node, And) else " OR ").join(f"({_masked(child)})" for child in node.children)
    if isinstance(node, Not):
        return f"NOT ({_masked(node.child)})"
    if isinstance(node, Term):
        return f"{Column(node.column)} {node.op.upper()}{' ?' if len(node.values) else ''}"
    return f"? of {', '.join(columns_read(node))}" if columns_read(node) else "?"
