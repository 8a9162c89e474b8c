"""The units that remain during pruning, and what is known of them.

The predicate is evaluated over units. A unit is a file, or the files of a slice that are read together. If logs apply
to a base, statistics of one file prove nothing about the merged rows, so the slice is the unit, and its bounds are the
union over its live files. Logs of whole rows are the exception: a merged row is one row of one file, whichever version
wins. There each file is a unit, and the slice is kept if one of them is. All row groups of such files are read.

Delete and rollback blocks have no rows, so they never keep a slice. A slice with a delete block is not exact, and only
its own format's reader can read it. A rollback block undoes other blocks. It changes nothing in a slice without any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import from_numpy, string_scalar, to_numpy
from ...base.caching import cached_property
from ...errors import InvalidArgumentError, NotATableError, NotReadableError, StorageError
from ..indexes.columns import union_by_slice
from ..indexes.probe_results import FileRows, Outcomes, PartRows, ProbeResult, RowsByPart, add_rows, rows_matching
from ..predicates import ANY, Node, Term, can_match, only_true, term_outcomes, terms_of
from ..predicates.possible_values import Evidence
from ..state.manifest import BASE, DELETE, LOG, ROLLBACK, any_of, slices_of

if TYPE_CHECKING:
    from ..indexes.bloom.format import FilterAddresses
    from ..indexes.probe_results import Positions
    from ..indexes.secondary.included import StoredRows

_POSITIONS_MIN = 1 << 16  # so many rows are always read by their positions
_POSITIONS_SHARE = 32  # if one index names more than one row of so many, rows are read without positions


TASK_FIELDS = ["path", "size_bytes", "modified_ns", "etag", "row_count", "schema_id"]  # of the manifest, for tasks


@dataclass
class PruningState:
    """The units of a table that may have a match. Files are numbers until few remain: before their rows of the manifest
    are read, each file is a unit (this is so only if the table has no slices).

    bound       the predicate
    ids         uint64 [files], ascending
    outcomes    of the predicate's parts, in each unit
    named       the units with their files' rows of the manifest; None before those are read
    fine        column -> where the fine filter of each file is
    rows        the rows of each file in which parts of the predicate are TRUE, if an index knows them
    stored      rows with their values, of indexes with included columns
    predicate_outcomes    uint8 [units]: the cached outcomes of the predicate; None if they are out of date
    """

    bound: Node
    ids: np.ndarray
    outcomes: Outcomes
    named: Units | None = None
    fine: dict[str, FilterAddresses] = field(default_factory=dict)
    rows: RowsByPart = field(default_factory=dict)
    predicate_outcomes: np.ndarray | None = None
    stored: tuple[StoredRows, ...] = ()

    @classmethod
    def all_of(cls, bound: Node, ids: np.ndarray, named: Units | None = None) -> PruningState:
        """Files, or the units that they form, of which nothing is known yet."""
        count = len(ids) if named is None else named.count
        return cls(bound, ids, Outcomes.unknown(terms_of(bound), count), named)

    @classmethod
    def with_rows(cls, bound: Node, named: Units, positions: Positions, covered: np.ndarray) -> PruningState:
        """Units of whose covered files (bool [files]) exactly the rows at some positions match."""
        rows: RowsByPart = {bound: PartRows(lambda: positions, False, True, covered)}
        predicate_outcomes = np.full(named.count, ANY, dtype=np.uint8)  # of whole units they are not known
        ids, outcomes = to_numpy(named.files.column("file_id")), Outcomes.unknown(terms_of(bound), named.count)
        return cls(bound, ids, outcomes, named, rows=rows, predicate_outcomes=predicate_outcomes)

    @property
    def units(self) -> Units:
        """The units with their files, once these are named."""
        assert self.named is not None
        return self.named

    @property
    def count(self) -> int:
        """How many units."""
        return len(self.ids) if self.named is None else self.named.count

    @property
    def only_true(self) -> np.ndarray:
        """bool [units]: every row of the unit matches."""
        assert self.predicate_outcomes is not None
        return only_true(self.predicate_outcomes)

    @cached_property
    def rows_matching(self) -> FileRows | None:
        """The rows of each file in which the predicate may be TRUE; None if no index knows any."""
        return rows_matching(self.bound, self.rows, self.ids)

    @cached_property
    def rows_to_read(self) -> FileRows | None:
        """`rows_matching`, if rows should be read by their positions. If one index alone names many of the rows, these
        are in nearly every row group, and a plain read with the predicate takes less time: 3 million rows in 60 files,
        of which 10% match, took 166 ms of processor time by positions, 124 by DuckDB alone."""
        if len(self.rows) == 1:
            (one,) = self.rows.values()
            row_count = int(to_numpy(self.units.files.column("row_count")).sum())
            if not one.is_complement and one.count > max(_POSITIONS_MIN, row_count // _POSITIONS_SHARE):
                return None
        return self.rows_matching

    @property
    def has_all_rows(self) -> bool:
        """An index has named the very rows that match, in every file, and they are read by their positions."""
        rows = self.rows_to_read
        return rows is not None and bool((rows.is_exact & ~rows.is_complement & self.units.is_single_file_slice).all())

    def decided_terms(self) -> set[Term]:
        """The terms for which, or for a conjunction with which, the rows of every file are known in which they are
        TRUE."""
        exact = [part for part, rows in self.rows.items() if rows.is_exact and rows.covered.all()]
        return {term for part in exact for term in terms_of(part)}

    def narrow(self, result: ProbeResult) -> None:
        """Takes over what a probe said of the files. `filtered` then leaves out what cannot match."""
        if not result.outcomes:
            return
        units, rows = self.named, result.rows
        for part, sets in result.outcomes.items():
            self.outcomes.narrow(part, sets if units is None else units.combined(part, sets))
        if units is not None and rows:
            alone = units.is_single_file_slice
            rows = {part: one.covering(one.covered & alone) for part, one in rows.items()}
        add_rows(self.rows, rows)
        self.fine |= result.fine
        self.stored += result.stored
        self.predicate_outcomes = None

    def filtered(self) -> PruningState:
        """Those in which the predicate may be TRUE."""
        if self.predicate_outcomes is None:
            self.predicate_outcomes = self.outcomes.of_predicate(self.bound, self.count)
        survives = can_match(self.predicate_outcomes)
        if self.named is not None:
            survives = self.named.whole_slices(survives)
        return self if survives.all() else self.selected(survives)

    def selected(self, survives: np.ndarray) -> PruningState:
        """Some of the units (bool [units])."""
        units = np.flatnonzero(survives)  # few of many, mostly: their places are cheaper than a mask for each array
        files = units if self.named is None else np.flatnonzero(survives[self.named.unit_of])
        return PruningState(
            self.bound,
            self.ids[files],
            self.outcomes.selected(units),
            None if self.named is None else self.named.selected(survives),
            {column: places.selected(files) for column, places in self.fine.items()},
            {part: rows.selected(files) for part, rows in self.rows.items()},
            None if self.predicate_outcomes is None else self.predicate_outcomes[units],
            self.stored,
        )

    def with_files(self, ids: np.ndarray) -> PruningState:
        """The units that some files (uint64 ids) are in, and all that share a slice with one."""
        units = self.units
        survives = np.zeros(units.count, dtype=bool)
        survives[units.unit_of[np.isin(self.ids, ids)]] = True
        return self.selected(units.whole_slices(survives))

    @classmethod
    def concat(cls, parts: Sequence[PruningState]) -> PruningState:
        """Filtered parts without names, filters and rows, one after the other."""
        return cls(
            parts[0].bound,
            np.concatenate([part.ids for part in parts]),
            Outcomes.concat([part.outcomes for part in parts]),
            predicate_outcomes=np.concatenate(
                [part.predicate_outcomes for part in parts if part.predicate_outcomes is not None]
            ),
        )


@dataclass
class Units:
    """How files that are read (in their order) form units.

    files       as `Snapshot.files`
    unit_of     int64 [files]
    count       units
    slice_of    int64 [units]: units of one slice share a number, and are kept together; None if each is a slice
    has_rows    bool [files]: False for files that carry no rows
    partial     bool [files]: logs that lack columns: what they insert is null there
    has_custom_merge      bool [units]: merged by computing, so evidence about files proves nothing
    exact       bool [units]: one base whose rows are counted and to which no logs and no deletes apply
    readable    bool [units]: we may read its rows ourselves
    """

    files: pa.Table
    unit_of: np.ndarray
    count: int
    slice_of: np.ndarray | None
    has_rows: np.ndarray
    partial: np.ndarray
    has_custom_merge: np.ndarray
    exact: np.ndarray
    readable: np.ndarray

    @property
    def is_plain(self) -> bool:
        """True if every file is its own unit, in the order of files."""
        return self.count == len(self.unit_of)

    @property
    def row_counts(self) -> np.ndarray:
        """int64 [units]: the rows that its files contain together."""
        counts = to_numpy(self.files.column("row_count"))
        return np.bincount(self.unit_of, weights=counts, minlength=self.count).astype(np.int64)

    def of_units(self, evidence: Evidence) -> Evidence:
        """Evidence about files, brought together for units."""
        if self.partial.any():
            evidence = replace(evidence, may_be_null=evidence.may_be_null | self.partial)
        if not self.is_plain or not self.has_rows.all():
            where = np.where(self.has_rows, self.unit_of, -1)
            evidence = union_by_slice(evidence, where, self.count)
        if self.has_custom_merge.any():
            wide = Evidence.unknown(evidence.type, self.count)
            evidence = replace(
                evidence,
                may_be_null=evidence.may_be_null | self.has_custom_merge,
                may_be_nan=evidence.may_be_nan | (self.has_custom_merge & wide.may_be_nan),
                may_be_value=evidence.may_be_value | self.has_custom_merge,
                has_lower=evidence.has_lower & ~self.has_custom_merge,
                has_upper=evidence.has_upper & ~self.has_custom_merge,
            )
        return evidence

    @property
    def is_single_file_slice(self) -> np.ndarray:
        """bool [files]: bases that are all of their slice. Deletes may apply to their rows, but nothing else. A
        slice may also have rollback blocks, which undo nothing."""
        slice_of = self.unit_of if self.slice_of is None else self.slice_of[self.unit_of]
        kinds = self.files.column("kind")
        is_base = to_numpy(pc.equal(kinds, string_scalar(BASE)))
        parts = np.bincount(slice_of, weights=to_numpy(pc.not_equal(kinds, string_scalar(ROLLBACK))))
        return self.has_rows & is_base & ~self.has_custom_merge[self.unit_of] & (parts[slice_of] == 1)

    def combined(self, part: Node, sets: np.ndarray) -> np.ndarray:
        """uint8 [units]: what a part of the predicate may come out as in each unit, from its outcomes in each file."""
        sets = np.where(sets == 0, np.uint8(ANY), sets)  # of one file a contradiction; of several it must not vanish
        is_partial = self.partial if self.is_plain else any_of(self.unit_of, self.partial, self.count)
        if self.is_plain:
            outcomes = np.where(self.has_rows, sets, np.uint8(ANY))
        else:
            outcomes = np.zeros(self.count, dtype=np.uint8)
            np.bitwise_or.at(outcomes, self.unit_of, np.where(self.has_rows, sets, np.uint8(0)))
        if isinstance(part, Term):  # a merged row has the column's value in one of the files, or null
            if is_partial.any():
                outcomes[is_partial] |= _outcome_of_null(part)
        else:  # its columns may be of different files
            several = np.bincount(self.unit_of[self.has_rows], minlength=self.count) > 1
            outcomes[several | is_partial] = ANY
        outcomes[self.has_custom_merge] = ANY
        return outcomes

    def every_file(self, flags: np.ndarray) -> np.ndarray:
        """bool [units] from bool [files]: true if it is for every file with rows."""
        bad = np.zeros(self.count, dtype=bool)
        np.logical_or.at(bad, self.unit_of, ~flags & self.has_rows)
        return ~bad

    def whole_slices(self, survives: np.ndarray) -> np.ndarray:
        """bool [units]: the units that are kept, and all that share a slice with one."""
        if self.slice_of is None:
            return survives
        return any_of(self.slice_of, survives, int(self.slice_of.max(initial=-1)) + 1)[self.slice_of]

    def selected(self, survives: np.ndarray) -> Units:
        """The units that are kept (bool [units]), with their files."""
        files = survives[self.unit_of]
        number = np.cumsum(survives) - 1
        return Units(
            files=self.files.filter(from_numpy(files)),
            unit_of=number[self.unit_of[files]],
            count=int(survives.sum()),
            slice_of=None if self.slice_of is None else self.slice_of[survives],
            has_rows=self.has_rows[files],
            partial=self.partial[files],
            has_custom_merge=self.has_custom_merge[survives],
            exact=self.exact[survives],
            readable=self.readable[survives],
        )


def _outcome_of_null(term: Term) -> np.uint8:
    """Return the outcome of a term if its column is null."""
    null = Evidence.unknown(term.type, 1)
    null = replace(null, may_be_value=np.zeros(1, dtype=bool), may_be_nan=np.zeros(1, dtype=bool))
    return np.uint8(term_outcomes(term, {term.column: null}, 1)[0])


def plain_units(files: pa.Table) -> Units:
    """The units of files that are each a separate base, to which nothing else applies."""
    count = files.num_rows
    every, none = np.ones(count, dtype=bool), np.zeros(count, dtype=bool)
    counted = to_numpy(files.column("rows_exact"))
    return Units(files, np.arange(count), count, None, every, none, none, counted, every)


def units_of(files: pa.Table, states: Mapping[str, str], mode: str) -> Units:
    """The units that a snapshot's files form, except slices that provably contain no row.

    Args:
        files: as `Snapshot.files`, of whole partitions.
        states: what is known of the commits that wrote them, as `Instant.commit_states`.
        mode: "snapshot", or "read_optimized": bases alone.
    """
    slices = slices_of(files, states)
    live = slices.live(mode)
    custom = to_numpy(pc.equal(files.column("merge"), string_scalar("custom")))
    # A base may state how its group merges, whichever slice it belongs to.
    is_custom = any_of(slices.group_of, custom & (slices.is_base | live), slices.groups)
    rows, counted = to_numpy(files.column("row_count")), to_numpy(files.column("rows_exact"))
    is_log = to_numpy(pc.equal(files.column("kind"), string_scalar(LOG)))
    has_rows = live & (is_log | (slices.is_base & ((rows > 0) | ~counted)))
    live &= any_of(slices.group_of, has_rows, slices.groups)[slices.group_of]
    if not live.all():
        files = files.filter(from_numpy(live))
    return _units(files, slices.group_of[live], slices.groups, has_rows[live], is_custom)


def _units(files: pa.Table, group_of: np.ndarray, groups: int, has_rows: np.ndarray, is_custom: np.ndarray) -> Units:
    """The units of live files whose groups all contain one with rows. `is_custom`: bool [groups]."""
    kinds, merge = files.column("kind"), files.column("merge")
    is_log = to_numpy(pc.equal(kinds, string_scalar(LOG)))
    is_delete = to_numpy(pc.equal(kinds, string_scalar(DELETE)))
    partial = is_log & ~to_numpy(pc.equal(merge, string_scalar("whole")))
    untouched = to_numpy(files.column("deletes").is_null())
    counted = to_numpy(files.column("rows_exact"))
    file_rows = np.arange(files.num_rows)
    has_custom_merge = is_custom & any_of(group_of, is_log, groups)
    by_file = ~has_custom_merge & ~any_of(group_of, partial, groups)
    first = np.zeros(groups, dtype=np.int64)
    first[group_of[has_rows][::-1]] = file_rows[has_rows][::-1]
    lead = np.where(by_file[group_of] & has_rows, file_rows, first[group_of])
    leads, unit_of = (file_rows, file_rows) if (lead == file_rows).all() else np.unique(lead, return_inverse=True)
    unreadable = any_of(group_of, is_log | is_delete | (has_rows & ~untouched), groups) | (
        np.bincount(group_of[has_rows], minlength=groups) > 1
    )
    slice_of = group_of[leads]
    is_whole = int(any_of(group_of, has_rows, groups).sum()) == len(leads)
    return Units(
        files=files,
        unit_of=unit_of,
        count=len(leads),
        slice_of=None if is_whole else slice_of,
        has_rows=has_rows,
        partial=partial,
        has_custom_merge=has_custom_merge[slice_of],
        exact=~(unreadable | any_of(group_of, has_rows & ~counted, groups))[slice_of],
        readable=~unreadable[slice_of],
    )


# The rows (int64, ascending, by position) that a log removes from files, by path, of the files that it knows.
DeletedRows = Callable[[list[str]], dict[str, np.ndarray]]


class Deletes:
    """The rows that the log of another format removes from files, read when a plan reads such a file.

    rows    path -> int64, ascending: the rows that are no more, by their position in the file
    """

    def __init__(self, read: DeletedRows | None):
        self.rows: dict[str, np.ndarray] = {}
        self._read = read
        self._why = ""

    def readable(self, units: Units, chosen: np.ndarray) -> np.ndarray:
        """bool [units]: of those chosen (bool [units]), the ones whose rows we may read ourselves: nothing applies to
        their files, or it only removes rows, and the log lists which."""
        pending = chosen & ~units.readable
        if self._read is None or not pending.any():
            return chosen & units.readable
        of_files = pending[units.unit_of] & to_numpy(units.files.column("deletes").is_valid())
        paths = units.files.filter(from_numpy(of_files)).column("path").to_pylist()
        try:
            self.rows.update(self._read([path for path in paths if path not in self.rows]))
        except (StorageError, NotATableError, InvalidArgumentError) as error:
            self._why = f" ({error})"
        is_listed = np.zeros(len(of_files), dtype=bool)
        is_listed[of_files] = [path in self.rows for path in paths]
        return chosen & ~any_of(units.unit_of, pending[units.unit_of] & ~is_listed, units.count)

    def check(self, units: Units, chosen: np.ndarray) -> None:
        """Raises NotReadableError, naming them, for files of the units chosen that we may not read ourselves."""
        self.refuse(units, chosen & ~self.readable(units, chosen))

    def refuse(self, units: Units, unreadable: np.ndarray) -> None:
        """Raises NotReadableError for the files of some units (bool [units]), if there are any."""
        if unreadable.any():
            paths = units.files.filter(from_numpy(unreadable[units.unit_of])).column("path").to_pylist()
            raise NotReadableError(
                f"{len(paths)} files belong to slices with logs or deletes that only their own format's reader can "
                f"apply, {paths[0]} among them; files() names all that are to be read{self._why}",
                paths=paths,
            )
