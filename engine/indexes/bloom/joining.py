"""Joining filter runs into one: a matrix of all their tasks, written a bounded number of rows at a time.

The tasks that are left get new places: those of like sizes one group, of one matrix, however many they are. A member
is never folded below what it holds; where a group is larger its rows are repeated, and where it was in a larger one
the repeated rows are left out again (rule 31). Fine filters stay where they are, in whatever file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....arrays import from_numpy, positions, string_array
from ....bloom import plan_rungs
from ....errors import CorruptionError
from ....hfile_like import SortedFileReader, SortedFileWriter
from ...state import Run
from ...storage import Ranged, Storage
from .coarse import Coarse, section_name
from .format import KEYS, KIND_FILE, PLACE_SCHEMA, RUN_SCHEMA, Tasks, write_entries

MEMBERS_MAX = 1 << 15  # of a group: a row of 1 MiB
CHUNK_BYTES = 16 << 20  # of rows that are read and written at once


@dataclass
class Opened:
    """A run that is to be joined with others."""

    run: Run
    reader: SortedFileReader
    coarse: Coarse

    @classmethod
    def of(cls, storage: Storage, run: Run) -> Opened:
        """Raises CorruptionError, FormatVersionError, FileMissingError."""
        reader = SortedFileReader(Ranged(storage, run.path, run.size_bytes))
        return cls(run, reader, Coarse.of(reader))

    @property
    def coarse_bytes(self) -> int:
        """Of its groups."""
        return sum(section.length_bytes for section in self.coarse.sections(self.reader))

    @property
    def file_count(self) -> int:
        """Of the files that it speaks of."""
        return int((self.coarse.last - self.coarse.first).sum()) + len(self.coarse.first)


@dataclass
class _Files:
    """The files of one run: numbers, places of the fine filters; and pairs, int64 [m, 2], of a file and a task that it
    is in (among those of all runs)."""

    ids: np.ndarray
    pairs: np.ndarray
    places: pa.Table


def join_runs(
    storage: Storage,
    runs: Sequence[Opened],
    path: str,
    segments: tuple[int, int],
    live: np.ndarray | None = None,
) -> Run | None:
    """Some runs, oldest first, as one at `path`; durable on return. None, and no file, where nothing is left.

    Of a file in several, the newest counts; files that are not among the `live` ones (uint64, ascending) are left out,
    and so are tasks that have no other. Raises CorruptionError where a run turns out damaged.
    """
    starts = np.cumsum([0, *(run.coarse.members for run in runs)])
    parts = [_files_of(run, int(start)) for run, start in zip(runs, starts, strict=False)]
    bases = np.cumsum([0, *(len(part.ids) for part in parts)])
    ids = np.concatenate([part.ids for part in parts])
    every = np.arange(len(ids))
    newest = len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]
    kept = np.zeros(len(ids), dtype=bool)
    kept[newest] = True
    if live is not None:
        kept &= positions(live, ids) >= 0
    if not kept.any():
        return None
    at = every[kept]
    pairs = np.concatenate([part.pairs + np.array([base, 0]) for part, base in zip(parts, bases, strict=False)])
    pairs = pairs[kept[pairs[:, 0]]]
    pairs[:, 0] = np.searchsorted(at, pairs[:, 0])
    places = pa.concat_tables([part.places for part in parts]).take(from_numpy(at))
    left = np.unique(pairs[:, 1])
    with ExitStack() as stack:
        sink = stack.enter_context(storage.create(path))
        writer = stack.enter_context(SortedFileWriter(sink, schema=RUN_SCHEMA, use="get"))
        coarse = Coarse()
        order = [_write_group(writer, coarse, runs, starts, *group) for group in _planned(runs, starts, left)]
        numbers = np.empty(int(starts[-1]), dtype=np.int64)
        numbers[np.concatenate(order)] = np.arange(len(left))
        pairs[:, 1] = numbers[pairs[:, 1]]
        write_entries(writer, ids[at], pairs, places, coarse)
        writer.close()
    return Run(path, writer.size_bytes, writer.num_entries, segments)


def _files_of(run: Opened, first_member: int) -> _Files:
    found = run.reader.numbered(KEYS.prefix(kind=KIND_FILE)).scan(PLACE_SCHEMA.names)
    tasks = Tasks.of(run.reader)
    member = np.repeat(np.arange(len(tasks.starts) - 1), np.diff(tasks.starts))
    if not np.array_equal(np.unique(tasks.files), found.numbers) or len(tasks.starts) - 1 != run.coarse.members:
        raise CorruptionError("the files of a filter run are not those of its tasks", path=run.reader.name)
    places = pa.Table.from_arrays([found.columns[name] for name in PLACE_SCHEMA.names], schema=PLACE_SCHEMA)
    here = pc.fill_null(places.column("fine_path"), string_array([run.run.path])[0])
    places = places.set_column(0, PLACE_SCHEMA.field("fine_path"), here)
    pairs = np.stack([np.searchsorted(found.numbers, tasks.files), member + first_member], axis=1)
    return _Files(found.numbers, pairs, places)


def _planned(runs: Sequence[Opened], starts: np.ndarray, left: np.ndarray) -> Iterator[tuple[str, int, np.ndarray]]:
    """(hash, blocks, members) of each group to be written: members (numbers among those of all runs) ascend."""
    of_hash: dict[str, list[np.ndarray]] = {}
    for run, start in zip(runs, starts, strict=False):
        for group, name in enumerate(run.coarse.hashes):
            first, stop = run.coarse.starts[group : group + 2] + start
            low, high = np.searchsorted(left, (first, stop))
            if high > low:
                of_hash.setdefault(name, []).append(left[low:high])
    rungs = np.concatenate([run.coarse.rungs for run in runs])
    for name, several in of_hash.items():
        members = np.concatenate(several)
        for blocks, chosen in plan_rungs([1 << rung for rung in rungs[members].tolist()]):
            for low in range(0, len(chosen), MEMBERS_MAX):
                yield name, blocks, members[chosen[low : low + MEMBERS_MAX]]


def _write_group(
    writer: SortedFileWriter,
    coarse: Coarse,
    runs: Sequence[Opened],
    starts: np.ndarray,
    hash_name: str,
    blocks: int,
    members: np.ndarray,
) -> np.ndarray:
    """Writes one group and gives its members."""
    rungs = np.concatenate([run.coarse.rungs for run in runs])[members]
    name = coarse.add_group(hash_name, rungs)
    writer.write_strided(name, _rows(list(_sources(runs, starts, members)), blocks, len(members)), 32 * len(members))
    return members


@dataclass
class _Source:
    """The members of a new group that come from one group of a run: their columns there, and here."""

    reader: SortedFileReader
    name: str
    blocks: int
    stride: int
    there: np.ndarray
    here: np.ndarray


def _sources(runs: Sequence[Opened], starts: np.ndarray, members: np.ndarray) -> Iterator[_Source]:
    for run, start in zip(runs, starts, strict=False):
        for group, section in enumerate(run.coarse.sections(run.reader)):
            first, stop = (run.coarse.starts[group : group + 2] + start).tolist()
            low, high = np.searchsorted(members, (first, stop)).tolist()
            if high > low:
                there = members[low:high] - first
                yield _Source(
                    run.reader, section_name(group), section.rows, section.stride, there, np.arange(low, high)
                )


def _rows(sources: Sequence[_Source], blocks: int, members: int) -> Iterator[np.ndarray]:
    """uint8 [n, 32 * members], some rows at a time."""
    widest = max(source.stride for source in sources)
    at_once = max(1, CHUNK_BYTES // (32 * members + widest))
    for start in range(0, blocks, at_once):
        rows = np.arange(start, min(blocks, start + at_once))
        out = np.empty((len(rows), members, 8), dtype=np.uint32)
        for source in sources:
            # Row b of `blocks` is row b * n // blocks of n: the first of those that repeat it, or the one repeated.
            wanted, back = np.unique(rows * source.blocks // blocks, return_inverse=True)
            found = source.reader.read_strided([(source.name, wanted)])[0]
            words = np.ascontiguousarray(found).view(np.uint32).reshape(len(wanted), -1, 8)
            out[:, source.here] = words[back.reshape(-1)[:, None], source.there]
        yield out.view(np.uint8).reshape(len(rows), 32 * members)
