"""The log of a table, by the format's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...errors import InvalidArgumentError
from ..storage import Storage
from . import DELTA, HUDI, ICEBERG, KINDS
from .log import LogSource


def open_source(
    kind: str,
    storage: Storage,
    options: Mapping[str, str] | None = None,
    metadata: str | Callable[[], str] | None = None,
) -> LogSource:
    """The log of the table at a storage; `metadata`: the one Iceberg state that counts (see `Location`). Raises
    InvalidArgumentError for a kind that is not known."""
    if kind == DELTA:
        from .delta import DeltaSource

        return DeltaSource(storage, options)
    if kind == ICEBERG:
        from .iceberg import IcebergSource

        return IcebergSource(storage, options, metadata)
    if kind == HUDI:
        from .hudi.source import HudiSource

        return HudiSource(storage, options)
    raise InvalidArgumentError(f"source={kind!r} is not known; it is one of {', '.join(KINDS)}")
