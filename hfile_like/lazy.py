"""When to load compiled kernels: when the batches of a process pay for it, never for a look-up of a few keys.

Loading numba and kernels that are compiled costs a process about 0.3 s. So `kernels_for` takes how long the plain twin
would take, and gives none until that much has come together. Once loaded, everything but the smallest work uses them.
Without numba, or where it is broken or does not compile, the plain twins answer.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import numpy as np

LOAD_ABOVE_NS = 300_000_000
USE_ABOVE_NS = 10_000

_loaded: dict[str, ModuleType | None] = {}
_spent_ns = 0


def kernels_for(family: str, plain_ns: int) -> ModuleType | None:
    """The module `kernels_<family>`, or None where the plain twin is the better choice, or there is no compiler.
    `plain_ns`: about how long the plain twin would take."""
    global _spent_ns
    if family in _loaded:
        return _loaded[family] if plain_ns > USE_ABOVE_NS else None
    _spent_ns += plain_ns
    return load(family) if _spent_ns > LOAD_ABOVE_NS else None


def is_loaded(family: str) -> bool:
    """Whether the module `kernels_<family>` is, and is of use."""
    return _loaded.get(family) is not None


def load(family: str) -> ModuleType | None:
    """The module `kernels_<family>`, whatever it costs; None without a compiler."""
    try:
        kernels: ModuleType | None = import_module(f".kernels_{family}", __package__)
    except ImportError:
        kernels = None  # a broken numba must not break an answer that the plain twin can give
    if kernels is not None and sys.modules["numba"].config.DISABLE_JIT:
        # Without a compiler the plain twins are faster by far: then kernels run where a test asks for them.
        kernels = None
    _loaded[family] = kernels
    return kernels


def read_only(raw: memoryview | bytes | np.ndarray) -> np.ndarray:
    """uint8 [n] over the same memory, which cannot be written: kernels are compiled for that kind alone."""
    view = np.frombuffer(raw, dtype=np.uint8)
    view.flags.writeable = False
    return view
