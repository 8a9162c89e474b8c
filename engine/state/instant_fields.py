"""Reading an instant: what each of its fields may contain, and what must fit together, in one table.

`instant.py` explains the fields. A value that does not fit raises CorruptionError before anything uses it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from ...errors import CorruptionError, FormatVersionError, SchemaError
from ...hfile_like.block_values import check_schema
from ..predicates.coerce import is_list
from .coverage import MOVED_FILES_MAX, Coverage, DerivedColumn, Expression, IndexState, Run
from .fields import (
    FILE_ID_MAX,
    IDS_MAX,
    INSTANT_BYTES_MAX,
    INT64_MAX,
    PARTITIONS_MAX,
    SEQUENCES_MAX,
    TIME_US_MAX,
    VERSION_MAX,
    Field,
    FieldError,
    array,
    check_size,
    flag,
    hex_bytes,
    index_path,
    integer,
    mapping,
    nullable,
    one_of,
    pair,
    parse_json,
    plain,
    probability,
    ranges,
    record,
    text,
    unique_texts,
)
from .instant import COMMIT_STATES, INSTANT_FORMAT, REQUIRES_MOVED, FileSchema, Instant, checksum_of, seal_of


def parse_instant(data: bytes, *, path: str, modified_us: int | None = None, is_part: bool = False) -> Instant:
    """Return the instant of a sealed text, read from a file at `path` that was written at `modified_us` by the clock of
    its storage. Raise CorruptionError if it is not complete, or a value is not allowed; FormatVersionError if it is of
    another format. If `is_part`, fields may name parts of the instant that were left out."""
    try:
        check_size(data, INSTANT_BYTES_MAX)
        document, _, seal = data.partition(b"\n")
        if seal != seal_of(document):
            raise CorruptionError("not a whole instant: its checksum does not match", path=path, check="instant")
        plain = parse_json(document, INSTANT_BYTES_MAX)
        if type(plain) is not dict:
            raise FieldError("no object")
        written_as = plain.pop("format", None)
        if written_as != INSTANT_FORMAT:
            raise FormatVersionError(
                f"{path}: an index of format {written_as!r:.20}, and this version of Skipstone reads format "
                f"{INSTANT_FORMAT}: upgrade Skipstone, or remove the index's folder and create the index again if it "
                "is older than 0.2.0"
            )
        unknown = [name for name in array(text)(plain.pop("requires", [])) if name != REQUIRES_MOVED]
        if unknown:
            raise FormatVersionError(
                f"{path}: the index uses {unknown[0]!r:.60}, which this version of Skipstone does not support: "
                "upgrade it"
            )
        if "checksum" in plain:
            return _shrunk_instant(plain)
        instant: Instant = _INSTANT(plain)
        if not is_part:
            _check_references(instant)
    except FieldError as error:
        raise CorruptionError(f"not a whole instant ({error})", path=path, check="instant") from error
    # Facts about the text that was read, which are not part of it.
    instant.__dict__.update(modified_us=modified_us, checksum=checksum_of(document))
    return instant


_NODE_DEPTH_MAX = 20
_NODE_TYPE = re.compile(r"[A-Z][A-Z0-9_ ]*(?:\(\d+, \d+\))?")
_NODE_NUMBER = re.compile(r"-?(?:[0-9.]+(?:e[-+]?[0-9]+)?|inf|nan)")
_NODE_OPERATOR = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[-+*/%|&<>~^@#!=]{1,3}")


# -- reading: what each field may contain ------------------------------------------------------------------------------


def _schema(value: object) -> pa.Schema:
    """Read a schema in Arrow's IPC form, in base64."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(_base64(value)))
        _ = schema.names  # raises if one is not UTF-8
    except FieldError:
        raise
    except Exception as error:  # Arrow may raise anything for arbitrary bytes
        raise FieldError(f"no schema ({error})") from error
    return schema


