"""Kernels: compiled by numba, cached on disk, and never loaded at an answer's cost.

A kernel calls only functions of its own file and the helpers at the end of this one: loads of unaligned numbers, which
exist in compiled code alone and have substitutes for NUMBA_DISABLE_JIT=1.

numba's own cache is next to the source, or in a folder of the home that is named by the source's path. A Spark process
may have neither: the package is an archive (`--py-files`), unpacked to another path in every application, or it is
installed where nothing can be written. So the kernels of a module have one folder, named by its content: in
NUMBA_CACHE_DIR if that is set, otherwise in the user's cache folder, otherwise in the folder for temporary files. A
cache that cannot be read or written is treated as empty.

Only modules of kernels import this one, because it loads numba.
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
from pathlib import Path
from types import ModuleType

import numba
import numpy as np
from llvmlite import ir
from numba import config, njit, types

# After an ImportError only the plain twins are used: these names of numba are private.
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys
from numba.extending import intrinsic

_held_for_fork: list[bool] = []


def _before_fork() -> None:
    """Take numba's lock: a child that is forked during a compilation would wait for a thread that it does not have."""
    global_compiler_lock.acquire()
    _held_for_fork.append(True)


def _after_fork() -> None:
    if _held_for_fork:  # this module may be loaded while a process forks
        _held_for_fork.pop()
        global_compiler_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def jit_cached(function):
    """Compile a kernel, and store the result on disk if there is a place for it. With NUMBA_DISABLE_JIT=1 it runs as
    Python, and numpy does not warn if numbers wrap."""
    if config.DISABLE_JIT:
        return np.errstate(over="ignore")(function)
    kernel = njit(nogil=True)(function)
    with contextlib.suppress(RuntimeError):  # numba found no place
        kernel._cache = _Cache(function)  # as numba's own enable_caching() does
    return kernel


class _Folder(_CacheLocator):
    """The folder of a module's kernels, named by the content of their sources: Skipstone finds its own kernels at any
    place of installation, and no others."""

    def __init__(self, root: str, source: str, line: int):
        self._stamp = hashlib.sha256(f"{numba.__version__}{sys.version}{_OWN_SOURCE}{source}".encode()).hexdigest()
        self._path, self._line = os.path.join(root, self._stamp[:16]), line

    def get_cache_path(self) -> str:
        return self._path

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, py_func, py_file):
        for root in (lambda: config.CACHE_DIR,) if config.CACHE_DIR else (_user_folder, _temporary_folder):
            with contextlib.suppress(OSError):  # no source, or no such place
                source = inspect.getsource(sys.modules[py_func.__module__])
                self = cls(root(), source, py_func.__code__.co_firstlineno)
                self.ensure_cache_path()
                return self
        return None


def _user_folder() -> str:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "skipstone-kernels")


def _temporary_folder() -> str:
    """Return a folder that no other user can write to, because cached code is run. Raise OSError if there is none."""
    if not hasattr(os, "geteuid"):
        raise OSError("users have homes on this system")
    path = os.path.join(tempfile.gettempdir(), f"skipstone-kernels-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} belongs to another user, or is open to others")
    return path


class _Places(CompileResultCacheImpl):
    _locator_classes = (_Folder,)


class _Cache(FunctionCache):
    """numba's cache. A failure, such as a full disk or a truncated file, only costs a compilation."""

    _impl_class = _Places

    def load_overload(self, sig, target_context):
        """Load a kernel as numba does, but without numba's implementations of Python's functions. Only compiling needs
        them, and loading them takes 0.3 s."""
        rtsys.initialize(target_context)
        try:
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)
        except Exception:  # unpickling truncated bytes may raise anything
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
    """Return whether compiled code of any kernel of a module is on disk; True if nothing is compiled at all."""
    if config.DISABLE_JIT:
        return True
    caches = [getattr(each, "_cache", None) for each in vars(module).values()]
    return any(any(Path(cache.cache_path).glob("*.nbi")) for cache in caches if isinstance(cache, _Cache))


try:
    _OWN_SOURCE = inspect.getsource(sys.modules[__name__])
except OSError:
    _OWN_SOURCE = ""


# -- helpers for kernels ----------------------------------------------------------------------------------------------


def jit_helper(function):
    """Compile a function for other kernels to call. It counts no references, so it creates no arrays."""
    return function if config.DISABLE_JIT else njit(nogil=True, _nrt=False)(function)


def jit_inline(function):
    """Compile a function into every caller, because counting references to its arrays would take longer than it."""
    return function if config.DISABLE_JIT else njit(forceinline=True, _nrt=False)(function)


def pointer_to(context, builder, array_type, array, index, bits):
    """Return, in an intrinsic, a pointer to numbers of `bits` bits that starts at an index of an array."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), ir.IntType(bits).as_pointer())


def _load_of(bits):
    """Return a function of (array, index): the bytes of a uint8 array from an index on, aligned or not, as an unsigned
    number of `bits` bits. A view of a slice is 30 times slower."""
    if config.DISABLE_JIT:
        return lambda array, index: np.frombuffer(array, f"<u{bits // 8}", 1, index)[0]

    @intrinsic
    def load(typing_context, array, index):
        def generate(context, builder, signature, arguments):
            pointer = pointer_to(context, builder, signature.args[0], arguments[0], arguments[1], bits)
            return builder.load(pointer, align=1)

        return types.Integer.from_bitwidth(bits, signed=False)(array, types.int64), generate

    return load


load16, load32, load64 = _load_of(16), _load_of(32), _load_of(64)


@jit_inline
def swapped(number):
    """Return a 64-bit number with its bytes in the opposite order."""
    m8, m16 = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
    number = (number & m8) << np.uint64(8) | number >> np.uint64(8) & m8
    number = (number & m16) << np.uint64(16) | number >> np.uint64(16) & m16
    return number << np.uint64(32) | number >> np.uint64(32)
