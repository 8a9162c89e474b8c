"""Hierarchical filters: which files, and which of their row groups, may contain a value. See `format.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ....base import canon
from ...predicates import Node, Term, probe_values, terms_of
from ...state import IndexState, Instant, Run
from ...state.runs import RunReaders
from ...state.snapshot import Snapshot
from ..columns import checked_options, column_ids, indexed_type
from ..derived import source_of
from ..kind import BuildContext, BuildResult, IndexKind, Probe

if TYPE_CHECKING:
    from ...handle import Handle
    from ..kind import CommitContext, MergeContext, PartSpec


class BloomKind(IndexKind):
    """The kind of filters. `is_current` is always true, because each filter has the name of its hash."""

    name = "bloom"
    joins_runs = True
    stores_values = False
    is_coarse = True

    def define(
        self, instant: Instant, columns: Sequence[str], maintain: str, options: dict[str, Any]
    ) -> list[IndexState]:
        from .task_filters import FPP_DEFAULT, checked_fpp

        checked_options(self.name, options, ["fpp"])
        stored = {"fpp": checked_fpp(options.get("fpp", FPP_DEFAULT))}
        ids = column_ids(instant, columns, lambda kind: canon.hash_name(kind) is not None)
        return [IndexState(0, self.name, (number,), stored, maintain) for number, _ in ids]

    def build(self, handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> BuildResult:
        from .build import built_filters

        return built_filters(handle, index, files, job)

    def part_spec(self, instant: Instant, index: IndexState) -> PartSpec:
        from .build import FilterPartSpec

        column = instant.path_of(index.columns[0])
        kind = indexed_type(instant, column)
        return FilterPartSpec(column, kind, index.options["fpp"], source_of(instant, index, column))

    def commit(self, index: IndexState, work: CommitContext) -> IndexState:
        from .merge import committed_filters

        return committed_filters(index, work)

    def merge(self, index: IndexState, work: MergeContext) -> IndexState:
        """Return the index with fewer runs, without removed files."""
        from .merge import merged_all

        merges = count()
        path_of = lambda: work.writing.path(f"i{index.id}c{next(merges)}")  # noqa: E731
        runs = merged_all(work.writing.storage, index.runs, path_of, work.snapshot.numbers())
        return index if runs == index.runs else replace(index, runs=runs)

    def referenced_files(self, readers: RunReaders, run: Run) -> set[str]:
        from .format import KEYS, KIND_FILE

        named = readers.reader(run).scan_table(prefix=KEYS.prefix(kind=KIND_FILE), columns=["fine_path"])
        return set(named.column("fine_path").unique().to_pylist()) - {None}

    def advised_options(self, row_groups: float) -> dict[str, Any]:
        """The largest power of ten, at most the default, at which a look-up reads at most one row group of a table
        unnecessarily."""
        from .task_filters import FPP_DEFAULT, FPP_MIN

        return {"fpp": max(FPP_MIN, min(FPP_DEFAULT, float(f"1e-{math.ceil(math.log10(max(1.0, row_groups)))}")))}

    def read_coarse(self, snapshot: Snapshot, run: Run, bytes_max: int) -> int:
        from .coarse_groups import section_name
        from .format import KEYS, KIND_FILE, PLACE_SCHEMA, FilterRun, Members

        opened, bytes_left = FilterRun(snapshot.readers, run), bytes_max
        opened.reader.by_id(KEYS.prefix(kind=KIND_FILE)).scan(PLACE_SCHEMA.names)
        Members.of(opened.reader)
        for group, section in enumerate(opened.coarse.sections(opened.reader)):
            if section.length_bytes <= bytes_left:
                bytes_left -= section.length_bytes
                opened.reader.read_rows([(section_name(group), np.arange(section.rows))])[0]
        return bytes_max - bytes_left

    def probes(
        self, snapshot: Snapshot, bound: Node, indexes: Sequence[IndexState], damaged: Sequence[str]
    ) -> Sequence[Probe]:
        probes = []
        terms = terms_of(bound)
        for index in indexes:
            column = snapshot.instant.path_of(index.columns[0])
            values: dict[Term, pa.Array] = {}
            for term in terms:
                if isinstance(term, Term) and term.column == column and (wanted := probe_values(term)) is not None:
                    values[term] = wanted
            if values:
                from .probe import FilterProbe

                note = f"bloom({column}) has an fpp of {index.options['fpp']:g}"
                probes.append(FilterProbe(index, column, values, note=note))
        return probes


KIND = BloomKind()
