"""Planning: from the body of `POST .../plan` to the scan tasks of the remaining files.

In a table that is presented as Iceberg, a file that a client would misread is refused: because of its names and field
ids, which are compared once, or because its own format's logs or deletes apply to it.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
from ..errors import InvalidArgumentError, NotReadableError, SchemaError
from .expressions import predicate
from .presented import IcebergView
from .schemas import NameMapping, ids_of

_FIELDS = {"snapshot-id": int, "min-rows-requested": int, "case-sensitive": bool, "select": list}
_CONTENTS = ("data", "position-deletes", "equality-deletes")  # by their number in manifests
Planned = tuple[DataFile, list[DataFile]]  # a file, and its deletes
CheckedFiles = dict[tuple, int]  # a file's identity and schema -> the row count of its footer


def checked_request(body: Any) -> dict[str, Any]:
    """Return the body of a plan's request. Raises InvalidArgumentError, or NotReadableError for an incremental scan."""
    if not isinstance(body, dict):
        raise InvalidArgumentError("the body is no JSON object")
    for name, kind in _FIELDS.items():
        if body.get(name) is not None and type(body[name]) is not kind:
            raise InvalidArgumentError(f"{name} has a value of the wrong type")
    if body.get("start-snapshot-id") is not None or body.get("end-snapshot-id") is not None:
        raise NotReadableError("incremental scans are not planned here")
    return body


def plan(
    current: IcebergView, planned: IcebergView, request: dict[str, Any], checked: CheckedFiles, *, is_raw: bool
) -> dict[str, Any]:
    """Return the answer to a request of a client that has the table's metadata of `current` and reads it at `planned`.
    `checked`: the files that were compared before; new ones are added. `is_raw`: dates and times of partitions are sent
    as numbers, and no nulls, because pyiceberg can read only this form.

    Raises NotReadableError for files that clients would misread, PredicateError for a filter that is nested too deeply.
    """
    where, residual, rows_enough = None, request.get("filter"), request.get("min-rows-requested")
    if residual is not None:
        columns, rows_enough = current.filter_columns(planned), None  # the server does not see which rows clients keep
        where = predicate(residual, columns, case_sensitive=request.get("case-sensitive") is not False)
    planning = PlannedScan(ScanRequest.of(planned.handle), where)
    if planned.kind == ICEBERG:
        files, types = iceberg_files(planned, planning), planned.partition_types
    else:
        files, types = made_files(planned, current.mapping, planning, checked), current.partition_types
        if request.get("snapshot-id") is None and current.mapping.is_ambiguous:
            raise NotReadableError("a column's name passed to another column, so a plan needs the id of a snapshot")
        unselected = {*planned.instant.partitioning} - {*(request.get("select") or planned.instant.partitioning)}
        filtered = json.dumps(residual, ensure_ascii=False).lower()
        if is_raw and any(f'"term": {json.dumps(name, ensure_ascii=False).lower()}' in filtered for name in unselected):
            raise NotReadableError("pyiceberg finds no rows by a partition column that it does not select: select it")
        if is_raw and any(isinstance(kind, DecimalType) for kind in types[0]):
            raise NotReadableError("pyiceberg misreads decimal partition values of plans")
    of_protocol = partial(_of_protocol, types=types, is_raw=is_raw, has_specs=planned.kind != ICEBERG)
    tasks, row_count = [], 0
    deletes: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    for file, of_file in files:
        if rows_enough is not None and row_count >= rows_enough:
            break
        task: dict[str, Any] = {"data-file": of_protocol(file)}
        for one in of_file:
            if places.setdefault(one.file_path, len(places)) == len(deletes):
                deletes.append(of_protocol(one))
        if of_file:
            task["delete-file-references"] = [places[one.file_path] for one in of_file]
        if residual is not None:
            task["residual-filter"] = residual
        tasks.append(task)
        row_count += 0 if of_file else file.record_count
    return {"status": "completed", "file-scan-tasks": tasks, "delete-files": deletes}


def made_files(
    planned: IcebergView, mapping: NameMapping, planning: PlannedScan, checked: CheckedFiles
) -> Iterator[Planned]:
    """Yield the files of a table that is presented as Iceberg. Raises NotReadableError if clients misread one."""
    planned.handle.check_quarantined()  # this warns
    planning.check_plain()
    planning.check_files(np.ones(planning.pruned.units.count, dtype=bool), every=None)
    rows = TaskRows.of(planning.snapshot, planning.evidence, planning.pruned, (), with_fine=False).columns
    files = _checked_files(planned, mapping, planning, rows, checked)
    partitions = [rows.column(f"partition:{name}").to_pylist() for name in planned.instant.partitioning]
    for i, (path, size_bytes, *rest) in enumerate(files):
        partition = [_of_manifest(values[i]) for values in partitions]
        yield _file(planned, path, size_bytes, checked[path, size_bytes, *rest], partition), []