def _defaults(value: object) -> dict[int, pa.Scalar]:
    """Read one row of an Arrow IPC stream, in base64; null without defaults."""
    if value is None:
        return {}
    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(_base64(value)))
        schema, batch = pa.ipc.read_schema(messages.read_next_message()), messages.read_next_message()
        if _is_compressed(batch.metadata.to_pybytes()):  # compressed data may take any amount of memory
            raise FieldError("defaults are compressed")
        row = pa.ipc.read_record_batch(batch, schema)
        row.validate(full=True)
        if row.num_rows != 1:
            raise FieldError(f"{row.num_rows} rows of defaults")
        return {int(name): row.column(i)[0] for i, name in enumerate(row.schema.names)}
    except FieldError:
        raise
    except Exception as error:  # Arrow may raise anything for arbitrary bytes
        raise FieldError(f"no row of defaults ({error})") from error


def _base64(value: object) -> bytes:
    return base64.b64decode(text(value), validate=True)


def _is_compressed(message: bytes) -> bool:
    """Return whether a record batch names a codec: the fourth field of the table that is the third field of its
    message, in Arrow's flatbuffers."""
    header = _member(message, _u32(message, 0), 2)
    return header is None or _member(message, header + _u32(message, header), 3) is not None


def _member(message: bytes, table: int, number: int) -> int | None:
    """Return the offset of a field of a flatbuffers table; None if the table lacks it."""
    offsets = table - int.from_bytes(message[table : table + 4], "little", signed=True)
    entry = 4 + 2 * number
    if entry + 2 > _u32(message, offsets) & 0xFFFF:
        return None
    offset = _u32(message, offsets + entry) & 0xFFFF
    return table + offset if offset else None


def _u32(message: bytes, offset: int) -> int:
    return int.from_bytes(message[offset : offset + 4], "little")


def _texts(value: object) -> list[str]:
    return list(array(text)(value))


def _columns(value: object) -> dict[str, int]:
    pairs = array(record({"id": _ID, "path": text}, lambda id, path: (path, id)))(value)
    return _one_each(dict(pairs), len(pairs))


def _ids(value: object) -> dict[str, int]:
    """Check {name: id}, without duplicate ids."""
    ids = mapping(text, _ID)(value)
    return _one_each(ids, len(ids))


def _nested(value: object) -> dict[tuple[str, ...], str | None]:
    pairs = array(record({"path": array(text), "name": nullable(text)}, lambda path, name: (path, name)))(value)
    if len(dict(pairs)) != len(pairs):
        raise FieldError("a field within a column is named twice")
    return dict(pairs)


def _one_each(ids: dict[str, int], count: int) -> dict[str, int]:
    if len(ids) != count or len(set(ids.values())) != count:
        raise FieldError("an id or a name is given twice")
    return ids


def _index(value: object) -> IndexState:
    index: IndexState = _INDEX_FIELDS(value)
    try:
        return replace(index, options=_OPTIONS.get(index.kind, plain)(index.options))
    except FieldError as error:
        raise FieldError(f"options: {error}") from None


def _node(value: object, depth: int = _NODE_DEPTH_MAX) -> list:
    """Check a node of an expression: see `predicates/expressions.py`."""
    if type(value) is not list or len(value) < 3 or not depth or not _NODE_TYPE.fullmatch(text(value[1])):
        raise FieldError("no node of an expression")
    if value[0] in ("column", "constant", "cast") and len(value) != 3:
        raise FieldError("a node has one child too many")
    if value[0] == "column":
        return [*value[:2], _ID(value[2])]
    if value[0] == "constant":
        if value[1] not in ("VARCHAR", "BOOLEAN") and not _NODE_NUMBER.fullmatch(text(value[2])):
            raise FieldError("no number of an expression")
        return [*value[:2], text(value[2]) if value[1] != "BOOLEAN" else flag(value[2])]
    if not _NODE_OPERATOR.fullmatch(text(value[0])):
        raise FieldError("no function of an expression")
    return [*value[:2], *(_node(child, depth - 1) for child in value[2:])]


