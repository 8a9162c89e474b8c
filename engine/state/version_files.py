"""The names of versions: the path of each instant, and which ones exist. A name is never reused."""

from __future__ import annotations

import re

from ..storage import Entry, Storage

FOLDER = "timeline"
VERSIONS_A_FOLDER = 1000
_FOLDER_FORM = re.compile("[0-9]{5,12}")
_VERSION_FORM = re.compile("[0-9]{10,15}")


def instant_path(version: int) -> str:
    return f"{folder_of(version)}/{_name_of(version)}"


def _name_of(version: int) -> str:
    return f"{version:010d}.json"


def folder_of(version: int) -> str:
    return f"{FOLDER}/{folder_number(version):05d}"


def folder_number(version: int) -> int:
    """Return the number of the folder that contains a version's name."""
    return version // VERSIONS_A_FOLDER


def versions_in(number: int) -> range:
    """Return the versions whose names are in a folder."""
    return range(max(1, number * VERSIONS_A_FOLDER), (number + 1) * VERSIONS_A_FOLDER)


def names(storage: Storage, first: int, last: int | None) -> dict[int, Entry]:
    """Return the files under the names of versions from `first` on: of its folder, and if that is full, or does not
    reach `last` (None: unknown), of the folders after it. Usually this takes one listing."""
    number = folder_number(first)
    entries = in_folder(storage, number, first)
    final = versions_in(number)[-1]
    if final in entries or last is None or last > final:
        for later in folders(storage):
            if later > number and (last is None or later <= folder_number(last)):
                entries |= in_folder(storage, later)
    return {version: entry for version, entry in entries.items() if version >= first}


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
