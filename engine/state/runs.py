"""Reading a stack of runs as one: the newest entry of a key wins, and a tombstone takes the key away."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import binary_array, byte_table, from_numpy, joined, to_numpy
from ...errors import CorruptionError, FormatVersionError, SkipstoneError
from ...hfile_like import Numbered, SortedFileReader, StridedSection, prefix_successor
from ...hfile_like.entries import from_big_endian
from ...hfile_like.file import TAIL_BYTES
from ...hfile_like.keys import NUMBER_BYTES
from ..storage import Entry, FileMissingError, Ranged, Storage
from ..storage.threads import side_by_side
from . import Run
from .cache import BLOCK_ENTRIES_MAX, RUN_ENTRIES_MAX, Cache, CachedRun, RunKey, part_of, process_cache

T = TypeVar("T")
_Layers = list[Numbered]
RUNS_AHEAD_MAX = 16  # an index of more is in shards, of which a value needs few
_PARTED_ENTRIES_MIN, _PARTED_IDS_MIN = 1 << 17, 1 << 12  # of larger runs much is read in parts
DAMAGE = (CorruptionError, FormatVersionError, FileMissingError)  # what reading a run raises where it cannot be read
OPENED_AHEAD_MAX = 64  # of an index of more runs or shards, those are opened that a question needs
_NODES_SHARE, _TAIL_BYTES_MAX = 100, 1 << 20  # the nodes of a run's block index are up to so small a part of it


class DamagedRun(Exception):
    """A run that could not be read, and why: for those who can do without it."""

    def __init__(self, run: Run, error: Exception):
        super().__init__(str(error))
        self.run, self.error = run, error


@contextlib.contextmanager
def reading_run(run: Run) -> Iterator[None]:
    """What says that the run is damaged, gone, or of a format that is not known becomes a DamagedRun that names it."""
    try:
        yield
    except DAMAGE as error:
        raise DamagedRun(run, error) from error


class RunReaders:
    """The runs of one index root, opened as they are asked for. Threads may share them.

    A run never changes, so its footer, and what was decoded of a small one, serve every version and every handle of
    the process: see `cache.py`; unless they are not `shared`, and go with these readers. With `keeps_groups`, whole
    groups of filters are kept besides.
    """

    def __init__(self, storage: Storage, *, shared: bool = True, keeps_groups: bool = False):
        self.storage, self.keeps_groups = storage, keeps_groups
        self.in_memory: dict[str, bytes] = {}  # what `holding` was given, by path
        self._is_shared = shared
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._cache = process_cache() if self._is_shared else Cache()
        self._open: dict[str, tuple[SortedFileReader, CachedRun]] = {}
        self._opened_as: dict[str, Run] = {}
        self._keys: dict[str, RunKey] = {}
        self._to_keep: dict[str, tuple[Run, pa.Table]] = {}  # rows of runs that are gathered, by path

    def holding(self, run: Run, data: bytes) -> RunReaders:
        """Readers of the same runs, and of one more that lies in memory alone, under a path that no other has."""
        readers = RunReaders(self.storage, keeps_groups=self.keeps_groups)
        readers.in_memory = {**self.in_memory, run.path: data}
        return readers

    def reader(self, run: Run) -> SortedFileReader:
        """The reader of a run, opened with one tail read. Raises CorruptionError for a damaged run, FileMissingError
        for one that is gone."""
        return self._opened(run)[0]

    def open_ahead(self, runs: Sequence[Run]) -> None:
        """Opens some runs side by side where a request waits long. One that is damaged or gone is left to whoever reads
        it."""
        missing = [run for run in runs if run.path not in self._open]
        if len(missing) > OPENED_AHEAD_MAX or not self.storage.gap_bytes:
            return

        def attempt(run: Run) -> None:
            with contextlib.suppress(SkipstoneError):
                self._opened(run)

        list(side_by_side(self.storage, attempt, missing, "skipstone-runs"))

    def decoded(
        self,
        run: Run,
        name: Hashable,
        decode: Callable[[SortedFileReader], T],
        is_little: Callable[[T], bool] | None = None,
    ) -> T:
        """What `decode` makes of a run's reader; kept under `name` where the run is small, or `is_little` says that
        what was made is."""
        reader, cached = self._opened(run)
        return cached.decoded(name, lambda: decode(reader), is_little)

    def holds(self, run: Run, name: Hashable) -> bool:
        """Whether what was decoded of a run under `name` is kept."""
        return self._opened(run)[1].holds(name)

    def rows(self, run: Run) -> pa.Table:
        """All entries of a run: key, the value columns, deleted. Those of a run of a block or two are kept: a commit
        looks up what it adds and what it changes, and merges, and the next one does so again."""
        if run.entries > BLOCK_ENTRIES_MAX:
            return self.reader(run).scan_table(include_deleted=True)
        if (kept := self.kept_rows(run)) is not None:
            return kept
        return self.decoded(run, "rows", lambda reader: reader.scan_table(include_deleted=True).combine_chunks())

    def kept_rows(self, run: Run) -> pa.Table | None:
        """What `rows` gives where that is kept, as it is of a run that this process has written; else None."""
        if run.entries > BLOCK_ENTRIES_MAX or self.storage.gap_bytes or run.path in self.in_memory:
            return None
        rows: pa.Table | None
        if run.path in self._to_keep:
            _, rows = self._to_keep[run.path]
        else:
            rows = self._cache.get((self._key(run), "rows"))
        if rows is None:
            return None
        keys = rows.column("key")
        return rows if _is_same(run, len(keys), lambda: (keys[0].as_py(), keys[-1].as_py())) else None

    def keep_rows(self, run: Run, rows: pa.Table) -> None:
        """Has `rows` give these of a small run that was just written: it need not be read. Far away a request would
        have to look at it. Where it is gathered, its file is known by `keep_gathered`."""
        if run.entries <= BLOCK_ENTRIES_MAX and not self.storage.gap_bytes:
            try:
                self._cache.put((self._key(run), "rows"), rows, rows.nbytes)
            except FileMissingError:
                self._to_keep[run.path] = run, rows

    def keep_gathered(self) -> None:
        """Keeps for every handle what `keep_rows` was given of runs that were gathered then, and were put."""
        gathered, self._to_keep = self._to_keep, {}
        for run, rows in gathered.values():
            with contextlib.suppress(SkipstoneError):  # it was not put, or is another: whoever reads it will see
                self.keep_rows(run, rows)
        self._to_keep.clear()

    def between(self, run: Run, prefix: bytes, ends: tuple[int, int], columns: Sequence[str]) -> Numbered:
        """The entries of a run below a prefix whose numbers lie between `ends`, both inclusive; tombstones too."""
        reader, cached = self._opened(run)
        return cached.between(reader, prefix, ends, columns)

    def keeps(self, run: Run) -> bool:
        """Whether what is decoded of a run is kept for the next question: it is where the run is small."""
        return self._opened(run)[1].is_small

    def cached(self, runs: Sequence[Run]) -> list[CachedRun]:
        """Some runs as the process keeps them, opened where they are not yet."""
        return [self._opened(run)[1] for run in runs]

    def group(self, run: Run, section: StridedSection, load: Callable[[], np.ndarray]) -> np.ndarray | None:
        """The rows of a group of filters where groups are kept and there is room for it: see `Cache.load_if_room`."""
        if not self.keeps_groups:
            return None
        name = ("group", section.name)
        return self._opened(run)[1].loaded_if_room(name, section.rows * section.stride, load)

    def begin_question(self) -> None:
        """A question of groups of filters begins."""
        self._cache.begin_question()

    def forget(self, run: Run) -> None:
        """Lets go of a run that turned out damaged, or is about to be removed."""
        self._keys.pop(run.path, None)
        opened = self._open.pop(run.path, None)
        if opened is not None:
            self._cache.forget(lambda key: key == opened[1].key)

    def close(self) -> None:
        """Lets go of all runs: asked for again, they come from what the process keeps, or are opened again."""
        self._open.clear()
        self._keys.clear()

    def _opened(self, run: Run) -> tuple[SortedFileReader, CachedRun]:
        if self._process != os.getpid():  # forked: a thread of the parent may have been using a reader, and its locks
            self._begin()
        opened = self._open.get(run.path)
        if opened is not None and _is_alike(run, self._opened_as[run.path]):
            return opened
        cached = self._cached(run)
        _check_same(run, cached.reader)
        if run.path not in self.in_memory:
            check_written_as(cached.reader, run.path)
        # What this handle reads of the run is counted by its own storage.
        source = Ranged(self.storage, run.path, run.size_bytes)
        reader = cached.reader if run.path in self.in_memory else cached.reader.reading_from(source)
        self._opened_as[run.path] = run
        self._open[run.path] = reader, cached
        return reader, cached

    def _cached(self, run: Run) -> CachedRun:
        """The run as the cache has it. Its file is looked at in any case: it may be damaged or gone since."""
        data = self.in_memory.get(run.path)
        if data is not None:
            return CachedRun((self.storage.uri, run.path), SortedFileReader(data, cache_bytes=0), self._cache)
        source = Ranged(self.storage, run.path, run.size_bytes)
        tail_bytes = TAIL_BYTES
        if self._is_shared and self.storage.gap_bytes and not self._cache.knows(self.storage.uri, run.path):
            source = opening = _Opening(self.storage, run)
            key = self._key(run, opening.read_end())
            tail_bytes = opening.tail_bytes
        else:
            key = self._key(run)
        cached = self._cache.get((key, None))
        if cached is None:
            reader = SortedFileReader(source, tail_bytes=tail_bytes, cache_bytes=0)
            fresh = CachedRun(key, reader, self._cache)
            cached = self._cache.put((key, None), fresh, fresh.size_bytes)
        return cached

    def _key(self, run: Run, entry: Entry | None = None) -> RunKey:
        """What the cache knows a run's file by: `entry`, or what storage says it is, once a handle."""
        key = self._keys.get(run.path)
        if key is None:
            key = (self.storage.uri, run.path)
            if self._is_shared:
                entry = entry or self.storage.stat(run.path)
                if entry.size_bytes != run.size_bytes:
                    message = f"has {entry.size_bytes:,} bytes, and not the {run.size_bytes:,} that the version names"
                    raise CorruptionError(f"{message}; restore the file", path=run.path, check="size")
                key = (*key, entry.size_bytes, entry.modified_ns, entry.etag)
            self._keys[run.path] = key
        return key


