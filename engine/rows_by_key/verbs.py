"""delete, update and upsert in this process: plan, rewrite side by side, commit once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy
from ...errors import InvalidArgumentError, SchemaError
from ..lakes import DELTA, HUDI, ICEBERG
from ..parquet.leaves import leaf_types, without_views
from ..scan.lookup import Lookup, lookup
from ..scan.planned_rows import tables
from ..scan.planning import PlannedScan
from ..scan.request import ScanRequest
from ..storage.threads import Threads
from ..tasks.writer import fitted
from .edits import DeleteMatches, Edit, KeyedRows, ReplaceKeys, UpdateMatches, assignments
from .exchange import Exchange, refused
from .rewrite import OldFile, Written, count_in, find_keys, old_files, rewrite

if TYPE_CHECKING:
    from ..handle import Handle
    from ..progress import Progress

WhenMatched = Literal["update", "delete"]
WhenNotMatched = Literal["insert"]
R = TypeVar("R")

_THREADS = min(8, (os.cpu_count() or 1) + 1)  # one waits for the disk
_OPEN_BYTES = 1 << 20  # what opening a file costs, in bytes read


@dataclass(frozen=True)
class Change:
    """The result of `delete`, `update` or `upsert`; with `dry_run`, what they would do.

    version            the version created, or the current one if no row changed or `dry_run` was given
    rows_deleted, rows_updated, rows_inserted
    files_rewritten    how many files were replaced or removed
    files              path -> rows deleted or updated, of each of these files
    """

    version: int
    rows_deleted: int = 0
    rows_updated: int = 0
    rows_inserted: int = 0
    files_rewritten: int = 0
    files: Mapping[str, int] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Options:
    """What all three verbs take: see `Table.delete`."""

    key: str | None = None
    dry_run: bool = False
    progress: Progress | None = None


def exchange_of(handle: Handle, key: str | None) -> Exchange:
    """Return how files of a table are exchanged.

    Raises InvalidArgumentError for a pinned handle, and if the library of a log cannot exchange files.
    """
    handle.check_latest()
    kind = None if handle.log is None else handle.instant.source["kind"]
    if kind == ICEBERG:
        from .iceberg import IcebergExchange

        return IcebergExchange(handle, key)
    if kind == DELTA:
        from .delta import DeltaExchange

        return DeltaExchange(handle, key)
    if kind == HUDI:
        raise refused(handle, "only Hudi's own writers commit to it")
    return Exchange(handle, key)


def delete(handle: Handle, where: object, params: Any, options: Options) -> Change:
    """See `Table.delete`."""
    if where is None:
        raise InvalidArgumentError('delete() needs where=; pass "true" to delete every row')
    exchange = exchange_of(handle, options.key)
    if exchange.earlier is not None:
        return Change(exchange.earlier)
    planning = PlannedScan(ScanRequest.of(handle), where, params)
    return _Work(handle, planning, exchange, options).run(DeleteMatches(planning.bound), "rows_deleted")


def update(handle: Handle, values: Mapping[str, str], where: object, params: Any, options: Options) -> Change:
    """See `Table.update`."""
    if where is None:
        raise InvalidArgumentError('update() needs where=; pass "true" to update every row')
    exchange = exchange_of(handle, options.key)
    if exchange.earlier is not None:
        return Change(exchange.earlier)
    planning = PlannedScan(ScanRequest.of(handle), where, params)
    edit = UpdateMatches(planning.bound, tuple(values), assignments(values, planning.instant.schema))
    return _Work(handle, planning, exchange, options).run(edit, "rows_updated")


def upsert(
    handle: Handle,
    rows: Any,
    on: str | Sequence[str],
    when_matched: WhenMatched | None,
    when_not_matched: WhenNotMatched | None,
    options: Options,
) -> Change:
    """See `Table.upsert`."""
    if when_matched not in ("update", "delete", None) or when_not_matched not in ("insert", None):
        raise InvalidArgumentError(
            'when_matched= is "update", "delete" or None, and when_not_matched= is "insert" or None, not '
            f"{when_matched!r} and {when_not_matched!r}"
        )
    if when_matched is None and when_not_matched is None:
        raise InvalidArgumentError("pass when_matched= or when_not_matched=; without both, upsert() does nothing")
    source, names = _source(rows), key_names(on)
    exchange = exchange_of(handle, options.key)
    if exchange.earlier is not None:
        return Change(exchange.earlier)
    request = ScanRequest.of(handle)
    schema = request.snapshot.instant.schema
    _check_columns(schema, source, names)
    keyed = KeyedRows(source, names, schema)
    planning = lookup(source.select(list(names)), None, request, keyed.keys)
    if isinstance(planning, Lookup):
        planning.compares_rows = False  # each file is compared before it is written again
    updated = [name for name in source.column_names if name not in names] if when_matched == "update" else []
    if when_matched == "update" and not updated:
        raise InvalidArgumentError("the rows have no column other than those of on=, so there is nothing to update")
    work = _Work(handle, planning, exchange, options, keyed, inserts=when_not_matched is not None)
    if when_matched is None:
        return work.run(None, "rows_updated")
    edit = ReplaceKeys(keyed, updated, inserts=when_not_matched is not None)
    return work.run(edit, "rows_updated" if updated else "rows_deleted")


def _source(rows: Any) -> pa.Table:
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table) or hasattr(rows, "__arrow_c_stream__"):
        table = rows if isinstance(rows, pa.Table) else pa.table(rows)
        return pa.table([without_views(column) for column in table.columns], names=table.column_names)
    raise InvalidArgumentError(f"rows= is an Arrow table, or has an Arrow C stream, not {type(rows).__name__}")


def key_names(on: str | Sequence[str]) -> tuple[str, ...]:
    """The columns of a key. Raises InvalidArgumentError for anything but distinct names."""
    names = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, Sequence) else ()
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"on= names one column or more, each once, not {on!r}")
    return names


def _check_columns(schema: pa.Schema, source: pa.Table, names: Sequence[str]) -> None:
    """Raises SchemaError for columns of the source that do not fit the table."""
    leaves = leaf_types(schema)
    for name in names:
        if name not in source.column_names:
            raise SchemaError(f"the rows have no column {name!r}, which on= names; they have {source.column_names}")
        if name not in leaves or schema.get_field_index(name) < 0:
            raise SchemaError(f"no column {name!r} of a type that is compared; the columns are {schema.names}")
    fitted(source.schema.empty_table(), schema)


class _Work:
    """One change, from its plan to its commit."""

    def __init__(
        self,
        handle: Handle,
        planning: PlannedScan,
        exchange: Exchange,
        options: Options,
        keyed: KeyedRows | None = None,
        inserts: bool = False,
    ):
        """`keyed`: the rows with whose keys files are compared. `inserts`: add those of them whose key no row has."""
        self._handle, self._planning, self._options = handle, planning, options
        self._keyed, self._inserts = keyed, keyed if inserts else None
        self._exchange = exchange
        exchange.base = planning.instant  # the handle may have moved since the exchange began
        self._files = old_files(planning, planning.readable_tasks())
        self._done, self._lock, self._is_stopped = 0, threading.Lock(), False

    def run(self, edit: Edit | None, counted_as: str) -> Change:
        """Applies the edit to the rows of the plan, and inserts rows. None: no row changes."""
        if edit is None or self._options.dry_run:
            self._find_keys()
        if self._options.dry_run:
            counts: dict[str, int] = {}
            count = partial(count_in, context=self._planning.context, keyed=self._keyed)
            for part in self._side_by_side(count) if edit else ():
                counts |= part
            return self._change(counts, counted_as, self._to_insert().num_rows)
        if not (self._files and edit) and self._inserts is None:
            return Change(self._handle.version)
        with self._exchange:
            self._exchange.prepare(self._planning.storage, self._files)
            changed = self._rewrite(edit) if edit else {}
            self._exchange.remove(list(changed))
            inserted = self._insert()
        return self._change(changed, counted_as, inserted)

    def _rewrite(self, edit: Edit) -> dict[str, int]:
        """path -> rows changed. The commit gets what each thread wrote, also if another thread fails."""
        changed: dict[str, int] = {}

        def take(written: Written) -> None:
            self._exchange.add(written.results)
            changed.update(written.changed)
            self._note_found(written.found)

        context, open_writer = self._planning.context, self._exchange.open_writer
        work = partial(rewrite, edit=edit, context=context, open_writer=open_writer, keyed=self._keyed)
        if self._handle.executors is None:
            work = partial(work, on_file=self._on_file)
        self._side_by_side(work, take)
        return changed

    def _side_by_side(
        self, work: Callable[[Sequence[OldFile]], R], take: Callable[[R], None] = lambda result: None
    ) -> list[R]:
        if self._handle.executors is not None:
            return self._handle.executors.rewrite(self._handle, self._files, work, take, self._options.progress)
        parts = _split(self._files, _THREADS)
        with Threads(max(1, len(parts)), thread_name_prefix="skipstone-rewrite") as pool:
            futures: list[Future[R]] = [pool.submit(work, part) for part in parts]
            try:
                wait_for(futures, return_when="FIRST_EXCEPTION")
            finally:
                self._is_stopped = not all(future.done() and not future.exception() for future in futures)
                wait_for(futures)
                for future in futures:
                    if not future.exception():
                        take(future.result())
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, CancelledError)):
            raise error
        return [future.result() for future in futures]

    def _on_file(self) -> None:
        with self._lock:
            if self._is_stopped:
                raise CancelledError
            self._done += 1
            if self._options.progress:
                self._options.progress("rewrite, files", self._done, len(self._files))

    def _find_keys(self) -> None:
        """Finds which keys of the source the table has, without writing."""
        if self._inserts is not None and self._handle.executors is not None:
            context = self._planning.context_for(self._inserts.on, *self._inserts.on)
            self._side_by_side(partial(find_keys, keyed=self._inserts, context=context), self._note_found)
        elif self._inserts is not None:
            for rows in tables(self._planning.of_columns(self._inserts.on)):
                self._inserts.find(rows)

    def _note_found(self, rows: np.ndarray) -> None:
        """Executors have copies of the rows with keys."""
        if self._inserts is not None:
            self._inserts.found[rows] = True

    def _to_insert(self) -> pa.Table:
        if self._inserts is None:
            return self._planning.instant.schema.empty_table()
        return self._inserts.rows.filter(from_numpy(~self._inserts.found))

    def _insert(self) -> int:
        """Writes the rows whose keys the table does not have. Another writer that adds the same keys is a conflict."""
        rows = self._to_insert()
        if self._inserts is None or not rows.num_rows:
            return 0
        with self._exchange.open_writer() as writer:
            writer.insert(rows)
        self._exchange.add(writer.result)
        self._exchange.depend_on(writer.result, self._inserts.on)
        return rows.num_rows

    def _change(self, changed: Mapping[str, int], counted_as: str, inserted: int) -> Change:
        counts = {counted_as: sum(changed.values()), "rows_inserted": inserted}
        return Change(self._handle.version, files_rewritten=len(changed), files=dict(changed), **counts)


def _split(files: Sequence[OldFile], count: int) -> list[list[OldFile]]:
    """At most `count` parts of about the same size. Files of one partition are in few parts, so that few new files are
    small."""
    ordered = sorted(files, key=lambda file: file.partition)
    ends = np.cumsum([file.task.size_bytes + _OPEN_BYTES for file in ordered])
    numbers = np.minimum(ends * count // (ends[-1] + 1), count - 1) if len(ends) else ends
    parts: dict[int, list[OldFile]] = {}
    for number, file in zip(numbers.tolist(), ordered, strict=True):
        parts.setdefault(number, []).append(file)
    return list(parts.values())
