"""Which column of a table a file's own name stands for, where a log lets them differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from ...errors import SchemaError
from ..predicates.widening import is_list


@dataclass(frozen=True)
class Naming:
    """How the files of a log name the table's columns.

    physical   {name in every file: name in the table}; None where files may differ, and tell by field ids
    ids        {field id: dotted path in the table} of every field, nested ones too, where files tell by ids
    fallback   {name in a file: field id} for files without ids of their own
    """

    physical: dict[str, str] | None
    ids: dict[int, str] = field(default_factory=dict)
    fallback: dict[str, int] | None = None

    def names_in(self, schema: pa.Schema, path: str, given: Iterable[str] | None = None) -> dict[str, str]:
        """{own name: name in the table} of a file by its Arrow schema (with what Parquet says of its fields); columns
        that are not the table's are left out.

        Raises SchemaError for a file without ids where nothing else tells, for one with a field within a column that
        has another name in the table, and for one that lacks a column whose value the log has (`given`).
        """
        found = self._names_in(schema, path)
        lacking = sorted(set(given or ()).difference(found.values()))
        if lacking:
            raise SchemaError(
                f"{path}: lacks column {lacking[0]!r}, whose value only the log has; partition every file of the table "
                "by it, or rewrite the file"
            )
        return found

    def _names_in(self, schema: pa.Schema, path: str) -> dict[str, str]:
        numbers = {f.name: field_id(f) for f in schema}
        if not self.ids or (self.physical is not None and not any(n is not None for n in numbers.values())):
            assert self.physical is not None
            return {own: self.physical[own] for own in schema.names if own in self.physical}
        if not any(number is not None for number in numbers.values()):
            if self.fallback is None:
                raise SchemaError(f"{path}: its columns have no field ids, and the table has no mapping of names")
            numbers = {own: self.fallback.get(own) for own in schema.names}
        found = {own: self.ids[n] for own, n in numbers.items() if n is not None and n in self.ids}
        for own, name in found.items():
            self._check_below(schema.field(own).type, name, path)
        return found

    def _check_below(self, kind: pa.DataType, above: str, path: str) -> None:
        by_path = {place: number for number, place in self.ids.items()}
        for place, number in _fields_below(kind, above):
            if number is not None and (self.ids.get(number, place) != place or by_path.get(place, number) != number):
                raise SchemaError(
                    f"{path}: {place!r}, a field within a column, has another name in the table now; only whole "
                    "columns are followed under other names: rewrite the file"
                )


def field_id(field: pa.Field) -> int | None:
    """The field id that a Parquet file gives a column or a field within one."""
    told = (field.metadata or {}).get(b"PARQUET:field_id")
    return None if told is None else int(told)


def _fields_below(kind: pa.DataType, above: str) -> Iterator[tuple[str, int | None]]:
    """(dotted path, field id) of every field within a type, as Iceberg names them."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        inner = [(f.name, f) for f in kind]
    elif pa.types.is_map(kind):
        inner = [("key", kind.key_field), ("value", kind.item_field)]
    elif is_list(kind):
        inner = [("element", kind.value_field)]
    else:
        return
    for name, child in inner:
        yield f"{above}.{name}", field_id(child)
        yield from _fields_below(child.type, f"{above}.{name}")