def _expression(node: list, columns: tuple[int, ...]) -> Expression:
    if _columns_max(node) >= len(columns):
        raise FieldError("an expression reads a column that it does not name")
    return Expression(node, columns)


def _included(value: object) -> str:
    """Check a schema with ids as column names, and with types that a run can store."""
    schema = _schema(value)
    try:
        check_schema(schema)
    except SchemaError as error:
        raise FieldError(str(error)) from None
    if not len(schema) or not all(name.isascii() and name.isdigit() for name in schema.names):
        raise FieldError("columns are named by their ids")
    return text(value)


def _moved(value: object) -> tuple[tuple[int, int, int], ...]:
    """Read the files whose entries are those of files that they replaced."""
    number = integer(0, FILE_ID_MAX)
    moved = []
    for each in array(array(number))(value):
        if len(each) != 3 or each[1] < each[0] or each[2] + each[1] - each[0] > FILE_ID_MAX:
            raise FieldError(f"{list(each)[:4]} is no range of files and the first of as many others")
        moved.append((each[0], each[1], each[2]))
    if any(second[0] <= first[1] for first, second in pairwise(moved)):
        raise FieldError("the ranges of moved files do not ascend")
    if sum(last - first + 1 for first, last, _ in moved) > MOVED_FILES_MAX:
        raise FieldError(f"more than {MOVED_FILES_MAX:,} files are moved")
    return tuple(moved)


def _source(value: object) -> dict:
    source = _SOURCE(value)
    if source["kind"] != "directory" and not {"position", "table", "mark", "keys"} <= source.keys():
        raise FieldError("a log without its position, table, mark or keys")
    return source


