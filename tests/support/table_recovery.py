"""After a writer died the table must be whole, and a clean must remove what the writer left."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import skipstone as ss
from skipstone.engine.indexes.kind import referenced_files
from skipstone.engine.storage import INDEX_FOLDER, Storage
from skipstone.engine.storage.local import TEMPORARY_PREFIX
from skipstone.engine.tasks.writer import FILE_PREFIX


def clean_all(table: ss.Table) -> None:
    """Clean everything that may be cleaned."""
    table.clean(retain_versions=1, min_age=dt.timedelta(0), delete_data=table.handle.log is None)


def purge_all(table: ss.Table) -> None:
    """Purge, even if other writers are active."""
    table.purge(drop_savepoints=True, min_age=dt.timedelta(0))


def recovered(table: ss.Table) -> list[str]:
    """Clean, and return what is wrong after it: a clean removes all files that a dead writer left, and no others."""
    clean_all(table)
    faults = [f"verify: {finding}" for finding in table.verify(deep=True)]
    runs, data = _named(table)
    index = list(_walk(table.handle.index_storage, ""))
    kept = {path for path in index if path.startswith("runs/")}
    faults += [f"{path} is named, and not there" for path in sorted(runs - kept)]
    faults += [f"{path} is there, and nothing names it" for path in sorted(kept - runs)]
    lake = list(_walk(table.handle.storage, ""))
    names = [(path, path.rpartition("/")[2]) for path in [*index, *lake]]
    faults += [f"{path} is left" for path, name in names if name.startswith(TEMPORARY_PREFIX)]
    written = {path for path, name in names if name.startswith(FILE_PREFIX) and name.endswith(".parquet")}
    if table.handle.log is None:
        faults += [f"{path} was written, and no version names it" for path in sorted(written - data)]
    return faults


def readable_versions(table: ss.Table) -> list[int]:
    """The versions that were not cleaned."""
    gone = {v for low, high in table.handle.instant.cleaned for v in range(low, high + 1)}
    return [v for v in range(1, table.version + 1) if v not in gone]


def _named(table: ss.Table) -> tuple[set[str], set[str]]:
    """The runs and the data files of readable versions."""
    runs: set[str] = set()
    data: set[str] = set()
    index_path, options = table.handle.index_storage.uri, table.handle.storage_options
    for version in readable_versions(table):
        then = ss.open(table.location, version=version, index_path=index_path, storage_options=options)
        instant, readers = then.handle.instant, then.handle.readers
        runs |= {run.path for part in (instant.manifest, *(i.runs for i in instant.indexes)) for run in part}
        fine = [referenced_files(readers, index, run) or () for index in instant.indexes for run in index.runs]
        runs |= {path for paths in fine for path in paths if path.startswith("runs/")}  # of runs that were merged
        data |= set(then.files().column("path").to_pylist())
    return runs, data


def _walk(storage: Storage, folder: str) -> Iterator[str]:
    files, folders = storage.list_folder(folder)
    yield from (entry.path for entry in files)
    for name in folders:
        if name != INDEX_FOLDER:
            yield from _walk(storage, f"{folder}/{name}" if folder else name)
