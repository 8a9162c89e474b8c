"""Few rows of a local Parquet file by position, read by DuckDB: an optional reader, in place of pyarrow's.

DuckDB is asked for values by `file_row_number` and for nothing else: what matches is decided by our own evaluator. It
reads columns whose values it gives back as they are; others, and whatever it refuses, are left to pyarrow.

One connection serves the process. It keeps nothing of the files: DuckDB knows a file again by its time of change, which
says less than the identity that we compare.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...arrays import to_numpy
from ...errors import InvalidArgumentError
from ..storage.places import is_uri

if TYPE_CHECKING:
    from .file_reader import FileReader

READERS = ("pyarrow", "duckdb")
_POSITION = "file_row_number"
_PATTERN = frozenset("*?[]{}\\")  # DuckDB takes such a path for many
_SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_file_cache": "false",
    "TimeZone": "UTC",
}
_connections: dict[int, Any] = {}  # by process: a fork must not touch its parent's


def check_reader(reader: object, location: str) -> None:
    """Raises InvalidArgumentError for a reader that there is not, or that cannot read files which lie there."""
    if reader not in READERS:
        raise InvalidArgumentError(f"reader= is one of {', '.join(READERS)}, not {reader!r}")
    if reader == "duckdb":
        _duckdb()
        if is_uri(location):
            raise InvalidArgumentError(f'reader="duckdb" reads local files, not {location}: use reader="pyarrow"')


def _duckdb() -> ModuleType:
    try:
        import duckdb
    except ImportError as error:
        raise InvalidArgumentError(
            'reader="duckdb" needs DuckDB: pip install "skipstone[duckdb]", or use reader="pyarrow"'
        ) from error
    return duckdb


def rows_by_duckdb(reader: FileReader, positions: np.ndarray, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """Rows of a file, by their positions in it (ascending, at least one), in those columns (by the file's own names)
    that DuckDB reads as they are."""
    path = reader.storage.open_file(reader.entry)
    if not isinstance(path, str) or _PATTERN & set(path):
        return {}
    served = served_columns(reader.file, columns)
    if not served:
        return {}
    duckdb = _duckdb()
    places = ", ".join(map(str, positions.tolist()))
    names = ", ".join(_quoted(name) for name in served)
    query = (
        f"SELECT {_POSITION}, {names} FROM read_parquet({_text(path)}, {_POSITION} = true, hive_partitioning = false) "
        f"WHERE {_POSITION} IN ({places}) ORDER BY {_POSITION}"
    )
    cursor = _cursor(duckdb)
    try:
        rows = cursor.sql(query).to_arrow_table()
    except (duckdb.Error, pa.ArrowException, ValueError):  # a damaged file, too: pyarrow says what is wrong with it
        return {}
    finally:
        cursor.close()
    if rows.num_rows != len(positions) or not np.array_equal(to_numpy(rows.column(0)), positions):
        return {}
    return {name: rows.column(i + 1) for i, name in enumerate(served)}


def served_columns(file: Any, columns: Sequence[str]) -> list[str]:
    """Those of a file's columns whose values DuckDB gives back as they are."""
    schema = file.arrow_schema
    folded = [name.casefold() for name in schema.names]
    if len(set(folded)) < len(folded) or _POSITION in folded or "" in folded or any("\0" in name for name in folded):
        return []  # names that DuckDB takes for one
    leaves = map(file.metadata.schema.column, range(file.metadata.num_columns))
    old = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    return [name for name in columns if name not in old and _is_served(schema.field(name).type)]


def _is_served(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_timestamp(kind):
        return kind.unit == "us"
    if isinstance(kind, pa.BaseExtensionType):
        return False
    of = pa.types
    is_number = of.is_integer(kind) or of.is_float32(kind) or of.is_float64(kind) or of.is_decimal128(kind)
    is_text = of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind)
    is_binary = of.is_binary(kind) or of.is_large_binary(kind) or of.is_binary_view(kind)
    return is_number or is_text or is_binary or of.is_boolean(kind) or of.is_date32(kind)


def _cursor(duckdb: ModuleType) -> Any:
    connection = _connections.get(os.getpid())
    if connection is None:
        connection = duckdb.connect(":memory:")
        connection.execute(f"SET threads = {min(8, os.cpu_count() or 1)}")
        for name, value in _SETTINGS.items():
            try:
                connection.execute(f"SET {name} = {_text(value)}")
            except duckdb.Error:  # a version that has no such thing to be turned off
                continue
        connection = _connections.setdefault(os.getpid(), connection)  # where another thread was first, its own
    return connection.cursor()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
