"""Files that stand elsewhere than recorded: a lake that was copied, moved or restored.

A copy of a file has another time, and on an object store perhaps another etag, so nothing tells it from a file that
was overwritten. `rebind` takes over what the indexes know of it where its size, its row groups and its footer's
statistics agree with what was indexed, and either digests that were kept then agree with what it holds
(`parquet/digests.py`), or a person vouches for the copy.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, from_numpy, string_array, string_scalar, to_numpy
from ...errors import CorruptionError
from ..indexes.stats import format as stats
from ..indexes.stats.rows import digests_of, first_stats
from ..indexes.task_result import TaskResult
from ..parquet.column_stats import STATS_FIELDS
from ..parquet.digests import chunk_digests, file_digest, footer_digest, indexed_digest
from ..parquet.footers import indexed_entry, open_indexed
from ..progress import Progress
from ..state import Instant
from ..state.coverage import is_covered
from ..state.manifest import CLEANED, FILE_FIELDS, SEGMENT_FIELD, STAT_FIELDS
from ..state.run_lookups import entries_of
from ..state.runs import DamagedRun
from ..state.snapshot import Snapshot
from ..storage.threads import BUILD_THREADS, WAITING_MAX, prefetched, threads_for

if TYPE_CHECKING:
    from ..handle import Handle

_SIZES = ("compressed_bytes", "uncompressed_bytes", "value_count", "null_count")
_BOUNDS = (("min_code", "min_exact"), ("max_code", "max_exact"), ("min_bytes", "min_exact"), ("max_bytes", "max_exact"))
_STATS_NAMES = [f.name for f in STATS_FIELDS]


@dataclass(frozen=True)
class RebindResult:
    """What `Table.rebind` did.

    version      the version that it ended at
    rebound      files that keep all that filters and secondary indexes know of them; files of which these knew nothing,
                 whose statistics are those of their footers
    uncovered    files of the same size that were attached anew, since no digest of what was indexed was kept: their
                 statistics are those of their footers; filters and secondary indexes do not speak of them until
                 `refresh_index`
    changed      files of another size, with other row groups or statistics, or of another digest: attached anew, too
    removed      files that are not there
    added        files that are there and were not in the table
    """

    version: int
    rebound: int = 0
    uncovered: int = 0
    changed: int = 0
    removed: int = 0
    added: int = 0

    def __str__(self) -> str:
        text = (
            f"version {self.version}: {self.rebound:,} files rebound, {self.uncovered:,} uncovered, {self.changed:,} "
            f"changed, {self.removed:,} removed, {self.added:,} added"
        )
        if self.uncovered:
            text += (
                f"; no digest was kept of what was indexed of {self.uncovered:,} files, so filters and secondary "
                "indexes take them along only with trusted=True, and cover them anew by refresh_index()"
            )
        return text


@dataclass
class Rebinding:
    """A rebind that is under way.

    trusted      the caller vouches that files of the same size and footer hold the same data
    same         paths of files that keep what is known of them
    changed      paths of files that are others for certain
    bare         paths of files of which filters and secondary indexes know nothing: attached anew, they lose nothing
    """

    trusted: bool
    same: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    bare: set[str] = field(default_factory=set)
    _checked: dict[tuple, bool] = field(default_factory=dict)  # another attempt need not read them again

    def compare(
        self,
        handle: Handle,
        snapshot: Snapshot,
        removed: Mapping[int, str],
        results: Sequence[TaskResult],
        progress: Progress | None,
    ) -> None:
        """Sets the paths, from footers and digests of files that came in the place of live ones."""
        self.same, self.changed, self.bare = set(), set(), set()
        former = snapshot.rows(np.array(sorted(removed), np.uint64), [f.name for f in FILE_FIELDS])
        rows = {row["path"]: row for row in former.to_pylist()}
        copies: list[_Copy] = []
        for result in results:
            now = result.files.to_pylist()
            live = {rows[row["path"]]["file_id"]: i for i, row in enumerate(now) if row["path"] in rows}
            others, unsure = _disagreeing(snapshot, rows, result, live)
            self.changed.update(now[i]["path"] for i in others)
            copies += [
                _Copy(number, now[i], rows[now[i]["path"]]["schema_id"], i not in unsure)
                for number, i in live.items()
                if i not in others
            ]
        if self.trusted:
            self.same = {copy.path for copy in copies}
            return
        self.bare = _add_digests(snapshot, copies)
        with_digest = [copy for copy in copies if copy.digests]
        for copy in _compared(handle, [copy for copy in with_digest if copy.key not in self._checked], progress):
            self._checked[copy.key] = copy.agrees
        for copy in with_digest:
            (self.same if self._checked[copy.key] else self.changed).add(copy.path)


@dataclass
class _Copy:
    """A file whose footer agrees with what was indexed.

    row            its path and identity, as it stands
    schema_id      the physical schema of the file that was indexed
    is_by_footer   its statistics say no more than its footer does
    digests        that must agree: (None, digest) of the whole file; or (columns in the file, digest) of each index
    """

    number: int
    row: dict[str, Any]
    schema_id: int
    is_by_footer: bool
    digests: list[tuple[tuple[str, ...] | None, bytes]] = field(default_factory=list)
    agrees: bool = False

    @property
    def path(self) -> str:
        return self.row["path"]

    @property
    def key(self) -> tuple:
        return (self.number, *(self.row[name] for name in STAT_FIELDS))


def _add_digests(snapshot: Snapshot, copies: Sequence[_Copy]) -> set[str]:
    """Gives copies the digests by which they can be known, where those suffice. Returns the paths of those of which
    nothing is known but statistics: to keep these pays for no reading."""
    instant = snapshot.instant
    first = first_stats(instant)
    ids = np.array(sorted(copy.number for copy in copies), np.uint64)
    by_id, bare = {copy.number: copy for copy in copies}, {copy.path for copy in copies}
    segments = snapshot.segments(ids)
    whole = digests_of(snapshot.readers, first, first.id, ids)
    lacking: set[int] = set()
    for index in instant.indexes:
        if index.kind == "stats":
            continue
        digests = digests_of(snapshot.readers, first, index.id, ids)
        for number in ids[is_covered(index.coverage, segments, ids)].tolist():
            copy = by_id[number]
            bare.discard(copy.path)
            paths = [instant.file_schemas[copy.schema_id].path_of(column) for column in index.columns]
            columns = tuple(dict.fromkeys(path for path in paths if path is not None))
            if number in whole:
                copy.digests = [(None, whole[number])]
            elif number in digests and copy.is_by_footer:
                copy.digests.append((columns, digests[number]))
            else:
                lacking.add(number)
    for number in lacking:
        by_id[number].digests = []
    return bare


def _compared(handle: Handle, copies: Sequence[_Copy], progress: Progress | None) -> Sequence[_Copy]:
    """The copies, each with whether its digests agree: read side by side, a few MiB of each at a time."""
    total, done = sum(copy.row["size_bytes"] for copy in copies), 0
    with closing(_answers(handle, copies)) as answers:
        for copy, agrees in answers:
            copy.agrees = agrees
            done += copy.row["size_bytes"]
            if progress:
                progress("digests, bytes of files", done, total)
    return copies


def _answers(handle: Handle, copies: Sequence[_Copy]) -> Generator[tuple[_Copy, bool]]:
    threads = min(threads_for(handle.storage, BUILD_THREADS), WAITING_MAX)
    yield from zip(copies, prefetched(partial(_agrees, handle), copies, threads, "skipstone-digest"), strict=True)


def _agrees(handle: Handle, copy: _Copy) -> bool:
    """Raises NotReadableError for a file that another took the place of meanwhile."""
    storage = handle.storage
    if copy.digests[0][0] is None:
        digest = file_digest(storage, indexed_entry(storage, copy.row))
        indexed_entry(storage, copy.row)
        return digest == copy.digests[0][1]
    by_column: dict[str, list[bytes]] = {column: [] for columns, _ in copy.digests for column in columns or ()}
    try:
        with open_indexed(storage, copy.row) as file:
            footer = footer_digest(file)
            for group in range(file.metadata.num_row_groups):
                for column, chunks in by_column.items():
                    chunks.append(chunk_digests(file, group, [column]))
    except CorruptionError:
        return False
    return all(
        indexed_digest(footer, map(b"".join, zip(*(by_column[column] for column in columns or ()), strict=True)))
        == digest
        for columns, digest in copy.digests
    )


def _disagreeing(
    snapshot: Snapshot, former: Mapping[str, dict], result: TaskResult, live: Mapping[int, int]
) -> tuple[set[int], set[int]]:
    """(positions of files of a result that are not what the live files were which they replace (`live`: id ->
    position), positions of those of whose live files statistics say more than the footer)."""
    instant, now = snapshot.instant, result.files.to_pylist()
    odd, unsure = set(), set[int]()
    schemas = {}
    for number, i in live.items():
        row = former[now[i]["path"]]
        schemas[number] = instant.file_schemas[row["schema_id"]]
        pairs = [(row[name], now[i][name]) for name in ("size_bytes", "row_groups", "row_count")]
        pairs = pairs if row["rows_exact"] else pairs[:1]
        if any(None not in pair and pair[0] != pair[1] for pair in pairs):
            odd.add(i)
    ordinals = {path: ordinal for ordinal, path in enumerate(result.stats_columns)}
    entries = {(row["file"], row["column"]): row for row in result.stats.to_pylist()}
    ids = np.array(sorted(live), np.uint64)
    for index in instant.indexes if len(ids) else ():
        for column in index.columns if index.kind == "stats" else ():
            prefix = stats.file_prefix(column)
            try:
                indexed = entries_of(snapshot.readers, index.runs, prefix, ids, _STATS_NAMES, stats.RUN_SCHEMA)
            except DamagedRun:  # nothing vouches for these files' filters either
                return set(live.values()), unsure
            for number, row in zip(indexed[0].tolist(), indexed[1].to_pylist(), strict=True):
                i, path = live[number], schemas[number].path_of(column)
                entry = entries.get((i, ordinals.get(path, -1) if path is not None else -1), {})
                if _contradict(row, entry):
                    odd.add(i)
                elif _says_more(row, entry):
                    unsure.add(i)
    return odd, unsure


def _contradict(one: dict, other: dict) -> bool:
    """Whether two entries of statistics cannot be of the same bytes: what either does not know is not compared."""
    if not other:
        return False
    if any(None not in (one[name], other[name]) and one[name] != other[name] for name in _SIZES):
        return True
    return any(
        one[exact] and other[exact] and None not in (one[name], other[name]) and one[name] != other[name]
        for name, exact in _BOUNDS
    )


def _says_more(indexed: dict, of_footer: dict) -> bool:
    """Whether an entry says what a footer does not: it was made from values, or somebody declared it."""
    return any(
        indexed[name] is not None and indexed[name] is not False and indexed[name] != of_footer.get(name)
        for name in _STATS_NAMES
    )


def with_identity(rows: pa.Table, listed: pa.Table) -> pa.Table:
    """Rows of files with the sizes, times and etags of a listing, in which each of their paths stands."""
    paths = combine(rows.column("path").cast(pa.binary()))
    positions = pc.index_in(paths, value_set=combine(listed.column("path")))
    for name in STAT_FIELDS:
        field_index = rows.schema.get_field_index(name)
        rows = rows.set_column(field_index, rows.schema.field(field_index), listed.column(name).take(positions))
    return rows


def moved_rows(snapshot: Snapshot, paths: set[str], listed: pa.Table) -> pa.Table:
    """The live files of some paths as the manifest is to have them, by file_id."""
    files = snapshot.files()
    rows = files.filter(pc.is_in(files.column("path"), value_set=string_array(sorted(paths))))
    return with_identity(rows, listed).select(["file_id", *(f.name for f in FILE_FIELDS), SEGMENT_FIELD.name])


def removed_in_copy(snapshot: Snapshot, listed: pa.Table) -> pa.Table:
    """Files that were taken out and that the copy has, too, as the manifest is to remember them."""
    removed = snapshot.removed_files()
    paths = combine(removed.column("path").cast(pa.binary()))
    listed_again = removed.filter(pc.is_in(paths, value_set=combine(listed.column("path"))))
    positions = pc.index_in(
        combine(listed_again.column("path").cast(pa.binary())), value_set=combine(listed.column("path"))
    )
    sizes = listed.column("size_bytes").take(positions)
    same = to_numpy(pc.fill_null(pc.equal(listed_again.column("size_bytes"), sizes), False))
    same &= ~to_numpy(pc.fill_null(pc.equal(listed_again.column("kind"), string_scalar(CLEANED)), False))
    return with_identity(listed_again.filter(from_numpy(same)), listed)


def stands_elsewhere(instant: Instant, uri: str) -> bool:
    """Whether a version was recorded for another place than this: then times and etags say little."""
    return instant.source.get("location") not in (None, uri)
