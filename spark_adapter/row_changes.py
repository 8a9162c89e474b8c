"""`delete` and `merge`: the driver plans and commits, and executors rewrite the files that contain such rows.

The files are found by pruning, and rewritten by the edits of the engine (`engine.rows_by_key`). The rows that a merge
adds or updates are collected on the driver, and sent to the executors: the table may have any size, its changes must
fit the driver.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import from_numpy, to_numpy
from ..engine.open import open_table
from ..engine.parquet.leaves import leaf_types
from ..engine.progress import Progress, progress_function
from ..engine.rows_by_key.edits import DeleteMatches, Edit, KeyedRows, ReplaceKeys
from ..engine.rows_by_key.rewrite import OldFile, OwnWriter, Written, with_codec_of
from ..engine.rows_by_key.verbs import key_names
from ..engine.scan.keys import encoded_keys
from ..engine.scan.lookup import lookup
from ..engine.scan.request import ScanRequest
from ..errors import InvalidArgumentError, SchemaError
from .jobs import PARTS_PER_CORE, map_parts, run_action
from .old_calendar import rewritable
from .rewriting_tasks import find_part, rewrite_part
from .sessions import read_where
from .shares import OPEN_BYTES, split_evenly
from .spark_versions import collected, slots
from .wire_types import arrow_schema, check_incoming, names_in, to_table_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..engine.commit.transaction import Transaction
    from ..engine.scan.planning import PlannedScan
    from ..engine.table import Table

WhenMatched = Literal["update", "delete"]
WhenNotMatched = Literal["insert"]


@dataclass(frozen=True)
class RowChanges:
    """The result of `delete` and `merge`.

    version            the version created, or the current one if nothing changed
    deleted, updated, inserted    rows
    files_rewritten    files that were removed; their remaining rows are in new files
    files_added        new files
    """

    version: int
    deleted: int = 0
    updated: int = 0
    inserted: int = 0
    files_rewritten: int = 0
    files_added: int = 0


def delete(
    spark: SparkSession,
    path: str | os.PathLike,
    where: object,
    *,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> RowChanges:
    """Delete the rows for which `where` is TRUE; rows for which it is FALSE or NULL stay. One commit, or none if no row
    matches.

    Files that contain such rows are rewritten, with all that the table's indexes keep of written rows. The old files
    stay on storage for older versions, until a `clean` that deletes data. Rows that others append concurrently stay.

    Args:
        path: the table's directory; executors must see it under the same name.
        where: as for `scan`; all of it must be understood, also of a Column. "true" for every row.
        index_path, storage_options: as for `scan`.
        progress: called as f(step, done, total), or True for a bar on stderr.

    Raises:
        CommitConflictError: another writer removed one of the files concurrently; the table is unchanged.
        PredicateError: `where` cannot be read, or a part of it cannot be tested on rows.
        NotReadableError: a file that may match belongs to a file group, has logs, or deletes that we cannot apply; or
        was overwritten since it was indexed.
        InvalidArgumentError: no `where`; a table that follows the log of another format.
    """
    if where is None:
        raise InvalidArgumentError('delete() needs the rows to delete as where=; "true" for every row')
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        planning = _own_table(table).scan(read_where(spark, where, table.schema)).planning
        files = rewritable(table, planning, planning.readable_tasks())
        if not files:
            return RowChanges(table.version)
        with table.transaction() as tx:
            work = _Rewrite(spark, tx, planning, files, progress_function(progress))
            work.rewrite(DeleteMatches(planning.bound), None)
        return work.changes(table.version, "deleted")


def merge(
    spark: SparkSession,
    path: str | os.PathLike,
    source: DataFrame,
    on: str | Sequence[str],
    when_matched: WhenMatched | None = "update",
    when_not_matched: WhenNotMatched | None = "insert",
    *,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> RowChanges:
    """Merge the rows of a DataFrame into a table, in one commit, or none if nothing is to be done.

        sks.merge(spark, "lake/flights", updates, on=["flight", "day"])

    A row of the table matches the row of the source that has the same values in `on`. A null equals nothing: such rows
    of the source match none, and are inserted. The source is computed once and collected on the driver, so it must fit
    `spark.driver.maxResultSize`: merge a larger one in parts.

    Args:
        path: the table's directory; executors must see it under the same name.
        source: columns of the table, by name: those of `on`, and some others.
        on: top-level columns, the key. Partition columns may be among them.
        when_matched: "update": the row gets the values of the source's columns other than `on`, and keeps its others;
            it moves to another partition if its partition columns change. "delete": the row is deleted. None: it stays.
        when_not_matched: "insert": a row of the source that matches none is added; columns that the source lacks are
            null. None: it is left out.
        index_path, storage_options: as for `scan`.
        progress: called as f(step, done, total), or True for a bar on stderr.

    Raises:
        InvalidArgumentError: several rows of the source match one that is to be updated; nothing to do is requested;
        the table follows the log of another format.
        CommitConflictError: another writer removed one of the files concurrently; or rows were inserted, and another
        writer changed a partition where their keys may be: the partitions that get them if `on` names every partition
        column, else any. The table is unchanged.
        SchemaError: columns that the table does not have, or whose values do not fit; keys that are not compared.
        NotReadableError: a file that may match belongs to a file group, has logs, or deletes that we cannot apply; or
        was overwritten since it was indexed.
    """
    if when_matched not in ("update", "delete", None) or when_not_matched not in ("insert", None):
        raise InvalidArgumentError(
            'when_matched= is "update", "delete" or None, and when_not_matched= "insert" or None, not '
            f"{when_matched!r} and {when_not_matched!r}"
        )
    if when_matched is None and when_not_matched is None:
        raise InvalidArgumentError("give when_matched= or when_not_matched=: without both a merge does nothing")
    report = progress_function(progress)
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        given, names = _checked_names(source, on, _own_table(table).schema)
        updated = [name for name in given if name not in names] if when_matched == "update" else []
        if when_matched == "update" and not updated:
            raise InvalidArgumentError("the source has only the columns of on=, so there is nothing to update")
        rows = run_action(spark, partial(collected, source), "source", report)
        rows = to_table_types(rows, given, table.schema)
        is_first = _is_first_of_key(rows, names, table.schema)
        keyed, again = KeyedRows(rows.filter(is_first), names, table.schema), rows.filter(pc.invert(is_first))
        planning = lookup(keyed.rows.select(names), None, ScanRequest.of(table.handle))
        files = rewritable(table, planning, planning.readable_tasks())
        with table.transaction() as tx:
            work = _Rewrite(spark, tx, planning, files, report)
            if when_matched is not None:
                work.rewrite(ReplaceKeys(keyed, updated, inserts=when_not_matched is not None), keyed)
            else:
                work.find(keyed)
            added = [keyed.rows.filter(from_numpy(~keyed.found)), _unmatched(again, keyed, bool(updated))]
            if when_not_matched is not None:
                work.insert(pa.concat_tables(added), names)
        return work.changes(table.version, "deleted" if when_matched == "delete" else "updated")


def _own_table(table: Table) -> Table:
    table.handle.check_latest()
    table.handle.check_owns_files()
    return table


def _checked_names(source: DataFrame, on: str | Sequence[str], schema: pa.Schema) -> tuple[list[str], tuple[str, ...]]:
    """The table's names of the source's columns, and of the key's."""
    wanted, rows, kinds = key_names(on), arrow_schema(source.schema), leaf_types(schema)
    given = names_in(schema, rows.names)
    check_incoming(rows, given, schema)
    names = tuple(names_in(schema, wanted))
    for name in names:
        if name not in kinds:
            raise SchemaError(f"column {name!r} is {schema.field(name).type}, which is no type of a key")
        if name not in given:
            raise SchemaError(f"the source has no column {name!r}, which on= names; it has {', '.join(given)}")
    return given, names


