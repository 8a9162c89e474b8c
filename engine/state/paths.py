"""Paths of files, many at once: as the manifest has them, in which partitions they lie, whether one is there twice; and
where runs and task index files lie."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from ...base.arrays import combine, offsets_and_data, string_array, string_pieces
from ...errors import InvalidArgumentError
from .. import hive
from ..storage import Storage, relative_path

SERVED_FOLDER = "serve"  # the manifests that `skipstone serve` writes, below the index root
FILE_PREFIX = "part-"  # of the data files that a transaction writes; its id follows
_AT_ONCE = 1 << 17
# What a path that is tidied, or lies elsewhere, has in it or begins with.
_ODD = (b"//", b"/.", b":", b"\\", b"\0")


def paths_of(given: object) -> list[str]:
    """The paths that a caller gave: one, or a list of them. Raises InvalidArgumentError for what is none."""
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
    """`relative_path` of each. Raises InvalidArgumentError for one that names no file."""
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
    """True where every path is sure to be relative, and as short as can be."""
    offsets, buffer = offsets_and_data(paths)
    data = bytes(buffer[int(offsets[0]) : int(offsets[-1])])
    if (offsets[1:] == offsets[:-1]).any() or any(odd in data for odd in _ODD):
        return False
    characters, cuts = np.frombuffer(data, dtype=np.uint8), offsets - offsets[0]
    ends = np.concatenate([characters[cuts[:-1]], characters[cuts[1:] - 1]])
    return not ((ends == ord("/")) | (ends == ord("."))).any()


def partitions_of(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """`hive.partition_of` of each."""
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
    """What is before the last slash of each path; nothing where there is none."""
    offsets, buffer = offsets_and_data(paths)
    data = np.frombuffer(buffer, dtype=np.uint8)[int(offsets[0]) : int(offsets[-1])]
    starts, ends = (offsets[:-1] - offsets[0]).astype(np.int64), (offsets[1:] - offsets[0]).astype(np.int64)
    slashes = np.flatnonzero(data == ord("/"))
    before = np.searchsorted(slashes, ends) - 1
    stops = np.where(before >= 0, slashes[before], -1) if len(slashes) else np.full(len(starts), -1)
    return string_pieces(data, starts, np.maximum(stops - starts, 0))


def first_twice(paths: pa.ChunkedArray) -> str | None:
    """A path that is there more than once; None where none is."""
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
    """Where a run lies; folders by the transaction's first letters keep each of a bounded size."""
    return f"runs/{transaction[:2]}/{transaction}-{name}.sbf"


def task_path(transaction: str, name: str) -> str:
    """Where a task index file lies."""
    return f"tasks/{transaction[:2]}/{transaction}-{name}.sbf"
