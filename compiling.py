"""Kernels, compiled once for a machine: kept on disk wherever the package lies, and never at an answer's cost.

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

import numpy as np
from numba import config, njit
from numba.core.caching import (  # an ImportError, where numba has them no more, leaves the plain twins
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
    _CacheLocator,
)


def compiled(function):
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
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
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