def _is_first_of_key(rows: pa.Table, on: Sequence[str], schema: pa.Schema) -> pa.Array:
    """boolean [rows]: false for a row with the key of a row before it. A key with a null is the key of no other row."""
    kinds = leaf_types(schema)
    keys = encoded_keys(rows.select(list(on)), [kinds[name] for name in on])
    numbers = keys.dictionary_encode().indices
    is_first = np.array(numbers.is_null(), dtype=bool)
    is_first[np.unique(to_numpy(numbers.fill_null(-1)), return_index=True)[1]] = True
    return from_numpy(is_first)


def _unmatched(again: pa.Table, keyed: KeyedRows, updates: bool) -> pa.Table:
    """The rows, each with the key of an earlier row of the source, whose keys no file contains.

    Raises InvalidArgumentError if a file contains such a key and its rows are to be updated: by which of the rows?
    """
    found = keyed.found.copy()
    is_found = found[keyed.find(again.select(keyed.on))]
    if updates and is_found.any():
        row = int(np.flatnonzero(is_found)[0])
        key = ", ".join(f"{name} = {again.column(name)[row].as_py()!r}" for name in keyed.on)
        raise InvalidArgumentError(
            f"several rows of the source match one row of the table ({key}), so it is not clear which values it gets; "
            "leave one row for each key in the source"
        )
    return again.filter(from_numpy(~is_found))


