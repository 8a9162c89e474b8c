"""Asks one parser about inputs that a fuzzer makes:

    python fuzz_parsers.py sorted_file|instant|footer|sql --seconds 60 [--seed 1]

Where atheris is installed (`pip install atheris`), what the parser's Python code runs through guides the changes; else
they are random. Right is an answer, or an error of ours, in bounded time and memory. Where checksums guard what is
parsed, they are made to fit, so that what lies behind them is tried. The last line is JSON; where something was wrong,
it holds the input, and the status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

try:
    import atheris
except ImportError:
    atheris = None  # type: ignore[assignment]

MEMORY_BYTES = 4 << 30
INPUT_SECONDS_MAX = 20  # of the processor, which others may be busy with; parsers wait for nothing
SEEDS_OF_TEXT = 200
PATCHES_MAX = 6
Parser = Callable[[bytes], None]


def _instrumented() -> list[str]:
    """Our modules whose byte code may be changed: those that hold no kernels, which numba would not compile then."""
    root = Path(__file__).parents[2]
    names = []
    for folder in ("engine", "hfile_like", "bloom"):
        for path in (root / folder).rglob("*.py"):
            if not re.search(r"import .*\b(jit_cached|njit)\b|numba", path.read_text(encoding="utf-8")):
                names.append(".".join(("skipstone", *path.relative_to(root).with_suffix("").parts)))
    return [name.removesuffix(".__init__") for name in names]


def sorted_file() -> tuple[Parser, list[bytes]]:
    """The first byte chooses a sound file; then each five bytes put one byte somewhere."""
    from skipstone.hfile_like import SortedFileReader
    from sorted_file_layout import Layout
    from sorted_file_reads import Named, crafted_faces
    from sorted_file_samples import file_of, names

    whole = [file_of(name) for name in names() if not name.startswith(("large", "many_blocks"))]
    layouts = [Layout(data) for data in whole]

    def parse(data: bytes) -> None:
        if not data:
            return
        chosen = data[0] % len(whole)
        damaged, touched = bytearray(whole[chosen]), {}
        for start in range(1, min(len(data), 1 + 5 * PATCHES_MAX) - 4, 5):
            offset = int.from_bytes(data[start : start + 4], "little") % len(damaged)
            damaged[offset] = data[start + 4]
            region = layouts[chosen].region_at(offset)
            touched[region.start] = region
        for _, region in sorted(touched.items()):
            layouts[chosen].repair(damaged, region)
        reader = SortedFileReader(Named(damaged))
        for _, face in crafted_faces():
            _refused_or_answered(lambda face=face: face(reader))

    sizes = [len(data) for data in whole]
    spread = [0, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99]
    return parse, [
        bytes([i]) + int(size * share).to_bytes(4, "little") + b"\xff"
        for i, size in enumerate(sizes)
        for share in spread
    ]


def instant() -> tuple[Parser, list[bytes]]:
    import pyarrow as pa
    import skipstone as ss
    from skipstone.engine.state.instant import seal_of
    from skipstone.engine.state.instant_fields import parse_instant

    with tempfile.TemporaryDirectory() as folder:
        table = ss.create(folder, schema=pa.schema([("x", pa.int64()), ("p", pa.string())]), partitioning=["p"])
        for part in "ab":
            with table.transaction() as transaction:
                transaction.write(pa.table({"x": [1, 2, 3], "p": [part] * 3}))
        table.create_index("x", kind="bloom")
        files = [path for path in Path(folder, ".skipstone").rglob("*") if path.is_file()]
        texts = [data.partition(b"\n")[0] for data in (p.read_bytes() for p in files) if data.startswith(b"{")]

    def parse(data: bytes) -> None:
        parse_instant(data + b"\n" + seal_of(data), path="an instant")

    return parse, texts


def footer() -> tuple[Parser, list[bytes]]:
    """Footers, of a file that holds nothing else."""
    from hostile_footers import base_files, footer_of
    from skipstone.engine.parquet.footers import read_footer
    from skipstone.engine.storage import open_storage

    folder = tempfile.mkdtemp(prefix="skipstone-fuzz-")
    storage = open_storage(folder)
    whole = base_files()

    def parse(data: bytes) -> None:
        file = b"PAR1" + bytes(4096) + data + len(data).to_bytes(4, "little") + b"PAR1"
        Path(folder, "a.parquet").write_bytes(file)
        read_footer(storage, storage.stat("a.parquet"))

    return parse, [data[footer_of(data)[0] : -8] for data in whole]


def sql() -> tuple[Parser, list[bytes]]:
    import any_where
    import pyarrow as pa
    from skipstone.engine.predicates import parse as parse_where
    from skipstone.engine.predicates import prepare

    texts = any_where.WHERES[:SEEDS_OF_TEXT]
    kinds = {"i": pa.int32(), "b": pa.int64(), "s": pa.string(), "d": pa.date32(), "t": pa.timestamp("us")}
    schema = pa.schema(list(kinds.items()))

    def parse(data: bytes) -> None:
        prepare(parse_where(data.decode("utf-8", "replace"), schema), schema)

    return parse, [text.encode() for text in texts]


TARGETS: dict[str, Callable[[], tuple[Parser, list[bytes]]]] = {
    "sorted_file": sorted_file,
    "instant": instant,
    "footer": footer,
    "sql": sql,
}


def _refused_or_answered(ask: Callable[[], object]) -> None:
    from skipstone.errors import SkipstoneError

    with contextlib.suppress(SkipstoneError):
        ask()


class Trial:
    """Counts what is tried, and ends the process where the time is over, or something is wrong."""

    def __init__(self, name: str, parse: Parser, seconds: float):
        self._name, self._parse = name, parse
        self._ends, self.tried = time.monotonic() + seconds, 0

    def __call__(self, data: bytes) -> None:
        if time.monotonic() > self._ends:
            self._end(None)
        self.tried += 1
        signal.setitimer(signal.ITIMER_PROF, INPUT_SECONDS_MAX)
        try:
            _refused_or_answered(lambda: self._parse(data))
        except BaseException as error:
            self._end(f"{type(error).__name__}: {str(error)[:300]} for {data.hex()}")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _end(self, wrong: str | None) -> None:
        line = {"tried": self.tried, "guided": atheris is not None, "wrong": [] if wrong is None else [wrong]}
        print(json.dumps({"target": self._name, **line}), flush=True)
        sys.stderr.flush()
        os._exit(1 if wrong else 0)  # a fuzzer's loop catches what is raised


def _random_changes(trial: Trial, seeds: list[bytes], rng: random.Random) -> None:
    while True:
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, PATCHES_MAX)):
            offset = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0:
                    data[offset : offset + 1] = bytes([rng.randrange(256)])
                case 1:
                    data[offset : offset + rng.randrange(9)] = b""
                case 2:
                    data[offset:offset] = rng.choice(seeds)[: rng.randrange(40)]
                case _:
                    data[offset : offset + 1] = rng.choice([b"0", b"9" * 20, b'"', b"(", b"-", b"\xff", b"null"])
        trial(bytes(data))


def _hung(*_: object) -> None:
    raise TimeoutError(f"over {INPUT_SECONDS_MAX} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if atheris is not None:
        with atheris.instrument_imports(include=_instrumented(), enable_loader_override=False):
            parse, seeds = TARGETS[asked.target]()
    else:
        parse, seeds = TARGETS[asked.target]()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _hung)
    trial = Trial(asked.target, parse, asked.seconds)
    for seed in seeds:
        trial(seed)
    if atheris is None:
        _random_changes(trial, seeds, random.Random(asked.seed))
    with tempfile.TemporaryDirectory(prefix="skipstone-fuzz-") as corpus:
        for number, seed in enumerate(seeds):
            Path(corpus, str(number)).write_bytes(seed)
        options = [f"-seed={asked.seed}", "-rss_limit_mb=0", "-timeout=120", "-max_len=65536", "-verbosity=0"]
        atheris.Setup([sys.argv[0], *options, corpus], trial, enable_python_coverage=True)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
