"""Many files by their ids, in columns: what an overwrite takes out of a lake of millions of files.

A dict of them takes some 190 bytes a file, beside the path as it lies in the manifest's columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

_ROWS_AT_ONCE = 1 << 14


class FilesById(Mapping[int, str]):
    """File id -> path, by id."""

    def __init__(self, ids: np.ndarray, paths: pa.ChunkedArray):
        """`ids`: uint64, ascending and unique; `paths`: as many, in the same order."""
        self.ids, self._paths = ids, paths

    def __getitem__(self, number: int) -> str:
        position = self._position(number)
        if position is None:
            raise KeyError(number)
        path: str = self._paths[position].as_py()
        return path

    def __contains__(self, number: object) -> bool:
        return self._position(number) is not None

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self.ids), _ROWS_AT_ONCE):
            yield from self.ids[start : start + _ROWS_AT_ONCE].tolist()

    def __len__(self) -> int:
        return len(self.ids)

    def __or__(self, others: Mapping[int, str]) -> FilesById:
        """These files and others."""
        if not others:
            return self
        more = pa.array(others.values(), self._paths.type)
        ids, first = np.unique(np.concatenate([self.ids, np.fromiter(others, np.uint64)]), return_index=True)
        return FilesById(ids, pa.chunked_array([*self._paths.chunks, more]).take(pa.array(first)))

    def _position(self, number: object) -> int | None:
        if not isinstance(number, int) or number < 0:
            return None
        position = int(np.searchsorted(self.ids, np.uint64(number)))
        return position if position < len(self.ids) and self.ids[position] == number else None


def ids_in(files: Mapping[int, str]) -> np.ndarray:
    """uint64, ascending: the ids of files."""
    return files.ids if isinstance(files, FilesById) else np.sort(np.fromiter(files, np.uint64, len(files)))
