"""File slices: which files of a group are read together, which no more, and which carry nothing.

    group     files that share `file_group`, which is unique within its partition; a file without one is alone
    slice     the files of a group with one `slice_instant`: at most one base, and the logs over it

Slices are ordered by `slice_instant`: as numbers where every instant of the group is made of the digits 0-9, else as
texts by their UTF-8 bytes. What is read of a group is its latest slice with a base, and the files of later slices,
whose base is not there yet: a pending compaction. Earlier slices are superseded. A file without `slice_instant` in a
group has no place in that order, so it supersedes nothing and nothing supersedes it.

The states of the commits that wrote the files come with the version that is read:

    completed      also where no state is known, or no commit is named
    inflight       a base is not there yet; a log may be: it is read
    failed,        a base, log or block holds nothing, and is read by nobody
    rolled_back
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import joined, number, string_array, text, to_numpy
from . import COMPLETED, INFLIGHT
from .manifest import BASE

SNAPSHOT, READ_OPTIMIZED = "snapshot", "read_optimized"
MODES = (SNAPSHOT, READ_OPTIMIZED)
_ANY_SLICE = np.iinfo(np.int64).max  # the rank of a file that says no instant: not before any slice
_NO_BASE = -1


@dataclass
class Slices:
    """How some files (whole groups of them, in their order) form groups and slices.

    group_of    int64 [files]: groups are numbered in the order of their first file
    groups      how many
    rank        int64 [files]: ascending with the slice instants of a group
    is_base     bool [files]: a base whose commit is completed
    is_dead     bool [files]: carries nothing at this version: its commit failed, or it is a base that is not there yet
    latest      int64 [groups]: the rank of the latest base; below every rank where there is none
    """

    group_of: np.ndarray
    groups: int
    rank: np.ndarray
    is_base: np.ndarray
    is_dead: np.ndarray
    latest: np.ndarray

    def live(self, mode: str = SNAPSHOT) -> np.ndarray:
        """bool [files]: those that are read; with "read_optimized" the latest base of each group alone."""
        newest = ~self.is_dead & (self.rank >= self.latest[self.group_of])
        return newest & self.is_base if mode == READ_OPTIMIZED else newest


def slices_of(files: pa.Table, states: Mapping[str, str]) -> Slices:
    """The slices of a snapshot's files, under what is known of the commits that wrote them (`Instant.commit_states`).

    The files must hold every group whole, as those of whole partitions do.
    """
    is_base_file = to_numpy(pc.equal(files.column("kind"), text(BASE)))
    is_over = _written_by(files, states, lambda state: state not in (COMPLETED, INFLIGHT))
    is_base = is_base_file & ~_written_by(files, states, lambda state: state != COMPLETED)
    is_dead = np.where(is_base_file, ~is_base, is_over)
    group_of, groups = _groups(files)
    latest = np.full(groups, _NO_BASE, dtype=np.int64)
    if groups == files.num_rows:
        rank = np.zeros(groups, dtype=np.int64)
    else:
        rank = _ranks(joined(files.column("slice_instant")), group_of, groups)
        ordered = is_base & (rank != _ANY_SLICE)
        np.maximum.at(latest, group_of[ordered], rank[ordered])
    return Slices(group_of, groups, rank, is_base, is_dead, latest)


def any_of(where: np.ndarray, flags: np.ndarray, count: int) -> np.ndarray:
    """bool [count] from bool [n]: true at `where[i]` for some flag i that is."""
    result = np.zeros(count, dtype=bool)
    result[where[flags]] = True
    return result


def _written_by(files: pa.Table, states: Mapping[str, str], is_wanted: Callable[[str], bool]) -> np.ndarray:
    """bool [files]: those that name a commit whose state is meant."""
    commits = [commit for commit, state in states.items() if is_wanted(state)]
    if not commits:
        return np.zeros(files.num_rows, dtype=bool)
    return to_numpy(pc.is_in(files.column("commit"), value_set=string_array(commits)))


def _groups(files: pa.Table) -> tuple[np.ndarray, int]:
    """Groups numbered in the order of their first file: a file group of a partition, or a file without a group."""
    numbers = np.arange(files.num_rows)
    column = files.column("file_group")
    if column.null_count == files.num_rows:
        return numbers, files.num_rows
    names, name_of = _numbered(joined(column))
    partition = to_numpy(files.column("partition_id")).astype(np.int64)
    ids = np.where(name_of >= 0, partition * (len(names) + 1) + name_of, -1 - numbers)
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return place[inverse], len(first)


def _numbered(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """(the distinct texts, int64: the place of each among them, -1 where null)."""
    coded = pc.dictionary_encode(texts, null_encoding="mask")
    return coded.dictionary, to_numpy(coded.indices.cast(pa.int64()).fill_null(number(-1)))


def _ranks(instants: pa.Array, group_of: np.ndarray, groups: int) -> np.ndarray:
    """int64 [files]: the order of slice instants within a group; the same for equal ones."""
    texts, text_of = _numbered(instants)
    if len(texts) == 0:
        return np.full(len(text_of), _ANY_SLICE, dtype=np.int64)
    by_text = _dense(texts)
    digits = pc.ascii_ltrim(texts, characters="0")
    lengths = to_numpy(pc.binary_length(digits)).astype(np.int64)
    _, by_number = np.unique(lengths * (len(texts) + 1) + _dense(digits), return_inverse=True)
    is_number = to_numpy(pc.ascii_is_decimal(texts))
    is_named = text_of >= 0
    has_words = any_of(group_of, is_named & ~is_number[text_of], groups)
    ranks = np.where(has_words[group_of], by_text[text_of], by_number[text_of])
    return np.where(is_named, ranks, _ANY_SLICE)


def _dense(texts: pa.Array) -> np.ndarray:
    """int64: the place of each text in the order of all, the same for equal ones."""
    return to_numpy(pc.rank(texts, tiebreaker="dense")).astype(np.int64)