class _Rewrite:
    """The jobs of one change, within its transaction."""

    def __init__(
        self,
        spark: SparkSession,
        tx: Transaction,
        planning: PlannedScan,
        files: list[OldFile],
        progress: Progress | None,
    ):
        self._spark, self._tx, self._planning, self._progress = spark, tx, planning, progress
        cuts = split_evenly([file.task.size_bytes + OPEN_BYTES for file in files], PARTS_PER_CORE * slots(spark))
        self._parts = [files[cut] for cut in cuts]
        self._spec = tx.task_spec()
        if files:
            self._spec = with_codec_of(self._spec, planning.storage, [file.task for file in files])
        self._changed: dict[str, int] = {}  # path -> rows
        self._added = self._inserted = 0

    def rewrite(self, edit: Edit, keyed: KeyedRows | None) -> None:
        """Rewrite the files in which the edit changes rows. `keyed`: the rows whose keys the edit compares."""

        def take(done: tuple[Written, np.ndarray]) -> None:
            written, found = done
            self._add(written.results)
            self._changed |= written.changed
            if keyed is not None:
                keyed.found[found] = True

        work = partial(rewrite_part, edit=edit, keyed=keyed, context=self._planning.context, spec=self._spec)
        map_parts(self._spark, work, self._parts, step="files, parts", progress=self._progress, on_result=take)
        self._tx.remove(list(self._changed))

    def find(self, keyed: KeyedRows) -> None:
        """Find which keys the files contain, without a change."""
        work = partial(find_part, keyed=keyed, context=self._planning.context_for(keyed.on, *keyed.on))
        for found in map_parts(self._spark, work, self._parts, step="keys, parts", progress=self._progress):
            keyed.found[found] = True

    def insert(self, rows: pa.Table, on: Sequence[str]) -> None:
        """Write rows whose keys no file contains. `on`: the columns of the key."""
        if not rows.num_rows:
            return
        with OwnWriter(self._spec) as writer:
            writer.insert(rows)
        self._add(writer.result)
        self._inserted = rows.num_rows
        partitioning = set(self._spec.partitioning)
        is_keyed = bool(partitioning) and partitioning <= set(on)
        texts = [result.files.column("partition").unique() for result in writer.result]
        self._tx.depend_on(texts if is_keyed else None)

    def _add(self, results: list) -> None:
        self._tx.add_task(results)
        self._added += sum(result.files.num_rows for result in results)

    def changes(self, version: int, counted_as: str) -> RowChanges:
        counts = {counted_as: sum(self._changed.values()), "inserted": self._inserted}
        return RowChanges(version, files_rewritten=len(self._changed), files_added=self._added, **counts)
