"""Small work does not import numba, and without numba the answers are the same."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import pyarrow as pa
import pytest
from skipstone.base import lazy
from skipstone.bloom import SplitBlockFilter

needs_a_compiler = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="kernels are loaded where they are compiled")


def run(code: str, **environment: str) -> str:
    # With the compiler, whatever the tests around these run with: they are about loading it.
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0", **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_small_work_never_imports_numba():
    out = run(
        "import sys, pyarrow as pa\n"
        "from skipstone.bloom import SplitBlockFilter, FilterGroup\n"
        "values = pa.array([f'key {i}' for i in range(5_000)])\n"
        "f = SplitBlockFilter.from_bytes(SplitBlockFilter.build(values).to_bytes())\n"
        "assert f.contains(values).to_pylist() == [True] * 5_000\n"
        "assert SplitBlockFilter.build(pa.array(range(50_000))).contains(pa.array([3])).to_pylist() == [True]\n"
        "assert FilterGroup.build([values, values]).contains(values[:10]).all()\n"
        "print('numba' in sys.modules)"
    )
    assert out.strip() == "False"


LARGE = (
    "import sys, numpy as np\n"
    "from skipstone.bloom import SplitBlockFilter, numpy_filter\n"
    "hashes = np.random.default_rng(1).integers(0, 2**64, 3_000_000, dtype=np.uint64)\n"
    "f = SplitBlockFilter.build_from_hashes(hashes, 64, 'int')\n"
    "words = np.zeros((64, 8), np.uint32)\n"
    "numpy_filter.insert(words, hashes[:100_000])\n"
    "assert (f.words & words == words).all()\n"
    "assert f.contains_hashes(hashes[:1000]).all()\n"
    "print('numba' in sys.modules)"
)


def test_a_large_batch_pays_for_numba():
    assert run(LARGE).strip() == "True"


def test_a_broken_numba_falls_back_to_the_plain_twin():
    assert run("import sys; sys.modules['llvmlite'] = None; sys.modules['numba'] = None\n" + LARGE).strip() == "True"


def test_kernels_run_as_python_without_the_compiler():
    """For a debugger: intrinsics have stand-ins, and numbers that wrap as they should are no warnings."""
    out = run(
        "import warnings; warnings.simplefilter('error')\n"
        "import numpy as np\n"
        "from skipstone.bloom import kernels, numpy_filter\n"
        "from skipstone.bloom.hashing import hash_var\n"
        "data, offsets = np.arange(250, dtype=np.uint8), np.array([0, 3, 16, 100, 250])\n"
        "hashes = kernels.xxh64_var(offsets, data)\n"
        "words, expected = np.zeros(32, np.uint32), np.zeros((4, 8), np.uint32)\n"
        "kernels.insert(words, hashes); numpy_filter.insert(expected, hashes)\n"
        "alike = hashes.tolist() == hash_var(offsets, data).tolist() and (words == expected.ravel()).all()\n"
        "print(type(kernels.insert).__name__, alike, kernels.probe(words, hashes).all())",
        NUMBA_DISABLE_JIT="1",
    )
    assert out.split() == ["function", "True", "True"]


def _begin(monkeypatch: pytest.MonkeyPatch, *, is_kept: bool) -> None:
    """As in a new process, on a machine that has compiled the kernels before or not."""
    for name, value in {"_loaded": {}, "_spent_ns": 0, "_spent_on": {}, "_kept": {"bloom.kernels": is_kept}}.items():
        monkeypatch.setattr(lazy, name, value)


@needs_a_compiler
def test_kernels_are_not_loaded_until_work_pays(monkeypatch: pytest.MonkeyPatch):
    _begin(monkeypatch, is_kept=True)
    assert lazy.kernels_for("bloom.kernels", lazy.LOAD_ABOVE_NS) is None
    monkeypatch.setattr(lazy, "_spent_ns", 0)
    loaded = lazy.kernels_for("bloom.kernels", lazy.LOAD_ABOVE_NS + 1)
    assert loaded is not None and hasattr(loaded, "insert")
    assert lazy.kernels_for("bloom.kernels", lazy.USE_ABOVE_NS) is None
    assert lazy.kernels_for("bloom.kernels", lazy.USE_ABOVE_NS + 1) is loaded
    assert SplitBlockFilter.build(pa.array([1])).contains(pa.array([1])).to_pylist() == [True]


@needs_a_compiler
@pytest.mark.parametrize("is_kept", [True, False])
def test_batches_that_do_not_pay_alone_pay_together(monkeypatch: pytest.MonkeyPatch, is_kept: bool):
    """Kernels are loaded, or first compiled, only for work that takes longer."""
    _begin(monkeypatch, is_kept=is_kept)
    if not is_kept:
        assert lazy.kernels_for("hfile_like.kernels_lookup", lazy.LOAD_ABOVE_NS) is None
    part = (lazy.LOAD_ABOVE_NS if is_kept else lazy.COMPILE_ABOVE_NS) // 4
    assert [lazy.kernels_for("bloom.kernels", part) is None for _ in range(5)] == [True, True, True, True, False]


@needs_a_compiler
def test_work_in_pieces_is_counted_as_a_whole(monkeypatch: pytest.MonkeyPatch):
    _begin(monkeypatch, is_kept=True)
    monkeypatch.setattr(lazy, "LOAD_ABOVE_NS", 50_000_000)
    built = SplitBlockFilter.build(pa.array([1, 2, 3]))
    asked = pa.array(range(500_000))
    assert built.contains(asked).true_count >= 2
    assert not lazy._loaded and lazy._spent_ns > 30_000_000
    assert built.contains(asked).true_count >= 2
    assert lazy._loaded["bloom.kernels"] is not None
