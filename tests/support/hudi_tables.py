"""Hudi tables, written as Hudi writes them: base files, log blocks, and the files of the timeline.

`HudiTable.expected()` returns each file that is read, by Hudi's rules, and `rows()` the rows.
"""

from __future__ import annotations

import io
import itertools
import json
import struct
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

META = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path"]
META.append("_hoodie_file_name")
SCHEMA = pa.schema([*((name, pa.string()) for name in META), ("k", pa.string()), ("v", pa.int64()), ("p", pa.string())])


def _record(name: str, **fields: object) -> dict:
    """An Avro record of fields with these types."""
    return {"type": "record", "name": name, "fields": [{"name": name, "type": of} for name, of in fields.items()]}


def _map(values: object) -> dict:
    return {"type": "map", "values": values}


def _array(items: object) -> dict:
    return {"type": "array", "items": items}


_STRING, _LONG = ["null", "string"], ["null", "long"]
AVRO = _record("t_record", k=_STRING, v=_LONG, p=_STRING)
AVRO_WITH_META = _record("t_record", **dict.fromkeys(META, _STRING), k=_STRING, v=_LONG, p=_STRING)
_STAT = _record("HoodieWriteStat", fileId=_STRING, path=_STRING, prevCommit=_STRING, fileSizeInBytes=_LONG)
_COMMIT = _record(
    "HoodieReplaceCommitMetadata",
    partitionToWriteStats=["null", _map(_array(_STAT))],
    extraMetadata=["null", _map("string")],
    partitionToReplaceFileIds=["null", _map(_array("string"))],
)
_ROLLBACK = _record(
    "HoodieRollbackMetadata",
    commitsRollback=_array("string"),
    partitionMetadata=_map(_record("P", rollbackLogFiles=_map("long"))),
)
_CLEAN = _record("HoodieCleanMetadata", earliestCommitToRetain="string")
_DELETED = _record("HoodieDeleteRecord", recordKey=_STRING, partitionPath=_STRING, orderingVal=["null", "int"])
_DELETES = _record("HoodieDeleteRecordList", deleteRecordList=_array(_DELETED))
DATA, DELETE, COMMAND, PARQUET = 3, 1, 0, 5


def avro(schema: dict, value: dict) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(schema), [value])
    return out.getvalue()


def log_block(kind: int, headers: dict[int, str], content: bytes = b"") -> bytes:
    """One block of a log file, in format version 1."""
    body = struct.pack(">II", 1, kind) + struct.pack(">I", len(headers))
    for key, text in headers.items():
        body += struct.pack(">II", key, len(text.encode())) + text.encode()
    body += struct.pack(">Q", len(content)) + content + struct.pack(">I", 0)
    return b"#HUDI#" + struct.pack(">Q", len(body) + 8) + body + struct.pack(">Q", len(body) + 14)


def _encoded(schema: dict, value: dict) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def data_content(rows: list[dict]) -> bytes:
    """The content of an Avro data block."""
    encoded = [_encoded(AVRO_WITH_META, row) for row in rows]
    return struct.pack(">II", 3, len(rows)) + b"".join(struct.pack(">I", len(row)) + row for row in encoded)


def parquet_content(rows: list[dict]) -> bytes:
    """The content of a Parquet data block."""
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), out)
    return out.getvalue()


def delete_content(keys: list[str], partition: str) -> bytes:
    """The content of a delete block of version 3."""
    rows = [{"recordKey": key, "partitionPath": partition, "orderingVal": None} for key in keys]
    encoded = _encoded(_DELETES, {"deleteRecordList": rows})
    return struct.pack(">II", 3, len(encoded)) + encoded


@dataclass
class Group:
    """A file group: its base, the logs over it (path -> kind), its rows by key."""

    partition: str
    id: str
    base: str | None = None
    base_time: str = ""
    logs: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    slice: str = ""  # the instant that names new logs (layout 1)
    log_count: int = 0
    busy: int = 0
    pending: str = ""  # a pending compaction


@dataclass
class Write:
    """A writer at work: what it wrote, and what becomes true when it completes."""

    time: str
    action: str
    stats: dict[str, list[dict]] = field(default_factory=dict)
    replaced: list[Group] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    logs: list[tuple[Group, str]] = field(default_factory=list)
    effects: list = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)


def _updated(rows: dict[str, int], new: dict[str, int], deleted: Collection[str] | None) -> dict[str, int]:
    return {key: value for key, value in {**rows, **new}.items() if key not in (deleted or ())}


