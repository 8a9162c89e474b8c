"""How a listing of a directory differs from a version.

A file that a transaction of this table wrote has the table's id in its name: if it is not live, it is not taken for
somebody else's. A file that was removed or replaced in the table, and is on storage unchanged, stays removed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import combine, from_numpy, null_as_false, string_array, to_numpy
from ..hive import partition_of
from ..state import is_of_table
from ..state.manifest import STAT_FIELDS
from ..state.paths import FILE_PREFIX
from ..state.snapshot import RANGES_MAX, Snapshot
from ..storage import Entry, FileMissingError, Storage, is_outside
from .directory import entries_of, is_listed, listed_of

_OF_TRANSACTION = re.compile(rf"{FILE_PREFIX}([0-9a-f]{{32}})-")


@dataclass
class Difference:
    """What the directory has that the version has not (rows of a listing), and the other way round (id -> path)."""

    appeared: pa.Table
    removed: dict[int, str]


def difference(snapshot: Snapshot, listed: pa.Table, since: int, live: pa.Table | None = None) -> Difference:
    """Compare a listing with a version, by path, size, time and etag. Files that were added after the version `since`
    are left alone. `live`: the live files of the folders that were listed, as `live_in` returns them; None: all."""
    live = (snapshot.files() if live is None else live).select(["file_id", "path", *STAT_FIELDS, "segment"])
    is_older = to_numpy(live.column("segment")) <= since
    paths, live_paths = combine(listed.column("path")), _path_bytes(live)
    positions = pc.index_in(paths, value_set=live_paths)
    is_live = to_numpy(positions.is_valid())
    rows = np.where(is_live, to_numpy(positions), 0).astype(np.int64)
    is_changed = is_live.copy()
    is_changed[is_live] = ~_are_same(listed.filter(from_numpy(is_live)), live.take(from_numpy(rows[is_live])))
    is_changed[is_live] &= is_older[rows[is_live]]
    appeared = is_changed | _appeared(snapshot, listed, ~is_live)
    is_removed = np.zeros(live.num_rows, dtype=bool)
    is_removed[_missing(live, paths)] = True
    is_removed[rows[is_changed]] = True
    removed = live.select(["file_id", "path"]).filter(from_numpy(is_removed & is_older))
    return Difference(
        listed.filter(from_numpy(appeared)),
        dict(zip(removed.column("file_id").to_pylist(), removed.column("path").to_pylist(), strict=True)),
    )


def changed_files(snapshot: Snapshot, listed: pa.Table) -> np.ndarray:
    """The ids of the live files (uint64, ascending) that a listing has under another size, time or etag."""
    live = snapshot.files().select(["file_id", "path", *STAT_FIELDS])
    positions = pc.index_in(_path_bytes(live), value_set=combine(listed.column("path")))
    live, rows = live.filter(positions.is_valid()), listed.take(positions.drop_null())
    return to_numpy(live.column("file_id"))[~_are_same(rows, live)]


def live_in(snapshot: Snapshot, folders: Iterable[str]) -> pa.Table:
    """The live files of some folders. If paths name the partitions, no others are read."""
    names, numbers = list(folders), None
    if snapshot.partitions_in_paths:
        numbers = sorted(snapshot.partition_ids([partition_of(f"{name}/") for name in names]).values())
    live = snapshot.files(None if numbers is None or len(numbers) > RANGES_MAX else numbers)
    of_files = pc.replace_substring_regex(live.column("path"), "/?[^/]*$", "")
    return live.filter(pc.is_in(of_files, value_set=string_array(names)))


def _path_bytes(files: pa.Table) -> pa.Array:
    return combine(files.column("path").cast(pa.binary()))


def _are_same(listed: pa.Table, rows: pa.Table) -> np.ndarray:
    """bool [n]: `Entry.is_same`, called where not all of an identity agrees."""
    same = pc.equal(listed.column("size_bytes"), rows.column("size_bytes"))
    same = pc.and_(same, null_as_false(pc.equal(listed.column("modified_ns"), rows.column("modified_ns"))))
    same_etag = pc.equal(listed.column("etag"), rows.column("etag"))
    same = to_numpy(pc.and_(same, pc.or_kleene(pc.is_null(same_etag), same_etag))).copy()
    odd = np.flatnonzero(~same)
    pairs = zip(entries_of(listed.take(from_numpy(odd))), rows.take(from_numpy(odd)).to_pylist(), strict=True)
    same[odd] = [_is_same(entry, row) for entry, row in pairs]
    return same


def _appeared(snapshot: Snapshot, listed: pa.Table, is_new: np.ndarray) -> np.ndarray:
    """bool [listed]: of those that are not live, the ones that were not taken out and that no transaction wrote."""
    appeared = is_new.copy()
    removed = snapshot.removed_files().select(["path", *STAT_FIELDS])
    among_removed = pc.index_in(combine(listed.column("path")), value_set=_path_bytes(removed))
    removed_by_path: dict[bytes, list[dict]] = {}
    for row in removed.to_pylist() if among_removed.null_count < len(among_removed) else ():
        removed_by_path.setdefault(row["path"].encode(), []).append(row)
    may_be_ours = to_numpy(pc.match_substring_regex(combine(listed.column("path")), _OF_TRANSACTION.pattern))
    checked = is_new & (to_numpy(among_removed.is_valid()) | may_be_ours)
    entries = entries_of(listed.filter(from_numpy(checked)))
    for position, entry in zip(np.flatnonzero(checked).tolist(), entries, strict=True):
        rows = removed_by_path.get(entry.path.encode("utf-8", "surrogateescape"), ())
        appeared[position] = not _is_removed(entry, rows) and not is_own_file(entry.path, snapshot)
    return appeared


def _missing(live: pa.Table, listed: pa.Array) -> np.ndarray:
    """Positions of the live files within the directory that a listing lacks."""
    absent = np.flatnonzero(~to_numpy(pc.is_in(_path_bytes(live), value_set=listed)))
    paths = live.column("path").take(from_numpy(absent)).to_pylist()
    return absent[np.array([not is_outside(path) for path in paths], dtype=bool)]


def with_unlisted(listed: pa.Table, snapshot: Snapshot, storage: Storage, live: pa.Table | None = None) -> pa.Table:
    """The listing, and live files of names that it passes over, which somebody added by name: each is looked up.
    `live`: as for `difference`."""
    live, unlisted = snapshot.files() if live is None else live, []
    for path in live.column("path").take(from_numpy(_missing(live, combine(listed.column("path"))))).to_pylist():
        if not is_listed(path):
            with contextlib.suppress(FileMissingError):
                unlisted.append(storage.stat(path))
    return pa.concat_tables([listed, listed_of(unlisted)]) if unlisted else listed


def _is_removed(entry: Entry, rows: Iterable[dict]) -> bool:
    """True for a file that was taken out, and is on storage unchanged."""
    return any(entry.is_untouched(row["size_bytes"], row["modified_ns"], row["etag"]) for row in rows)


def _is_same(entry: Entry, row: dict) -> bool:
    return entry.is_same(row["size_bytes"], row["modified_ns"], row["etag"])


def is_own_file(path: str, snapshot: Snapshot) -> bool:
    """True for a file that a transaction of this table wrote, and did not publish: one that is open, or dead, or whose
    task was given up while others of it were committed."""
    match = _OF_TRANSACTION.match(path.rsplit("/", 1)[-1])
    return match is not None and is_of_table(match[1], snapshot.instant.table_id)
