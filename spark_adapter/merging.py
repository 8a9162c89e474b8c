"""`merge`: rows of a DataFrame into a table by a key. Rows that are there are updated or deleted, others inserted.

    source, each row with its encoded key      computed once, and kept by Spark until the end
    candidate files                            few keys by a predicate, many by the secondary index and their range
    (file, key) that are in both               the key's columns of those files are read, and joined with the source
    matched rows of the source, by file        each file is written anew by the task that its rows are dealt to
    other rows of the source                   written as they come

Keys are compared as `lookup` compares them: in one encoded form, in which rows of both sides are equal where `=` is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from ..base.arrays import to_numpy
from ..engine.indexes.row_index import best_index, leading_names
from ..engine.open import open_table
from ..engine.parquet.leaves import leaf_types
from ..engine.predicates import Node, col
from ..engine.progress import Progress, progress_function
from ..engine.rows_by_key.rewrite import OldFile, with_codec_of
from ..engine.rows_by_key.verbs import key_names
from ..engine.scan.keys import encoded_keys
from ..engine.scan.lookup import FEW_KEYS
from ..engine.scan.plan import Plan
from ..engine.scan.planning import PlannedScan
from ..engine.scan.request import ScanRequest
from ..errors import InvalidArgumentError, SchemaError
from .jobs import RESULT_SCHEMA, batches_only, described, frame_of_parts, run_action, run_frame
from .key_files import key_range, uncovered_units
from .rewriting import RowChanges, rewritable
from .rewriting_tasks import InsertRows, Keys, KeysOfFiles, Merged, MergeRows
from .semi_join_tasks import ShippedLookup, find_rows
from .shares import pack
from .spark_versions import collected, slots
from .wire_types import arrow_schema, check_incoming, names_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..engine.scan.file_tasks import FileTask
    from ..engine.table import Table
    from ..engine.tasks.spec import TaskSpec

R = TypeVar("R")
WhenMatched = Literal["update", "delete"]
WhenNotMatched = Literal["insert"]

_PARTS_A_CORE = 3


@described("merge")
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
    """Merges the rows of a DataFrame into a table, in one commit, or none where nothing is to be done.

        sks.merge(spark, "lake/flights", updates, on=["flight", "day"])

    A row of the table whose values in `on` equal those of a row of the source is matched by it. A null equals nothing:
    such rows of the source are not matched, and inserted. The source is computed once.

    Args:
        path: the table's directory; executors must see it under the same name.
        source: columns of the table, by name: those of `on`, and some others.
        on: top-level columns, the key. Partition columns may be among them.
        when_matched: "update": the row takes the values of the source's columns other than `on`, and keeps its others;
            it goes to another partition where its partition columns change. "delete": the row goes. None: it stays.
        when_not_matched: "insert": a row of the source that matches none is added; columns that the source lacks are
            null. None: it is left out.
        index_path, storage_options: as for `scan`.
        progress: called as f(step, done, total), or True for a bar on stderr.

    Raises:
        InvalidArgumentError: several rows of the source match one that is to be updated; nothing to do is asked for;
        the table follows the log of another format.
        CommitConflictError: another writer took one of the files out meanwhile; or rows were inserted, and another
        changed a partition where their keys may be: the partitions that get them, where `on` names every partition
        column, else any. The table is as it was.
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
        table.handle.check_latest()
        table.handle.check_owns_files()
        keys = _checked(source, on, table.schema)
        if when_matched == "update" and len(keys.given) == len(keys.on):
            raise InvalidArgumentError("the source has no column besides on=, so there is nothing to update")
        work = _Merge(spark, table, keys, source, report)
        plan, tasks = work.candidates()
        files = rewritable(table, plan, tasks)
        with table.transaction() as tx:
            spec = tx.task_spec()
            if tasks:
                spec = with_codec_of(spec, plan.planning.storage, tasks)
            written = work.write(plan, files, spec, when_matched, when_not_matched == "insert")
            changed: dict[str, int] = {}
            for part in written:
                tx.add_task(part.results)
                changed |= part.changed
            tx.remove(list(changed))
            inserted = sum(part.inserted for part in written)
            if inserted:
                partitioning = table.handle.instant.partitioning
                texts = [r.files.column("partition").unique() for p in written if p.inserted for r in p.results]
                tx.depend_on(texts if partitioning and set(partitioning) <= set(keys.on) else None)
        count = sum(changed.values())
        return RowChanges(
            table.version,
            deleted=count if when_matched == "delete" else 0,
            updated=count if when_matched == "update" else 0,
            inserted=inserted,
            files_rewritten=len(changed),
            files_added=sum(result.files.num_rows for part in written for result in part.results),
        )


def _checked(source: DataFrame, on: str | Sequence[str], schema: pa.Schema) -> Keys:
    names = key_names(on)
    rows = arrow_schema(source.schema)
    given = names_in(schema, rows.names)
    check_incoming(rows, given, schema)
    kinds, names = leaf_types(schema), tuple(names_in(schema, names))
    for name in names:
        if name not in kinds:
            raise SchemaError(f"column {name!r} is {schema.field(name).type}, which is no type of a key")
        if name not in given:
            raise SchemaError(f"the source has no column {name!r}, which on= names; it has {', '.join(given)}")
    sample = pa.table([pa.nulls(1, rows.field(given.index(name)).type) for name in names], names=list(names))
    encoded_keys(sample, [kinds[name] for name in names])  # raises for types that are not compared
    return Keys(tuple(given), names, schema)


