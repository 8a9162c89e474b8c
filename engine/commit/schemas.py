"""How the schemas of files relate to the table's schema, and which leaf of a file is which column of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...base.arrays import string_scalar, to_numpy
from ...errors import SchemaError
from .. import hive
from ..indexes.kind import ProbedFiles, first_stats, kind_or_none, planned_probes
from ..indexes.probe_results import Outcomes
from ..indexes.task_result import TaskResult, quarantined_file
from ..parquet.leaves import NestedNames, in_table_names, leaf_names, leaf_types, plain_schema
from ..predicates import can_match, prepare, terms_of
from ..predicates.coerce import is_list, merged_type
from ..state import FileSchema, Instant
from ..state.coverage import DerivedColumn
from ..state.manifest import BASE
from ..state.runs import DamagedRun
from ..state.snapshot import Snapshot
from ..storage import Storage

_leaf_types = lru_cache(256)(leaf_types)  # a commit reads those of its table and of its files several times
_NS_EACH = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "day": 86_400_000_000_000}
_DAYS_MAX = ((1 << 63) - 1) // _NS_EACH["day"]  # from 1970, forwards and backwards, in nanoseconds


def unified(schemas: Sequence[pa.Schema], examples: Sequence[str]) -> pa.Schema:
    """Return a schema in which every file can be read: columns of all, each of a type that contains all of its values
    exactly. `examples` names a file per schema. Raise SchemaError that names two files if there is no such type."""
    types: dict[str, pa.DataType] = {}
    homes: dict[str, str] = {}
    for schema, example in zip(schemas, examples, strict=True):
        _check_names(schema, example)
        for field in plain_schema(schema):
            kind = types.setdefault(field.name, field.type)
            merged = merged_type(kind, field.type)
            if merged is None:
                raise SchemaError(
                    f"column {field.name!r} is {field.type} in {example} and {kind} in {homes[field.name]}: no type "
                    "contains the values of both exactly; index them as two tables, or rewrite one"
                )
            types[field.name] = merged
            homes.setdefault(field.name, example)
    return pa.schema(list(types.items()))


def with_partition_columns(schema: pa.Schema, fields: Iterable[pa.Field]) -> pa.Schema:
    """Return the table's schema: data columns, then partition columns. A path's value overrides a file's column."""
    for field in fields:
        position = schema.get_field_index(field.name)
        schema = schema.append(field) if position < 0 else schema.set(position, field)
    return schema


def check_table_schema(schema: pa.Schema, partitioning: Sequence[str]) -> None:
    """Raise SchemaError for a schema that no table can have."""
    _check_names(schema, "the schema")
    if len(partitioning) == len(schema.names):
        raise SchemaError("a table needs a column that is not a partition column")
    for name in partitioning:
        kind = schema.field(name).type
        if not (
            pa.types.is_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_decimal(kind)
            or pa.types.is_date(kind)
            or pa.types.is_timestamp(kind)
            or pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
        ):
            raise SchemaError(f"partition column {name!r} is {kind}, which cannot be written in a path")
    data = pa.schema([f for f in schema if f.name not in partitioning])
    try:
        with pq.ParquetWriter(pa.BufferOutputStream(), data):
            pass
    except (pa.ArrowException, OSError) as error:  # the latter for the negative scale of a decimal
        raise SchemaError(f"Parquet cannot store this schema: {str(error).splitlines()[0]}") from error


def _check_names(schema: pa.Schema, where: str) -> None:
    twice = _named_twice(schema)
    if twice is not None:
        raise SchemaError(f"{where}: two columns are named {twice!r}")


def _named_twice(schema: pa.Schema) -> str | None:
    if len(set(schema.names)) == len(schema.names):
        return None
    return next(name for name in schema.names if schema.names.count(name) > 1)


def check_fits(instant: Instant, schema: FileSchema, path: str) -> None:
    """Raise SchemaError if a file's column cannot be read as the table's type without loss. Columns that the table does
    not have are ignored."""
    reason = misfit(instant, schema)
    if reason is not None:
        raise SchemaError(f"{path}: {reason}")


