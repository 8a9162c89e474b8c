"""A process that attaches, scans and indexes lakes with one hostile Parquet file each (see hostile_cases.py).

Right is: a SkipstoneError that names the file, the file quarantined, or the rows that pyarrow itself reads of it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from hostile_cases import Case, deep_structs, run_cases
from hostile_footers import base_files, harmed

HOSTILE = "b.parquet"
MEMORY_MB = 200  # beyond three times the file


class FileCase(Case):
    """One hostile file between two whole ones."""

    def __init__(self, folder: Path, whole: bytes, seed: int):
        with deep_structs():
            hostile, harm = harmed(whole, seed)
        super().__init__(f"seed {seed}, {harm}", MEMORY_MB + 3 * len(hostile) / 1e6)
        self.root = folder / "lake"
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        for name, data in (("a.parquet", whole), (HOSTILE, hostile), ("c.parquet", whole)):
            (self.root / name).write_bytes(data)

    def is_named_in(self, error: ss.SkipstoneError) -> bool:
        return HOSTILE in str(error)

    def use(self) -> None:
        table = self.step("create", lambda: ss.create(self.root, partitioning=None, on_misfit="quarantine"))
        if table is None:
            return
        if HOSTILE in table.files()["path"].to_pylist():
            self._check_rows(table)
            self._scan(table)
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

    def _scan(self, table: ss.Table) -> None:
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
        """The same file, of which only path, size and row count are declared: no process has read its footer."""
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
    """The values of a column; of texts their bytes, which may be no UTF-8, of times their counts, which Python may not
    have."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).to_pylist()
    return (column.cast(pa.binary()) if pa.types.is_string(column.type) else column).to_pylist()


def main(first: int, count: int, *more: int) -> None:
    """Try so many seeds, and more of them."""
    wholes = base_files()
    seeds = (*range(first, first + count), *more)
    run_cases(lambda folder, seed: FileCase(folder, wholes[seed % len(wholes)], seed), seeds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
