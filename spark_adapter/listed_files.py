"""The files that Spark's own Parquet reader listed, compared with the live files of the tables in these folders.

A folder keeps files that are no longer live: `delete`, `merge`, `cluster` and every other replace leave the old files
to older versions until a clean. Spark's reader lists them too, so it returns deleted rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..engine.commit.sync import is_own_file
from ..engine.open import open_table
from ..errors import NotReadableError, SkipstoneError
from .catalyst_tree import items_of, sequence_of
from .options import local_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..engine.table import Table

Listed = set[tuple[str, int, int]]  # path below the table's folder, size in bytes, time of change in ms

_FILE_STATUS = re.compile(r"FileStatus\{path=(.*?); isDirectory=false; length=(\d+);[^{}]*?; modification_time=(\d+);")
_PATTERN = re.compile(r"[*?\[{]")


@dataclass(frozen=True)
class Listing:
    """What Spark listed for one relation: the folders (or files) that it was given, and the files that it found."""

    roots: tuple[str, ...]
    files: tuple[tuple[str, int, int], ...]
    is_pattern: bool

    @classmethod
    def of(cls, relation: Any) -> Listing | None:
        """The listing of a leaf of an optimized plan; None if the leaf is not read by Spark's Parquet reader."""
        index, path = _file_index_of(relation)
        if index is None:
            return None
        if index.getClass().getSimpleName() == "CatalogFileIndex":  # a partitioned table of the catalog
            index = index.filterPartitions(sequence_of([]))
        if index.getClass().getSimpleName() != "InMemoryFileIndex":
            return None
        listed = index.allFiles()
        statuses = _FILE_STATUS.findall(listed.mkString("\n"))  # one call, not three per file
        if len(statuses) != listed.size():
            return None
        files = tuple((_place(name), int(size), int(ms)) for name, size, ms in statuses)
        roots = tuple(root.toString() for root in items_of(index.rootPaths()))
        return cls(roots, files, path is not None and _PATTERN.search(path) is not None)

    def folders(self) -> Iterator[str]:
        """The folders that may be those of tables. A partition's folder belongs to a table above it. Single files that
        the caller named are the caller's choice, and no listing of a folder."""
        found = {path for path, _, _ in self.files}
        folders = set()
        for root in self.roots:
            if _place(root) in found:
                if not self.is_pattern:
                    continue
                root = root.rpartition("/")[0]
            while "=" in root.rpartition("/")[2]:
                root = root.rpartition("/")[0]
            folders.add(root)
        yield from sorted(folders)

    def below(self, folder: str) -> Listed:
        """The listed files of a folder."""
        prefix = f"{_place(folder)}/"
        return {(path.removeprefix(prefix), size, ms) for path, size, ms in self.files if path.startswith(prefix)}


def stale_read(relations: Iterable[Any]) -> NotReadableError | None:
    """The error for a query, by the leaves of its optimized plan, of which one is a folder of Parquet files that Spark
    listed, and the table there has replaced or removed some of these files, or has deleted rows of them; None if there
    is no such leaf. Files that no version of the table contains are no error: other writers added them, and Spark's
    answer is what the folder contains."""
    for relation in relations:
        listing = Listing.of(relation)
        if listing is None:
            continue
        for folder in listing.folders():
            stale = _stale_below(local_path(folder), listing.below(folder))
            if stale:
                return NotReadableError(
                    f"{local_path(folder)}: Spark would read {len(stale):,} files of this folder that the table has "
                    f"replaced, removed or deleted rows of ({stale[0]}, for one), and return rows that are not in the "
                    "table; query the table by sks.view(spark, name, path), sks.scan or sks.read_parquet",
                    paths=stale,
                )
    return None


def _stale_below(folder: str, listed: Listed) -> list[str]:
    try:
        table = open_table(folder)
    except SkipstoneError:
        return []  # no table, or one whose index is elsewhere
    with table:
        return [] if is_live(listed, table) else _stale(listed, table)


def is_live(listed: Listed, table: Table) -> bool:
    """Whether Spark listed exactly the live files of a table, of the size and time (to the millisecond) that they had
    when they were indexed, and each of them contains the rows of the table and no others."""
    totals = table.handle.instant.totals
    return totals["plain"] == totals["files"] and listed == _live(table)


def _live(table: Table) -> Listed:
    snapshot = table.handle.snapshot
    return _identities(snapshot.rows(snapshot.numbers(None), ["path", "size_bytes", "modified_ns"]))


def _identities(files: Any) -> Listed:
    names = ("path", "size_bytes", "modified_ns")
    rows = zip(*(files.column(name).to_pylist() for name in names), strict=True)
    return {(path, size, (modified or -1) // 1_000_000) for path, size, modified in rows}


def _stale(listed: Listed, table: Table) -> list[str]:
    """The listed files whose rows are not those of the table."""
    handle, live = table.handle, _live(table)
    totals = handle.instant.totals
    stale: set[str] = set()
    if totals["plain"] < totals["files"]:  # older bases of file groups, files with deletes or logs
        units = table.scan().planning.pruned.units
        paths = units.files.column("path").to_pylist()
        exact = {path for path, unit in zip(paths, units.unit_of.tolist(), strict=True) if units.exact[unit]}
        stale = {path for path, *_ in live if path not in exact}
        live = {file for file in live if file[0] in exact}
    live_paths = {path for path, *_ in live}
    if handle.log is not None:  # its owner says which files are live
        stale = {path for path, *_ in listed if path not in live_paths}
    else:
        stale &= {path for path, *_ in listed}
        removed = _identities(handle.snapshot.removed_files())
        stale |= {path for path, *_ in (listed & removed) - live}
        stale |= {path for path, *_ in listed if path not in live_paths and is_own_file(path, handle.snapshot)}
    return sorted(stale)


def _file_index_of(relation: Any) -> tuple[Any, str | None]:
    """The list of files of a relation that Spark's Parquet reader reads, None for others; and the path that it was
    given, if it was one."""
    kind = relation.getClass().getSimpleName()
    if kind == "DataSourceV2ScanRelation" and relation.scan().getClass().getSimpleName() == "ParquetScan":
        return relation.scan().fileIndex(), relation.scan().options().get("path")
    if kind == "LogicalRelation" and relation.relation().getClass().getSimpleName() == "HadoopFsRelation":
        files = relation.relation()
        if files.fileFormat().getClass().getSimpleName() == "ParquetFileFormat":
            path = files.options().get("path")
            return files.location(), path.get() if path.isDefined() else None
    return None, None


def _place(path: str) -> str:
    """A path of Hadoop's without its scheme, for comparisons: it is written with one, two or three slashes."""
    return path.partition(":")[2].lstrip("/")
