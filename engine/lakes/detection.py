"""Which table format a directory belongs to, looked up by what its log leaves there: `_delta_log`, Iceberg's
`metadata/*.metadata.json`, `.hoodie`.

Plain listings of such a directory count files that its log has removed, so `create` looks before it lists: here, and in
the folders above, since a partition folder of a table is a part of it. Each folder costs three short requests, asked
side by side; above a bucket nothing is asked.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ...errors import NotATableError, SkipstoneError, StorageError
from ..storage import Storage, open_storage
from ..storage.places import place_of
from ..storage.threads import STAT_THREADS, prefetched
from . import DELTA, DIRECTORY, HUDI, ICEBERG, METADATA_ENDING

_MARKS = {DELTA: "_delta_log", HUDI: ".hoodie", ICEBERG: "metadata"}  # one written as several is followed as Delta
_DELTA_ENDINGS = (".json", ".parquet", "_last_checkpoint")
_ICEBERG_ENDINGS = (METADATA_ENDING, "version-hint.text")


class Log(NamedTuple):
    """A log that was seen: its format, and the directory of its table."""

    kind: str
    root: str


def source_of(storage: Storage) -> str:
    """What `create` follows where nobody says it: "delta", "hudi", or "directory" where no log is seen.

    Raises NotATableError for the table of another format that must be named otherwise, or cannot be followed, and for a
    folder below any.
    """
    log = _nearest_log(storage)
    if log is None:
        return DIRECTORY
    insist = 'source="directory" indexes every Parquet file below, removed ones too'
    if log.root != storage.uri:
        raise NotATableError(
            f"{storage.uri} lies in a {log.kind.capitalize()} table, whose log says which files are live: attach the "
            f"table, at {log.root}; {insist}"
        )
    if log.kind == ICEBERG:
        raise NotATableError(
            f"{storage.uri} is an Iceberg table, and the newest metadata file may be one of a commit that failed: name "
            "the metadata file that its catalog names (pyiceberg's table.metadata_location), or say "
            f'source="iceberg" where no catalog has it and the newest counts; {insist}'
        )
    return log.kind


def _nearest_log(storage: Storage) -> Log | None:
    roots = [storage.uri, *_above(storage.uri)]
    try:
        outer = open_storage(roots[-1], storage.options)
    except SkipstoneError:
        roots, outer = roots[:1], storage
    candidates = [(root, kind) for root in roots for kind in _MARKS]

    def is_there(one: tuple[str, str]) -> bool:
        root, kind = one
        try:
            if root == storage.uri:
                return _has_log(storage, "", kind)
            return _has_log(outer, root[len(outer.uri) :].strip("/"), kind)
        except StorageError:
            if root == storage.uri:
                raise
            return False  # nobody need be allowed to look above the table

    results = zip(candidates, prefetched(is_there, candidates, STAT_THREADS, "skipstone-detect"), strict=True)
    return next((Log(kind, root) for (root, kind), is_log in results if is_log), None)


def _has_log(storage: Storage, folder: str, kind: str) -> bool:
    names = storage.peek(posixpath.join(folder, _MARKS[kind]))
    endings: Sequence[str] = {DELTA: _DELTA_ENDINGS, ICEBERG: _ICEBERG_ENDINGS}.get(kind, ("",))
    return any(name.endswith(tuple(endings)) for name in names)


def _above(uri: str) -> list[str]:
    """The folders above one, the nearest first: to the root of the disk, or to the bucket."""
    folders = []
    place = place_of(uri)
    if place is not None:
        while place.key:
            place = replace(place, key=posixpath.dirname(place.key))
            folders.append(place.uri)
        return folders
    path = os.path.realpath(uri)
    while (above := os.path.dirname(path)) != path:
        path = above
        folders.append(path)
    return folders