_OF_LAYOUT_2 = {"hoodie.timeline.path": "timeline", "hoodie.timeline.history.path": "history"}


class HudiTable:
    """version: 6 (timeline layout 1) or 9 (layout 2)."""

    def __init__(
        self,
        folder: Path,
        version: int = 6,
        kind: str = "COPY_ON_WRITE",
        drops_partition: bool = False,
        has_parquet_logs: bool = False,
        **properties: str,
    ):
        self.drops_partition, self.has_parquet_logs = drops_partition, has_parquet_logs
        self.folder, self.version, self.kind = folder, version, kind
        self.layout = 1 if version < 8 else 2
        self.timeline = folder / ".hoodie" if self.layout == 1 else folder / ".hoodie" / "timeline"
        self.timeline.mkdir(parents=True)
        self.groups: list[Group] = []
        self.replaced: list[tuple[Group, str]] = []
        self.completed_at: dict[str, str] = {}
        self.savepoints: dict[str, tuple[dict[str, str], dict[str, int]]] = {}
        self._clock = itertools.count(1)
        properties = {
            "hoodie.table.name": "t",
            "hoodie.table.type": kind,
            "hoodie.table.version": str(version),
            "hoodie.timeline.layout.version": str(self.layout),
            "hoodie.table.recordkey.fields": "k",
            "hoodie.table.partition.fields": "p",
            "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
            "hoodie.table.create.schema": json.dumps(AVRO).replace(":", "\\:"),
            **({} if self.layout == 1 else _OF_LAYOUT_2),
            **properties,
        }
        text = "#Properties\n" + "".join(f"{key}={value}\n" for key, value in properties.items())
        (folder / ".hoodie" / "hoodie.properties").write_text(text)

    def tick(self) -> str:
        return str(20260101000000000 + 1000 * next(self._clock))

    # -- the timeline -------------------------------------------------------------------------------------------------

    def put(self, time: str, action: str, state: str, data: bytes = b"") -> None:
        if state == "completed":
            done = self.completed_at[time] = self.tick()
            name = f"{time}.{action}" if self.layout == 1 else f"{time}_{done}.{action}"
        elif action == "commit" and state == "inflight":
            name = f"{time}.inflight"
        else:
            name = f"{time}.{action}.{state}"
        (self.timeline / name).write_bytes(data)

    def begin(self, action: str | None = None) -> Write:
        action = action or ("deltacommit" if self.kind == "MERGE_ON_READ" else "commit")
        write = Write(self.tick(), action)
        self.put(write.time, action, "requested")
        self.put(write.time, action, "inflight")
        return write

    def complete(self, write: Write, schema: dict | None = None) -> None:
        replaced: dict[str, list[str]] = {}
        for group in write.replaced:
            replaced.setdefault(group.partition, []).append(group.id)
        value = {
            "partitionToWriteStats": write.stats,
            "extraMetadata": {"schema": json.dumps(AVRO if schema is None else schema)},
            "partitionToReplaceFileIds": replaced,
        }
        action = {"compaction": "commit", "clustering": "replacecommit"}.get(write.action, write.action)
        data = avro(_COMMIT, value) if self.layout == 2 else json.dumps(value).encode()
        self.put(write.time, action, "completed", data)
        for effect in write.effects:
            effect()
        for group in write.replaced:
            self.groups.remove(group)
            self.replaced.append((group, write.time))
        self._release(write)

    def crash(self, write: Write) -> None:
        """The writer died; its files stay."""
        self._release(write)

    def _release(self, write: Write) -> None:
        for group in write.groups:
            group.busy -= 1
        write.groups = []

    def roll_back(self, write: Write) -> None:
        """Undo the write of a writer that died, as Hudi does."""
        time = self.tick()
        self.put(time, "rollback", "requested")
        self.put(time, "rollback", "inflight")
        touched: dict[str, dict] = {}
        for group, name in write.logs:
            if self.layout == 1:
                block = log_block(COMMAND, {0: time, 1: write.time, 3: "0"})
                path = self._log_path(group, time, name)
                (self.folder / path).write_bytes(block)
                touched.setdefault(group.partition, {"rollbackLogFiles": {}})["rollbackLogFiles"][path] = len(block)
            else:
                (self.folder / group.partition / name).unlink()
        for file in write.files:
            file.unlink()
        for path in self.timeline.glob(f"{write.time}.*"):
            path.unlink()
        value = {"commitsRollback": [write.time], "partitionMetadata": touched}
        self.put(time, "rollback", "completed", avro(_ROLLBACK, value))

    # -- what writers do ----------------------------------------------------------------------------------------------

    def insert(self, write: Write, partition: str, rows: dict[str, int]) -> Group:
        """A new file group."""
        group = Group(partition, f"{uuid.uuid4()}-0")
        path = self._write_base(write, group, rows, "null")

        def effect() -> None:
            group.base, group.base_time, group.slice, group.rows = path, write.time, write.time, dict(rows)
            self.groups.append(group)

        write.effects.append(effect)
        return group

    def update(self, write: Write, group: Group, rows: dict[str, int], deleted: list[str] | None = None) -> None:
        """Change and delete rows: a new base of a copy-on-write table, else logs."""
        self._touch(write, group)
        path = ""
        if self.kind == "MERGE_ON_READ":
            if rows:
                self._write_log(write, group, DATA, rows)
            if deleted:
                self._write_log(write, group, DELETE, deleted)
        else:
            path = self._write_base(write, group, _updated(group.rows, rows, deleted), group.base_time)

        def effect() -> None:
            group.rows = _updated(group.rows, rows, deleted)
            if path:
                group.base, group.base_time = path, write.time

        write.effects.append(effect)

    def commit_insert(self, partition: str, rows: dict[str, int]) -> Group:
        """Commit a new file group."""
        write = self.begin()
        group = self.insert(write, partition, rows)
        self.complete(write)
        return group

    def commit_update(self, group: Group, rows: dict[str, int], deleted: list[str] | None = None) -> Write:
        """Commit an update."""
        write = self.begin()
        self.update(write, group, rows, deleted)
        self.complete(write)
        return write

    def replace(self, write: Write, groups: list[Group], partition: str, rows: dict[str, int]) -> None:
        for group in groups:
            self._touch(write, group)
        write.replaced += groups
        self.insert(write, partition, rows)

    def schedule_compaction(self, groups: list[Group]) -> Write:
        write = Write(self.tick(), "compaction")
        self.put(write.time, "compaction", "requested")
        for group in groups:
            taken, rows = dict(group.logs), dict(group.rows)
            group.pending = group.slice = write.time

            # the base is written before the compaction completes
            path = self._write_base(write, group, rows, group.base_time)

            def effect(group: Group = group, taken: dict = taken, base: str = path) -> None:
                group.base, group.base_time, group.pending = base, write.time, ""
                group.logs = {path: kind for path, kind in group.logs.items() if path not in taken}

            write.effects.append(effect)
        self.put(write.time, "compaction", "inflight")
        return write

    def _touch(self, write: Write, group: Group) -> None:
        if group not in write.groups:
            group.busy += 1
            write.groups.append(group)

    def _write_base(self, write: Write, group: Group, rows: dict[str, int], previous: str) -> str:
        path = f"{group.partition}/{group.id}_0-1-2_{write.time}.parquet".lstrip("/")
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / ".hoodie_partition_metadata").write_text("partitionDepth=1\n")
        records = [self._row(write.time, group, k, v) for k, v in rows.items()]
        table = pa.Table.from_pylist(records, schema=SCHEMA)
        pq.write_table(table.drop_columns(["p"]) if self.drops_partition else table, file)
        write.files.append(file)
        self._add_stat(write, group, path, previous)
        return path

    def _add_stat(self, write: Write, group: Group, path: str, previous: str) -> None:
        size_bytes = (self.folder / path).stat().st_size
        stat = {"fileId": group.id, "path": path, "prevCommit": previous, "fileSizeInBytes": size_bytes}
        write.stats.setdefault(group.partition, []).append(stat)

    def _row(self, time: str, group: Group, key: str, value: int) -> dict:
        meta = {**dict.fromkeys(META, ""), META[0]: time, META[2]: key, META[3]: group.partition}
        return {**meta, "k": key, "v": value, "p": group.partition.removeprefix("p=")}

    def _log_path(self, group: Group, time: str, of_log: str | None = None) -> str:
        """The path of a new log of a group; of the slice of the log `of_log` if it is given."""
        group.log_count += 1
        at = group.slice if self.layout == 1 else time
        if of_log is not None:
            at = of_log.rsplit("_", 2)[1].split(".")[0]
        return f"{group.partition}/.{group.id}_{at}.log.{group.log_count}_0-1-{group.log_count}".lstrip("/")

    def _write_log(self, write: Write, group: Group, kind: int, rows: Collection[str]) -> None:
        path = self._log_path(group, write.time)
        if kind == DATA:
            records = [self._row(write.time, group, k, v) for k, v in rows.items()]
            content = parquet_content(records) if self.has_parquet_logs else data_content(records)
        else:
            content = delete_content(list(rows), group.partition)
        number = PARQUET if kind == DATA and self.has_parquet_logs else kind
        block = log_block(number, {0: write.time, 2: json.dumps(AVRO_WITH_META)}, content)
        (self.folder / path).write_bytes(block)
        write.logs.append((group, Path(path).name))
        self._add_stat(write, group, path, write.time)
        write.effects.append(lambda: group.logs.update({path: "log" if kind == DATA else "delete"}))

    # -- table services -----------------------------------------------------------------------------------------------

    def savepoint(self) -> None:
        """Keep the current state, in which no write may be pending: its files (path -> kind), and its rows."""
        time = self._writes()[-1]
        done = "" if self.layout == 1 else f"_{self.tick()}"
        (self.timeline / f"{time}{done}.savepoint").write_bytes(b"")
        self.savepoints[time] = self.expected(), self.rows()

    def clean(self) -> int:
        """Remove files of completed commits that no state reads any more; return how many."""
        if any(group.busy for group in self.groups):
            return 0
        times = self._writes()
        pending = {path.name.split(".")[0] for path in self.timeline.iterdir()} - set(times)
        live, removed = set(self.expected()).union(*(files for files, _ in self.savepoints.values())), 0
        for file in self.folder.glob("**/*_*"):
            path = file.relative_to(self.folder).as_posix()
            if ".hoodie" in path or path in live or file.is_dir():
                continue
            written = file.name.rsplit("_", 1)[-1].split(".")[0]
            if file.suffix == ".parquet" and written not in pending and written in self.completed_at:
                file.unlink()
                removed += 1
        time = self.tick()
        for state in ("requested", "inflight"):
            self.put(time, "clean", state)
        self.put(time, "clean", "completed", avro(_CLEAN, {"earliestCommitToRetain": times[-1] if times else ""}))
        return removed

    def archive(self, keep: int) -> None:
        """Remove the oldest completed writes from the active timeline, up to the first that is pending."""
        times = self._writes()
        all_times = sorted({path.name.split(".")[0].split("_")[0] for path in self.timeline.glob("2*")})
        pending = [t for t in all_times if t not in self.completed_at]
        stays = min([*pending, *self.savepoints], default="9")
        archived = [t for t in times[:-keep] if t < stays]
        for group, replaced_at in self.replaced:
            if replaced_at in archived:  # Hudi archives it once its files are cleaned
                for path in (self.folder / group.partition).glob(f"*{group.id}*"):
                    path.unlink()
        for time in archived:
            for path in self.timeline.glob(f"{time}[._]*"):
                path.unlink()
        if self.layout == 2 and archived:
            history = self.timeline / "history"
            history.mkdir(exist_ok=True)
            number = len(list(history.glob("manifest_*"))) + 1
            before = []
            if number > 1:
                before = json.loads((history / f"manifest_{number - 1}").read_text())["files"]
            rows = pa.table({"instantTime": archived, "completionTime": [self.completed_at[t] for t in archived]})
            name = f"{archived[0]}_{archived[-1]}_0.parquet"
            pq.write_table(rows, history / name)
            files = [*before, {"fileName": name, "fileLen": (history / name).stat().st_size}]
            (history / f"manifest_{number}").write_text(json.dumps({"files": files}))
            (history / "_version_").write_text(str(number))

    def _writes(self) -> list[str]:
        ends = (".commit", ".deltacommit", ".replacecommit")
        return sorted(
            path.name.split(".")[0].split("_")[0] for path in self.timeline.iterdir() if path.name.endswith(ends)
        )

    # -- what is live -------------------------------------------------------------------------------------------------

    def expected(self) -> dict[str, str]:
        """Return path -> kind of every file that is read."""
        found: dict[str, str] = {}
        for group in self.groups:
            if group.base is not None:
                found[group.base] = "base"
            found.update(group.logs)
        return found

    def rows(self) -> dict[str, int]:
        return {key: value for group in self.groups for key, value in group.rows.items()}
