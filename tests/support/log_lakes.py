"""Delta and Iceberg tables for tests, written by their own libraries, or by hand if those cannot; and checks that a
Skipstone table follows them."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import skipstone as ss
from library_versions import has

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def multiset(table: pa.Table) -> Counter:
    """The rows of a table, without their order or that of fields; NaN equals NaN."""
    names = sorted(table.column_names)
    return Counter(
        tuple(json.dumps(row[name], sort_keys=True, default=repr) for name in names) for row in table.to_pylist()
    )


def check_rows(table: ss.Table, expected: pa.Table) -> None:
    """Compare all rows, and those that each value of each column of numbers or texts selects."""
    assert multiset(table.scan().to_table()) == multiset(expected)
    for name, values in _comparable(expected):
        for value in {None, *values}:
            plan = table.scan(f"{name} IS NULL" if value is None else f"{name} = {value!r}")
            assert plan.count() == plan.to_table().num_rows == values.count(value), (name, value)


def _comparable(rows: pa.Table) -> list[tuple[str, list]]:
    """(name in SQL, values) of the columns of numbers and texts, and of such fields of structs."""
    found = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_struct(column.type):
            fields = pa.Table.from_struct_array(column)
            found += [(f'"{name}".{field}', values) for field, values in _comparable(fields)]
        elif pa.types.is_integer(column.type) or pa.types.is_string(column.type):
            found.append((f'"{name}"', column.to_pylist()))
    return found


def check_followed(table: ss.Table, expected: pa.Table) -> None:
    """A refreshed table has the rows that the log's own library reads, before a sync and after it."""
    table.refresh()
    for _ in ("unsynced", "synced"):
        check_rows(table, expected)
        table.sync()
    assert table.verify(deep=True) == []


def check_unreadable(table: ss.Table, path: str) -> None:
    """Rows, counts and extremes raise an error that names the file."""
    plan = table.scan()
    for query in (plan.count, plan.to_table, lambda: plan.max("a")):
        with pytest.raises(ss.NotReadableError) as caught:
            query()
        assert caught.value.paths == [path]


class LogLake:
    """A table of numbers (column `name`) in partitions `p`, written as its format's own writers write it."""

    source: str
    name = "a"
    log: Path | None = None  # a folder that no synced version needs
    has_row_counts = True  # the log contains them
    modules: tuple[str, ...]  # that an error names if they are missing
    path: Path

    def within(self, p: str) -> str:
        """Return a predicate of the rows of a partition."""
        return f"p = '{p}'"

    def append(self, *values: int, p: str = "x") -> None:
        """Add a file."""
        raise NotImplementedError

    def delete(self, value: int) -> None:
        """Write the file of a value again, without it."""
        raise NotImplementedError

    def delete_positions(self, path: str, rows: list[int]) -> None:
        """Mark rows of a file as deleted: those given, which include the rows marked before."""
        raise NotImplementedError

    def values(self) -> list[int]:
        """Return the values that the format's own library reads, sorted."""
        raise NotImplementedError


class _DeltaLake(LogLake):
    source, modules = "delta", ("deltalake",)

    def __init__(self, folder: Path, is_partitioned: bool):
        self.path, self.log = folder / "lake", folder / "lake" / "_delta_log"
        self._options: dict[str, Any] = {"configuration": {"delta.enableDeletionVectors": "true"}}
        if is_partitioned:
            self._options = {"partition_by": ["p"]}

    def append(self, *values: int, p: str = "x") -> None:
        from deltalake import write_deltalake

        write_deltalake(str(self.path), _numbers(values, p), mode="append", **self._options)

    def delete(self, value: int) -> None:
        from deltalake import DeltaTable

        DeltaTable(str(self.path)).delete(f"a = {value}")

    def delete_positions(self, path: str, rows: list[int]) -> None:
        delete_rows(self.path, path, rows)

    def values(self) -> list[int]:
        return sorted(read_delta(self.path).column("a").to_pylist())


class _IcebergLake(LogLake):
    source, modules = "iceberg", ("pyiceberg.table",)

    def __init__(self, folder: Path, is_partitioned: bool):
        self._their = iceberg_table(folder, _numbers((), "x").schema, *(["p"] if is_partitioned else []))
        self.path, self._deleted = folder / "lake" / "t", set[int]()

    def append(self, *values: int, p: str = "x") -> None:
        self._their.append(_numbers(values, p))

    def delete(self, value: int) -> None:
        self._their.delete(f"a = {value}")

    def delete_positions(self, path: str, rows: list[int]) -> None:
        delete_positions(self.path, f"file://{self.path}/{path}", sorted({*rows} - self._deleted))
        self._deleted |= {*rows}

    def values(self) -> list[int]:
        return sorted(read_iceberg(self.path).column("a").to_pylist())


