"""Creating an index from a list of files: seconds, and the memory of a process that does nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from bench.support.listing_lake import Lake

SECONDS_MAX = 8
MEMORY_BYTES_MAX = 1_500_000_000
_ROOT = Path(__file__).parents[2]

# The list lies in a file of Arrow; it is read before the clock starts, and its memory counts. The peak that rusage
# tells would begin at that of the parent.
_HEAD = """
import json, sys, time
from pathlib import Path
import pyarrow as pa
from bench.support import listing_data
files = pa.ipc.open_file(sys.argv[1]).read_all()
folder = Path(sys.argv[2])
def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
before, start = peak(), time.perf_counter()
"""
_TAIL = """
print(json.dumps({"s": time.perf_counter() - start, "before": before, "peak": peak()}))
"""
_CONTENDERS = {
    "**skipstone**": "listing_data.make_ours(folder, files)",
    "pyarrow: a Parquet file, zstd": "listing_data.write_manifest(folder / 'manifest.parquet', files)",
    "DuckDB: the same": "listing_data.duck_manifest(folder / 'manifest.parquet', files)",
}


def create(lake: Lake, cache: Path, slower: float) -> list[str]:
    """Each contender in a process of its own, one after the other."""
    shape = lake.files.shape
    lines = [
        f"## Creating from a list of {shape.files:,} files",
        "",
        "| by | s | memory at its peak, MB | of it before the start (libraries, the list) | bytes |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    ours: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="create-", dir=cache) as name:
        source = Path(name) / "files.arrow"
        table = lake.files.table()
        with pa.ipc.new_file(source, table.schema) as writer:
            writer.write_table(table)
        for number, (contender, code) in enumerate(_CONTENDERS.items()):
            folder = Path(name) / str(number)
            measured = _child(_HEAD + code + _TAIL, source, folder)
            size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
            ours = ours or measured
            cells = [
                f"{measured['s']:.2f}",
                f"{measured['peak'] / 1e6:,.0f}",
                f"{measured['before'] / 1e6:,.0f}",
                f"{size:,}",
            ]
            lines.append(f"| {contender} | {' | '.join(cells)} |")
    lines += [
        "",
        _verdict("seconds", f"{ours['s']:.2f}", f"{SECONDS_MAX} x {slower:.2f}", ours["s"] / slower, SECONDS_MAX),
    ]
    peak_shown = f"{ours['peak'] / 1e6:,.0f} MB"
    return [*lines, _verdict("memory", peak_shown, f"{MEMORY_BYTES_MAX / 1e6:,.0f} MB", ours["peak"], MEMORY_BYTES_MAX)]


def _verdict(name: str, shown: str, shown_most: str, value: float, most: float) -> str:
    return f"- {name}: {shown}, at most {shown_most}: {'won' if value <= most else '**lost**'}"


def _child(code: str, source: Path, folder: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", code, str(source), str(folder)], cwd=_ROOT, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])
