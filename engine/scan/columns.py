"""Where one column of the table lies in files of each physical schema."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..ingest.footers import leaf_type
from ..timeline import Instant


@dataclass(frozen=True)
class ColumnInFiles:
    """One column that an index may speak of.

    type        in the table
    located     schema id -> (physical dotted path, type there)
    lacking     schema ids whose files certainly do not have it: null in every row
    """

    type: pa.DataType
    located: dict[int, tuple[str, pa.DataType]]
    lacking: frozenset[int]

    def kinds(self) -> list[pa.DataType]:
        """The types in which files hold it: the table's own, in which files were told of, first."""
        return list(dict.fromkeys([self.type, *(kind for _, kind in self.located.values())]))

    def is_of_kind(self, kind: pa.DataType, schema_ids: np.ndarray) -> np.ndarray:
        """bool [n]: files of these physical schemas (-1: only told of, in the table's type) hold it in that type."""
        ids = [number for number, (_, there) in self.located.items() if there == kind]
        return np.isin(schema_ids, [*ids, -1] if kind == self.type else ids)


def column_in_files(instant: Instant, column: str) -> ColumnInFiles | None:
    """None where no index speaks of the column: it has no order, or its values come from the path."""
    column_id = instant.columns.get(column)
    kind = leaf_type(instant.schema, column)
    if column_id is None or kind is None or column in instant.partitioning:
        return None
    located = {}
    lacking = set()
    for number, known in enumerate(instant.file_schemas):
        path = known.path_of(column_id)
        there = None if path is None else leaf_type(known.schema, path)
        if path is not None and there is not None:
            located[number] = (path, there)
        elif lacks(known.schema, column):
            lacking.add(number)
    return ColumnInFiles(kind, located, frozenset(lacking))


def lacks(schema: pa.Schema, path: str) -> bool:
    """True where it is certain that files of a physical schema have no such column."""
    names = path.split(".")
    at = next((end for end in range(len(names), 0, -1) if schema.get_field_index(".".join(names[:end])) >= 0), None)
    if at is None:
        return True
    kind = schema.field(".".join(names[:at])).type
    for name in names[at:]:
        if not pa.types.is_struct(kind):
            return False
        if kind.get_field_index(name) < 0:
            return True
        kind = kind.field(name).type
    return False
