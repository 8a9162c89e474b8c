"""Probe the coarse filters: which files may contain the values that a predicate looks up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...predicates import Node, Term, member_outcomes
from ...state import IndexState, Run
from ...state.runs import reading_run
from ...storage.threads import side_by_side
from ..kind import ProbedFiles
from ..probe_results import ProbeResult
from .coarse_groups import HashesUnder
from .file_filter import hash_probes
from .format import FilterAddresses, FilterRun


@dataclass
class FilterProbe:
    """A filter index, and the terms that it can decide, each with the values to look up."""

    index: IndexState
    column: str
    values: dict[Term, pa.Array]
    step: str = "filter"
    note: str = ""
    is_expensive: bool = False

    @property
    def parts(self) -> Collection[Node]:
        return self.values

    @property
    def label(self) -> str:
        return f"bloom({self.column})"

    def run(self, files: ProbedFiles) -> ProbeResult:
        may, places = probe_filters(self.index, self.values, files)
        outcomes: dict[Node, np.ndarray] = {term: member_outcomes(term, hits) for term, hits in may.items()}
        return ProbeResult(outcomes, places.run_of >= 0, fine={self.column: places})


def probe_filters(
    index: IndexState, values_of: Mapping[Term, pa.Array], files: ProbedFiles
) -> tuple[dict[Term, np.ndarray], FilterAddresses]:
    """Return bool [1, file] per term, False if the file cannot contain its values, and the locations of the fine
    filters. Raise DamagedRun."""
    ids, covered, readers = files.ids, files.covered_by(index), files.snapshot.readers
    may_contain = {term: np.ones((1, len(ids)), dtype=bool) for term in values_of}
    places = FilterAddresses.nowhere(ids)
    hashes_under = [_hashes_of(values) for values in values_of.values()]
    readers.begin_query()

    def probed(run: Run) -> tuple[FilterRun, np.ndarray, list[np.ndarray]]:
        with reading_run(run):
            opened = FilterRun(readers, run)
            own_files = np.flatnonzero(opened.coarse.files.contains(ids) & covered)
            return opened, own_files, opened.may_contain(hashes_under, ids[own_files]) if len(own_files) else []

    runs = [run for run in index.runs if run.path not in files.damaged]
    for opened, own_files, may_contain_one in side_by_side(readers.storage, probed, runs, "skipstone-filters"):
        if len(own_files):
            for flags, hits in zip(may_contain.values(), may_contain_one, strict=True):
                flags[0, own_files] &= hits
            places.add(opened, own_files)
    return may_contain, places


def _hashes_of(values: pa.Array) -> HashesUnder:
    """Return a function that returns the hashes of the values by a filter's hash name, each computed once."""
    by_name: dict[str, np.ndarray | None] = {}

    def hashes_under(name: str) -> np.ndarray | None:
        if name not in by_name:
            probes = hash_probes(values, name)
            by_name[name] = None if probes is None else probes.any_of()
        return by_name[name]

    return hashes_under
