"""The rows of a column in bench/sorted_file.py: what is asked of whom, with which handle, beside which floor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import zstandard

from bench.support import sorted_file_merging
from bench.support.harness import Answer, Bench
from bench.support.sorted_file_contender import US, Contender
from bench.support.sorted_file_data import Column
from bench.support.sorted_file_merging import CLUSTERED, SPREAD, prepare
from bench.support.sorted_file_ours import Ours, counted
from bench.support.sorted_file_peers import PEERS

BUILD, COLD, SCAN, SCAN_TWO = "build", "cold open + first get", "full scan, cold", "scan of two columns, cold"
PARTITION, PARTITIONS = "one partition, warm", "list of partitions, warm"
GET_WARM, GET_COLD, MANY_WARM, MANY_COLD = "get, warm", "get, block cold", "get_many, warm", "get_many, cold"
ARROW, CHANGED, COPY = "Arrow, concat + sort", "writing the blocks that change", "read and write the file"
_BUILD_ROUNDS = _LARGE_ROUNDS = 3
_TWO_COLUMNS = ["id", "seen"]
# Of a larger column the files are kept as they were built, who would take minutes for a scan is left out, and nothing
# is merged.
LARGE_ENTRIES = 5_000_000
_LARGE_SCANS = (US, "LMDB", "Parquet")
_SLOW = "Parquet"  # where keys are sought: it takes part in every third round


@dataclass(frozen=True)
class Load:
    """How many keys a call asks for, and how many entries are merged onto a file.

    gets, cold_gets   one by one, in a row: a time is that of one
    many              at once
    merged            onto columns of four times as many, or more
    """

    gets: int = 1_000
    cold_gets: int = 200
    many: int = 10_000
    merged: int = sorted_file_merging.ENTRIES

    @property
    def calls(self) -> dict[str, int]:
        """The tasks of which a time is that of several calls."""
        return {GET_WARM: self.gets, GET_COLD: self.cold_gets}


class Timing:
    """A column, its contenders, and their rows of `bench`, named `column: task`."""

    def __init__(self, bench: Bench, column: Column, load: Load, cache: Path, work: Path):
        self._bench, self.column, self._load, self._work = bench, column, load, work
        self.contenders = [Contender(name, column, cache) for name in (US, *PEERS)]
        self.is_large = len(column) >= LARGE_ENTRIES
        self._random = np.random.default_rng(len(column))
        self._values = column.values.combine_chunks()

    def run(self, rounds: int) -> None:
        """Adds the rows and times them; those of a large column in three rounds at most."""
        rounds = min(rounds, _LARGE_ROUNDS) if self.is_large else rounds
        if not self.is_large:
            self._building()
            self._bench.run(min(rounds, _BUILD_ROUNDS))
            self._forget()
        self._opening()
        self._partitions()
        self._gets(GET_WARM, self._load.gets, Contender.warm)
        self._many(MANY_WARM, Contender.warm)
        self._gets(GET_COLD, self._load.cold_gets, Contender.cold)
        self._many(MANY_COLD, Contender.cold)
        self._scans(rounds)
        if 4 * self._load.merged <= len(self.column) < LARGE_ENTRIES:
            self._merges(rounds)
        self._bench.run(rounds)
        self._forget()

    def row(self, task: str) -> str:
        return f"{self.column.name}: {task}"

    def _forget(self) -> None:
        for contender in self.contenders:
            contender.forget()

    def _case(
        self,
        task: str,
        contender: Contender,
        handle: Callable[[Contender], Any],
        ask: Callable[[Any, Any], Any],
        question: Callable[[], Any] = lambda: None,
        every: int = 1,
        note: str | None = None,
    ) -> None:
        """`handle` and `question` give, outside of the time, what is asked and for what. Ours counts its requests."""
        is_us = contender.name == US

        def timed(given: tuple[Any, Any]) -> Any:
            if isinstance(given[0], Ours):
                return counted(given[0], lambda: ask(*given))
            return ask(*given)

        def given() -> tuple[Any, Any]:
            return handle(contender), question()

        kind: Literal["us", "peer"] = "us" if is_us else "peer"
        seldom = 1 if is_us else every
        self._bench.case(self.row(task), contender.name, timed, setup=given, kind=kind, every=seldom, note=note)

    def _floor(
        self, task: str, name: str, work: Callable[[Any], Any], question: Callable[[], Any], **more: Any
    ) -> None:
        """Work whose answer is not compared."""

        def done(argument: Any) -> None:
            work(argument)

        self._bench.case(self.row(task), name, done, setup=question, kind="floor", **more)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _building(self) -> None:
        def prepared(contender: Contender) -> Contender:
            contender.prepare()
            return contender

        for contender in self.contenders:
            self._case(BUILD, contender, prepared, lambda who, _: who.make(self._work / who.name))
        data, compressor = _as_arrow(self.column), zstandard.ZstdCompressor(level=1)
        self._floor(BUILD, "zstd of keys and values", compressor.compress, lambda: data)

    def _opening(self) -> None:
        def ask(who: Contender, key: bytes) -> Any:
            handle = who.open()
            row = handle.get(key)
            return Answer(row, handle.source.requests, handle.source.bytes) if isinstance(handle, Ours) else row

        keys = self.column.sample(50, self._random)
        for contender in self.contenders:
            self._case(COLD, contender, Contender.closed, ask, _next(keys))

    def _partitions(self) -> None:
        column = self.column
        picked = self._random.integers(0, len(column.partitions), 50).tolist()
        prefixes = [column.partitions[i] for i in picked]
        for contender in self.contenders:
            self._case(PARTITION, contender, Contender.warm, lambda store, prefix: store.scan(prefix), _next(prefixes))
        parts = [_as_arrow(column, int(column.starts[i]), int(column.starts[i + 1])) for i in picked]
        self._floor(PARTITION, "memcpy", bytearray, _next(parts))
        for contender in self.contenders:
            self._case(PARTITIONS, contender, Contender.warm, lambda store, _: store.partitions())
        self._floor(PARTITIONS, "copy of the list", list, lambda: column.partitions)

    def _gets(self, task: str, count: int, handle: Callable[[Contender], Any]) -> None:
        def ask(store: Any, keys: list[bytes]) -> list:
            get = store.get
            return [get(key) for key in keys]

        questions = [self.column.sample(count, self._random) for _ in range(10)]
        note = f"{count:,} in a row"
        for contender in self.contenders:
            every = 3 if contender.name == _SLOW else 1
            self._case(task, contender, handle, ask, _next(questions), every, note)
        if task == GET_WARM and not self.is_large:
            places = dict(zip(self.column.keys.to_pylist(), range(len(self.column)), strict=True))
            self._floor(task, "dict", _by_dict(places), _next(questions), note=note)

    def _many(self, task: str, handle: Callable[[Contender], Any]) -> None:
        places = [self._random.integers(0, len(self.column), self._load.many) for _ in range(7)]
        questions = [self.column.keys_of(rows) for rows in places]
        for contender in self.contenders:
            every = 3 if contender.name == _SLOW else 1
            self._case(task, contender, handle, lambda store, keys: store.get_many(keys), _next(questions), every)
        values = self._values
        row_arrays = [pa.array(rows) for rows in places]
        self._floor(task, "Arrow's take, rows known", values.take, _next(row_arrays))

    def _scans(self, rounds: int) -> None:
        for contender in self.contenders:
            if not self.is_large or contender.name in _LARGE_SCANS:
                is_often = contender.name == "Parquet" or (contender.name == "LMDB" and not self.is_large)
                every = 1 if is_often else rounds if self.is_large else 3
                self._case(SCAN, contender, Contender.cold, lambda store, _: store.scan(), every=every)
        data = _as_arrow(self.column)
        self._floor(SCAN, "memcpy", bytearray, lambda: data)
        if not self.is_large:
            packed, decompressor = zstandard.ZstdCompressor(level=1).compress(data), zstandard.ZstdDecompressor()
            self._floor(SCAN, "zstd of the answer", decompressor.decompress, lambda: packed)
        for contender in self.contenders:
            if self.column.kind == "typed" and contender.name in (US, "Parquet"):
                self._case(SCAN_TWO, contender, Contender.cold, lambda store, _: store.scan(b"", _TWO_COLUMNS))

    def _merges(self, rounds: int) -> None:
        for task in (SPREAD, CLUSTERED):
            store = self.contenders[0].file.folder / "store"
            merge = prepare(self.column, store, self._work, task, self._load.merged)
            row, bench = self.row(task), self._bench
            bench.case(row, US, lambda work: work.ours(), setup=_always(merge), kind="us")
            bench.case(row, ARROW, lambda work: work.by_arrow(), setup=_always(merge), every=rounds, note="in memory")
            changes = f"{merge.changed_blocks:,} of {merge.blocks:,}"
            self._floor(task, CHANGED, lambda work: work.write_changed(), _always(merge), note=changes)
            self._floor(task, COPY, lambda work: work.copy(), _always(merge))


def _next(questions: Sequence[Any]) -> Callable[[], Any]:
    """Each contender is asked the same, in the same order."""
    cycle = itertools.cycle(questions)
    return lambda: next(cycle)


def _always(question: Any) -> Callable[[], Any]:
    return lambda: question


def _by_dict(places: dict[bytes, int]) -> Callable[[list[bytes]], list[int]]:
    return lambda keys: [places[key] for key in keys]


def _as_arrow(column: Column, low: int = 0, high: int | None = None) -> bytes:
    """The bytes that some entries take in Arrow."""
    part = slice(low, len(column) if high is None else high)
    table = column.values[part].add_column(0, "key", column.keys[part]).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
