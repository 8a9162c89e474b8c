"""Skipstone: an index beside a lake of Parquet files, so that a query skips what it need not read.

    import skipstone as ss
    from skipstone import col

    table = ss.create("lake/flights")
    table.create_index("tail_num", kind="bloom")
    rows = table.scan((col("month") == 1) & (col("tail_num") == "N14228")).to_table()

Names are loaded when they are first used: importing this package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from . import forks as _forks  # noqa: F401 - it registers a hook

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .engine.commit.moved_files import RebindResult
    from .engine.commit.repair import repair
    from .engine.commit.sync import SyncResult
    from .engine.commit.transaction import Transaction
    from .engine.create import create
    from .engine.doctor import Check, doctor
    from .engine.observing import Event, observe, opentelemetry_hook
    from .engine.open import open_table as open
    from .engine.open import scan_polars
    from .engine.predicates import col
    from .engine.scan.lake_dataset import LakeDataset
    from .engine.scan.plan import Plan
    from .engine.scan_log import ScanLog
    from .engine.state.cache import CacheInfo, cache_info, set_cache_budget
    from .engine.table import Table
    from .engine.tasks.writer import TaskWriter
    from .errors import (
        CommitConflictError,
        CorruptionError,
        FormatVersionError,
        InvalidArgumentError,
        NotATableError,
        NotReadableError,
        PredicateError,
        SchemaError,
        SkipstoneError,
        SkipstoneWarning,
        StorageError,
    )

_HOMES = {
    "cache_info": (".engine.state.cache", "cache_info"),
    "set_cache_budget": (".engine.state.cache", "set_cache_budget"),
    "CacheInfo": (".engine.state.cache", "CacheInfo"),
    "create": (".engine.create", "create"),
    "open": (".engine.open", "open_table"),
    "scan_polars": (".engine.open", "scan_polars"),
    "col": (".engine.predicates", "col"),
    "doctor": (".engine.doctor", "doctor"),
    "Check": (".engine.doctor", "Check"),
    "Event": (".engine.observing", "Event"),
    "observe": (".engine.observing", "observe"),
    "opentelemetry_hook": (".engine.observing", "opentelemetry_hook"),
    "repair": (".engine.commit.repair", "repair"),
    "RebindResult": (".engine.commit.moved_files", "RebindResult"),
    "SyncResult": (".engine.commit.sync", "SyncResult"),
    "Table": (".engine.table", "Table"),
    "LakeDataset": (".engine.scan.lake_dataset", "LakeDataset"),
    "Plan": (".engine.scan.plan", "Plan"),
    "ScanLog": (".engine.scan_log", "ScanLog"),
    "Transaction": (".engine.commit.transaction", "Transaction"),
    "TaskWriter": (".engine.tasks.writer", "TaskWriter"),
    **{
        name: (".errors", name)
        for name in (
            "CommitConflictError",
            "CorruptionError",
            "FormatVersionError",
            "InvalidArgumentError",
            "NotATableError",
            "NotReadableError",
            "PredicateError",
            "SchemaError",
            "SkipstoneError",
            "SkipstoneWarning",
            "StorageError",
        )
    },
}

__all__ = [
    "CacheInfo",
    "Check",
    "CommitConflictError",
    "CorruptionError",
    "Event",
    "FormatVersionError",
    "InvalidArgumentError",
    "LakeDataset",
    "NotATableError",
    "NotReadableError",
    "Plan",
    "PredicateError",
    "RebindResult",
    "ScanLog",
    "SchemaError",
    "SkipstoneError",
    "SkipstoneWarning",
    "StorageError",
    "SyncResult",
    "Table",
    "TaskWriter",
    "Transaction",
    "__version__",
    "cache_info",
    "col",
    "create",
    "doctor",
    "observe",
    "open",
    "opentelemetry_hook",
    "repair",
    "scan_polars",
    "set_cache_budget",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        module, attribute = _HOMES[name]
        value = getattr(importlib.import_module(module, __name__), attribute)
        globals()[name] = value
        return value
    # "import skipstone as ss; ss.bloom" and the like work without importing them all at once.
    if name in ("bloom", "canon", "engine", "errors", "hfile_like", "spark_adapter"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
