"""Hudi tables, written as Hudi writes them: base files, log blocks, and the files of the timeline, by hand.

`HudiTable` knows what is live: `expected()` gives each file that is read, by Hudi's rules, and `rows()` the rows.
"""

from __future__ import annotations

import io
import itertools
import json
import struct
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

META = ["_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path"]
META.append("_hoodie_file_name")
SCHEMA = pa.schema([*((name, pa.string()) for name in META), ("k", pa.string()), ("v", pa.int64()), ("p", pa.string())])
_STRING, _LONG = ["null", "string"], ["null", "long"]
_DATA_FIELDS = [{"name": "k", "type": _STRING}, {"name": "v", "type": _LONG}, {"name": "p", "type": _STRING}]
AVRO = {"type": "record", "name": "t_record", "fields": _DATA_FIELDS}
AVRO_WITH_META = {**AVRO, "fields": [*({"name": name, "type": _STRING} for name in META), *_DATA_FIELDS]}
_STAT = {
    "type": "record",
    "name": "HoodieWriteStat",
    "fields": [
        {"name": "fileId", "type": _STRING},
        {"name": "path", "type": _STRING},
        {"name": "prevCommit", "type": _STRING},
        {"name": "fileSizeInBytes", "type": _LONG},
    ],
}
_REPLACED = {"type": "map", "values": {"type": "array", "items": "string"}}
_COMMIT = {
    "type": "record",
    "name": "HoodieReplaceCommitMetadata",
    "fields": [
        {
            "name": "partitionToWriteStats",
            "type": ["null", {"type": "map", "values": {"type": "array", "items": _STAT}}],
        },
        {"name": "extraMetadata", "type": ["null", {"type": "map", "values": "string"}]},
        {"name": "partitionToReplaceFileIds", "type": ["null", _REPLACED]},
    ],
}
_LOGS_OF = {
    "type": "record",
    "name": "P",
    "fields": [{"name": "rollbackLogFiles", "type": {"type": "map", "values": "long"}}],
}
_ROLLBACK = {
    "type": "record",
    "name": "HoodieRollbackMetadata",
    "fields": [
        {"name": "commitsRollback", "type": {"type": "array", "items": "string"}},
        {"name": "partitionMetadata", "type": {"type": "map", "values": _LOGS_OF}},
    ],
}
_CLEAN = {
    "type": "record",
    "name": "HoodieCleanMetadata",
    "fields": [{"name": "earliestCommitToRetain", "type": "string"}],
}
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


def data_content(rows: list[dict]) -> bytes:
    """The content of an Avro data block."""
    out = struct.pack(">II", 3, len(rows))
    for row in rows:
        one = io.BytesIO()
        fastavro.schemaless_writer(one, fastavro.parse_schema(AVRO_WITH_META), row)
        out += struct.pack(">I", len(one.getvalue())) + one.getvalue()
    return out


def parquet_content(rows: list[dict]) -> bytes:
    """The content of a Parquet data block."""
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), out)
    return out.getvalue()


@dataclass
class Group:
    """A file group as it stands: its base, the logs over it (path -> kind), its rows by key."""

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


