"""Checking a table: what its version names is there, whole, and what it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import SkipstoneError
from ..hfile_like import SortedFileReader
from .indexes import stats
from .ingest.footers import read_footer
from .storage import FileMissingError, Ranged

if TYPE_CHECKING:
    from .table import Table


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `kind`: damaged | missing | overwritten | pending | miscounted."""

    kind: str
    path: str
    message: str


def verify(table: Table, deep: bool = False) -> list[Finding]:
    """See `Table.verify`."""
    found = [Finding("pending", p["path"], p["reason"]) for p in table.instant.pending]
    found += _runs(table, deep)
    if any(f.kind == "damaged" and _is_manifest(table, f.path) for f in found):
        return found  # without a manifest there is no list of files to go on with
    found += _files(table, deep)
    return found


def _is_manifest(table: Table, path: str) -> bool:
    return any(run.path == path for run in table.instant.manifest)


def _runs(table: Table, deep: bool) -> list[Finding]:
    found = []
    runs = [*table.instant.manifest, *(r for i in table.instant.indexes for r in i.runs)]
    for run in runs:
        found += _sorted_file(table, run.path, run.size_bytes, deep)
    if not found:  # which task index files there are stands in the runs
        for path in _task_indexes(table):
            found += _sorted_file(table, path, None, deep)
    return found


def _sorted_file(table: Table, path: str, size_bytes: int | None, deep: bool) -> list[Finding]:
    try:
        with SortedFileReader(Ranged(table.index_storage, path, size_bytes)) as reader:
            return [Finding("damaged", path, str(f)) for f in reader.verify()] if deep else []
    except FileMissingError as error:
        return [Finding("missing", path, str(error))]
    except SkipstoneError as error:
        return [Finding("damaged", path, str(error))]


def _task_indexes(table: Table) -> list[str]:
    paths: set[str] = set()
    for index in table.instant.indexes:
        for run in index.runs:
            reader = table.readers.reader(run)
            prefix = stats.KEYS.prefix(column=stats.FINE_COLUMN) if index.kind == "stats" else b""
            paths.update(reader.scan_table(prefix=prefix, columns=["fine_path"]).column("fine_path").to_pylist())
    return sorted(path for path in paths if path is not None)


def _files(table: Table, deep: bool) -> list[Finding]:
    found = []
    names = ["path", "size_bytes", "modified_ns", "row_count", "rows_exact", "schema_id"]
    for row in table.snapshot.files().select(names).to_pylist():
        path = row["path"]
        try:
            entry = table.storage.stat(path)
        except SkipstoneError as error:
            found.append(Finding("missing", path, str(error)))
            continue
        if entry.size_bytes != row["size_bytes"] or row["modified_ns"] not in (None, entry.modified_ns):
            found.append(Finding("overwritten", path, "its size or time is not what was indexed; sync() the table"))
        elif deep and row["schema_id"] is not None:
            try:
                footer = read_footer(table.storage, path)
            except SkipstoneError as error:
                found.append(Finding("damaged", path, str(error)))
                continue
            if row["rows_exact"] and footer.row_count != row["row_count"]:
                told = f"{footer.row_count:,} rows, but {row['row_count']:,} were indexed"
                found.append(Finding("miscounted", path, told))
    return found
