"""The coarse level of a filter run: transposed groups of its tasks' filters, of which a look-up reads a few rows.

    strided  `coarse/N`: group N, [bucket][member][32 bytes]
    meta     `coarse`: what must be known of all groups before any row is read. A line of JSON: the hash and the number
             of members of each group, and the number of ranges. Then, one after the other, the rungs (u8: the logarithm
             of the size in blocks beyond which the member's rows repeat, of each member), and the first and the last
             file number (u64, little-endian) of each range of files that the run holds.

Members are numbered through the run, those of group 0 first. So a value that is nowhere costs the rows of its buckets,
and nothing else of the run: which of its files is in which task matters only where a task may hold the value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ....bloom import bucket_of, probe_rows
from ....errors import CorruptionError
from ....hfile_like import SortedFileReader, StridedSection
from ...state.fields import INSTANT_BYTES_MAX, FieldError, array, integer, pair, parse_json, record, text

META = "coarse"
_META_FIELDS = record({"groups": array(pair(text, integer(0, 1 << 32))), "ranges": integer(0, 1 << 40)})
# What one request is worth in bytes: ranges closer than that are read as one, and so is a whole group.
REQUEST_BYTES_REMOTE, REQUEST_BYTES_LOCAL = 1 << 20, 16 << 10
PIECE_BYTES = 2 << 20
BATCH_BYTES = 8 << 20  # so much, or one row, is read at once, and probed before more is read

HashesUnder = Callable[[str], np.ndarray | None]
"""From the name of a hash to the hashes, uint64, to probe a group with; None where the values have none under it."""

LoadGroup = Callable[[StridedSection, Callable[[], np.ndarray]], np.ndarray | None]
"""The rows of a group, from memory or by loading them to be kept; None where they are to be read row by row."""


def section_name(group: int) -> str:
    """What the strided section of a group is called."""
    return f"coarse/{group}"


@dataclass
class CoarseGroups:
    """What is known of the groups of a run.

    hashes        the name of the hash of each group
    starts        int64 [groups + 1]: the number of each group's first member, and how many members there are
    rungs         uint8 [members]: the logarithm of the size beyond which a member's rows repeat
    first, last   uint64 [ranges]: the files of the run, as ascending ranges of numbers, both ends inclusive
    """

    hashes: list[str] = field(default_factory=list)
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    rungs: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    first: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    last: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))

    @classmethod
    def of(cls, reader: SortedFileReader) -> CoarseGroups:
        """As a run's file has it. Raises CorruptionError."""
        if META not in reader.metas():
            raise CorruptionError("a filter run without its meta", path=reader.name, check="coarse")
        head, _, body = reader.meta(META).partition(b"\n")
        try:
            fields = _META_FIELDS(parse_json(head, INSTANT_BYTES_MAX))
        except FieldError as error:
            raise CorruptionError(f"its meta cannot be read ({error})", path=reader.name, check="coarse") from None
        hashes, counts = [name for name, _ in fields["groups"]], [members for _, members in fields["groups"]]
        ranges = fields["ranges"]
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        members = int(starts[-1])
        sections = reader.strided_sections()
        widths = [sections[name].stride if (name := section_name(i)) in sections else -1 for i in range(len(counts))]
        if widths != [32 * count for count in counts] or len(body) != members + 16 * ranges:
            raise CorruptionError("its meta does not fit its groups", path=reader.name, check="coarse")
        ends = np.frombuffer(body[members:], dtype="<u8").astype(np.uint64)
        rungs = np.frombuffer(body[:members], dtype=np.uint8)
        return cls(hashes, starts, rungs, ends[:ranges], ends[ranges:])

    def to_bytes(self) -> bytes:
        """As `of` reads it."""
        groups = list(zip(self.hashes, np.diff(self.starts).tolist(), strict=True))
        head = json.dumps({"groups": groups, "ranges": len(self.first)}, separators=(",", ":"))
        arrays = (self.rungs, self.first.astype("<u8"), self.last.astype("<u8"))
        return b"".join([head.encode(), b"\n", *(array.tobytes() for array in arrays)])

    @property
    def members(self) -> int:
        """Of all groups."""
        return int(self.starts[-1])

    def add_group(self, hash_name: str, rungs: np.ndarray) -> str:
        """One more group, of members of these rungs; what its section is called."""
        self.hashes.append(hash_name)
        self.starts = np.append(self.starts, self.starts[-1] + len(rungs))
        self.rungs = np.concatenate([self.rungs, rungs.astype(np.uint8)])
        return section_name(len(self.hashes) - 1)

    def set_files(self, ids: np.ndarray) -> None:
        """The files of the run: uint64, ascending."""
        breaks = np.flatnonzero(np.diff(ids) != 1) + 1
        self.first = ids[np.concatenate([[0], breaks]).astype(np.int64)] if len(ids) else ids
        self.last = ids[np.concatenate([breaks - 1, [len(ids) - 1]]).astype(np.int64)] if len(ids) else ids

    def holds(self, ids: np.ndarray) -> np.ndarray:
        """bool [n]: the file, by number, is one of this run's."""
        if not len(self.first):
            return np.zeros(len(ids), dtype=bool)
        before = np.searchsorted(self.first, ids, side="right").astype(np.int64) - 1
        return (before >= 0) & (ids <= self.last[np.maximum(before, 0)])

    def sections(self, reader: SortedFileReader) -> list[StridedSection]:
        """Where the groups lie."""
        return [reader.strided_sections()[section_name(group)] for group in range(len(self.hashes))]

    def is_little(self) -> bool:
        """True where it is no burden to keep."""
        return self.members + 16 * len(self.first) <= 1 << 20