class _Merge:
    """The jobs of one merge."""

    def __init__(self, spark: SparkSession, table: Table, keys: Keys, source: DataFrame, progress: Progress | None):
        self._spark, self._table, self._keys, self._progress = spark, table, keys, progress
        fields = [StructField(f"s{i}", field.dataType) for i, field in enumerate(source.schema)]
        named = source.toDF(*(field.name for field in fields))
        keyed = named.mapInArrow(
            batches_only(keys.add_to_source), StructType([*fields, StructField("key", BinaryType())])
        )
        # Kept, not computed again: what changes between two computations would be in some files and not in others.
        self._source = self._watched(keyed.localCheckpoint, "source")

    def candidates(self) -> tuple[Plan, list[FileTask]]:
        """The files that may hold a key, and the plan that found them."""
        instant = self._table.handle.snapshot.instant
        names = list(self._keys.on)
        index = best_index(instant, names)
        leading = [] if index is None else leading_names(instant, index, names)
        names = [*leading, *(name for name in names if name not in leading)]
        columns = [self._source[f"s{self._keys.given.index(name)}"] for name in names]
        complete = self._source.where(self._source["key"].isNotNull())
        keys = complete.select(*(column.alias(f"k{i}") for i, column in enumerate(columns)))
        where = self._few(keys, names)
        if where is not None:
            planning = PlannedScan(ScanRequest.of(self._table.handle), where)
            return Plan(planning), planning.readable_tasks()
        planning = PlannedScan(ScanRequest.of(self._table.handle), key_range(keys, names, self._progress))
        if index is None:
            return Plan(planning), planning.readable_tasks()
        lookup = ShippedLookup.of(self._table, names, len(leading), index)
        sought = keys.select(*keys.columns[: len(leading)]).distinct()
        sought = sought.repartitionByRange(*sought.columns).sortWithinPartitions(*sought.columns)
        rows = sought.mapInArrow(batches_only(partial(find_rows, lookup)), "file long, row long")
        hits = self._watched(partial(collected, rows.select("file").distinct()), "keys")
        units = planning.pruned.units
        ids = to_numpy(units.files.column("file_id"))
        chosen = uncovered_units(planning, self._table, index)
        chosen[units.unit_of[np.isin(ids, to_numpy(hits.column("file")).view(np.uint64))]] = True
        return Plan(planning), planning.readable_tasks(chosen)

    def _few(self, keys: DataFrame, names: list[str]) -> Node | None:
        """The keys as a predicate; None where they are many, or of several columns."""
        if len(names) > 1:
            return None
        few = self._watched(partial(collected, keys.distinct().limit(FEW_KEYS + 1)), "keys")
        return None if few.num_rows > FEW_KEYS else col(names[0]).is_in(few.column(0).combine_chunks())

    def _watched(self, act: Callable[[], R], step: str) -> R:
        return run_action(self._spark, act, step, self._progress)

    def write(
        self, plan: Plan, files: list[OldFile], spec: TaskSpec, when_matched: str | None, inserts: bool
    ) -> list[Merged]:
        """What the writing tasks did."""
        frames: list[DataFrame] = []
        tasks = [file.task for file in files]
        matched = self._matched(plan, tasks) if tasks else None
        if matched is not None and when_matched is not None:
            if inserts:
                matched = self._watched(matched.localCheckpoint, "matched rows")
            rows = matched.join(self._source, ["key"]) if when_matched == "update" else matched
            keys = self._keys
            updated = tuple(name for name in keys.given if name not in keys.on) if when_matched == "update" else ()
            write = MergeRows(keys, updated, plan.planning.context, _whole(files), spec)
            count = min(len(tasks), _PARTS_A_CORE * slots(self._spark))
            dealt = rows.repartition(count, rows["file"]).sortWithinPartitions("file")
            frames.append(dealt.mapInArrow(batches_only(write), RESULT_SCHEMA))
        if inserts:
            rest = self._source
            if matched is not None:
                rest = rest.join(matched.select("key").distinct(), ["key"], "left_anti")
            rest = rest.select(*(f"s{i}" for i in range(len(self._keys.given))))
            frames.append(rest.mapInArrow(batches_only(InsertRows(self._keys, spec)), RESULT_SCHEMA))
        results: list[Merged] = []
        for frame, step in zip(frames, ("merge, parts", "insert, parts"), strict=False):
            parts = run_frame(self._spark, frame, slots(self._spark), step=step, progress=self._progress)
            results += [part for _, part in parts]
        return results

    def _matched(self, plan: Plan, tasks: Sequence[FileTask]) -> DataFrame:
        """(key, file) of the keys of the source that files hold, each once; a file by its place among the tasks."""
        context = plan.planning.context_for(self._keys.on, *self._keys.on)
        numbers = {task.path: number for number, task in enumerate(tasks)}
        work = KeysOfFiles(self._keys, context, numbers)
        parts = frame_of_parts(self._spark, pack(tasks, slots(self._spark)))
        of_files = parts.mapInArrow(batches_only(work), "file long, key binary")
        of_source = self._source.select("key").where("key is not null").distinct()
        return of_files.join(of_source, ["key"], "left_semi").distinct()


def _whole(files: list[OldFile]) -> list[OldFile]:
    """The files without what only pruning needs: all of them go to every task."""
    return [
        replace(file, task=replace(file.task, all_match=True, rows=None, rows_exact=False, fine=(), filters={}))
        for file in files
    ]
