"""Prune in a job that exists already: mapInArrow over paths, in which each executor reads its files by itself.

    python examples/prune_in_map_in_arrow.py [folder]

Two lines are added: the coarse part of the index is broadcast, and the loop goes over what `prune_partition` leaves of
the paths. Paths that the index does not contain are read as before.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import skipstone as ss
from pyspark.sql import SparkSession
from skipstone import spark_adapter as sks


def make_lake(lake: Path) -> None:
    """Write files in place of the lake that you have."""
    lake.mkdir()
    for number in range(20):
        ids = np.arange(1_000) + 1_000 * number
        pq.write_table(pa.table({"id": ids, "value": ids % 7}), lake / f"{number:02}.parquet", row_group_size=100)
    ss.create(lake).close()


def main(folder: Path) -> None:
    spark = SparkSession.builder.appName("prune in mapInArrow").getOrCreate()
    lake = folder / "readings"
    make_lake(lake)
    paths = spark.createDataFrame([(str(path),) for path in sorted(lake.glob("*.parquet"))], "path string")

    coarse = spark.sparkContext.broadcast(sks.coarse(lake, ["id"]))  # over Spark Connect: no broadcast, use it as it is

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = (path for batch in batches for path in batch.column("path").to_pylist())
        for path, groups in sks.prune_partition(given, coarse.value, "id BETWEEN 4950 AND 5049"):
            with pq.ParquetFile(path) as file:
                rows = file.read() if groups is None else file.read_row_groups(groups)
            counted = rows.filter(pc.is_in(rows["id"], pa.array(range(4_950, 5_050)))).num_rows
            yield pa.RecordBatch.from_pydict({"path": [path], "groups": [groups], "rows": [counted]})

    found = paths.repartition(2).mapInArrow(read, "path string, groups array<bigint>, rows bigint").collect()
    for row in sorted(found):
        print(f"{Path(row.path).name}: row groups {row.groups}, {row.rows} rows")
    print(f"{len(found)} of {paths.count()} files were opened")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
