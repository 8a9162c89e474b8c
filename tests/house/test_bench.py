"""The tools of the benchmarks: wrong answers are never timed, and a report names the machine and the libraries."""

from __future__ import annotations

import importlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from example_counts import only_in_test_all

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def harness() -> Iterator[ModuleType]:
    """bench/ is not a part of the package: its modules are found in the repository."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY)
        yield importlib.import_module("bench.support.harness")


def test_a_wrong_answer_is_not_timed(harness: ModuleType, tmp_path: Path) -> None:
    calls = []
    bench = harness.Bench("wrong", "Wrong", results=tmp_path)
    bench.case("row", "us", lambda: calls.append("us") or [1, 2], kind="us")
    bench.case("row", "peer", lambda: calls.append("peer") or [1, 3])
    with pytest.raises(harness.AnswersDifferError, match=r"us says \[1, 2\], peer says \[1, 3\]"):
        bench.run(3)
    assert calls == ["us", "peer"]
    silent = harness.Bench("silent", "Silent", results=tmp_path)
    silent.case("row", "peer", lambda: None)
    with pytest.raises(harness.AnswersDifferError, match="gave no answer"):
        silent.run(3)


def test_a_slow_contender_takes_part_in_few_rounds(harness: ModuleType, tmp_path: Path) -> None:
    calls = []
    bench = harness.Bench("few", "Few", results=tmp_path)
    bench.case("row", "skipstone", lambda key: 1, setup=lambda: 1, kind="us")
    bench.case("row", "slow", lambda key: calls.append("slow") or 1, setup=lambda: 1, every=4)
    bench.run(9)
    slow = next(one for one in bench.figures() if one["contender"] == "slow")
    assert calls.count("slow") == 1 + 3 and len(slow["samples_s"]) == 3 and slow["ratio_to_us"] > 0
    with pytest.raises(ValueError, match="every round"):
        bench.case("other", "us", lambda: 1, kind="us", every=2)


_APART = """
import os, sys
from pathlib import Path
from bench.support.harness import Answer, Bench
bench = Bench("apart", "Apart", results=Path(sys.argv[1]))
marks = Path(sys.argv[1])
def ask(name, value):
    def answer():
        (marks / f"{name}-{os.getpid()}").touch()
        if value is None:
            raise ValueError(name)
        return Answer(value, requests=7)
    return answer
