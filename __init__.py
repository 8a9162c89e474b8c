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

import pkgutil
import re

from .base import forks as _forks  # noqa: F401 - it registers a hook
from .base.lazy import names_from as _names_from

__version__ = "0.1.0"

_PUBLIC = re.findall(
    r"^from (\S+) import (\S+) as \2$",
    (pkgutil.get_data(__name__, "__init__.pyi") or b"").decode(),
    flags=re.MULTILINE,
)

__all__ = ["__version__", *sorted(name for module, name in _PUBLIC if module != ".")]
__getattr__ = _names_from(__name__, {name: module for module, name in _PUBLIC})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
