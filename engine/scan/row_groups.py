"""The executor's part of a scan: which row groups of some files may contain a matching row.

It reads only the files' own fine parts, at offsets that are in the tasks: ranges of statistics, and one small row per
value of each filter. All row groups are evaluated together, like files. A damaged part excludes nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import from_numpy, offsets_of, string_scalar, to_numpy
from ...errors import CorruptionError, SkipstoneError, StorageError
from ...hfile_like import read_block_range
from ..indexes.columns import EVIDENCE_FIELDS, StatRows, evidence_of, evidence_of_values
from ..indexes.probe_results import ColumnEvidence, Outcomes, term_sets
from ..indexes.task_result import FINE_SCHEMA, KEYS, ROW_GROUPS_COLUMN, entries_by_path, path_mark
from ..predicates import Term, can_match, columns_of, member_outcomes, only_true, probe_values, terms_of
from ..storage import Ranged, Storage
from ..storage.threads import side_by_side
from .file_tasks import FileTask, ReadContext, RowGroups, row_counts_in_groups

if TYPE_CHECKING:
    from ...bloom import Probes


def row_groups_of(
    tasks: Sequence[FileTask], context: ReadContext, storage: Storage, fine: FineRows | None = None
) -> list[RowGroups]:
    """Prunes the row groups of files by their fine statistics (`fine`, if they were read before) and filters, read
    from `storage`, the index's. One result a task, in order."""
    terms = terms_of(context.pruning)
    probed: list[_Probed] = []

    def read() -> FineRows:
        return fine or read_fine_rows(tasks, storage, context.strict)

    def probe() -> None:
        probed.extend(_probed(tasks, terms, storage))

    fine, _ = side_by_side(storage, lambda work: work(), [read, probe], "skipstone-fine")
    assert fine is not None
    count = len(fine.task)
    outcomes = Outcomes.unknown(terms, count)
    for found in (_by_statistics(tasks, terms, context, fine), _by_filters(probed, fine, context.strict)):
        for term, sets in found.items():
            outcomes.narrow(term, sets)
    predicate_outcomes = outcomes.of_predicate(context.pruning, count)
    may_prune = np.array([task.may_prune for task in tasks], dtype=bool)[fine.task]
    survives = (can_match(predicate_outcomes) & (fine.row_count > 0)) | ~may_prune
    every = only_true(predicate_outcomes) & may_prune
    bounds = np.searchsorted(fine.task, np.arange(len(tasks) + 1))
    units = [slice(start, end) for start, end in pairwise(bounds)]
    for task, own in zip(tasks, units, strict=True):
        if task.rows is not None and task.may_prune and own.stop > own.start:
            wanted_counts = row_counts_in_groups(task, fine.row_count[own])
            survives[own] &= wanted_counts > 0
            every[own] &= wanted_counts == fine.row_count[own]  # a look-up's predicate does not contain its keys
    return [
        _of_task(fine, survives, every, units[i]) if fine.is_listed[i] else RowGroups.all_of(task)
        for i, task in enumerate(tasks)
    ]


@dataclass
class KeptRowGroups:
    """The row groups of some files that may match, with their statistics.

    groups     of each task, as `row_groups_of` returns them
    places     of each task: int64, the positions in `fine` of its kept row groups; None if its row groups are not known
    certain    bool [row groups in `fine`]: kept, counted exactly, and every row matches
    """

    groups: list[RowGroups]
    fine: FineRows
    places: list[np.ndarray | None]
    certain: np.ndarray


def kept_row_groups(tasks: Sequence[FileTask], context: ReadContext, storage: Storage) -> KeptRowGroups:
    """`row_groups_of`, with the statistics that it read."""
    fine = read_fine_rows(tasks, storage, context.strict)
    groups = row_groups_of(tasks, context, storage, fine)
    starts = np.searchsorted(fine.task, np.arange(len(tasks) + 1))
    kept = KeptRowGroups(groups, fine, [], np.zeros(len(fine.task), dtype=bool))
    for i, (task, of_task) in enumerate(zip(tasks, groups, strict=True)):
        if of_task.kept is None or not fine.is_listed[i]:
            kept.places.append(None)
            continue
        own = starts[i] + np.searchsorted(fine.row_group[starts[i] : starts[i + 1]], of_task.kept)
        kept.places.append(own)
        if task.is_exact:
            kept.certain[own] = np.array(of_task.all_match, dtype=bool) | task.all_match
    return kept


def _of_task(fine: FineRows, survives: np.ndarray, every: np.ndarray, units: slice) -> RowGroups:
    of_file, counts = survives[units], fine.row_count[units]
    is_complete = np.array_equal(fine.row_group[units], np.arange(len(of_file)))
    return RowGroups(
        fine.row_group[units][of_file].tolist(),
        len(of_file),
        counts[of_file].tolist(),
        every[units][of_file].tolist(),
        offsets_of(counts)[:-1][of_file].tolist() if is_complete else None,
    )


