"""Compiled kernels for whatever little there is to do, or none: to compare them with their plain twins."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from skipstone.base import lazy

MODULES = tuple(f"hfile_like.kernels_{family}" for family in ("lookup", "template"))


@contextmanager
def kernels(*, are_used: bool) -> Iterator[None]:
    """Compiled kernels for whatever little there is to do, or none."""
    before, least = dict(lazy._loaded), lazy.USE_ABOVE_NS
    found: dict[str, ModuleType | None] = {}
    for module in MODULES:
        found[module] = importlib.import_module(f"skipstone.{module}") if are_used else None
    lazy._loaded.update(found)
    lazy.USE_ABOVE_NS = -1 if are_used else least
    try:
        yield
    finally:
        lazy.USE_ABOVE_NS = least
        lazy._loaded.clear()
        lazy._loaded.update(before)
