"""Taking one leaf, by its dotted path, out of rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ... import canon


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
