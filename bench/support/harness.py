"""The tables that every benchmark prints: us, the peers and the floor side by side, from one run.

    bench = Bench("needle", "A needle in 6 M rows", libraries=["duckdb"])
    bench.case("hit", "skipstone", look_up, kind="us")
    bench.case("hit", "DuckDB", ask_duckdb)
    bench.case("hit", "read the row group", read_it, kind="floor", note="gets the position")
    bench.run(rounds=7)
    bench.report()

Before anything is timed, every contender of a row returns one answer, and the answers must be equal: a fast wrong
answer is no result. A floor may do less than the work (for example, read one column); it then returns None and is not
compared. This call is also the warm-up.

Contenders are timed in turn, A B C A B C ..., so that a machine that slows down slows all of them; a ratio is the
median over the rounds of contender / us within one round. Compare the ratios: absolute times are those of one machine
and one day. With `run(apart=True)` each contender is called in its own process (`apart.py`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import pyarrow as pa

from .apart import Process, asking

RESULTS = Path(__file__).parents[1] / "results"
_SAMPLE_S_MIN = 0.002
_CALLS_MAX = 10_000
# Larger tables are compared unchanged, in the given order: as Python objects they would take minutes.
_LISTED_ROWS_MAX = 100_000
_ALWAYS_LISTED = ("skipstone", "numpy", "pyarrow", "numba")


class AnswersDifferError(AssertionError):
    """Two contenders of one row returned different answers: nothing is timed."""


@dataclass(frozen=True)
class Answer:
    """The return value of a contender that also reports the cost of its answer, instead of a bare value."""

    value: Any
    requests: int | None = None
    bytes: int | None = None


@dataclass
class _Case:
    row: str
    contender: str
    fn: Callable[..., Any]
    setup: Callable[[], Any] | None
    note: str | None
    kind: Literal["us", "peer", "floor"]
    every: int = 1
    calls: int = 1
    requests: int | None = None
    bytes: int | None = None
    samples_s: list[float] = field(default_factory=list)
    process: Process | None = None  # in which it is called, if not in this one

    @property
    def engine(self) -> str:
        """The contender whose process it shares: names that differ only after a comma share one."""
        return self.contender.partition(",")[0]

    def ask(self, verb: Literal["answer", "prepare", "sample", "release"]) -> Any:
        """Return the result of one of these methods, from the process in which it is called."""
        return getattr(self, verb)() if self.process is None else self.process.ask(verb, self.row, self.contender)

    def answer(self) -> Answer:
        """Return the answer, in a form that can be compared."""
        value, _ = self.call()
        answer = value if isinstance(value, Answer) else Answer(value)
        return replace(answer, value=None if answer.value is None else _plain(answer.value))

    def prepare(self) -> None:
        """Compute how often a sample calls it."""
        self.calls = _calls_for(self)

    def call(self) -> tuple[Any, float]:
        """Return one answer and the seconds of one call; `setup` is not part of the time."""
        arguments = () if self.setup is None else (self.setup(),)
        start = time.perf_counter()
        answer = self.fn(*arguments)
        return answer, time.perf_counter() - start

    def release(self) -> None:
        """Drop the function and the memory that it uses: it is not called again."""
        self.fn, self.setup = lambda: None, None

    def sample(self) -> float:
        """Return the seconds per call: of one call, or the mean over as many as the clock needs."""
        if self.setup is not None:
            return self.call()[1]
        start = time.perf_counter()
        for _ in range(self.calls):
            self.fn()
        return (time.perf_counter() - start) / self.calls


class Bench:
    """One table of measurements: rows are tasks, contenders are the systems that do them.

    name       `make bench NAME=<name>` writes bench/results/<name>.md and .json
    libraries  distributions whose versions belong to the result, in addition to Skipstone's
    results    another folder for the result files
    """

    def __init__(self, name: str, title: str, *, libraries: Sequence[str] = (), results: Path = RESULTS) -> None:
        self.name, self.title = name, title
        self._libraries, self._results = libraries, results
        self._cases: list[_Case] = []

    def case(
        self,
        row: str,
        contender: str,
        fn: Callable[..., Any],
        *,
        setup: Callable[[], Any] | None = None,
        note: str | None = None,
        kind: Literal["us", "peer", "floor"] = "peer",
        every: int = 1,
    ) -> None:
        """Add a contender to a row.

        `fn` returns its answer: a value, a pyarrow Table or array (rows in any order), or an `Answer` around one of
        them. `setup` runs before every timed call, outside of the time; its result is passed to `fn`. A slow contender
        may take part only in one of `every` rounds.
        """
        others = [case for case in self._cases if case.row == row]
        if any(case.contender == contender for case in others):
            raise ValueError(f"row {row!r} has a contender {contender!r} already")
        if kind == "us" and any(case.kind == "us" for case in others):
            raise ValueError(f"row {row!r} has one of us already: call the other one a peer")
        if kind == "us" and every != 1:
            raise ValueError(f"row {row!r}: all others are compared with us, so we take part in every round")
        self._cases.append(_Case(row, contender, fn, setup, note, kind, every))

    def measured(
        self,
        row: str,
        contender: str,
        samples_s: list[float],
        *,
        kind: Literal["us", "peer", "floor"] = "peer",
        note: str | None = None,
    ) -> None:
        """Add a contender that was timed elsewhere; without samples it did not finish. The caller compares answers."""
        self._cases.append(_Case(row, contender, lambda: None, None, note, kind, samples_s=samples_s))

    def run(self, rounds: int = 5, *, apart: bool = False) -> None:
        """Compare the answers of each row, then time all contenders of the row in turn, `rounds` times. Rows that an
        earlier run has timed do not change. `apart`: each contender is called in its own process, which is this command
        again up to here."""
        if apart and (connection := asking()) is not None:
            self._serve(connection)
        with contextlib.ExitStack() as stack:
            processes: dict[str, Process] = {}
            for case in self._cases if apart else ():
                if case.engine not in processes:
                    processes[case.engine] = Process()
                    stack.callback(processes[case.engine].close)
                case.process = processes[case.engine]
            for row in dict.fromkeys(case.row for case in self._cases):
                cases = [case for case in self._cases if case.row == row]
                if not cases[0].samples_s:
                    self._compare(row, cases)
                    _time(cases, rounds)

    def _serve(self, connection: Connection) -> NoReturn:
        """Serve a process of some contenders: call what it requests, until the connection is closed."""
        gc.disable()
        with connection, contextlib.suppress(EOFError):
            while True:
                verb, row, contender = connection.recv()
                case = next(case for case in self._cases if (case.row, case.contender) == (row, contender))
                result = getattr(case, verb)()
                if verb == "answer":
                    gc.collect()
                connection.send(result)
        raise SystemExit

    def figures(self) -> list[dict[str, Any]]:
        """Return the measurements, one per contender and row: row, contender, kind, median_s, ratio_to_us (of the
        row's), requests, bytes, note, samples_s."""
        return [self._figures(case) for case in self._cases]

    def report(self, sections: Sequence[str] = (), counts: Mapping[str, int] | None = None) -> str:
        """Write bench/results/<name>.md and .json, print the former, return it. `sections`: lines of Markdown after
        the table; `counts`: values that were counted instead of timed, for the page of all results."""
        machine = machine_line(self._libraries)
        rounds = statistics.mode([len(case.samples_s) for case in self._cases] or [0])
        measured = self.figures()
        text = "\n".join(
            [
                f"# {self.title}",
                "",
                *(_table(measured, rounds) if measured else []),
                *([*sections, ""] if sections else []),
                f"Machine: {machine}",
                "",
                f"How to rerun: `make bench NAME={self.name}`",
                "",
            ]
        )
        document: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "machine": machine,
            "cases": measured,
        }
        document |= {"sections": list(sections)} if sections else {}
        document |= {"counts": dict(counts)} if counts else {}
        self._results.mkdir(parents=True, exist_ok=True)
        (self._results / f"{self.name}.md").write_text(text, encoding="utf-8")
        (self._results / f"{self.name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(text)
        return text

    def _compare(self, row: str, cases: list[_Case]) -> None:
        first: tuple[str, Any] | None = None
        for case in cases:
            answer: Answer = case.ask("answer")
            case.requests, case.bytes, plain = answer.requests, answer.bytes, answer.value
            if plain is None:
                if case.kind != "floor":
                    raise AnswersDifferError(f"{row}: {case.contender} gave no answer, and only a floor may")
                continue
            if first is None:
                first = (case.contender, plain)
            elif plain != first[1]:
                shown = f"{first[0]} says {_short(first[1])}, {case.contender} says {_short(plain)}"
                raise AnswersDifferError(f"{row}: {shown}")

    def _figures(self, case: _Case) -> dict[str, Any]:
        us = next((other for other in self._cases if other.row == case.row and other.kind == "us"), None)
        ratio = None
        if us is not None and case.samples_s:
            pairs = zip(case.samples_s, us.samples_s[:: case.every], strict=True)
            ratio = statistics.median(one / ours for one, ours in pairs)
        return {
            "row": case.row,
            "contender": case.contender,
            "kind": case.kind,
            "median_s": statistics.median(case.samples_s) if case.samples_s else None,
            "ratio_to_us": ratio,
            "requests": case.requests,
            "bytes": case.bytes,
            "note": case.note,
            "samples_s": case.samples_s,
        }


def _time(cases: list[_Case], rounds: int) -> None:
    for case in cases:
        case.ask("prepare")
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for case in cases:
                if number % case.every == 0:
                    case.samples_s.append(case.ask("sample"))
    finally:
        gc.enable()
    for case in cases:
        case.ask("release")
        case.release()


def next_of(values: Sequence[Any]) -> Callable[[], Any]:
    """Return a setup that returns one value after the other, and then starts again."""
    cycle = itertools.cycle(values)
    return lambda: next(cycle)


def machine_line(libraries: Sequence[str] = ()) -> str:
    """Return CPU, cores, Python and the versions of the libraries: all that figures depend on, without a host name."""
    versions = []
    for name in dict.fromkeys([*_ALWAYS_LISTED, *libraries]):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} absent")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = f"{platform.system()} {platform.machine()}"
    return f"{_cpu()}, {cores} cores, {system}, Python {platform.python_version()}; {', '.join(versions)}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _calls_for(case: _Case) -> int:
    if case.setup is not None:
        return 1
    _, once_s = case.call()
    return max(1, min(_CALLS_MAX, round(_SAMPLE_S_MIN / max(once_s, 1e-9))))