def iceberg_files(planned: IcebergView, planning: PlannedScan) -> Iterator[Planned]:
    """Yield the files of an Iceberg table. Manifests are read, once per snapshot, for deletes and partition values."""
    kept, types = planning.pruned.units.files, planned.partition_types
    if len(types) == 1 and not any(types.values()) and planning.pruned.units.readable.all():
        names = ("path", "size_bytes", "row_count")
        for path, size_bytes, row_count in zip(*(kept.column(name).to_pylist() for name in names), strict=True):
            yield _file(planned, path, size_bytes, row_count, [], next(iter(types))), []
        return
    for path in kept.column("path").to_pylist():
        entry, deletes = planned.entries[path]
        files = [one.data_file for one in (entry, *deletes)]
        if any(file.file_format == FileFormat.PUFFIN or file.key_metadata for file in files):
            raise NotReadableError(f"{path}: deletion vectors and encrypted files are not planned here")
        yield files[0], files[1:]


def _file(planned: IcebergView, path: str, size_bytes: int, rows: int, partition: list, spec_id: int = 0) -> DataFile:
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path if is_outside(path) else f"{planned.table.location}/{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=rows,
        file_size_in_bytes=size_bytes,
    )
    file.spec_id = spec_id
    return file


def _checked_files(
    planned: IcebergView, mapping: NameMapping, planning: PlannedScan, rows: pa.Table, checked: CheckedFiles
) -> list[tuple]:
    """Return the keys of the files in `checked`. Raise NotReadableError for a file that a client would misread."""
    schemas, numbers = planned.instant.file_schemas, pc.unique(rows.column("schema_id")).to_pylist()
    misfits = {number: mapping.misfit_of(schemas[number], planned.instant) for number in numbers}

    def check(file: tuple) -> tuple[tuple, int]:
        misfit, row_count = misfits[file[4]], 0
        if misfit is None:
            with open_parquet(planning.storage, Entry(*file[:4])) as opened:
                row_count = opened.metadata.num_rows
                if any(number is not None for number in ids_of(opened.schema_arrow)):
                    misfit = "its columns have their own field ids"  # which clients prefer to names
        if misfit is not None:
            raise NotReadableError(f"{file[0]}: {misfit}, so Iceberg clients would misread it", paths=[file[0]])
        return file, row_count

    names = ("path", "size_bytes", "modified_ns", "etag", "schema_id")
    files = list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))
    new = [file for file in files if file not in checked or misfits[file[4]] is not None]
    checked.update(planning.side_by_side(check, new))
    return files


def _of_protocol(
    file: DataFile, types: dict[int, list[IcebergType]], *, is_raw: bool, has_specs: bool
) -> dict[str, Any]:
    """Return a file as the protocol represents it. `has_specs`: for null partition columns (`presented.NULLS_MAX`)."""
    spec_id, partition = file.spec_id, list(file.partition)
    if is_raw and None in partition:
        nulls = sum(1 << i for i, value in enumerate(partition) if value is None)
        partition = [value for value in partition if value is not None]
        spec_id, partition = (nulls, partition) if has_specs and nulls in types else (spec_id, [])
    if any(isinstance(value, float) and not math.isfinite(value) for value in partition):
        raise SchemaError("a partition value is not finite, which the protocol cannot express")
    values = [
        value if value is None or (is_raw and isinstance(value, int)) else to_json(kind, value)
        for value, kind in zip(partition, types[spec_id], strict=bool(partition))
    ]
    answer = {
        "content": _CONTENTS[int(file.content)],
        "file-path": file.file_path,
        "file-format": str(FileFormat(file.file_format).value).lower(),
        "spec-id": spec_id,
        "partition": values,
        "file-size-in-bytes": file.file_size_in_bytes,
        "record-count": file.record_count,
    }
    return answer | ({"equality-ids": list(file.equality_ids or ())} if int(file.content) == 2 else {})


def _of_manifest(value: Any) -> Any:
    """Return a partition value as manifests store it."""
    if isinstance(value, dt.datetime):
        return datetime_to_micros(value)
    return date_to_days(value) if isinstance(value, dt.date) else value
