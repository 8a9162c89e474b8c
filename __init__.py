"""Skipstone indexes lakes of Parquet files, so that queries read only the files that can match.

    import skipstone as ss
    from skipstone import col

    table = ss.create("lake/flights")
    table.create_index("tail_num", kind="bloom")
    rows = table.scan((col("month") == 1) & (col("tail_num") == "N14228")).to_table()

`__init__.pyi` lists the public names, for type checkers and for this module. Each name is loaded when it is first used:
importing this package costs next to nothing.
"""

from __future__ import annotations

from .base import forks as _forks  # noqa: F401 - it registers a hook
from .base.lazy import exports_of as _exports_of
from .base.lazy import names_from as _names_from

__version__ = "0.2.0"

_HOMES = _exports_of(__name__)

__all__ = ["__version__", *sorted(name for name, home in _HOMES.items() if home != ".")]
__getattr__ = _names_from(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
