"""Look-ups in a stack of runs: the newest entry of a key wins, and a tombstone removes the key."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import binary_array, byte_table, combine, from_big_endian, from_numpy, to_numpy
from ...hfile_like import IdEntries, SortedFileReader, prefix_successor
from ...hfile_like.block_keys import ID_BYTES
from ..storage import Storage
from ..storage.threads import side_by_side
from . import Run
from .cache import BLOCK_ENTRIES_MAX, RUN_ENTRIES_MAX, part_of
from .runs import RunReaders, reading_run

_PARTED_ENTRIES_MIN, _MANY = 1 << 17, 1 << 12  # a read of many files of a larger remote run is divided into parts
_PARTS = 12


def get_runs(
    readers: RunReaders, runs: Sequence[Run], keys: pa.Array, columns: Sequence[str], schema: pa.Schema
) -> pa.Table:
    """Return the live entries of some keys, as a table of `key` and the columns (of `schema`), in no order."""
    layers: list[pa.Table] = []
    for run in reversed(runs):  # newest first
        if not len(keys):
            break
        if not run.overlaps(keys[0].as_py(), keys[len(keys) - 1].as_py()):
            continue
        if run.entries <= BLOCK_ENTRIES_MAX:
            rows = readers.rows(run)
            places = _places_of(keys, rows.column("key"))
            found = rows.select(["key", *columns, "deleted"]).take(from_numpy(places)) if len(places) else rows[:0]
        else:
            matches = readers.reader(run).get_many(keys, columns, include_deleted=True)
            found = matches.filter(matches.column("found")).drop_columns(["found"])
        if found.num_rows:
            layers.append(found)
            keys = keys.filter(pc.invert(pc.is_in(keys, value_set=combine(found.column("key")))))
    if not layers:
        return pa.Table.from_batches([], pa.schema([pa.field("key", pa.binary()), *(schema.field(c) for c in columns)]))
    entries = pa.concat_tables(layers)
    return entries.filter(pc.invert(entries.column("deleted"))).drop_columns(["deleted"])


def get_by_ids(
    readers: RunReaders, runs: Sequence[Run], prefix: bytes, ids: np.ndarray, columns: Sequence[str], schema: pa.Schema
) -> tuple[np.ndarray, pa.Table]:
    """Return the live entries of files below a prefix that is followed by the file's number: (uint64 ids, ascending;
    the columns). `ids`: uint64, ascending. Raise DamagedRun."""
    layers = []
    for run in reversed(runs) if len(ids) else ():
        if run.may_contain(prefix):
            with reading_run(run):
                layers += _read(readers.reader(run), readers.storage, prefix, columns, ids)
    return newest_numbered(layers, columns, schema)


def numbered_entries(
    readers: RunReaders, runs: Sequence[Run], prefix: bytes, columns: Sequence[str], schema: pa.Schema
) -> tuple[np.ndarray, pa.Table]:
    """Return all live entries below a prefix that a file's number, or its first bytes, follows. Raise DamagedRun."""
    layers = []
    names = tuple(columns)
    for run in reversed(runs):
        if run.may_contain(prefix):
            with reading_run(run):
                kept = readers.kept_rows(run)
                layer = None if kept is None else _layer_of(kept, prefix, names)
                if layer is not None:
                    layers.append(layer)
                    continue
                decode = partial(_read, storage=readers.storage, prefix=prefix, columns=names)
                layers += readers.decoded(run, ("numbered", prefix, names), decode, _is_little)
    return newest_numbered(layers, columns, schema)


