"""The coarse level of a filter run: transposed groups of filters over files. A look-up reads a few rows of them.

    rows    `coarse/N`: group N, [bucket][member][32 bytes]
    meta    `coarse`: the data about all groups that a look-up needs before it reads rows. One line of JSON: per group
            the hash, the number of members and their largest stored rate; the number of ranges of files, and of files
            that are no members. After the line: the size of each member in blocks, after which its rows repeat (u32,
            little-endian); the first and last file number (u64, little-endian) of each range of files in the run, and
            of each range of files that are no members

A member is the filter over one file. Members are numbered through the run, those of group 0 first. So a look-up of a
value in no file reads only the rows of its buckets. The file of a member matters only if it may contain the value. A
file that is no member may contain any value: its own filters are probed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ....bloom import bucket_of, probe_rows
from ....errors import CorruptionError
from ....hfile_like import RowTable, SortedFileReader
from ...state.coverage import IdRanges
from ...state.fields import INSTANT_BYTES_MAX, FieldError, array, integer, parse_json, record, text

META = "coarse"
WHOLE_FILE = -1  # in place of a member's row group


def _rate(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise FieldError(f"{value!r} is not a rate from 0 to 1")
    return value


_COUNT = integer(0, 1 << 40)
_GROUP = record({"hash": text, "members": integer(0, 1 << 32), "fpp": _rate})
_META_FIELDS = record({"groups": array(_GROUP), "ranges": _COUNT, "others": _COUNT})
# A request costs as much as this many bytes: closer ranges are read as one, and so is a whole small group.
REQUEST_BYTES_REMOTE, REQUEST_BYTES_LOCAL = 1 << 20, 16 << 10
PIECE_BYTES = 2 << 20
BATCH_BYTES = 8 << 20  # this many bytes, or one row, are read at a time, and probed before the next are read

HashesUnder = Callable[[str], np.ndarray | None]
"""From the name of a hash to the hashes, uint64, to probe a group with; None where the values have none under it."""

LoadGroup = Callable[[RowTable, Callable[[], np.ndarray]], np.ndarray | None]
"""The rows of a group, from memory or by loading them to be kept; None where they are to be read row by row."""


def section_name(group: int) -> str:
    """Return the name of a group's row table."""
    return f"coarse/{group}"


@dataclass
class CoarseGroups:
    """The groups of a run.

    hashes    the name of the hash of each group
    fpps      the largest rate of the members of each group
    starts    int64 [groups + 1]: the number of each group's first member, and the number of members
    sizes     uint32 [members]: the size of each in blocks, after which its rows repeat
    files     all files of the run
    others    those of them that are no members
    """

    hashes: list[str] = field(default_factory=list)
    fpps: list[float] = field(default_factory=list)
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    sizes: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint32))
    files: IdRanges = field(default_factory=IdRanges)
    others: IdRanges = field(default_factory=IdRanges)

    @classmethod
    def of(cls, reader: SortedFileReader) -> CoarseGroups:
        """Read the groups of a run's file. Raise CorruptionError."""
        if META not in reader.metas():
            raise CorruptionError("a filter run without its meta", path=reader.name, check="coarse")
        head, _, body = reader.meta(META).partition(b"\n")
        try:
            fields = _META_FIELDS(parse_json(head, INSTANT_BYTES_MAX))
        except FieldError as error:
            raise CorruptionError(f"its meta cannot be read ({error})", path=reader.name, check="coarse") from None
        counts = [group["members"] for group in fields["groups"]]
        ranges, others = fields["ranges"], fields["others"]
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        members = int(starts[-1])
        sections = reader.row_tables()
        own = [sections.get(section_name(i)) for i in range(len(counts))]
        widths = [section.stride if section else -1 for section in own]
        if widths != [32 * count for count in counts] or len(body) != 4 * members + 16 * (ranges + others):
            raise CorruptionError("its meta does not fit its groups", path=reader.name, check="coarse")
        sizes = np.frombuffer(body[: 4 * members], dtype="<u4").astype(np.uint32)
        rows = np.repeat(np.array([s.rows if s else 0 for s in own], dtype=np.int64), counts)
        if (sizes == 0).any() or (rows % np.maximum(sizes, 1)).any():
            raise CorruptionError("members of a group of another size", path=reader.name, check="coarse")
        ends = np.frombuffer(body[4 * members :], dtype="<u8").astype(np.uint64)
        first, last, other_first, other_last = np.split(ends, np.cumsum([ranges, ranges, others]))
        return cls(
            [group["hash"] for group in fields["groups"]],
            [group["fpp"] for group in fields["groups"]],
            starts,
            sizes,
            IdRanges(first, last),
            IdRanges(other_first, other_last),
        )

    def to_bytes(self) -> bytes:
        """Return the bytes that `of` reads."""
        groups = [
            {"hash": name, "members": members, "fpp": fpp}
            for name, members, fpp in zip(self.hashes, np.diff(self.starts).tolist(), self.fpps, strict=True)
        ]
        fields = {"groups": groups, "ranges": len(self.files.first), "others": len(self.others.first)}
        ranges = (self.files.first, self.files.last, self.others.first, self.others.last)
        return b"".join(
            [
                json.dumps(fields, separators=(",", ":")).encode(),
                b"\n",
                self.sizes.astype("<u4").tobytes(),
                *(ends.astype("<u8").tobytes() for ends in ranges),
            ]
        )

    @property
    def members(self) -> int:
        """The number of members of all groups."""
        return int(self.starts[-1])

    def add_group(self, hash_name: str, sizes: np.ndarray, fpp: float) -> str:
        """Add a group of members of these sizes; return the name of its section."""
        self.hashes.append(hash_name)
        self.fpps.append(fpp)
        self.starts = np.append(self.starts, self.starts[-1] + len(sizes))
        self.sizes = np.concatenate([self.sizes, sizes.astype(np.uint32)])
        return section_name(len(self.hashes) - 1)

    def sections(self, reader: SortedFileReader) -> list[RowTable]:
        """Return the row tables of the groups."""
        return [reader.row_tables()[section_name(group)] for group in range(len(self.hashes))]

    def is_cacheable(self) -> bool:
        """Return True if it is small enough to cache."""
        return 4 * self.members + 16 * (len(self.files.first) + len(self.others.first)) <= 1 << 20


