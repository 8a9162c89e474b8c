"""Load on first use: names of a package, and compiled kernels if the work justifies them.

Loading numba and compiled kernels costs a process about 0.3 s. So `kernels_for` receives the time that the plain twin
would need, and returns None until the sum is large enough: a process that looks up a few keys never waits for numba.
Once loaded, all but the smallest work uses them. If this machine has no compiled code of a module, compiling takes
seconds: then the plain twin is used until half a second of its time has accumulated. Without numba, or if it is
broken or does not compile, the plain twins are used.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType

LOAD_ABOVE_NS = 300_000_000
COMPILE_ABOVE_NS = 500_000_000
USE_ABOVE_NS = 10_000

_loaded: dict[str, ModuleType | None] = {}
_spent_ns = 0
_spent_on: dict[str, int] = {}  # by module
_kept: dict[str, bool] = {}


def exports_of(package: str) -> dict[str, str]:
    """Return the public names of a package, each with its module. They are read from `__init__.pyi`, so that they are
    listed once for type checkers and for Python."""
    stub = (pkgutil.get_data(package, "__init__.pyi") or b"").decode()
    return {name: home for home, name in re.findall(r"^from (\S+) import (\S+) as \2$", stub, flags=re.MULTILINE)}


def names_from(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package. `homes`: the module of each name, relative to the package; "." for names
    that are modules of the package themselves."""

    def load_name(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        value = import_module(f".{name}", package) if home == "." else getattr(import_module(home, package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load_name


def kernels_for(module: str, plain_ns: int) -> ModuleType | None:
    """Return a module of kernels, or None if the plain twin is the better choice, or there is no compiler.

    Args:
        module: its name below `skipstone`: "bloom.kernels".
        plain_ns: about how long the plain twin would need, in nanoseconds.
    """
    global _spent_ns
    if module not in _loaded:
        _spent_ns += plain_ns
        _spent_on[module] = _spent_on.get(module, 0) + plain_ns
        load_for(module, 0)
    return _loaded.get(module) if plain_ns > USE_ABOVE_NS else None


def load_for(module: str, plain_ns: int) -> None:
    """Load a module of kernels if future work, done in parts, justifies it: about `plain_ns` nanoseconds of its plain
    twin in all. Each part is counted when it is done."""
    if module in _loaded or _spent_ns + plain_ns <= LOAD_ABOVE_NS:
        return
    if _spent_on.get(module, 0) + plain_ns > COMPILE_ABOVE_NS or _is_kept(module):
        load(module)


def _is_kept(module: str) -> bool:
    """Return whether this machine had compiled code of a module at the first check; True also without a compiler."""
    if module not in _kept:
        try:
            kernels = import_module(f"..{module}", __package__)
            _kept[module] = import_module(".compiling", __package__).is_kept(kernels)
        except ImportError:
            _kept[module] = True
    return _kept[module]


def load(module: str) -> ModuleType | None:
    """Return a module of kernels at any cost; None without a compiler."""
    try:
        kernels: ModuleType | None = import_module(f"..{module}", __package__)
    except ImportError:
        kernels = None  # a broken numba must not break an answer that the plain twin can give
    if kernels is not None and sys.modules["numba"].config.DISABLE_JIT:
        # Without a compiler the plain twins are far faster: kernels then run only if a test requests them.
        kernels = None
    _loaded[module] = kernels
    return kernels
