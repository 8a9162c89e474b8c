"""Memory that ends at a page that may not be touched: a read or write past its end is a crash.

Numba checks no bounds, and with NUMBA_BOUNDSCHECK=1 it does not see loads by pointer. Sections of blocks, before and
after they are joined, and the arrays that kernels write to are put into such memory.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from importlib import import_module
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
from skipstone.hfile_like.block import Block
from skipstone.hfile_like.codec import EncodedSection

_libc = ctypes.CDLL(None, use_errno=True)


def room(size_bytes: int) -> memoryview:
    """So many bytes, of 0, before a page that cannot be read or written."""
    pages = -(-size_bytes // mmap.PAGESIZE)
    held = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(held))
    end = pages * mmap.PAGESIZE
    none = 0  # PROT_NONE
    if _libc.mprotect(ctypes.c_void_p(address + end), mmap.PAGESIZE, none):
        raise OSError(ctypes.get_errno(), "mprotect")
    return memoryview(held)[end - size_bytes : end]


def guarded(data: bytes | memoryview) -> memoryview:
    """A copy of some bytes in such memory."""
    found = room(len(data))
    found[:] = data
    return found.toreadonly()


class _Numpy:
    """Numpy, whose `empty` and `zeros` make such memory."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: int | tuple[int, ...], dtype: Any = float) -> np.ndarray:
        size = prod(shape) if isinstance(shape, tuple) else shape
        return np.frombuffer(room(size * np.dtype(dtype).itemsize), dtype=dtype).reshape(shape)

    zeros = empty


def guard_everything() -> None:
    """From now on, in this process."""
    plain = Block.section
    lookup = import_module("skipstone.hfile_like.lookup")
    joined = lookup._key_sections

    def section(self: Block, number: int) -> EncodedSection:
        found = plain(self, number)
        return found._replace(data=guarded(found.data))

    def joined_and_guarded(blocks: Sequence[Block]) -> tuple[np.ndarray, ...]:
        raw, *rest = joined(blocks)
        return (np.frombuffer(guarded(memoryview(raw)), dtype=np.uint8), *rest)

    Block.section = section  # type: ignore[method-assign]
    _set(lookup, "_key_sections", joined_and_guarded)
    _set(lookup, "np", _Numpy())


def _set(module: ModuleType, name: str, thing: object) -> None:
    assert hasattr(module, name), f"{module.__name__} has no {name}: look where it went"
    setattr(module, name, thing)