def _plain(answer: Any) -> Any:
    """Return one form for answers of different libraries: rows as tuples in a fixed order of columns, sorted."""
    if isinstance(answer, pa.RecordBatch):
        answer = pa.table(answer)
    if isinstance(answer, pa.Table) and answer.num_rows > _LISTED_ROWS_MAX:
        return _Rows(answer)
    if isinstance(answer, pa.Table):
        columns = [answer.column(name).to_pylist() for name in sorted(answer.column_names)]
        return sorted(answer.column_names), sorted(zip(*columns, strict=True), key=repr)
    if isinstance(answer, (pa.Array, pa.ChunkedArray)):
        return sorted(answer.to_pylist(), key=repr)
    if isinstance(answer, np.ndarray):
        return answer.tolist()
    return answer


class _Rows:
    """A large table. It equals others with the same rows in the same order, with texts of any layout."""

    def __init__(self, table: pa.Table):
        names = sorted(table.column_names)
        self._table = table.select(names).cast(pa.schema([(name, table.field(name).type) for name in names]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Rows) or self._table.column_names != other._table.column_names:
            return False
        return self._table.equals(other._table.cast(self._table.schema))

    def __repr__(self) -> str:
        return f"{self._table.num_rows:,} rows, {self._table.slice(0, 2).to_pylist()} ..."


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text):,} characters)"


