"""What is kept or skipped as one: a file of its own, or a file group whose files are read together.

Where logs lie over a base, evidence about one file says nothing of the merged rows, so the group is the unit and its
evidence the union over its live files. Delete and rollback blocks carry no rows: they never keep a group, and make it
inexact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, joined, text, to_numpy
from ...arrays import number as number_scalar
from ..indexes import stats
from ..ingest.task_result import BASE, LOG
from ..predicates.evidence import Evidence


@dataclass
class Units:
    """How the files of a table (in its order) form units.

    files       as `Snapshot.files`
    unit_of     int64 [files]
    count       units
    has_rows    bool [files]: False for files that carry no rows
    partial     bool [files]: logs that lack columns: what they insert is null there
    opaque      bool [units]: merged by computing, so evidence about files says nothing
    exact       bool [units]: one plain base file whose rows are counted and to which no deletes apply
    readable    bool [units]: we may read its rows ourselves
    """

    files: pa.Table
    unit_of: np.ndarray
    count: int
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

    def any_file(self, flags: np.ndarray) -> np.ndarray:
        """bool [..., units] from bool [..., files]: true where it is for a file with rows, or in an opaque unit."""
        if self.is_plain:
            return (flags & self.has_rows) | self.opaque
        found = np.zeros((*flags.shape[:-1], self.count), dtype=bool)
        for at in np.ndindex(flags.shape[:-1]):
            np.logical_or.at(found[at], self.unit_of, flags[at] & self.has_rows)
        return found | self.opaque

    def every_file(self, flags: np.ndarray) -> np.ndarray:
        """bool [units] from bool [files]: true where it is for every file with rows."""
        bad = np.zeros(self.count, dtype=bool)
        np.logical_or.at(bad, self.unit_of, ~flags & self.has_rows)
        return ~bad

    def selected(self, kept: np.ndarray) -> Units:
        """The units that are kept (bool [units]), with their files."""
        files = kept[self.unit_of]
        number = np.cumsum(kept) - 1
        return Units(
            files=self.files.filter(from_numpy(files)),
            unit_of=number[self.unit_of[files]],
            count=int(kept.sum()),
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
    return Units(files, np.arange(count), count, every, none, none, counted, every)


def filled_units(files: pa.Table) -> Units:
    """The units of files, less those that have no rows at all, known exactly."""
    units = units_of(files)
    rows = to_numpy(units.files.column("row_count"))
    filled = np.zeros(units.count, dtype=bool)
    np.logical_or.at(filled, units.unit_of, rows > 0)
    return units.selected(filled | ~units.exact)


def units_of(files: pa.Table) -> Units:
    """The units that the live files of a snapshot form."""
    count = files.num_rows
    grouped = files.column("file_group").null_count < count
    kinds = files.column("kind")
    is_base = to_numpy(pc.equal(kinds, text(BASE)))
    is_log = to_numpy(pc.equal(kinds, text(LOG)))
    untouched = to_numpy(files.column("deletes").is_null())
    counted = to_numpy(files.column("rows_exact"))
    merge = files.column("merge")
    whole = to_numpy(pc.equal(merge, text("whole")))
    custom = to_numpy(pc.equal(merge, text("custom")))
    if grouped:
        unit_of, units = _group_numbers(files)
    else:
        unit_of, units = np.arange(count), count
    plain = np.bincount(unit_of, weights=is_base, minlength=units) == np.bincount(unit_of, minlength=units)
    alone = np.bincount(unit_of, minlength=units) == 1

    def everywhere(flags: np.ndarray) -> np.ndarray:
        bad = np.zeros(units, dtype=bool)
        np.logical_or.at(bad, unit_of, ~flags)
        return ~bad

    opaque = np.zeros(units, dtype=bool)
    np.logical_or.at(opaque, unit_of, custom)
    return Units(
        files=files,
        unit_of=unit_of,
        count=units,
        has_rows=is_base | is_log,
        partial=is_log & ~whole,
        opaque=opaque,
        exact=plain & alone & everywhere(untouched & counted),
        readable=plain & alone & everywhere(untouched),
    )


def _group_numbers(files: pa.Table) -> tuple[np.ndarray, int]:
    """Units numbered in the order of their first file: a file group of a partition, or a file without a group."""
    group = joined(files.column("file_group"))
    names = pc.dictionary_encode(group, null_encoding="mask")
    number = to_numpy(names.indices.cast(pa.int64()).fill_null(number_scalar(-1)))
    own = np.arange(files.num_rows)
    partition = to_numpy(files.column("partition_id")).astype(np.int64)
    ids = np.where(number >= 0, partition * (len(names.dictionary) + 1) + number, -1 - own)
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse], len(first)
