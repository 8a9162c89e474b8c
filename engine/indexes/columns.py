"""The columns of indexes: which ones can be indexed, where they lie in files of each physical schema, and the check of
an index's options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import InvalidArgumentError, SchemaError, is_integer
from ..parquet.leaves import in_table_names, leaf_type, leaf_types, top_level
from ..predicates.possible_values import Evidence
from ..state import FileSchema, Instant
from .stats import format as stats

_SHARD_SIZES = {"small": 8 << 20, "medium": 64 << 20, "large": 512 << 20}


@dataclass(frozen=True)
class ColumnInFiles:
    """One column that can be indexed.

    type        in the table
    located     schema id -> (physical dotted path, type there)
    lacking     schema ids whose files certainly do not have it, or in which it has Arrow's null type and `default` is
                null: every row of a base file holds `default`
    default     the column's initial default; None: null
    """

    type: pa.DataType
    located: dict[int, tuple[str, pa.DataType]]
    lacking: frozenset[int]
    default: pa.Scalar | None = None

    def evidence_where_lacking(self, units: int) -> Evidence:
        """The evidence for units of base files that do not have the column."""
        if self.default is None:
            return stats.evidence_all_null(self.type, units)
        return stats.evidence_of_values(pa.repeat(self.default, units))

    def kinds(self) -> list[pa.DataType]:
        """The types in which files hold it; the table's own first."""
        return list(dict.fromkeys([self.type, *(kind for _, kind in self.located.values())]))

    def is_of_kind(self, kind: pa.DataType, schema_ids: np.ndarray) -> np.ndarray:
        """bool [n]: files of these schemas hold it in that type; where none is known (-1) it is the table's own."""
        ids = [number for number, (_, physical) in self.located.items() if physical == kind]
        return np.isin(schema_ids, [*ids, -1] if kind == self.type else ids)


def column_in_files(instant: Instant, column: str) -> ColumnInFiles | None:
    """None where the column cannot be indexed: it has no order, or its values come from the path."""
    column_id = instant.columns.get(column)
    kind = leaf_type(instant.schema, column)
    if column_id is None or kind is None or column in instant.partitioning:
        return None
    name = top_level(instant.schema, column)
    field_id, below = instant.fields[name], column[len(name) + 1 :]
    default = instant.defaults.get(field_id)
    located = {}
    lacking = set()
    for number, schema in enumerate(instant.file_schemas):
        path = schema.path_of(column_id)
        type_in_file = None if path is None else leaf_type(schema.schema, path)
        physical = schema.name_of(field_id)
        if path is not None and type_in_file is not None:
            located[number] = (path, type_in_file)
        elif physical is None or ((below or default is None) and _lacks_field(schema, physical, below)):
            lacking.add(number)
    return ColumnInFiles(kind, located, frozenset(lacking), default)


def _lacks_field(schema: FileSchema, physical: str, below: str) -> bool:
    if (physical,) in schema.nested:  # it cannot be read
        return False
    return _lacks(in_table_names(pa.schema([schema.schema.field(physical)]), schema.nested).field(0).type, below)


def _lacks(kind: pa.DataType, path: str) -> bool:
    """True if every value of such a column is certainly null at that dotted path ("": the column itself): it has no
    such leaf, or Arrow's null type."""
    for name in path.split(".") if path else ():
        if not pa.types.is_struct(kind):
            return False
        if kind.get_field_index(name) < 0:
            return True
        kind = kind.field(name).type
    return pa.types.is_null(kind)


def names_in_files(instant: Instant, names: Iterable[str]) -> tuple[dict[str, str], ...]:
    """The physical names of top-level columns, for each physical schema; those that its files have."""
    wanted = [(name, instant.fields[name]) for name in names]
    by_schema = []
    for schema in instant.file_schemas:
        physical = {number: name for name, number in schema.fields.items()}
        by_schema.append({name: physical[number] for name, number in wanted if number in physical})
    return tuple(by_schema)


def defaults_of(instant: Instant, names: Iterable[str]) -> dict[str, pa.Scalar]:
    """What top-level columns hold in files that lack them, where that is not null."""
    return {name: instant.defaults[instant.fields[name]] for name in names if instant.fields[name] in instant.defaults}


def checked_options(kind: str, options: dict[str, Any], allowed: Collection[str]) -> None:
    """Raises InvalidArgumentError for an option that this kind does not have."""
    for name in options:
        if name not in allowed:
            has = ", ".join(f"{n}=" for n in sorted(allowed)) or "none"
            raise InvalidArgumentError(f"{name}= means nothing to a {kind} index; its options: {has}")


def checked_shard_bytes(value: object) -> int:
    """What `shard_bytes=` means: a number, or one of `ShardSize`."""
    if isinstance(value, str) and value in _SHARD_SIZES:
        return _SHARD_SIZES[value]
    if not is_integer(value, 1):
        raise InvalidArgumentError(
            f"shard_bytes is a number of bytes, or one of {', '.join(_SHARD_SIZES)}, not {value!r}"
        )
    return value


def column_ids(
    instant: Instant, columns: Sequence[str], can_be_indexed: Callable[[pa.DataType], bool]
) -> list[tuple[int, pa.DataType]]:
    """(id, type) of each column. Raises SchemaError for one that is not there, a partition column, or one of a type
    that cannot be indexed."""
    leaves = leaf_types(instant.schema)
    ids = []
    for name in columns:
        if name in instant.partitioning:
            raise SchemaError(f"{name!r} is a partition column: its values prune without an index")
        kind = leaves.get(name)
        if kind is None or not can_be_indexed(kind):
            usable = [p for p, t in leaves.items() if p not in instant.partitioning and can_be_indexed(t)]
            message = f"no column {name!r} that can be indexed; there are {', '.join(usable)}"
            raise SchemaError(message, hint=columns_hint(instant))
        ids.append((instant.columns[name], kind))
    return ids


def columns_hint(instant: Instant) -> str | None:
    """What to do about a column that a log may have gained since the version was made."""
    return None if instant.source["kind"] == "directory" else "{sync} takes over columns that the log gained since"
