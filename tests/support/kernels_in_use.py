"""Compiled kernels even for little work, or none: to compare them with their plain twins."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from skipstone.base import lazy

MODULES = ("hfile_like.kernels_lookup", "hfile_like.kernels_template", "bloom.kernels")


@contextmanager
def kernels(*, are_used: bool) -> Iterator[None]:
    before, least = dict(lazy._loaded), lazy.USE_ABOVE_NS
    for module in MODULES:
        lazy._loaded[module] = importlib.import_module(f"skipstone.{module}") if are_used else None
    lazy.USE_ABOVE_NS = -1 if are_used else least
    try:
        yield
    finally:
        lazy.USE_ABOVE_NS = least
        lazy._loaded.clear()
        lazy._loaded.update(before)
