"""What the predicate is evaluated over: a file of its own, or the files of a slice that are read together.

Where logs lie over a base, evidence about one file says nothing of the merged rows, so the slice is the unit and its
evidence the union over its live files. Logs of whole rows are the exception: whichever of its versions wins, a merged
row is one row of one file, so each file is a unit, and the slice is kept where one of them is. That holds in whatever
order the versions win; which row groups of a file may be left out does not, so those are all read.

Delete and rollback blocks carry no rows: they never keep a slice. A delete block makes it inexact, and readable by
its own format alone; a rollback block undoes blocks, and over a base without any it changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, text, to_numpy
from ..indexes.stats import format as stats
from ..predicates import ANY
from ..predicates.evidence import Evidence
from ..state.manifest import BASE, DELETE, LOG
from ..state.slices import any_of, slices_of


@dataclass
class Units:
    """How files that are read (in their order) form units.

    files       as `Snapshot.files`
    unit_of     int64 [files]
    count       units
    slice_of    int64 [units]: units of one slice share a number, and are kept together; None where each is a slice
    has_rows    bool [files]: False for files that carry no rows
    partial     bool [files]: logs that lack columns: what they insert is null there
    opaque      bool [units]: merged by computing, so evidence about files says nothing
    exact       bool [units]: one base whose rows are counted and to which no logs and no deletes apply
    readable    bool [units]: we may read its rows ourselves
    """

    files: pa.Table
    unit_of: np.ndarray
    count: int
    slice_of: np.ndarray | None
    has_rows: np.ndarray
    partial: np.ndarray
    opaque: np.ndarray
    exact: np.ndarray
    readable: np.ndarray

    @property
    def is_plain(self) -> bool:
        """True where every file is a unit of its own, in the order of files."""
        return self.count == len(self.unit_of)

    def of_units(self, evidence: Evidence) -> Evidence:
        """Evidence about files, brought together for units."""
        if self.partial.any():
            evidence = replace(evidence, may_be_null=evidence.may_be_null | self.partial)
        if not self.is_plain or not self.has_rows.all():
            where = np.where(self.has_rows, self.unit_of, -1)
            evidence = stats.union_by_slice(evidence, where, self.count)
        if self.opaque.any():
            wide = Evidence.unknown(evidence.type, self.count)
            evidence = replace(
                evidence,
                may_be_null=evidence.may_be_null | self.opaque,
                may_be_nan=evidence.may_be_nan | (self.opaque & wide.may_be_nan),
                may_be_value=evidence.may_be_value | self.opaque,
                has_lower=evidence.has_lower & ~self.opaque,
                has_upper=evidence.has_upper & ~self.opaque,
            )
        return evidence

    @property
    def is_alone(self) -> np.ndarray:
        """bool [files]: bases that are all of their slice. Deletes may apply to their rows, but nothing else."""
        slice_of = self.unit_of if self.slice_of is None else self.slice_of[self.unit_of]
        is_base = to_numpy(pc.equal(self.files.column("kind"), text(BASE)))
        return self.has_rows & is_base & ~self.opaque[self.unit_of] & (np.bincount(slice_of)[slice_of] == 1)

    def any_outcome(self, sets: np.ndarray) -> np.ndarray:
        """uint8 [units]: the outcomes that are possible in some file with rows; any where logs may insert or compute
        values that no file holds."""
        if self.is_plain:
            found = np.where(self.has_rows & ~self.partial, sets, np.uint8(ANY))
        else:
            found = np.zeros(self.count, dtype=np.uint8)
            np.bitwise_or.at(found, self.unit_of, np.where(self.has_rows, sets, np.uint8(0)))
            found[np.unique(self.unit_of[self.partial])] = ANY
        found[self.opaque] = ANY
        return found

    def every_file(self, flags: np.ndarray) -> np.ndarray:
        """bool [units] from bool [files]: true where it is for every file with rows."""
        bad = np.zeros(self.count, dtype=bool)
        np.logical_or.at(bad, self.unit_of, ~flags & self.has_rows)
        return ~bad

    def together(self, kept: np.ndarray) -> np.ndarray:
        """bool [units]: the units that are kept, and all that share a slice with one."""
        if self.slice_of is None:
            return kept
        return any_of(self.slice_of, kept, int(self.slice_of.max(initial=-1)) + 1)[self.slice_of]

    def selected(self, kept: np.ndarray) -> Units:
        """The units that are kept (bool [units]), with their files."""
        files = kept[self.unit_of]
        number = np.cumsum(kept) - 1
        return Units(
            files=self.files.filter(from_numpy(files)),
            unit_of=number[self.unit_of[files]],
            count=int(kept.sum()),
            slice_of=None if self.slice_of is None else self.slice_of[kept],
            has_rows=self.has_rows[files],
            partial=self.partial[files],
            opaque=self.opaque[kept],
            exact=self.exact[kept],
            readable=self.readable[kept],
        )


def plain_units(files: pa.Table) -> Units:
    """The units of files that are each a base of its own, to which nothing else applies."""
    count = files.num_rows
    every, none = np.ones(count, dtype=bool), np.zeros(count, dtype=bool)
    counted = to_numpy(files.column("rows_exact"))
    return Units(files, np.arange(count), count, None, every, none, none, counted, every)


def units_of(files: pa.Table, states: Mapping[str, str], mode: str) -> Units:
    """The units that a snapshot's files form, less slices that hold no row, known exactly.

    Args:
        files: as `Snapshot.files`, of whole partitions.
        states: what is known of the commits that wrote them, as `Instant.commit_states`.
        mode: "snapshot", or "read_optimized": bases alone.
    """
    slices = slices_of(files, states)
    live = slices.live(mode)
    custom = to_numpy(pc.equal(files.column("merge"), text("custom")))
    # A base may say how its group merges, whichever slice it lies in.
    is_custom = any_of(slices.group_of, custom & (slices.is_base | live), slices.groups)
    rows, counted = to_numpy(files.column("row_count")), to_numpy(files.column("rows_exact"))
    is_log = to_numpy(pc.equal(files.column("kind"), text(LOG)))
    has_rows = live & (is_log | (slices.is_base & ((rows > 0) | ~counted)))
    live &= any_of(slices.group_of, has_rows, slices.groups)[slices.group_of]
    if not live.all():
        files = files.filter(from_numpy(live))
    return _units(files, slices.group_of[live], slices.groups, has_rows[live], is_custom)


def _units(files: pa.Table, group_of: np.ndarray, groups: int, has_rows: np.ndarray, is_custom: np.ndarray) -> Units:
    """The units of live files whose groups all hold one with rows. `is_custom`: bool [groups]."""
    kinds, merge = files.column("kind"), files.column("merge")
    is_log = to_numpy(pc.equal(kinds, text(LOG)))
    is_delete = to_numpy(pc.equal(kinds, text(DELETE)))
    partial = is_log & ~to_numpy(pc.equal(merge, text("whole")))
    untouched = to_numpy(files.column("deletes").is_null())
    counted = to_numpy(files.column("rows_exact"))
    own = np.arange(files.num_rows)
    opaque = is_custom & any_of(group_of, is_log, groups)
    by_file = ~opaque & ~any_of(group_of, partial, groups)
    first = np.zeros(groups, dtype=np.int64)
    first[group_of[has_rows][::-1]] = own[has_rows][::-1]
    lead = np.where(by_file[group_of] & has_rows, own, first[group_of])
    leads, unit_of = (own, own) if (lead == own).all() else np.unique(lead, return_inverse=True)
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
        opaque=opaque[slice_of],
        exact=~(unreadable | any_of(group_of, has_rows & ~counted, groups))[slice_of],
        readable=~unreadable[slice_of],
    )