class _Opening(Ranged):
    """A run's file far away: its end, with the nodes of its index, comes beside the look at it, a small one whole."""

    def __init__(self, storage: Storage, run: Run):
        super().__init__(storage, run.path, run.size_bytes)
        self._tail, size = b"", run.size_bytes
        nodes_bytes = min(size // _NODES_SHARE, _TAIL_BYTES_MAX)
        self.tail_bytes = max(TAIL_BYTES, size if size <= storage.gap_bytes else nodes_bytes)

    def read_end(self) -> Entry:
        """What the file is."""
        if self.size <= self.tail_bytes:
            entry, self._tail = self.storage.read_entry(self.path, self.size)
            return entry
        end = [(self.size - self.tail_bytes, self.tail_bytes)]
        asks: list[Callable[[], Any]] = [
            partial(self.storage.stat, self.path),
            partial(self.storage.read_ranges, self.path, end),
        ]
        entry, (self._tail,) = side_by_side(self.storage, lambda ask: ask(), asks, "skipstone-run")
        return entry

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        tail, self._tail = self._tail, b""  # the reader keeps it
        if list(ranges) == [(self.size - len(tail), len(tail))]:
            return [tail]
        return super().read_ranges(ranges)


def _is_alike(run: Run, other: Run) -> bool:
    """Whether two instants say the same of a run's file: what is checked of it where it is opened."""
    return run is other or replace(run, segments=other.segments) == other


def _check_same(run: Run, reader: SortedFileReader) -> None:
    """Raises CorruptionError where a file is whole, and not the run that the version names: another was copied over
    it."""
    if not _is_same(run, reader.num_entries, reader.ends):
        message = "holds other keys than the version says: another file was copied over it; restore the file"
        raise CorruptionError(message, path=run.path, check="run")


def _is_same(run: Run, entries: int, ends: Callable[[], tuple[bytes, bytes]]) -> bool:
    if entries != run.entries or not (entries and run.last_key):
        return entries == run.entries
    first, last = ends()
    return run.first_key <= first.hex() and last.hex() <= run.last_key


def written_as(path: str) -> dict[str, bytes]:
    """The meta, an empty one, by which an index file names itself: the footer alone says where it belongs."""
    return {f"path:{path}": b""}


def check_written_as(reader: SortedFileReader, path: str) -> None:
    """Raises CorruptionError where an index file is whole, and was written under another path. No byte is read."""
    if written_as(path).keys().isdisjoint(reader.metas()):
        message = "was written as another index file, and copied over this one; restore the file"
        raise CorruptionError(message, path=path, check="path")


def get_runs(
    readers: RunReaders, runs: Sequence[Run], keys: pa.Array, columns: Sequence[str], schema: pa.Schema
) -> pa.Table:
    """The live entries of some keys, as a table of `key` and the columns (of `schema`), in no order."""
    ends = (keys[0].as_py(), keys[len(keys) - 1].as_py()) if len(keys) else (b"", b"")
    layers = []
    for run in reversed(runs):  # newest first
        if not run.overlaps(*ends) or not len(keys):
            continue
        if run.entries <= BLOCK_ENTRIES_MAX:
            rows = readers.rows(run)
            places = _places_of(keys, rows.column("key"))
            layers.append(rows.select(["key", *columns, "deleted"]).take(from_numpy(places)))
        else:
            matches = readers.reader(run).get_many(keys, columns, include_deleted=True)
            layers.append(matches.filter(matches.column("found")).drop_columns(["found"]))
    if not layers:
        return pa.Table.from_batches([], pa.schema([pa.field("key", pa.binary()), *(schema.field(c) for c in columns)]))
    entries = pa.concat_tables(layers)  # of a key in several the newest comes first
    first = first_of_each(entries.column("key"))
    is_live = ~to_numpy(entries.column("deleted"))[first]
    return entries.take(from_numpy(first[is_live])).drop_columns(["deleted"])


def entries_of(
    readers: RunReaders, runs: Sequence[Run], prefix: bytes, ids: np.ndarray, columns: Sequence[str], schema: pa.Schema
) -> tuple[np.ndarray, pa.Table]:
    """The live entries of files below a prefix that is followed by the file's number: (uint64 ids, ascending; the
    columns). `ids`: uint64, ascending. Raises DamagedRun."""
    layers = []
    for run in reversed(runs) if len(ids) else ():
        if run.may_hold(prefix):
            with reading_run(run):
                layers += _read(readers.reader(run), readers.storage, prefix, columns, ids)
    return newest_numbered(layers, columns, schema)


def numbered_entries(
    readers: RunReaders, runs: Sequence[Run], prefix: bytes, columns: Sequence[str], schema: pa.Schema
) -> tuple[np.ndarray, pa.Table]:
    """All live entries below a prefix that is followed by a file's number, or by its first bytes. Raises DamagedRun."""
    layers = []
    names = tuple(columns)
    for run in reversed(runs):
        if run.may_hold(prefix):
            with reading_run(run):
                kept = readers.kept_rows(run)
                layer = None if kept is None else _layer_of(kept, prefix, names)
                if layer is not None:
                    layers.append(layer)
                    continue
                decode = partial(_read, storage=readers.storage, prefix=prefix, columns=names)
                layers += readers.decoded(run, ("numbered", prefix, names), decode, _is_little)
    return newest_numbered(layers, columns, schema)


def _read(
    reader: SortedFileReader, storage: Storage, prefix: bytes, columns: Sequence[str], ids: np.ndarray | None = None
) -> _Layers:
    """All entries below a prefix, or those of some files, as layers; tombstones too."""
    if reader.num_entries >= _PARTED_ENTRIES_MIN and (ids is None or len(ids) >= _PARTED_IDS_MIN):
        from .run_parts import read

        return read(reader, storage, prefix, columns, ids)
    keys = reader.numbered(prefix)
    return [keys.scan(columns, include_deleted=True) if ids is None else keys.get(ids, columns, include_deleted=True)]


def entries_between(
    readers: RunReaders,
    runs: Sequence[Run],
    prefix: bytes,
    ends: tuple[int, int],
    columns: Sequence[str],
    schema: pa.Schema,
) -> tuple[np.ndarray, pa.Table]:
    """The live entries below a prefix whose numbers lie between `ends`, both inclusive, as `entries_of` gives them.
    Raises DamagedRun."""
    keys = [prefix + end.to_bytes(8, "big") for end in ends]
    name = ("numbered", prefix, tuple(columns))
    layers = []
    for run in reversed(runs):
        if run.overlaps(*keys):
            with reading_run(run):
                if readers.holds(run, name):
                    whole = readers.decoded(
                        run, name, partial(_read, storage=readers.storage, prefix=prefix, columns=columns)
                    )
                    layers += [part_of(part, *ends) for part in whole]
                else:
                    layers.append(readers.between(run, prefix, ends, columns))
    return newest_numbered([layer for layer in layers if len(layer.numbers)], columns, schema)


def entries_with(
    readers: RunReaders,
    runs: Sequence[Run],
    prefix: bytes,
    wanted: Sequence[tuple[tuple[int, int], Sequence[bytes]]],
    column: str,
    schema: pa.Schema,
) -> tuple[np.ndarray, pa.Table]:
    """The live entries below a prefix whose column of strings holds wanted values: (uint64 numbers, ascending; that
    column). `wanted`: values, each with the numbers between which they may be, ascending. Raises DamagedRun."""
    ids = _numbers_with(readers, runs, prefix, wanted, column, schema, keep=True)
    if not len(ids):
        return newest_numbered([], [column], schema)
    return entries_of(readers, runs, prefix, ids, [column], schema)


def numbers_with(
    readers: RunReaders, runs: Sequence[Run], prefix: bytes, column: str, value: bytes, schema: pa.Schema
) -> np.ndarray:
    """The numbers, as `entries_with` gives them, of the live entries that hold one value: nothing else is made or kept.
    Raises DamagedRun."""
    wanted = [((0, (1 << 64) - 1), [value])]
    ids = _numbers_with(readers, runs, prefix, wanted, column, schema, keep=False)
    if len(ids) and sum(run.may_hold(prefix) for run in runs) > 1:
        ids, _ = entries_of(readers, runs, prefix, ids, [], schema)
    return ids


def _numbers_with(
    readers: RunReaders,
    runs: Sequence[Run],
    prefix: bytes,
    wanted: Sequence[tuple[tuple[int, int], Sequence[bytes]]],
    column: str,
    schema: pa.Schema,
    *,
    keep: bool,
) -> np.ndarray:
    """The numbers of entries that are live within a run. With `keep` small runs are decoded whole, and kept for the
    next question."""
    if not wanted:
        return np.empty(0, np.uint64)
    every = binary_array([value for _, values in wanted for value in values], schema.field(column).type)
    matches = [np.empty(0, np.uint64)]
    for run in runs:
        if run.entries <= BLOCK_ENTRIES_MAX and (keep or readers.kept_rows(run) is not None):
            low, high = prefix + wanted[0][0][0].to_bytes(8, "big"), prefix + wanted[-1][0][1].to_bytes(8, "big")
            with reading_run(run):
                rows = readers.rows(run)
            places = _places_of(every, rows.column(column))
            places = places[~to_numpy(rows.column("deleted"))[places]]
            keys = rows.column("key").take(from_numpy(places)).to_pylist()
            numbers = [int.from_bytes(key[len(prefix) :], "big") for key in keys if low <= key <= high]
            matches.append(np.array(numbers, dtype=np.uint64))
            continue
        near = [each for each in wanted if run.overlaps(*(prefix + end.to_bytes(8, "big") for end in each[0]))]
        if near:
            with reading_run(run):
                matches.append(readers.reader(run).numbered(prefix).find(near, column))
    return np.unique(np.concatenate(matches))


def _layer_of(rows: pa.Table, prefix: bytes, columns: Sequence[str]) -> Numbered | None:
    """Those of a run's entries whose keys begin with a prefix; None where no number follows it in each."""
    keys, deleted = joined(rows.column("key")), to_numpy(rows.column("deleted"))
    low, high = (_count_below(keys, end) for end in (prefix, prefix_successor(prefix)))
    table = byte_table(keys[low:high])
    if low == high:
        numbers = np.empty(0, dtype=np.uint64)
    elif table is not None and table.shape[1] == len(prefix) + NUMBER_BYTES:
        numbers = from_big_endian(table[:, len(prefix) :])
    else:
        return None
    parts = {name: joined(rows.column(name))[low:high] for name in columns}
    return Numbered(numbers, parts, deleted[low:high])


def _count_below(keys: pa.Array, end: bytes | None) -> int:
    """How many of some keys, ascending, come before one; all of them before None."""
    return len(keys) if end is None else bisect_left(range(len(keys)), end, key=lambda i: keys[i].as_py())


def _places_of(wanted: pa.Array, column: pa.ChunkedArray) -> np.ndarray:
    """int64: where a column holds one of some values."""
    return np.flatnonzero(to_numpy(pc.is_in(column, value_set=wanted)))


def _is_little(parts: Iterable[Numbered]) -> bool:
    return sum(len(part.numbers) for part in parts) <= RUN_ENTRIES_MAX // 4


def newest_numbered(
    layers: Sequence[Numbered], columns: Sequence[str], schema: pa.Schema
) -> tuple[np.ndarray, pa.Table]:
    """The live entries of layers, newest first: of a number in several, the newest, unless that is a tombstone."""
    fields = pa.schema([schema.field(name) for name in columns])
    if not layers:
        return np.empty(0, dtype=np.uint64), pa.Table.from_batches([], fields)
    apart = _apart(layers)
    ordered = layers if apart is None else apart
    tables = [pa.Table.from_arrays([layer.columns[name] for name in columns], schema=fields) for layer in ordered]
    if apart is not None:
        return np.concatenate([layer.numbers for layer in apart]), pa.concat_tables(tables)
    ids, positions = live_numbers(layers)
    return ids, tables[0] if positions is None else pa.concat_tables(tables).take(from_numpy(positions))


def _apart(layers: Sequence[Numbered]) -> list[Numbered] | None:
    """The layers in the order of their numbers, where those of one all come before those of the next, and none is a
    tombstone, as where commits only added; else None."""
    if any(layer.deleted is not None and layer.deleted.any() for layer in layers):
        return None
    ordered = sorted((layer for layer in layers if len(layer.numbers)), key=lambda layer: int(layer.numbers[0]))
    is_apart = all(first.numbers[-1] < second.numbers[0] for first, second in pairwise(ordered))
    return ordered if ordered and is_apart else None


def live_numbers(layers: Sequence[Numbered]) -> tuple[np.ndarray, np.ndarray | None]:
    """The numbers of the live entries of layers (at least one), newest first, ascending; and the place of each among
    the entries of all layers one after the other, None where it is one layer as it lies."""
    if len(layers) == 1 and (layers[0].deleted is None or not layers[0].deleted.any()):
        return layers[0].numbers, None
    deleted = [np.zeros(len(layer.numbers), bool) if layer.deleted is None else layer.deleted for layer in layers]
    unique, positions = np.unique(np.concatenate([layer.numbers for layer in layers]), return_index=True)
    live = ~np.concatenate(deleted)[positions]
    return unique[live], positions[live]


def first_of_each(keys: pa.ChunkedArray) -> np.ndarray:
    """Positions of the first of each distinct key, in the order of keys."""
    array = joined(keys)
    order = pc.array_sort_indices(array)  # stable, so that among equal keys the first stays first
    ordered = array.take(order)
    fresh = np.ones(len(array), dtype=bool)
    fresh[1:] = to_numpy(pc.not_equal(ordered[1:], ordered[:-1]))
    return to_numpy(order)[fresh]
