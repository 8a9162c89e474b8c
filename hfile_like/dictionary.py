"""A zstandard dictionary that the blocks of one file share: what small pieces have in common, told once.

It is a piece of the file, read when the first block is met that was compressed with it. A dictionary says which it is
by an id that stands in every frame, so a frame is never decompressed with another's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import zstandard

from ..errors import InvalidArgumentError

DICTIONARY_BYTES_MAX = 1 << 20

# Of the cover algorithm: segments of so many bytes, chosen by the counts of strings of 8. Fixed, since trying several
# takes a second and gains 1%.
_SEGMENT_BYTES = 200
_COUNTED_BYTES = 8


class Dictionary:
    """A trained zstandard dictionary.

    `load` gives its bytes when they are first needed, at most once where it returns. Safe to share between threads,
    each of which has a decompressor of its own.
    """

    def __init__(self, load: Callable[[], bytes]):
        self._load: Callable[[], bytes] | None = load
        self._lock = threading.Lock()
        self._local = threading.local()
        self._data: bytes | None = None

    @classmethod
    def of(cls, data: bytes) -> Dictionary:
        """That of some bytes. Raises InvalidArgumentError where they are no trained dictionary."""
        if not isinstance(data, bytes):
            raise InvalidArgumentError(f"a dictionary is bytes, not {type(data).__name__}")
        if len(data) > DICTIONARY_BYTES_MAX:
            raise InvalidArgumentError(f"a dictionary of {len(data):,} bytes: give at most {DICTIONARY_BYTES_MAX:,}")
        found = cls(lambda: data)
        try:
            found.decompressor()
        except zstandard.ZstdError as error:
            raise InvalidArgumentError(f"that is no zstandard dictionary ({error}): train one") from None
        return found

    @property
    def data(self) -> bytes:
        """Its bytes. Raises what loading them does."""
        if self._data is None:
            with self._lock:
                if self._data is None:
                    assert self._load is not None
                    self._data = self._load()
                    self._load = None  # what it reads from need not stay
        return self._data

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        """A compressor with this dictionary. Raises ZstdError where the bytes are no dictionary."""
        return zstandard.ZstdCompressor(level=level, dict_data=self._zstandard())

    def decompressor(self) -> zstandard.ZstdDecompressor:
        """This thread's decompressor. Raises ZstdError where the bytes are no dictionary."""
        found = getattr(self._local, "decompressor", None)
        if found is None:
            found = self._local.decompressor = zstandard.ZstdDecompressor(dict_data=self._zstandard())
        return found

    def _zstandard(self) -> zstandard.ZstdCompressionDict:
        return zstandard.ZstdCompressionDict(self.data, dict_type=zstandard.DICT_TYPE_FULLDICT)


def train(samples: Sequence[bytes], size_bytes: int) -> Dictionary | None:
    """A dictionary of at most `size_bytes` for pieces like these; None where they are too few or too small for one.
    The same samples give the same dictionary."""
    try:
        trained = zstandard.train_dictionary(size_bytes, list(samples), k=_SEGMENT_BYTES, d=_COUNTED_BYTES)
    except (zstandard.ZstdError, ValueError):
        return None
    return Dictionary.of(trained.as_bytes())
