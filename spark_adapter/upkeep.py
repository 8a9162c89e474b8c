"""`sync`, `verify`, `clean`, `perf`: the methods of a table, their work on many files done by executors.

    sync      folders are listed, and footers of new files read
    verify    files are looked at one by one; with `deep` their footers, and all bytes of the index
    clean     folders are listed, and files removed; which ones the driver decides
    perf      the storage is listed, beside which the driver's calls are measured

Where there is little to do the driver does it alone. Results and errors are those of the methods.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from ..engine.choices import NewColumns, NewTypes
from ..engine.commit.clean import clean as clean_here
from ..engine.commit.clean import remove_file, remove_here, walk
from ..engine.commit.indexing import refresh_all
from ..engine.commit.sync import SyncResult, sync_directory
from ..engine.commit.sync_log import sync_log
from ..engine.lakes.directory import list_below
from ..engine.open import open_table
from ..engine.perf import ROUNDS, CountedFolders, Lister, Perf, keyed_folders, perf_of
from ..engine.progress import Progress, progress_function
from ..engine.storage import Entry, Storage, StorageOptions, open_storage
from ..engine.verify import Checker, Finding, file_findings, run_findings
from ..engine.verify import verify as verify_here
from ..errors import InvalidArgumentError
from .builders import FOLDERS_A_CORE, PART_FILES_MIN, PARTS_A_CORE, Executors, attach, list_files
from .jobs import described, run_parts, slots
from .parts import split_evenly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..engine.handle import Handle

R = TypeVar("R")

_OPEN_BYTES = 1 << 20  # opening a file, as bytes of reading
_DEEP_BYTES_MIN = 64 << 20  # of the index: about what is checked in the time of a job


@described("sync")
def sync(
    spark: SparkSession,
    path: str | os.PathLike,
    *,
    new_columns: NewColumns = "adopt",
    new_types: NewTypes = "widen",
    refresh: bool = False,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> SyncResult:
    """As `Table.sync`: of many folders and many new files, executors list and read footers. With `refresh` they build
    what indexes lack, too. A log of another format is followed by the driver.

    Args:
        path: the table's directory; executors must see it under the same name.
        new_columns, new_types, refresh, progress: as of `Table.sync`.
        index_path, storage_options: as for `scan`.

    Returns:
        The version, an int, with what was added, removed and quarantined.

    Raises as `Table.sync`.
    """
    if new_columns not in ("adopt", "report"):
        raise InvalidArgumentError(f'new_columns= is "adopt" or "report", not {new_columns!r}')
    if new_types not in ("widen", "quarantine"):
        raise InvalidArgumentError(f'new_types= is "widen" or "quarantine", not {new_types!r}')
    report = progress_function(progress)
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        handle = table.handle
        handle.check_latest()
        if handle.log is not None:
            instant, result = sync_log(handle, report)
        else:
            instant, result = sync_directory(
                handle,
                report,
                adopts=new_columns == "adopt",
                widens=new_types == "widen",
                list_files=partial(list_files, spark),
                attach=partial(attach, spark),
            )
        handle.move_to(instant)
        return result.moved_to(refresh_all(handle, progress=report, builder=Executors(spark))) if refresh else result


# -- verify -----------------------------------------------------------------------------------------------------------


@described("verify")
def verify(
    spark: SparkSession,
    path: str | os.PathLike,
    deep: bool = False,
    *,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> list[Finding]:
    """As `Table.verify`: executors look at the data files, and with `deep` read their footers and all bytes of the
    index. Returns what is wrong, in the order of `Table.verify`; [] when sound.

    Args:
        path: the table's directory; executors must see it under the same name.
        deep: as of `Table.verify`.
        index_path, storage_options: as for `scan`.
        progress: called as f(step, done, total), or True for a bar on stderr.
    """
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        return verify_here(table.handle, deep, _CheckedByExecutors(spark, progress_function(progress)))


@dataclass(frozen=True)
class CheckRuns:
    """In an executor: what is wrong with sorted-block files."""

    index_location: str
    storage_options: StorageOptions
    deep: bool

    def __call__(self, runs: list[tuple[str, int | None]]) -> list[Finding]:
        return run_findings(open_storage(self.index_location, self.storage_options, is_index=True), runs, self.deep)


@dataclass(frozen=True)
class CheckFiles:
    """In an executor: what is wrong with data files."""

    location: str
    storage_options: StorageOptions
    deep: bool

    def __call__(self, files: pa.Table) -> list[Finding]:
        storage = open_storage(self.location, self.storage_options)
        return file_findings(storage, files, self.deep)


class _CheckedByExecutors(Checker):
    def __init__(self, spark: SparkSession, progress: Progress | None):
        self._spark, self._progress = spark, progress

    def check_runs(self, handle: Handle, runs: Sequence[tuple[str, int | None]], deep: bool) -> list[Finding]:
        weights = [(size_bytes or 0) + _OPEN_BYTES for _, size_bytes in runs]
        if not deep or sum(weights) < _DEEP_BYTES_MIN:
            return super().check_runs(handle, runs, deep)
        work = CheckRuns(handle.index_storage.uri, handle.storage_options, deep)
        return self._run(work, weights, lambda cut: runs[cut], "index, parts")

    def check_files(self, handle: Handle, files: pa.Table, deep: bool) -> list[Finding]:
        if files.num_rows < PART_FILES_MIN:
            return super().check_files(handle, files, deep)
        work = CheckFiles(handle.location, handle.storage_options, deep)
        return self._run(work, [1.0] * files.num_rows, lambda cut: files[cut], "files, parts")

    def _run(self, work: Callable, weights: Sequence[float], part: Callable[[slice], Any], step: str) -> list[Finding]:
        parts: Iterable[Any] = map(part, split_evenly(weights, PARTS_A_CORE * slots(self._spark)))
        findings_of_parts = run_parts(self._spark, work, parts, step=step, progress=self._progress)
        return [finding for findings in findings_of_parts for finding in findings]


# -- clean, perf ------------------------------------------------------------------------------------------------------


@described("clean")
def clean(
    spark: SparkSession,
    path: str | os.PathLike,
    *,
    retain_versions: int = 10,
    min_age: dt.timedelta = dt.timedelta(hours=1),
    delete_data: bool = False,
    dry_run: bool = False,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> pa.Table:
    """As `Table.clean`: the driver decides what goes, and publishes it; executors list many folders, and remove many
    files.

    Args:
        path: the table's directory; executors must see it under the same name.
        retain_versions, min_age, delete_data, dry_run, progress: as of `Table.clean`.
        index_path, storage_options: as for `scan`.

    Returns:
        What is removed (or would be): kind, path, size_bytes.

    Raises as `Table.clean`.
    """
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        if delete_data:
            table.handle.check_owns_files()
        report = progress_function(progress)
        list_data = partial(_list_data, spark, table.handle, report)
        how = (retain_versions, min_age, delete_data, dry_run, report)
        return clean_here(table.handle, *how, remove=partial(_remove, spark), list_data=list_data)


@dataclass(frozen=True)
class WalkPart:
    """In an executor: what lies below some folders."""

    location: str
    storage_options: StorageOptions

    def __call__(self, folders: list[str]) -> list[Entry]:
        return walk(open_storage(self.location, self.storage_options), folders)[0]


def _list_data(spark: SparkSession, handle: Handle, progress: Progress | None, storage: Storage) -> list[Entry]:
    """What lies below the table's directory. The driver lists until many folders wait, and executors below these."""
    entries, waiting = walk(storage, [""], FOLDERS_A_CORE * slots(spark))
    if waiting:
        cuts = split_evenly([1.0] * len(waiting), PARTS_A_CORE * slots(spark))
        work = WalkPart(handle.location, handle.storage_options)
        parts = [waiting[cut] for cut in cuts]
        for listed in run_parts(spark, work, parts, step="folders, parts", progress=progress):
            entries += listed
    return entries


