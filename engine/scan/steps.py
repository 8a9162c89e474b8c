"""The steps of a plan and their costs, for `explain`, `plan.steps`, hooks and the scan log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from ..observing import Event
from ..storage import Counted, Usage

if TYPE_CHECKING:
    from .request import ScanRequest, SortKey
    from .units import PruningState

_COLUMNS_MAX = 100  # of a line of the scan log
Reading = tuple[Usage, float]  # the requests so far, and the time in seconds


@dataclass
class Step:
    """One step.

    name        partitions | keys | files | positions | filter | statistics | row groups | rows, or that of another
                kind's probe
    unit        what is counted: "partitions", "files", "row groups", "rows"
    came_in, went_out    how many
    index       what answered: "partition values", "stats", "bloom(tail_num)", ...
    uncovered   of those that came in, how many the index does not cover
    requests, bytes_read, waits, elapsed_ms    what it cost; waits: requests that had to follow each other
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
    waits: int = 0
    elapsed_ms: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        """In a line, for a log."""
        by = f" by {self.index}" if self.index else ""
        cost = f"{self.elapsed_ms:,.1f} ms, {self.requests:,} requests, {self.bytes_read:,} bytes"
        return f"{self.name}{by}: {self.came_in:,} {self.unit} -> {self.went_out:,}, {cost}"

    def add(self, other: Step) -> None:
        """Goes on with another step."""
        self.went_out, self.uncovered = other.went_out, max(self.uncovered, other.uncovered)
        self.requests += other.requests
        self.bytes_read += other.bytes_read
        self.waits += other.waits
        self.elapsed_ms += other.elapsed_ms


class Steps:
    """The steps of one plan, in order, each with what it cost on the counted storages."""

    def __init__(self, *storages: Counted):
        self._storages = storages
        self.steps: list[Step] = []

    @contextmanager
    def step(
        self, name: str, unit: str, since: Reading | None = None, index: str = "", *, joins: bool = False
    ) -> Iterator[Step]:
        """One step, which costs what is read and waited from here, or from an earlier reading, to its end. One that
        `joins` continues the step before it if that has the same name."""
        step = Step(name, unit, index=index)
        before, start = since or self.reading()
        try:
            yield step
        finally:
            after, stop = self.reading()
            step.requests, step.bytes_read, step.waits = after.since(before)
            step.elapsed_ms = (stop - start) * 1e3
            if joins and self.steps and self.steps[-1].name == name:
                self.steps[-1].add(step)
            else:
                self.steps.append(step)

    def reading(self) -> Reading:
        """Return the requests so far, and the time."""
        usage = Usage()
        for storage in self._storages:
            usage = usage.plus(storage.reading())
        return usage, time.perf_counter()


def bytes_text(count: float) -> str:
    """A number of bytes in a unit that suits it."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError


def count_of(count: int, one: str) -> str:
    """ "1 file", "2,000 files"."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"


# - for hooks and the scan log -----------------------------------------------------------------------------------------


def _figures(request: ScanRequest, remaining: PruningState, steps: Sequence[Step]) -> dict[str, int]:
    totals, files = request.snapshot.instant.totals, remaining.units.files
    return {
        "files_in": totals["files"],
        "files_kept": files.num_rows,
        "bytes_in": totals["bytes"],
        "bytes_kept": pc.sum(files.column("size_bytes")).as_py() or 0,
        "requests": sum(step.requests for step in steps),
        "index_bytes": sum(step.bytes_read for step in steps),
        "waits": sum(step.waits for step in steps),
    }


def event_of(request: ScanRequest, predicate_text: str, remaining: PruningState, steps: Sequence[Step]) -> Event:
    """The event: `steps` are those that led to the remaining."""
    figures = _figures(request, remaining, steps)
    location, version = request.storage.uri, request.snapshot.instant.version
    elapsed_ms = sum(step.elapsed_ms for step in steps)
    text = (
        f"scan of {location} version {version} where {predicate_text}: {figures['files_in']:,} files -> "
        f"{figures['files_kept']:,}, {elapsed_ms:,.1f} ms, {figures['requests']:,} requests, "
        f"{figures['index_bytes']:,} bytes"
    )
    return Event("plan", location, version, elapsed_ms, figures, text, [str(step) for step in steps])


def log_entry(
    request: ScanRequest,
    columns: Sequence[str],
    order_by: Sequence[SortKey],
    remaining: PruningState,
    steps: Sequence[Step],
) -> dict[str, Any]:
    """Return the fields of a line of the scan log, except the predicate."""
    return {
        "table": request.storage.uri,
        "version": request.snapshot.instant.version,
        "columns": None if request.columns is None else columns[:_COLUMNS_MAX],
        "order_by": [key.column for key in order_by],
        "limit": request.limit,
        **_figures(request, remaining, steps),
        "ms": round(sum(step.elapsed_ms for step in steps), 3),
    }
