"""Spark's part of a job, in this process: what property tests run many times, and a JVM would take minutes for.

Functions and parts are pickled on their way, as Spark does; partitions are run one after the other, each twice if
`tries` says so, as when a task is tried again: what the first try gave is thrown away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from skipstone.engine.open import open_table
from skipstone.errors import SkipstoneError
from skipstone.spark_adapter import clustering, executors, jobs
from skipstone.spark_adapter.options import Request
from skipstone.spark_adapter.source import SkipstoneReader
from skipstone.spark_adapter.wire_types import spark_schema, wire_schema

Function = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Frame:
    """The few verbs of a DataFrame that jobs use, over batches by partition."""

    def __init__(self, partitions: list[list[pa.RecordBatch]], tries: int):
        self.partitions, self._tries = partitions, tries

    def mapInArrow(self, function: Function, schema: str) -> Frame:
        def mapped(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
            for _ in range(self._tries):
                found = list(cloudpickle.loads(cloudpickle.dumps(function))(iter(batches)))
            return found

        return Frame([mapped(batches) for batches in self.partitions], self._tries)

    def repartitionById(self, count: int, column: str) -> Frame:
        dealt: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
        for batches in self.partitions:
            for batch in batches:
                for at, number in enumerate(batch.column(column).to_pylist()):
                    dealt[number % count].append(batch.slice(at, 1))
        return Frame(dealt, self._tries)

    def sortWithinPartitions(self, column: str) -> Frame:
        ordered = [sorted(batches, key=lambda b: b.column(column)[0].as_py()) for batches in self.partitions]
        return Frame(ordered, self._tries)


def run_here(patch: pytest.MonkeyPatch, tries: int = 1) -> None:
    """Make the verbs run their jobs here; the session that they get is not used."""

    def map_parts(
        spark: object,
        function: Callable,
        parts: Iterable,
        *,
        step: str = "parts",
        progress: Callable | None = None,
        on_result: Callable | None = None,
    ) -> list:
        outcomes = [_outcome(*cloudpickle.loads(cloudpickle.dumps((function, part)))) for part in parts]
        results = [outcome for outcome in outcomes if not isinstance(outcome, SkipstoneError)]
        for done, result in enumerate(results, start=1):
            if on_result is not None:
                on_result(result)
            if progress is not None:
                progress(step, done, len(outcomes))
        for error in outcomes:
            if isinstance(error, SkipstoneError):
                raise error
        return results

    def frame_of_parts(spark: object, parts: Iterable) -> Frame:
        return Frame([[row] for row in real(None, parts)], tries)  # type: ignore[arg-type]

    def run_frame(spark: object, frame: Frame, tasks: int, **_: object) -> list:
        rows = [row for batches in frame.partitions for batch in batches for row in batch.to_pylist()]
        return [(row["number"], cloudpickle.loads(row["result"])) for row in rows]

    real = clustering.frame_of_parts
    patch.setattr(jobs, "_frame_of", lambda spark, encoded: _one_by_one(encoded))
    for module in (clustering, executors):
        patch.setattr(module, "map_parts", map_parts)
        patch.setattr(module, "slots", lambda spark: 2)
    patch.setattr(clustering, "frame_of_parts", frame_of_parts)
    patch.setattr(clustering, "run_frame", run_frame)


def _outcome(function: Callable, part: object) -> object:
    """Return the result of a part, or one of our errors; any other error ends the job, as in Spark."""
    try:
        return function(part)
    except SkipstoneError as error:
        return error


def _one_by_one(encoded: list[bytes]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"number": [at], "part": [part]}) for at, part in enumerate(encoded)]


def read_here(path: str | os.PathLike, **options: Any) -> pa.Table:
    """Return what the tasks of a scan read, each in this process: the reader and its partitions are pickled."""
    with open_table(path) as table:
        schema = spark_schema(wire_schema(table.schema))
    reader = SkipstoneReader(Request(os.fspath(path), **options), schema)
    reader, partitions = cloudpickle.loads(cloudpickle.dumps((reader, reader.partitions())))
    return pa.Table.from_batches([batch for each in partitions for batch in reader.read(each)])