# -- probing ----------------------------------------------------------------------------------------------------------


@dataclass
class _GroupProbe:
    """The hashes to look up in one group, ordered by their buckets, and the number of the probe of each."""

    group: int
    section: RowTable
    hashes: np.ndarray
    of: np.ndarray
    buckets: np.ndarray

    @property
    def step(self) -> int:
        return self.section.length_bytes // max(1, self.section.rows)


def member_hits(
    reader: SortedFileReader,
    coarse: CoarseGroups,
    hashes_under: Sequence[HashesUnder],
    request_bytes: int,
    load_group: LoadGroup,
) -> list[np.ndarray]:
    """Return, for each probe, the members that may contain one of its values: bool [members].

    Only the rows for these values are read, rows within `request_bytes` of each other in one request, with bounded
    memory. Groups that `load_group` returns are probed in memory.
    """
    hits = [np.zeros(coarse.members, dtype=bool) for _ in hashes_under]
    unloaded = []
    for job in _jobs(reader, coarse, hashes_under, hits):
        rows = load_group(job.section, partial(_whole, reader, job.section))
        if rows is None:
            unloaded.append(job)
        else:
            _probe(job, slice(0, len(job.hashes)), rows, job.buckets, coarse, hits)
    for batch in _batches(unloaded, request_bytes):
        wanted = []
        for job, part in batch:
            unique, row_of = np.unique(job.buckets[part], return_inverse=True)
            wanted.append((unique, row_of.reshape(-1)))
        tables = reader.read_rows(
            [(job.section.name, unique) for (job, _), (unique, _) in zip(batch, wanted, strict=True)], request_bytes
        )
        for (job, part), (_, row_of), table in zip(batch, wanted, tables, strict=True):
            _probe(job, part, table, row_of, coarse, hits)
    return hits


def _jobs(
    reader: SortedFileReader, coarse: CoarseGroups, hashes_under: Sequence[HashesUnder], hits: list[np.ndarray]
) -> Iterator[_GroupProbe]:
    """Yield the look-ups in each group. Without hashes for a group's hash, all its members are hits."""
    for group, section in enumerate(coarse.sections(reader)):
        by_probe = [hashes_of(coarse.hashes[group]) for hashes_of in hashes_under]
        for number, hashes in enumerate(by_probe):
            if hashes is None:
                hits[number][coarse.starts[group] : coarse.starts[group + 1]] = True
        put = [(number, hashes) for number, hashes in enumerate(by_probe) if hashes is not None and len(hashes)]
        if put and section.rows:
            joined = np.concatenate([hashes for _, hashes in put])
            of = np.repeat([number for number, _ in put], [len(hashes) for _, hashes in put])
            buckets = bucket_of(joined, section.rows)
            order = np.argsort(buckets, kind="stable")
            yield _GroupProbe(group, section, joined[order], of[order], buckets[order])


def _batches(jobs: Sequence[_GroupProbe], request_bytes: int) -> Iterator[list[tuple[_GroupProbe, slice]]]:
    """Yield parts of jobs to read together: a part reads a few ranges, and a batch is bounded in bytes."""
    batch: list[tuple[_GroupProbe, slice]] = []
    size = 0
    for job in jobs:
        rows_at_once = max(1, PIECE_BYTES // job.step)
        breaks = np.diff(job.buckets) * job.step > request_bytes + job.step
        breaks |= np.diff(job.buckets // rows_at_once) != 0
        ends = np.append(np.flatnonzero(breaks) + 1, len(job.buckets)).tolist()
        start = 0
        for end in ends:
            span = int(job.buckets[end - 1] - job.buckets[start] + 1) * job.step
            if batch and size + span > BATCH_BYTES:
                yield batch
                batch, size = [], 0
            if batch and batch[-1][0] is job:
                batch[-1] = (job, slice(batch[-1][1].start, end))
            else:
                batch.append((job, slice(start, end)))
            size += span
            start = end
    if batch:
        yield batch


def _probe(
    job: _GroupProbe, part: slice, table: np.ndarray, row_of: np.ndarray, coarse: CoarseGroups, hits: list[np.ndarray]
) -> None:
    """Mark the members that may contain the hashes of a part; `row_of` gives the row of each hash in `table`."""
    members = slice(int(coarse.starts[job.group]), int(coarse.starts[job.group + 1]))
    at_once = max(1, PIECE_BYTES // job.section.stride)
    hashes, of = job.hashes[part], job.of[part]
    for start in range(0, len(hashes), at_once):
        piece = slice(start, start + at_once)
        row_hits = probe_rows(table[row_of[piece]], hashes[piece])
        for number in np.unique(of[piece]).tolist():
            hits[number][members] |= row_hits[of[piece] == number].any(axis=0)


def _whole(reader: SortedFileReader, section: RowTable) -> np.ndarray:
    """Return all rows of a group, read a bounded number of bytes at a time."""
    table = np.empty((section.rows, section.stride), dtype=np.uint8)
    at_once = max(1, PIECE_BYTES // section.stride)
    for start in range(0, section.rows, at_once):
        stop = min(section.rows, start + at_once)
        table[start:stop] = reader.read_rows([(section.name, np.arange(start, stop))])[0]
    table.flags.writeable = False
    return table
