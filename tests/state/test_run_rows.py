"""Look-ups in a stack of runs, against a dict: runs whose rows are kept, small ones that are read, and large ones."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from power_cut_disk import without_flushes
from skipstone.engine.state import Run, manifest, run_lookups, runs
from skipstone.engine.state.lsm import write_runs
from skipstone.engine.state.run_format import EntryBatch, RunFormat
from skipstone.engine.state.runs import RunReaders
from skipstone.engine.storage import LocalStorage
from skipstone.errors import CorruptionError

SCHEMA = pa.schema([("path", pa.string()), ("size", pa.int64()), ("none", pa.binary())])
PREFIX = manifest.KEYS.prefix(kind=manifest.KIND_FILE)
# number -> (path, size); None for a tombstone
LAYERS = st.lists(
    st.dictionaries(
        st.integers(0, 30),
        st.none() | st.tuples(st.none() | st.sampled_from(["a", "b", "c", "dd"]), st.integers(0, 9)),
        min_size=1,
        max_size=8,
    ),
    min_size=1,
    max_size=4,
)


def _keys(kind: int, numbers: list[int]) -> pa.Array:
    partition, sequence = manifest.split_file_ids(_ids(numbers))
    return manifest.KEYS.encode(kind=kind, partition=partition, sequence=sequence)


def _ids(numbers: list[int]) -> np.ndarray:
    """Of partitions of seven."""
    return np.array([(n // 7) << 32 | n for n in numbers], dtype=np.uint64)


def _written(storage: LocalStorage, readers: RunReaders, layers: list[dict]) -> list[Run]:
    """A run a layer; each has a partition's entry before those of files, and one of a removed file after them."""
    stack: list[Run] = []
    for layer in layers:
        live = sorted(n for n in layer if layer[n] is not None)
        gone = sorted(n for n in layer if layer[n] is None)
        values = pa.table({"path": [layer[n][0] for n in live], "size": [layer[n][1] for n in live]})
        nothing = pa.table({"path": pa.nulls(len(gone))})
        parts = [
            EntryBatch(_keys(manifest.KIND_PARTITION, [3]), pa.table({"size": [1]}), np.zeros(1, dtype=bool)),
            EntryBatch(_keys(manifest.KIND_FILE, live), values, np.zeros(len(live), dtype=bool)),
            EntryBatch(_keys(manifest.KIND_FILE, gone), nothing, np.ones(len(gone), dtype=bool)),
            EntryBatch(_keys(manifest.KIND_REMOVED, [3]), pa.table({"path": ["a"]}), np.zeros(1, dtype=bool)),
        ]
        path, number = f"{len(stack)}.sbf", len(stack) + 1
        rows = EntryBatch.concat(parts, SCHEMA)
        stack += write_runs(
            storage, lambda _, path=path: path, rows, (number, number), form=RunFormat(1 << 16), readers=readers
        )
    return stack


@settings(deadline=None, max_examples=examples(36))
@given(layers=LAYERS, wanted=st.sets(st.integers(0, 31), min_size=1, max_size=6))
def test_look_ups_are_those_of_a_dict(layers: list[dict], wanted: set[int]) -> None:
    entries = {n: value for layer in layers for n, value in layer.items()}
    live = {int(i): entries[n] for n, i in zip(sorted(entries), _ids(sorted(entries)), strict=True) if entries[n]}
    keys = _keys(manifest.KIND_FILE, sorted(wanted))
    with TemporaryDirectory() as folder, without_flushes():
        storage = LocalStorage(folder)
        kept = RunReaders(storage)
        stack = _written(storage, kept, layers)
        assert all(kept.kept_rows(run) is not None for run in stack)
        for readers, most in ((kept, None), (RunReaders(storage, shared=False), None), (RunReaders(storage), -1)):
            entries_max = runs.BLOCK_ENTRIES_MAX if most is None else most
            with (
                mock.patch.object(runs, "BLOCK_ENTRIES_MAX", entries_max),
                mock.patch.object(run_lookups, "BLOCK_ENTRIES_MAX", entries_max),
            ):
                rows = run_lookups.get_runs(readers, stack, keys, ["path", "size"], SCHEMA)
                again = [run_lookups.get_runs(readers, stack, keys, ["path", "size"], SCHEMA) for _ in range(2)]
                numbers, every = run_lookups.numbered_entries(readers, stack, PREFIX, ["path", "size"], SCHEMA)
                asked = [((1 << 32, 3 << 32 | 0xFFFF_FFFF), [b"a", b"dd"])]
                near = run_lookups.numbers_with(readers, stack, PREFIX, asked, "path", SCHEMA)
                matches, paths = run_lookups.get_by_ids(readers, stack, PREFIX, near, ["path"], SCHEMA)
                anywhere = [((0, 2**64 - 1), [b"dd"])]
                found = run_lookups.numbers_with(readers, stack, PREFIX, anywhere, "path", SCHEMA)
                found, _ = run_lookups.get_by_ids(readers, stack, PREFIX, found, [], SCHEMA)
                laid_out = [readers.rows(run) for run in stack]
            assert all(sorted(map(str, rows.to_pylist())) == sorted(map(str, one.to_pylist())) for one in again)
            for row in rows.to_pylist():
                assert (row["path"], row["size"]) == live[int.from_bytes(row["key"][1:], "big")]
            assert rows.num_rows == len(live.keys() & {int(i) for i in _ids(sorted(wanted))})
            of_numbered = zip(every.column("path").to_pylist(), every.column("size").to_pylist(), strict=True)
            assert dict(zip(numbers.tolist(), of_numbered, strict=True)) == live
            pairs = zip(matches.tolist(), paths.column("path").to_pylist(), strict=True)
            named = {n: path for n, (path, _) in live.items() if path in ("a", "dd") and 1 <= n >> 32 <= 3}
            # A file that has another path by now may come too.
            assert {n: path for n, path in pairs if path in ("a", "dd")} == named
            assert {n for n in found.tolist() if live[n][0] == "dd"} == {n for n in live if live[n][0] == "dd"}
            for run, of_run in zip(stack, laid_out, strict=True):
                assert of_run.equals(_read(storage, run))


def _read(storage: LocalStorage, run: Run) -> pa.Table:
    return RunReaders(storage, shared=False).reader(run).scan_table(include_deleted=True)


def test_kept_rows_are_those_of_the_very_file(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    first, second = _written(storage, RunReaders(storage), [{1: ("a", 1)}, {1: ("b", 2)}])
    data = (tmp_path / first.path).read_bytes()
    (tmp_path / first.path).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(tmp_path / first.path, ns=(1, 1))
    readers = RunReaders(storage)
    assert readers.kept_rows(first) is None
    with pytest.raises(CorruptionError):
        readers.rows(first)
    (tmp_path / second.path).write_bytes(data + b"0")
    with pytest.raises(CorruptionError, match="bytes"):
        RunReaders(storage).kept_rows(second)