def _table(measured: list[dict[str, Any]], rounds: int) -> list[str]:
    lines = [
        "| task | contender | time | / us | requests | bytes | spread | note |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    previous = None
    for one in measured:
        row = "" if one["row"] == previous else one["row"]
        previous = one["row"]
        who = f"**{one['contender']}**" if one["kind"] == "us" else one["contender"]
        who = f"*floor:* {who}" if one["kind"] == "floor" else who
        spread = ""
        if one["samples_s"]:
            spread = f"{time_text(min(one['samples_s']))} - {time_text(max(one['samples_s']))}"
        cells = [
            row,
            who,
            time_text(one["median_s"]),
            _ratio(one["ratio_to_us"]),
            _count(one["requests"]),
            _count(one["bytes"]),
        ]
        lines.append(f"| {' | '.join([*cells, spread, one['note'] or ''])} |")
    explained = (
        f"Median of {rounds} interleaved rounds; `/ us` is the median of the ratios within a round, above 1 where we "
        "are faster. Answers were compared before anything was timed."
    )
    return [*lines, "", explained, ""]


def time_text(seconds: float | None) -> str:
    """Return seconds as text, in a suitable unit; nothing if nothing was measured."""
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            shown = seconds / size
            return f"{shown:,.0f} {unit}" if shown >= 100 else f"{shown:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
