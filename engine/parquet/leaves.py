"""Leaves of a schema: their dotted paths, their types, and their values in rows. Also fields within columns whose names
differ between files and the table, as logs with field ids or mapped names allow.

A rename maps the path of a field in the file, from the column down, to the field's name in the table. The steps through
lists and maps are "element", "key" and "value". The name is None if the table lacks the field, even if the table has
another of that name. The path of a column itself maps to the reason why the column cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import field_index
from ...errors import SchemaError
from ..predicates.coerce import is_list

UNTRUSTED = b"skipstone.untrusted"  # in the metadata of a file's schema: statistics in its footer contradict themselves


def leaf_array(table: pa.Table, path: str) -> pa.Array:
    """Return the values of a leaf as one array, dictionaries decoded; null if a struct above it is null.

    A column whose own name is the whole path has priority; else dots step into structs. Raises KeyError if there is no
    such leaf.
    """
    return canon.flatten(nested_column(table, path))


def nested_column(table: pa.Table, path: str) -> pa.ChunkedArray:
    """Return the values of a column, or of a field of structs by dotted path, unchanged; null if a struct above it is
    null. Raise KeyError if there is none."""
    name, rest = _longest_name(path, lambda name: field_index(table.schema, name) >= 0)
    column = table.column(name)
    while rest:
        fields = list(column.type) if pa.types.is_struct(column.type) else []
        child, rest = _longest_name(rest, {field.name for field in fields}.__contains__)
        column = pc.struct_field(column, [column.type.get_field_index(child)])  # a name may contain dots
    return column


def top_level(schema: pa.Schema, path: str) -> str:
    """Return the top-level column of a leaf's dotted path. Raise KeyError if there is none."""
    return _longest_name(path, lambda name: field_index(schema, name) >= 0)[0]