# -- probing ----------------------------------------------------------------------------------------------------------


@dataclass
class _GroupProbe:
    """The hashes to look up in one group, ordered by their buckets, and the number of the probe of each."""

    group: int
    section: StridedSection
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
    """bool [members] for each probe: the member may hold one of its values.

    Only the rows that the values touch are read, those within `request_bytes` of each other as one, a bounded number
    of bytes at a time. Groups that `load_group` gives are probed in memory.
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
        tables = reader.read_strided(
            [(job.section.name, unique) for (job, _), (unique, _) in zip(batch, wanted, strict=True)], request_bytes
        )
        for (job, part), (_, row_of), table in zip(batch, wanted, tables, strict=True):
            _probe(job, part, table, row_of, coarse, hits)
    return hits


def _jobs(
    reader: SortedFileReader, coarse: CoarseGroups, hashes_under: Sequence[HashesUnder], hits: list[np.ndarray]
) -> Iterator[_GroupProbe]:
    """What to look up in each group. Where a probe has no hashes under a group's hash, all members of it are hits."""
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
    """Parts of jobs that are read together: what a part reads is a few ranges, and a batch is bounded in bytes."""
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
    """Notes the members that may hold the hashes of a part; the row of hash i is `table[at[i]]`."""
    members = slice(int(coarse.starts[job.group]), int(coarse.starts[job.group + 1]))
    at_once = max(1, PIECE_BYTES // job.section.stride)
    hashes, of = job.hashes[part], job.of[part]
    for start in range(0, len(hashes), at_once):
        piece = slice(start, start + at_once)
        row_hits = probe_rows(table[row_of[piece]], hashes[piece])
        for number in np.unique(of[piece]).tolist():
            hits[number][members] |= row_hits[of[piece] == number].any(axis=0)


def _whole(reader: SortedFileReader, section: StridedSection) -> np.ndarray:
    """All rows of a group, read a bounded number of bytes at a time."""
    table = np.empty((section.rows, section.stride), dtype=np.uint8)
    at_once = max(1, PIECE_BYTES // section.stride)
    for start in range(0, section.rows, at_once):
        stop = min(section.rows, start + at_once)
        table[start:stop] = reader.read_strided([(section.name, np.arange(start, stop))])[0]
    table.flags.writeable = False
    return table
