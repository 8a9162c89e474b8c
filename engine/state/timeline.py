"""The timeline of a table: instants by version, under names that are never reused.

    timeline/00000/0000000007.json     version 7; a folder contains a thousand versions
    timeline/HINT                      a version that existed, and the table's id: where a search for the latest begins
                                       (on an object store then a copy of its instant, by which runs are opened early)

The search for the latest version begins at the newest that this process has read, if its file still exists, or at the
hint if that is newer, and costs one read per version that was created after it. Only if the hint is missing, wrong or
far behind are the folders listed: the timeline's, and its last. Neither is trusted without its instant.

The file of a version that was cleaned is shrunk in place: its name stays taken, and its line of the history, its
place in the chain and the transactions that it fenced stay.

An instant is valid only under its own version's name. The hint is put once its instant is durable. So if a hint of this
table names a newer version than can be read, the version was lost: readers report this, and writers refuse
(`publishing.py`). A hint with other bytes or another table's id means nothing.

Ages are measured by the clock of the storage. It is read from the time of a file that was just written there. It may be
wrong, because times of files are compared only with it.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any

from ...errors import CorruptionError, NotATableError, SkipstoneError, SkipstoneWarning, StorageError
from ..storage import Entry, FileMissingError, Storage, UncertainPutError
from ..storage.local import TEMPORARY_PREFIX
from ..storage.threads import side_by_side
from .fields import INSTANT_BYTES_MAX, SMALL_BYTES_MAX, VERSION_MAX
from .instant import Instant
from .instant_fields import history_of, parse_instant, shrunk_text

FOLDER = "timeline"
VERSIONS_A_FOLDER = 1000
_FOLDER_FORM = re.compile("[0-9]{5,12}")
_VERSION_FORM = re.compile("[0-9]{10,15}")
_HINT = f"{FOLDER}/HINT"
_PROBES_MAX = 64
PUTS_MAX = 3
_HINT_FORM = re.compile(rb"([0-9]{1,15}) ([0-9a-f]{32})\n")
_LOST_MAX = 100_000
REMEDY = "restore the file from a copy, or remove the folder of the index and {create} it again"
_SEEN_MAX = 1000
_seen: dict[str, tuple[Instant, Entry]] = {}  # by root: an instant never changes, so only newer ones are looked up


class Timeline:
    """The instants of one index root.

    lost    the newest version that was created and that `latest` could not find; None if it found the newest
    """

    def __init__(self, storage: Storage):
        self.storage = storage
        self.lost: int | None = None
        self._table_id: str | None = None  # of the latest
        self._hinted = b""  # what follows the first line of the hint
        self._published: tuple[str | None, Entry | None] = (None, None)  # the transaction and the file of the last one

    def read(self, version: int) -> Instant:
        """Return one version. Raise NotATableError if there is none of that number, CorruptionError if its file is
        damaged, or contains another version, or another table's."""
        instant = self.find(version)
        if instant is None:
            raise NotATableError(f"{self.storage.uri}: no version {version}, or it was lost")
        if instant.is_shrunk:
            raise NotATableError(
                f"{self.storage.uri}: version {version} was cleaned or purged, and can no longer be read"
            )
        self._check_table(instant, self._table_id)
        return instant

    def nearest(self, version: int) -> Instant | None:
        """Return the last version, up to this one, that exists; None if there is none."""
        for number in range(version, max(0, version - _PROBES_MAX), -1):
            instant = self.find(number)
            if instant is not None:
                return instant
        return self._listed(version - _PROBES_MAX)

    def latest(self, known: Instant | None = None, prefetch: Callable[[Instant], None] | None = None) -> Instant | None:
        """Return the newest instant, None if the timeline is empty. If `known` is given and still stored, it saves the
        reads before it. On remote storage `prefetch` is called with the hint's instant during the search; it must do no
        harm if another one is the newest. Sets `lost`."""
        probed: dict[int, Instant | None] = {}
        hint, newest = self._begin(known, probed)
        if hint is not None and (newest is None or (hint[1] == newest.table_id and hint[0] > newest.version)):
            self._probe(probed, hint[0], hint[0] + 1, prefetch=prefetch)
            newest = self._probed(probed, hint[0]) or newest
        if newest is None or hint is None or hint[1] != newest.table_id:
            newest = _newer(newest, self._listed())
        probes = 0
        while newest is not None and (later := self._probed(probed, newest.version + 1)) is not None:
            self._check_table(later, newest.table_id)
            newest = later
            probes += 1
            if probes % _PROBES_MAX == 0:  # far behind: one listing is cheaper than more probes
                newest = _newer(newest, self._listed())
        if newest is not None and newest.is_shrunk:
            message = "was cleaned, and no later version can be read: they were lost"
            path = f"{self.storage.uri}/{instant_path(newest.version)}"
            raise CorruptionError(message, path=path, check="timeline", hint=REMEDY)
        self._table_id = None if newest is None else newest.table_id
        claimed = [] if hint is None else [hint]
        claimed += [] if known is None else [(known.version, known.table_id)]
        same = [] if newest is None else [version for version, table_id in claimed if table_id == newest.table_id]
        self.lost = max([v for v in same if newest is not None and is_loss(v, newest.version)], default=None)
        return newest

    def _begin(
        self, known: Instant | None, probed: dict[int, Instant | None]
    ) -> tuple[tuple[int, str] | None, Instant | None]:
        """Return (the hint, the instant to begin at: `known`, or the one that this process remembers, if it is still
        stored). On remote storage the version after that is probed in parallel."""

        def stored() -> Instant | None:
            return known if known is not None and self.is_current(known) else self._remembered()

        base = known or _seen.get(self.storage.uri, (None, None))[0]
        asks: list[Callable[[], Any]] = [self.hint, stored]
        if base is not None and self.storage.is_remote:
            asks.append(lambda: self._probe(probed, base.version + 1))
        hint, newest, *_ = side_by_side(self.storage, lambda ask: ask(), asks, "skipstone-timeline")
        return hint, newest

    def _probe(
        self,
        probed: dict[int, Instant | None],
        *versions: int,
        prefetch: Callable[[Instant], None] | None = None,
    ) -> None:
        """On remote storage, store the results of `find` for some versions, in parallel; elsewhere this is no faster.
        If `find` raises, nothing is stored: it raises again when the version is requested."""

        def find(version: int) -> None:
            with contextlib.suppress(SkipstoneError):
                probed[version] = self.find(version)

        def go_ahead() -> None:
            with contextlib.suppress(SkipstoneError):
                instant = parse_instant(self._hinted, path=_HINT)
                if prefetch is not None and instant.version == versions[0]:
                    prefetch(instant)

        if self.storage.is_remote:
            asks: list[Callable[[], None]] = [partial(find, version) for version in versions]
            asks += [go_ahead] if prefetch is not None and self._hinted else []
            list(side_by_side(self.storage, lambda ask: ask(), asks, "skipstone-timeline"))

    def _probed(self, probed: dict[int, Instant | None], version: int) -> Instant | None:
        """Return the result that `_probe` stored, or that of `find`."""
        return probed.pop(version) if version in probed else self.find(version)

    def check_whole(self, newest: Instant, strict: bool) -> None:
        """Warn, or raise CorruptionError if `strict`, if `latest` has just found this instant and a newer version was
        lost."""
        if self.lost is None:
            return
        message = (
            f"version {self.lost} was created and is missing; version {newest.version} is the newest that can be read"
        )
        path = f"{self.storage.uri}/{instant_path(self.lost)}"
        if strict:
            raise CorruptionError(message, path=path, check="timeline", hint=REMEDY)
        warnings.warn(SkipstoneWarning(f"{path}: {message}", hint=REMEDY), stacklevel=3)

    def is_current(self, instant: Instant, entry: Entry | None = None) -> bool:
        """Return whether the timeline contains exactly this instant: not if the table was removed and another one was
        created here. `entry`: its file, if that was just listed."""
        seen, read = _seen.get(self.storage.uri, (None, None))
        files = dict([self._published, (None if seen is None else seen.transaction, read)])
        file = files.get(instant.transaction)
        if file is not None and file == (entry or self._entry(instant.version)):
            return True
        stored = self.find(instant.version)
        return stored is not None and stored.transaction == instant.transaction

    def read_again(self, instant: Instant) -> None:
        """Read the file of an instant that this process created or read elsewhere, so that `is_current` can compare it
        with a listing."""
        seen, _ = _seen.get(self.storage.uri, (None, None))
        if seen is None or seen.transaction != instant.transaction:
            with contextlib.suppress(SkipstoneError):
                self.find(instant.version)

    def hinted_version(self, table_id: str) -> int | None:
        """Return the newest version of a table that the hint names; None if it names none of this table."""
        hint = self.hint()
        return None if hint is None or hint[1] != table_id else hint[0]

    def check_readable(self, instant: Instant) -> None:
        """Raise NotATableError for a version that was cleaned, because its files are removed, and CorruptionError for
        one of another table."""
        try:
            latest = self.latest(known=instant)
        except CorruptionError:  # a damaged latest version hides no older one
            return
        if latest is not None:
            self._check_table(instant, latest.table_id)
            latest.check_kept(instant.version)

    def publish(self, instant: Instant) -> bool:
        """Put an instant if its version is free. Return False if another transaction has it. Raise StorageError if
        that is unknown, or the instant cannot be made durable: then it may be stored, or not."""
        if instant.version > 1 and folder_number(instant.version) != folder_number(instant.version - 1):
            self._settle(instant.version - 1)
        published = self._put(instant)
        if published:
            if not self.storage.is_remote:  # on remote storage this is a request
                with contextlib.suppress(SkipstoneError):
                    self._published = instant.transaction, self._entry(instant.version)
            with contextlib.suppress(SkipstoneError):  # only a hint: a reader finds the latest without it
                self.storage.put(_HINT, self._hint_of(instant), is_durable=False)
        return published

    def _hint_of(self, instant: Instant) -> bytes:
        line = f"{instant.version} {instant.table_id}\n".encode()
        copy = instant.to_bytes() if self.storage.is_remote else b""
        return line + copy if len(line) + len(copy) <= SMALL_BYTES_MAX else line

    def _put(self, instant: Instant) -> bool:
        """Put an instant. A put may succeed and still raise (a lost answer, a folder that could not be flushed), so it
        is repeated, which does no harm. The transaction's id in the stored instant identifies its writer."""
        uncertain: UncertainPutError | None = None
        for attempt in range(PUTS_MAX):
            try:
                if self.storage.put_if_absent(instant_path(instant.version), instant.to_bytes()):
                    return True
                break
            except StorageError as error:
                if isinstance(error, UncertainPutError):
                    uncertain = error
                if attempt + 1 == PUTS_MAX:
                    raise (uncertain or error) from None
        stored = self.find(instant.version)
        return stored is not None and stored.transaction == instant.transaction

    def _settle(self, version: int) -> None:
        """Make the last name of a folder durable before the first of the next one. Its writer may have died before the
        folder was flushed, and only the next instant in that folder would flush it again."""
        path = instant_path(version)
        with contextlib.suppress(FileMissingError):
            self.storage.put_if_absent(path, self.storage.read(path, INSTANT_BYTES_MAX))

    def was_published(self, instant: Instant) -> bool | None:
        """Return whether an instant whose publishing was interrupted is stored; None if that is unknown."""
        try:
            stored = self.find(instant.version)
        except SkipstoneError:
            return None
        return stored is not None and stored.transaction == instant.transaction

    def instants(self, first: int, last: int) -> Iterator[Instant]:
        """Yield the instants of versions first..last, both inclusive, without those that were lost."""
        versions: Iterable[int] = range(first, last + 1)
        if last - first >= _PROBES_MAX:  # a version's number may be far larger than how many there are
            versions = sorted(version for version in self.names(first, last) if version <= last)
        for version in versions:
            instant = self.find(version)
            if instant is not None:
                yield instant

    def last_until(
        self, latest: Instant, time_us: int, time_of: Callable[[Instant], int] = attrgetter("when_us")
    ) -> tuple[Instant | None, bool]:
        """Return (the last version up to `latest` that was created at a time or before it; whether the own time of an
        instant on the way is not trusted, so that its file's time counted)."""
        low, high, is_doubted = 0, latest.version, False  # times never go back, so the range can be halved
        while low < high:
            middle = (low + high + 1) // 2
            instant = self.nearest(middle)
            if instant is None or instant.version <= low:  # the versions between are lost
                low = middle
                continue
            is_doubted |= instant.when_us != instant.time_us
            low, high = (middle, high) if time_of(instant) <= time_us else (low, instant.version - 1)
        return self.nearest(low), is_doubted

    def history(self, last: int) -> Iterator[dict]:
        """Yield the history (`instant_fields.HISTORY`) of versions 1..last, except those that were lost."""
        return map(history_of, self.instants(1, last))

    def shrink(self, version: int) -> None:
        """Replace a version that was cleaned by what history and writers still need, under its own name, which stays
        taken. A writer that began at it or before reads this in its place."""
        read = self._stored(version)
        if read is not None:
            text = shrunk_text(self._parsed(version, *read))
            if len(text) < len(read[1]):
                self.storage.replace(instant_path(version), text, read[0])

    def _stored(self, version: int) -> tuple[Entry, bytes] | None:
        """Return what is stored under a version's name; None if there is nothing."""
        try:
            return self.storage.read_entry(instant_path(version), INSTANT_BYTES_MAX)
        except FileMissingError:
            return None

    def _parsed(self, version: int, entry: Entry, data: bytes) -> Instant:
        """Return the instant in a version's file. Raise CorruptionError if it is damaged, or another version's."""
        path = f"{self.storage.uri}/{instant_path(version)}"
        instant = parse_instant(data, path=path, modified_us=entry.modified_ns // 1000)
        if instant.version != version:
            message = (
                f"contains version {instant.version}, and not the one of its name: another file was copied over it"
            )
            raise CorruptionError(message, path=path, check="version", hint=REMEDY)
        return instant

    def _check_table(self, instant: Instant, table_id: str | None) -> None:
        if table_id is not None and instant.table_id != table_id:
            path = f"{self.storage.uri}/{instant_path(instant.version)}"
            raise CorruptionError("an instant of another table", path=path, check="table", hint=REMEDY)

    def find(self, version: int) -> Instant | None:
        """Return one version; None if nothing is stored under its name. Raise CorruptionError as `read`."""
        read = self._stored(version)
        if read is None:
            return None
        instant = self._parsed(version, *read)
        self._remember(instant, read[0])
        return instant

    def _entry(self, version: int) -> Entry | None:
        try:
            return self.storage.stat(instant_path(version))
        except FileMissingError:
            return None

    def forget(self) -> None:
        """Drop the instant that the process remembers here."""
        _seen.pop(self.storage.uri, None)

    def _remembered(self) -> Instant | None:
        """Return the newest instant that this process has read here, if exactly that file still exists."""
        instant, entry = _seen.get(self.storage.uri, (None, None))
        return instant if instant is not None and self._entry(instant.version) == entry else None

    def _remember(self, instant: Instant, entry: Entry) -> None:
        """Remember an instant, as read from a file that was `entry` just before; never an older one of the table."""
        known, _ = _seen.get(self.storage.uri, (None, None))
        if known is not None and known.table_id == instant.table_id and known.version > instant.version:
            return
        if len(_seen) >= _SEEN_MAX:
            _seen.clear()
        _seen[self.storage.uri] = instant, entry

    def hint(self) -> tuple[int, str] | None:
        """Return (version, table's id) of the hint; None if it cannot be read, or is not in our format."""
        # It may be a folder, for example. The next request shows whether the storage answers at all.
        with contextlib.suppress(StorageError, CorruptionError):
            line, end, copy = self.storage.read(_HINT, SMALL_BYTES_MAX).partition(b"\n")
            match, self._hinted = _HINT_FORM.fullmatch(line + end), copy
            return None if match is None else (int(match[1]), match[2].decode())
        return None

    def names(self, first: int, last: int | None) -> dict[int, Entry]:
        """Return the files under the names of versions from `first` on: of its folder, and if that is full, or does not
        reach `last` (None: unknown), of the folders after it. Usually this takes one listing."""
        number = folder_number(first)
        entries = in_folder(self.storage, number, first)
        final = (number + 1) * VERSIONS_A_FOLDER - 1
        if final in entries or last is None or last > final:
            for later in folders(self.storage):
                if later > number and (last is None or later <= folder_number(last)):
                    entries |= in_folder(self.storage, later)
        return {version: entry for version, entry in entries.items() if version >= first}

    def _listed(self, last: int = VERSION_MAX) -> Instant | None:
        """Return the newest version up to `last`, by listings."""
        for number in reversed(folders(self.storage)):
            if number > folder_number(last):
                continue
            for version in sorted(in_folder(self.storage, number), reverse=True):
                instant = self.find(version) if version <= last else None
                if instant is not None:
                    return instant
        return None


def is_loss(version: int, newest: int) -> bool:
    """Return True if a version that is recorded as created, and is newer than what can be read, means a loss. One that
    is further away than any loss means nothing."""
    return newest < version <= newest + _LOST_MAX


def _newer(one: Instant | None, other: Instant | None) -> Instant | None:
    return other if one is None or (other is not None and other.version > one.version) else one


# -- names of versions -------------------------------------------------------------------------------------------------


def instant_path(version: int) -> str:
    return f"{FOLDER}/{folder_number(version):05d}/{_name_of(version)}"


def _name_of(version: int) -> str:
    return f"{version:010d}.json"


def folder_number(version: int) -> int:
    """Return the number of the folder that contains a version's name."""
    return version // VERSIONS_A_FOLDER


def in_folder(storage: Storage, number: int, first: int = 0) -> dict[int, Entry]:
    """Return the files under the names of the versions of one folder; those before `first` may be left out."""
    files, _ = storage.list_folder(f"{FOLDER}/{number:05d}", _name_of(first))
    return {version: f for f in files if (version := version_of(f.path)) is not None}


def folders(storage: Storage) -> list[int]:
    """Return the numbers of the folders, ascending."""
    _, inside = storage.list_folder(FOLDER)
    return sorted(int(f) for f in inside if _FOLDER_FORM.fullmatch(f))


def version_of(path: str) -> int | None:
    """Return the version of an instant's file; None for any other file."""
    name = path.rsplit("/", 1)[-1].removesuffix(".json")
    return int(name) if _VERSION_FORM.fullmatch(name) and instant_path(int(name)) == path else None


# -- time --------------------------------------------------------------------------------------------------------------


def now_us(after: int = 0) -> int:
    """Return microseconds since 1970 UTC, always greater than `after`: times on a timeline always increase."""
    return max(time.time_ns() // 1000, after + 1)


def storage_now_us(storage: Storage) -> int:
    """Return the storage's time in microseconds since 1970 UTC, from a file that is written for this and removed."""
    path = f"timeline/{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    storage.put(path, b"", is_durable=False)
    try:
        return storage.stat(path).modified_ns // 1000
    finally:
        with contextlib.suppress(SkipstoneError):  # `clean` removes the file if it stays
            storage.delete(path)
