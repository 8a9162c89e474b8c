"""Files that lie in a directory and cannot be files of its table: they are set aside, each with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from ...errors import SchemaError
from ..indexes.task_result import TaskResult
from ..partitions import hive
from ..predicates.widening import merged_type
from ..state import Instant
from ..storage import Storage
from .schemas import file_schema, misfit, misfit_instants


def misfits(instant: Instant, results: Sequence[TaskResult], known_partitions: Collection[str]) -> dict[str, str]:
    """path -> why it does not fit: a column whose values the table's type does not hold, or partition keys that are
    not the table's."""
    fields = [instant.schema.field(name) for name in instant.partitioning]
    reasons: dict[str, str] = {}
    for result in results:
        paths = result.files.column("path")
        names: Sequence[dict[str, str] | None] = result.names or [None] * len(result.schemas)
        schemas = [file_schema(instant, instant, s, names=n) for s, n in zip(result.schemas, names, strict=True)]
        by_schema = {number: reason for number, s in enumerate(schemas) if (reason := misfit(instant, s)) is not None}
        reasons.update({paths[i].as_py(): r for i, r in misfit_instants(instant, schemas, result).items()})
        reasons.update(_by_value(result, "schema_id", by_schema))
        texts = set(result.files.column("partition").unique().to_pylist()).difference(known_partitions)
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
    except SchemaError:
        return {text: reason for text in texts if (reason := _partition_misfit(text, fields)) is not None}


def _partition_misfit(text: str, fields: Sequence[pa.Field]) -> str | None:
    try:
        hive.typed_values([text], fields)
    except SchemaError as error:
        return str(error)
    return None


def without(
    results: Sequence[TaskResult], paths: Collection[str], index_storage: Storage | None = None
) -> list[TaskResult]:
    """Results without some of their files; a task index file of which none is left is removed from a storage."""
    if not paths:
        return list(results)
    kept = []
    for result in results:
        dropped = np.array([path in paths for path in result.files.column("path").to_pylist()], dtype=bool)
        if not dropped.all():
            kept.append(result.without(dropped))
        elif result.index is not None and index_storage is not None:
            index_storage.delete(result.index.path)
    return kept


def pending_of(unread: Iterable[dict], reasons: Mapping[str, str]) -> tuple[dict, ...]:
    """What an instant says of files that are set aside: those that could not be read, and those that do not fit."""
    both = [*unread, *({"path": path, "reason": reason} for path, reason in reasons.items())]
    return tuple(sorted(both, key=lambda one: one["path"]))


# -- what a new table makes of a listing ------------------------------------------------------------------------------


def minority(results: Sequence[TaskResult], *, infers_keys: bool) -> set[str]:
    """The paths of files that do not go together with most files of a listing, in the types of their columns or, where
    those are inferred, in their partition keys. Empty where they are no fewer than the others."""
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
    """The schemas that do not go together with those of more files."""
    types: dict[str, pa.DataType] = {}
    odd = set()
    for schema, _ in schemas.most_common():
        merged = {f.name: merged_type(types.get(f.name, f.type), f.type) for f in schema}
        if None in merged.values() or len(merged) < len(schema.names):
            odd.add(schema)
        else:
            types.update(merged)
    return odd
