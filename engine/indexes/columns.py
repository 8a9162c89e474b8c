"""Where the columns of the table lie in files of each physical schema."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..parquet.footers import leaf_type
from ..parquet.leaves import top_level
from ..predicates.evidence import Evidence
from ..state import Instant
from .stats import format as stats


@dataclass(frozen=True)
class ColumnInFiles:
    """One column that an index may speak of.

    type        in the table
    located     schema id -> (physical dotted path, type there)
    lacking     schema ids whose files certainly do not have it: every row of a base file holds `default`
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
        ids = [number for number, (_, there) in self.located.items() if there == kind]
        return np.isin(schema_ids, [*ids, -1] if kind == self.type else ids)


def column_in_files(instant: Instant, column: str) -> ColumnInFiles | None:
    """None where no index speaks of the column: it has no order, or its values come from the path."""
    column_id = instant.columns.get(column)
    kind = leaf_type(instant.schema, column)
    if column_id is None or kind is None or column in instant.partitioning:
        return None
    name = top_level(instant.schema, column)
    field_id, below = instant.fields[name], column[len(name) + 1 :]
    located = {}
    lacking = set()
    for number, known in enumerate(instant.file_schemas):
        path = known.path_of(column_id)
        there = None if path is None else leaf_type(known.schema, path)
        physical = known.name_of(field_id)
        if path is not None and there is not None:
            located[number] = (path, there)
        elif physical is None or (below and _lacks(known.schema.field(physical).type, below)):
            lacking.add(number)
    return ColumnInFiles(kind, located, frozenset(lacking), instant.defaults.get(field_id))


def _lacks(kind: pa.DataType, path: str) -> bool:
    """True where it is certain that a column of a physical type has no leaf of that dotted path."""
    for name in path.split("."):
        if not pa.types.is_struct(kind):
            return False
        if kind.get_field_index(name) < 0:
            return True
        kind = kind.field(name).type
    return False


def names_in_files(instant: Instant, names: Iterable[str]) -> tuple[dict[str, str], ...]:
    """The physical names of top-level columns, for each physical schema; those that its files have."""
    wanted = [(name, instant.fields[name]) for name in names]
    found = []
    for known in instant.file_schemas:
        physical = {number: name for name, number in known.fields.items()}
        found.append({name: physical[number] for name, number in wanted if number in physical})
    return tuple(found)


def defaults_of(instant: Instant, names: Iterable[str]) -> dict[str, pa.Scalar]:
    """What top-level columns hold in files that lack them, where that is not null."""
    return {name: instant.defaults[instant.fields[name]] for name in names if instant.fields[name] in instant.defaults}