_VERSION = integer(1, VERSION_MAX)
_COUNT = integer(0, INT64_MAX)
_CHANGE = integer(-INT64_MAX, INT64_MAX)
_ID = integer(0, IDS_MAX)
_RUN = record(
    {
        "path": index_path,
        "size_bytes": _COUNT,
        "entries": _COUNT,
        "segments": pair(integer(0, VERSION_MAX), integer(0, VERSION_MAX)),
        "first_key": hex_bytes,
        "last_key": hex_bytes,
    },
    Run,
)
_INDEX_FIELDS = record(
    {
        "id": _ID,
        "kind": text,
        "columns": array(_ID),
        "options": mapping(text, plain),
        "maintain": one_of("commit", "refresh"),
        "runs": array(_RUN),
        "coverage": record(
            {"segments": ranges(0, VERSION_MAX), "holes": ranges(0, FILE_ID_MAX), "moved": _moved},
            Coverage,
            optional=("moved",),
        ),
    },
    IndexState,
)
_SHARD_BYTES = integer(1, INT64_MAX)
_OPTIONS: dict[str, Field] = {
    # "duckdb": the minor version that computed the values of expressions
    "stats": record({"shard_bytes": _SHARD_BYTES, "duckdb": text}, optional=("shard_bytes", "duckdb")),
    "bloom": record({"fpp": probability, "duckdb": text}, optional=("duckdb",)),
    "secondary": record(
        {"shard_bytes": _SHARD_BYTES, "types": _texts, "duckdb": text, "include": _included},
        optional=("duckdb", "include"),
    ),
    "ngram": record({"ignore_case": flag, "grams": integer(1, INT64_MAX)}),
}
_SOURCE = record(
    {
        "kind": one_of("directory", "delta", "iceberg", "hudi"),
        "version": nullable(integer(-1, INT64_MAX)),
        "hive": flag,
        "partitions_declared": flag,
        "locations": array(text),
        "position": text,
        "table": text,
        "mark": text,
        "keys": mapping(text, _ID),
        "inner": mapping(text, text),
        "mapping": mapping(text, text),
        "last_id": integer(0, INT64_MAX),
        "folders": mapping(text, integer(0, INT64_MAX)),
        "marked": flag,
    },
    optional=(
        *("hive", "partitions_declared", "locations", "position", "table", "mark", "keys", "inner", "mapping"),
        *("last_id", "folders", "marked"),
    ),
)
_EXPRESSION = record({"node": _node, "columns": array(_ID)}, _expression)
_NAMES_OF_FILES: dict[str, Field] = {
    "schema": _schema,
    "fields": _ids,
    "columns": _ids,
    "is_declared": flag,
    "nested": _nested,
}
_SUMMARY_COUNTS = ("files_added", "files_removed", "rows_changed", "bytes_changed")
_SUMMARY_OF: dict[str, dict[str, Field]] = {
    "rollback": {"rolled_back": _VERSION},
    "restore": {"restored": _VERSION},
    "clean": {"versions": _COUNT, "data_files": _COUNT},
    "fence": {"fenced": _COUNT},
}
_INSTANT_FIELDS: dict[str, Field] = {
    "version": _VERSION,
    "transaction": text,
    "action": text,
    "time_us": integer(0, TIME_US_MAX),
    "table_id": text,
    "source": _source,
    "schema": _schema,
    "partitioning": unique_texts,
    "fields": _ids,
    "columns": _columns,
    "derived": array(record({"id": _ID, "field": nullable(_ID), "expression": nullable(_EXPRESSION)}, DerivedColumn)),
    "file_schemas": array(record(_NAMES_OF_FILES, FileSchema, optional=("nested",))),
    "next": record(
        {
            "sequence": integer(0, SEQUENCES_MAX),
            "partition": integer(0, PARTITIONS_MAX),
            **dict.fromkeys(("field", "column", "index"), _ID),
        }
    ),
    "manifest": array(_RUN),
    "indexes": array(_index),
    "totals": record(dict.fromkeys(("files", "rows", "bytes", "plain"), _COUNT)),
    "summary": mapping(text, plain),
    "quarantined": array(record({"path": text, "reason": text, "rows": nullable(_COUNT)})),
    "key": nullable(text),
    "fenced": array(text),
    "cleaned": ranges(1, VERSION_MAX),
    "savepoints": mapping(text, _VERSION),
    "commit_states": mapping(text, one_of(*COMMIT_STATES)),
    "defaults": _defaults,
    "retired": array(text),
    "previous": nullable(pair(_VERSION, hex_bytes)),
}
_INSTANT = record(_INSTANT_FIELDS, Instant)

HISTORY = ("version", "transaction", "action", "time_us", "key", "summary", "totals", "fenced")
_OF_CHAIN = ("table_id", "previous", "source")
_SHRUNK = record(
    {
        **{name: _INSTANT_FIELDS[name] for name in (*HISTORY, *_OF_CHAIN)},
        "checksum": hex_bytes,
        "modified_us": integer(0, TIME_US_MAX),
    }
)


def history_of(instant: Instant) -> dict:
    """Return the fields of an instant that history contains (`HISTORY`)."""
    return {**{name: getattr(instant, name) for name in HISTORY}, "time_us": instant.when_us}


def shrunk_text(instant: Instant) -> bytes:
    """Return the text that is stored of a cleaned version: its history, what it follows and fenced, the checksum of its
    whole text, and when that was written."""
    plain: dict = {name: getattr(instant, name) for name in (*HISTORY, *_OF_CHAIN)}
    plain |= {"format": INSTANT_FORMAT, "checksum": instant.checksum, "modified_us": instant.aged_us}
    plain["source"] = {name: value for name, value in instant.source.items() if name != "folders"}
    document = json.dumps(plain, ensure_ascii=False).encode()
    return document + b"\n" + seal_of(document)