def _read(
    reader: SortedFileReader, storage: Storage, prefix: bytes, columns: Sequence[str], ids: np.ndarray | None = None
) -> list[IdEntries]:
    """Return all entries below a prefix, or those of some files, tombstones included. A large remote run is read in
    ascending parts, in parallel; elsewhere threads would wait for each other at Python's lock
    (docs/decisions/statistics.md)."""
    keys = reader.by_id(prefix)

    def work(part: np.ndarray) -> IdEntries:
        if ids is None:
            return keys.scan(columns, blocks=part, include_deleted=True)
        return keys.get(part, columns, include_deleted=True)

    every = np.asarray(reader.block_range(prefix)) if ids is None else ids
    is_parted = storage.is_remote and reader.num_entries >= _PARTED_ENTRIES_MIN and (ids is None or len(ids) >= _MANY)
    parts = [part for part in np.array_split(every, _PARTS) if len(part)] if is_parted else [every]
    return list(side_by_side(storage, work, parts, "skipstone-entries"))


def entries_between(
    readers: RunReaders,
    runs: Sequence[Run],
    prefix: bytes,
    ends: tuple[int, int],
    columns: Sequence[str],
    schema: pa.Schema,
) -> tuple[np.ndarray, pa.Table]:
    """Return the live entries below a prefix whose numbers are between `ends`, both inclusive, as `get_by_ids` does.
    Raise DamagedRun."""
    keys = [prefix + end.to_bytes(8, "big") for end in ends]
    name = ("numbered", prefix, tuple(columns))
    layers = []
    for run in reversed(runs):
        if run.overlaps(*keys):
            with reading_run(run):
                if readers.contains(run, name):
                    decode = partial(_read, storage=readers.storage, prefix=prefix, columns=columns)
                    layers += [part_of(part, *ends) for part in readers.decoded(run, name, decode)]
                else:
                    layers.append(readers.between(run, prefix, ends, columns))
    return newest_numbered([layer for layer in layers if len(layer.ids)], columns, schema)


def numbers_with(
    readers: RunReaders,
    runs: Sequence[Run],
    prefix: bytes,
    wanted: Sequence[tuple[tuple[int, int], Sequence[bytes]]],
    column: str,
    schema: pa.Schema,
    *,
    are_new: bool = False,
) -> np.ndarray:
    """Return the numbers (uint64, ascending) of entries below a prefix whose column of strings contains wanted values,
    and that are live within a run. A newer run may contradict this, which `get_by_ids` resolves. `wanted`: values, each
    with the first and last number that they may have, ascending. Small runs are decoded whole, and cached for the next
    query. `are_new`: few exist, so hashes of a large run's values are compared first. Raise DamagedRun."""
    if not wanted:
        return np.empty(0, np.uint64)
    every = binary_array([value for _, values in wanted for value in values], schema.field(column).type)
    matches = [np.empty(0, np.uint64)]
    for run in runs:
        if run.entries <= BLOCK_ENTRIES_MAX:
            low, high = prefix + wanted[0][0][0].to_bytes(8, "big"), prefix + wanted[-1][0][1].to_bytes(8, "big")
            with reading_run(run):
                rows = readers.rows(run)
            places = _places_of(every, rows.column(column))
            places = places[~to_numpy(rows.column("deleted"))[places]]
            keys = rows.column("key").take(from_numpy(places)).to_pylist()
            numbers = [int.from_bytes(key[len(prefix) :], "big") for key in keys if low <= key <= high]
            matches.append(np.array(numbers, dtype=np.uint64))
            continue
        near = [each for each in wanted if run.overlaps(*(prefix + end.to_bytes(8, "big") for end in each[0]))]
        if near:
            with reading_run(run):
                for ends, values in near:
                    if are_new and not readers.may_have(run, prefix, ends, column, _hashes_of(values)):
                        continue
                    part = readers.between(run, prefix, ends, [column])
                    texts = part.columns[column]
                    own = binary_array(values, texts.type)  # a single value is compared, so that no text is hashed
                    is_wanted = to_numpy(pc.equal(texts, own[0]) if len(own) == 1 else pc.is_in(texts, value_set=own))
                    matches.append(part.ids[is_wanted if part.deleted is None else is_wanted & ~part.deleted])
    return np.unique(np.concatenate(matches))


def _hashes_of(values: Sequence[bytes]) -> np.ndarray:
    from ...bloom.hashing import hash_array  # a scan does not need it

    return hash_array(binary_array(values, pa.binary())).present()


