"""What is random or violent in the tests, for as long as you like, with new seeds: `make torture MINUTES=120`.

    python torture.py --minutes 120 [--seed 1] [--only kills,pairs]

Each trial is a separate program, so that a crash, a hang or a leak of one ends that one. Two run at a time. Each line
of the table states what was tried and how much of it failed. A failure is printed immediately, with the command that
repeats it. The status is 1 if something was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
AT_ONCE = 2
GRACE_S = 240  # beyond its share, for a trial to end by itself
SECONDS_MIN = 10
HISTORIES = ["soundness/test_life_of_a_table.py", "lakes/test_log_histories.py", "lakes/test_hudi_histories.py"]
FAULTS = [
    "faults/test_lost_timeline_files.py",
    "faults/test_damage.py",
    "faults/test_full_disk.py",
    "faults/test_crash_points.py",
    "faults/test_power_cuts.py",
]
PYTEST_OPTIONS = ["-q", "-x", "-pno:cacheprovider", "--tb=short", "--disable-warnings", "--hypothesis-show-statistics"]
EXAMPLES = 10  # of each history, between two looks at the clock
FILES_AT_ONCE = 50
ENDS_OF_A_PROCESS = ("Fatal Python error", "memory allocation of ")
# Who may end it: pyiceberg's compiled decoder reads damaged Avro unchecked (docs/limits.md), and what the log's own
# library does when a trial compares with it is not ours.
OTHERS = ("/pyiceberg/avro/", "in _judge")
DEEP = "checkpoint.parquet: a schema of depth"  # deltalake alone ends by it without a trace (SECURITY.md)
SCANS = 10_000


@dataclass
class Figures:
    """The result of one kind of trial: how much was tried, of what, what was wrong, and the seconds that it took."""

    unit: str
    tried: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


class Trials:
    """Runs programs within the time of one kind of trial, and takes in what they print."""

    def __init__(self, name: str, seconds: float, seed: int, folder: Path, console: Console):
        self.name, self.seed, self.figures = name, seed, Figures("")
        self._folder, self._console = folder, console
        self._began = time.monotonic()
        self._ends = self._began + seconds

    @property
    def left_s(self) -> float:
        return self._ends - time.monotonic()

    def program(self, script: str, *arguments: object, timeout: float | None = None, **environment: str) -> list[str]:
        """The lines that a program printed until it ended, or was asked to. What a program says as it dies is wrong."""
        command = [sys.executable, *([] if script == "-m" else [str(SUPPORT / script)]), *map(str, arguments)]
        if script == "-m":
            command.insert(1, "-m")
        self._folder.mkdir(exist_ok=True)
        path = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(self._folder), **environment}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, errors="replace"
        ) as process:
            seconds = max(self.left_s, SECONDS_MIN) if timeout is None else timeout
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
                try:
                    output, _ = process.communicate(timeout=GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    output, _ = process.communicate()
                    self.note([f"{' '.join(command[1:])} did not end; it had printed {output[-500:]!r}"])
        self.status, self.was_ended = process.returncode, process.returncode == -signal.SIGTERM
        return output.splitlines()

    def note(self, wrong: list[str]) -> None:
        self.figures.wrong += wrong
        for line in wrong:
            self._console.print(f"[red]{self.name}:[/red] ", line, markup=True, highlight=False)

    def summary(self, lines: list[str]) -> dict:
        """The JSON of the last line; a program that ended without one is wrong."""
        try:
            return json.loads(lines[-1])
        except (IndexError, ValueError):
            self.note([f"ended with status {self.status}: " + " | ".join(lines[-15:])])
            return {}

    def finished(self) -> Figures:
        self.figures.seconds = time.monotonic() - self._began
        return self.figures


def pairs(trials: Trials) -> None:
    trials.figures.unit = "pairs of a lake and a predicate"
    seconds = trials.left_s
    figures = trials.summary(
        trials.program("soundness_run.py", "--seconds", seconds, "--seed", trials.seed, timeout=seconds + GRACE_S)
    )
    trials.figures.tried += figures.get("tried", 0)
    trials.note(figures.get("wrong", []))


def _hypothesis(trials: Trials, files: list[str]) -> None:
    """Rounds of tests with new seeds, each file for itself, until the time is over."""
    options = ["-c", TESTS / "pytest.ini", "--rootdir", TESTS, *PYTEST_OPTIONS]
    for number in range(1_000_000):
        file = files[number % len(files)]
        seed = trials.seed * 10_000 + number
        timeout = max(trials.left_s, SECONDS_MIN) + GRACE_S
        chosen = [f"--hypothesis-seed={seed}", TESTS / file]
        environment = {"SKIPSTONE_TEST": "all", "SKIPSTONE_EXAMPLES": str(EXAMPLES), "SKIPSTONE_SEED": str(seed)}
        lines = trials.program("-m", "pytest", *options, *chosen, timeout=timeout, **environment)
        passing = [int(n) for line in lines for n in re.findall(r"(\d+) passing examples", line)]
        passed = [int(n) for line in lines[-1:] for n in re.findall(r"(\d+) passed", line)]
        trials.figures.tried += sum(passing) or sum(passed)
        if trials.status not in (0, 5) and not trials.was_ended:
            trials.note([f"{file}, seed {seed}: " + " | ".join(lines[-200:])])
        if trials.left_s < 0:
            return


def histories(trials: Trials) -> None:
    trials.figures.unit = "histories of a table"
    _hypothesis(trials, HISTORIES)


def faults(trials: Trials) -> None:
    trials.figures.unit = "crashes, power cuts, damages"
    _hypothesis(trials, FAULTS)


def _kills(trials: Trials, *kinds: str) -> None:
    trials.figures.unit = "killed processes"
    lines = trials.program("killed_processes.py", 1_000_000, "--seed", trials.seed, *kinds)  # SIGTERM ends it
    figures = trials.summary(lines)
    trials.figures.tried += figures.get("kills", 0)
    if figures.get("findings"):
        trials.note(lines[:-1])


def kills(trials: Trials) -> None:
    _kills(trials)


def kills_s3(trials: Trials) -> None:
    _kills(trials, "--kinds", "s3")


def _hostile(trials: Trials, program: str) -> None:
    first = trials.seed * 1_000_000
    while trials.left_s > 0:
        lines = trials.program(program, first, FILES_AT_ONCE, timeout=GRACE_S * 4)
        begun = [line for line in lines if line.startswith("# ")]
        trials.figures.tried += len(begun)
        end = next((at for at, line in enumerate(lines) if line.startswith(ENDS_OF_A_PROCESS)), len(lines))
        trials.note([line for line in lines[:end] if not line.startswith("# ")])
        is_deep = trials.status == -signal.SIGSEGV and end == len(lines) and DEEP in "".join(begun[-1:])
        if trials.status != 0 and not is_deep and not any(other in line for line in lines[end:] for other in OTHERS):
            trials.note([f"ended with status {trials.status} at {begun[-1:]}: {' | '.join(lines[-40:])}"])
        first += max(1, len(begun))  # the next one, if the process ended at one


def hostile_files(trials: Trials) -> None:
    trials.figures.unit = "damaged and crafted Parquet files"
    _hostile(trials, "hostile_program.py")


def hostile_logs(trials: Trials) -> None:
    trials.figures.unit = "damaged and crafted logs"
    _hostile(trials, "hostile_log_program.py")


def steady(trials: Trials) -> None:
    trials.figures.unit = "scans that leave nothing behind"
    count = SCANS if trials.left_s > SCANS / 100 else 1_000
    figures = trials.summary(trials.program("steady_scans.py", count, timeout=1_800))
    trials.figures.tried += figures.get("tried", 0)
    trials.note(figures.get("wrong", []))


# What is tried, and its part of the time.
SHARES: dict[Callable[[Trials], None], float] = {
    pairs: 0.25,
    histories: 0.22,
    kills: 0.13,
    faults: 0.09,
    kills_s3: 0.06,
    hostile_logs: 0.05,
    hostile_files: 0.04,
    steady: 0.03,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Random and violent trials, with new seeds.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--only", help="of " + ",".join(trial.__name__ for trial in SHARES))
    asked = parser.parse_args()
    wanted = set(asked.only.split(",")) if asked.only else {trial.__name__ for trial in SHARES}
    shares = {trial: share for trial, share in SHARES.items() if trial.__name__ in wanted}
    if not shares:
        parser.error(f"--only takes {', '.join(trial.__name__ for trial in SHARES)}")
    console = Console(soft_wrap=True)
    console.print(f"torture of {asked.minutes:g} minutes, seed {asked.seed}, {AT_ONCE} trials at a time")
    total_s = asked.minutes * 60 * min(AT_ONCE, len(shares))
    with tempfile.TemporaryDirectory(prefix="skipstone-torture-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:

        def run(trial: Callable[[Trials], None]) -> Figures:
            seconds = total_s * shares[trial] / sum(shares.values())
            trials = Trials(trial.__name__, seconds, asked.seed, Path(folder, trial.__name__), console)
            trial(trials)
            figures = trials.finished()
            console.print(f"{trial.__name__}: {figures.tried:,} {figures.unit}, {len(figures.wrong)} wrong")
            return figures

        results = dict(zip(shares, pool.map(run, shares), strict=True))
    table = Table("trial", "what", title=f"seed {asked.seed}")
    for column in ("tried", "wrong", "seconds"):
        table.add_column(column, justify="right")
    for trial, figures in results.items():
        cells = (f"{figures.tried:,}", str(len(figures.wrong)), f"{figures.seconds:.0f}")
        table.add_row(trial.__name__, figures.unit, *cells)
    console.print(table)
    sys.exit(any(figures.wrong for figures in results.values()))


if __name__ == "__main__":
    main()
