"""When to load numba: when the batches of a process pay for it, never for a few values.

Loading costs about 0.3 s a process once the kernels are compiled, so `kernels_for` takes how much work there is, in
rough nanoseconds of the plain twin, and says no until that much has come together. Small work is not counted: a process
that only looks values up never waits for numba. Once loaded, everything but the smallest batches uses it.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

LOAD_ABOVE_NS = 400_000_000
COUNTED_ABOVE_NS = 20_000_000
USE_ABOVE_NS = 30_000

_loaded: ModuleType | None = None
_is_missing = False
_spent_ns = 0


def kernels_for(plain_ns: int) -> ModuleType | None:
    """The compiled kernels, or None where the plain twin is the better choice.

    Args:
        plain_ns: about how long the plain twin would take, in nanoseconds.
    """
    load_kernels_for(plain_ns)
    return _loaded if plain_ns > USE_ABOVE_NS else None


def load_kernels_for(plain_ns: int) -> None:
    """Loads the kernels where work of about that many nanoseconds, which is yet to come, and what went before pay.

    For work that is done in parts, of which none would pay on its own.
    """
    global _loaded, _is_missing, _spent_ns
    if _loaded is not None or _is_missing or plain_ns <= COUNTED_ABOVE_NS:
        return
    _spent_ns += plain_ns
    if _spent_ns <= LOAD_ABOVE_NS:
        return
    try:
        from . import kernels
    except ImportError:
        # A broken numba must not break an answer that the plain twin can give.
        _is_missing = True
        return
    if kernels.config.DISABLE_JIT:
        # Without a compiler the plain twins are faster by far: then kernels run where a debugger asks for them.
        _is_missing = True
        return
    _loaded = kernels


def read_only(array: np.ndarray) -> np.ndarray:
    """A view of the array that cannot be written: kernels are compiled for that kind alone."""
    view = array.view()
    view.flags.writeable = False
    return view
