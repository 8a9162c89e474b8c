"""Included columns: which ones an index has, and rows that are read from its entries instead of data files.

A row of an index is the row as it was indexed. The caller applies deletes, and tests the whole predicate.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....base.arrays import from_numpy
from ....base.caching import cached_property
from ....base.ordered_keys import OrderedCode
from ....errors import InvalidArgumentError, SchemaError
from ...parquet.leaves import leaf_types
from ...predicates import And, Node, Or
from ...state import IndexState, Instant
from ...state.runs import reading_run
from ..columns import columns_hint
from .format import EntryLayout, layout_of, stored_type
from .hits import Found, Hits


def included_option(instant: Instant, key: Sequence[str], names: object) -> str:
    """Return the option `include` of an index with that key, for the columns in `create_index(include=)`. Raise
    SchemaError for a column that cannot be included, InvalidArgumentError for other values."""
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"include= is a list of columns, not {names!r}")
    leaves = leaf_types(instant.schema)
    fields = []
    for name in dict.fromkeys(names):
        if name in instant.partitioning:
            raise SchemaError(f"{name!r} is a partition column: every index has its values, so it is not included")
        kind = leaves.get(name) if name in instant.schema.names else None
        stored = None if kind is None else stored_type(kind)
        if stored is None:
            is_there = name in instant.schema.names
            what = f"is {instant.schema.field(name).type}" if is_there else "is no top-level column"
            usable = [n for n, t in leaves.items() if n in instant.schema.names and stored_type(t) is not None]
            message = f"column {name!r} {what} and cannot be included; there are {', '.join(usable)}"
            raise SchemaError(message, hint=columns_hint(instant))
        if name in key and not pa.types.is_floating(stored):
            raise InvalidArgumentError(f"{name!r} is in the key of the index: it is not included again")
        fields.append(pa.field(str(instant.columns[name]), stored))
    # A key has one zero and one NaN, so not every float can be decoded from it.
    have = {field.name for field in fields}
    for name in key:
        number = str(instant.columns[name])
        if name in instant.schema.names and pa.types.is_floating(leaves[name]) and number not in have:
            fields.append(pa.field(number, leaves[name]))
    return base64.b64encode(pa.schema(fields).serialize()).decode()


def included_names(instant: Instant, index: IndexState) -> list[str | None]:
    """Return the names of the included columns; None for a dropped one."""
    paths = {number: path for path, number in instant.columns.items()}
    return [paths.get(int(field.name)) for field in layout_of(index.options.get("include")).included]


@dataclass(frozen=True)
class StoredRows:
    """Rows that an index with included columns contains.

    part     of a predicate: it is TRUE in no other row
    names    of the columns of the key
    found    the entries of these rows
    """

    index: IndexState
    part: Node
    names: Sequence[str]
    code: OrderedCode
    found: Sequence[Found]

    @cached_property
    def layout(self) -> EntryLayout:
        return layout_of(self.index.options.get("include"))

    @property
    def label(self) -> str:
        return f"secondary({', '.join(self.names)})"

    def places(self, instant: Instant) -> dict[str, int]:
        """Return the position of each top-level column among the included ones, or in the key, as `-1 - position`."""
        places = {
            name: -1 - number
            for number, (name, kind) in enumerate(zip(self.names, self.code.kinds, strict=True))
            if name in instant.schema.names and not pa.types.is_floating(kind)
        }
        names = included_names(instant, self.index)
        return places | {name: number for number, name in enumerate(names) if name is not None}


def stored_rows_for(node: Node, by_part: Mapping[Node, StoredRows]) -> list[StoredRows] | None:
    """Return rows of one index such that the predicate is TRUE in no other; None if there are none."""
    if node in by_part:
        return [by_part[node]]
    if isinstance(node, And):
        parts = [one for part, one in by_part.items() if isinstance(part, And) and {*part.children} <= {*node.children}]
        choices = [[one] for one in parts]
        choices += [rows for child in node.children if (rows := stored_rows_for(child, by_part)) is not None]
        return min(
            choices, key=lambda rows: sum(len(found.hits.rows) for one in rows for found in one.found), default=None
        )
    if isinstance(node, Or):
        of_children = [stored_rows_for(child, by_part) for child in node.children]
        if all(rows is not None for rows in of_children):
            return [one for rows in of_children for one in rows or ()]
    return None


def rows_of_entries(
    stored: Iterable[StoredRows], names: Mapping[str, int], file_ids: np.ndarray, damaged: Collection[str]
) -> tuple[Hits, dict[str, pa.Array]]:
    """Return the places of the rows of files (uint64), each once, and the columns by name, from their `places`. Read no
    run in `damaged`. Raise DamagedRun."""
    hits: list[Hits] = []
    columns: dict[str, list[pa.Array]] = {name: [] for name in names}
    for rows in stored:
        for run, selection, of_run in rows.found:
            if run.path in damaged:
                continue
            chosen = np.flatnonzero(np.isin(of_run.file_ids, file_ids))
            hits.append(of_run.take(chosen))
            with reading_run(run):
                keys = None
                if any(place < 0 for place in names.values()):
                    parts = zip(selection.blocks, selection.slices, strict=True)
                    stored_keys = [b.keys.to_arrow().take(from_numpy(selection.rows[part])) for b, part in parts]
                    joined = pa.concat_arrays(stored_keys).take(from_numpy(chosen))
                    keys = rows.code.decode(rows.layout.without_place(joined)) if len(joined) else None
                for name, place in names.items():
                    if place >= 0:
                        columns[name].append(pa.concat_arrays(selection.values(place)).take(from_numpy(chosen)))
                    elif keys is not None:
                        columns[name].append(keys[-1 - place])
    together = Hits.concat(hits)
    first = together.first_of_each()
    taken = {
        name: pa.concat_arrays(parts).take(from_numpy(first)) if parts else pa.nulls(0)
        for name, parts in columns.items()
    }
    return together.take(first), taken
