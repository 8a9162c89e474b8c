"""A plain directory: its Parquet files, how they differ from a version, and when its folders were last modified.

Names that begin with "_" or "." are hidden, as in Hive and Spark, except `_key=value` folders. Files are Parquet if
their name has a Parquet ending in any case, or no ending. Skipstone's own folder is left out.

A lake may have millions of files, in one folder or in as many, so the listing is stored in columns (`LISTED`) and few
folders are listed at a time.

A file that a transaction of this table wrote has the table's id in its name: if it is not live, a sync does not add it.
A file that was removed or replaced in the table, and is unchanged on storage, stays removed.

A file that is created, renamed or removed changes its folder's modification time. So if a folder has the same time as
when it was listed, it contains the same files. A file that is overwritten in place does not change the time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import time
from collections import deque
from collections.abc import Container, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import binary_array, combine, from_numpy, null_as_false, string_array, to_numpy
from ..progress import Progress
from ..state import is_of_table
from ..state.manifest import STAT_FIELDS
from ..state.paths import FILE_PREFIX
from ..state.snapshot import RANGES_MAX, Snapshot
from ..storage import Entry, FileMissingError, Storage, is_outside, recorded_name
from ..storage.threads import Threads

# Paths are bytes: names on a disk may not be UTF-8.
LISTED = pa.schema(
    [("path", pa.binary()), ("size_bytes", pa.int64()), ("modified_ns", pa.int64()), ("etag", pa.string())]
)
THREADS = 8
_ENDINGS = (".parquet", ".parq", ".pq")
_ROWS_AT_ONCE = 1 << 14
_OF_TRANSACTION = re.compile(rf"{FILE_PREFIX}([0-9a-f]{{32}})-")
UNKNOWN = 0
FOLDERS_MAX = 4096  # if there are more, no times are recorded, because each version would contain them
_TICK_NS = 20_000_000  # times of files have at least this resolution on disks that count nanoseconds
_COARSE_NS = 2_000_000_000  # some disks have a resolution of two seconds
_REMOTE_DISKS = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "lustre", "gluster", "gpfs", "beegfs", "afs", "ncp")


def list_parquet(
    storage: Storage, index_storage: Storage, progress: Progress | None = None, folders: set[str] | None = None
) -> pa.Table:
    """Return every visible Parquet file below the root, sorted by path (`LISTED`), without those below the index root.

    Adds the listed folders to `folders`. Reports `progress("folders", listed, found so far)` and `progress("files",
    found, None)`.
    """
    files = list_below(storage, index_storage, [""], progress, seen=folders)
    return files.take(pc.sort_indices(files.column("path")))


def list_below(
    storage: Storage,
    index_storage: Storage,
    folders: Iterable[str],
    progress: Progress | None = None,
    seen: set[str] | None = None,
    known: Container[str] = (),
) -> pa.Table:
    """List some folders. Return the files, in no order. Folders within them that are `known` are not listed. Adds the
    listed folders to `seen`."""
    unlisted, listed, found = deque(folders), 0, 0
    folder_count = len(unlisted)
    index_folder: str | None = None
    entries: list[Entry] = []
    tables: list[pa.Table] = []
    waiting: set[Future] = set()
    with Threads(THREADS, thread_name_prefix="skipstone-list") as pool:
        while unlisted or waiting:
            while unlisted and len(waiting) < 2 * THREADS:
                folder = unlisted.popleft()
                waiting.add(pool.submit(_folder, storage, folder))
                if seen is not None:
                    seen.add(folder)
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                files, inner = future.result()
                entries += files
                found += len(files)
                if inner and index_folder is None:
                    index_folder = _index_folder(storage, index_storage)
                inner = [folder for folder in inner if folder != index_folder and folder not in known]
                unlisted.extend(inner)
                folder_count += len(inner)
            if len(entries) >= _ROWS_AT_ONCE:
                tables.append(listed_of(entries))
                entries.clear()
            listed += len(done)
            if progress:
                progress("files", found, None)
                progress("folders", listed, folder_count)
    if progress:
        progress("files", found, found)
    return pa.concat_tables([*tables, listed_of(entries)])


def hidden_by_index(storage: Storage, index_storage: Storage) -> str | None:
    """Return a Parquet file in the index's folder that a listing would include if the index were elsewhere; None if
    there is none."""
    folder = _index_folder(storage, index_storage)
    if not folder or not is_listed(f"{folder}/name"):
        return None
    paths = list_below(storage, index_storage, [folder]).column("path").to_pylist()
    return next((path_text(path) for path in paths if path_text(path).lower().endswith(_ENDINGS)), None)


def _index_folder(storage: Storage, index_storage: Storage) -> str:
    """Return the path of the index's folder in the directory; an empty text if it is elsewhere."""
    folder, root = recorded_name(index_storage), f"{recorded_name(storage)}/"
    return folder.removeprefix(root) if folder.startswith(root) else ""


