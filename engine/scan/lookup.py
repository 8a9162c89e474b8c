"""Looks up many keys: joins them with a secondary index, and reads only the rows that it returns.

    keys -> files, by the range of the keys -> rows, by the index; if it does not cover a file, or lacks a column of the
    keys, the columns of the keys are read and compared -> the other columns of those rows

The result is a plan like any other, for exactly these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import from_numpy
from ...errors import PredicateError, SchemaError
from ..indexes.probe_results import Positions
from ..indexes.row_index import best_index, concatenated, covered_by, leading_names, reader_of
from ..parquet.leaves import leaf_array, leaf_types, top_level
from ..predicates import ColumnRef, Constant, Node, col, prepare, resolve
from ..state import IndexState
from ..storage.threads import prefetched
from .file_reader import matches_in_file
from .file_tasks import FileTask, ReadContext, RowGroups
from .keys import KeySet, is_rounded, key_set_of, keys_table, values_in_column
from .planning import THREADS, PlannedScan, reopened_scan
from .prune import PruneRequest, prune
from .request import ScanRequest
from .steps import Steps
from .units import PruningState

FEW_KEYS = 1024
"""So many values of one column are a predicate as any other, which filters and statistics can evaluate."""


_KEYS_PUSHED_MAX = 1 << 16  # that a reader tests rows by
_SAMPLE_KEYS = 16
SPREAD_SHARE = 0.01  # of the rows
DENSE_KEYS_MIN = 1 << 16
_ROWS_A_DENSE_KEY = 256  # about half of those that a block of an index has


class Lookup(PlannedScan):
    """Planning for the rows whose values in some columns are those of one of many keys, which `values_in_column` gave.
    Made by `Table.lookup`.

    compares_rows    whether planning reads the keys of files that no index covers; else the caller compares their rows
    """

    compares_rows = True

    def __init__(self, request: ScanRequest, keys: pa.Table, key_set: KeySet | None = None):
        """`key_set`: of the keys, if it is there already."""
        super().__init__(request)
        leaves = leaf_types(self.instant.schema)
        self._kinds = {name: leaves[name] for name in keys.column_names}
        self._given = self._keys_given = keys
        self._in_index = [n for n, kind in self._kinds.items() if not is_rounded(kind, keys.schema.field(n).type)]
        self._index = best_index(self.instant, self._in_index)
        if self._index is not None:  # its columns first
            leading = self._leading(self._index)
            self._given = keys.select([*leading, *(name for name in self._kinds if name not in leading)])
        is_same = key_set is not None and key_set.columns == self._given.column_names
        self._keys = key_set if key_set is not None and is_same else self._key_set(self._given)
        self.bound = self._tested()

    def __repr__(self) -> str:
        return f"<skipstone.Lookup of {len(self._keys):,} keys in {self.location!r} version {self.instant.version}>"

    def __reduce__(self) -> tuple:
        return reopened_scan, (Lookup, self.request.origin, self.request.options, self._keys_given)

    @property
    def accepts_filter(self) -> bool:
        return False

    def _again(self, request: ScanRequest, where: Node) -> PlannedScan:
        assert where == Constant(True)
        return Lookup(request, self._keys_given)

    @property
    def predicate_text(self) -> str:
        return f"({', '.join(self._kinds)}) IN ({len(self._keys):,} keys)"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(self._kinds)

    def with_keys(self, rows: pa.Table) -> pa.Table:
        return rows.filter(from_numpy(self._keys.contains([leaf_array(rows, name) for name in self._keys.columns])))

    def _tested(self) -> Node:
        """The predicate that rows are tested by when they are read: they have one of the keys of one column. TRUE if
        there are several, or very many keys, or keys that are compared as another type."""
        (name, *others), values = self._kinds, self._given.column(0)
        is_tested = name in self.instant.schema.names and values.type == self._kinds[name] and not others
        if not is_tested or len(values) > _KEYS_PUSHED_MAX:
            return Constant(True)
        return prepare(col(name).is_in(values.drop_null().unique()), self.instant.schema)

    def _leading(self, index: IndexState) -> list[str]:
        """The first columns of an index's key that are given."""
        return leading_names(self.instant, index, self._in_index)

    def _prune(self, steps: Steps) -> PruningState:
        """The files that contain a key, with the rows that do."""
        is_tested = self.bound != Constant(True)
        span = self.bound if is_tested else prepare(span_of(self._given), self.instant.schema)
        in_span = prune(PruneRequest(span, self.mode, only_stats=True), self.evidence, steps)
        with steps.step("keys", "files") as step:
            units, ids = in_span.units, in_span.ids
            step.came_in = step.went_out = len(ids)
            if is_tested and self._index is None:
                return in_span
            if is_tested and self._is_spread(in_span):
                step.note = "the index is not used: some of the keys are in many rows of most files"
                return in_span
            joined_rows, covered = None, np.zeros(len(ids), dtype=bool)
            is_dense = self._index is not None and self._is_dense(in_span)
            if self._index is not None and not is_dense:
                joined_rows, covered = self.evidence.retry_without_damaged_runs(
                    lambda: self._joined(ids, self._keys.encoded)
                )
            alone = units.is_single_file_slice
            covered &= alone
            if is_dense:
                step.note = "the index is not used: there are so many keys that it would be read whole"
            elif self._index is not None:
                step.index = f"secondary({', '.join(self.instant.names_of(self._index))})"
            compared = alone & ~covered
            if joined_rows is not None and not self._is_decided:
                holds = covered & np.isin(ids, joined_rows.file_ids)
                step.note = f"the index has {len(self._leading(self._index))} of their columns: its rows are compared"  # type: ignore[arg-type]
                compared, joined_rows = compared | holds, None
            step.uncovered = int((alone & ~covered).sum())
            found = [joined_rows] if joined_rows is not None else []
            if self.compares_rows:
                found += self._compared(in_span, compared)
                compared = np.zeros(len(ids), dtype=bool)
            positions, known = concatenated(found), alone & ~compared
            left = (units.has_rows & ~known) | np.isin(ids, positions.file_ids)
            step.went_out = int(left.sum())
        kept = np.zeros(units.count, dtype=bool)
        kept[units.unit_of[left]] = True
        remaining = PruningState.with_rows(self.bound, units, positions, known)
        return remaining.selected(units.whole_slices(kept))

    @property
    def leaves_rows_to_compare(self) -> bool:
        """Whether rows that do not have a key may be among those of the plan's files: some rows are not known."""
        matching = self.pruned.rows_matching
        return matching is None or not bool(matching.is_exact.all())

    @property
    def _is_decided(self) -> bool:
        """Whether the index's key contains every column of the keys."""
        return self._index is not None and len(self._leading(self._index)) == len(self._kinds)

    def _is_spread(self, remaining: PruningState) -> bool:
        """Whether the keys are in so many rows of most files that these are read in less time than the keys are looked
        up. A few of the keys show it."""
        is_local = not (self.storage.is_remote or self.index_storage.is_remote)
        if self._index is None or not is_local or self.limit is not None or self.reader == "pyarrow":
            return False
        some = self._keys.encoded.take(from_numpy(np.arange(0, len(self._keys), len(self._keys) // _SAMPLE_KEYS + 1)))
        file_ids = self.evidence.retry_without_damaged_runs(lambda: self._joined(remaining.ids, some))[0].file_ids
        row_count = len(file_ids) * len(self._keys) // max(len(some), 1)
        is_in_most = 2 * len(np.unique(file_ids)) >= len(remaining.ids)
        return is_in_most and row_count >= SPREAD_SHARE * remaining.units.row_counts.sum()

    def _is_dense(self, remaining: PruningState) -> bool:
        """Whether most blocks of the index have one of the keys. Then the columns of the keys are read in less time."""
        rows = int(remaining.units.row_counts.sum())
        return len(self._keys) >= DENSE_KEYS_MIN and len(self._keys) >= rows // _ROWS_A_DENSE_KEY

    def _joined(self, ids: np.ndarray, encoded: pa.BinaryArray) -> tuple[Positions, np.ndarray]:
        """(the rows that contain keys, as far as the index knows them; bool: which files it covers)."""
        index, snapshot, damaged = self._index, self.snapshot, self.evidence.damaged
        assert index is not None
        covered = covered_by(snapshot, index, ids, damaged)
        if not self._is_decided:
            encoded = self._key_set(self._given.select(self._leading(index))).encoded
        reader = reader_of(snapshot, index, damaged)
        speaking = ids[covered]
        parts = []
        for _, positions in reader.join(encoded):
            is_covered = np.isin(positions.file_ids, speaking)
            parts.append(Positions(*(part[is_covered] for part in positions)))
        return concatenated(parts), covered

    def _key_set(self, keys: pa.Table) -> KeySet:
        return key_set_of(keys, [self._kinds[name] for name in keys.column_names])

    def _compared(self, remaining: PruningState, is_compared: np.ndarray) -> list[Positions]:
        """The rows of some files (bool [files]), each its own unit, that contain keys: by reading the key's
        columns."""
        units = remaining.units
        if not is_compared.any():
            return []
        chosen = np.zeros(units.count, dtype=bool)
        chosen[units.unit_of[is_compared]] = True
        tasks = [task for task in self.tasks_of(remaining.selected(chosen)) if task.has_rows]
        ids = remaining.ids[is_compared].tolist()
        names = tuple(dict.fromkeys(top_level(self.instant.schema, name) for name in self._kinds))
        context = replace(self.context_for(names), deletes={})  # a position counts deleted rows, too

        def compare(pair: tuple[int, FileTask]) -> Positions:
            rows = _rows_with(self._keys, pair[1], context, self)
            return Positions(np.full(len(rows), pair[0], dtype=np.uint64), np.zeros(len(rows), dtype=np.int32), rows)

        return list(prefetched(compare, zip(ids, tasks, strict=True), THREADS, "skipstone-keys"))


def _rows_with(keys: KeySet, task: FileTask, context: ReadContext, plan: PlannedScan) -> np.ndarray:
    """int64, ascending: the positions of the rows of a file that contain one of the keys."""
    whole_file = replace(task, all_match=True, rows=None, rows_exact=False)
    positions, start = [], 0
    for _, rows in matches_in_file(whole_file, RowGroups(None), context, plan.storage):
        hits = keys.contains([leaf_array(rows, name) for name in keys.columns])
        positions.append(np.flatnonzero(hits) + start)
        start += rows.num_rows
    return np.concatenate(positions) if positions else np.empty(0, dtype=np.int64)


def span_of(keys: pa.Table) -> Node:
    """The ranges that contain the keys' values, as a predicate; TRUE if they have no order that predicates know
    of."""
    span: Node = Constant(True)
    for name in keys.column_names:
        column = keys.column(name)
        if pa.types.is_floating(column.type):  # of which NaN has no place in pyarrow's order
            continue
        try:
            ends = pc.min_max(column)
        except pa.ArrowException:
            continue
        if not ends["min"].is_valid:
            return Constant(False)
        # As scalars: Python's times have no nanoseconds.
        span = span & col(name).between(ends["min"], ends["max"])
    return span


def _columns(names: Sequence[str], schema: pa.Schema) -> dict[str, ColumnRef]:
    """The columns of some names. Raises SchemaError for one that is not there, or is of no type of a key."""
    leaves, refs = leaf_types(schema), {}
    for name in names:
        try:
            refs[name] = resolve(name, schema)
        except PredicateError:
            raise SchemaError(f"no column {name!r} to look keys up in; there are {', '.join(leaves)}") from None
        if name not in leaves and not pa.types.is_null(refs[name].type):
            raise SchemaError(f"column {name!r} is {refs[name].type}, in which keys cannot be looked up")
    return refs


def lookup(
    keys: object, on: str | Sequence[str] | None, request: ScanRequest, key_set: KeySet | None = None
) -> PlannedScan:
    """See `Table.lookup`. `key_set`: of the keys, if it is there already."""
    key_rows = keys_table(keys, on)
    values = []
    for name, ref in _columns(key_rows.column_names, request.snapshot.instant.schema).items():
        if pa.types.is_null(ref.type):
            return PlannedScan(request, Constant(False))
        values.append(values_in_column(key_rows.column(name), ref))
    if len(values) == 1 and key_rows.num_rows <= FEW_KEYS:
        where = col(key_rows.column_names[0]).is_in(values[0].drop_null().unique())
        return PlannedScan(request, where)
    keys_of_columns = pa.table(values, names=key_rows.column_names)
    return Lookup(request, keys_of_columns, key_set)
