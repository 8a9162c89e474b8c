"""When to load numba: at the first batch that pays for it, never for a few values.

Loading costs about 0.3 s a process once the kernels are compiled, so `kernels_for` is told how much work there is, in
rough nanoseconds of the plain twin, and says no until a batch is worth it. Once loaded, everything but the smallest
batches uses it.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

LOAD_ABOVE_NS = 400_000_000
USE_ABOVE_NS = 30_000

_loaded: ModuleType | None = None
_is_missing = False


def kernels_for(plain_ns: int) -> ModuleType | None:
    """The compiled kernels, or None where the plain twin is the better choice.

    Args:
        plain_ns: about how long the plain twin would take, in nanoseconds.
    """
    global _loaded, _is_missing
    if _loaded is not None:
        return _loaded if plain_ns > USE_ABOVE_NS else None
    if _is_missing or plain_ns <= LOAD_ABOVE_NS:
        return None
    try:
        from . import kernels
    except ImportError:
        # A broken numba must not break an answer that the plain twin can give.
        _is_missing = True
        return None
    _loaded = kernels
    return kernels


def read_only(array: np.ndarray) -> np.ndarray:
    """A view of the array that cannot be written: kernels are compiled for that kind alone."""
    view = array.view()
    view.flags.writeable = False
    return view