_OF_LAYOUT_2 = {
    "hoodie.timeline.path": "timeline",
    "hoodie.timeline.history.path": "history",
}


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
        given = {
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
        text = "#Properties\n" + "".join(f"{key}={value}\n" for key, value in given.items())
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
        self.put(
            write.time, action, "completed", avro(_COMMIT, value) if self.layout == 2 else json.dumps(value).encode()
        )
        for effect in write.effects:
            effect()
        for group in write.replaced:
            self.groups.remove(group)
            self.replaced.append((group, write.time))
        self._release(write)

    def crash(self, write: Write) -> None:
        """The writer is no more; what it wrote stays."""
        self._release(write)

    def _release(self, write: Write) -> None:
        for group in write.groups:
            group.busy -= 1
        write.groups = []

    def roll_back(self, write: Write) -> None:
        """What Hudi does with a writer that died."""
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
        """New values of some rows, or some rows fewer: a base of a copy-on-write table, a log else."""
        self._touch(write, group)
        if self.kind == "MERGE_ON_READ":
            for kind, given in ((DATA, rows), (DELETE, deleted or [])):
                if given:
                    self._write_log(write, group, kind, given)
        else:
            merged = {k: v for k, v in {**group.rows, **rows}.items() if k not in (deleted or [])}
            path = self._write_base(write, group, merged, group.base_time)

            def as_base() -> None:
                group.base, group.base_time = path, write.time

            write.effects.append(as_base)

        def effect() -> None:
            group.rows = {k: v for k, v in {**group.rows, **rows}.items() if k not in (deleted or [])}

        write.effects.append(effect)

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

            def effect(group: Group = group, taken: dict = taken, rows: dict = rows) -> None:
                group.base = self._write_base(write, group, rows, group.base_time, is_stat=False)
                group.base_time, group.pending = write.time, ""
                group.logs = {path: kind for path, kind in group.logs.items() if path not in taken}

            write.effects.append(effect)
            # the base is written before the compaction completes
            path = self._base_path(write, group)
            self._write_rows(path, write, group, rows)
            size = (self.folder / path).stat().st_size
            stat = {"fileId": group.id, "path": path, "prevCommit": group.base_time, "fileSizeInBytes": size}
            write.stats.setdefault(group.partition, []).append(stat)
        self.put(write.time, "compaction", "inflight")
        return write

    def _touch(self, write: Write, group: Group) -> None:
        if group not in write.groups:
            group.busy += 1
            write.groups.append(group)

    def _base_path(self, write: Write, group: Group) -> str:
        return f"{group.partition}/{group.id}_0-1-2_{write.time}.parquet".lstrip("/")

    def _write_base(self, write: Write, group: Group, rows: dict[str, int], previous: str, is_stat: bool = True) -> str:
        path = self._base_path(write, group)
        if not is_stat:
            return path
        self._write_rows(path, write, group, rows)
        file = self.folder / path
        write.files.append(file)
        stat = {"fileId": group.id, "path": path, "prevCommit": previous, "fileSizeInBytes": file.stat().st_size}
        write.stats.setdefault(group.partition, []).append(stat)
        return path

    def _write_rows(self, path: str, write: Write, group: Group, rows: dict[str, int]) -> None:
        folder = self.folder / group.partition
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".hoodie_partition_metadata").write_text("partitionDepth=1\n")
        records = [self._record(write.time, group, k, v) for k, v in rows.items()]
        table = pa.Table.from_pylist(records, schema=SCHEMA)
        pq.write_table(table.drop_columns(["p"]) if self.drops_partition else table, self.folder / path)

    def _record(self, time: str, group: Group, key: str, value: int) -> dict:
        return {**dict.fromkeys(META, ""), META[0]: time, META[2]: key, META[3]: group.partition, "k": key, "v": value,
                "p": group.partition.removeprefix("p=")}  # fmt: skip

    def _log_path(self, group: Group, time: str, beside: str | None = None) -> str:
        group.log_count += 1
        at = group.slice if self.layout == 1 else time
        if beside is not None:
            at = beside.rsplit("_", 2)[1].split(".")[0]
        return f"{group.partition}/.{group.id}_{at}.log.{group.log_count}_0-1-{group.log_count}".lstrip("/")

    def _write_log(self, write: Write, group: Group, kind: int, given) -> None:
        path = self._log_path(group, write.time)
        if kind == DATA:
            records = [self._record(write.time, group, k, v) for k, v in given.items()]
            content = parquet_content(records) if self.has_parquet_logs else data_content(records)
        else:
            content = delete_content(list(given), group.partition)
        number = PARQUET if kind == DATA and self.has_parquet_logs else kind
        block = log_block(number, {0: write.time, 2: json.dumps(AVRO_WITH_META)}, content)
        (self.folder / path).write_bytes(block)
        write.logs.append((group, Path(path).name))
        stat = {"fileId": group.id, "path": path, "prevCommit": write.time, "fileSizeInBytes": len(block)}
        write.stats.setdefault(group.partition, []).append(stat)
        write.effects.append(lambda: group.logs.update({path: "log" if kind == DATA else "delete"}))

    # -- table services -----------------------------------------------------------------------------------------------

    def savepoint(self) -> None:
        """Keeps the state of now, in which no write may be pending: its files (path -> kind), and its rows."""
        time = self._writes()[-1]
        done = "" if self.layout == 1 else f"_{self.tick()}"
        (self.timeline / f"{time}{done}.savepoint").write_bytes(b"")
        self.savepoints[time] = self.expected(), self.rows()

    def clean(self) -> int:
        """Removes files of completed commits that are read no more; returns how many."""
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
        """Takes the oldest completed writes out of the active timeline, up to the first that is pending."""
        times = self._writes()
        all_times = sorted({path.name.split(".")[0].split("_")[0] for path in self.timeline.glob("2*")})
        pending = [t for t in all_times if t not in self.completed_at]
        stays = min([*pending, *self.savepoints], default="9")
        gone = [t for t in times[:-keep] if t < stays]
        for group, replaced_at in self.replaced:
            if replaced_at in gone:  # Hudi archives it once its files are cleaned
                for path in (self.folder / group.partition).glob(f"*{group.id}*"):
                    path.unlink()
        for time in gone:
            for path in self.timeline.glob(f"{time}[._]*"):
                path.unlink()
        if self.layout == 2 and gone:
            history = self.timeline / "history"
            history.mkdir(exist_ok=True)
            number = len(list(history.glob("manifest_*"))) + 1
            before = []
            if number > 1:
                before = json.loads((history / f"manifest_{number - 1}").read_text())["files"]
            rows = pa.table({"instantTime": gone, "completionTime": [self.completed_at[t] for t in gone]})
            name = f"{gone[0]}_{gone[-1]}_0.parquet"
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
        """path -> kind of every file that is read."""
        found: dict[str, str] = {}
        for group in self.groups:
            if group.base is not None:
                found[group.base] = "base"
            found.update(group.logs)
        return found

    def rows(self) -> dict[str, int]:
        return {key: value for group in self.groups for key, value in group.rows.items()}


def delete_content(keys: list[str], partition: str) -> bytes:
    """The content of a delete block of version 3."""
    record = {
        "type": "record",
        "name": "HoodieDeleteRecord",
        "fields": [
            {"name": "recordKey", "type": _STRING},
            {"name": "partitionPath", "type": _STRING},
            {"name": "orderingVal", "type": ["null", "int"]},
        ],
    }
    schema = {
        "type": "record",
        "name": "HoodieDeleteRecordList",
        "fields": [{"name": "deleteRecordList", "type": {"type": "array", "items": record}}],
    }
    out = io.BytesIO()
    rows = [{"recordKey": key, "partitionPath": partition, "orderingVal": None} for key in keys]
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"deleteRecordList": rows})
    return struct.pack(">II", 3, len(out.getvalue())) + out.getvalue()
