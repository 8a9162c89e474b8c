"""Checks a table: whether the files that its version names exist, are complete, and are the recorded ones."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import CorruptionError, FormatVersionError
from ..hfile_like import SortedFileReader
from .commit.adopt_columns import names_ever, sure_columns, unread_columns
from .indexes.kind import referenced_files
from .parquet.footers import FILE_ERRORS, read_footer
from .stale import check_stale
from .state.manifest import BASE
from .state.publishing import broken, newest_mentioned
from .state.runs import check_written_as
from .state.timeline import instant_path, is_loss
from .storage import FileMissingError, Ranged, Storage

if TYPE_CHECKING:
    from .handle import Handle

_BOUND_BEFORE = "the table has, or had, columns of such names: replace() the file with itself to bind it to them"
_RETURNS = "sync() binds the file again, and reads them"


@dataclass(frozen=True)
class Finding:
    """A problem. `kind`: damaged | missing | overwritten | quarantined | unread | miscounted."""

    kind: str
    path: str
    message: str


def verify(handle: Handle, deep: bool = False) -> list[Finding]:
    """Return the problems of a table: see `Table.verify`."""
    if handle.on_stale in (None, "warn"):
        with contextlib.suppress(CorruptionError):  # an error of the manifest is a finding below
            check_stale(handle)
    findings = [Finding("quarantined", f["path"], f["reason"]) for f in handle.instant.quarantined]
    findings += _timeline(handle, deep)
    findings += _unread(handle)
    findings += _runs(handle, deep)
    try:
        findings += _files(handle, deep)
    except CorruptionError as error:  # without a manifest there is no list of files to check
        if not any(run.path == f.path for run in handle.instant.manifest for f in findings):
            findings.append(Finding("damaged", error.path or "manifest", error.message))
    return findings


def _timeline(handle: Handle, deep: bool) -> list[Finding]:
    """Return findings for versions up to the table's that are missing, and for newer ones that are known to have
    existed; with `deep` also for versions that are damaged, or do not follow the one before them."""
    timeline, findings = handle.timeline, []
    names = sorted(version for version in timeline.names(1, handle.version) if version <= handle.version)
    findings += _missing(names, handle.version)
    before = None
    for version in names if deep else []:
        try:
            instant = timeline.find(version)
        except (CorruptionError, FormatVersionError) as error:
            findings.append(Finding("damaged", instant_path(version), str(error)))
            continue
        if instant is not None and before is not None and before.version == version - 1:
            wrong = broken(before, instant)
            findings += [] if wrong is None else [Finding("damaged", instant_path(version), wrong)]
        before = instant or before
    if any(f.path == instant_path(handle.version) for f in findings):
        return findings
    return findings + _newer(handle)


def _missing(names: list[int], last: int) -> list[Finding]:
    """Return a finding for each version up to the last that has no file; one for a gap that is larger than any loss."""
    remedy = "restore it from a copy"
    findings = []
    for before, after in pairwise([0, *names, last + 1]):
        if is_loss(after - 1, before):
            message = f"the file of this version is missing: {remedy}"
            findings += [Finding("missing", instant_path(version), message) for version in range(before + 1, after)]
        elif after - 1 > before:
            message = f"the files of this version and of {after - 2 - before:,} after it are missing: {remedy}"
            findings.append(Finding("missing", instant_path(before + 1), message))
    return findings


def _newer(handle: Handle) -> list[Finding]:
    try:
        latest = handle.timeline.latest(known=handle.instant)
    except CorruptionError as error:
        return [Finding("damaged", error.path or "timeline", error.message)]
    newest = handle.version if latest is None else newest_mentioned(handle.timeline, latest)
    if latest is None or newest == latest.version:
        return []
    message = (
        f"this version was created, and {latest.version} is the newest that can be read: restore its file from a copy"
    )
    return [Finding("missing", instant_path(newest), message)]


def _unread(handle: Handle) -> list[Finding]:
    """Return findings for files that contain columns which the table does not read."""
    instant = handle.snapshot.instant
    ever = names_ever(instant)
    messages: dict[int, str] = {}
    for number, schema in enumerate(instant.file_schemas):
        names = unread_columns(instant, schema)
        if names:
            if ever.isdisjoint(names):
                can = "sync(), or alter(add=), adds them to the table"
            else:  # a restore returned the columns that a sync binds again
                can = _BOUND_BEFORE if ever.intersection(names).difference(sure_columns(instant, schema)) else _RETURNS
            messages[number] = f"contains columns that the table does not read: {', '.join(names)}; {can}"
    if not messages:
        return []
    files = handle.snapshot.files(columns=["path", "schema_id"])
    pairs = zip(*(files.column(name).to_pylist() for name in ("path", "schema_id")), strict=True)
    return [Finding("unread", path, messages[number]) for path, number in pairs if number in messages]


def _runs(handle: Handle, deep: bool) -> list[Finding]:
    runs = [*handle.instant.manifest, *(r for i in handle.instant.indexes for r in i.runs)]
    findings = run_findings(handle.index_storage, [(run.path, run.size_bytes) for run in runs], deep)
    if not findings:  # the runs name the task index files
        paths, findings = _task_indexes(handle)
        findings += run_findings(handle.index_storage, [(path, None) for path in paths], deep)
    return findings


def run_findings(storage: Storage, runs: Sequence[tuple[str, int | None]], deep: bool) -> list[Finding]:
    """Return the problems of sorted-block files of the index: (path, bytes or None if they are not known)."""
    return [finding for path, size_bytes in runs for finding in _sorted_file(storage, path, size_bytes, deep)]


def _sorted_file(storage: Storage, path: str, size_bytes: int | None, deep: bool) -> list[Finding]:
    try:
        with SortedFileReader(Ranged(storage, path, size_bytes)) as reader:
            check_written_as(reader, path)
            return [Finding("damaged", path, f.message) for f in reader.verify()] if deep else []
    except FileMissingError as error:
        return [Finding("missing", path, str(error))]
    except (CorruptionError, FormatVersionError) as error:
        return [Finding("damaged", path, str(error))]


def _task_indexes(handle: Handle) -> tuple[list[str], list[Finding]]:
    """Return (paths of the task index files that indexes name, problems that were found on the way)."""
    paths: set[str] = set()
    findings = []
    for index in handle.instant.indexes:
        for run in index.runs:
            try:
                paths |= referenced_files(handle.readers, index, run) or set()
            except (CorruptionError, FormatVersionError, FileMissingError) as error:
                findings.append(Finding("damaged", run.path, str(error)))
    return sorted(paths), findings


def _files(handle: Handle, deep: bool) -> list[Finding]:
    names = ["path", "size_bytes", "modified_ns", "etag", "row_count", "rows_exact", "kind"]
    files = handle.snapshot.files().select(names)
    if handle.executors is not None:
        return handle.executors.check_files(handle, files, deep)
    return file_findings(handle.storage, files, deep)


def file_findings(storage: Storage, files: pa.Table, deep: bool) -> list[Finding]:
    """Return the problems of data files, which are rows of the manifest."""
    findings = []
    for row in files.to_pylist():
        path = row["path"]
        try:
            entry = storage.stat(path)
        except FILE_ERRORS as error:
            findings.append(Finding("missing", path, str(error)))
            continue
        if not entry.is_same(row["size_bytes"], row["modified_ns"], row["etag"]):
            findings.append(Finding("overwritten", path, "its size or time is not what was indexed; sync the table"))
        elif deep and row["kind"] == BASE:  # logs are not Parquet
            try:
                footer = read_footer(storage, entry)
            except FILE_ERRORS as error:
                findings.append(Finding("damaged", path, str(error)))
                continue
            if row["rows_exact"] and footer.row_count != row["row_count"]:
                message = f"{footer.row_count:,} rows, but {row['row_count']:,} were indexed"
                findings.append(Finding("miscounted", path, message))
    return findings