def misfit(instant: Instant, file: FileSchema) -> str | None:
    """Return why files of a schema cannot be files of the table; None if they can."""
    twice = _named_twice(file.schema)
    if twice is not None:
        return f"two columns are named {twice!r}"
    for unlike in _unlike_types(instant, file):
        if widens(unlike.kind, unlike.wanted):
            continue
        can_widen = unlike.wider is not None and unlike.table_name not in instant.partitioning
        first = f"alter(widen={{{unlike.table_name!r}: ...}}) to {unlike.wider} first, or rewrite the file"
        other = "rewrite the file, or put it into another table"
        types = f"column {unlike.name!r} is {unlike.kind}, the table's is {unlike.wanted}"
        return f"{types}; {first if can_widen else other}"
    return None


def types_to_fit(instant: Instant, file: FileSchema) -> dict[str, pa.DataType]:
    """Return name -> type of the columns of the table that must be widened so that files of a schema fit. It is empty
    if they fit, or if no type contains the values of both."""
    if _named_twice(file.schema) is not None:
        return {}
    unlike = list(_unlike_types(instant, file))
    types = {one.table_name: one.wider for one in unlike if one.wider is not None}
    return types if len(types) == len(unlike) else {}


class _Unlike(NamedTuple):
    """A column whose type is neither the table's nor narrower: its name in the file and in the table, its type, the
    table's, and a type that contains the values of both."""

    name: str
    table_name: str
    kind: pa.DataType
    wanted: pa.DataType
    wider: pa.DataType | None


def _unlike_types(instant: Instant, file: FileSchema) -> Iterator[_Unlike]:
    names = {number: name for name, number in instant.fields.items()}
    schema = in_table_names(file.schema, file.nested)
    for name, number in file.fields.items():
        kind, wanted = schema.field(name).type, instant.schema.field(names[number]).type
        wider = wanted if kind == wanted else merged_type(wanted, kind)
        if wider != wanted and (name,) not in file.nested:
            yield _Unlike(name, names[number], kind, wanted, wider)


def check_instants_fit(instant: Instant, file_schemas: Sequence[FileSchema], result: TaskResult) -> None:
    """Raise SchemaError that names a file whose instants do not fit (see `misfit_instants`)."""
    for file, reason in misfit_instants(instant, file_schemas, result).items():
        raise SchemaError(f"{result.files.column('path')[file].as_py()}: {reason}")


def misfit_instants(instant: Instant, file_schemas: Sequence[FileSchema], result: TaskResult) -> dict[int, str]:
    """Return the files (by position) whose instants, of a coarser unit, are not all within the span of nanoseconds of
    the table's column (1677 to 2262), or may not be: such rows are neither found nor read. `file_schemas`: the result's
    schemas as bound to the table."""
    table = _leaf_types(instant.schema)
    wanted = {instant.columns[p]: k for p, k in table.items() if pa.types.is_timestamp(k) and k.unit == "ns"}
    reasons: dict[int, str] = {}
    for number, schema in enumerate(file_schemas) if wanted else ():
        for path, kind in _leaf_types(schema.schema).items():
            target = wanted.get(schema.columns.get(path, 0), kind)
            if kind != target and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
                reason = (
                    f"column {path!r} is {kind}, the table's is {target}, and its instants do not all fit, or have no "
                    "statistics that say so; rewrite the file, or put it into another table"
                )
                reasons.update(dict.fromkeys(_beyond_span(path, kind, number, result), reason))
    return reasons


def _beyond_span(path: str, kind: pa.DataType, number: int, result: TaskResult) -> list[int]:
    """Return the files of one schema whose instants in a column are not known to fit nanoseconds."""
    low, high = _ns_span(kind)
    is_empty = _are_empty(result.files).tolist()
    schema_ids = result.files.column("schema_id").to_pylist()
    files = [i for i, schema_id in enumerate(schema_ids) if schema_id == number and not is_empty[i]]
    stats_of: dict[int, dict[str, Any]] = {}
    if path in result.stats_columns:
        is_column = pc.equal(result.stats.column("column"), result.stats_columns.index(path))
        stats_of = {row["file"]: row for row in result.stats.filter(is_column).to_pylist()}
    beyond = []
    for file in files:
        row = stats_of.get(file)
        is_all_null = row is not None and row["null_count"] is not None and row["null_count"] == row["value_count"]
        least, most = (None, None) if row is None else (row["min_code"], row["max_code"])
        fits = least is not None and most is not None and low <= least and most <= high
        if not is_all_null and not fits:
            beyond.append(file)
    return beyond


