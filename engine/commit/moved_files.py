"""Files that stand elsewhere than recorded: a lake that was copied, moved or restored.

A copy of a file has another time, and on an object store perhaps another etag, so nothing tells it from a file that
was overwritten. `rebind` takes over what the indexes know of it where a person vouches for the copy, and where its
size, its row groups and its footer's statistics agree with what was indexed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, joined, string_array, text, to_numpy
from ..indexes.stats import format as stats
from ..indexes.task_result import TaskResult
from ..parquet.column_stats import STATS_FIELDS
from ..state import Instant
from ..state.manifest import CLEANED, FILE_FIELDS, SEGMENT_FIELD, STAT_FIELDS
from ..state.runs import DamagedRun, entries_of
from ..state.snapshot import Snapshot

_SIZES = ("compressed_bytes", "uncompressed_bytes", "value_count", "null_count")
_BOUNDS = (("min_code", "min_exact"), ("max_code", "max_exact"), ("min_bytes", "min_exact"), ("max_bytes", "max_exact"))


@dataclass(frozen=True)
class RebindResult:
    """What `Table.rebind` did.

    version      the version that it ended at
    rebound      files that keep all that the indexes know of them
    uncovered    files of the same size that were attached anew: their statistics are those of their footers; filters
                 and secondary indexes do not speak of them until `refresh_index`
    changed      files of another size, with other row groups or other statistics: attached anew
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
                "; no digest of their data was kept, so filters and secondary indexes take files along only with "
                "trusted=True, and cover them anew by refresh_index()"
            )
        return text


@dataclass
class Rebinding:
    """A rebind that is under way.

    trusted      the caller vouches that files of the same size and footer hold the same data
    same         paths of files that keep what is known of them
    changed      paths of files that are others for certain
    """

    trusted: bool
    same: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)

    def compare(self, snapshot: Snapshot, removed: Mapping[int, str], results: Sequence[TaskResult]) -> None:
        """Sets `same` and `changed` from the footers of files that came in the place of live ones."""
        self.same, self.changed = set(), set()
        former = snapshot.rows(np.array(sorted(removed), np.uint64), [f.name for f in FILE_FIELDS])
        rows = {row["path"]: row for row in former.to_pylist()}
        for result in results:
            pairs = [(i, row["path"]) for i, row in enumerate(result.files.select(["path"]).to_pylist())]
            candidates = {rows[path]["file_id"]: i for i, path in pairs if path in rows}
            others = _disagreeing(snapshot, rows, result, candidates)
            for number, i in candidates.items():
                path = removed[number]
                (self.changed if i in others else self.same).add(path)
        if not self.trusted:
            self.same = set()


def _disagreeing(
    snapshot: Snapshot, former: Mapping[str, dict], result: TaskResult, candidates: Mapping[int, int]
) -> set[int]:
    """Positions of files of a result that are not what the live files were which they replace (id -> position)."""
    instant, now = snapshot.instant, result.files.to_pylist()
    odd, columns = set(), dict[int, dict[int, int]]()
    for number, i in candidates.items():
        row = former[now[i]["path"]]
        pairs = [(row[name], now[i][name]) for name in ("size_bytes", "row_groups", "row_count")]
        pairs = pairs if row["rows_exact"] else pairs[:1]
        if any(None not in pair and pair[0] != pair[1] for pair in pairs):
            odd.add(i)
        schema = instant.file_schemas[row["schema_id"]]
        for ordinal, path in enumerate(result.stats_columns):
            if path in schema.columns:
                columns.setdefault(schema.columns[path], {})[number] = ordinal
    names = [f.name for f in STATS_FIELDS]
    entries = {(row["file"], row["column"]): row for row in result.stats.to_pylist()} if columns else {}
    for column, ordinals in columns.items():
        index = instant.index_of("stats", column)
        if index is None:
            continue
        ids = np.array(sorted(ordinals), np.uint64)
        try:
            ids_indexed, indexed = entries_of(
                snapshot.readers, index.runs, stats.file_prefix(column), ids, names, stats.RUN_SCHEMA
            )
        except DamagedRun:  # nothing vouches for these files' filters either
            odd |= {candidates[number] for number in ordinals}
            continue
        for number, row in zip(ids_indexed.tolist(), indexed.to_pylist(), strict=True):
            entry = entries.get((candidates[number], ordinals[number]))
            if entry is not None and _contradict(row, entry):
                odd.add(candidates[number])
    return odd


def _contradict(one: dict, other: dict) -> bool:
    """Whether two entries of statistics cannot be of the same bytes: what either does not know is not compared."""
    if any(None not in (one[name], other[name]) and one[name] != other[name] for name in _SIZES):
        return True
    return any(
        one[exact] and other[exact] and None not in (one[name], other[name]) and one[name] != other[name]
        for name, exact in _BOUNDS
    )


def with_identity(rows: pa.Table, listed: pa.Table) -> pa.Table:
    """Rows of files with the sizes, times and etags of a listing, in which each of their paths stands."""
    paths = joined(rows.column("path").cast(pa.binary()))
    positions = pc.index_in(paths, value_set=joined(listed.column("path")))
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
    paths = joined(removed.column("path").cast(pa.binary()))
    listed_again = removed.filter(pc.is_in(paths, value_set=joined(listed.column("path"))))
    positions = pc.index_in(
        joined(listed_again.column("path").cast(pa.binary())), value_set=joined(listed.column("path"))
    )
    sizes = listed.column("size_bytes").take(positions)
    same = to_numpy(pc.fill_null(pc.equal(listed_again.column("size_bytes"), sizes), False))
    same &= ~to_numpy(pc.fill_null(pc.equal(listed_again.column("kind"), text(CLEANED)), False))
    return with_identity(listed_again.filter(from_numpy(same)), listed)


def stands_elsewhere(instant: Instant, uri: str) -> bool:
    """Whether a version was recorded for another place than this: then times and etags say little."""
    return instant.source.get("location") not in (None, uri)
