"""What kinds of index check alike: the options that they are given, and the columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa

from ...errors import InvalidArgumentError, SchemaError
from ..parquet.footers import leaf_types
from ..state import Instant


def checked_options(kind: str, options: dict[str, Any], known: Collection[str]) -> None:
    """Raises InvalidArgumentError for an option that this kind does not have."""
    for name in options:
        if name not in known:
            has = ", ".join(f"{n}=" for n in sorted(known)) or "none"
            raise InvalidArgumentError(f"{name}= means nothing to a {kind} index; its options: {has}")


def checked_shard_bytes(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InvalidArgumentError(f"shard_bytes is a number of bytes, not {given!r}")
    return given


def column_ids(
    instant: Instant, columns: Sequence[str], can_be_indexed: Callable[[pa.DataType], bool]
) -> list[tuple[int, pa.DataType]]:
    """(id, type) of each column. Raises SchemaError for one that is not there, a partition column, or one of a type
    that cannot be indexed."""
    leaves = leaf_types(instant.schema)
    found = []
    for name in columns:
        if name in instant.partitioning:
            raise SchemaError(f"{name!r} is a partition column: its values prune without an index")
        kind = leaves.get(name)
        if kind is None or not can_be_indexed(kind):
            known = [p for p, t in leaves.items() if p not in instant.partitioning and can_be_indexed(t)]
            raise SchemaError(f"no column {name!r} that can be indexed; there are {', '.join(known)}")
        found.append((instant.columns[name], kind))
    return found