def listed_of(entries: Iterable[Entry]) -> pa.Table:
    """Return a table of `LISTED` from entries, in their order."""
    rows = list(entries)
    is_timed = np.fromiter((row.modified_ns is not None for row in rows), bool, len(rows))
    columns = [
        binary_array([row.path.encode("utf-8", "surrogateescape") for row in rows]),
        from_numpy(np.fromiter((row.size_bytes for row in rows), np.int64, len(rows))),
        from_numpy(np.fromiter((row.modified_ns or 0 for row in rows), np.int64, len(rows)), is_timed),
        string_array([row.etag for row in rows]),
    ]
    return pa.Table.from_arrays(columns, schema=LISTED)


def entries_of(listed: pa.Table) -> Iterator[Entry]:
    """Yield the rows of a table of `LISTED`."""
    for batch in listed.to_batches(max_chunksize=_ROWS_AT_ONCE):
        for path, size, modified, etag in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield Entry(path_text(path), size, modified, etag)


def path_text(path: bytes) -> str:
    """Decode a path of a listing. Bytes that are not UTF-8 become lone surrogates, as in Python's `os`."""
    return path.decode("utf-8", "surrogateescape")


def is_listed(path: str) -> bool:
    """Return whether a listing includes a file of this path (relative to the root) if it exists."""
    *folders, name = path.split("/")
    return _is_parquet(name) and not any(map(_is_hidden_folder, folders))


def _folder(storage: Storage, path: str) -> tuple[list[Entry], list[str]]:
    files, names = storage.list_folder(path)
    prefix = f"{path}/" if path else ""
    folders = [prefix + name for name in names if not _is_hidden_folder(name)]
    return [entry for entry in files if _is_parquet(entry.path.rsplit("/", 1)[-1])], folders


def _is_parquet(name: str) -> bool:
    return not _is_hidden(name) and (name.lower().endswith(_ENDINGS) or "." not in name)


def _is_hidden_folder(name: str) -> bool:
    return _is_hidden(name) and not (name[0] == "_" and "=" in name)


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


# -- compared with a version -------------------------------------------------------------------------------------------


@dataclass
class Difference:
    """New or changed files of a listing (rows of it), and live files of a version to remove (id -> path)."""

    appeared: pa.Table
    removed: dict[int, str]


def difference(snapshot: Snapshot, listed: pa.Table, since: int, live: pa.Table | None = None) -> Difference:
    """Compare a listing with a version, by path, size, time and etag. Files that were added after the version `since`
    are ignored. `live`: the live files of the folders that were listed, as `live_in` returns them; None: all."""
    live = (snapshot.files() if live is None else live).select(["file_id", "path", *STAT_FIELDS, "segment"])
    is_older = to_numpy(live.column("segment")) <= since
    paths, live_paths = combine(listed.column("path")), _path_bytes(live)
    positions = pc.index_in(paths, value_set=live_paths)
    is_live = to_numpy(positions.is_valid())
    rows = np.where(is_live, to_numpy(positions).astype(np.int64), 0)
    is_changed = is_live.copy()
    is_changed[is_live] = ~_are_same(listed.filter(from_numpy(is_live)), live.take(from_numpy(rows[is_live])))
    is_changed[is_live] &= is_older[rows[is_live]]
    appeared = is_changed | _appeared(snapshot, listed, ~is_live)
    is_missing = np.ones(live.num_rows, dtype=bool)
    is_missing[rows[is_live]] = False
    is_removed = np.zeros(live.num_rows, dtype=bool)
    is_removed[_inside(live, is_missing)] = True
    is_removed[rows[is_changed]] = True
    removed = live.select(["file_id", "path"]).filter(from_numpy(is_removed & is_older))
    return Difference(
        listed.filter(from_numpy(appeared)),
        dict(zip(removed.column("file_id").to_pylist(), removed.column("path").to_pylist(), strict=True)),
    )