bench.case("one", "us", ask("us", 5), kind="us")
bench.case("one", "peer, new", ask("new", 5))
bench.case("one", "peer, old", ask("old", eval(sys.argv[2])))
bench.run(2, apart=True)
bench.report()
(marks / f"parent-{os.getpid()}").touch()
"""


@only_in_test_all
def test_contenders_apart(tmp_path: Path) -> None:
    def run(answer: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", _APART, str(tmp_path), answer]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)

    assert run("5").returncode == 0
    document = json.loads((tmp_path / "apart.json").read_text(encoding="utf-8"))
    assert [(one["requests"], len(one["samples_s"])) for one in document["cases"]] == [(7, 2)] * 3
    processes = dict(path.name.split("-") for path in tmp_path.glob("*-*"))
    assert processes["new"] == processes["old"]  # of one engine
    assert len({processes[name] for name in ("us", "new", "parent")}) == 3
    assert "AnswersDifferError: one: us says 5, peer, old says 6" in run("6").stderr
    assert "ValueError: old" in (failed := run("None")).stderr and "ChildProcessError" in failed.stderr


def test_equal_answers_in_other_forms(harness: ModuleType, tmp_path: Path) -> None:
    large = pa.table({"x": np.arange(150_000), "y": np.arange(150_000) % 7})  # compared in their order
    bench = harness.Bench("same", "Same", results=tmp_path)
    bench.case("row", "a", lambda: pa.table({"x": [1, 2], "y": ["b", "a"]}), kind="us")
    bench.case("row", "b", lambda: pa.table({"y": pa.array(["a", "b"], pa.large_string()), "x": [2, 1]}))
    bench.case("row", "c", lambda: harness.Answer(pa.table({"x": [1, 2], "y": ["b", "a"]}), requests=3, bytes=4096))
    bench.case("row", "less", lambda: None, kind="floor")
    bench.case("large", "us", lambda: large, kind="us")
    bench.case("large", "chunks", lambda: pa.concat_tables([large.slice(0, 10), large.slice(10)]).select(["y", "x"]))
    bench.run(1)
    figures = {one["contender"]: one for one in _document(bench, tmp_path)["cases"]}
    assert (figures["c"]["requests"], figures["c"]["bytes"]) == (3, 4096)
    assert figures["a"]["requests"] is None
    wrong = harness.Bench("wrong", "Wrong", results=tmp_path)
    wrong.case("large", "us", lambda: large, kind="us")
    wrong.case("large", "other", lambda: large.slice(1))
    with pytest.raises(harness.AnswersDifferError, match="150,000 rows"):
        wrong.run(1)


def test_rounds_are_interleaved_and_setup_is_not_timed(harness: ModuleType, tmp_path: Path) -> None:
    order = []

    def setup() -> str:
        time.sleep(0.02)
        return "cold"

    bench = harness.Bench("turns", "Turns", results=tmp_path)
    bench.case("row", "us", lambda state: order.append("us") or state, setup=setup, kind="us")
    bench.case("row", "slow", lambda state: order.append("slow") or time.sleep(0.01) or state, setup=setup)
    bench.run(3)
    assert order == ["us", "slow"] * 4  # once to compare, then three rounds
    slow = _document(bench, tmp_path)["cases"][1]
    assert slow["ratio_to_us"] > 5
    assert len(slow["samples_s"]) == 3
    text = (tmp_path / "turns.md").read_text(encoding="utf-8")
    assert "How to rerun: `make bench NAME=turns`" in text
    assert "| row | **us** |" in text


def test_the_machine_line_names_no_host(harness: ModuleType) -> None:
    line = harness.machine_line(["duckdb", "no-such-library"])
    assert "no-such-library absent" in line
    assert "pyarrow " in line
    assert str(Path.home()) not in line
    assert platform.node() not in line.replace(platform.system(), "").split()


def _document(bench: Any, folder: Path) -> dict[str, Any]:
    bench.report()
    return json.loads((folder / f"{bench.name}.json").read_text(encoding="utf-8"))


_SMALL = {  # benchmark: its arguments at a small scale, libraries, contenders, cases of Skipstone
    "planning": (
        "2_000, rounds=1, cache=folder / 'cache', results=folder",
        ["polars", "deltalake"],
        {"skipstone", "deltalake", "DuckDB", "numpy, in memory"},
        6,
    ),
    "listing": (
        "b.Shape('M', 300, 4), 1, folder / 'cache', folder, onto=b.Shape('E', 300, 12), commits=3",
        ["deltalake"],
        {"skipstone", "os.scandir", "deltalake", "DuckDB", "memcpy"},
        8,
    ),
    "sorted_file": ("b.Shape('E', 600, 3), 1, folder", ["lmdb"], {"skipstone", "LMDB", "Parquet"}, 3),
}


@only_in_test_all
@pytest.mark.parametrize("name", _SMALL)
def test_a_benchmark_runs_and_its_contenders_agree(tmp_path: Path, name: str) -> None:
    arguments, libraries, contenders, count = _SMALL[name]
    for library in ("duckdb", *libraries):
        pytest.importorskip(library, reason=f'{library} is not installed: pip install -e ".[bench]"')
    code = f"from pathlib import Path; import bench.{name} as b; folder = Path({str(tmp_path)!r}); b.run({arguments})"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    assert (tmp_path / f"{name}.md").exists()
    cases = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    assert {one["contender"] for one in cases} >= contenders
    ours = [one for one in cases if one["kind"] == "us"]
    assert len(ours) == count
    assert name != "planning" or all(one["requests"] is not None and one["bytes"] is not None for one in ours)
