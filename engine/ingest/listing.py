"""Which Parquet files lie in a directory: one listing, folders read side by side, hidden names left out.

Names that begin with "_" or "." are hidden, as in Hive and Spark, except `_key=value` folders; so is our own folder.
Files count as Parquet by their ending, or by having none.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from ..progress import Progress
from ..storage import Entry, Storage

_ENDINGS = (".parquet", ".parq", ".pq")
THREADS = 8


def list_parquet(storage: Storage, progress: Progress | None = None) -> list[Entry]:
    """Every visible Parquet file below the root, by path. `progress("list", files so far, None)` tells how it goes."""
    found: list[Entry] = []
    with ThreadPoolExecutor(THREADS, thread_name_prefix="skipstone-list") as pool:
        waiting: set[Future] = {pool.submit(_folder, storage, "")}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                files, folders = future.result()
                found += files
                waiting |= {pool.submit(_folder, storage, folder) for folder in folders}
            if progress:
                progress("list", len(found), None)
    return sorted(found, key=lambda entry: entry.path)


def _folder(storage: Storage, path: str) -> tuple[list[Entry], list[str]]:
    files, names = storage.list_folder(path)
    prefix = f"{path}/" if path else ""
    folders = [prefix + name for name in names if not _is_hidden_folder(name)]
    return list(_parquet(files)), folders


def _parquet(files: list[Entry]) -> Iterator[Entry]:
    for entry in files:
        if _is_parquet(entry.path.rsplit("/", 1)[-1]):
            yield entry


def is_listed(path: str) -> bool:
    """Whether a listing tells of a file of this path, relative to the root, where it is there."""
    *folders, name = path.split("/")
    return _is_parquet(name) and not any(map(_is_hidden_folder, folders))


def _is_parquet(name: str) -> bool:
    return not _is_hidden(name) and (name.endswith(_ENDINGS) or "." not in name)


def _is_hidden_folder(name: str) -> bool:
    return _is_hidden(name) and not (name[0] == "_" and "=" in name)


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))
