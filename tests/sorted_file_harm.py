"""Damages sorted-block files bit by bit and asks them everything; run as a program, so that a crash of the interpreter,
a hang or a huge allocation ends this and not the tests.

    python sorted_file_harm.py JOB.json

A job: {"file": path | "name": of the catalogue, "mode": "flips" | "repaired" | "wild", "share": every so many-th bit,
"first": which bits of those, "count": how many wild ones, "place": where to tell what is being tried, "folder": for files}.

flips      one bit: every face answers as before or raises a CorruptionError that says file, offset and check; and what
           some face finds, `verify` finds
repaired   one bit, and every checksum made to fit: no face crashes, hangs or takes more memory than it may
wild       the same after a few random numbers were written over
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import sys
from collections.abc import Iterator

from skipstone.errors import CorruptionError, FormatVersionError, InvalidArgumentError, SchemaError, SkipstoneError
from skipstone.hfile_like import SortedFileReader
from sorted_file_bytes import Layout, Region
from sorted_file_catalogue import file_of
from sorted_file_faces import NAME, Faces, Named

HANG_S = 30
# What a reader may take on top of what it has: a section is at most 256 MiB decoded, and is held a few times over.
ROOM_BYTES = 1 << 30


class Harm:
    """One job. `tried`, `refused`, `harmless`: how many."""

    def __init__(self, job: dict):
        self._job = job
        if "file" in job:
            with open(job["file"], "rb") as file:
                self.sound = file.read()
        else:
            self.sound = file_of(job["name"])
        self._layout = Layout(self.sound)
        self._faces = Faces(self.sound, job.get("folder"))
        self._place = os.open(job["place"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        self.tried = self.refused = self.harmless = 0
        self.complaints: list[str] = []

    def run(self) -> None:
        """Does the job."""
        resource.setrlimit(resource.RLIMIT_AS, (_size_bytes() + ROOM_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
        steps = self._wild() if self._job["mode"] == "wild" else self._flips()
        for what, damaged in steps:
            os.pwrite(self._place, what.ljust(200).encode(), 0)
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            self.tried += 1
            try:
                self._try(what, damaged)
            except Exception as error:
                self.complaints.append(f"{what}: {type(error).__name__}: {error}")
            if len(self.complaints) > 20:
                break
        faulthandler.cancel_dump_traceback_later()

    def _flips(self) -> Iterator[tuple[str, bytes]]:
        is_repaired = self._job["mode"] == "repaired"
        for at in range(self._job.get("first", 0), 8 * len(self.sound), self._job.get("share", 1)):
            damaged = bytearray(self.sound)
            damaged[at // 8] ^= 1 << at % 8
            region = self._layout.region_at(at // 8)
            if is_repaired:
                self._layout.repair(damaged, region)
                if damaged == self.sound:  # the bit was a checksum's
                    continue
            yield f"bit {at % 8} of byte {at // 8:#x}, {region.kind} {region.number}", bytes(damaged)

    def _wild(self) -> Iterator[tuple[str, bytes]]:
        chooser = random.Random(self._job.get("first", 0))
        regions = [r for r in self._layout.regions if r.kind not in ("padding", "header")]
        for i in range(self._job["count"]):
            region, damaged = chooser.choice(regions), bytearray(self.sound)
            _write_over(damaged, region, chooser)
            self._layout.repair(damaged, region)
            yield f"wild {i} in {region.kind} {region.number}", bytes(damaged)

    def _try(self, what: str, damaged: bytes) -> None:
        is_plain = self._job["mode"] == "flips"
        found: list[str] = []
        try:
            reader = SortedFileReader(Named(damaged))
        except (CorruptionError, FormatVersionError) as error:
            self.refused += 1
            self._check_error(what, "open", error, is_plain)
            return
        for name, face in self._faces.faces():
            if name == "inspect" and self.tried % 16:
                continue
            try:
                answer = self._faces.ask(face, reader)
            except SkipstoneError as error:
                found.append(name)
                self._check_error(what, name, error, is_plain)
            else:
                if is_plain and name != "inspect" and answer != self._faces.answers[name]:
                    self.complaints.append(f"{what}: {name} answers otherwise")
        findings = reader.verify()
        if any(None in (f.check, f.offset) for f in findings):
            self.complaints.append(f"{what}: a finding of no check or offset: {findings}")
        if found and not findings and is_plain:
            self.complaints.append(f"{what}: {found} refuse what verify does not find")
        self.refused += bool(found)
        self.harmless += not found

    def _check_error(self, what: str, face: str, error: SkipstoneError, is_plain: bool) -> None:
        if isinstance(error, CorruptionError):
            # What is merged is read again: that file has no name.
            if error.path != NAME and not str(error.path).endswith(NAME):
                self.complaints.append(f"{what}: {face} does not name the file: {error!r}")
            if error.offset is None or error.check is None:
                self.complaints.append(f"{what}: {face} names no offset or check: {error!r}")
        elif is_plain:
            self.complaints.append(f"{what}: {face} raises {error!r}")
        elif face == "merge" and isinstance(error, (InvalidArgumentError, SchemaError)):
            # A merge must not blame its caller for what is in a file; another schema is another file.
            if "runs of different columns" not in str(error):
                self.complaints.append(f"{what}: {face} blames its caller: {error!r}")


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


def _size_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main() -> None:
    """Does the jobs of a file, and prints what came of each, a line each."""
    faulthandler.enable()
    with open(sys.argv[1]) as file:
        jobs = json.load(file)
    for job in jobs:
        harm = Harm(job)
        harm.run()
        told = {"tried": harm.tried, "refused": harm.refused, "harmless": harm.harmless}
        print(json.dumps({**told, "complaints": harm.complaints}), flush=True)


if __name__ == "__main__":
    main()
