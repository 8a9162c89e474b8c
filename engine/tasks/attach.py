"""Attaching files that other programs wrote: their footers are read, in parallel, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import pyarrow as pa

from ...base.arrays import is_utf8
from ...errors import CorruptionError
from .. import hive
from ..indexes.task_result import ResultBuilder, TaskIndexWriter, TaskResult, quarantined_file
from ..lakes.directory import entries_of
from ..parquet.footer_bytes import expect_footers
from ..parquet.footers import Footer, read_footer
from ..progress import Progress
from ..state.paths import task_path
from ..state.publishing import UnpublishedFiles
from ..storage import Entry, FileMissingError, Storage
from ..storage.threads import FOOTER_THREADS, prefetched, threads_for

COLUMNS_MAX = 100  # by default so many leaves get statistics: beyond that these cost more than they save
TASK_FILES = 1 << 14

Leaves: TypeAlias = Sequence[str] | Callable[[str], bool] | None


@dataclass(frozen=True)
class FooterReading:
    """How the footers of listed files are read.

    hive_partitioned    a file's path contains its partition
    columns             the leaves that get statistics
    quarantines         a file that is not (yet) complete Parquet is listed in `TaskResult.quarantined`; if False, its
                        CorruptionError is raised
    """

    hive_partitioned: bool
    columns: Leaves = None
    quarantines: bool = True


def column_filter(columns: Leaves) -> Callable[[str], bool]:
    """Return a test of leaves for statistics: those named (or in a named struct), or chosen, or all."""
    if columns is None:
        return lambda leaf: True
    if callable(columns):
        return columns
    named = set(columns)
    prefixes = tuple(f"{name}." for name in named)
    return lambda leaf: leaf in named or leaf.startswith(prefixes)


def attach_files(
    storage: Storage,
    index_storage: Storage,
    index_path: str,
    entries: Sequence[Entry],
    reading: FooterReading,
    *,
    progress: Progress | None = None,
    as_declared: Callable[[Entry, Footer], dict[str, Any] | None] | None = None,
) -> TaskResult:
    """Read the footers of files and write one task index file for all of them.

    `as_declared` returns what a log reports about a file, instead of what is added here; None for a file to skip.
    """
    columns = reading.columns
    wanted = column_filter(columns if as_declared is None else None)
    expect_footers(len(entries))
    built = ResultBuilder()
    quarantined: list[dict] = []
    with TaskIndexWriter(index_storage, index_path) as fine:
        for done, (entry, footer) in enumerate(_footers(storage, entries, wanted), start=1):
            if isinstance(footer, Exception):
                if not reading.quarantines:
                    raise footer
                path = getattr(footer, "path", None) or entry.path
                quarantined.append(quarantined_file(path, getattr(footer, "message", str(footer))))
                continue
            if as_declared is None:
                stats = footer.stats if columns is not None else dict(islice(footer.stats.items(), COLUMNS_MAX))
                partition = hive.partition_of(entry.path) if reading.hive_partitioned else ""
                declared: dict[str, Any] | None = {"partition": partition, "schema": footer.schema, "stats": stats}
            else:
                declared = as_declared(entry, footer)
            if declared is None:
                continue
            fine.add_file(entry.path, footer.row_groups, declared["stats"], footer.packed)
            built.add(
                path=entry.path,
                size_bytes=entry.size_bytes,
                modified_ns=entry.modified_ns,
                etag=entry.etag,
                row_groups=footer.row_groups,
                **declared,
            )
            if progress:
                progress("footers", done, len(entries))
        index = fine.finish()
    return built.result(index=index, quarantined=quarantined)


def _footers(
    storage: Storage, entries: Sequence[Entry], wanted: Callable[[str], bool]
) -> Iterator[tuple[Entry, Footer | Exception]]:
    """Yield each entry with its footer, or the error of reading it, in order; a bounded number of reads ahead."""

    def read(entry: Entry) -> Footer | Exception:
        if not is_utf8(entry.path):
            shown = entry.path.encode("utf-8", "backslashreplace").decode()
            return CorruptionError("its name is not UTF-8; rename the file", path=shown, check="name")
        try:
            return read_footer(storage, entry, wanted)
        except (CorruptionError, FileMissingError) as error:
            return error

    footers = prefetched(read, entries, threads_for(storage, FOOTER_THREADS), "skipstone-footers")
    yield from zip(entries, footers, strict=True)


@dataclass(frozen=True)
class AttachRequest:
    """A listing whose files are to be attached.

    transaction   names the task index files
    listed        a table of `lakes.directory.LISTED`
    leftovers     contains every task index file before it is started
    progress      called as progress("footers", read, of all)
    """

    storage: Storage
    index_storage: Storage
    transaction: str
    listed: pa.Table
    leftovers: UnpublishedFiles
    reading: FooterReading
    progress: Progress | None = None


Attacher: TypeAlias = Callable[[AttachRequest], tuple[list[TaskResult], tuple[dict, ...]]]
"""A function that attaches a listing, as `attach_all` does."""


def attach_all(request: AttachRequest, *, part: str = "attached") -> tuple[list[TaskResult], tuple[dict, ...]]:
    """Return (the files of a listing, as `attach_files` attaches them, `TASK_FILES` per task; the quarantined files).

    The names of task index files contain `part`.
    """
    listed, index_storage = request.listed, request.index_storage
    results: list[TaskResult] = []
    quarantined: list[dict] = []
    for start in range(0, listed.num_rows, TASK_FILES):
        path = task_path(request.transaction, f"{part}-{start // TASK_FILES}")
        request.leftovers.add(index_storage, path)
        result = attach_files(
            request.storage,
            index_storage,
            path,
            list(entries_of(listed.slice(start, TASK_FILES))),
            request.reading,
            progress=_of_all(request.progress, start, listed.num_rows),
        )
        quarantined += result.quarantined
        if result.files.num_rows:
            results.append(result)
        else:
            index_storage.delete(path)
    return results, tuple(quarantined)


def _of_all(progress: Progress | None, before: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda step, done, _: progress(step, before + done, total)
