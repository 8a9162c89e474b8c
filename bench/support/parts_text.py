"""Texts of several kinds, and the queries that look for a part of one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .cached_folder import cached_folder
from .data import CACHE

FILES = 60
RARE = "b7e1f00dcafe42"  # in ten rows of the log
KINDS = ("log", "url", "name", "hex", "cjk")
_LEVELS = ["INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR"]
_MODULES = ["auth.session", "http.server", "db.pool", "cache.redis", "billing.invoice", "search.index", "queue.worker"]
_MESSAGES = [
    "request {} took {} ms for user-{}",
    "connection from 10.{}.{}.{} accepted",
    "retrying job {} after {} s, attempt {}",
    "invoice {} of customer {} was sent to printer {}",
    "cache miss for key session:{}:{} in shard {}",
    "slow query on table orders_{} read {} rows in {} ms",
]
_SYLLABLES = [
    "an",
    "bel",
    "cor",
    "da",
    "el",
    "fan",
    "gar",
    "ha",
    "is",
    "jo",
    "ka",
    "lin",
    "mor",
    "na",
    "ol",
    "per",
    "ro",
]


def texts(kind: str, count: int, seed: int) -> pa.Array:
    """So many texts of a kind: log lines, URLs, names of people, random hexadecimal numbers, Chinese sentences."""
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 1 << 31, (count, 8))
    if kind == "log":
        lines = []
        for first, row in enumerate(numbers.tolist()):
            message = _MESSAGES[row[0] % len(_MESSAGES)].format(row[1] % 100_000, row[2] % 5_000, row[3] % 66_000)
            level, module = _LEVELS[row[4] % len(_LEVELS)], _MODULES[row[5] % len(_MODULES)]
            day, time = 1 + seed % 28, (first // 3600 % 24, first // 60 % 60, first % 60, row[6] % 1000)
            at = "2026-11-{:02}T{:02}:{:02}:{:02}.{:03}Z".format(day, *time)
            lines.append(f"{at} {level} [{module}] {message} trace={row[7]:08x}{row[0]:08x}")
        return pa.array(lines)
    if kind == "url":
        return pa.array(
            [f"https://shop.example/{a % 50}/{b % 2000}/item{c % 10_000}" for a, b, c, *_ in numbers.tolist()]
        )
    if kind == "name":
        parts = [[_SYLLABLES[n % len(_SYLLABLES)] for n in row[:5]] for row in numbers.tolist()]
        return pa.array([f"{''.join(p[:2]).title()} {''.join(p[2:]).title()}" for p in parts])
    if kind == "hex":
        return pa.array([f"{a:08x}{b:08x}{c:08x}{d:08x}" for a, b, c, d, *_ in numbers.tolist()])
    # of 3,000 characters, some far more frequent than others
    signs = 0x4E00 + (3000 * random.power(0.35, (count, 24))).astype(np.int64)
    return pa.array(["".join(map(chr, row)) for row in signs.tolist()])


def lake(kind: str, count: int, files: int = FILES) -> Path:
    """A folder of files with `n` and `message`, which is kept. Ten log lines contain RARE."""

    def write(folder: Path) -> None:
        each = count // files
        for number in range(files):
            messages = texts(kind, each, number)
            if kind == "log" and number % (files // 10 or 1) == 0:
                lines = messages.to_pylist()
                lines[each // 2 + number] += f" token={RARE}"
                messages = pa.array(lines)
            rows = pa.table({"n": np.arange(number * each, (number + 1) * each), "message": messages})
            pq.write_table(rows, folder / f"part-{number:04}.parquet", compression="zstd")

    return cached_folder(CACHE / f"text-{kind}-{count}-{files}", write).folder


def column_bytes(folder: Path) -> int:
    """The compressed bytes of `message` in all files."""
    total = 0
    for path in folder.glob("*.parquet"):
        metadata = pq.read_metadata(path)
        total += sum(metadata.row_group(i).column(1).total_compressed_size for i in range(metadata.num_row_groups))
    return total
