"""Damaged sorted-block files: every flipped bit and every truncation is found or changes nothing, and checksums that
were repaired after the damage do not get it past the structural checks.

Some of the bits by default; ten times as many with SKIPSTONE_TEST=all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest
from example_counts import every, few_of, is_thorough, only_in_test_all
from loaded_modules import run_code
from sorted_file_corruption import Job
from sorted_file_crafted import CRAFTED
from sorted_file_layout import Layout
from sorted_file_samples import file_of, names

SUPPORT = Path(__file__).parents[1] / "support"
# Of files of many blocks, blocks of one kind.
_LARGE_BYTES = 3500


def harm(folder: Path, jobs: list[Job]) -> list[dict]:
    """The outcomes of jobs, which run in processes of their own: one that has loaded compiled code uses it always."""
    assert len({job.compiled for job in jobs}) == 1
    count = min(len(jobs), os.cpu_count() or 1) if is_thorough() else 1
    parts = [jobs[i::count] for i in range(count)]
    with ThreadPoolExecutor(count) as pool:
        outcomes = list(pool.map(_done, [folder / f"{i}" for i in range(count)], parts))
    found: list[dict] = [{}] * len(jobs)
    for i, part in enumerate(outcomes):
        found[i::count] = part
    complaints = [f"{job.name}: {c}" for job, one in zip(jobs, found, strict=True) for c in one["complaints"]]
    assert not complaints, "\n".join(complaints[:20])
    return found


def _done(folder: Path, jobs: list[Job]) -> list[dict]:
    """What one process printed."""
    folder.mkdir()
    listed, place = folder / "jobs.json", folder / "place"
    listed.write_text(json.dumps([{**asdict(job), "place": str(place), "folder": str(folder)} for job in jobs]))
    done = run_code("import sorted_file_corruption; sorted_file_corruption.main()", listed)
    output = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(output) != len(jobs):
        name = jobs[min(len(output), len(jobs) - 1)].name
        pytest.fail(f"{name} ended with {done.returncode} at {place.read_text()}\n{done.stderr[-3000:]}")
    return output


def jobs_of(mode: str, share: int, first: int = 0, **more: int) -> list[Job]:
    """Return a job for each file: every `share`-th bit, and of large files every third of those."""
    found = []
    for i, name in enumerate(names()):
        each = every(share) * (3 if len(file_of(name)) >= _LARGE_BYTES else 1)
        found.append(Job(name, mode, share=each, first=(first + i) % each, **more))
    return found


def test_every_flipped_bit_is_found_or_changes_nothing(tmp_path: Path) -> None:
    share = 9001
    outcomes = harm(tmp_path, jobs_of("flips", share))
    # Only padding outside blocks may be touched unseen.
    for name, one in zip(names(), outcomes, strict=True):
        sound = file_of(name)
        padding = sum(8 * (r.stop - r.start) for r in Layout(sound).regions if r.kind == "padding")
        assert one["harmless"] <= padding and one["tried"] >= 8 * len(sound) // (3 * share)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    outcomes = harm(tmp_path, jobs_of("cuts", 797))
    assert all(one["refused"] == one["tried"] > 0 for one in outcomes)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("compiled", [True, False])
def test_repaired_checksums_do_not_get_a_flipped_bit_past_the_checks(tmp_path: Path, compiled: bool) -> None:
    outcomes = harm(tmp_path, jobs_of("repaired", 30_001, first=7 + 9000 * compiled, compiled=compiled))
    assert sum(one["refused"] for one in outcomes) > sum(one["tried"] for one in outcomes) / 3


@only_in_test_all
@pytest.mark.parametrize("compiled", [False, True])
def test_repaired_checksums_do_not_get_other_numbers_past_the_checks(tmp_path: Path, compiled: bool) -> None:
    outcomes = harm(tmp_path, jobs_of("wild", 1, first=11 + compiled, count=100, compiled=compiled))
    assert sum(one["refused"] for one in outcomes) > sum(one["tried"] for one in outcomes) / 3


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("compiled", [True, False])
def test_repaired_checksums_do_not_get_an_odd_field_past_the_checks(tmp_path: Path, compiled: bool) -> None:
    plain = [name for name in names() if name.endswith("/none")]
    share = every(5000)
    jobs = [Job(name, "fields", share=share, first=i % share, compiled=compiled) for i, name in enumerate(plain)]
    outcomes = harm(tmp_path, jobs)
    assert sum(one["refused"] for one in outcomes) > sum(one["tried"] for one in outcomes) / 3


def test_crafted_files_do_no_harm(tmp_path: Path) -> None:
    crafted = few_of(CRAFTED, 18)
    outcomes = harm(tmp_path, [Job(name, "crafted") for name in crafted])
    sound = {name for name, one in zip(crafted, outcomes, strict=True) if one["harmless"]}
    assert sound <= {"entries without end"}


def test_a_read_past_a_section_is_a_crash() -> None:
    """So that the tests above would see one."""
    past = "import ctypes, guarded_memory as g, numpy as n; a = n.frombuffer(g.guarded(b'abcdefg'), 'u1')"
    for length, ended in ((7, 0), (8, -signal.SIGSEGV)):
        read = f"{past}; ctypes.string_at(a.ctypes.data, {length})"
        assert subprocess.run([sys.executable, "-c", read], cwd=SUPPORT).returncode == ended
