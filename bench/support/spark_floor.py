"""What any Python data source of Spark costs: one partition and no rows, the floor of bench/spark.py.

Workers import this module, so it imports nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition


class EmptySource(DataSource):
    """Takes any schema, and has no rows."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def reader(self, schema: object) -> DataSourceReader:
        return _EmptyReader()


class _EmptyReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter(())
