"""Copy entries of files that a commit rewrites with the same rows, with the ids of the new files.

A row that gets new values in other columns keeps its position. So the entries of its file are valid for the new file,
and only the keys of blocks, which contain the ids, are read and encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import count

import numpy as np

from ....base.arrays import big_endian, index_of
from ....errors import InvalidArgumentError
from ....hfile_like import SortedFileReader, copy_with_tails
from ...state import IndexState, Run
from ...state.coverage import IdRanges, is_covered
from ...state.lsm import bounded_ends, levels_of, removing_on_error
from ...state.run_format import RunFormat, files_of
from ...state.runs import DAMAGE, warn_of_damage
from ...storage.threads import BUILD_THREADS, prefetched
from ..kind import CommitContext
from .format import EntryLayout, tails_places

_FILES_MAX = 1 << 22  # the maximum distance between the first and the last id in a run's meta
_SHARE_MIN = 2  # a run is copied if at least one in so many of its files is


def with_copies(
    index: IndexState, work: CommitContext, columns: Collection[str], layout: EntryLayout, form: RunFormat
) -> tuple[tuple[Run, ...], list[int]]:
    """Return the index's runs with entries of the files that the commit copies, and the ids of these. `columns`: the
    indexed columns. Return the runs unchanged, without ids, if copying does not pay, or may reorder keys."""
    copied = work.copied_files(columns)
    old = np.array(sorted(copied), dtype=np.uint64)
    segments, new, groups = np.array([copied[i] for i in old.tolist()], dtype=np.int64).reshape(-1, 3).T
    moves = _Moves(old, new.astype(np.uint64), groups).where(is_covered(index.coverage, segments, old))
    try:
        levels = [_Level(level, [work.writing.readers.reader(run) for run in level]) for level in levels_of(index.runs)]
        for level in levels:
            if not level.pays(moves):
                moves = moves.where(~level.files.contains(moves.old))
        if not len(moves.old):
            return index.runs, []
        runs, numbers = list[Run](), count()
        for level in levels:
            is_changed = level.files.contains(moves.old).any()
            path_of = lambda: work.writing.path(f"{index.kind}{index.id}c-{next(numbers)}")  # noqa: E731
            runs += level.copied(moves, work, layout, form, path_of) if is_changed else level.runs
    except DAMAGE as error:
        warn_of_damage(error)
        return index.runs, []
    except (_NotSameError, InvalidArgumentError):
        return index.runs, []
    return tuple(runs), moves.new.tolist()


class _Level:
    """One run with its shards. `files`: the files that may have entries in it."""

    def __init__(self, runs: Sequence[Run], readers: Sequence[SortedFileReader]):
        self.runs, self._readers = runs, readers
        self.files = IdRanges.union(map(files_of, readers))

    def pays(self, moves: _Moves) -> bool:
        is_few = bool(len(self.files.first)) and int(self.files.last[-1] - self.files.first[0]) < _FILES_MAX
        return is_few and _SHARE_MIN * int(self.files.contains(moves.old).sum()) >= self.files.count

    def copied(
        self, moves: _Moves, work: CommitContext, layout: EntryLayout, form: RunFormat, path_of: Callable[[], str]
    ) -> list[Run]:
        """Return the shards after the moves. An error leaves none of them."""
        storage, written = work.writing.storage, list[Run]()
        segments, new_ids = (self.runs[0].segments[0], work.version), _NewIds(self.files, moves)

        def copy(reader: SortedFileReader) -> Run:
            path = path_of()
            with storage.create(path) as sink:
                options = form.options(path, files=new_ids.files)
                done = copy_with_tails(reader, sink, layout.place_bytes, new_ids.of_tails, **options)
            ends = bounded_ends(done.first_key, done.last_key)
            written.append(Run(path, done.size_bytes, done.num_entries, segments, *ends))
            return written[-1]

        with removing_on_error(storage, written):
            return list(prefetched(copy, self._readers, BUILD_THREADS, "skipstone-copy"))


class _NotSameError(Exception):
    """The entries of a run cannot be copied."""


class _Moves:
    """Files whose entries get other ids: uint64 [n] `old`, ascending, and `new`; int64 [n] `groups`: the row group
    count of each new file."""

    def __init__(self, old: np.ndarray, new: np.ndarray, groups: np.ndarray):
        self.old, self.new, self.groups = old, new, groups

    def where(self, chosen: np.ndarray) -> _Moves:
        return _Moves(self.old[chosen], self.new[chosen], self.groups[chosen])


class _NewIds:
    """The ids of the files of a run after the moves, in tables by the old id. Else raise _NotSameError."""

    def __init__(self, listed: IdRanges, moves: _Moves):
        ids = _ids_in(listed)
        place = index_of(moves.old, ids)
        moved = np.where(place >= 0, moves.new[place], ids)
        if (moved[1:] <= moved[:-1]).any():
            raise _NotSameError
        self.files, self._first = IdRanges.of(moved), ids[0]
        count = int(ids[-1] - ids[0]) + 1
        self._groups = np.zeros(count, dtype=np.int64)  # row groups per file, 0 if it is not listed
        self._digits = np.zeros((8, count), dtype=np.uint8)  # of the new ids
        self._digits[:, ids - self._first] = big_endian(moved, 8).T
        self._groups[ids - self._first] = np.where(place >= 0, moves.groups[place], 1 << 32)

    def of_tails(self, tails: np.ndarray) -> np.ndarray:
        """Return ends of keys after the move: uint8 [width, n]. Raise _NotSameError for a row group that the new file
        lacks: then the row groups differ."""
        ids, groups = tails_places(tails.T)
        place = ids - self._first  # very large for a smaller id
        if (place >= len(self._groups)).any() or (groups >= self._groups[place]).any():
            raise _NotSameError
        changed = tails.copy()
        for digit, of_id in zip(changed, self._digits, strict=False):
            digit[:] = of_id[place] if of_id.any() else 0
        return changed


def _ids_in(listed: IdRanges) -> np.ndarray:
    pairs: Sequence[tuple[int, int]] = list(zip(listed.first.tolist(), listed.last.tolist(), strict=True))
    ranges = [np.arange(first, last + 1, dtype=np.uint64) for first, last in pairs]
    return np.concatenate([np.empty(0, dtype=np.uint64), *ranges])
