"""A process that attaches, follows and scans Delta and Iceberg tables whose logs are damaged or crafted (see
hostile_cases.py).

Right is: a SkipstoneError, or the rows that the log's own library reads, or, if that reads none, those that the
table had before it was harmed.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections import Counter
from pathlib import Path

import hostile_logs
import log_lakes
import skipstone as ss
from hostile_cases import Case, deep_structs, run_cases

KINDS = ("delta", "iceberg")
MEMORY_MB = 400


class LogCase(Case):
    """One harmed table, attached when it is harmed, or before."""

    def __init__(self, root: Path, seed: int):
        self.kind = KINDS[seed % len(KINDS)]
        self.folder, whole = root / "t" / self.kind, root / f"whole-{self.kind}"
        self.lake = self.folder / "lake" / "t"
        if not whole.exists():
            hostile_logs.make(self.folder, self.kind)  # in its final place, because paths in logs are absolute
            shutil.copytree(self.folder, whole)
        shutil.rmtree(self.folder)
        shutil.copytree(whole, self.folder)
        rng = random.Random(seed)
        self.before = _rows(ss.create(self.lake, source=self.kind, index_path=self.folder / "before"))
        self.is_attached = rng.random() < 0.5
        self.followed = ss.open(self.lake, index_path=self.folder / "before")
        with deep_structs():
            harm = hostile_logs.harm(self.lake, self.kind, rng)
        super().__init__(f"{self.kind}, seed {seed}, {harm}", MEMORY_MB)

    def use(self) -> None:
        table = self.followed
        if not self.is_attached:
            after = self.folder / "after"
            table = self.step("create", lambda: ss.create(self.lake, source=self.kind, index_path=after))
        if table is None:
            return
        for name, act in (("refresh", table.refresh), ("sync", table.sync), ("verify", table.verify)):
            self.step(name, act)
            rows = self.step("scan", lambda: _rows(table))
            if rows is not None and rows != self.before:
                self._judge(name, rows)
            count = self.step("count", lambda: table.scan("a >= 0").count())
            if count is not None and rows is not None and count != sum(rows.values()):
                self.fault(name, f"a count of {count}, and {sum(rows.values())} rows")
        self.step("filter", lambda: table.create_index("a", kind="bloom"))
        self.step("look-up", lambda: table.scan("a = 3").to_table())

    def _judge(self, step: str, rows: Counter) -> None:
        """Other rows than before the harm are right if the log's library reads them, too."""
        read = log_lakes.read_iceberg if self.kind == "iceberg" else log_lakes.read_delta
        try:
            theirs = log_lakes.multiset(read(self.lake))
        except BaseException as error:
            self.fault(step, f"{_unlike(rows, self.before)}, and {self.kind} raises {error!s:.150}")
            return
        if rows != theirs:
            self.fault(step, f"{_unlike(rows, theirs)} than {self.kind} reads")

    def is_named_in(self, error: ss.SkipstoneError) -> bool:
        """Whether an error has a path, or its text names the table or one of its files."""
        if getattr(error, "path", None) or getattr(error, "paths", None):
            return True
        renamed = ["'a'"] if ".name: " in self.harm else []  # then the table has another column
        names = [*renamed, str(self.folder), *(path.name for path in self.lake.rglob("*"))]
        return any(name in str(error) for name in names)


def _rows(table: ss.Table) -> Counter:
    return log_lakes.multiset(table.scan().to_table())


def _unlike(rows: Counter, wanted: Counter) -> str:
    lost, more = list((wanted - rows).elements()), list((rows - wanted).elements())
    return f"rows {lost[:3]} are lost and {more[:3]} more"


def main(first: int, count: int, *more: int) -> None:
    """Try so many seeds, and more of them."""
    run_cases(LogCase, (*range(first, first + count), *more))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
