"""One version of a table as an Iceberg table: its metadata, and the columns by which filters prune.

    Iceberg tables    their own metadata file, unchanged: the same ids, snapshots and manifests
    all others        metadata that is made of our versions: a snapshot per version of a directory (its id is the
                      version), or per state of the log from which a version was made; the newest `SNAPSHOTS_MAX`
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.schema import Schema, index_name_by_id
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.transforms import DayTransform
from pyiceberg.types import DateType, IcebergType, PrimitiveType

from ..base.caching import cached_property
from ..engine.lakes import DELTA, DIRECTORY, ICEBERG
from ..engine.lakes.iceberg import IcebergSource
from ..engine.parquet.leaves import leaf_types
from ..engine.state import Instant
from ..engine.table import Table
from .expressions import FilterColumn
from .schemas import NameMapping, iceberg_schema

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry

SNAPSHOTS_MAX = 100
NULLS_MAX = 4  # pyiceberg reads no null of a partition in a plan, so up to so many columns are left out of its spec
FOLDER = "serve"  # below the index root
PLANNING = {"scan-planning-mode": "server"}
_UNWRITTEN = "not-written-see-the-table-property-skipstone.manifests.avro"
Snapshot = tuple[dict[str, Any], dict[str, Any]]  # a snapshot and its schema, as metadata has them


class Presented:
    """A table at the version that a handle sees. Threads may share one.

    instant    the version, with what its log has gone on by since
    kind       directory, delta, iceberg or hudi
    """

    def __init__(self, table: Table, known: dict[int, Snapshot] | None = None):
        """`known`: snapshots of versions that were made before. New ones are added."""
        self.table, self.handle = table, table.handle
        self.instant: Instant = self.handle.snapshot.instant
        self.kind = str(self.instant.source["kind"])
        self._known = {} if known is None else known

    @property
    def index_root(self) -> str:
        """Where manifests and position deletes are written."""
        return f"{self.handle.index_storage.uri}/{FOLDER}"

    @cached_property
    def mapping(self) -> NameMapping:
        """How clients find the columns in files."""
        return NameMapping(self.instant)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The table's metadata. Raises SchemaError for a column that cannot be presented."""
        return json.loads(self._own_metadata[1]) if self.kind == ICEBERG else self._made_metadata()

    @cached_property
    def parsed(self) -> TableMetadata:
        """The same as an object of pyiceberg."""
        return TableMetadataUtil.parse_obj(self.metadata)

    @cached_property
    def _own_metadata(self) -> tuple[str, bytes]:
        assert isinstance(self.handle.log, IcebergSource)
        return self.handle.log.metadata_text(self.handle.log_position)

    @property
    def metadata_location(self) -> str:
        """The metadata file of an Iceberg table. Other tables have none: the name only tells versions apart."""
        return self._own_metadata[0] if self.kind == ICEBERG else f"{self.index_root}/{self.snapshot_id}.metadata.json"

    @cached_property
    def entries(self) -> dict[str, tuple[ManifestEntry, list[ManifestEntry]]]:
        """The manifest entries of an Iceberg table; see `IcebergSource.live_entries`."""
        assert isinstance(self.handle.log, IcebergSource)
        return self.handle.log.live_entries(self.handle.log_position)

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
        """The id of the snapshot that this is; None for a log without one."""
        tail = self.handle.snapshot.tail
        return _snapshot_id(self.instant) if tail is None else _id_of(self.kind, tail.version)

    # -- metadata that is made of versions ----------------------------------------------------------------------------

    def _made_metadata(self) -> dict[str, Any]:
        current = iceberg_schema(self.instant)
        schemas = {current.schema_id: _plain(current)}
        snapshots: dict[int, dict[str, Any]] = {}
        for snapshot, schema in self._snapshots():
            snapshots[snapshot["snapshot-id"]] = snapshot
            schemas[schema["schema-id"]] = schema
        ordered = sorted(snapshots.values(), key=lambda one: one["sequence-number"])[-SNAPSHOTS_MAX:]
        newest = ordered[-1] if ordered else {"snapshot-id": None, "sequence-number": 0, "timestamp-ms": 0}
        partitions = [
            {"source-id": self.instant.fields[name], "field-id": 1000 + i, "name": name, "transform": "identity"}
            for i, name in enumerate(self.instant.partitioning)
        ]
        parsed = [Schema.model_validate(one) for one in schemas.values()]
        mapping = {"schema.name-mapping.default": self.mapping.to_json()}
        return {
            "format-version": 2,
            "table-uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"skipstone:{self.instant.table_id}")),
            "location": self.table.location,
            "last-sequence-number": newest["sequence-number"],
            "last-updated-ms": newest["timestamp-ms"],
            "last-column-id": max(one.highest_field_id for one in parsed),
            "current-schema-id": current.schema_id,
            "schemas": list(schemas.values()),
            "default-spec-id": 0,
            "partition-specs": list(_specs(partitions)),
            "last-partition-id": 999 + len(partitions),
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {**mapping, **PLANNING, "skipstone.source": self.kind},
            "current-snapshot-id": newest["snapshot-id"],
            "snapshots": ordered,
            "snapshot-log": [{name: one[name] for name in ("snapshot-id", "timestamp-ms")} for one in ordered],
            "metadata-log": [],
            "refs": {"main": {"type": "branch", "snapshot-id": newest["snapshot-id"]}} if ordered else {},
        }

    def _snapshots(self) -> Iterator[Snapshot]:
        """Yield the snapshots of earlier versions that can still be read, and of this one."""
        cleaned, last = self.handle.instant.cleaned, self.handle.version
        is_tail = self.handle.snapshot.tail is not None
        for version in range(max(1, last - SNAPSHOTS_MAX), last + is_tail):
            if version not in self._known and not any(low <= version <= high for low, high in cleaned):
                instant = self.handle.timeline.find(version)
                number = None if instant is None or instant.is_shrunk else _snapshot_id(instant)
                if instant is not None and number is not None and instant.source["kind"] == self.kind:
                    self._known[version] = self._snapshot(instant, number, instant.version, instant.when_us)
            if version in self._known and not any(low <= version <= high for low, high in cleaned):
                yield dict(self._known[version][0]), self._known[version][1]
        if self.snapshot_id is not None:
            made_us = time.time_ns() // 1000 if is_tail else self.instant.when_us
            yield self._snapshot(self.instant, self.snapshot_id, last + is_tail, made_us)

    def _snapshot(self, instant: Instant, number: int, sequence: int, made_us: int) -> Snapshot:
        schema = iceberg_schema(instant)
        totals = {"total-data-files": str(instant.totals["files"]), "total-records": str(instant.totals["rows"])}
        snapshot = {
            "snapshot-id": number,
            "sequence-number": sequence,
            "timestamp-ms": made_us // 1000,
            "manifest-list": f"{self.index_root}/{_UNWRITTEN}",
            "summary": {"operation": "overwrite", **totals},
            "schema-id": schema.schema_id,
        }
        return snapshot, _plain(schema)

    # -- filters ------------------------------------------------------------------------------------------------------

    @cached_property
    def _ids_by_name(self) -> dict[str, int | None]:
        """The field id of each dotted name in all schemas of the table; None if they differ, because a client may use
        a name in the sense of an older schema."""
        ids: dict[str, int | None] = {}
        for schema in self.parsed.schemas:
            for number, name in index_name_by_id(schema).items():
                ids[name] = number if ids.get(name, number) == number else None
        return ids

    def filter_columns(self, planned: Presented) -> dict[str, FilterColumn]:
        """The columns by which a filter of a client of this table prunes the files of one of its versions, by name."""
        schema = planned._schema()
        arrow, floats = leaf_types(planned.instant.schema), planned._float_paths()
        columns = {}
        for number, name in index_name_by_id(schema).items():
            kind = schema.find_type(number)
            if name in arrow and self._ids_by_name.get(name) == number and isinstance(kind, PrimitiveType):
                is_finer = bool(pa.types.is_timestamp(arrow[name])) and arrow[name].unit == "ns"
                columns[name] = FilterColumn(name, "float" if name in floats else str(kind), is_finer)
        return columns

    def _schema(self) -> Schema:
        """The schema of this version."""
        if self.kind != ICEBERG:
            return iceberg_schema(self.instant)
        snapshot = self.parsed.snapshot_by_id(self.snapshot_id) if self.handle.is_pinned else None
        by_id = {one.schema_id: one for one in self.parsed.schemas}
        return self.parsed.schema() if snapshot is None else by_id.get(snapshot.schema_id, self.parsed.schema())

    def _float_paths(self) -> set[str]:
        """The columns of which some files have 32-bit floats: clients compare those in 32 bits."""
        floats: set[int] = set()
        for file in self.instant.file_schemas:
            types = leaf_types(file.schema)
            floats |= {number for path, number in file.columns.items() if types.get(path) == pa.float32()}
        return {path for path, number in self.instant.columns.items() if number in floats}


def _specs(fields: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the spec, and one for each set of partition columns that are null: see `NULLS_MAX`."""
    for nulls in range(1 << len(fields) if len(fields) <= NULLS_MAX else 1):
        yield {"spec-id": nulls, "fields": [one for i, one in enumerate(fields) if not nulls >> i & 1]}


def _plain(schema: Schema) -> dict[str, Any]:
    return json.loads(schema.model_dump_json())


def _snapshot_id(instant: Instant) -> int | None:
    kind = instant.source["kind"]
    return instant.version if kind == DIRECTORY else _id_of(kind, instant.source["version"])


def _id_of(kind: str, log_version: int | None) -> int | None:
    """The snapshot id of a version of a log. Delta counts from 0, which is no snapshot id."""
    return None if log_version is None else log_version + (kind == DELTA)


def log_version_of(kind: str, snapshot_id: int) -> int:
    """The version of a log that has a snapshot id."""
    return snapshot_id - (kind == DELTA)