def _layer_of(rows: pa.Table, prefix: bytes, columns: Sequence[str]) -> IdEntries | None:
    """Return a run's entries below a prefix; None if a key does not continue with a number."""
    keys, deleted = combine(rows.column("key")), to_numpy(rows.column("deleted"))
    low, high = (_count_below(keys, end) for end in (prefix, prefix_successor(prefix)))
    table = byte_table(keys[low:high])
    if low == high:
        numbers = np.empty(0, dtype=np.uint64)
    elif table is not None and table.shape[1] == len(prefix) + ID_BYTES:
        numbers = from_big_endian(table[:, len(prefix) :])
    else:
        return None
    parts = {name: combine(rows.column(name))[low:high] for name in columns}
    return IdEntries(numbers, parts, deleted[low:high])


def _count_below(keys: pa.Array, end: bytes | None) -> int:
    """Return how many of some keys, ascending, are before `end`; all of them if it is None."""
    return len(keys) if end is None else bisect_left(range(len(keys)), end, key=lambda i: keys[i].as_py())


def _places_of(wanted: pa.Array, column: pa.ChunkedArray) -> np.ndarray:
    """Return int64: the positions at which a column contains one of some values."""
    return np.flatnonzero(to_numpy(pc.is_in(column, value_set=wanted)))


def _is_little(parts: Iterable[IdEntries]) -> bool:
    return sum(len(part.ids) for part in parts) <= RUN_ENTRIES_MAX // 4


def newest_numbered(
    layers: Sequence[IdEntries], columns: Sequence[str], schema: pa.Schema
) -> tuple[np.ndarray, pa.Table]:
    """Return the live entries of layers, newest first: the newest entry of each number, unless it is a tombstone."""
    fields = pa.schema([schema.field(name) for name in columns])
    if not layers:
        return np.empty(0, dtype=np.uint64), pa.Table.from_batches([], fields)
    apart = _apart(layers)
    ordered = layers if apart is None else apart
    tables = [pa.Table.from_arrays([layer.columns[name] for name in columns], schema=fields) for layer in ordered]
    if apart is not None:
        return np.concatenate([layer.ids for layer in apart]), pa.concat_tables(tables)
    ids, positions = live_numbers(layers)
    return ids, tables[0] if positions is None else pa.concat_tables(tables).take(from_numpy(positions))


def _apart(layers: Sequence[IdEntries]) -> list[IdEntries] | None:
    """Return the layers in the order of their numbers, if all numbers of one are before those of the next and none is a
    tombstone, as when commits only added files; else None."""
    if any(layer.deleted is not None and layer.deleted.any() for layer in layers):
        return None
    ordered = sorted((layer for layer in layers if len(layer.ids)), key=lambda layer: int(layer.ids[0]))
    is_apart = all(first.ids[-1] < second.ids[0] for first, second in pairwise(ordered))
    return ordered if ordered and is_apart else None


def live_numbers(layers: Sequence[IdEntries]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the numbers of the live entries of layers (at least one), newest first, ascending; and the position of
    each in the concatenated entries of all layers, None if all entries of one layer are live."""
    if len(layers) == 1 and (layers[0].deleted is None or not layers[0].deleted.any()):
        return layers[0].ids, None
    deleted = [np.zeros(len(layer.ids), bool) if layer.deleted is None else layer.deleted for layer in layers]
    unique, positions = np.unique(np.concatenate([layer.ids for layer in layers]), return_index=True)
    live = ~np.concatenate(deleted)[positions]
    return unique[live], positions[live]


def first_of_each(keys: pa.ChunkedArray) -> np.ndarray:
    """Return the positions of the first of each distinct key, in the order of keys."""
    array = combine(keys)
    order = pc.array_sort_indices(array)  # stable, so that among equal keys the first stays first
    ordered = array.take(order)
    fresh = np.ones(len(array), dtype=bool)
    fresh[1:] = to_numpy(pc.not_equal(ordered[1:], ordered[:-1]))
    return to_numpy(order)[fresh]
