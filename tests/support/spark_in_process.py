"""Spark's part of a job, in this process: what property tests run many times, and a JVM would take minutes for.

Functions and parts are pickled on their way, as Spark does; partitions are run one after the other, each twice where
`tries` says so, as when a task is tried again: what the first try gave is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from skipstone.spark_adapter import clustering

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
    """Makes clustering run its jobs here; the session that it is given is not used."""

    def run_parts(spark: object, work: Callable, parts: Iterable, **_: object) -> list:
        return [cloudpickle.loads(cloudpickle.dumps((work, part)))[0](part) for part in parts]

    def run_job(spark: object, parts: Iterable, job: Callable[[Frame], Frame], **_: object) -> list:
        fields = {"number": pa.int64(), "part": pa.binary(), "path": pa.string()}
        rows = [{"number": at, "part": cloudpickle.dumps(part), "path": None} for at, part in enumerate(parts)]
        told = job(Frame([[pa.RecordBatch.from_pylist([row], pa.schema(fields.items()))] for row in rows], tries))
        return sorted(
            (row["number"], row["result"]) for batches in told.partitions for b in batches for row in b.to_pylist()
        )

    patch.setattr(clustering, "run_parts", run_parts)
    patch.setattr(clustering, "run_job", run_job)
    patch.setattr(clustering, "slots", lambda spark: 2)
