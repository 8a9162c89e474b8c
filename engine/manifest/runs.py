"""Reading a stack of runs as one: the newest entry of a key wins, and a tombstone takes the key away."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, joined, to_numpy
from ...hfile_like import SortedFileReader
from ..storage import Ranged, Storage
from ..timeline import Run


class RunReaders:
    """Open readers of runs, by path: a run never changes, so one reader serves every version that names it."""

    def __init__(self, storage: Storage):
        self.storage = storage
        self._lock = threading.Lock()
        self._open: dict[str, SortedFileReader] = {}

    def reader(self, run: Run) -> SortedFileReader:
        """The reader of a run, opened with one tail read. Raises CorruptionError for a damaged run."""
        with self._lock:
            found = self._open.get(run.path)
            if found is None:
                found = SortedFileReader(Ranged(self.storage, run.path, run.size_bytes))
                self._open[run.path] = found
            return found

    def forget(self, run: Run) -> None:
        """Closes the reader of a run that is about to be removed."""
        with self._lock:
            found = self._open.pop(run.path, None)
        if found is not None:
            found.close()

    def close(self) -> None:
        with self._lock:
            for reader in self._open.values():
                reader.close()
            self._open.clear()


def scan_runs(
    readers: RunReaders, runs: Sequence[Run], prefixes: Sequence[bytes], columns: Sequence[str] | None = None
) -> pa.Table:
    """The live entries below any of some prefixes (ascending, none within another), in the order of keys, as a table
    of `key` and the columns."""
    if len(runs) == 1:
        reader = readers.reader(runs[0])
        return _concatenated([reader.scan_table(prefix=p, columns=columns) for p in prefixes])
    layers = []
    for run in reversed(runs):  # newest first
        reader = readers.reader(run)
        layers += [reader.scan_table(prefix=p, columns=columns, include_deleted=True) for p in prefixes]
    return newest_wins(_concatenated(layers))


def newest_wins(layers: pa.Table) -> pa.Table:
    """Of a table of `key`, `deleted` and columns in which newer entries come first: the live ones, by key."""
    if layers.num_rows == 0:
        return layers.drop_columns(["deleted"])
    first = first_of_each(layers.column("key"))
    gone = to_numpy(layers.column("deleted"))
    return layers.take(from_numpy(first[~gone[first]])).drop_columns(["deleted"])


def first_of_each(keys: pa.ChunkedArray) -> np.ndarray:
    """Positions of the first of each distinct key, in the order of keys."""
    array = joined(keys)
    order = pc.array_sort_indices(array)  # stable, so that among equal keys the first stays first
    ordered = array.take(order)
    fresh = np.ones(len(array), dtype=bool)
    fresh[1:] = to_numpy(pc.not_equal(ordered[1:], ordered[:-1]))
    return to_numpy(order)[fresh]


def _concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)
