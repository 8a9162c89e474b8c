"""The secondary index: value -> the rows that contain it. See `format.py`; `key_ranges.py` for possible look-ups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....base.arrays import from_numpy, to_numpy
from ....base.ordered_keys import OrderedCode, ordered_class
from ....errors import SchemaError
from ...predicates import ANY, TRUE, Node
from ...state import IndexState, Instant, Run
from ...state.coverage import is_covered, without_lost
from ...state.run_format import SHARD_BYTES
from ...state.snapshot import Snapshot
from ..columns import checked_options, checked_shard_bytes, column_ids, indexed_type
from ..derived import is_usable, source_of
from ..kind import BuildContext, BuildResult, IndexKind, Probe, ProbedFiles
from ..probe_results import PartRows, ProbeResult
from .format import NAME, layout_of, run_format
from .included import StoredRows, included_names, included_option
from .key_ranges import IndexMatch, KeyRanges, key_ranges, matches_of
from .reader import SecondaryReader

if TYPE_CHECKING:
    from ...handle import Handle
    from ...storage import Storage
    from ..kind import CommitContext, MergeContext, PartSpec

ENTRIES_MAX = 1 << 20
"""More entries than these are not looked up for one part of a predicate: statistics are the better way then."""
ROWS_MAX = 1 << 21
"""So many rows are listed one by one; of more only their number in each file is reported."""
PUBLISHED_ROWS = 1 << 26
"""A build publishes after so many rows: each part is sorted by itself, and is a run."""
_LITTLE, _AS_MUCH = 4096, 16


class SecondaryKind(IndexKind):
    name = NAME
    is_compound = True
    lists_rows = True
    probe_order = 0

    def define(
        self, instant: Instant, columns: Sequence[str], maintain: str, options: dict[str, Any]
    ) -> list[IndexState]:
        checked_options(self.name, options, ["shard_bytes", "include"])
        ids = column_ids(instant, columns, lambda kind: ordered_class(kind) is not None)
        derived = [one for name in columns if (one := instant.derived_column(name)) is not None]
        if len(columns) > 1 and any(one.expression is None for one in derived):
            raise SchemaError("the elements of a list column are the key of an index by themselves: name it alone")
        stored = {
            "shard_bytes": checked_shard_bytes(options.get("shard_bytes", SHARD_BYTES)),
            "types": [ordered_class(kind) for _, kind in ids],
        }
        if "include" in options and derived:
            raise SchemaError("include= is for keys of columns, not of elements or expressions")
        if "include" in options:
            stored["include"] = included_option(instant, columns, options["include"])
        return [IndexState(0, self.name, tuple(number for number, _ in ids), stored, maintain)]

    def build(self, handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> BuildResult:
        reached = _up_to(files, PUBLISHED_ROWS)
        runs, unreadable_ids = _built(
            handle.storage,
            handle.instant,
            index,
            files.slice(0, reached),
            handle.index_storage,
            lambda shard: job.path(handle.index_storage, f"p{'-'.join(map(str, index.columns))}-{shard}"),
            (1, handle.version),
            job,
        )
        return BuildResult(runs, unreadable_ids, files.column("file_id")[reached:].to_pylist())

    def part_spec(self, instant: Instant, index: IndexState) -> PartSpec:
        from .sort import KeyPartSpec

        names, included = tuple(instant.names_of(index)), tuple(included_names(instant, index))
        sources = tuple(source_of(instant, index, name) for name in names)
        types, layout = tuple(_types(instant, index)), layout_of(index.options.get("include"))
        return KeyPartSpec(names, types, sources, included, layout)

    def commit(self, index: IndexState, work: CommitContext) -> IndexState:
        from ..entry_sorting import with_parts
        from .sort import PART_MEMORY_BYTES, ValueSorter, encoding_of

        if not self.is_current(work.after, index):
            return index
        types, layout = _types(work.after, index), layout_of(index.options.get("include"))
        is_whole = None not in included_names(work.after, index) and is_usable(work.after, index)
        if work.data is not None and work.added and index.maintain == "commit" and is_whole:  # else a refresh renews it
            return _built_by_commit(index, work, work.data)
        sorter = ValueSorter(OrderedCode(types), PART_MEMORY_BYTES, layout=layout)
        form = run_format(index.options["shard_bytes"], layout=layout)

        def of_files(keys: pa.BinaryArray, ids_of: Callable[[np.ndarray], np.ndarray]) -> pa.BinaryArray:
            return layout.of_files(keys, ids_of(layout.file_ids(keys)))

        return with_parts(index, work, encoding_of(types, layout), form, sorter, of_files)

    def merge(self, index: IndexState, work: MergeContext) -> IndexState:
        from ..entry_sorting import with_merged_runs

        layout = layout_of(index.options.get("include"))
        index = replace(index, coverage=index.coverage.without_dead_moves(work.snapshot.numbers()))
        return with_merged_runs(index, work, run_format(index.options["shard_bytes"], layout=layout))

    def is_current(self, instant: Instant, index: IndexState) -> bool:
        return index.options["types"] == [ordered_class(kind) for kind in _types(instant, index)]

    def updated_definition(self, instant: Instant, index: IndexState) -> IndexState:
        if "include" not in index.options and self.is_current(instant, index):
            return index
        options: dict[str, Any] = {"shard_bytes": index.options["shard_bytes"]}
        key = instant.names_of(index)
        floats = [name for name, kind in zip(key, _types(instant, index), strict=True) if pa.types.is_floating(kind)]
        included = [n for n in included_names(instant, index) if n is not None and (n not in key or n in floats)]
        if included:
            options["include"] = included
        (definition,) = self.define(instant, instant.names_of(index), index.maintain, options)
        return replace(definition, id=index.id)

    def shown_options(self, instant: Instant, index: IndexState) -> dict[str, Any]:
        if "include" not in index.options:
            return index.options
        return {**index.options, "include": [name for name in included_names(instant, index) if name is not None]}

    def rows_reader(self, snapshot: Snapshot, index: IndexState, runs: Sequence[Run]) -> SecondaryReader:
        layout = layout_of(index.options.get("include"))
        return SecondaryReader(snapshot.readers, runs, _types(snapshot.instant, index), index.coverage, layout)

    def probes(
        self, snapshot: Snapshot, bound: Node, indexes: Sequence[IndexState], damaged: Sequence[str]
    ) -> Sequence[Probe]:
        probes = []
        for index in indexes:
            names, types = snapshot.instant.names_of(index), _types(snapshot.instant, index)
            code = OrderedCode(types)
            derived = snapshot.instant.derived_column(names[0])
            has_elements = derived is not None and derived.expression is None
            runs = [run for run in index.runs if run.path not in damaged]
            layout = layout_of(index.options.get("include"))
            reader = SecondaryReader(snapshot.readers, runs, types, index.coverage, layout, has_elements=has_elements)
            for fit in matches_of(bound, names, has_elements=has_elements):
                ranges = key_ranges(code, fit.key_parts)
                probes.append(PositionsProbe(index, names, fit, reader, ranges, reader.estimate(ranges)))
        ranked = sorted(probes, key=lambda p: (not p.fit.is_whole, -len(p.fit.key_parts), p.entries))
        return _cheap_enough(ranked, snapshot.instant.version)


def _built(
    data: Storage,
    instant: Instant,
    index: IndexState,
    files: pa.Table,
    index_storage: Storage,
    path_of: Callable[[int], str],
    segments: tuple[int, int],
    job: BuildContext,
) -> tuple[tuple[Run, ...], list[int]]:
    """Return a run over some files, and the ids of those that cannot be read."""
    from ..column_reader import ColumnReader
    from .build import MEMORY_BYTES, build_runs, machine_memory_bytes

    names = instant.names_of(index)
    included = [name for name in included_names(instant, index) if name is not None]
    layout = layout_of(index.options.get("include"))
    assert len(included) == len(layout.included)  # an index that lost an included column is renewed before it is built
    return build_runs(
        ColumnReader.of(data, instant, index, included),
        _types(instant, index),
        index_storage,
        files,
        path_of,
        segments,
        run_format(index.options["shard_bytes"], layout=layout),
        job,
        layout=layout,
        name=f"secondary({', '.join(names)})",
        memory_bytes=MEMORY_BYTES if job.part else machine_memory_bytes(),  # parts: other processes may be here
    )


def _built_by_commit(index: IndexState, work: CommitContext, data: Storage) -> IndexState:
    """Return the index with the files that a commit adds: old entries that are valid for them, or a new run."""

    def path_of(shard: int) -> str:
        return work.writing.path(f"{index.kind}{index.id}-{shard}")

    index, moved = _with_moved_entries(index, work)
    files = work.added_files()
    files = files.filter(pc.invert(pc.is_in(files.column("file_id"), value_set=from_numpy(moved))))
    runs, holes = index.runs, list[int]()
    if files.num_rows:
        segments, job = (work.version, work.version), BuildContext(work.writing.transaction, work.writing.leftovers)
        new, holes = _built(data, work.after, index, files, work.writing.storage, path_of, segments, job)
        runs += new
    return replace(index, runs=runs, coverage=index.coverage.with_segment(work.version, holes))


def _with_moved_entries(index: IndexState, work: CommitContext) -> tuple[IndexState, np.ndarray]:
    """Return the index after the files that a commit writes again with the same rows and indexed values, and the ids of
    the new files (uint64). A row that gets other values in other columns keeps its position, so the entries of its file
    are valid for the new file: only the coverage changes."""
    names = [*work.after.names_of(index), *filter(None, included_names(work.after, index))]
    copied = work.copied_files([path for name in names for path in source_of(work.after, index, name).paths])
    old = np.array(sorted(copied), dtype=np.uint64)
    segments, new = np.array([copied[i] for i in old.tolist()], dtype=np.uint64).reshape(-1, 2).T
    covered = is_covered(index.coverage, segments, old)
    old, new, segments = old[covered], new[covered], segments[covered]
    coverage = index.coverage.with_moved(old, new)
    if coverage is index.coverage or not len(old):
        return index, np.empty(0, dtype=np.uint64)
    runs = [
        # so that a damaged run also uncovers the new files
        replace(run, segments=(run.segments[0], work.version))
        if ((run.segments[0] <= segments) & (segments <= run.segments[1])).any()
        else run
        for run in index.runs
    ]
    return replace(index, runs=tuple(runs), coverage=coverage), new


def _up_to(files: pa.Table, rows: int) -> int:
    """Return how many of the first files have together at most so many rows, at least one."""
    ends = np.cumsum(to_numpy(files.column("row_count").fill_null(0)))
    return max(1, int(np.searchsorted(ends, rows, side="right")))


def _types(instant: Instant, index: IndexState) -> list[pa.DataType]:
    return [indexed_type(instant, name) for name in instant.names_of(index)]


def _cheap_enough(ranked: Sequence[PositionsProbe], version: int) -> list[PositionsProbe]:
    """Return the best of the probes, and others that are cheap in comparison, or may cover files that it does not.
    Their notes contain the reasons. If all are too expensive, return the best, marked as expensive."""
    chosen: list[PositionsProbe] = []
    expensive: list[PositionsProbe] = []
    limit = ENTRIES_MAX
    for probe in ranked:
        if probe.entries > limit:
            expensive.append(probe)
            continue
        chosen.append(probe)
        if probe.index.coverage.is_whole(version):
            limit = min(limit, max(_LITTLE, _AS_MUCH * probe.entries))
    for place, probe in enumerate(chosen):
        others = [f"{other.label}, {other.entries:,}" for other in expensive] if place == 0 else []
        probe.note = f"{probe.label}: {probe.fitness}, at most {probe.entries:,} entries" + (
            f"; more expensive and not used: {'; '.join(others)}" if others else ""
        )
    if expensive and not chosen:
        best = expensive[0]
        best.is_expensive = True
        best.note = f"{best.label} is not used: up to {best.entries:,} of its entries match"
        return [best]
    return chosen


@dataclass
class PositionsProbe:
    """A secondary index, and the part of a predicate whose rows it lists.

    entries       the maximum number of matching entries
    """

    index: IndexState
    names: list[str]
    fit: IndexMatch
    reader: SecondaryReader
    ranges: KeyRanges
    entries: int
    step: str = "positions"
    note: str = ""
    is_expensive: bool = False

    @property
    def label(self) -> str:
        return f"secondary({', '.join(self.names)})"

    @property
    def fitness(self) -> str:
        """The reason of its rank."""
        used, total = len(self.fit.key_parts), len(self.names)
        if self.fit.is_whole:
            return "its key is what is tested"
        return f"{used} of the {total} columns of its key" if used < total else "its whole key is tested"

    @property
    def parts(self) -> Collection[Node]:
        return (self.fit.part,)

    def run(self, files: ProbedFiles) -> ProbeResult:
        ids, covered = files.ids, files.covered_by(self.index)
        covered = without_lost(covered, ids, self.index.runs, files.damaged, files.segments_of)
        found = self.reader.found(self.ranges)
        hits = self.reader.hits_of(found)
        row_count = int(hits.counts.sum(dtype=np.int64))
        rows: dict[Node, PartRows] = {}
        stored: tuple[StoredRows, ...] = ()
        if row_count > ROWS_MAX:
            self.note += f"; more than {ROWS_MAX:,} rows: counted, not listed"
        else:
            if not self.reader.layout.is_plain and not self.fit.is_complement:
                stored = (StoredRows(self.index, self.fit.part, self.names, self.reader.code, found),)
            listed = partial(self.reader.listed, hits)
            rows[self.fit.part] = PartRows(listed, self.fit.is_complement, self.fit.is_exact, covered, row_count)
        counts = _sums(ids, hits.file_ids, hits.counts)
        outcomes = np.full(len(ids), ANY, dtype=np.uint8)
        if not self.fit.is_complement:
            impossible = covered & (counts == 0)
        elif self.reader.has_elements:  # a row with several elements is counted several times
            impossible = np.zeros(len(ids), dtype=bool)
        else:
            impossible = covered & _are_all(files.snapshot, ids, counts)
        outcomes[impossible] = ANY & ~TRUE
        return ProbeResult({self.fit.part: outcomes}, covered, rows=rows, stored=stored)


def _are_all(snapshot: Snapshot, ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return True (bool [files]) for files whose exact row count is in `counts`."""
    rows = snapshot.rows(ids[counts > 0], ["row_count", "rows_exact"])
    place = np.searchsorted(ids, to_numpy(rows.column("file_id")))
    result = np.zeros(len(ids), dtype=bool)
    result[place] = to_numpy(rows.column("rows_exact")) & (to_numpy(rows.column("row_count")) == counts[place])
    return result


def _sums(ids: np.ndarray, of: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the sums of `counts` per file in `ids` (int64 [files]); `of` is the file of each count."""
    if not len(ids):
        return np.zeros(0, dtype=np.int64)
    nearest = np.minimum(np.searchsorted(ids, of), len(ids) - 1)
    is_listed = ids[nearest] == of
    return np.bincount(nearest[is_listed], weights=counts[is_listed], minlength=len(ids)).astype(np.int64)


KIND = SecondaryKind()
