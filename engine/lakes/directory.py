"""Lists the Parquet files in a directory.

Names that begin with "_" or "." are hidden, as in Hive and Spark, except `_key=value` folders. Files are Parquet if
their name has a Parquet ending in any case, or no ending. Our own folder is left out.

A lake may have millions of files, in one folder or in as many, so the listing is stored in columns (`LISTED`) and few
folders are listed at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import binary_array, from_numpy, string_array
from ..progress import Progress
from ..storage import Entry, Storage
from ..storage.threads import Threads

# Paths are bytes: names on a disk may not be UTF-8.
LISTED = pa.schema(
    [("path", pa.binary()), ("size_bytes", pa.int64()), ("modified_ns", pa.int64()), ("etag", pa.string())]
)
THREADS = 8
_ENDINGS = (".parquet", ".parq", ".pq")
_ROWS_AT_ONCE = 1 << 14


def list_parquet(
    storage: Storage, index_storage: Storage, progress: Progress | None = None, folders: set[str] | None = None
) -> pa.Table:
    """Return every visible Parquet file below the root, sorted by path (`LISTED`), without those below the index root.

    Adds the listed folders to `folders`. Reports `progress("folders", listed, found so far)` and `progress("files",
    found, None)`.
    """
    files = list_below(storage, index_storage.uri, [""], progress, seen=folders)
    return files.take(pc.sort_indices(files.column("path")))


def list_below(
    storage: Storage,
    index_location: str,
    folders: Iterable[str],
    progress: Progress | None = None,
    seen: set[str] | None = None,
    known: Container[str] = (),
) -> pa.Table:
    """List some folders. Return the files, in no order. Folders within them that are `known` are not listed. Adds the
    listed folders to `seen`."""
    unlisted, listed, found = deque(folders), 0, 0
    folder_count = len(unlisted)
    index_folder = index_location.removeprefix(f"{storage.uri}/")
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
