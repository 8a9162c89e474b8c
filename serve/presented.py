"""One version of a table as an Iceberg table: its metadata, and the columns by which filters prune.

Iceberg tables    their own metadata file, unchanged: the same ids, snapshots and manifests
all others        metadata from Skipstone's versions: a snapshot per version of a directory, whose number is its id,
                  or per state of the log from which a version was created; the newest `SNAPSHOTS_MAX`
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema, index_name_by_id
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.transforms import DayTransform
from pyiceberg.types import DateType, IcebergType, PrimitiveType

from ..base.caching import cached_property
from ..engine.lakes import DELTA, DIRECTORY, ICEBERG
from ..engine.parquet.leaves import leaf_types
from ..engine.state import Instant
from ..engine.state.paths import SERVED_FOLDER
from ..engine.table import Table
from .expressions import FilterColumn
from .schemas import NameMapping, iceberg_schema

SNAPSHOTS_MAX = 100
NULLS_MAX = 4  # the first partition columns, which may be null in plans
PLANNING = {"scan-planning-mode": "server"}
_UNWRITTEN = "not-written-see-the-table-property-skipstone.manifests.avro"
Snapshot = tuple[dict[str, Any], Schema]  # as the metadata contains it, and its schema


class IcebergView:
    """A table at the version that a handle sees. Threads may share one.

    instant       the version, with the newer state of its log if there is one
    kind          directory, delta, iceberg or hudi
    index_root    where manifests are written
    state         the version, and the state of the log
    metadata_location    the metadata file of an Iceberg table, once `metadata` was read; others have no such file
    """

    def __init__(self, table: Table, known: dict[int, Snapshot | None] | None = None):
        self.table, self.handle = table, table.handle
        self.instant: Instant = self.handle.snapshot.instant
        self.kind = str(self.instant.source["kind"])
        self.index_root = f"{self.handle.index_storage.uri}/{SERVED_FOLDER}"
        self._log: Any = self.handle.log
        self.metadata_location = f"{self.index_root}/{self.snapshot_id}.metadata.json"
        self.state = self.handle.version, self.handle.instant.transaction, self.handle.log_position
        self._known = {} if known is None else known

    @cached_property
    def mapping(self) -> NameMapping:
        """The mapping by which clients find the columns in files."""
        return NameMapping(self.instant)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The table's metadata. Raises SchemaError for a column that cannot be presented."""
        if self.kind == ICEBERG:
            self.metadata_location, text = self._log.metadata_text(self.handle.log_position)
            return json.loads(text)
        return self._made_metadata()

    @cached_property
    def parsed(self) -> TableMetadata:
        """The metadata as an object of pyiceberg."""
        return TableMetadataUtil.parse_obj(self.metadata)

    @cached_property
    def entries(self) -> dict[str, tuple[Any, list[Any]]]:
        """The manifest entries of an Iceberg table; see `IcebergSource.live_entries`."""
        return self._log.live_entries(self.handle.log_position)

    @cached_property
    def partition_types(self) -> dict[int, list[IcebergType]]:
        """The types of the partition values, by spec."""
        types = {}
        for number, spec in self.parsed.specs().items():
            fields = zip(spec.fields, spec.partition_type(self.parsed.schema()).fields, strict=True)
            types[number] = [DateType() if f.transform == DayTransform() else kind.field_type for f, kind in fields]
        return types

    @property
    def snapshot_id(self) -> int | None:
        """The id of this snapshot; None for a log without one."""
        return self._id_of(self.instant if self.handle.snapshot.tail is None else self.handle.snapshot.tail)

    def _id_of(self, state: Any) -> int | None:
        """Return the snapshot id of a version, or of a newer state of the log. Delta counts from 0, which is no id."""
        number = state.version if self.kind == DIRECTORY or not isinstance(state, Instant) else state.source["version"]
        return None if number is None else number + (self.kind == DELTA)

    def _made_metadata(self) -> dict[str, Any]:
        current, made = iceberg_schema(self.instant), [one for one in self._snapshots() if one is not None]
        schemas = {schema.schema_id: schema for schema in (*(schema for _, schema in made), current)}
        by_id = {snapshot["snapshot-id"]: snapshot for snapshot, _ in made}
        ordered = sorted(by_id.values(), key=lambda one: one["sequence-number"])[-SNAPSHOTS_MAX:]
        newest = ordered[-1] if ordered else {"snapshot-id": None, "sequence-number": 0, "timestamp-ms": 0}
        mapping = {"schema.name-mapping.default": self.mapping.to_json()}
        fields = [
            {"source-id": self.instant.fields[name], "field-id": 1000 + i, "name": name, "transform": "identity"}
            for i, name in enumerate(self.instant.partitioning)
        ]
        return {
            "format-version": 2,
            "table-uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"skipstone:{self.instant.table_id}")),
            "location": self.table.location,
            "last-sequence-number": newest["sequence-number"],
            "last-updated-ms": newest["timestamp-ms"],
            "last-column-id": max(schema.highest_field_id for schema in schemas.values()),
            "current-schema-id": current.schema_id,
            "schemas": [json.loads(schema.model_dump_json()) for schema in schemas.values()],
            "default-spec-id": 0,
            # One per set of null partition columns, without those: pyiceberg reads no nulls in plans.
            "partition-specs": [
                {"spec-id": nulls, "fields": [one for i, one in enumerate(fields) if not nulls >> i & 1]}
                for nulls in range(1 << min(len(fields), NULLS_MAX))
            ],
            "last-partition-id": 999 + len(fields),
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {**mapping, **PLANNING, "skipstone.source": self.kind},
            "current-snapshot-id": newest["snapshot-id"],
            "snapshots": ordered,
            "snapshot-log": [{name: one[name] for name in ("snapshot-id", "timestamp-ms")} for one in ordered],
        }

    def _snapshots(self) -> Iterator[Snapshot | None]:
        """Yield the snapshots of earlier versions that can still be read, and of this one."""
        last, is_tail = self.handle.version, self.handle.snapshot.tail is not None
        for version in range(max(1, last - SNAPSHOTS_MAX), last + is_tail):
            if version not in self._known:
                known = self.handle.timeline.find(version)
                self._known[version] = None if known is None else self._snapshot(known, self._id_of(known), version)
            if not any(low <= version <= high for low, high in self.handle.instant.cleaned):
                yield self._known[version]
        yield self._snapshot(self.instant, self.snapshot_id, last + is_tail)

    def _snapshot(self, instant: Instant, number: int | None, sequence: int) -> Snapshot | None:
        if number is None or instant.is_shrunk:
            return None
        schema, totals = iceberg_schema(instant), instant.totals
        counts = {"total-data-files": str(totals["files"]), "total-records": str(totals["rows"])}
        snapshot = {
            "snapshot-id": number,
            "sequence-number": sequence,
            "timestamp-ms": instant.when_us // 1000,
            "manifest-list": f"{self.index_root}/{_UNWRITTEN}",
            "summary": {"operation": "overwrite", **counts},
            "schema-id": schema.schema_id,
        }
        return snapshot, schema

    @cached_property
    def _columns(self) -> dict[str, tuple[int, IcebergType] | None]:
        """The id and type of each dotted name; None if the ids differ between schemas: clients may use an older one."""
        columns: dict[str, tuple[int, IcebergType] | None] = {}
        for schema in (*self.parsed.schemas, self.parsed.schema()):
            for number, name in index_name_by_id(schema).items():
                known = columns.get(name, (number, None))
                columns[name] = (number, schema.find_type(number)) if known and known[0] == number else None
        return columns

    def filter_columns(self, planned: IcebergView) -> dict[str, FilterColumn]:
        """Return the columns by which a client's filter prunes the files of a listed version, by name."""
        instant, floats = planned.instant, set()
        for file in instant.file_schemas:  # clients compare 32-bit floats in 32 bits, whatever the table's type
            types = leaf_types(file.schema)
            floats |= {number for path, number in file.columns.items() if types.get(path) == pa.float32()}
        columns = {}
        for name, arrow in leaf_types(instant.schema).items():
            _, kind = self._columns.get(name) or (None, None)
            if isinstance(kind, PrimitiveType):
                text = "float" if instant.columns.get(name) in floats else str(kind)
                columns[name] = FilterColumn(name, text, bool(pa.types.is_timestamp(arrow)) and arrow.unit == "ns")
        return columns
