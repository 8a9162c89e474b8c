"""Exchanges files of an Iceberg table: pyiceberg writes them, and commits one snapshot that replaces the old ones.

The commit requires that the branch `main` is still at the snapshot that was planned; pyiceberg asserts this in the
catalog. Old delete files do not apply to the new data files, because these have a higher sequence number.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import CommitConflictError, InvalidArgumentError, StorageError
from ..lakes.iceberg import IcebergSource
from ..parquet.leaves import leaf_array
from ..tasks.writer import equal_rows, fitted
from .exchange import LogExchange, LogWriter, refused

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionKey
    from pyiceberg.table import Table

    from ..handle import Handle
    from ..storage import Counted
    from .edits import Edited
    from .rewrite import FileWriter, OldFile

_KEY = "skipstone.key"  # in the summary of a snapshot: the key of the change that created it


class IcebergExchange(LogExchange):
    """Through the catalog by which the table was opened. `added`, `removed`: pyiceberg's data files."""

    def __init__(self, handle: Handle, key: str | None):
        assert isinstance(handle.log, IcebergSource)
        catalog_table = handle.log.catalog_table
        if catalog_table is None:
            raise refused(handle, "only a catalog commits: open it by pyiceberg's Table, or by name= and catalog=")
        self._table, self._source = catalog_table.load(), handle.log
        super().__init__(handle, key)
        if catalog_table.metadata_of(self._table) != handle.log_position:
            raise CommitConflictError(f"{handle.location}: another writer committed just now; call again")
        self._check_supported()

    def _check_supported(self) -> None:
        metadata, reason = self._table.metadata, None
        if metadata.format_version > 2:
            reason = f"pyiceberg writes no row ids, which format version {metadata.format_version} requires"
        elif metadata.properties.get("write.format.default", "parquet").lower() != "parquet":
            reason = "its property write.format.default is not parquet"
        elif set(self._handle.schema.names) != {column.name for column in metadata.schema().columns}:
            reason = "Skipstone does not read all of its columns"
        if reason is not None:
            raise refused(self._handle, reason)

    def _earlier(self, key: str) -> int | None:
        summaries = (snapshot.summary for snapshot in self._table.metadata.snapshots)
        is_there = any(summary is not None and summary.get(_KEY) == key for summary in summaries)
        return self._handle.version if is_there else None

    def prepare(self, storage: Counted, files: Sequence[OldFile]) -> None:
        self._live = self._source.data_files(self._table) if files else {}

    @property
    def open_writer(self) -> Callable[[], FileWriter]:
        return partial(_IcebergWriter, self._table, self._live)

    def remove(self, paths: Sequence[str]) -> None:
        self.removed += [self._live[path] for path in paths]

    def _discard(self) -> None:
        _delete(self._table, self.added)

    def _commit(self) -> None:
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        properties = {} if self._key is None else {_KEY: self._key}
        transaction = _without_retries(self._table).transaction()
        try:
            with transaction.update_snapshot(snapshot_properties=properties).overwrite() as snapshot:
                for file in self.removed:
                    snapshot.delete_data_file(file)
                for file in self.added:
                    snapshot.append_data_file(file)
            transaction.commit_transaction()
        except (CommitFailedException, ValidationException) as error:
            self._discard()
            raise CommitConflictError(
                f"{self._handle.location}: another writer committed a snapshot concurrently, so nothing changed; call "
                f"again ({str(error).splitlines()[0]})"
            ) from None
        except Exception as error:  # a catalog raises what its client does, and the commit may have succeeded
            raise StorageError(
                f"{self._handle.location}: the catalog did not confirm the commit ({type(error).__name__}); look "
                "whether the table has a new snapshot before you call again"
            ) from error


def _without_retries(table: Table) -> Table:
    """Makes pyiceberg commit once: its retry is over a newer snapshot, whose rows the plan did not see. Only this
    object gets the property, not the table."""
    properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


class _IcebergWriter(LogWriter):
    """Writes data files of the table's current schema and partition spec. See `FileWriter`."""

    def __init__(self, table: Table, live: Mapping[str, DataFile]):
        super().__init__()
        self._table, self._live, self._schema, self._spec = table, live, table.schema(), table.spec()
        self._arrow = self._schema.as_arrow()
        self._sources = [self._schema.find_column_name(field.source_id) or "" for field in self._spec.fields]
        self._id, self._numbers = uuid.uuid4(), itertools.count()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            super().__exit__(kind, error, traceback)
        except BaseException as failure:
            kind = type(failure)
            raise
        finally:
            if kind is not None:
                _delete(self._table, self.result)

    def rewrite(self, file: OldFile, edited: Edited, updated: Sequence[str]) -> None:
        old = self._live[file.task.path]
        moves = any(source in updated or source.partition(".")[0] in updated for source in self._sources)
        if old.spec_id == self._spec.spec_id and not moves:
            self._wait(tuple(old.partition[i] for i in range(len(self._sources))), fitted(edited.rows, self._arrow))
        else:
            self.insert(edited.rows)

    def insert(self, rows: pa.Table) -> None:
        from pyiceberg.exceptions import NotInstalledError

        rows = fitted(rows, self._arrow)
        try:
            columns = [self._transformed(rows, number) for number in range(len(self._sources))]
        except (NotInstalledError, NotImplementedError) as error:
            message = str(error).splitlines()[0]
            raise InvalidArgumentError(f"pyiceberg cannot compute partitions by {self._spec}: {message}") from error
        for group in equal_rows(columns, rows.num_rows):
            values = tuple(column[int(group[0])].as_py() for column in columns)
            self._wait(values, rows.take(pa.array(group)) if len(group) < rows.num_rows else rows)

    def _transformed(self, rows: pa.Table, number: int) -> pa.Array | pa.ChunkedArray:
        """The partition values of rows by one field of the partition spec."""
        field = self._spec.fields[number]
        transform = field.transform.pyarrow_transform(self._schema.find_field(field.source_id).field_type)
        return transform(leaf_array(rows, self._sources[number]))

    def _write(self, partition: tuple, rows: pa.Table) -> None:
        from pyiceberg.io.pyarrow import write_file
        from pyiceberg.table import WriteTask

        batches = rows.combine_chunks().to_batches()
        key = self._key_of(partition) if partition else None
        task = WriteTask(self._id, next(self._numbers), self._schema, batches, partition_key=key)
        self.result += write_file(self._table.io, self._table.metadata, iter([task]))

    def _key_of(self, values: tuple) -> PartitionKey:
        from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

        fields = [PartitionFieldValue(field, value) for field, value in zip(self._spec.fields, values, strict=True)]
        return PartitionKey(fields, self._spec, self._schema)


def _delete(table: Table, files: Sequence[DataFile]) -> None:
    for file in files:
        with contextlib.suppress(Exception):  # a file that stays belongs to no snapshot
            table.io.delete(file.file_path)
