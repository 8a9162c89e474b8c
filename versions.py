"""What older versions of a library lack. No other module of the engine compares versions.

pyproject.toml has the oldest versions that are supported, and `make floors` runs the tests with these.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

PYARROW = tuple(int(part) for part in re.findall(r"\d+", pa.__version__)[:2])

_PRINTS_EVERY_EXPRESSION = (21, 0)
_BIT_COUNTS = np.array([value.bit_count() for value in range(256)], dtype=np.uint8)


def expression_text(expression: Any) -> str:
    """A pyarrow expression as text. Below pyarrow 21 an expression with a UUID ends the process when it is printed, and
    one with any other extension type may, too."""
    if PYARROW < _PRINTS_EVERY_EXPRESSION:
        return "a pyarrow expression, which can be shown from pyarrow 21 on"
    return str(expression)


def bit_counts(words: np.ndarray) -> np.ndarray:
    """The number of set bits of each uint32 of an array: uint8, of the same shape. numpy 2.0 has a function for it."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(words)
    by_byte = _BIT_COUNTS[np.ascontiguousarray(words).view(np.uint8)]
    return by_byte.reshape(*words.shape, words.itemsize).sum(axis=-1, dtype=np.uint8)


def accepted(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """The options that this version of a library's function has."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in known}
