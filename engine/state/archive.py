"""Old instants, a thousand to a file: so that history is read at once, and their bytes are stored once.

    timeline/00000/archive.sbf         the instants of versions 0..999: its line of the history, and its whole text

Contents move, names stay: a version's own file then holds a stub that says where its text lies. A name that was
published is never free again, or a writer who paused long ago could publish under it, and nobody would read that.
The archive is whole before the first stub is put, so a crash between leaves nothing unread. A stub says when the file
that it took the place of was written: its own time says nothing of the version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ...errors import CorruptionError
from ...hfile_like import SortedFileReader
from ..storage import Entry, FileMissingError, Ranged, Storage
from .fields import INSTANT_BYTES_MAX, SMALL_BYTES_MAX, TIME_US_MAX, FieldError, integer, parse_json, record, text
from .instant import Instant
from .instant_fields import checked_history, history_of, parse_instant
from .version_files import folder_of, instant_path, is_stub, versions_in

if TYPE_CHECKING:
    from ..progress import Progress

SCHEMA = pa.schema([("history", pa.string()), ("text", pa.binary())])
_STUB_FIELDS = record({"archived": text, "version": integer(0, 10**15), "modified_us": integer(0, TIME_US_MAX)})


def archive_path(folder: str) -> str:
    return f"{folder}/archive.sbf"


def stub(folder: str, version: int, modified_us: int) -> bytes:
    """What is stored under a version's name from then on; `modified_us`: when the instant's own file was written."""
    fields = {"archived": archive_path(folder), "version": version, "modified_us": modified_us}
    return json.dumps(fields).encode() + b"\n"


def archived_instant(storage: Storage, folder: str, version: int, path: str, stub_bytes: bytes) -> Instant:
    """The instant of one version, by the stub under its name. Raises CorruptionError where the archive is
    damaged, or gone."""
    try:
        modified_us = _STUB_FIELDS(parse_json(stub_bytes, SMALL_BYTES_MAX))["modified_us"]
    except FieldError as error:
        raise CorruptionError(f"not a whole stub of an archived instant ({error})", path=path, check="stub") from error
    return parse_instant(_archived_text(storage, folder, version), path=path, modified_us=modified_us)


def is_archived(storage: Storage, folder: str) -> bool:
    """True where a folder of the timeline has its archive."""
    try:
        storage.stat(archive_path(folder))
    except FileMissingError:
        return False
    return True


def write_archive(storage: Storage, folder: str, instants: Sequence[tuple[Instant, bytes]]) -> None:
    """Writes the archive of a folder from (instant, its text), ascending: durable and whole on return."""
    from ...hfile_like import SortedFileWriter

    lines = [json.dumps(history_of(instant)) for instant, _ in instants]
    keys = pa.array([instant.version.to_bytes(8, "big") for instant, _ in instants], pa.binary())
    with (
        storage.create(archive_path(folder)) as sink,
        SortedFileWriter(sink, schema=SCHEMA, use="get") as writer,
    ):
        writer.write(keys, pa.record_batch([lines, [text for _, text in instants]], schema=SCHEMA))


def _archived_text(storage: Storage, folder: str, version: int) -> bytes:
    path = archive_path(folder)
    try:
        with SortedFileReader(Ranged(storage, path)) as reader:
            row = reader.get(version.to_bytes(8, "big"))
    except FileMissingError as error:
        message = f"version {version} was archived, and the archive is gone; restore the file"
        raise CorruptionError(message, path=path, check="archive") from error
    if row is None:
        raise CorruptionError(f"version {version} was archived, and is not in the archive", path=path, check="archive")
    text = row["text"]
    if not isinstance(text, bytes):
        raise CorruptionError(f"has no text of version {version}", path=path, check="archive")
    return text


def archived_history(storage: Storage, folder: str, versions: range) -> Iterator[dict]:
    """What history says of the instants of an archived folder (`HISTORY`), which are of these versions. Raises
    CorruptionError."""
    path = archive_path(folder)
    with SortedFileReader(Ranged(storage, path)) as reader:
        rows = reader.scan_table(columns=["history"])
    for line in rows.column("history").to_pylist():
        try:
            history = checked_history(parse_json((line or "").encode(), INSTANT_BYTES_MAX))
            if history["version"] not in versions:
                raise FieldError(f"version {history['version']} does not belong here")
        except FieldError as error:
            raise CorruptionError(f"not a line of history ({error})", path=path, check="archive") from error
        yield history


def archive_folders(
    storage: Storage,
    stop_folder: int,
    standing: Callable[[int], tuple[Entry, bytes] | None],
    parsed: Callable[[int, Entry, bytes], Instant],
    progress: Progress | None,
) -> None:
    """Archives the folders before one of a number, the oldest first. `standing` gives what is stored under a version's
    name, `parsed` the instant in it."""

    def is_done(number: int) -> bool:
        for version in reversed(versions_in(number)):
            stored = standing(version)
            if stored is not None:
                return is_stub(stored[1])
        return True

    first_folder = stop_folder = max(0, stop_folder)
    # The last name of a folder is the last to become a stub: where it is one, that folder and all before are done.
    while first_folder > 0 and not is_done(first_folder - 1):
        first_folder -= 1
    for number in range(first_folder, stop_folder):
        versions = versions_in(number)
        folder = folder_of(versions[0])
        instants = {v: stored for v in versions if (stored := standing(v)) is not None}
        if not is_archived(storage, folder):
            if any(is_stub(data) for _, data in instants.values()):  # somebody else archives, too, and was first
                continue
            # A damaged one stays where it is, with a warning.
            write_archive(storage, folder, [(parsed(v, *instants[v]), instants[v][1]) for v in instants])
        for version, (entry, data) in instants.items():
            if not is_stub(data):
                storage.put(instant_path(version), stub(folder, version, entry.modified_ns // 1000))
            if progress:
                progress("archive", version + 1 - versions[0], len(versions))