def _ns_span(kind: pa.DataType) -> tuple[int, int]:
    """Return the first and the last count of a type of timestamps or dates that fits nanoseconds."""
    ns_each = _NS_EACH["day" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit]
    return -(1 << 63) // ns_each + 1, ((1 << 63) - 1) // ns_each


def _are_empty(files: pa.Table) -> np.ndarray:
    """Return bool [files]: True for files that certainly have no rows."""
    is_empty = pc.and_(pc.equal(files.column("row_count"), 0), files.column("rows_exact"))
    return to_numpy(pc.fill_null(is_empty, False)).copy()


def all_fit_nanoseconds(snapshot: Snapshot, column: str) -> bool:
    """Return whether the statistics prove that a column's timestamps or dates fit nanoseconds in every live file, to
    the day."""
    schema, files = snapshot.instant.schema, snapshot.files(columns=["kind", "row_count", "rows_exact"])
    first, last = (pa.scalar(day, pa.date32()).cast(schema.field(column).type) for day in (-_DAYS_MAX, _DAYS_MAX))
    beyond = prepare([[(column, "<", first)], [(column, ">", last)]], schema, tests_rows=False)
    is_base = to_numpy(pc.equal(files.column("kind"), string_scalar(BASE)))
    probed = ProbedFiles(to_numpy(files.column("file_id")), snapshot, is_base=is_base)
    outcomes = Outcomes.unknown(terms_of(beyond), files.num_rows)
    try:
        for probe in planned_probes(snapshot, beyond, (), only_stats=True):
            for part, sets in probe.run(probed).outcomes.items():
                outcomes.narrow(part, sets)
    except DamagedRun:
        return False
    return bool((_are_empty(files) | ~can_match(outcomes.of_predicate(beyond, files.num_rows))).all())


