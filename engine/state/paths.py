"""Paths of many files: as the manifest stores them, their partitions, and duplicates; the paths of runs and task
index files, and the ids of transactions, which they contain."""

from __future__ import annotations

import os
import re
import uuid
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from ...base.arrays import combine, offsets_and_data, string_array, string_pieces
from ...errors import InvalidArgumentError
from .. import hive
from ..storage import Storage, relative_path

SERVED_FOLDER = "serve"  # the manifests that `skipstone serve` writes, below the index root
SERVED_NAME = re.compile(rf"{SERVED_FOLDER}/[0-9]+-[0-9a-f]{{32}}(-0)?\.avro", re.ASCII)
FILE_PREFIX = "part-"  # of the data files that a transaction writes; its id follows
TABLE_DIGITS = 8  # of a table's id, at the end of its transactions' ids
_AT_ONCE = 1 << 17
# A path that is not normalized, or not below the table, contains or begins with one of these.
_ODD = (b"//", b"/.", b":", b"\\", b"\0")


def paths_of(given: object) -> list[str]:
    """Return the paths that a caller passed: one, or a list of them. Raise InvalidArgumentError for anything else."""
    if isinstance(given, (str, os.PathLike)):
        return [os.fspath(given)]
    if not isinstance(given, Iterable) or isinstance(given, (bytes, dict)):
        raise InvalidArgumentError(f"files are named by a list of paths, not {given!r}")
    paths = list(given)
    odd = [path for path in paths if not isinstance(path, (str, os.PathLike))]
    if odd:
        raise InvalidArgumentError(f"a file is named by its path, not {odd[0]!r}")
    return [os.fspath(path) for path in paths]


def relative_paths(storage: Storage, paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return `relative_path` of each. Raise InvalidArgumentError for a path that names no file."""
    pieces = []
    for piece in _pieces(paths):
        is_tidy = _is_tidy(piece)
        pieces.append(piece if is_tidy else string_array([relative_path(storage, path) for path in piece.to_pylist()]))
    return pa.chunked_array(pieces, pa.string())


def _pieces(paths: pa.ChunkedArray) -> Iterable[pa.StringArray]:
    for chunk in paths.chunks:
        for start in range(0, len(chunk), _AT_ONCE):
            yield chunk.slice(start, _AT_ONCE)


def _is_tidy(paths: pa.StringArray) -> bool:
    """Return True if every path is certainly relative and normalized."""
    offsets, buffer = offsets_and_data(paths)
    data = bytes(buffer[int(offsets[0]) : int(offsets[-1])])
    if (offsets[1:] == offsets[:-1]).any() or any(odd in data for odd in _ODD):
        return False
    characters, cuts = np.frombuffer(data, dtype=np.uint8), offsets - offsets[0]
    ends = np.concatenate([characters[cuts[:-1]], characters[cuts[1:] - 1]])
    return not ((ends == ord("/")) | (ends == ord("."))).any()


def partitions_of(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return `hive.partition_of` of each."""
    partition_of: dict[str, str] = {}
    results = []
    for piece in _pieces(paths):
        folders = _folders(piece).dictionary_encode()
        texts = []
        for folder in folders.dictionary.to_pylist():
            if folder not in partition_of:
                partition_of[folder] = hive.partition_of(f"{folder}/")
            texts.append(partition_of[folder])
        results.append(string_array(texts).take(folders.indices))
    return pa.chunked_array(results, pa.string())


def _folders(paths: pa.StringArray) -> pa.StringArray:
    """Return the text before the last slash of each path; an empty text if there is no slash."""
    offsets, buffer = offsets_and_data(paths)
    data = np.frombuffer(buffer, dtype=np.uint8)[int(offsets[0]) : int(offsets[-1])]
    starts, ends = (offsets[:-1] - offsets[0]).astype(np.int64), (offsets[1:] - offsets[0]).astype(np.int64)
    slashes = np.flatnonzero(data == ord("/"))
    before = np.searchsorted(slashes, ends) - 1
    stops = np.where(before >= 0, slashes[before], -1) if len(slashes) else np.full(len(starts), -1)
    return string_pieces(data, starts, np.maximum(stops - starts, 0))


def first_twice(paths: pa.ChunkedArray) -> str | None:
    """Return a path that occurs more than once; None if there is none."""
    marks = [np.fromiter(map(hash, piece.to_pylist()), np.int64, len(piece)) for piece in _pieces(paths)]
    if not marks:
        return None
    every = np.concatenate(marks)
    ordered = np.sort(every)
    same = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(same):
        return None
    near = combine(paths.filter(pa.array(np.isin(every, same)))).to_pylist()
    path, count = Counter(near).most_common(1)[0]
    return path if count > 1 else None


def run_path(transaction: str, name: str) -> str:
    """Return the path of a run. Folders by the transaction's first letters keep each folder's size bounded."""
    return f"runs/{transaction[:2]}/{transaction}-{name}.sbf"


def task_path(transaction: str, name: str) -> str:
    """Return the path of a task index file."""
    return f"tasks/{transaction[:2]}/{transaction}-{name}.sbf"


def new_transaction_id(table_id: str = "") -> str:
    """Return 32 hexadecimal digits. The name of every file that the transaction writes contains them. The last digits
    are the table's, so its files are recognized even if no record of the transaction exists."""
    ending = table_id[:TABLE_DIGITS]
    return uuid.uuid4().hex[: 32 - len(ending)] + ending


def is_of_table(transaction: str, table_id: str) -> bool:
    """Return whether a transaction's id is of this table."""
    return transaction.endswith(table_id[:TABLE_DIGITS])
