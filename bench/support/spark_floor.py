"""What any Python data source of Spark costs, whatever it reads: sources without a file, the floor of bench/spark.py.

    empty    one partition, no rows: planning, the tasks, and Spark's own work
    memory   `partitions` that yield one batch over and over, `rows` together: and the way of rows into the JVM

Workers import this module, so it imports nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa


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

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())


class MemorySource(DataSource):
    """Options: `batch`, an Arrow file of one batch, which each task reads once; `partitions`; `rows`."""

    @classmethod
    def name(cls) -> str:
        return "memory"

    def reader(self, schema: object) -> DataSourceReader:
        return _MemoryReader(self.options["batch"], int(self.options["partitions"]), int(self.options["rows"]))


class _MemoryReader(DataSourceReader):
    def __init__(self, path: str, partitions: int, rows: int):
        self._path, self._partitions, self._rows = path, partitions, rows

    def partitions(self) -> list[InputPartition]:
        each, more = divmod(self._rows, self._partitions)
        return [InputPartition(each + (number < more)) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with pa.OSFile(self._path) as file, pa.ipc.open_file(file) as batches:
            batch = batches.get_batch(0)
        left: int = partition.value
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows
