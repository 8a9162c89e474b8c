"""The timeline of a table: instants by version, under names that are given once and never freed.

    timeline/00000/0000000007.json     version 7; a folder holds a thousand versions
    timeline/00000/archive.sbf         the old ones of a folder: `archive.py`
    timeline/HINT                      a version that existed once: where to begin looking for the latest

Finding the latest version begins at the newest that this process has read, if its file still stands, else at the hint,
and costs one read a version that came after it; only where the hint is missing, wrong, far behind or archived are the
folders listed: the timeline's, and its last. Neither is believed without its instant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ...errors import CorruptionError, NotATableError, SkipstoneError, StorageError
from ..progress import Progress
from ..storage import Entry, FileMissingError, Storage, UncertainPutError
from .archive import HISTORY, archived_history, archived_text, is_archived, is_stub, stub, write_archive
from .instant import Instant
from .markers import Markers

FOLDER = "timeline"
_HINT = f"{FOLDER}/HINT"
VERSIONS_A_FOLDER = 1000
_PROBES_MAX = 64
PUTS_MAX = 3
_VERSION_DIGITS_MAX = 18
_SEEN_MAX = 1000
_seen: dict[str, tuple[Instant, Entry]] = {}  # by root: an instant never changes, so only newer ones need be looked for


def instant_path(version: int) -> str:
    return f"{_folder_of(version)}/{version:010d}.json"


def _folder_of(version: int) -> str:
    return f"{FOLDER}/{version // VERSIONS_A_FOLDER:05d}"


class Timeline:
    """The instants of one index root."""

    def __init__(self, storage: Storage):
        self.storage = storage
        self.markers = Markers(storage)

    def read(self, version: int) -> Instant:
        """One version. Raises NotATableError where there is none of that number."""
        found = self._probe(version)
        if found is None:
            raise NotATableError(f"{self.storage.uri}: no version {version}")
        return found

    def latest(self, known: Instant | None = None) -> Instant | None:
        """The newest instant, or None where the timeline is empty. `known`, if given and standing, saves the reads
        before it."""
        if known is not None and not self.stands(known):
            known = None
        found = known or self._remembered() or self._hinted() or self._listed()
        probes = 0
        while found is not None:
            later = self._probe(found.version + 1)
            if later is None:
                return found
            found = later
            probes += 1
            if probes % _PROBES_MAX == 0:  # far behind: one listing is cheaper than to go on like this
                listed = self._listed()
                found = listed if listed is not None and listed.version > found.version else found
        return None

    def stands(self, instant: Instant) -> bool:
        """True where the timeline holds this very instant: not where the table was removed, and another made here."""
        seen, entry = _seen.get(self.storage.uri, (None, None))
        if seen is None or seen.transaction != instant.transaction or entry != self._entry(instant.version):
            there = self._probe(instant.version)
            return there is not None and there.transaction == instant.transaction
        return True

    def check_readable(self, instant: Instant) -> None:
        """Raises NotATableError for a version that was cleaned: what it names is removed."""
        with contextlib.suppress(CorruptionError):  # a damaged latest version hides no older one
            latest = self.latest(known=instant)
            if latest is not None:
                latest.check_kept(instant.version)

    def publish(self, instant: Instant) -> bool:
        """Puts an instant if its version is free; False where another transaction has it. Raises StorageError where
        that cannot be told, or not be made durable: it may be there then, or may not."""
        if instant.version % VERSIONS_A_FOLDER == 0 and instant.version > 1:
            self._settle(instant.version - 1)
        published = self._put(instant)
        if published:
            with contextlib.suppress(OSError):  # only a hint: a reader finds its way without
                self.storage.put(_HINT, str(instant.version).encode(), is_durable=False)
        return published

    def _put(self, instant: Instant) -> bool:
        """An error may come after the put was done (a lost answer, a folder that could not be flushed). It is put once
        more then, which does nothing but make sure; the instant that is there tells by its transaction's id whose it
        is."""
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
        there = self._probe(instant.version)
        return there is not None and there.transaction == instant.transaction

    def _settle(self, version: int) -> None:
        """Makes the last name of a folder durable before the first of the next one: whoever gave it may have died
        before his folder was flushed, and only that folder's next instant would flush it again."""
        path = instant_path(version)
        with contextlib.suppress(FileMissingError):
            self.storage.put_if_absent(path, self.storage.read(path))

    def was_published(self, instant: Instant) -> bool | None:
        """Whether an instant that was being published, when something broke off, is there; None if nobody can tell."""
        try:
            there = self._probe(instant.version)
        except SkipstoneError:
            return None
        return there is not None and there.transaction == instant.transaction

    def instants(self, first: int, last: int) -> Iterator[Instant]:
        """The instants of versions first..last, both inclusive."""
        for version in range(first, last + 1):
            yield self.read(version)

    def history(self, last: int) -> Iterator[dict]:
        """What history tells (`archive.HISTORY`) of versions 1..last."""
        version = 1
        while version <= last:
            folder, stop = _folder_of(version), (version // VERSIONS_A_FOLDER + 1) * VERSIONS_A_FOLDER
            if stop <= last and is_archived(self.storage, folder):
                yield from archived_history(self.storage, folder)
            else:
                for instant in self.instants(version, min(stop - 1, last)):
                    yield {name: getattr(instant, name) for name in HISTORY}
            version = stop

    def archive(self, latest: int, progress: Progress | None = None) -> None:
        """Archives the folders of versions that lie a folder's length behind the latest, the oldest first. What a crash
        left half done is done again."""
        begun = after = max(0, latest // VERSIONS_A_FOLDER - 1)
        # The last name of a folder is the last to become a stub: where it is one, that folder and all before are done.
        while begun > 0 and not is_stub(self.storage.read(instant_path(begun * VERSIONS_A_FOLDER - 1))):
            begun -= 1
        for number in range(begun, after):
            first, stop = max(1, number * VERSIONS_A_FOLDER), (number + 1) * VERSIONS_A_FOLDER
            folder = _folder_of(first)
            if not is_archived(self.storage, folder):
                texts = [(v, self.storage.read(instant_path(v))) for v in range(first, stop)]
                if any(is_stub(text) for _, text in texts):  # somebody else archives, too, and was first
                    continue
                for version, text in texts:
                    Instant.from_bytes(text, path=instant_path(version))  # a damaged one stays where it is, and is told
                write_archive(self.storage, folder, texts)
            for version in range(first, stop):
                self.storage.put(instant_path(version), stub(folder, version))
                if progress:
                    progress("archive", version + 1 - first, stop - first)

    def _probe(self, version: int) -> Instant | None:
        path = instant_path(version)
        try:
            entry: Entry | None
            entry, data = self.storage.read_entry(path)
        except FileMissingError:
            return None
        if is_stub(data):
            entry, data = None, archived_text(self.storage, _folder_of(version), version)
        found = Instant.from_bytes(data, path=f"{self.storage.uri}/{path}")
        if entry is not None:
            self._remember(found, entry)
        return found

    def _entry(self, version: int) -> Entry | None:
        try:
            return self.storage.stat(instant_path(version))
        except FileMissingError:
            return None

    def forget(self) -> None:
        """Lets go of the instant that the process remembers here."""
        _seen.pop(self.storage.uri, None)

    def _remembered(self) -> Instant | None:
        """The newest instant that this process has read here, if the very file still stands."""
        instant, entry = _seen.get(self.storage.uri, (None, None))
        return instant if instant is not None and self._entry(instant.version) == entry else None

    def _remember(self, instant: Instant, entry: Entry) -> None:
        """Keeps an instant as read from a file that was `entry` just before; never an older one of the same table."""
        known, _ = _seen.get(self.storage.uri, (None, None))
        if known is not None and known.table_id == instant.table_id and known.version > instant.version:
            return
        if len(_seen) >= _SEEN_MAX:
            _seen.clear()
        _seen[self.storage.uri] = instant, entry

    def _hinted(self) -> Instant | None:
        try:
            told = self.storage.read(_HINT)
        except StorageError:  # missing, or no file: a hint is never needed
            return None
        try:
            if len(told) > _VERSION_DIGITS_MAX or is_archived(self.storage, _folder_of(int(told))):
                return None
            return self._probe(int(told))
        except (FileMissingError, ValueError):
            return None

    def _listed(self) -> Instant | None:
        _, folders = self.storage.list_folder(FOLDER)
        for folder in sorted((f for f in folders if f.isdigit()), key=int, reverse=True):
            files, _ = self.storage.list_folder(f"{FOLDER}/{folder}")
            versions = [_version_of(f.path) for f in files]
            newest = max((v for v in versions if v is not None), default=None)
            if newest is not None:
                return self._probe(newest)
        return None


def _version_of(path: str) -> int | None:
    name = path.rsplit("/", 1)[-1]
    return int(name[:-5]) if name.endswith(".json") and name[:-5].isdigit() else None
