"""Bytes a file that the statistics of one int64 column take: ours, DuckDB's Parquet, and what no coding goes below."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import skipstone as ss

from bench.support import planning_data
from bench.support.planning_data import RANDOM_DOMAIN, RANDOM_WIDTH_MAX, ROWS_A_FILE, Statistics

BYTES_CLUSTERED_MAX, BYTES_RANDOM_MAX = 6, 12


def sizes(files: int, cache: Path) -> list[str]:
    """Bytes a file that one int64 column adds to our statistics: a table with it, less the same table without."""
    lines = [
        "## Bytes a file and int64 column: bounds and counts",
        "",
        "| column | skipstone | DuckDB's Parquet, zstd | entropy of the bounds | at most | |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for column, most in (("clustered", BYTES_CLUSTERED_MAX), ("random", BYTES_RANDOM_MAX)):
        statistics = Statistics(files, [column])
        without = _stats_bytes(planning_data.ours(statistics, [], cache))
        ours = (_stats_bytes(planning_data.ours(statistics, cache=cache)) - without) / files
        parquet = planning_data.duckdb_statistics(statistics, None, cache)
        theirs = _parquet_bytes(parquet.folder / "statistics.parquet", column) / files
        entropy = _entropy_bytes(statistics, column)
        verdict = "won" if ours <= most else "**lost**"
        lines.append(f"| {column} | {ours:.2f} | {theirs:.2f} | {entropy:.2f} | {most} | {verdict} |")
    return lines


def _stats_bytes(built: planning_data.CachedFolder) -> int:
    rows = ss.open(built.folder / "table").indexes().to_pylist()
    return sum(row["size_bytes"] for row in rows if row["kind"] == "stats")


def _parquet_bytes(path: Path, column: str) -> int:
    metadata = pq.read_metadata(path)
    names = {f"{column}_min", f"{column}_max", f"{column}_null_count", "row_count"}
    return sum(
        chunk.total_compressed_size
        for group in range(metadata.num_row_groups)
        for column_number in range(metadata.num_columns)
        if (chunk := metadata.row_group(group).column(column_number)).path_in_schema in names
    )


def _entropy_bytes(statistics: Statistics, column: str) -> float:
    """What no coding of these bounds can go below, from how they are drawn: a random domain and width, or (clustered)
    one random place where a file ends and the next begins."""
    if column == "random":
        return float(np.log2(RANDOM_DOMAIN) + np.log2(RANDOM_WIDTH_MAX)) / 8
    return float(np.log2(ROWS_A_FILE // 5)) / 8
