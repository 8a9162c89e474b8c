"""Leaves of a schema: their dotted paths, their types, and their values in rows."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ... import canon
from ...errors import SchemaError


def leaf_array(table: pa.Table, path: str) -> pa.Array:
    """The values of a leaf as one array, dictionaries decoded; null where a struct above it is null.

    A column whose own name is the whole path comes first; else dots step into structs. Raises KeyError where there is
    no such leaf.
    """
    name = top_level(table.schema, path)
    rest = path[len(name) + 1 :]
    array = canon.flatten(table.column(name))
    while rest:
        name, _, rest = _step(array.type, rest)
        array = pc.struct_field(array, [array.type.get_field_index(name)])  # a name may hold dots
    return canon.flatten(array)


def nested_column(table: pa.Table, path: str) -> pa.ChunkedArray:
    """The values of a column, or of a field of structs by dotted path, as they are; null where a struct above it is
    null. Raises KeyError where there is none."""
    name = top_level(table.schema, path)
    column, rest = table.column(name), path[len(name) + 1 :]
    while rest:
        child, _, rest = _step(column.type, rest)
        column = pc.struct_field(column, [column.type.get_field_index(child)])
    return column


def _step(kind: pa.DataType, rest: str) -> tuple[str, str, str]:
    """(child, "", what is left): the longest child name that the path begins with, since names may hold dots."""
    if pa.types.is_struct(kind):
        names = {kind.field(i).name for i in range(kind.num_fields)}
        parts = rest.split(".")
        for end in range(len(parts), 0, -1):
            if ".".join(parts[:end]) in names:
                return ".".join(parts[:end]), "", ".".join(parts[end:])
    raise KeyError(rest)


def top_level(schema: pa.Schema, path: str) -> str:
    """The top-level column that a leaf's dotted path lies in. Raises KeyError where there is none."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        if schema.get_field_index(name) >= 0:
            return name
    raise KeyError(path)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema in which columns of the same values have the same type: no dictionaries, views, "not null", metadata.
    Raises SchemaError for a type that Python cannot hash, as those may be that other packages register."""
    for field in schema:
        try:
            hash(field)
        except TypeError:
            raise SchemaError(
                f"column {field.name!r} is {field.type}, a registered type without __hash__: define that first"
            ) from None
    return pa.schema([pa.field(f.name, plain_type(f.type)) for f in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that `plain_schema` gives a column of a type."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def leaf_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """The type of each leaf that can be indexed, by dotted path through structs; where two share a path, neither."""
    types: dict[str, pa.DataType] = {}
    twice: set[str] = set()
    for path, kind in leaves_of(schema):
        if path is None or kind is None or canon.order_class(kind) is None:
            continue
        if path in types:
            twice.add(path)
        types[path] = plain_type(kind)
    return {path: kind for path, kind in types.items() if path not in twice}


def leaf_position(schema: pa.Schema, count: int, path: str) -> tuple[int, pa.DataType] | None:
    """(which of a file's `count` Parquet leaves has that path, its Arrow type); None where that is not certain."""
    leaves = list(leaves_of(schema))
    matching = [(index, kind) for index, (name, kind) in enumerate(leaves) if name == path and kind is not None]
    return matching[0] if len(matching) == 1 and len(leaves) == count else None


def leaf_type(schema: pa.Schema, path: str) -> pa.DataType | None:
    """The type of one leaf, as `leaf_types` has it, found without walking the others; None where it is no such leaf."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        index = schema.get_field_index(".".join(parts[:end]))
        if index >= 0 and path:
            return _leaf_below(schema.field(index).type, parts[end:])
    return None


def ordered_type(schema: pa.Schema, column: str) -> pa.DataType:
    """The type of a column, or of a field of a struct by dotted path, whose values have an order. Raises SchemaError
    for one that is not there, or has none."""
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
    """(dotted path, type) of each Parquet leaf, in order; the path is None below a list or a map, and where a name in
    it is empty: no path leads there, and "" stands for row groups in an index."""
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