@dataclass(frozen=True)
class RemovePart:
    """In an executor: removes files, (kind, file)."""

    location: str
    index_location: str
    storage_options: StorageOptions

    def __call__(self, files: list[tuple[str, Entry]]) -> None:
        storage = open_storage(self.location, self.storage_options)
        index_storage = open_storage(self.index_location, self.storage_options, is_index=True)
        for kind, entry in files:
            remove_file(storage, index_storage, kind, entry)


def _remove(spark: SparkSession, handle: Handle, files: Sequence[tuple[str, Entry]], progress: Progress | None) -> None:
    if len(files) < PART_FILES_MIN:
        remove_here(handle, files, progress)
        return
    cuts = split_evenly([1.0] * len(files), PARTS_A_CORE * slots(spark))
    work = RemovePart(handle.location, handle.index_storage.uri, handle.storage_options)
    run_parts(spark, work, [list(files[cut]) for cut in cuts], step="clean, parts", progress=progress)


@described("perf")
def perf(
    spark: SparkSession,
    path: str | os.PathLike,
    partition: str | None = None,
    *,
    rounds: int = ROUNDS,
    with_listing: bool = True,
    version: int | None = None,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> Perf:
    """What the index saves this table, as `skipstone perf` measures it: each call from the index, and by listing the
    storage. The calls are the driver's, which plans every scan; many folders are listed by executors, as by `sync`, and
    then the listing's time is that of a job.

    Args:
        path: the table's directory.
        partition: which one, by its text; by default the one with most files.
        rounds: how often each call is made; medians are reported.
        with_listing: also list the storage, once.
        version, index_path, storage_options: as for `scan`.
        progress: called as f(step, done, total), or True for a bar on stderr.

    Raises InvalidArgumentError for a partition that is not there, and a table without files.
    """
    report = progress_function(progress)
    with open_table(path, version=version, index_path=index_path, storage_options=storage_options) as table:
        return perf_of(table, partition, rounds, with_listing, report, _ListedByExecutors(spark, report))


@dataclass(frozen=True)
class CountPart:
    """In an executor: how many folders lie at and below some, and how many Parquet files."""

    location: str
    index_location: str
    storage_options: StorageOptions

    def __call__(self, folders: list[str]) -> tuple[int, int]:
        storage = CountedFolders(open_storage(self.location, self.storage_options))
        files, _ = list_below(storage, self.index_location, folders)
        return storage.listed, files.num_rows


@dataclass(frozen=True)
class KeyedFoldersPart:
    """In an executor: the `key=value` folders right below some folders."""

    location: str
    storage_options: StorageOptions

    def __call__(self, folders: list[str]) -> list[str]:
        return keyed_folders(open_storage(self.location, self.storage_options), folders)


class _ListedByExecutors(Lister):
    def __init__(self, spark: SparkSession, progress: Progress | None):
        self._spark, self._progress = spark, progress

    def files(self, handle: Handle, progress: Progress | None) -> tuple[int, int]:
        storage, index_location = CountedFolders(handle.storage), handle.index_storage.uri
        most = FOLDERS_A_CORE * slots(self._spark)
        files, waiting = list_below(storage, index_location, [""], progress, folders_max=most)
        counts = self._run(CountPart(handle.location, index_location, handle.storage_options), waiting)
        return storage.listed + sum(folders for folders, _ in counts), files.num_rows + sum(n for _, n in counts)

    def keyed_folders(self, handle: Handle, folders: list[str]) -> list[str]:
        if len(folders) < FOLDERS_A_CORE * slots(self._spark):
            return super().keyed_folders(handle, folders)
        found = self._run(KeyedFoldersPart(handle.location, handle.storage_options), folders)
        return [folder for part in found for folder in part]

    def _run(self, work: Callable[[list[str]], R], folders: list[str]) -> list[R]:
        parts = [folders[cut] for cut in split_evenly([1.0] * len(folders), PARTS_A_CORE * slots(self._spark))]
        return run_parts(self._spark, work, parts, step="folders, parts", progress=self._progress)
