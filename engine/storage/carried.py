"""A storage, parts of whose files are at hand: what one process read, carried to another.

What lies at hand is never asked of the storage; what does not is, as anywhere. So nobody has to foresee exactly what
will be read: what was forgotten costs a request, and no answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...caching import cached_property
from ...hfile_like.byte_io import COALESCE_GAP_BYTES
from .interface import Entry, Storage

Range = tuple[int, int]  # offset, length


class CarriedStorage:
    """A storage that is opened when something of it is wanted that is not at hand.

    sizes     path -> bytes, of the files of which there are parts at hand. They never change, and are not looked at
    parts     path -> the parts at hand, (offset, bytes), ascending and apart
    """

    def __init__(
        self,
        uri: str,
        opening: Callable[[], Storage],
        sizes: Mapping[str, int],
        parts: Mapping[str, Sequence[tuple[int, bytes]]],
    ):
        self.uri = uri
        self.sizes = dict(sizes)
        self._opening = opening
        self._starts = {path: [offset for offset, _ in some] for path, some in parts.items()}
        self._parts = {path: [data for _, data in some] for path, some in parts.items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._opened, name)

    def stat(self, path: str) -> Entry:
        if path in self.sizes:
            return Entry(path, self.sizes[path], 0)
        return self._opened.stat(path)

    def read_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        found = [self._at_hand(path, wanted) for wanted in ranges]
        missing = [wanted for wanted, data in zip(ranges, found, strict=True) if data is None]
        if not missing:
            return found  # type: ignore[return-value]
        read = iter(self._opened.read_ranges(path, missing))
        return [next(read) if data is None else data for data in found]

    def _at_hand(self, path: str, wanted: Range) -> bytes | None:
        offset, length = wanted[0], min(wanted[1], self.sizes.get(path, 0) - wanted[0])
        starts = self._starts.get(path, [])
        at = bisect_right(starts, offset) - 1
        if at < 0:
            return None
        first = offset - starts[at]
        data = self._parts[path][at]
        return data[first : first + length] if 0 <= length <= len(data) - first else None

    @cached_property
    def _opened(self) -> Storage:
        return self._opening()


class ReadOnce:
    """A storage that remembers which ranges were read of it, so that they can be carried.

    `in_memory`: files that lie nowhere, path -> bytes; they are carried whole.
    """

    def __init__(self, storage: Storage, in_memory: Mapping[str, bytes]):
        self._storage, self._in_memory = storage, in_memory
        self._ranges: dict[str, set[Range]] = {path: {(0, len(data))} for path, data in in_memory.items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._storage, name)

    def stat(self, path: str) -> Entry:
        data = self._in_memory.get(path)
        return self._storage.stat(path) if data is None else Entry(path, len(data), 0)

    def read_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        data = self._in_memory.get(path)
        if data is not None:
            return [data[offset : offset + length] for offset, length in ranges]
        self._ranges.setdefault(path, set()).update(ranges)  # each a step that no other thread can part
        return self._storage.read_ranges(path, ranges)

    def parts(self, sizes: Mapping[str, int]) -> dict[str, list[tuple[int, bytes]]]:
        """What was read of files of these sizes, (offset, bytes), neighbours as one."""
        found = {}
        for path, ranges in self._ranges.items():
            if path in sizes:
                joined = _joined(ranges, sizes[path])
                found[path] = list(zip([offset for offset, _ in joined], self.read_ranges(path, joined), strict=True))
        return found


def _joined(ranges: Iterable[Range], size: int) -> list[Range]:
    """Ranges of a file of that size, ascending; those so close that a reader would read them as one are one."""
    ends: list[list[int]] = []
    for offset, length in sorted(ranges):
        stop = min(offset + length, size)
        if ends and offset <= ends[-1][1] + COALESCE_GAP_BYTES:
            ends[-1][1] = max(ends[-1][1], stop)
        else:
            ends.append([offset, stop])
    return [(start, stop - start) for start, stop in ends]