def _longest_name(path: str, is_name: Callable[[str], bool]) -> tuple[str, str]:
    """Return (the longest name with which the path begins, the rest of it). Raise KeyError if there is none."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        if is_name(name := ".".join(parts[:end])):
            return name, ".".join(parts[end:])
    raise KeyError(path)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which columns of the same values have the same type: without dictionaries, views, "not null"
    and metadata. Raise SchemaError for a type that Python cannot hash: another package may have registered it."""
    for field in schema:
        try:
            hash(field)
        except TypeError:
            raise SchemaError(
                f"column {field.name!r} is {field.type}, a registered type without __hash__: define that first"
            ) from None
    return pa.schema([pa.field(f.name, plain_type(f.type)) for f in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that `plain_schema` gives a column of a type."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    return _type_without_views(kind)


def without_views(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return a column in which no string or binary, at any level, is a view: Arrow takes no rows of these."""
    kind = _type_without_views(column.type)
    return column if kind == column.type else column.cast(kind)


def _type_without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _type_without_views(kind.value_type), kind.ordered)
    within = children_of(kind) if kind.num_fields else []
    return _over(kind, [field.with_type(_type_without_views(field.type)) for _, field in within])


def _over(kind: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    """Return a type with these fields in place of its `children_of`."""
    if not fields:
        return kind
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(*fields, keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    return pa.large_list(fields[0]) if pa.types.is_large_list(kind) else pa.list_(fields[0])


def with_optional_fields(field: pa.Field, read: Collection[str], path: str = "") -> pa.Field:
    """Return a struct in which only the fields at the dotted paths `read` have values: it requires no other field."""
    path = path or field.name
    if path in read or not pa.types.is_struct(field.type):
        return field
    fields = [with_optional_fields(each, read, f"{path}.{each.name}").with_nullable(True) for each in field.type]
    return field.with_type(pa.struct(fields))


def leaf_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the type of each leaf that can be indexed, by dotted path through structs, unless two leaves share it."""
    types: dict[str, pa.DataType] = {}
    twice: set[str] = set()
    for path, kind in leaves_of(schema):
        if path is None or kind is None or canon.order_class(kind) is None:
            continue
        if path in types:
            twice.add(path)
        types[path] = plain_type(kind)
    return {path: kind for path, kind in types.items() if path not in twice}


def leaf_type(schema: pa.Schema, path: str) -> pa.DataType | None:
    """Return the type of one leaf, as in `leaf_types`, without walking the others; None if there is no such leaf."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        index = field_index(schema, ".".join(parts[:end]))
        if index >= 0 and path:
            return _leaf_below(schema.field(index).type, parts[end:])
    return None


def ordered_type(schema: pa.Schema, column: str) -> pa.DataType:
    """Return the type of a column, or of a field of a struct by dotted path, whose values have an order. Raise
    SchemaError if it does not exist, or has no order."""
    kind = leaf_type(schema, column)
    if kind is not None:
        return kind
    try:
        declared = schema.field(top_level(schema, column)).type
    except KeyError:
        raise SchemaError(f"no column {column!r}; the table's columns are {', '.join(schema.names)}") from None
    raise SchemaError(f"column {column!r} ({declared}) has no least and no greatest value: its type has no order")


def _leaf_below(kind: pa.DataType, names: list[str]) -> pa.DataType | None:
    for name in names:
        if not name or not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return None if canon.order_class(kind) is None else plain_type(kind)


def leaves_of(schema: pa.Schema) -> Iterator[tuple[str | None, pa.DataType | None]]:
    """Yield (dotted path, type) of each Parquet leaf, in order. The path is None below a list or a map, and if a name
    in it is empty: no path leads there, and "" means row groups in an index."""
    for field in schema:
        yield from _walk(field.name or None, field.type)


def _walk(path: str | None, kind: pa.DataType) -> Iterator[tuple[str | None, pa.DataType | None]]:
    if isinstance(kind, pa.BaseExtensionType) and canon.order_class(kind) is None:
        yield from _walk(None, kind.storage_type)
    elif pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            child = kind.field(i)
            yield from _walk(f"{path}.{child.name}" if path and child.name else None, child.type)
    elif pa.types.is_map(kind):
        yield from _walk(None, kind.key_type)
        yield from _walk(None, kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _walk(None, kind.value_type)
    else:
        yield path, kind


NestedNames: TypeAlias = Mapping[tuple[str, ...], str | None]


def children_of(kind: pa.DataType) -> list[tuple[str, pa.Field]]:
    """Return (step of the path, field) of each field directly within a type."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        return [(field.name, field) for field in kind]
    if pa.types.is_map(kind):
        return [("key", kind.key_field), ("value", kind.item_field)]
    return [("element", kind.value_field)] if is_list(kind) else []


def has_field(kind: pa.DataType, path: str) -> bool:
    """Return whether a type contains a field at a dotted path."""
    return any(
        path == step or (path.startswith(f"{step}.") and has_field(field.type, path[len(step) + 1 :]))
        for step, field in children_of(kind)
    )


def in_table_names(schema: pa.Schema, names: NestedNames) -> pa.Schema:
    """Return the part of a file's schema that the table has, with the table's names of fields within columns; the
    columns themselves keep the file's names."""
    return _renamed_schema(schema, names, keeps_all=False) if names else schema


def column_in_table_names(column: pa.ChunkedArray, file_name: str, names: NestedNames) -> pa.ChunkedArray:
    """Return a column named `file_name` in files, with the table's names of the fields within; copy no value."""
    kind = _renamed(column.type, names, (file_name,), True) if names else column.type
    if kind == column.type:
        return column
    return pa.chunked_array([pa.array(_Retyped(chunk, kind)) for chunk in column.chunks], kind)


def leaf_names(schema: pa.Schema, names: NestedNames) -> dict[str, str]:
    """Return {dotted path of a leaf in the file: the same path with the table's names within its column}."""
    pairs = zip(leaves_of(schema), leaves_of(_renamed_schema(schema, names, keeps_all=True)), strict=True)
    return {path: shown for (path, _), (shown, _) in pairs if path is not None and shown is not None}


def _renamed_schema(schema: pa.Schema, names: NestedNames, *, keeps_all: bool) -> pa.Schema:
    return pa.schema([field.with_type(_renamed(field.type, names, (field.name,), keeps_all)) for field in schema])


def _renamed(kind: pa.DataType, names: NestedNames, path: tuple[str, ...], keeps_all: bool) -> pa.DataType:
    """`keeps_all`: fields that the table lacks stay, under names that no field of a table has."""
    if pa.types.is_struct(kind):
        fields = []
        for position, field in enumerate(kind):
            below = (*path, field.name)
            name = names.get(below, field.name)
            if keeps_all or name is not None:
                shown = f"\x01{position}" if name is None else name
                fields.append(field.with_name(shown).with_type(_renamed(field.type, names, below, keeps_all)))
        return pa.struct(fields)
    within = children_of(kind) if kind.num_fields else []  # an extension type has none
    return _over(kind, [f.with_type(_renamed(f.type, names, (*path, step), keeps_all)) for step, f in within])


class _Retyped:
    """An array under a type that differs only in the names of its fields, through Arrow's C data interface."""

    def __init__(self, array: pa.Array, kind: pa.DataType):
        self._array, self._kind = array, kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        return self._kind.__arrow_c_schema__(), self._array.__arrow_c_array__()[1]
