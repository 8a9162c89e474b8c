"""The order of keys, and the cache of compiled code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa
import pytest
import skipstone.hfile_like
from hypothesis import given
from hypothesis import strategies as st
from skipstone.hfile_like import key_sort
from skipstone.hfile_like.key_sort import sorted_keys


def unsorted(seed: int, count: int, form: str, values: int) -> pa.BinaryArray:
    """Keys in any order, some of them equal; none is the beginning of another."""
    random = np.random.default_rng(seed)
    chosen = random.integers(0, values, count)
    if form == "strings":
        width = 1 + seed % 17
        items = [b"shared"[: seed % 7] + b"%0*d\0" % (width if seed % 2 else 0, v * 7919) for v in chosen.tolist()]
    else:
        table = random.integers(0, 256 if form == "random" else 3, (values, 1 + seed % 29), dtype=np.uint8)
        table[:, : seed % 5] = 7
        items = [row.tobytes() for row in table[chosen]]
    return pa.array([b"before", *items], pa.binary())[1:]


def check_order(keys: pa.BinaryArray, tail_bytes: int = 0) -> None:
    order, ties = sorted_keys(keys, tail_bytes)
    listed = [key[: len(key) - tail_bytes] for key in keys.to_pylist()]
    assert order.tolist() == sorted(range(len(listed)), key=listed.__getitem__)
    ranked = [listed[i] for i in order]
    assert ties.tolist() == [i > 0 and ranked[i] == ranked[i - 1] for i in range(len(ranked))]


FORMS = ("strings", "random", "few bytes")


@pytest.fixture
def no_few() -> Iterator[None]:
    """Arrow sorts no keys by itself."""
    was, key_sort._FEW = key_sort._FEW, 1
    yield
    key_sort._FEW = was


@pytest.mark.usefixtures("no_few")
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(0, 300),
    form=st.sampled_from(FORMS),
    values=st.integers(1, 400),
    tail_bytes=st.sampled_from([0, 1, 5, 8, 12, 20]),
    rounds=st.sampled_from([0, 1, 2, 24]),
)
def test_keys_are_sorted_as_python_sorts_them(seed, count, form, values, tail_bytes, rounds):
    keys = unsorted(seed, count, form, values)
    tails = np.random.default_rng(seed).integers(0, 256, (count, tail_bytes), dtype=np.uint8)
    items = [key + tail.tobytes() for key, tail in zip(keys.to_pylist(), tails, strict=True)]
    was, key_sort._ROUNDS_MAX = key_sort._ROUNDS_MAX, rounds
    try:
        check_order(pa.array([b"before", *items], pa.binary())[1:], tail_bytes)
    finally:
        key_sort._ROUNDS_MAX = was


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("seed", [13, 18])  # widths of 14 and 19, or of several
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("count", "values"), [(20_000, 50_000), (200_000, 90_000)])
def test_many_keys_are_sorted_the_same(count, values, form, seed):
    check_order(unsorted(seed, count, form, values))


WARM = """
import io
import pyarrow as pa
from skipstone.base import lazy
from skipstone.hfile_like import SortedFileReader, SortedFileWriter
lazy.LOAD_ABOVE_NS, lazy.COMPILE_ABOVE_NS = -1, -1
loaded = {{name: lazy.load(name) for name in {modules}}}
keys = [f'd={{i // 500}}/part-{{i:06d}}-{{i * 7919 % 1000}}.parquet'.encode() for i in range(9_000)]
with SortedFileWriter(target := io.BytesIO(), schema=pa.schema([])) as writer:
    writer.write(sorted(keys))
assert all(SortedFileReader(target.getvalue()).get_many(keys)['found'].to_pylist())
names = pa.record_batch({{'name': [key.decode() for key in sorted(keys)]}})
with SortedFileWriter(target := io.BytesIO(), schema=names.schema) as writer:
    writer.write(sorted(keys), names)
assert SortedFileReader(target.getvalue()).scan_table()['name'].to_pylist() == names['name'].to_pylist()
for name, module in loaded.items():
    stats = [kernel.stats for kernel in vars(module).values() if hasattr(kernel, 'stats')]
    print(name, sum(sum(s.cache_misses.values()) for s in stats), sum(sum(s.cache_hits.values()) for s in stats))
"""


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="it is about the compiler's cache")
def test_a_second_process_compiles_nothing(tmp_path):
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0"}
    there = Path(skipstone.hfile_like.__file__).parent.glob("kernels_*.py")
    modules = [f"hfile_like.{path.stem}" for path in sorted(there)]
    program = WARM.format(modules=modules)

    def counts() -> dict[str, tuple[int, int]]:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=300
        )
        assert done.returncode == 0, done.stderr
        output = [line.split() for line in done.stdout.splitlines()]
        return {module: (int(misses), int(hits)) for module, misses, hits in output}

    counts()
    # Of every module something was used, and nothing compiled.
    again = counts()
    assert len(again) == len(modules) >= 2
    assert all(not misses and hits for misses, hits in again.values()), again
