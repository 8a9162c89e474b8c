"""Who else looks for a needle: engines over the same files, with Parquet's own filters and without, and over a Delta
table of them. Each takes a predicate and gives whole rows."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

Where = tuple[str, list]  # a column, and the values one of which is sought
Places = dict[str, list[int]]  # path -> positions of rows
_DELTA_TYPES = {"int64": "long", "int32": "integer", "date32[day]": "date"}
_STATS_OF = ("l_orderkey", "l_partkey", "event_id")


def _sql(where: Where) -> str:
    column, values = where
    texts = [f"'{value}'" if isinstance(value, str) else str(value) for value in values]
    return f"{column} = {texts[0]}" if len(texts) == 1 else f"{column} IN ({', '.join(texts)})"


def _names(columns: Sequence[str] | None) -> str:
    return "*" if columns is None else ", ".join(columns)


class DuckDB:
    """DuckDB over a folder of Parquet files: by a predicate, or by positions that somebody else knew."""

    def __init__(self, lake: Path):
        self._connection, self._lake = duckdb.connect(), lake

    def ask(self, where: Where, columns: Sequence[str] | None = None) -> pa.Table:
        query = f"SELECT {_names(columns)} FROM read_parquet('{self._lake}/*.parquet') WHERE {_sql(where)}"
        return self._connection.sql(query).to_arrow_table()

    def rows(self, places: Places, columns: Sequence[str] | None = None) -> pa.Table:
        """The floor: somebody knows the positions of the rows."""
        parts = (
            f"SELECT {_names(columns)} FROM read_parquet('{path}', file_row_number = true) "
            f"WHERE file_row_number IN ({', '.join(map(str, rows))})"
            for path, rows in places.items()
        )
        table = self._connection.sql(" UNION ALL ".join(parts)).to_arrow_table()
        return table.drop_columns(["file_row_number"]) if "file_row_number" in table.column_names else table

    def places(self, where: Where) -> Places:
        """Where the rows lie."""
        query = (
            "SELECT filename, file_row_number FROM "
            f"read_parquet('{self._lake}/*.parquet', filename = true, file_row_number = true) WHERE {_sql(where)}"
        )
        places: Places = {}
        for path, row in self._connection.sql(query).fetchall():
            places.setdefault(path, []).append(row)
        return places


def ask_polars(lake: Path, where: Where, columns: Sequence[str] | None = None) -> pa.Table:
    rows = polars.scan_parquet(f"{lake}/*.parquet").filter(polars.col(where[0]).is_in(where[1]))
    return (rows if columns is None else rows.select(columns)).collect().to_arrow()


class Delta:
    """deltalake's query engine over a Delta table of the same files."""

    def __init__(self, folder: Path):
        self._folder = folder

    def ask(self, where: Where, columns: Sequence[str] | None = None) -> pa.Table:
        builder = QueryBuilder().register("lake", DeltaTable(str(self._folder)))
        return pa.table(builder.execute(f"SELECT {_names(columns)} FROM lake WHERE {_sql(where)}").read_all())


def write_log(lake: Path, folder: Path) -> None:
    """A Delta table of the files of a lake, which are linked, not copied."""
    (folder / "_delta_log").mkdir(parents=True)
    paths = sorted(lake.glob("*.parquet"))
    fields = [
        {"name": field.name, "type": _delta_type(field.type), "nullable": True, "metadata": {}}
        for field in pq.read_schema(paths[0])
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    meta = {"id": "needle", "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
    actions: list[dict] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {**meta, "partitionColumns": [], "configuration": {}, "createdTime": 0}},
    ]
    for path in paths:
        os.symlink(path, folder / path.name)
        add = {"path": path.name, "partitionValues": {}, "size": path.stat().st_size, "modificationTime": 0}
        actions.append({"add": {**add, "dataChange": True, "stats": json.dumps(_stats(path))}})
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (folder / "_delta_log" / f"{0:020d}.json").write_text(text, encoding="utf-8")


def _delta_type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _DELTA_TYPES.get(str(kind), "string")


def _stats(path: Path) -> dict[str, Any]:
    metadata = pq.read_metadata(path)
    ends: dict[str, list[tuple]] = {}
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for i in range(metadata.num_columns):
            chunk = row_group.column(i)
            if chunk.path_in_schema in _STATS_OF:
                ends.setdefault(chunk.path_in_schema, []).append((chunk.statistics.min, chunk.statistics.max))
    return {
        "numRecords": metadata.num_rows,
        "minValues": {name: min(low for low, _ in bounds) for name, bounds in ends.items()},
        "maxValues": {name: max(high for _, high in bounds) for name, bounds in ends.items()},
        "nullCount": dict.fromkeys(ends, 0),
    }


@contextmanager
def spark_session(folder: Path) -> Iterator[Any]:
    """A local Spark, quiet."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[*]").appName("needle")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def ask_spark(session: Any, lake: Path) -> Callable[..., pa.Table]:
    """Spark's own Parquet reader, over a DataFrame that is there already."""
    rows = session.read.parquet(str(lake))

    def ask(where: Where, columns: Sequence[str] | None = None) -> pa.Table:
        matching = rows.where(_sql(where))
        return (matching if columns is None else matching.select(*columns)).toArrow()

    return ask
