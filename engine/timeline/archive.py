"""Old instants, a thousand to a file: so that history is read at once, and their bytes are stored once.

    timeline/00000/archive.sbf         the instants of versions 0..999: what history tells of each, and its whole text

Contents move, names stay: a version's own file then holds a stub that says where its text lies. A name that was
published is never free again, or a writer who paused long ago could publish under it, and nobody would read that.
The archive is whole before the first stub is put, so a crash between leaves nothing unread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa

from ...errors import CorruptionError
from ...hfile_like import SortedFileReader, SortedFileWriter
from ..storage import FileMissingError, Ranged, Storage

SCHEMA = pa.schema([("told", pa.string()), ("text", pa.binary())])
HISTORY = ("version", "transaction", "action", "time_us", "key", "summary", "totals", "fenced")
_STUB = b'{"archived": '


def archive_path(folder: str) -> str:
    return f"{folder}/archive.sbf"


def is_stub(data: bytes) -> bool:
    """True for what stands in the place of an instant that is archived."""
    return data.startswith(_STUB)


def stub(folder: str, version: int) -> bytes:
    """What stands under a version's name from then on."""
    return json.dumps({"archived": archive_path(folder), "version": version}).encode() + b"\n"


def is_archived(storage: Storage, folder: str) -> bool:
    """True where a folder of the timeline has its archive."""
    try:
        storage.stat(archive_path(folder))
    except FileMissingError:
        return False
    return True


def write_archive(storage: Storage, folder: str, texts: Sequence[tuple[int, bytes]]) -> None:
    """Writes the archive of a folder from (version, text of the instant), ascending: durable and whole on return."""
    plain = [json.loads(text.partition(b"\n")[0]) for _, text in texts]
    told = [json.dumps({name: instant[name] for name in HISTORY}) for instant in plain]
    keys = pa.array([version.to_bytes(8, "big") for version, _ in texts], pa.binary())
    with (
        storage.create(archive_path(folder)) as sink,
        SortedFileWriter(sink, schema=SCHEMA, use="get") as writer,
    ):
        writer.write(keys, pa.record_batch([told, [text for _, text in texts]], schema=SCHEMA))


def archived_text(storage: Storage, folder: str, version: int) -> bytes:
    """The text of one archived instant. Raises CorruptionError where the archive is damaged, or gone."""
    path = archive_path(folder)
    try:
        with SortedFileReader(Ranged(storage, path)) as reader:
            found = reader.get(version.to_bytes(8, "big"))
    except FileMissingError as error:
        told = f"version {version} was archived, and the archive is gone; restore the file"
        raise CorruptionError(told, path=path, check="archive") from error
    if found is None:
        raise CorruptionError(f"version {version} was archived, and is not in the archive", path=path, check="archive")
    text = found["text"]
    assert isinstance(text, bytes)
    return text


def archived_history(storage: Storage, folder: str) -> Iterator[dict]:
    """What history tells of the instants of an archived folder (`HISTORY`), by version."""
    with SortedFileReader(Ranged(storage, archive_path(folder))) as reader:
        found = reader.scan_table(columns=["told"])
    yield from map(json.loads, found.column("told").to_pylist())
