"""What a file keeps for its own reading beside blocks and footer: a dictionary, and a filter of its keys.

Both are read when first needed, once, and shared by the threads of a reader.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from ..arrays import binary_array, joined, to_numpy, valid_mask
from ..errors import InvalidArgumentError
from . import codec
from .codec import Piece, Where
from .dictionary import DICTIONARY_BYTES_MAX, Dictionary
from .footer import META_BYTES_MAX, PIECE_DICTIONARY, PIECE_KEY_FILTER, Footer, Tail
from .source import Source, name_of, read_exact


class KeyFilterBuilder(Protocol):
    """What a writer takes as `key_filter`."""

    def add(self, keys: pa.BinaryArray) -> None:
        """Takes keys in the order of the file, tombstones' too; none of them null."""

    def to_bytes(self) -> bytes:
        """The filter, once all keys were added."""


class KeyFilter(Protocol):
    """What a reader's `key_filter` makes of the bytes that a builder gave."""

    def contains(self, keys: pa.Array) -> pa.BooleanArray | np.ndarray:
        """For each key, binary: False where it is not in the file. Null counts as True."""


LoadFilter = Callable[[bytes], KeyFilter]


class OwnPieces:
    """The pieces of one reader; `load` makes a filter of its bytes."""

    def __init__(self, footer: Footer, tail: Tail, source: Source, load: LoadFilter | None):
        self._footer, self._tail, self._source, self._load = footer, tail, source, load
        self._lock = threading.Lock()
        self._filter: KeyFilter | None = None
        # Not of a bound method: what refers to itself would hold its file open until it is collected.
        self.dictionary = Dictionary(partial(_read_dictionary, footer, tail, source))

    def reading_from(self, source: Source) -> OwnPieces:
        """The same of a reader that reads from elsewhere."""
        other = OwnPieces(self._footer, self._tail, source, self._load)
        other._filter = self._filter
        return other

    @property
    def has_dictionary(self) -> bool:
        return PIECE_DICTIONARY in self._footer.pieces

    @property
    def filters_keys(self) -> bool:
        """Whether there is a filter to ask: the file has one, and the caller told how to load it."""
        return self._load is not None and PIECE_KEY_FILTER in self._footer.pieces

    def may_hold(self, keys: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """bool [n]: False where the filter says that a key is not in the file; all True where there is no filter."""
        if not self.filters_keys:
            return np.ones(len(keys), dtype=bool)
        found = self._key_filter().contains(joined(keys) if isinstance(keys, pa.ChunkedArray) else keys)
        if len(found) != len(keys):
            raise InvalidArgumentError(f"the key filter answered {len(found)} times for {len(keys)} keys")
        if isinstance(found, np.ndarray):
            return found.astype(bool)
        valid = valid_mask(found)
        answers = to_numpy(found)
        return answers if valid is None else answers | ~valid

    def may_hold_key(self, key: bytes) -> bool:
        """`may_hold` of one key."""
        return not self.filters_keys or bool(self.may_hold(binary_array([key]))[0])

    def key_filter_bytes(self) -> bytes | None:
        handle = self._footer.pieces.get(PIECE_KEY_FILTER)
        return None if handle is None else read_piece(self._source, self._tail, handle, "the key filter")

    def _key_filter(self) -> KeyFilter:
        with self._lock:
            if self._filter is None:
                data = self.key_filter_bytes()
                assert self._load is not None and data is not None
                self._filter = self._load(data)
        return self._filter


def read_piece(source: Source, tail: Tail, piece: Piece, what: str) -> bytes:
    """The plain bytes of a meta or a piece, checked. Raises CorruptionError."""
    stored = tail.slice(piece.offset, piece.stored)
    if stored is None:
        stored = read_exact(source, [(piece.offset, piece.stored)])[0]
    where = Where(name_of(source), piece.offset)
    return bytes(codec.open_piece(stored, piece, META_BYTES_MAX, what, where))


def _read_dictionary(footer: Footer, tail: Tail, source: Source) -> bytes:
    handle = footer.pieces.get(PIECE_DICTIONARY)
    if handle is None:
        where = Where(name_of(source), 0)
        raise where.bad("dictionary", "a block is compressed with the file's dictionary, and the file has none")
    if handle.plain > DICTIONARY_BYTES_MAX:
        raise Where(name_of(source), handle.offset).bad("dictionary", f"a dictionary claims {handle.plain} bytes")
    return read_piece(source, tail, handle, "the dictionary")