def changed_files(snapshot: Snapshot, listed: pa.Table) -> np.ndarray:
    """Return the ids of the live files (uint64, ascending) that a listing has with another size, time or etag."""
    live = snapshot.files().select(["file_id", "path", *STAT_FIELDS])
    positions = pc.index_in(_path_bytes(live), value_set=combine(listed.column("path")))
    live, rows = live.filter(positions.is_valid()), listed.take(positions.drop_null())
    return to_numpy(live.column("file_id"))[~_are_same(rows, live)]


def live_in(snapshot: Snapshot, folders: Iterable[str]) -> pa.Table:
    """Return the live files of some folders. If paths name the partitions, read no others."""
    names, numbers = list(folders), None
    if snapshot.partitions_in_paths:
        from ..hive import partition_of

        numbers = sorted(snapshot.partition_ids([partition_of(f"{name}/") for name in names]).values())
    live = snapshot.files(None if numbers is None or len(numbers) > RANGES_MAX else numbers)
    of_files = pc.replace_substring_regex(live.column("path"), "/?[^/]*$", "")
    return live.filter(pc.is_in(of_files, value_set=string_array(names)))


def _path_bytes(files: pa.Table) -> pa.Array:
    return combine(files.column("path").cast(pa.binary()))


def _are_same(listed: pa.Table, rows: pa.Table) -> np.ndarray:
    """Return bool [n]: `Entry.is_same`, called only if some part of an identity differs."""
    same = pc.equal(listed.column("size_bytes"), rows.column("size_bytes"))
    same = pc.and_(same, null_as_false(pc.equal(listed.column("modified_ns"), rows.column("modified_ns"))))
    same_etag = pc.equal(listed.column("etag"), rows.column("etag"))
    same = to_numpy(pc.and_(same, pc.or_kleene(pc.is_null(same_etag), same_etag))).copy()
    odd = np.flatnonzero(~same)
    if not len(odd):
        return same
    pairs = zip(entries_of(listed.take(from_numpy(odd))), rows.take(from_numpy(odd)).to_pylist(), strict=True)
    same[odd] = [entry.is_same(*(row[name] for name in STAT_FIELDS)) for entry, row in pairs]
    return same


def _appeared(snapshot: Snapshot, listed: pa.Table, is_new: np.ndarray) -> np.ndarray:
    """Return bool [listed]: the files that are not live, were not removed, and that no transaction wrote."""
    appeared = is_new.copy()
    if not is_new.any():
        return appeared
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
        is_removed = any(entry.is_untouched(*(row[name] for name in STAT_FIELDS)) for row in rows)
        appeared[position] = not is_removed and not is_own_file(entry.path, snapshot)
    return appeared


def _inside(live: pa.Table, is_missing: np.ndarray) -> np.ndarray:
    """Return the positions of the missing live files whose paths are within the directory."""
    missing = np.flatnonzero(is_missing)
    paths = live.column("path").take(from_numpy(missing)).to_pylist() if len(missing) else []
    return missing[np.array([not is_outside(path) for path in paths], dtype=bool)]


