"""Old instants, a thousand to a file: so that history is read at once, and their bytes are stored once.

    timeline/00000/archive.sbf         the instants of versions 0..999: its line of the history, and its whole text

Contents move, names stay: a version's own file then holds a stub that says where its text lies. A name that was
published is never free again, or a writer who paused long ago could publish under it, and nobody would read that.
The archive is whole before the first stub is put, so a crash between leaves nothing unread. A stub says when the file
that it took the place of was written: its own time says nothing of the version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa

from ...errors import CorruptionError
from ...hfile_like import SortedFileReader
from ..storage import FileMissingError, Ranged, Storage
from .fields import INSTANT_BYTES_MAX, SMALL_BYTES_MAX, TIME_US_MAX, FieldError, integer, parse_json, record, text
from .instant import Instant
from .instant_fields import checked_history, history_of, parse_instant

SCHEMA = pa.schema([("history", pa.string()), ("text", pa.binary())])
_STUB = b'{"archived": '
_STUB_FIELDS = record({"archived": text, "version": integer(0, 10**15), "modified_us": integer(0, TIME_US_MAX)})


def archive_path(folder: str) -> str:
    return f"{folder}/archive.sbf"


def is_stub(data: bytes) -> bool:
    """True for what replaces an archived instant."""
    return data.startswith(_STUB)


def stub(folder: str, version: int, modified_us: int) -> bytes:
    """What is stored under a version's name from then on; `modified_us`: when the instant's own file was written."""
    fields = {"archived": archive_path(folder), "version": version, "modified_us": modified_us}
    return json.dumps(fields).encode() + b"\n"


def archived_instant(storage: Storage, folder: str, version: int, path: str, there: bytes) -> Instant:
    """The instant of one version, by the stub under its name. Raises CorruptionError where the archive is
    damaged, or gone."""
    try:
        modified_us = _STUB_FIELDS(parse_json(there, SMALL_BYTES_MAX))["modified_us"]
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
