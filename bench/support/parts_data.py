"""Log lines, lists of tags and JSON documents for bench/parts.py: created once and stored in .cache/bench/."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .cached_folder import cached_folder
from .data import CACHE

FILES = 60
RARE = "b7e1f00dcafe42"  # in ten log lines
TAGS, RARE_TAG = 100_000, 77_777  # different tags; ten are frequent
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


def log_lines(count: int) -> Path:
    """Return a folder of files with `n` and `message`. Ten lines contain RARE."""

    def messages(number: int, each: int) -> pa.Array:
        lines = _log_lines(each, number)
        if number % (FILES // 10) == 0:
            lines[each // 2 + number] += f" token={RARE}"
        return pa.array(lines)

    return _lake(f"text-log-{count}-{FILES}", count, "message", messages)


def _log_lines(count: int, seed: int) -> list[str]:
    lines = []
    for first, row in enumerate(np.random.default_rng(seed).integers(0, 1 << 31, (count, 8)).tolist()):
        message = _MESSAGES[row[0] % len(_MESSAGES)].format(row[1] % 100_000, row[2] % 5_000, row[3] % 66_000)
        level, module = _LEVELS[row[4] % len(_LEVELS)], _MODULES[row[5] % len(_MODULES)]
        day, time = 1 + seed % 28, (first // 3600 % 24, first // 60 % 60, first % 60, row[6] % 1000)
        at = "2026-11-{:02}T{:02}:{:02}:{:02}.{:03}Z".format(day, *time)
        lines.append(f"{at} {level} [{module}] {message} trace={row[7]:08x}{row[0]:08x}")
    return lines


def lists(count: int) -> Path:
    """Return a folder of files with `n` and `tags`: a list of up to 8 tags, of which some are frequent."""

    def tags(number: int, each: int) -> pa.Array:
        random = np.random.default_rng(number)
        sizes = random.integers(0, 9, each)
        total = int(sizes.sum())
        values = random.integers(0, TAGS, total)
        is_frequent = random.random(total) < 0.25
        values[is_frequent] = random.integers(0, 10, int(is_frequent.sum()))
        return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(sizes)).astype(np.int32)), pa.array(values))

    return _lake(f"lists-{count}-{FILES}", count, "tags", tags)


def documents(count: int) -> Path:
    """Return a folder of files with `n` and `payload`: JSON documents of 100,000 users."""

    def payloads(number: int, each: int) -> pa.Array:
        numbers = np.random.default_rng(number).integers(0, 100_000, (each, 3)).tolist()
        texts = [
            json.dumps({"user": {"id": f"u{user}", "plan": "free"}, "items": [a, b], "ok": a % 2 == 0})
            for user, a, b in numbers
        ]
        return pa.array(texts)

    return _lake(f"documents-{count}-{FILES}", count, "payload", payloads)


def _lake(name: str, count: int, column: str, values: Callable[[int, int], pa.Array]) -> Path:
    def write(folder: Path) -> None:
        each = count // FILES
        for number in range(FILES):
            rows = pa.table({"n": np.arange(number * each, (number + 1) * each), column: values(number, each)})
            pq.write_table(rows, folder / f"part-{number:04}.parquet", compression="zstd")

    return cached_folder(CACHE / name, write).folder


def column_bytes(folder: Path) -> int:
    """Return the compressed bytes of the second column in all files."""
    total = 0
    for metadata in map(pq.read_metadata, folder.glob("*.parquet")):
        total += sum(metadata.row_group(i).column(1).total_compressed_size for i in range(metadata.num_row_groups))
    return total