def with_unlisted(listed: pa.Table, snapshot: Snapshot, storage: Storage, live: pa.Table | None = None) -> pa.Table:
    """Return the listing with the live files whose names it skips, which were added by name: each is looked up.
    `live`: as for `difference`."""
    live, unlisted = snapshot.files() if live is None else live, []
    missing = _inside(live, ~to_numpy(pc.is_in(_path_bytes(live), value_set=combine(listed.column("path")))))
    for path in live.column("path").take(from_numpy(missing)).to_pylist() if len(missing) else ():
        if not is_listed(path):
            with contextlib.suppress(FileMissingError):
                unlisted.append(storage.stat(path))
    return pa.concat_tables([listed, listed_of(unlisted)]) if unlisted else listed


def is_own_file(path: str, snapshot: Snapshot) -> bool:
    """Return True for a file that a transaction of this table wrote and did not publish: the transaction is open, or
    dead, or did not commit this task."""
    match = _OF_TRANSACTION.match(path.rsplit("/", 1)[-1])
    return match is not None and is_of_table(match[1], snapshot.instant.table_id)


# -- times of folders --------------------------------------------------------------------------------------------------


def is_watched(storage: Storage) -> bool:
    """Return whether reading a folder's time costs microseconds: the directory is on a disk of this machine."""
    return "://" not in storage.uri and not _is_network_disk(os.path.abspath(storage.uri))


def folder_times(storage: Storage, folders: Iterable[str], listed_ns: int) -> dict[str, int]:
    """Return the time (ns since 1970) of each folder that has not changed since `listed_ns`, when a listing began;
    UNKNOWN for the others. Empty for more than FOLDERS_MAX folders, for names that are not UTF-8, and for directories
    that are not watched."""
    paths = sorted(folders)
    is_utf8 = all(not any("\ud800" <= c <= "\udfff" for c in path) for path in paths)  # a version is JSON
    if len(paths) > FOLDERS_MAX or not is_utf8 or not is_watched(storage):
        return {}
    times = {path: modified_ns(storage, path) or UNKNOWN for path in paths}
    return {path: now if now < listed_ns - _COARSE_NS else UNKNOWN for path, now in times.items()}


@contextlib.contextmanager
def with_index_folder(storage: Storage, index_storage: Storage) -> Iterator[int]:
    """Create the index's folder before the directory is listed. Otherwise the folder would change the root's time, and
    every handle would list again. Yield the root's time, UNKNOWN if it is not certain. After an error, remove the
    folder if it is empty."""
    root, folder = storage.uri, index_storage.uri
    if not is_watched(storage) or os.path.dirname(folder) != root or os.path.exists(folder):
        yield UNKNOWN
        return
    before = modified_ns(storage, "")
    try:
        if before is None or before > time.time_ns() - _COARSE_NS:
            yield UNKNOWN
            return
        with contextlib.suppress(OSError):  # if the folder is read-only, the commit raises
            os.mkdir(folder)
        made = modified_ns(storage, "") or UNKNOWN
        is_coarse = made % 1_000_000_000 == 0
        while not is_coarse and time.time_ns() < made + _TICK_NS:  # so that later changes have another time
            time.sleep(_TICK_NS / 1e9)
        yield UNKNOWN if is_coarse else made
    except BaseException:
        with contextlib.suppress(OSError):
            os.rmdir(folder)
        raise


def modified_ns(storage: Storage, folder: str) -> int | None:
    """Return a folder's modification time, None if it is missing."""
    try:
        return os.stat(f"{storage.uri}/{folder}").st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return the folders of files, and all folders above them; "" is the root."""
    folders = {path.rpartition("/")[0] for path in paths}
    for folder in list(folders):
        while folder:
            folder = folder.rpartition("/")[0]
            folders.add(folder)
    return folders | {""}


@functools.lru_cache(maxsize=256)
def _is_network_disk(path: str) -> bool:
    if not sys.platform.startswith("linux"):
        return path.startswith("\\\\")
    best, kind = "", ""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                _, point, disk, *_ = line.split(" ")
                point = point.replace("\\040", " ")
                if len(point) >= len(best) and (path == point or path.startswith(point.rstrip("/") + "/")):
                    best, kind = point, disk
    except OSError:
        return False
    return kind.startswith(_REMOTE_DISKS)
