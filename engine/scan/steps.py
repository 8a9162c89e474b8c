"""What each step of a plan did: the lines of `explain`, and `plan.steps` for machines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..storage import Counted

Reading = tuple[tuple[int, int], float]  # ((requests, bytes), seconds)


@dataclass
class Step:
    """One step.

    name        partitions | files | statistics | filter | row groups | rows
    unit        what is counted: "partitions", "files", "row groups", "rows"
    came_in, went_out    how many
    index       what answered: "partition values", "stats", "bloom(tail_num)", ...
    uncovered   of those that came in, how many the index does not speak for
    requests, bytes_read, elapsed_ms    what it cost
    note        anything else that a person should know
    """

    name: str
    unit: str
    came_in: int = 0
    went_out: int = 0
    index: str = ""
    uncovered: int = 0
    requests: int = 0
    bytes_read: int = 0
    elapsed_ms: float = 0.0
    note: str = ""


class Steps:
    """The steps of one plan, in order, each with what it cost on the counted storages."""

    def __init__(self, *storages: Counted):
        self._storages = storages
        self.steps: list[Step] = []

    @contextmanager
    def step(self, name: str, unit: str, since: Reading | None = None) -> Iterator[Step]:
        """One step, which costs what is read and waited from here, or from an earlier reading, to its end."""
        step = Step(name, unit)
        before, start = since or self.reading()
        try:
            yield step
        finally:
            after, stop = self.reading()
            step.requests, step.bytes_read = after[0] - before[0], after[1] - before[1]
            step.elapsed_ms = (stop - start) * 1e3
            self.steps.append(step)

    def reading(self) -> Reading:
        """What was read until now, and the time."""
        readings = [s.reading() for s in self._storages]
        return (sum(r for r, _ in readings), sum(b for _, b in readings)), time.perf_counter()
