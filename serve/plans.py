"""Planning: the body of `POST .../plan` to the scan tasks of the files that are left.

Of a table that is made to look like Iceberg, each file is compared once with what a client would read of it: its names
with the mapping of names, the field ids in its footer with those of the table. A file that would be misread is refused,
and so is one over which logs lie. The rows that a log takes out of a file (Delta's deletion vectors) become a file of
position deletes below the index root, named by a hash of its bytes.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import to_json
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, IcebergType
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

from ..engine.lakes import ICEBERG
from ..engine.parquet.footers import open_parquet
from ..engine.scan.file_tasks import TaskRows
from ..engine.scan.planning import PlannedScan
from ..engine.scan.request import ScanRequest
from ..engine.storage import Entry, is_outside
from ..errors import InvalidArgumentError, NotReadableError, SchemaError, is_integer
from .expressions import predicate
from .presented import FOLDER, Presented
from .schemas import NameMapping

_CONTENTS = ("data", "position-deletes", "equality-deletes")  # by their number in manifests
_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)
CheckedFiles = dict[tuple, int]  # a file's identity and schema -> how many rows its footer has
Planned = tuple[DataFile, list[DataFile]]  # a file, and its deletes


class UnsupportedError(InvalidArgumentError):
    """What the protocol lets a server refuse."""


@dataclass(frozen=True)
class PlanRequest:
    """What a client wants to read; see the protocol's PlanTableScanRequest. `is_raw`: dates and times of partitions are
    sent as numbers, which pyiceberg expects where the protocol has texts."""

    snapshot_id: int | None = None
    filter: object = None
    case_sensitive: bool = True
    rows_min: int | None = None
    is_raw: bool = False

    @classmethod
    def of(cls, body: object, *, is_raw: bool) -> PlanRequest:
        """Raises InvalidArgumentError for a body that is no request, UnsupportedError for an incremental scan."""
        if not isinstance(body, dict):
            raise InvalidArgumentError("the body is no JSON object")
        if body.get("start-snapshot-id") is not None or body.get("end-snapshot-id") is not None:
            raise UnsupportedError("incremental scans are not planned here")
        snapshot_id, rows_min = body.get("snapshot-id"), body.get("min-rows-requested")
        is_sensitive, select = body.get("case-sensitive", True), body.get("select") or []
        for number in (snapshot_id, rows_min):
            if number is not None and not (is_integer(number) and abs(number) < 1 << 63):
                raise InvalidArgumentError(f"{str(number)[:80]!r} is no whole number of 64 bits")
        is_list = isinstance(select, list) and all(isinstance(name, str) for name in select)
        if not isinstance(is_sensitive, bool) or not is_list:
            raise InvalidArgumentError("case-sensitive is true or false, select a list of names")
        return cls(snapshot_id, body.get("filter"), is_sensitive, rows_min, is_raw)


def plan(current: Presented, planned: Presented, request: PlanRequest, checked: CheckedFiles) -> dict[str, Any]:
    """Return the answer to a request.

    Args:
        current: the table at its newest version.
        planned: the version that the client reads.
        checked: the files that were compared before; new ones are added.

    Raises NotReadableError for files that clients would misread, PredicateError for a filter that is nested too deeply.
    """
    where = None
    if request.filter is not None:
        columns = current.filter_columns(planned)
        where = predicate(request.filter, columns, case_sensitive=request.case_sensitive)
    planning = PlannedScan(ScanRequest.of(planned.handle), where)
    if planned.kind == ICEBERG:
        files, types = iceberg_files(planned, planning), planned.partition_types
    else:
        files, types = made_files(planned, current.mapping, planning, checked), current.partition_types
        if request.snapshot_id is None and current.mapping.is_ambiguous:
            raise UnsupportedError("a column's name passed to another column, so a plan needs the id of a snapshot")
        if request.is_raw and any(isinstance(kind, DecimalType) for kind in types[0]):
            raise UnsupportedError("pyiceberg misreads decimal partition values of plans")
    # Of a filter it is not known which files have how many rows that the client keeps.
    rows_enough = request.rows_min if where is None and request.rows_min is not None else math.inf
    tasks: list[dict[str, Any]] = []
    delete_files: dict[str, dict[str, Any]] = {}
    places: dict[str, int] = {}
    row_count = 0
    for file, deletes in files:
        if row_count >= rows_enough:
            break
        task: dict[str, Any] = {"data-file": _of_protocol(file, types, request.is_raw)}
        for one in deletes:
            places.setdefault(one.file_path, len(places))
            delete_files.setdefault(one.file_path, _of_protocol(one, types, request.is_raw))
        if deletes:
            task["delete-file-references"] = [places[one.file_path] for one in deletes]
        if request.filter is not None:
            task["residual-filter"] = request.filter
        tasks.append(task)
        row_count += 0 if deletes else file.record_count
    answer: dict[str, Any] = {"status": "completed", "file-scan-tasks": tasks}
    return answer | ({"delete-files": list(delete_files.values())} if delete_files else {})


def made_files(
    planned: Presented, mapping: NameMapping, planning: PlannedScan, checked: CheckedFiles
) -> Iterator[Planned]:
    """Yield the files of a plan of a table that is made to look like Iceberg. `mapping`: what the client reads by.

    Raises NotReadableError, which names the files, for those that a client would misread.
    """
    planning.check_readable()  # it also reads which rows are deleted
    planning.check_files(np.ones(planning.pruned.units.count, dtype=bool), every=None)
    rows = TaskRows.of(planning.snapshot, planning.evidence, planning.pruned, (), with_fine=False).columns
    files = _check_files(planned, mapping, planning, rows, checked)
    partitions = [rows.column(f"partition:{name}").to_pylist() for name in planned.instant.partitioning]
    for i, known in enumerate(files):
        partition = [_raw(values[i]) for values in partitions]
        file = _data_file(_uri(planned, known[0]), known[1], checked[known], partition)
        deleted = planning.deletes.rows.get(known[0], ())
        yield file, [_position_deletes(planned, file, deleted)] if len(deleted) else []


def iceberg_files(planned: Presented, planning: PlannedScan) -> Iterator[Planned]:
    """Yield the files of a plan of an Iceberg table. Its manifests are read once per snapshot, unless the table has one
    spec, without fields, and no deletes apply."""
    kept, types = planning.pruned.units.files, planned.partition_types
    if len(types) == 1 and not any(types.values()) and planning.pruned.units.readable.all():
        names = ("path", "size_bytes", "row_count")
        for path, size_bytes, row_count in zip(*(kept.column(name).to_pylist() for name in names), strict=True):
            yield _data_file(_uri(planned, path), size_bytes, row_count, [], spec_id=next(iter(types))), []
        return
    for path in kept.column("path").to_pylist():
        entry, deletes = planned.entries[path]
        files = entry.data_file, [one.data_file for one in deletes]
        for file in (files[0], *files[1]):
            if file.file_format == FileFormat.PUFFIN or file.key_metadata:
                raise UnsupportedError(f"{path}: deletion vectors and encrypted files are not planned here")
        yield files


def _uri(planned: Presented, path: str) -> str:
    return path if is_outside(path) else f"{planned.table.location}/{path}"


def _data_file(uri: str, size_bytes: int, row_count: int, partition: list, spec_id: int = 0, content: int = 0) -> DataFile:
    file = DataFile.from_args(
        content=DataFileContent(content),
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=row_count,
        file_size_in_bytes=size_bytes,
    )
    file.spec_id = spec_id
    return file


def _check_files(
    planned: Presented, mapping: NameMapping, planning: PlannedScan, rows: pa.Table, checked: CheckedFiles
) -> list[tuple]:
    """Return the keys of the files in `checked`. Raise NotReadableError for a file that a client would misread, by its
    names or by its field ids."""
    schemas, numbers = planned.instant.file_schemas, pc.unique(rows.column("schema_id")).to_pylist()
    misfits = {number: mapping.misfit_of(schemas[number], planned.instant) for number in numbers}

    def check(file: tuple) -> tuple[tuple, int]:
        misfit, row_count = misfits[file[4]], 0
        if misfit is None:
            with open_parquet(planning.storage, Entry(*file[:4])) as opened:
                misfit, row_count = mapping.ids_misfit_of(opened.schema_arrow), opened.metadata.num_rows
        if misfit is not None:
            raise NotReadableError(f"{file[0]}: {misfit}, so Iceberg clients would misread it", paths=[file[0]])
        return file, row_count

    names = ("path", "size_bytes", "modified_ns", "etag", "schema_id")
    files = list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))
    new = [file for file in files if file not in checked or misfits[file[4]] is not None]
    checked.update(planning.side_by_side(check, new))
    return files


def _position_deletes(planned: Presented, file: DataFile, rows: Any) -> DataFile:
    """Write the rows that were deleted from a file as a file of position deletes."""
    sink = io.BytesIO()
    paths = pa.array([file.file_path] * len(rows), pa.string())
    pq.write_table(pa.Table.from_arrays([paths, pa.array(rows, pa.int64())], schema=_DELETES), sink)
    data = sink.getvalue()
    name = f"deletes-{hashlib.sha256(data).hexdigest()[:32]}.parquet"
    planned.handle.index_storage.put_if_absent(f"{FOLDER}/{name}", data)
    return _data_file(f"{planned.index_root}/{name}", len(data), len(rows), list(file.partition._data), content=1)


def _of_protocol(file: DataFile, types: dict[int, list[IcebergType]], is_raw: bool) -> dict[str, Any]:
    """A file as the protocol has it."""
    kinds = types[file.spec_id]
    values = [file.partition[i] for i in range(len(kinds))]
    spec_id, partition = file.spec_id, [_of_partition(v, kind, is_raw) for v, kind in zip(values, kinds, strict=True)]
    if is_raw and None in partition:
        nulls = sum(1 << i for i, value in enumerate(partition) if value is None)
        partition = [value for value in partition if value is not None]
        spec_id, partition = (nulls, partition) if nulls in types else (spec_id, [])
    answer = {
        "content": _CONTENTS[int(file.content)],
        "file-path": file.file_path,
        "file-format": str(FileFormat(file.file_format).value).lower(),
        "spec-id": spec_id,
        "partition": partition,
        "file-size-in-bytes": file.file_size_in_bytes,
        "record-count": file.record_count,
    }
    return answer | ({"equality-ids": list(file.equality_ids or ())} if int(file.content) == 2 else {})


def _of_partition(value: Any, kind: IcebergType, is_raw: bool) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise SchemaError("a partition value is not finite, which the protocol cannot express")
    return value if value is None or (is_raw and isinstance(value, int)) else to_json(kind, value)


def _raw(value: Any) -> Any:
    """A partition value as manifests have it."""
    if isinstance(value, dt.datetime):
        return datetime_to_micros(value)
    return date_to_days(value) if isinstance(value, dt.date) else value
