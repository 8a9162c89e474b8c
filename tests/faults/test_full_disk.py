"""A disk that takes no more: every action ends with a StorageError and may be done again, wherever it ran full.

The limit is the kernel's own, on the size of a file: what is beyond fails when it is written, or flushed, or closed.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import examples
from faulty_object_store import Twin, twin_stores
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import write_rows
from skipstone.base.ordered_keys import OrderedCode
from skipstone.engine.indexes.secondary.sort import ValueSorter
from skipstone.engine.storage import LocalStorage, Storage, open_storage

SIZES = st.one_of(st.integers(0, 2_000), st.integers(0, 40_000))


@contextlib.contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Inside the block, no file of this process grows beyond that size."""
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, was[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, was)


def _created(storage: Storage, data: bytes) -> None:
    with storage.create("a/file") as file:
        file.write(data)


PUTS: dict[str, Callable[[Storage, bytes], object]] = {
    "create": _created,
    "put": lambda storage, data: storage.put("a/file", data),
    "put, not durable": lambda storage, data: storage.put("a/file", data, is_durable=False),
    "put if absent": lambda storage, data: storage.put_if_absent("a/file", data),
}


@pytest.mark.parametrize("size_bytes", [1, 100_000])  # fails when it is flushed, or already when it is written
@pytest.mark.parametrize("put", PUTS)
def test_a_local_file_that_does_not_fit_is_absent_and_leaves_nothing(tmp_path: Path, put: str, size_bytes: int) -> None:
    storage = LocalStorage(tmp_path)
    with files_of_at_most(size_bytes - 1), pytest.raises(ss.StorageError):
        PUTS[put](storage, bytes(size_bytes))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    PUTS[put](storage, bytes(size_bytes))
    assert storage.read("a/file") == bytes(size_bytes)


@pytest.mark.parametrize("spare_bytes", [-1, -10_000, -900_000])
def test_an_object_that_does_not_fit_on_the_local_disk_first_is_not_put(spare_bytes: int) -> None:
    size_bytes = 2 << 20
    with twin_stores(bucket=Twin()):
        storage = open_storage("s3://bucket/lake")
        with files_of_at_most(size_bytes + spare_bytes), pytest.raises(ss.StorageError):
            _created(storage, bytes(size_bytes))
        assert storage.list_folder("a") == ([], [])
        _created(storage, bytes(size_bytes))
        assert storage.stat("a/file").size_bytes == size_bytes


@settings(max_examples=examples(3))
@given(size_bytes=SIZES)
def test_a_commit_that_does_not_fit_is_refused_and_may_be_tried_again(
    tmp_path_factory: pytest.TempPathFactory, size_bytes: int
) -> None:
    root = tmp_path_factory.mktemp("lake")
    table = ss.create(root, schema=pa.schema([("id", pa.int64()), ("name", pa.string())]))
    table.create_index("id", kind="secondary")
    table.create_index("name", kind="bloom")
    rows = pa.table({"id": range(2_000), "name": [f"{i * 7919:x}" for i in range(2_000)]})
    version, count = table.version, 0
    with contextlib.suppress(ss.StorageError):
        with files_of_at_most(size_bytes), table.transaction() as tx:
            tx.write(rows)
        count = 2_000
    table = ss.open(root)
    assert (table.version, table.scan().count()) == (version + (count > 0), count)
    write_rows(table, rows)
    assert ss.open(root).scan("id = 7").count() == 1 + count // 2_000 and ss.open(root).verify(deep=True) == []


@pytest.mark.parametrize("size_bytes", [0, 100, 50_000])
def test_entries_that_wait_on_a_full_disk_are_a_storage_error(tmp_path: Path, size_bytes: int) -> None:
    values = pa.array(np.random.default_rng(1).integers(0, 1 << 62, 10_000))
    sorter = ValueSorter(OrderedCode((pa.int64(),)), 1_000, str(tmp_path))
    with sorter, files_of_at_most(size_bytes), pytest.raises(ss.StorageError, match="room on the disk"):
        for group in range(2):
            sorter.add(1, group, 0, [values])
        sorter.sorted()
    assert list(tmp_path.iterdir()) == []