def _by_statistics(
    tasks: Sequence[FileTask], terms: list[Term], context: ReadContext, fine: FineRows
) -> dict[Term, np.ndarray]:
    """Return the outcomes of each term that fine statistics and partition values leave possible, by row group."""
    evidence = {c: evidence_in_row_groups(c, tasks, context, fine) for c in columns_of(context.pruning)}
    return {term: term_sets(term, evidence, len(fine.task)) for term in terms}


def evidence_in_row_groups(
    column: str, tasks: Sequence[FileTask], context: ReadContext, fine: FineRows
) -> ColumnEvidence:
    """What is known of a column in each row group."""
    count = len(fine.task)
    if column in context.partitioning:
        if not count:
            return []
        units = np.bincount(fine.task, minlength=len(tasks)).tolist()
        values = [pa.repeat(task.partition[column], n) for task, n in zip(tasks, units, strict=True) if n]
        return [(evidence_of_values(pa.concat_arrays(values)), np.ones(count, dtype=bool))]
    in_files = context.columns_in_files.get(column)
    if in_files is None:
        return []
    schema_of = np.array([t.schema_id for t in tasks], dtype=np.int64)[fine.task]
    evidences: ColumnEvidence = []
    lacking = np.isin(schema_of, list(in_files.schemas_without))
    if lacking.any():
        evidences.append((in_files.evidence_where_absent(count), lacking))
    for path, kind in dict.fromkeys(in_files.path_by_schema.values()):
        ids = [number for number, place in in_files.path_by_schema.items() if place == (path, kind)]
        covered = np.isin(schema_of, ids)
        if covered.any():
            rows, entry_rows = fine.of_column(path)
            entries = StatRows.of({n: rows.column(n) for n in EVIDENCE_FIELDS}, rows.num_rows)
            evidences.append((evidence_of(entries.take(np.where(covered, entry_rows, -1)), kind), covered))
    return evidences


def _probed(tasks: Sequence[FileTask], terms: list[Term], storage: Storage) -> list[_Probed]:
    """Each probe of a fine filter, and what it gave."""
    sought = {term: values for term in terms if isinstance(term, Term) and (values := probe_values(term)) is not None}
    probes: list[_FilterProbe] = []
    hashed: dict[tuple[Term, str], Probes | None] = {}
    for i, task in enumerate(tasks):
        by_column: dict[str, _FilterProbe] = {}
        for term, values in sought.items() if task.may_prune else ():
            if term.column not in task.filters:
                continue
            filters = task.filters[term.column][1]
            name = filters.hash_name
            if (term, name) not in hashed:
                hashed[term, name] = filters.probes_for(values)
            hashes = hashed[term, name]
            if hashes is not None:
                by_column.setdefault(term.column, _FilterProbe(i, term.column)).hashes[term] = hashes
        probes += by_column.values()

    def run(probe: _FilterProbe) -> list[np.ndarray] | CorruptionError | StorageError:
        from ...bloom import probe_together

        path, filters = tasks[probe.task].filters[probe.column]
        try:
            return probe_together(list(probe.hashes.values()), lambda hashes: filters.probe(storage, path, hashes))
        except (CorruptionError, StorageError) as error:
            return error

    return list(zip(probes, side_by_side(storage, run, probes, "skipstone-filters"), strict=True))


def _by_filters(probed: Sequence[_Probed], fine: FineRows, strict: bool) -> dict[Term, np.ndarray]:
    """Return the outcomes of each term that fine filters leave possible, by row group."""
    hits: dict[Term, np.ndarray] = {}  # bool [value, row group]: False if it cannot be there
    for probe, by_term in probed:
        if not isinstance(by_term, list):
            ignore_damaged(by_term, strict)
            continue
        units = np.flatnonzero(fine.task == probe.task)
        for term, one in zip(probe.hashes, by_term, strict=True):
            hits.setdefault(term, np.ones((len(one), len(fine.task)), dtype=bool))[:, units] = one[
                :, fine.row_group[units]
            ]
    return {term: member_outcomes(term, one) for term, one in hits.items()}


@dataclass
class _FilterProbe:
    """What is looked up in the filter of one column of a file: the hashes of all terms of that column."""

    task: int
    column: str
    hashes: dict[Term, Probes] = field(default_factory=dict)


_Probed: TypeAlias = tuple[_FilterProbe, list[np.ndarray] | CorruptionError | StorageError]


# -- reading fine statistics -------------------------------------------------------------------------------------------

Place = tuple[str, int, int]  # index file, offset, length


@dataclass
class FineRows:
    """The row groups of some tasks, in the order of tasks and row groups: the units of the fine level.

    task, row_group    int64 [units]: position of the task, and number within its file
    row_count          int64 [units]
    entries            the statistics of all columns; `entry_unit`, int64, is the unit of each
    is_listed           bool [tasks]: False if nothing fine could be read
    """

    task: np.ndarray
    row_group: np.ndarray
    row_count: np.ndarray
    entries: pa.Table
    entry_unit: np.ndarray
    is_listed: np.ndarray

    def of_column(self, path: str) -> tuple[pa.Table, np.ndarray]:
        """(entries of a physical path, int64 [units]: each unit's row among them, or -1)."""
        is_of_column = to_numpy(pc.equal(self.entries.column("column"), string_scalar(path)))
        entry_rows = np.full(len(self.task), -1, dtype=np.int64)
        entry_rows[self.entry_unit[is_of_column]] = np.arange(int(is_of_column.sum()))
        return self.entries.filter(from_numpy(is_of_column)), entry_rows


