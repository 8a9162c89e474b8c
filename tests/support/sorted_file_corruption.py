"""Damages sorted-block files and reads them in every way; run as a program, so that a crash of the interpreter, a hang
or a huge allocation ends this and not the tests.

    python sorted_file_corruption.py JOBS.json     a list of `Job`, as objects; prints a line of JSON for each

flips      one bit: every face answers as before or raises a CorruptionError that names file, offset and check; and
           what some face finds, `verify` finds
cuts       the file ends early: it is not opened
repaired   one bit, and every checksum made to fit: no face crashes, hangs or takes more memory than it may
wild       the same after a few random numbers were written over
fields     the same after one number was set to 0, 1, its largest, off by one, ...: every number that no codec hides
crafted    a file of `sorted_file_crafted`, which may claim anything: as `repaired`, and only what streams is read
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice

from guarded_memory import guard_everything
from skipstone.base import lazy
from skipstone.errors import CorruptionError, FormatVersionError, InvalidArgumentError, SchemaError, SkipstoneError
from skipstone.hfile_like import SortedFileReader
from sorted_file_crafted import CRAFTED
from sorted_file_layout import Layout, Region, u
from sorted_file_reads import NAME, Face, Faces, Named, crafted_faces, text_of
from sorted_file_samples import file_of

HANG_S = 120  # of a machine that does much else
ROOM_BYTES = 1 << 30  # for all allocations together
PEAK_BYTES = 200 << 20  # of one call, in addition to three times the file
_COMPLAINTS_MAX = 20
# A second read of these may find something in a cache.
_AGAIN = ("get", "get_many", "get_many of many", "scan")
# The slowest faces read every so many-th file.
_SELDOM = {"inspect": 16, "merge": 8}


@dataclass
class Job:
    """What to do.

    name      of the catalogue
    mode      see above
    place     a file that names what is being tried
    folder    for files
    share     every so many-th bit or length is tried, from bit `first` on, which is also the seed of what is random
    count     how many random ones
    compiled  whether kernels are used wherever they can be, on memory that must not be left (`guarded_memory`)
    """

    name: str
    mode: str
    place: str = ""
    folder: str = ""
    share: int = 1
    first: int = 0
    count: int = 0
    compiled: bool = False


@dataclass
class Outcome:
    """How many damaged files were tried, refused, without effect; what was wrong."""

    tried: int = 0
    refused: int = 0
    harmless: int = 0
    complaints: list[str] = field(default_factory=list)


@cache
def _compiled() -> None:
    """From now on, in this process."""
    lazy.LOAD_ABOVE_NS, lazy.COMPILE_ABOVE_NS, lazy.USE_ABOVE_NS = -1, -1, -1
    guard_everything()


class Harm:
    def __init__(self, job: Job):
        self._job = job
        if job.compiled:
            _compiled()
        self.sound = CRAFTED[job.name]() if job.mode == "crafted" else file_of(job.name)
        self._layout = None if job.mode == "crafted" else Layout(self.sound)
        self._place = os.open(job.place, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        self.outcome = Outcome()

    def run(self) -> None:
        outcome, job = self.outcome, self._job
        self._faces = None if job.mode in ("crafted", "cuts") else Faces(self.sound, job.folder)
        steps = {"flips": self._flips, "repaired": self._flips, "cuts": self._cuts, "wild": self._wild}
        steps |= {"fields": self._fields, "crafted": lambda: iter([(job.name, self.sound)])}
        attempt: Callable[[str, bytes], None] = self._try_cut if job.mode == "cuts" else self._try
        resource.setrlimit(resource.RLIMIT_AS, (_size_bytes() + ROOM_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
        if job.mode == "crafted":
            attempt = self._try_crafted
        for what, damaged in steps[job.mode]():
            os.pwrite(self._place, what.ljust(200).encode(), 0)
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            outcome.tried += 1
            try:
                attempt(what, damaged)
            except Exception as error:
                outcome.complaints.append(f"{what}: {type(error).__name__}: {error}")
            if len(outcome.complaints) > _COMPLAINTS_MAX:
                break
        faulthandler.cancel_dump_traceback_later()
        os.close(self._place)

    # -- damage -------------------------------------------------------------------------------------

    def _flips(self) -> Iterator[tuple[str, bytes]]:
        for bit in range(self._job.first, 8 * len(self.sound), self._job.share):
            damaged = bytearray(self.sound)
            damaged[bit // 8] ^= 1 << bit % 8
            region = self._layout.region_at(bit // 8)
            if self._job.mode == "repaired":
                self._layout.repair(damaged, region)
                if damaged == self.sound:  # the bit was a checksum's
                    continue
            yield f"bit {bit % 8} of byte {bit // 8:#x}, {region.kind} {region.number}", bytes(damaged)

    def _cuts(self) -> Iterator[tuple[str, bytes]]:
        for length in range(self._job.first, len(self.sound), self._job.share):
            yield f"the first {length} bytes", self.sound[:length]
            yield f"without the first {length + 1} bytes", self.sound[length + 1 :]
            yield f"{length + 1} bytes more", self.sound + bytes(length + 1)

    def _wild(self) -> Iterator[tuple[str, bytes]]:
        chooser = random.Random(self._job.first)
        regions = [r for r in self._layout.regions if r.kind not in ("padding", "header")]
        for i in range(self._job.count):
            region, damaged = chooser.choice(regions), bytearray(self.sound)
            _write_over(damaged, region, chooser)
            self._layout.repair(damaged, region)
            yield f"wild {i} in {region.kind} {region.number}", bytes(damaged)

    def _fields(self) -> Iterator[tuple[str, bytes]]:
        cases = (
            (place, width, value)
            for place, width in self._layout.fields()
            for value in _values(u(self.sound, place, width), width, len(self.sound))
        )
        for place, width, value in islice(cases, self._job.first, None, self._job.share):
            damaged, region = bytearray(self.sound), self._layout.region_at(place)
            damaged[place : place + width] = value.to_bytes(width, "little")
            self._layout.repair(damaged, region)
            yield f"{width} bytes at {place:#x} are {value:#x}, {region.kind} {region.number}", bytes(damaged)

    # -- checks ----------------------------------------------------------------------------------------

    def _open(self, what: str, damaged: bytes) -> SortedFileReader | None:
        try:
            return SortedFileReader(Named(damaged))
        except (CorruptionError, FormatVersionError) as error:
            self._check_error(what, "open", error)
            self.outcome.refused += 1
            return None

    def _try(self, what: str, damaged: bytes) -> None:
        reader = self._open(what, damaged)
        if reader is None:
            return
        assert self._faces is not None
        found: list[str] = []
        for name, face in self._faces.faces():
            if self.outcome.tried % _SELDOM.get(name, 1):
                continue
            try:
                answer = text_of(self._measured(f"{what}: {name}", face, reader))
                answer = text_of(face(reader)) if self._job.compiled and name in _AGAIN else answer
            except SkipstoneError as error:
                found.append(name)
                self._check_error(what, name, error)
            else:
                # `inspect --verify` prints what is damaged, and does not raise.
                if self._is_plain and name != "inspect" and answer != self._faces.answers[name]:
                    self.outcome.complaints.append(f"{what}: {name} answers otherwise")
        findings = self._measured(f"{what}: verify", lambda r: r.verify(), reader)
        if any(None in (f.check, f.offset) for f in findings):
            self.outcome.complaints.append(f"{what}: a finding of no check or offset: {findings}")
        if found and not findings and self._is_plain:
            self.outcome.complaints.append(f"{what}: {found} refuse what verify does not find")
        if self._is_plain and not (found or findings) and not what.split(", ")[-1].startswith("padding"):
            self.outcome.complaints.append(f"{what}: nothing found it")
        self.outcome.refused += bool(found)
        self.outcome.harmless += not (found or findings)

    def _try_cut(self, what: str, damaged: bytes) -> None:
        if self._open(what, damaged) is not None:
            self.outcome.complaints.append(f"{what}: it is opened")

    def _measured(self, what: str, face: Face, reader: SortedFileReader) -> object:
        """The result of a face. Too much memory is a complaint."""
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = _status("VmRSS")
        try:
            return face(reader)
        finally:
            peak = _status("VmHWM") - before
            if peak > PEAK_BYTES + 3 * len(self.sound):
                self.outcome.complaints.append(f"{what} takes {peak >> 20} MiB")

    def _try_crafted(self, what: str, damaged: bytes) -> None:
        try:
            opened = self._measured(f"{what}: open", lambda _: SortedFileReader(Named(damaged)), None)
        except SkipstoneError as error:
            self._check_error(what, "open", error)
            self.outcome.refused += 1
            return
        findings: list = []
        for name, face in crafted_faces():
            try:
                findings = self._measured(f"{what}: {name}", face, opened) or findings
            except SkipstoneError as error:
                findings.append(error)
                self._check_error(what, name, error)
        self.outcome.refused += bool(findings)
        self.outcome.harmless += not findings

    @property
    def _is_plain(self) -> bool:
        """Whether checksums show the damage."""
        return self._job.mode in ("flips", "cuts")

    def _check_error(self, what: str, face: str, error: SkipstoneError) -> None:
        complain = self.outcome.complaints.append
        if isinstance(error, CorruptionError):
            if not str(error.path).endswith(NAME):
                complain(f"{what}: {face} does not name the file: {error!r}")
            if error.offset is None or error.check is None:
                complain(f"{what}: {face} names no offset or check: {error!r}")
        elif self._is_plain:
            complain(f"{what}: {face} raises {error!r}")
        elif face == "merge" and _blames(error):
            complain(f"{what}: {face} blames its caller: {error!r}")


def _blames(error: SkipstoneError) -> bool:
    """Whether an error blames the caller. A merge must not, for bytes of a file; but another schema is another file."""
    return isinstance(error, (InvalidArgumentError, SchemaError)) and "runs of different columns" not in str(error)


def _write_over(data: bytearray, region: Region, chooser: random.Random) -> None:
    low, high = region.start, region.stop
    if region.kind == "block" and chooser.random() < 0.5:  # its head and directory, more than by chance
        high = min(high, low + 100)
    for _ in range(chooser.choice((1, 1, 2, 4))):
        at, width = chooser.randrange(low, high), chooser.choice((1, 2, 4, 8))
        some = (0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, chooser.getrandbits(64), chooser.randrange(300))
        value = chooser.choice(some) % (1 << 8 * width)
        end = min(high, at + width)
        data[at:end] = value.to_bytes(width, "little")[: end - at]


def _values(now: int, width: int, size: int) -> list[int]:
    """Other values of a number, without repeats."""
    top = (1 << 8 * width) - 1
    odd = [0, 1, now - 1, now + 1, top, top - 1, 1 << 8 * width - 1, (1 << 8 * width - 1) - 1, size, size - 48, 2 * now]
    return [value for value in dict.fromkeys(odd) if value != now and 0 <= value <= top]


def _status(field: str) -> int:
    """A number of this process's memory, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))


def _size_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main() -> None:
    faulthandler.enable()
    with open(sys.argv[1]) as file:
        jobs = [Job(**job) for job in json.load(file)]
    for job in jobs:
        harm = Harm(job)
        harm.run()
        print(json.dumps(harm.outcome.__dict__), flush=True)


if __name__ == "__main__":
    main()
