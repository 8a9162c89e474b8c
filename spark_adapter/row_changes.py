"""`delete` and `merge`: the driver plans and commits, and executors rewrite the files that contain such rows.

The files are found by pruning, and rewritten by `Table.delete` and `Table.upsert`, whose work on many files executors
do. The rows that a merge adds or updates are collected on the driver, and sent to the executors: the table may have any
size, its changes must fit the driver.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.progress import Progress, progress_function
from ..engine.rows_by_key.verbs import Change, WhenMatched, WhenNotMatched, key_names
from ..errors import InvalidArgumentError
from .executors import opened
from .jobs import run_action
from .sessions import read_where
from .wire_types import arrow_schema, check_incoming, names_in, to_table_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class RowChanges:
    """The result of `delete` and `merge`.

    version            the version created, or the current one if nothing changed
    deleted, updated, inserted    rows
    files_rewritten    files that were removed; their remaining rows are in new files
    """

    version: int
    deleted: int = 0
    updated: int = 0
    inserted: int = 0
    files_rewritten: int = 0


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
    with opened(spark, path, {"index_path": index_path, "storage_options": storage_options}) as (table, _):
        table.handle.check_owns_files()
        return _changes(table.delete(read_where(spark, where, table.schema), progress=progress))


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
        source: columns of the table, by name: those of `on`, and some others; one row for each key without a null.
        on: top-level columns, the key. Partition columns may be among them.
        when_matched: "update": the row gets the values of the source's columns other than `on`, and keeps its others;
            it moves to another partition if its partition columns change. "delete": the row is deleted. None: it stays.
        when_not_matched: "insert": a row of the source that matches none is added; columns that the source lacks are
            null. None: it is left out.
        index_path, storage_options: as for `scan`.
        progress: called as f(step, done, total), or True for a bar on stderr.

    Raises:
        InvalidArgumentError: two rows of the source have one key; nothing to do is requested; the table follows the log
        of another format.
        CommitConflictError: another writer removed one of the files concurrently; or rows were inserted, and another
        writer changed a partition where their keys may be: the partitions that get them if `on` names every partition
        column, else any. The table is unchanged.
        SchemaError: columns that the table does not have, or whose values do not fit; keys that are not compared.
        NotReadableError: a file that may match belongs to a file group, has logs, or deletes that we cannot apply; or
        was overwritten since it was indexed.
    """
    with opened(spark, path, {"index_path": index_path, "storage_options": storage_options}) as (table, _):
        table.handle.check_owns_files()
        rows = arrow_schema(source.schema)
        given, names = names_in(table.schema, rows.names), names_in(table.schema, key_names(on))
        check_incoming(rows, given, table.schema)
        collected = run_action(spark, source.toArrow, "source", progress_function(progress))
        changes = to_table_types(collected, given, table.schema)
        return _changes(
            table.upsert(
                changes, names, when_matched=when_matched, when_not_matched=when_not_matched, progress=progress
            )
        )


def _changes(change: Change) -> RowChanges:
    counts = change.rows_deleted, change.rows_updated, change.rows_inserted
    return RowChanges(change.version, *counts, change.files_rewritten)