def read_fine_rows(tasks: Sequence[FileTask], storage: Storage, strict: bool) -> FineRows:
    """Reads the fine statistics of tasks, neighbours in one range. What is damaged or missing is unknown; if
    `strict`, it is the CorruptionError or StorageError that it gave."""
    tables, of_task = [], []
    is_listed = np.zeros(len(tasks), dtype=bool)
    for members, table in _ranges(tasks, storage, strict):
        try:
            ordinals, of_entry = entries_by_path(table)
        except CorruptionError as error:
            ignore_damaged(error, strict)
            continue
        own = {ordinals[mark]: i for i in members if (mark := path_mark(tasks[i].path)) in ordinals}
        foreign = set(members) - set(own.values())
        if foreign:  # another index file was copied over the one that is named
            message = f"fine statistics of {tasks[min(foreign)].path} are of another file: restore the index"
            ignore_damaged(CorruptionError(message), strict)
        if not own:
            continue
        is_listed[list(own.values())] = True
        files, local = np.unique(of_entry, return_inverse=True)
        task_of = np.array([own.get(file, -1) for file in files.tolist()], dtype=np.int64)[local]
        tables.append(table.filter(from_numpy(task_of >= 0)))
        of_task.append(task_of[task_of >= 0])
    if not tables:
        nothing = np.empty(0, dtype=np.int64)
        fields = pa.schema([pa.field("key", pa.binary()), *FINE_SCHEMA])
        return FineRows(nothing, nothing, nothing, pa.Table.from_batches([], fields), nothing, is_listed)
    entries, task = pa.concat_tables(tables), np.concatenate(of_task)
    row_group = KEYS.decode(entries.column("key"))["row_group"].astype(np.int64)
    width = int(row_group.max(initial=0)) + 1
    unit = task * width + row_group
    is_group = np.flatnonzero(to_numpy(pc.equal(entries.column("column"), string_scalar(ROW_GROUPS_COLUMN))))
    # Every statistics index has the row groups; the first entry of each is used.
    units, first = np.unique(unit[is_group], return_index=True)
    groups = entries.take(from_numpy(is_group[first]))
    places = np.minimum(np.searchsorted(units, unit), max(len(units) - 1, 0))
    if not len(units) or not np.array_equal(units[places], unit):
        ignore_damaged(CorruptionError("fine statistics name row groups that the file does not have"), strict)
        return read_fine_rows([replace(task, fine=()) for task in tasks], storage, strict)
    return FineRows(units // width, units % width, to_numpy(groups.column("value_count")), entries, places, is_listed)


def _ranges(tasks: Sequence[FileTask], storage: Storage, strict: bool) -> Iterator[tuple[list[int], pa.Table]]:
    """(positions of tasks by offset, entries of these and of other files): ranges that touch are read as one; a damaged
    one file by file."""
    located = sorted((place, i) for i, task in enumerate(tasks) for place in task.fine)
    runs: list[list[tuple[Place, int]]] = []
    end: tuple[str, int] | None = None
    for (path, offset, length), i in located:
        if end == (path, offset) or (runs and runs[-1][-1][0] == (path, offset, length)):
            runs[-1].append(((path, offset, length), i))
        else:
            runs.append([((path, offset, length), i)])
        end = (path, offset + length)

    def read(members: list[tuple[Place, int]]) -> pa.Table | CorruptionError | StorageError:
        try:
            return _read(members, storage)
        except (CorruptionError, StorageError) as error:
            return error

    for members, found in zip(runs, side_by_side(storage, read, runs, "skipstone-fine"), strict=True):
        if isinstance(found, pa.Table):
            yield [i for _, i in members], found
        elif len(members) == 1:
            ignore_damaged(found, strict)
        else:
            for member in members:
                try:
                    yield [member[1]], _read([member], storage)
                except (CorruptionError, StorageError) as own_error:
                    ignore_damaged(own_error, strict)


def _read(members: list[tuple[Place, int]], storage: Storage) -> pa.Table:
    path, offset, _ = members[0][0]
    _, last_offset, last_length = members[-1][0]
    stop = last_offset + last_length
    return read_block_range(Ranged(storage, path, stop), offset, stop - offset, FINE_SCHEMA)


def ignore_damaged(error: SkipstoneError, strict: bool) -> None:
    """Warn that a fine part could not be read, so that it excludes nothing. If `strict`, raise the error."""
    if strict:
        raise error
    warnings.warn(f"a fine index is left out, so more is read than necessary: {error}", stacklevel=3)