class _HudiLake(LogLake):
    source, name, modules = "hudi", "v", ("fastavro",)

    def __init__(self, folder: Path, is_partitioned: bool):
        from hudi_tables import HudiTable

        self._hudi = HudiTable(folder / "lake", 9, "COPY_ON_WRITE")
        self.path, self.has_row_counts = self._hudi.folder, False

    def within(self, p: str) -> str:
        return f"_hoodie_partition_path = 'p={p}'"

    def append(self, *values: int, p: str = "x") -> None:
        write = self._hudi.begin()
        self._hudi.insert(write, f"p={p}", {f"k{value}": value for value in values})
        self._hudi.complete(write)

    def delete(self, value: int) -> None:
        (group,) = (group for group in self._hudi.groups if value in group.rows.values())
        write = self._hudi.begin()
        self._hudi.update(write, group, {}, [f"k{value}"])
        self._hudi.complete(write)

    def values(self) -> list[int]:
        return sorted(self._hudi.rows().values())


def lake_of(source: str, folder: Path, is_partitioned: bool = True) -> LogLake:
    """Return a table of a format without rows; skip the test if its library is not installed."""
    lakes = {"delta": _DeltaLake, "iceberg": _IcebergLake, "hudi": _HudiLake}
    libraries = {"delta": ["deltalake"], "iceberg": ["pyiceberg", "sqlalchemy"], "hudi": ["hudi", "fastavro"]}
    for module in libraries[source]:
        pytest.importorskip(module)
    return lakes[source](folder, is_partitioned)


def _numbers(values: tuple[int, ...], p: str) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64()), "p": pa.array([p] * len(values), pa.string())})


# -- Delta ------------------------------------------------------------------------------------------------------------


def read_delta(table: str | Path, where: str = "true", version: int | None = None) -> pa.Table:
    """Rows as deltalake reads them."""
    from deltalake import DeltaTable, QueryBuilder

    their = QueryBuilder().register("t", DeltaTable(str(table), version=version))
    return pa.table(their.execute(f"select * from t where {where}").read_all())


def commit(table: str | Path, actions: list[dict]) -> int:
    """Append a commit of these actions to a Delta log, unchecked. Return its version."""
    folder = Path(table) / "_delta_log"
    version = max((int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit()), default=-1) + 1
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    (folder / f"{version:020d}.json").write_text(lines)
    return version


