"""A process that attaches, scans and indexes lakes with one hostile Parquet file each: `python hostile_program.py FIRST
COUNT` prints a line for each thing that must not be. pyarrow may end the process, so tests look at how it ended, too.

Right is: an error of ours that names the file, the file quarantined, or the rows that pyarrow itself reads of it.
"""

from __future__ import annotations

import resource
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from hostile_footers import base_files, harmed

HOSTILE = "b.parquet"
MEMORY_MB = 200  # beyond three times the file
_DEEP = 60_000  # frames, to write structs of depth 10,000


class Case:
    """One hostile file between two whole ones."""

    def __init__(self, root: Path, whole: bytes, hostile: bytes, harm: str):
        self.root, self.harm, self.size_bytes = root / "lake", harm, len(hostile)
        self.faults: list[str] = []
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        for name, data in (("a.parquet", whole), (HOSTILE, hostile), ("c.parquet", whole)):
            (self.root / name).write_bytes(data)

    def step(self, name: str, call: Callable[[], Any]) -> Any:
        before = _peak_mb()
        try:
            return call()
        except ss.SkipstoneError as error:
            if HOSTILE not in str(error):
                self.fault(name, f"{type(error).__name__} that names no file: {error}")
        except BaseException as error:
            self.fault(name, f"{type(error).__name__}: {str(error)[:200]}")
        finally:
            if _peak_mb() - before > MEMORY_MB + 3 * self.size_bytes / 1e6:
                self.fault(name, f"{_peak_mb() - before} MB")
        return None

    def fault(self, step: str, what: str) -> None:
        self.faults.append(f"{self.harm[:200]}: {step}: {what}")

    def attach(self) -> None:
        table = self.step("create", lambda: ss.create(self.root, partitioning=None, on_misfit="quarantine"))
        if table is None:
            return
        if HOSTILE in table.files()["path"].to_pylist():
            self._check_rows(table)
            self._use(table)
        else:
            assert HOSTILE in {file["path"] for file in table.handle.instant.quarantined}, self.harm
        self._declare(table.schema)

    def _check_rows(self, table: ss.Table) -> None:
        rows = self.step("scan", lambda: table.scan().to_table())
        if rows is None:
            return
        parts = [pq.ParquetFile(self.root / name).read() for name in ("a.parquet", HOSTILE, "c.parquet")]
        if self.step("count", lambda: table.scan().count()) != rows.num_rows:
            self.fault("count", f"is not that of {rows.num_rows} rows")
        for field in rows.schema:
            values = [value for part in parts for value in _values(part, field)]
            if repr(_python(rows[field.name])) != repr(values):
                self.fault("scan", f"column {field.name} is not as pyarrow reads it")

    def _use(self, table: ss.Table) -> None:
        """Every way to look at the file's footer, statistics, filters and pages."""
        plan = table.scan("t > TIMESTAMP '2024-01-01 00:30:00' OR d < 0.11 OR n.x = 5")
        self.step("range", plan.to_table)
        self.step(
            "extremes", lambda: [getattr(table.scan(), f)(c) for f in ("min", "max") for c in ("id", "s", "t", "d")]
        )
        self.step("row groups", lambda: table.scan("id > 55").row_groups())
        self._index(table)
        self.step("sync", table.sync)

    def _index(self, table: ss.Table) -> None:
        self.step("filter", lambda: table.create_index("id", kind="bloom"))
        self.step("filter of texts", lambda: table.create_index("s", kind="bloom"))
        self.step("secondary", lambda: table.create_index("id", kind="secondary"))
        self.step("look-up", lambda: table.scan("id = 17 AND s = 'k0017'", columns=["n", "l", "m", "id"]).to_table())
        self.step("look-ups", lambda: table.scan("id IN (3, 44)", columns=["s"]).to_table())
        self.step("verify", lambda: table.verify(deep=True))

    def _declare(self, schema: pa.Schema) -> None:
        """The same file, of which only its path and size were declared: nobody has looked at its footer."""
        shutil.rmtree(self.root / ".skipstone")
        paths = ["a.parquet", HOSTILE]
        sizes = pa.array([(self.root / path).stat().st_size for path in paths], pa.int64())
        files = pa.table({"path": paths, "size_bytes": sizes, "row_count": pa.array([60, 60], pa.int64())})
        table = self.step("declare", lambda: ss.create(self.root, schema=schema, partitioning=None, files=files))
        if table is not None:
            self.step("declared: scan", lambda: table.scan().to_table())
            self._index(table)


def _values(part: pa.Table, field: pa.Field) -> list:
    """A column as pyarrow reads it, in the table's type."""
    if field.name not in part.column_names:
        return [None] * len(part)
    try:
        return _python(part[field.name].cast(field.type))
    except pa.ArrowNotImplementedError:
        return _python(part[field.name])


def _python(column: pa.ChunkedArray) -> list:
    """The values of a column; of texts their bytes, which may be no UTF-8."""
    return (column.cast(pa.binary()) if pa.types.is_string(column.type) else column).to_pylist()


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main(first: int, count: int, *more: int) -> None:
    """Try so many seeds, and more of them."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    wholes = base_files()
    with tempfile.TemporaryDirectory() as root:
        for seed in (*range(first, first + count), *more):
            whole = wholes[seed % len(wholes)]
            usual = sys.getrecursionlimit()
            sys.setrecursionlimit(_DEEP)
            hostile, harm = harmed(whole, seed)
            sys.setrecursionlimit(usual)
            print(f"# {seed} {harm[:300]}".replace("\n", " "), flush=True)  # what the process ended at, if it does
            case = Case(Path(root), whole, hostile, f"seed {seed}, {harm}")
            case.attach()
            for fault in case.faults:
                print(fault.replace("\n", " "), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
