"""Fields within columns that files name otherwise than the table, as logs with field ids or mapped names allow.

A rename is held by the path of the field in the file, from the column down, with the steps "element", "key" and "value"
through lists and maps. It gives the field's name in the table, or None for a field that is not in the table, even
where the table has another of that name. The path of a column itself has the reason why the column cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from ..predicates.widening import is_list
from .leaves import leaves_of

NestedNames: TypeAlias = Mapping[tuple[str, ...], str | None]


def children_of(kind: pa.DataType) -> list[tuple[str, pa.Field]]:
    """(step of the path, field) of what lies directly within a type."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        return [(field.name, field) for field in kind]
    if pa.types.is_map(kind):
        return [("key", kind.key_field), ("value", kind.item_field)]
    return [("element", kind.value_field)] if is_list(kind) else []


def has_field(kind: pa.DataType, path: str) -> bool:
    """Whether a type has a field at a dotted path within."""
    return any(
        path == step or (path.startswith(f"{step}.") and has_field(field.type, path[len(step) + 1 :]))
        for step, field in children_of(kind)
    )


def in_table_names(schema: pa.Schema, names: NestedNames) -> pa.Schema:
    """What the table has of a file's schema, with the table's names of fields within columns; the columns themselves
    keep the file's names."""
    return _renamed_schema(schema, names, keeps_all=False) if names else schema


def column_in_table_names(column: pa.ChunkedArray, file_name: str, names: NestedNames) -> pa.ChunkedArray:
    """A column that a file calls `file_name`, with the table's names of the fields within; no value is copied."""
    kind = _renamed(column.type, names, (file_name,), True) if names else column.type
    if kind == column.type:
        return column
    return pa.chunked_array([pa.array(_Retyped(chunk, kind)) for chunk in column.chunks], kind)


def leaf_names(schema: pa.Schema, names: NestedNames) -> dict[str, str]:
    """{dotted path of a leaf in the file: the same with the table's names within its column}."""
    pairs = zip(leaves_of(schema), leaves_of(_renamed_schema(schema, names, keeps_all=True)), strict=True)
    return {path: shown for (path, _), (shown, _) in pairs if path is not None and shown is not None}


def _renamed_schema(schema: pa.Schema, names: NestedNames, *, keeps_all: bool) -> pa.Schema:
    return pa.schema([field.with_type(_renamed(field.type, names, (field.name,), keeps_all)) for field in schema])


def _renamed(kind: pa.DataType, names: NestedNames, path: tuple[str, ...], keeps_all: bool) -> pa.DataType:
    """`keeps_all`: fields that are not in the table stay, under names that no field of a table has."""
    if pa.types.is_struct(kind):
        fields = []
        for position, field in enumerate(kind):
            below = (*path, field.name)
            name = names.get(below, field.name)
            if keeps_all or name is not None:
                shown = f"\x01{position}" if name is None else name
                fields.append(field.with_name(shown).with_type(_renamed(field.type, names, below, keeps_all)))
        return pa.struct(fields)
    if pa.types.is_map(kind):
        key, value = (f.with_type(_renamed(f.type, names, (*path, step), keeps_all)) for step, f in children_of(kind))
        return pa.map_(key, value, keys_sorted=kind.keys_sorted)
    if is_list(kind):
        element = kind.value_field.with_type(_renamed(kind.value_type, names, (*path, "element"), keeps_all))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(element, kind.list_size)
        return pa.large_list(element) if pa.types.is_large_list(kind) else pa.list_(element)
    return kind


class _Retyped:
    """An array under a type that differs in the names of its fields alone, by Arrow's C data interface."""

    def __init__(self, array: pa.Array, kind: pa.DataType):
        self._array, self._kind = array, kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        return self._kind.__arrow_c_schema__(), self._array.__arrow_c_array__()[1]