def _shrunk_instant(plain: dict) -> Instant:
    fields: dict = _SHRUNK(plain)
    _check_summary(fields["action"], fields["summary"])
    known = {name: fields.pop(name) for name in ("checksum", "modified_us")}
    instant = replace(Instant.before_first(fields["transaction"], fields["time_us"], fields["table_id"]), **fields)
    instant.__dict__.update(known, is_shrunk=True)
    return instant


def _check_summary(action: str, summary: dict) -> None:
    for name in _SUMMARY_COUNTS:
        _CHANGE(summary.get(name, 0))
    for name, field_of in _SUMMARY_OF.get(action, {}).items():
        field_of(summary.get(name))


def _check_references(instant: Instant) -> None:
    """Raise FieldError if one field names something that another field does not contain."""
    version = instant.version
    runs = [*instant.manifest, *(run for index in instant.indexes for run in index.runs)]
    indexed = {column for index in instant.indexes for column in index.columns}
    ranges_of = [*instant.cleaned, *(each for i in instant.indexes for each in i.coverage.segments)]
    newest = max((0, *instant.savepoints.values(), *(last for _, last in ranges_of)))
    following = instant.next
    _check_summary(instant.action, instant.summary)
    checks = {
        "previous": instant.previous is None or instant.previous[0] < version,
        "savepoints, cleaned, coverage": newest <= version,
        "manifest, runs": all(run.segments[0] <= run.segments[1] <= version for run in runs),
        "schema": len(set(instant.schema.names)) == len(instant.schema.names),
        "fields": instant.fields.keys() == set(instant.schema.names),
        "partitioning": instant.fields.keys() >= set(instant.partitioning),
        "columns": instant.columns.keys() <= set(_paths(instant.schema)),
        "derived": _are_derived(instant),
        "index columns": indexed <= set(instant.ids.values()),
        "next": (
            max(instant.fields.values(), default=0) < following["field"]
            and max(instant.ids.values(), default=0) < following["column"]
            and max((i.id for i in instant.indexes), default=0) < following["index"]
        ),
        "index ids": len({i.id for i in instant.indexes}) == len(instant.indexes),
        "totals": instant.totals["plain"] <= instant.totals["files"],
        "manifest": bool(instant.manifest) or not instant.totals["files"],
        "file_schemas": all({*s.fields} <= {*s.schema.names} for s in instant.file_schemas),
    }
    for name, is_valid in checks.items():
        if not is_valid:
            raise FieldError(f"{name}: does not fit the rest of the instant")


def _are_derived(instant: Instant) -> bool:
    """Return whether each derived column has a unique id, columns that exist, and only indexes that may cover it."""
    lists = {number for name, number in instant.fields.items() if is_list(instant.schema.field(name).type)}
    leaves, ids = set(instant.columns.values()), {one.id for one in instant.derived}
    elements = {one.id for one in instant.derived if one.expression is None}
    expressions = [one.expression for one in instant.derived if one.expression is not None]
    return (
        len(ids) == len(instant.derived)
        and len({one.field for one in instant.derived if one.id in elements}) == len(elements)
        and ids.isdisjoint(leaves)
        and all((one.field in lists) == (one.expression is None) for one in instant.derived)
        and all(leaves >= set(one.columns) for one in expressions)
        and all(elements.isdisjoint(index.columns) or not index.is_statistics for index in instant.indexes)
        and all(elements.isdisjoint(index.columns) or len(index.columns) == 1 for index in instant.indexes)
    )


def _columns_max(node: Any) -> int:
    """Return the greatest position of a column in a node of an expression, -1 if it has none."""
    if node[0] == "column":
        return node[2]
    return -1 if node[0] == "constant" else max(_columns_max(child) for child in node[2:])


def _paths(fields: Iterable[pa.Field], prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths of columns, through structs."""
    for field in fields:
        yield prefix + field.name
        if pa.types.is_struct(field.type):
            yield from _paths(field.type, f"{prefix}{field.name}.")
