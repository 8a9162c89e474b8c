"""The data source "skipstone": plans on the driver, hands out partitions that executors can read by themselves.

PySpark makes the source in one process, plans in another and reads in more, passing pickles on. So the version is
pinned when the source is made, and what planning finds travels in the partitions: the reader is pickled before
`partitions()` runs, and what that would keep in it never arrives. Each process imports no more than its part.

`pushFilters` is left alone on purpose: see the package.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ..errors import InvalidArgumentError, NotATableError
from .request import Request

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ..engine.scan.tasks import ReadContext
    from ..engine.table import Table
    from .packing import Share
    from .writer import SkipstoneWriter


class SkipstoneSource(DataSource):
    """`spark.read.format("skipstone")`, `df.write.format("skipstone")`. Its options: `request`, `write_request`.

    Without option `version` the latest is pinned here: Spark makes the source at load(), but, where the user gives a
    schema, only when it is first read. `scan` names the version.
    """

    def __init__(self, options: dict[str, str]):
        super().__init__(options)
        self._request: Request | None = None
        try:
            self._request = _pinned(Request.from_options(options))
        except (InvalidArgumentError, NotATableError) as error:
            self._refusal = error  # of a load: a save has other options, and may be the first to the table

    @classmethod
    def name(cls) -> str:
        return "skipstone"

    @property
    def version(self) -> int:
        """The version that is read: the one that was asked for, or pinned."""
        version = self._asked().version
        assert version is not None
        return version

    def schema(self) -> StructType:
        """The columns of the pinned version, all or those that option columns names. Raises SchemaError for one that
        Spark has no type for, or that is not there."""
        from .translate import spark_schema, wire_schema

        request = self._asked()
        with _open(request) as table:
            names = None if request.columns is None else table.scan(columns=request.columns).columns
            return spark_schema(wire_schema(table.schema, names))

    def reader(self, schema: StructType) -> SkipstoneReader:
        return SkipstoneReader(self._asked(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> SkipstoneWriter:
        """Opens the table at its latest version, or makes it; raises what is known to be wrong before any task runs."""
        from .write_request import WriteRequest
        from .writer import writer_of

        return writer_of(WriteRequest.from_options(self.options), schema, overwrite)

    def _asked(self) -> Request:
        if self._request is None:
            raise self._refusal
        return self._request


class FilePartition(InputPartition):
    """What one task of Spark reads: shares of files, what they are read with, and the types to yield."""

    def __init__(self, context: ReadContext, wire: pa.Schema, shares: list[Share]):
        super().__init__(None)
        self.context, self.wire, self.shares = context, wire, shares


class SkipstoneReader(DataSourceReader):
    """Reads the columns that a Spark schema names. Small: it is pickled into every task."""

    def __init__(self, request: Request, schema: StructType):
        self._request, self._schema = request, schema

    def partitions(self) -> list[InputPartition]:
        """Runs on the driver: the files that may hold a match, packed. One empty partition where there are none."""
        from .packing import pack
        from .translate import check_spark_schema, wire_schema

        with _open(self._request) as table:
            plan = table.scan(self._request.predicate_node(), self._schema.names)
            wire = wire_schema(table.schema, plan.columns)
            check_spark_schema(self._schema, wire)
            packs = pack(plan.planning.readable_tasks(), self._request.parallelism or os.cpu_count() or 1)
            return [FilePartition(plan.planning.context, wire, shares) for shares in packs or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in an executor."""
        from .executor import read_shares

        assert isinstance(partition, FilePartition)
        return read_shares(partition.context, partition.wire, partition.shares)


def _pinned(request: Request) -> Request:
    if request.version is not None:
        return request
    with _open(request) as table:
        return replace(request, version=table.version, log_position=table.log_position)


def _open(request: Request) -> Table:
    from ..engine.open import open_pair

    return open_pair(request.path, request.version, request.log_position, request.index_path, request.storage_options)