def actions_of(table: str | Path, kind: str) -> list[dict]:
    """The actions of a kind in the commits of a log, oldest first."""
    files = sorted((Path(table) / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [action[kind] for action in actions if kind in action]


def add_of(table: str | Path, path: str) -> dict:
    """The newest `add` of a path in a log."""
    return [add for add in actions_of(table, "add") if add["path"] == path][-1]


def new_add(table: str | Path, path: str) -> dict:
    """An `add` of a file that was written by hand: without statistics or partition values."""
    size = (Path(table) / path).stat().st_size
    return {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}


def paths_of(table: str | Path) -> list[str]:
    """The paths of the live files, as the log has them."""
    from deltalake import DeltaTable

    return sorted(pa.table(DeltaTable(str(table)).get_add_actions()).column("path").to_pylist())


def delete_rows(table: str | Path, path: str, rows: list[int], vector: dict | None = None) -> int:
    """Give a file a deletion vector, as Spark does: of rows by position, inline if no descriptor is given."""
    add = add_of(table, path)
    remove = {name: add[name] for name in ("path", "partitionValues", "size", "deletionVector") if name in add}
    remove |= {"dataChange": True, "deletionTimestamp": 1, "extendedFileMetadata": True}
    add = {**add, "deletionVector": vector or deletion_vector(rows), "dataChange": True}
    return commit(table, [{"remove": remove}, {"add": add}])


def deletion_vector(rows: list[int]) -> dict:
    """A deletion vector of a few rows, inline."""
    data = bitmap_array(rows)
    return {"storageType": "i", "pathOrInlineDv": inline(data), "sizeInBytes": len(data), "cardinality": len(rows)}


def bitmap_array(rows: Sequence[int], has_runs: bool = False) -> bytes:
    """A RoaringBitmapArray: a bitmap of the rows with the same upper 32 bits, for each of these."""
    from pyroaring import BitMap

    keys = sorted({row >> 32 for row in rows})
    maps = [BitMap([row & 0xFFFFFFFF for row in rows if row >> 32 == key], optimize=has_runs) for key in keys]
    parts = [struct.pack("<I", key) + bitmap.serialize() for key, bitmap in zip(keys, maps, strict=True)]
    return struct.pack("<IQ", 1681511377, len(keys)) + b"".join(parts)


def inline(data: bytes) -> str:
    """The bytes of a deletion vector as its descriptor has them."""
    return _z85(data + b"\0" * (-len(data) % 4))


def _z85(data: bytes) -> str:
    text = ""
    for (number,) in struct.iter_unpack(">I", data):
        text += "".join(_Z85[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text


# -- Iceberg ----------------------------------------------------------------------------------------------------------


def catalog(folder: Path) -> Any:
    """A catalog in a file, and tables next to it."""
    from pyiceberg.catalog.sql import SqlCatalog

    folder.mkdir(parents=True, exist_ok=True)
    found = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    # pyiceberg 0.9 would put its tables into lake.db
    found.create_namespace_if_not_exists("lake", {"location": f"file://{folder}/lake"})
    return found


def iceberg_table(folder: Path, schema: Any, *partitioning: str) -> Any:
    """pyiceberg's table `lake.t` of a new catalog, partitioned by some columns."""
    their = catalog(folder).create_table("lake.t", schema)
    with their.update_spec() as update:
        for name in partitioning:
            update.add_identity(name)
    return their


def newest_metadata(table: str | Path) -> Path:
    """The metadata file of the highest number."""
    return max((Path(table) / "metadata").glob("*.metadata.json"), key=lambda path: int(path.name.split("-")[0]))


def read_iceberg(table: str | Path, metadata: str | Path | None = None) -> pa.Table:
    """All rows as pyiceberg reads them, deletes applied."""
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(f"file://{metadata or newest_metadata(table)}").scan().to_arrow()


def _new_deletes(table: str | Path) -> Path:
    """The path of a new delete file."""
    folder = Path(table) / "data"
    return folder / f"deletes-{len(list(folder.glob('deletes-*')))}.parquet"


def delete_positions(table: str | Path, path: str, rows: list[int]) -> Path:
    """Delete rows (by position) of a data file with a position delete file, as Spark does, past any catalog. Return the
    new metadata file."""
    import pyarrow.parquet as pq
    from pyiceberg.manifest import DataFileContent
    from pyiceberg.table import StaticTable

    file = _new_deletes(table)
    deleted = pa.table({"file_path": pa.array([path] * len(rows)), "pos": pa.array(rows, pa.int64())})
    pq.write_table(deleted, file)
    ends = {key: {2147483546: path.encode()} for key in ("lower_bounds", "upper_bounds")}
    live = StaticTable.from_metadata(f"file://{newest_metadata(table)}").scan().plan_files()
    partition = next(task.file.partition for task in live if task.file.file_path == path)
    return _with_delete_file(table, file, len(rows), DataFileContent.POSITION_DELETES, partition, **ends)


def delete_equal(table: str | Path, column: str, values: list) -> Path:
    """Delete rows by their value with an equality delete file, as Flink does, past any catalog."""
    import pyarrow.parquet as pq
    from pyiceberg.manifest import DataFileContent
    from pyiceberg.table import StaticTable

    known = StaticTable.from_metadata(f"file://{newest_metadata(table)}").schema().find_field(column)
    file = _new_deletes(table)
    field = pa.field(column, pa.int64(), metadata={"PARQUET:field_id": str(known.field_id)})
    pq.write_table(pa.table([values], schema=pa.schema([field])), file)
    return _with_delete_file(table, file, len(values), DataFileContent.EQUALITY_DELETES, equality_ids=[known.field_id])


def _with_delete_file(
    table: str | Path, file: Path, rows: int, content: Any, partition: Any = None, **more: Any
) -> Path:
    from pyiceberg.manifest import (
        DataFile,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
        write_manifest_list,
    )
    from pyiceberg.table import StaticTable
    from pyiceberg.typedef import Record

    before = newest_metadata(table)
    their = StaticTable.from_metadata(f"file://{before}")
    number = int(before.name.split("-")[0]) + 1
    snapshot, values = their.current_snapshot(), json.loads(before.read_text())
    new_id, sequence = number, values["last-sequence-number"] + 1
    metadata = f"file://{before.parent}"

    class DeleteManifest(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    output = their.io.new_output(f"{metadata}/deletes-{number}.avro")
    codec = ["deflate"] if has("pyiceberg", 0, 10) else []
    with DeleteManifest(their.spec(), their.schema(), output, new_id, *codec) as writer:
        data = DataFile.from_args(
            content=content,
            file_path=f"file://{file}",
            file_format=FileFormat.PARQUET,
            partition=partition or Record(*([None] * len(their.spec().fields))),
            record_count=rows,
            file_size_in_bytes=file.stat().st_size,
            **more,
        )
        data.spec_id = their.spec().spec_id
        entry = {"status": ManifestEntryStatus.ADDED, "snapshot_id": new_id, "sequence_number": None}
        writer.add_entry(ManifestEntry.from_args(**entry, file_sequence_number=None, data_file=data))
    listed = f"{metadata}/snap-{new_id}.avro"
    with write_manifest_list(
        2, their.io.new_output(listed), new_id, snapshot.snapshot_id, sequence, "deflate"
    ) as manifests:
        manifests.add_manifests([*snapshot.manifests(their.io), writer.to_manifest_file()])
    newest = {
        **values["snapshots"][-1],
        "snapshot-id": new_id,
        "parent-snapshot-id": snapshot.snapshot_id,
        "sequence-number": sequence,
        "manifest-list": listed,
        "summary": {"operation": "delete"},
    }
    values["snapshots"].append(newest)
    values["current-snapshot-id"], values["last-sequence-number"] = new_id, sequence
    values["refs"]["main"]["snapshot-id"] = new_id
    path = before.parent / f"{number:05d}-by-hand.metadata.json"
    path.write_text(json.dumps(values))
    return path
