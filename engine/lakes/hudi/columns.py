"""The columns of a Hudi table, from the Avro schema of a commit, and the values in its partition paths.

Hudi's meta fields (`_hoodie_record_key`, ...) are columns of the table if its files contain them. Such a table is
partitioned by `_hoodie_partition_path`, the path of a row's folder. The files contain the partition columns; the path
may contain them transformed (the date of a timestamp). It gives their values only if writers drop them from the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from ....base.arrays import string_array
from ....errors import NotReadableError
from ...hive import NULL_VALUE, partition_texts, typed_texts
from ..column_naming import ColumnNaming, Columns, normalized_schema

PARTITION_PATH = "_hoodie_partition_path"
META_FIELDS = ("_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", PARTITION_PATH, "_hoodie_file_name")
_OPERATION = "_hoodie_operation"
_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}


class HudiColumns:
    """The columns of a table, from its properties and a schema: Avro as JSON, or a base file's Arrow schema.

    Raises NotReadableError for a schema that Skipstone does not support, and for partition columns without values.
    """

    def __init__(self, properties: Mapping[str, str], schema: str | pa.Schema, where: str):
        fields = list(schema) if isinstance(schema, pa.Schema) else _fields(schema, where)
        partitioned_by = properties.get("hoodie.table.partition.fields", "")
        self._fields = [name.split(":")[0] for name in partitioned_by.split(",") if name]
        self.properties = properties
        names = {f.name for f in fields}
        if properties.get("hoodie.populate.meta.fields", "true") != "false":
            meta_fields = [
                *META_FIELDS,
                *([_OPERATION] if is_set(properties, "hoodie.allow.operation.metadata.field") else []),
            ]
            fields = [*(pa.field(name, pa.string()) for name in meta_fields if name not in names), *fields]
        is_dropped = is_set(properties, "hoodie.datasource.write.drop.partition.columns")
        if self._fields and is_dropped:
            self._check_dropped(fields, where)
            partitioning = tuple(self._fields)
        else:
            has_path = self._fields and any(f.name == PARTITION_PATH for f in fields)
            partitioning = (PARTITION_PATH,) if has_path else ()
        arrow = normalized_schema(pa.schema(fields))
        keys = {name: name for name in arrow.names}
        self.columns = Columns(arrow, partitioning, keys, ColumnNaming(dict(keys), types=arrow))

    def _check_dropped(self, fields: Sequence[pa.Field], where: str) -> None:
        generator = self.properties.get("hoodie.table.keygenerator.class", "").rsplit(".", 1)[-1]
        generator = self.properties.get("hoodie.table.keygenerator.type", generator)
        understood = ("SimpleKeyGenerator", "ComplexKeyGenerator", "SIMPLE", "COMPLEX")
        missing = [name for name in self._fields if all(f.name != name for f in fields)]
        if generator not in understood or missing:
            raise NotReadableError(
                f"{where}: its files lack the partition columns {', '.join(self._fields)}, and {generator or 'no'} "
                "key generator is not supported for reading them from the partition paths; read the table with Hudi"
            )

    def partition_texts(self, paths: Sequence[str]) -> pa.Array:
        """Return the partition of each file from the path of its folder. Raises NotReadableError if files lack the
        partition columns and the path does not contain their values."""
        columns = self.columns
        if columns.partitioning in ((), (PARTITION_PATH,)):
            values = [string_array(paths)] if columns.partitioning else []
            return partition_texts(columns.partitioning, values, len(paths))
        parts = {path: self._values(path) for path in dict.fromkeys(paths)}
        typed = []
        for i, name in enumerate(columns.partitioning):
            texts = [parts[path][i] for path in paths]
            try:
                typed.append(typed_texts(texts, columns.schema.field(name).type))
            except (pa.ArrowException, ValueError) as error:
                raise NotReadableError(f"partition column {name!r}: {str(error).splitlines()[0]}") from error
        return partition_texts(columns.partitioning, typed, len(paths))

    def _values(self, path: str) -> list[str | None]:
        names, levels = self._fields, path.split("/")
        if len(names) == 1:
            levels = [path]
        if len(levels) != len(names):
            raise NotReadableError(f"{path}: a partition path that does not have {len(names)} levels, as {names}")
        if is_set(self.properties, "hoodie.datasource.write.hive_style_partitioning"):
            if any(not level.startswith(f"{name}=") for name, level in zip(names, levels, strict=True)):
                raise NotReadableError(f"{path}: a partition path that does not name {', '.join(names)}")
            levels = [level[len(name) + 1 :] for name, level in zip(names, levels, strict=True)]
        if is_set(self.properties, "hoodie.datasource.write.partitionpath.urlencode"):
            levels = [unquote(level) for level in levels]
        return [None if level == NULL_VALUE else level for level in levels]


def is_set(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "false").lower() == "true"


def _fields(schema: str, where: str) -> list[pa.Field]:
    try:
        record = json.loads(schema)
        arrow_type = _Avro().type_of(record)
        if not pa.types.is_struct(arrow_type):
            raise ValueError("it is no record")
        return list(arrow_type)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise NotReadableError(f"{where}: its schema is not understood ({error}); read the table with Hudi") from error


class _Avro:
    """Converts Avro types to Arrow types (the Avro specification, "Schema Declaration")."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType] = {}

    def type_of(self, schema: Any, namespace: str = "") -> pa.DataType:
        if isinstance(schema, list):
            kinds = [one for one in schema if one != "null"]
            if len(kinds) != 1:
                raise ValueError(f"a union of {len(kinds)} types")
            return self.type_of(kinds[0], namespace)
        if isinstance(schema, str):
            if schema in _PRIMITIVES and schema != "enum":
                return _PRIMITIVES[schema]
            return self._named.get(schema) or self._named[f"{namespace}.{schema}"]
        return self._of_object(schema, namespace)

    def _of_object(self, schema: dict, namespace: str) -> pa.DataType:
        kind, logical = schema["type"], schema.get("logicalType")
        if not isinstance(kind, str):
            return self.type_of(kind, namespace)
        full = ""
        if kind in ("record", "fixed", "enum"):
            namespace = schema.get("namespace", namespace)
            full = schema["name"] if "." in schema["name"] else f"{namespace}.{schema['name']}"
            namespace = full.rpartition(".")[0]
        if logical == "decimal":
            arrow_type: pa.DataType = pa.decimal128(schema["precision"], schema.get("scale", 0))
        elif logical in _LOGICAL:
            arrow_type = _LOGICAL[logical]
        elif kind == "record":
            arrow_type = pa.struct([pa.field(f["name"], self.type_of(f["type"], namespace)) for f in schema["fields"]])
        elif kind == "array":
            arrow_type = pa.list_(self.type_of(schema["items"], namespace))
        elif kind == "map":
            arrow_type = pa.map_(pa.string(), self.type_of(schema["values"], namespace))
        elif kind == "fixed":
            arrow_type = pa.binary(schema["size"])
        else:
            arrow_type = _PRIMITIVES[kind]
        if full:
            self._named[full] = arrow_type
        return arrow_type
