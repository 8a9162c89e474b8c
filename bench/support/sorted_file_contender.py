"""Who takes part in bench/sorted_file.py with a column: its file, and its handle, cold or warm."""

from __future__ import annotations

import shutil
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.support import sorted_file_ours
from bench.support.cached_folder import CachedFolder, cached_folder, code_fingerprint, size_bytes
from bench.support.sorted_file_data import Column
from bench.support.sorted_file_ours import Ours
from bench.support.sorted_file_peers import LAYOUT, PEERS, prepared

US = "skipstone"
# A page of LMDB's, the least block of anybody's, holds as many entries. One in eight of these keys is got alone, too.
_WARMING_STEP = {"names": 16, "typed": 48}
_WARMING_KEYS, _WARMING_GETS_STEP = 50_000, 8
_BUILD_S = "build_s.txt"


class _Timed:
    """What an iterable gives, and how long it took to give it."""

    def __init__(self, source: Iterable[Any]):
        self._source = iter(source)
        self.elapsed_s = 0.0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start = time.perf_counter()
        try:
            return next(self._source)
        finally:
            self.elapsed_s += time.perf_counter() - start


class Contender:
    """Someone's file of a column, in .cache/bench/; it is opened once at a time."""

    def __init__(self, name: str, column: Column, cache: Path):
        self.name, self.column = name, column
        self._maker: Any = Ours if name == US else PEERS[name]
        written = f"{code_fingerprint()}-{zlib.crc32(Path(sorted_file_ours.__file__).read_bytes()):08x}"
        folder = f"{name}-{column.name.replace(' ', '-')}-{len(column)}-v{LAYOUT}"
        self.file: CachedFolder = cached_folder(
            cache / "sorted_file" / folder, self._make_slowly, written if name == US else ""
        )
        self._open: Any = None
        self._is_warm = False
        self._prepared: list[Any] | None = None

    def _make_slowly(self, folder: Path) -> None:
        given = _Timed(() if self.name == US else prepared(self.name, self.column))
        start = time.perf_counter()
        self._maker.make(folder / "store", self.column, given)
        (folder / _BUILD_S).write_text(str(time.perf_counter() - start - given.elapsed_s), encoding="utf-8")

    @property
    def build_s(self) -> float:
        """What making the file took, when it was made, less the making of what it was made of."""
        return float((self.file.folder / _BUILD_S).read_text(encoding="utf-8"))

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return size_bytes(self.file.folder / "store")

    def make(self, folder: Path) -> int:
        """The file once more, from what was prepared."""
        shutil.rmtree(folder, ignore_errors=True)
        self._maker.make(folder, self.column, self._prepared or [])
        return len(self.column)

    def prepare(self) -> None:
        """Makes the Python objects that it is to be given."""
        if self._prepared is None and self.name != US:
            self._prepared = list(prepared(self.name, self.column))

    def forget(self) -> None:
        """Closes the handle, and drops what was prepared."""
        self._prepared = None
        if self._open is not None:
            self._open.close()
        self._open, self._is_warm = None, False

    def closed(self) -> Contender:
        """Without a handle, for who opens one."""
        self.forget()
        return self

    def open(self) -> Any:
        """A handle opened now."""
        self._open = self._maker(self.file.folder / "store", self.column)
        return self._open

    def cold(self) -> Any:
        """A handle opened now, in place of the one before."""
        return self.closed().open()

    def warm(self) -> Any:
        """The handle, of which every block was asked for twice. Parquet holds no blocks."""
        if not self._is_warm:
            handle = self.cold()
            if self.name != "Parquet":
                keys = self.column.keys_of(np.arange(0, len(self.column), _WARMING_STEP[self.column.kind]))
                for low in [*range(0, len(keys), _WARMING_KEYS)] * 2:
                    handle.get_many(keys[low : low + _WARMING_KEYS])
                for key in keys[::_WARMING_GETS_STEP]:
                    handle.get(key)
            self._is_warm = True
        return self._open