def widens(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of a type can be read as another without loss. The size of offsets does not matter:
    `large_string` is read as `string`."""
    return merged_type(_with_small_offsets(wanted), _with_small_offsets(kind)) == _with_small_offsets(wanted)


def _with_small_offsets(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_with_small_offsets(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _with_small_offsets(field.type)) for field in kind])
    return kind


@lru_cache(256)
def leaves_below(schema: pa.Schema) -> Mapping[str, tuple[str, str]]:
    """Return the leaves of `leaf_types` as (top-level column, dotted path below it: "" if it is the leaf itself)."""
    leaves = _leaf_types(schema)
    split = {}
    for field in schema:
        for path in leaf_types(pa.schema([field])):
            if path in leaves:
                split[path] = (field.name, path[len(field.name) + 1 :])
    return split


def identified(base: Instant, schema: pa.Schema, kept: Mapping[str, int]) -> Instant:
    """Return a version with the columns of a schema. Columns in `kept` (name -> id) keep their id, and the leaves below
    them theirs; the others get new ids."""
    leaves = {(base.fields[n], below): base.columns[path] for path, (n, below) in leaves_below(base.schema).items()}
    following, fields, columns = dict(base.next), dict[str, int](), dict[str, int]()
    for name in schema.names:
        fields[name] = kept[name] if name in kept else following["field"]
        following["field"] += name not in kept
    for path, (name, below) in leaves_below(schema).items():
        column = leaves.get((fields[name], below))
        columns[path] = following["column"] if column is None else column
        following["column"] += column is None
    return replace(base, schema=schema, fields=fields, columns=columns, next=following)


def with_indexes_left(after: Instant) -> Instant:
    """Return a version with its indexes over the columns that it still has. A compound index is dropped with the first
    of its columns. `create`'s statistics stay even without columns: they store the places of the fine filters."""
    first = first_stats(after).id
    lists = {number for name, number in after.fields.items() if is_list(after.schema.field(name).type)}
    leaves = set(after.columns.values())

    def is_left(one: DerivedColumn) -> bool:
        return one.field in lists if one.expression is None else leaves >= set(one.expression.columns)

    after = replace(after, derived=tuple(filter(is_left, after.derived)))
    live = set(after.ids.values())
    remaining = []
    for index in after.indexes:
        kind = kind_or_none(index.kind)
        is_compound = kind is None or kind.is_compound
        columns = tuple(c for c in index.columns if c in live)
        if index.id == first or (columns and (columns == index.columns or not is_compound)):
            remaining.append(replace(index, columns=columns))
    return after.with_indexes(tuple(remaining))


def file_schema(
    instant: Instant,
    names_from: Instant,
    schema: pa.Schema,
    *,
    is_declared: bool = False,
    names: Mapping[str, str] | None = None,
    nested: NestedNames | None = None,
) -> FileSchema:
    """Return the file schema that maps the columns of a file to those of the table at `instant`.

    The file's names are those of the table at `names_from`, or map to them by `names`. A column that was renamed since
    is followed; one that was dropped since no longer belongs to the table. `nested`: names of fields within columns.
    """
    live = set(instant.fields.values())
    names_in_table = {physical: physical for physical in schema.names} if names is None else names
    fields = {}
    for physical in schema.names:
        name = names_in_table.get(physical)
        if name in names_from.fields and name not in instant.partitioning and names_from.fields[name] in live:
            fields[physical] = names_from.fields[name]
    nested = {path: name for path, name in (nested or {}).items() if path[0] in fields}
    return with_leaves(instant, FileSchema(schema, fields, {}, is_declared, nested))


def schemas_of(instant: Instant, names_from: Instant, result: TaskResult) -> list[FileSchema]:
    """Return the file schema of each physical schema of a task's result."""
    names_of = [result.names_of(position) for position in range(len(result.schemas))]
    pairs = zip(result.schemas, names_of, strict=True)
    return [file_schema(instant, names_from, schema, names=names, nested=nested) for schema, (names, nested) in pairs]


def with_leaves(instant: Instant, file: FileSchema) -> FileSchema:
    """Return a file schema whose top-level columns are known, with its leaves: those that the table also has, in a type
    to which they widen."""
    names = {number: name for name, number in instant.fields.items()}
    table, types = _leaf_types(instant.schema), _leaf_types(file.schema)
    columns = {}
    shown = leaf_names(file.schema, file.nested) if file.nested else {}
    for path, (name, below) in leaves_below(file.schema).items():
        if name in file.fields and (name,) not in file.nested:
            if path in shown:
                below = shown[path][len(name) + 1 :]
            now = f"{names[file.fields[name]]}.{below}" if below else names[file.fields[name]]
            if (
                now in table
                and now in instant.columns
                and (types[path] == table[now] or widens(types[path], table[now]))
            ):
                columns[path] = instant.columns[now]
    return replace(file, columns=columns)


# -- files that do not fit: they are quarantined, each with the reason -------------------------------------------------


def misfits(instant: Instant, results: Sequence[TaskResult], ids_by_text: Collection[str]) -> dict[str, str]:
    """Return path -> why it does not fit: the table's type does not contain the values of a column, or the partition
    keys are not the table's."""
    fields = [instant.schema.field(name) for name in instant.partitioning]
    reasons: dict[str, str] = {}
    for result in results:
        paths = result.files.column("path")
        schemas = schemas_of(instant, instant, result)
        by_schema = {number: reason for number, s in enumerate(schemas) if (reason := misfit(instant, s)) is not None}
        reasons.update({paths[i].as_py(): r for i, r in misfit_instants(instant, schemas, result).items()})
        reasons.update(_by_value(result, "schema_id", by_schema))
        texts = set(result.files.column("partition").unique().to_pylist()).difference(ids_by_text)
        reasons.update(_by_value(result, "partition", _partition_misfits(sorted(texts), fields)))
    return reasons


def _by_value(result: TaskResult, column: str, reasons: Mapping) -> dict[str, str]:
    if not reasons:
        return {}
    pairs = zip(*(result.files.column(name).to_pylist() for name in ("path", column)), strict=True)
    return {path: reasons[value] for path, value in pairs if value in reasons}


def _partition_misfits(texts: Sequence[str], fields: Sequence[pa.Field]) -> dict[str, str]:
    try:
        hive.typed_values(texts, fields)
        return {}
    except SchemaError as error:
        if len(texts) == 1:
            return {texts[0]: str(error)}
    return {text: reason for one in texts for text, reason in _partition_misfits([one], fields).items()}


def without(
    results: Sequence[TaskResult], paths: Collection[str], index_storage: Storage | None = None
) -> list[TaskResult]:
    """Return results without some of their files. Remove a task index file from the storage if none of its is left."""
    if not paths:
        return list(results)
    remaining = []
    for result in results:
        dropped = np.array([path in paths for path in result.files.column("path").to_pylist()], dtype=bool)
        if not dropped.all():
            remaining.append(result.without(dropped))
        elif result.index is not None and index_storage is not None:
            index_storage.delete(result.index.path)
    return remaining


def reasons_of(quarantined: Iterable[dict]) -> dict[str, str]:
    """Return path -> reason of quarantined files."""
    return {file["path"]: file["reason"] for file in quarantined}


def quarantined_of(
    unread: Iterable[dict], reasons: Mapping[str, str], results: Sequence[TaskResult]
) -> tuple[dict, ...]:
    """Return what an instant records of quarantined files: the files that could not be read, and those of the results
    that do not fit."""
    rows: dict[str, int] = {}
    for result in results if reasons else ():
        columns = (result.files.column(name).to_pylist() for name in ("path", "row_count"))
        rows.update((path, count) for path, count in zip(*columns, strict=True) if path in reasons)
    misfits = (quarantined_file(path, reason, rows.get(path)) for path, reason in reasons.items())
    return tuple(sorted([*unread, *misfits], key=lambda file: file["path"]))


# -- how a new table interprets a listing -----------------------------------------------------------------------------


def minority(results: Sequence[TaskResult], *, infers_keys: bool) -> set[str]:
    """Return the paths of files that do not match most files of a listing, in the types of their columns or, if those
    are inferred, in their partition keys. Return none if they are at least as many as the others."""
    schemas: Counter[pa.Schema] = Counter()
    keys: Counter[tuple[str, ...]] = Counter()
    for result in results:
        schemas.update(dict(result.schema_counts()))
        if infers_keys:
            keys.update(_keys(text) for text in result.files.column("partition").to_pylist() if text)
    odd_schemas = _odd_schemas(schemas)
    usual = max(keys, key=keys.__getitem__, default=())
    odd: set[str] = set()
    for result in results:
        odd.update(_by_value(result, "schema_id", {i: "" for i, s in enumerate(result.schemas) if s in odd_schemas}))
        if infers_keys:
            texts = filter(None, result.files.column("partition").unique().to_pylist())
            odd.update(_by_value(result, "partition", {text: "" for text in texts if _is_odd_partition(text, usual)}))
    return odd if 2 * len(odd) < sum(result.files.num_rows for result in results) else set()


def _keys(text: str) -> tuple[str, ...]:
    return tuple(key.lower() for key, _ in hive.split(text))


def _is_odd_partition(text: str, usual: tuple[str, ...]) -> bool:
    return _keys(text) != usual or any(value == "" for _, value in hive.split(text))


def _odd_schemas(schemas: Counter[pa.Schema]) -> set[pa.Schema]:
    """Return the schemas that do not match those of more files."""
    types: dict[str, pa.DataType] = {}
    odd = set()
    for schema, _ in schemas.most_common():
        merged = {f.name: merged_type(types.get(f.name, f.type), f.type) for f in schema}
        if None in merged.values() or len(merged) < len(schema.names):
            odd.add(schema)
        else:
            types.update(merged)
    return odd
