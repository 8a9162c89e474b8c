"""Skipstone: an index beside a lake of Parquet files, so that a query skips what it need not read.

    import skipstone as ss
    from skipstone import col

    table = ss.create("lake/flights")
    table.create_index("tail_num", kind="bloom")
    rows = table.scan((col("month") == 1) & (col("tail_num") == "N14228")).to_table()

`__init__.pyi` lists the public names, for type checkers and for this module. Each name is loaded when it is first used:
importing this package costs next to nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
import re

from .base import forks as _forks  # noqa: F401 - it registers a hook

__version__ = "0.1.0"

_HOMES = {
    public: (module, name)
    for module, name, public in re.findall(
        r"^from (\S+) import (\S+) as (\S+)$",
        (pkgutil.get_data(__name__, "__init__.pyi") or b"").decode(),
        flags=re.MULTILINE,
    )
}

__all__ = ["__version__", *sorted(public for public, (module, _) in _HOMES.items() if module != ".")]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = (
        importlib.import_module(f".{attribute}", __name__)
        if module == "."
        else getattr(importlib.import_module(module, __name__), attribute)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
