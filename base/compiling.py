"""Kernels, compiled once for a machine: kept on disk wherever the package lies, and never at an answer's cost.

A kernel calls what is in its own file and the helpers at the end of this one: loads and stores of unaligned numbers,
which exist in compiled code alone and have substitutes for NUMBA_DISABLE_JIT=1. numba's cache sees no edit of another
file than the kernel's own, so the source of this file is part of the key under which compiled code is kept.

numba keeps what it has compiled beside the source, or else in the user's home. A process of Spark's may have neither:
the package came as an archive (`--py-files`), under a path that no second application sees, or it is installed where
nothing may be written, for a user without a home. numba then raises: at import, or for an archive at a kernel's first
call. So there is a third place, in the folder for temporary files, named by the source's content; and a cache that
cannot be read or written, at any time, is one that isn't there.

Imported by modules of kernels alone: it loads numba.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from types import ModuleType

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core.caching import (  # an ImportError, where numba has them no more, leaves the plain twins
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
    _CacheLocator,
)
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

_held_for_fork: list[bool] = []


def _before_fork() -> None:
    """A child that is forked while another thread compiles would wait for that thread, which it does not have."""
    global_compiler_lock.acquire()
    _held_for_fork.append(True)


def _after_fork() -> None:
    if _held_for_fork:  # this module may be loaded while a process forks
        _held_for_fork.pop()
        global_compiler_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def jit_cached(function):
    """Compiles, and keeps the result on disk where there is a place for it. With NUMBA_DISABLE_JIT=1 the function runs
    as Python, and numpy does not warn where numbers wrap."""
    if config.DISABLE_JIT:
        return np.errstate(over="ignore")(function)
    kernel = njit(nogil=True)(function)
    # numba raises a RuntimeError where it finds no place.
    with contextlib.suppress(RuntimeError):
        kernel._cache = _Kept(function)  # as numba's own enable_caching() does, with a cache that forgives
    return kernel


class _Temporary(_CacheLocator):
    """A folder of the user's own under the one for temporary files (or NUMBA_CACHE_DIR), named by the module's source:
    an archive that is unpacked a second time, under another name, finds what the first one left."""

    def __init__(self, root: str, source: str, line: int):
        self._stamp = hashlib.sha256(source.encode()).hexdigest()
        self._path = os.path.join(root, self._stamp[:16])
        self._line = line

    def get_cache_path(self) -> str:
        return self._path

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, py_func, py_file):
        try:
            root = config.CACHE_DIR or _private_folder()
            source = inspect.getsource(sys.modules[py_func.__module__])
            self = cls(root, source, py_func.__code__.co_firstlineno)
            self.ensure_cache_path()
        except OSError:  # no source, or no such place
            return None
        return self


def _private_folder() -> str:
    """Nobody else may write there: what lies in a cache is run. Raises OSError where there is no such folder."""
    if not hasattr(os, "geteuid"):
        raise OSError("users have homes here")
    path = os.path.join(tempfile.gettempdir(), f"skipstone-kernels-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is another's, or open to others")
    return path


class _Places(CompileResultCacheImpl):
    # Not numba's own for archives: its name in the home is of the archive's path, so it would be found by nobody.
    _locator_classes = (
        UserProvidedCacheLocator,
        InTreeCacheLocator,
        UserWideCacheLocator,
        _Temporary,
    )


class _Kept(FunctionCache):
    """numba's cache, whose harms cost a compilation and no more: a disk that is full, a file cut short by a crash."""

    _impl_class = _Places

    def _index_key(self, sig, codegen):
        return *super()._index_key(sig, codegen), _HELPERS

    def load_overload(self, sig, target_context):
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever unpickling makes of bytes that were cut short
            self._give_up_on(self.flush)
            return None

    def save_overload(self, sig, data):
        self._give_up_on(super().save_overload, sig, data)

    def _give_up_on(self, action: Callable[..., object], *arguments: object) -> None:
        try:
            action(*arguments)
        except OSError:
            self.disable()


