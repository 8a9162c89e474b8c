"""The columns of an Iceberg table: field ids, defaults, and partition columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .column_naming import ColumnNaming, Columns, normalized_schema

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import StaticTable


_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def columns_of(table: StaticTable, partition_ids: Iterable[int]) -> Columns:
    """Return the table's current columns."""
    schema = table.schema()
    names = {field.field_id: field.name for field in schema.fields}
    arrow = normalized_schema(schema.as_arrow())
    ids = _paths(schema)
    defaults, nested_defaults = {}, set()
    for number, path in ids.items():
        default = getattr(schema.find_field(number), "initial_default", None)
        if default is None:
            continue
        if number in names:
            defaults[path] = pa.array([default], arrow.field(path).type)[0]
        else:
            nested_defaults.add(number)
    mapping = table.name_mapping()
    fallback = None
    if mapping is not None:
        fallback = dict(_mapped_paths(mapping.root, ()))
    physical = {name: name for name in arrow.names} if _never_renamed(table) and not nested_defaults else None
    return Columns(
        arrow,
        tuple(names[number] for number in partition_ids),
        {name: str(number) for number, name in names.items()},
        ColumnNaming(physical, ids, fallback, nested_defaults=frozenset(nested_defaults)),
        defaults,
        {str(number): _inner_path(path, names) for number, path in ids.items() if number not in names},
        table.metadata.last_column_id,
    )


def _mapped_paths(fields: Iterable[Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield (path in a file, field id) of a mapping of names."""
    for field in fields:
        for name in field.names:
            if field.field_id is not None:
                yield (*above, name), field.field_id
            yield from _mapped_paths(field.fields, (*above, name))


def _inner_path(path: str, names: dict[int, str]) -> str:
    """Return the dotted path of a field within a column, with the column's id instead of its name."""
    column = max((n for n in names if path.startswith(f"{names[n]}.")), key=lambda n: len(names[n]))
    return f"{column}{path[len(names[column]) :]}"


def _paths(schema: Schema) -> dict[int, str]:
    """Return the dotted path of each field by its id."""
    from pyiceberg.schema import index_name_by_id

    return dict(index_name_by_id(schema))


def _never_renamed(table: StaticTable) -> bool:
    """Return whether every file has the table's names: no earlier schema had another name for a field, no schema is
    missing, and no name has characters that Iceberg writers replace (`user name` is `user_x20name` in a file)."""
    from pyiceberg.schema import index_by_id

    if table.name_mapping() is not None:
        return False
    schemas = table.schemas()
    if set(schemas) != set(range(max(schemas) + 1)):
        return False
    fields = (field for schema in schemas.values() for field in index_by_id(schema).values())
    if not all(_PLAIN_NAME.fullmatch(field.name) for field in fields):
        return False
    ids: dict[str, int] = {}
    names: dict[int, str] = {}
    for schema in schemas.values():
        for number, path in _paths(schema).items():
            if ids.setdefault(path, number) != number or names.setdefault(number, path) != path:
                return False
    return True


def partition_ids(table: StaticTable, spec_ids: Iterable[int]) -> tuple[int, ...]:
    """Return the ids of the columns with an identity transform in all these specs, if their values have a text form."""
    from pyiceberg.transforms import IdentityTransform

    top = {field.field_id: field for field in table.schema().fields}
    common: list[int] | None = None
    for number in sorted(spec_ids):
        sources = [f.source_id for f in table.specs()[number].fields if isinstance(f.transform, IdentityTransform)]
        common = sources if common is None else [source for source in common if source in sources]
    arrow = normalized_schema(table.schema().as_arrow())
    usable = tuple(n for n in common or () if n in top and _has_text_form(arrow.field(top[n].name).type))
    return usable if len(usable) < len(top) else ()  # a table needs another column


def log_only_columns(table: StaticTable, partition_ids: Iterable[int]) -> dict[int, list[str] | None]:
    """For each spec, return the other columns with an identity transform, or None. Files that were migrated from a Hive
    table may lack them."""
    from pyiceberg.transforms import IdentityTransform

    others = {f.field_id: f.name for f in table.schema().fields if f.field_id not in set(partition_ids)}
    by_spec = {}
    for number, spec in table.specs().items():
        sources = [f.source_id for f in spec.fields if isinstance(f.transform, IdentityTransform)]
        by_spec[number] = [others[source] for source in sources if source in others] or None
    return by_spec


def unpartitioned_specs(table: StaticTable) -> set[int]:
    """Return the ids of the specs without a partition: all their transforms, if any, are void."""
    from pyiceberg.transforms import VoidTransform

    return {n for n, spec in table.specs().items() if all(isinstance(f.transform, VoidTransform) for f in spec.fields)}


def _has_text_form(dtype: pa.DataType) -> bool:
    """Exclude doubles: pyiceberg 0.12 reads those in manifests as 32-bit floats."""
    tests = (
        pa.types.is_integer,
        pa.types.is_float32,
        pa.types.is_boolean,
        pa.types.is_decimal,
        pa.types.is_date,
        pa.types.is_timestamp,
        pa.types.is_string,
    )
    return any(test(dtype) for test in tests)


def partition_value(table: StaticTable, file: Any, source_id: int) -> Any:
    """Return a file's partition value of a column with an identity transform."""
    from pyiceberg.transforms import IdentityTransform

    fields = table.specs()[file.spec_id].fields
    position = next(
        i for i, f in enumerate(fields) if f.source_id == source_id and isinstance(f.transform, IdentityTransform)
    )
    return file.partition[position]


def typed_values(values: list, dtype: pa.DataType) -> pa.Array:
    """Convert partition values of manifests, which store dates and times as days and microseconds since 1970."""
    if pa.types.is_date(dtype) and all(v is None or isinstance(v, int) for v in values):
        return pa.array(values, pa.int32()).cast(dtype)
    if pa.types.is_timestamp(dtype) and all(v is None or isinstance(v, int) for v in values):
        return pa.array(values, pa.int64()).cast(dtype)
    return pa.array(values, dtype)
