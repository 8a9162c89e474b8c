"""The rows of many DataFrames by one job of Spark: a job for each takes longer than its rows."""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from skipstone import spark_adapter as sks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame


def rows_of_each(frames: Sequence[DataFrame]) -> list[list[str]]:
    """Return the sorted rows of each DataFrame as text, where NaN equals NaN. All have the same columns."""
    numbered = [frame.select(F.lit(number).alias("frame"), "*") for number, frame in enumerate(frames)]
    found: list[list[str]] = [[] for _ in frames]
    for number, *row in reduce(lambda one, other: one.union(other), numbered).collect():
        found[number].append(repr(tuple(row)))
    return [sorted(rows) for rows in found]


def files_read(frame: DataFrame) -> list[int]:
    """Return how many files each scan of a DataFrame reads, as `explain` reports."""
    lines = [line for line in sks.explain(frame).splitlines() if line.startswith("Spark reads")]
    return [int(re.search(r"([\d,]+) files? in ", line)[1]) for line in lines]