def is_kept(module: ModuleType) -> bool:
    """Whether there is compiled code of any kernel of a module on disk; true where nothing is compiled at all."""
    if config.DISABLE_JIT:
        return True
    caches = [getattr(each, "_cache", None) for each in vars(module).values()]
    with contextlib.suppress(Exception):  # whatever unpickling makes of bytes that were cut short
        return any(key[-1] == _HELPERS for c in caches if isinstance(c, _Kept) for key in c._cache_file._load_index())
    return False


def _own_source() -> str:
    """What identifies a state of this file; "" where there is no source."""
    try:
        return hashlib.sha256(inspect.getsource(sys.modules[__name__]).encode()).hexdigest()
    except OSError:
        return ""


_HELPERS = _own_source()


# -- what kernels are made of -----------------------------------------------------------------------------------------


def jit_helper(function):
    """Compiled for other kernels to call; without counting references, so it makes no arrays."""
    return function if config.DISABLE_JIT else njit(nogil=True, _nrt=False)(function)


def jit_inline(function):
    """Compiled into every caller, and without counting references to the arrays: that takes longer than a few words."""
    return function if config.DISABLE_JIT else njit(forceinline=True, _nrt=False)(function)


def pointer_to(context, builder, array_type, array, index, bits):
    """In an intrinsic: a pointer to numbers of so many bits, from an index of an array on."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), ir.IntType(bits).as_pointer())


def _load_of(bits):
    """A function of (array, index): the bytes of a uint8 array from an index on, aligned or not, as an unsigned number
    of so many bits. A view of a slice is 30 times slower."""
    if config.DISABLE_JIT:
        return lambda array, index: np.frombuffer(array, f"<u{bits // 8}", 1, index)[0]

    @intrinsic
    def load(typing_context, array, index):
        def generate(context, builder, signature, arguments):
            pointer = pointer_to(context, builder, signature.args[0], arguments[0], arguments[1], bits)
            return builder.load(pointer, align=1)

        return types.Integer.from_bitwidth(bits, signed=False)(array, types.int64), generate

    return load


def _store_of(bits):
    """A procedure of (array, index, number): writes an unsigned number of so many bits into a uint8 array."""
    if config.DISABLE_JIT:

        def put(array, index, number):
            array[index : index + bits // 8] = np.array([number], f"<u{bits // 8}").view(np.uint8)

        return put

    @intrinsic
    def store(typing_context, array, index, number):
        def generate(context, builder, signature, arguments):
            pointer = pointer_to(context, builder, signature.args[0], arguments[0], arguments[1], bits)
            builder.store(arguments[2], pointer, align=1)
            return context.get_dummy_value()

        return types.void(array, types.int64, types.Integer.from_bitwidth(bits, signed=False)), generate

    return store


load16, load32, load64 = _load_of(16), _load_of(32), _load_of(64)
store64 = _store_of(64)


@jit_inline
def frame_item(raw, offset, count, width, i):
    """Number i of `count` numbers of `width` bytes from raw[at] on; of 3, 5 and 6 bytes, the upper ones lie after the
    lower ones of all. A signed index might count from the end: a loop over it takes one number at a time."""
    if width == 0:
        return np.uint64(0)
    if width == 1:
        return np.uint64(raw[np.uint64(offset + i)])
    if width == 2:
        return np.uint64(load16(raw, offset + 2 * i))
    if width == 3:
        return np.uint64(load16(raw, offset + 2 * i)) | np.uint64(raw[np.uint64(offset + 2 * count + i)]) << np.uint64(
            16
        )
    if width == 4:
        return np.uint64(load32(raw, offset + 4 * i))
    if width == 5:
        return np.uint64(load32(raw, offset + 4 * i)) | np.uint64(raw[np.uint64(offset + 4 * count + i)]) << np.uint64(
            32
        )
    if width == 6:
        high = np.uint64(load16(raw, offset + 4 * count + 2 * i))
        return np.uint64(load32(raw, offset + 4 * i)) | high << np.uint64(32)
    return load64(raw, offset + 8 * i)


@jit_inline
def swapped(number):
    """The bytes of a number of 64 bits in the other order."""
    m8, m16 = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
    number = (number & m8) << np.uint64(8) | number >> np.uint64(8) & m8
    number = (number & m16) << np.uint64(16) | number >> np.uint64(16) & m16
    return number << np.uint64(32) | number >> np.uint64(32)
