"""A process that attaches, follows and scans Delta and Iceberg tables whose logs are damaged or crafted:
`python hostile_log_program.py FIRST COUNT` prints a line for each thing that must not be. A library may end the
process, or hang, so tests look at how it ended, too.

Right is: an error of ours, or the rows that the log's own library reads, or, where that reads none, those that the
table had before it was harmed.
"""

from __future__ import annotations

import faulthandler
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_logs
import log_lakes
import pyarrow as pa
import skipstone as ss

KINDS = ("delta", "iceberg")
MEMORY_MB = 400
SECONDS_MAX = 20.0  # of the processor
_DEEP = 60_000  # frames, to write structs of depth 10,000
HANGS_S = 60  # by the clock: then the process ends by SIGALRM


class Case:
    """One harmed table, attached when it is harmed, or before."""

    def __init__(self, whole: Path, folder: Path, kind: str, seed: int):
        self.kind, self.seed, self.folder = kind, seed, folder
        self.faults: list[str] = []
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        self.lake = folder / "lake" / "t"
        self.harm = ""

    def run(self) -> None:
        rng = random.Random(self.seed)
        before = _rows(ss.create(self.lake, source=self.kind, index_path=self.folder / "before"))
        is_attached = rng.random() < 0.5
        followed = ss.open(self.lake, index_path=self.folder / "before")
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(_DEEP)
        self.harm = f"{self.kind}, seed {self.seed}, {hostile_logs.harm(self.lake, self.kind, rng)}"
        sys.setrecursionlimit(usual)
        print(f"# {self.harm}"[:300].replace("\n", " "), flush=True)  # what the process ended at, if it does
        table = followed
        if not is_attached:
            table = self.step(
                "create", lambda: ss.create(self.lake, source=self.kind, index_path=self.folder / "after")
            )
        if table is None:
            return
        for name, act in (("refresh", table.refresh), ("sync", table.sync), ("verify", table.verify)):
            self.step(name, act)
            rows = self.step("scan", lambda: _rows(table))
            if rows is not None and rows != before:
                self._judge(name, rows, before)
            count = self.step("count", lambda: table.scan("a >= 0").count())
            if count is not None and rows is not None and count != sum(rows.values()):
                self.faults.append(f"{self.harm}: {name}: a count of {count}, and {sum(rows.values())} rows")
        self.step("filter", lambda: table.create_index("a", kind="bloom"))
        self.step("look-up", lambda: table.scan("a = 3").to_table())

    def _judge(self, name: str, rows: Counter, before: Counter) -> None:
        """Other rows than before the harm are right where the log's library reads them, too."""
        try:
            theirs = self._theirs()
        except BaseException as error:
            self.faults.append(f"{self.harm}: {name}: {_unlike(rows, before)}, and {self.kind} says {error!s:.150}")
            return
        if rows != theirs:
            self.faults.append(f"{self.harm}: {name}: {_unlike(rows, theirs)} than {self.kind} reads")

    def _theirs(self) -> Counter:
        if self.kind == "iceberg":
            return log_lakes.multiset(log_lakes.read_iceberg(self.lake))
        from deltalake import DeltaTable, QueryBuilder

        found = QueryBuilder().register("t", DeltaTable(self.lake)).execute("select * from t")
        return log_lakes.multiset(pa.table(found))

    def step(self, name: str, call: Callable[[], Any]) -> Any:
        before, start = _peak_mb(), time.process_time()
        signal.alarm(HANGS_S)
        try:
            return call()
        except ss.SkipstoneError as error:
            if not self._is_named_in(error):
                self.faults.append(f"{self.harm}: {name}: {type(error).__name__} that names no table: {error}")
        except BaseException as error:
            self.faults.append(f"{self.harm}: {name}: {type(error).__name__}: {str(error)[:200]}")
        finally:
            signal.alarm(0)
            if _peak_mb() - before > MEMORY_MB:
                self.faults.append(f"{self.harm}: {name}: {_peak_mb() - before} MB")
            if time.process_time() - start > SECONDS_MAX:
                self.faults.append(f"{self.harm}: {name}: {time.process_time() - start:.0f} s of the processor")
        return None

    def _is_named_in(self, error: ss.SkipstoneError) -> bool:
        """Whether an error has a path, or its text names the table or one of its files."""
        if getattr(error, "path", None) or getattr(error, "paths", None):
            return True
        names = [str(self.folder), *(path.name for path in self.lake.rglob("*"))]
        return any(name in str(error) for name in names)


def _rows(table: ss.Table) -> Counter:
    return log_lakes.multiset(table.scan().to_table())


def _unlike(rows: Counter, wanted: Counter) -> str:
    lost, more = list((wanted - rows).elements()), list((rows - wanted).elements())
    return f"rows {lost[:3]} are lost and {more[:3]} more"


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main(first: int, count: int, *more: int) -> None:
    """Try so many seeds, and more of them."""
    faulthandler.enable()  # says which library ended the process
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        for seed in (*range(first, first + count), *more):
            kind = KINDS[seed % len(KINDS)]
            whole = folder / f"whole-{kind}"
            if not whole.exists():
                (folder / "t").mkdir(exist_ok=True)
                hostile_logs.make(
                    folder / "t" / kind, kind
                )  # paths in logs are absolute: it is harmed where it was made
                shutil.copytree(folder / "t" / kind, whole)
            case = Case(whole, folder / "t" / kind, kind, seed)
            case.run()
            for fault in case.faults:
                print(fault.replace("\n", " "), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
