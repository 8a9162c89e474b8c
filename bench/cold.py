"""A look-up in a new process: open, plan and read one value, against `import pyarrow`, a cost of every reader.

Each call is a new process. Its imports were compiled before (into a folder of the benchmark), and files are in the
system's cache: the remaining time is the cost of importing and planning.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss

from .support.harness import Bench

FILES, ROWS_A_FILE = 8, 1_000
ROUNDS = 15
_PYARROW = "import pyarrow"
# The limit for a process, as a multiple of `import pyarrow`.
_COL_MAX, _SQL_MAX = 2.2, 2.8
_OPEN = "import skipstone as ss; table = ss.open({lake!r}); "
_PROGRAMS = {
    "plan, col()": _OPEN + "print(table.scan(ss.col('x') == 5).files().num_rows)",
    "read, col()": _OPEN + "print(table.scan(ss.col('x') == 5).to_table().num_rows)",
    "plan, SQL text": _OPEN + "print(table.scan('x = 5').files().num_rows)",
}


def write_lake(folder: Path) -> None:
    """Write files of consecutive numbers, with statistics and a filter."""
    for part in range(FILES):
        numbers = range(part * ROWS_A_FILE, (part + 1) * ROWS_A_FILE)
        rows = pa.table({"x": numbers, "s": [f"k{number}" for number in numbers]})
        pq.write_table(rows, folder / f"part-{part}.parquet", row_group_size=ROWS_A_FILE // 2)
    time.sleep(2.1)  # each process lists a folder that changed less than two seconds before it was indexed
    ss.create(folder).create_index("s", kind="bloom")


def main() -> None:
    bench = Bench("cold", "A look-up in a new process", libraries=["duckdb"])
    with tempfile.TemporaryDirectory() as temporary:
        lake = Path(temporary) / "lake"
        lake.mkdir()
        write_lake(lake)
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment = {**kept, "PYTHONPYCACHEPREFIX": str(Path(temporary) / "compiled")}

        def process(*arguments: str) -> Callable[[], str]:
            def run() -> str:
                done = subprocess.run(
                    arguments, check=True, capture_output=True, text=True, cwd=temporary, env=environment
                )
                return done.stdout.strip()

            return run

        def importing() -> None:
            process(sys.executable, "-c", _PYARROW)()

        scan = [str(Path(sys.executable).with_name("skipstone")), "scan", str(lake), "--where", "x = 5", "--count"]
        commands = {
            **{row: [sys.executable, "-c", code.format(lake=str(lake))] for row, code in _PROGRAMS.items()},
            "skipstone scan --count": scan,
        }
        for row, command in commands.items():
            bench.case(row, "skipstone", process(*command), kind="us")
            bench.case(row, _PYARROW, importing, kind="floor")
        bench.run(ROUNDS)
    lines = ["## Targets", "", "| task | / import pyarrow | at most | |", "| --- | ---: | ---: | --- |"]
    for figure in bench.figures():
        if figure["kind"] == "floor":
            row, ratio = figure["row"], 1 / figure["ratio_to_us"]
            most = _SQL_MAX if "SQL" in row or "scan" in row else _COL_MAX
            lines.append(f"| {row} | {ratio:.3g} | {most:g} | {'won' if ratio <= most else '**lost**'} |")
    bench.report(lines)


if __name__ == "__main__":
    main()
