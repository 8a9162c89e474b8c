"""The programs in examples/, and the example in the documentation of `coarse`, run as they stand."""

from __future__ import annotations

import re
import runpy
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

import skipstone as ss
from pyspark.sql import functions as F
from skipstone import spark_adapter as sks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
TOLD = {
    "nightly_writer.py": [r"night=1: 20,000 rows in \d+ files", "night=2: 20,000 rows", r"cover (\d+) of \1\b"],
    "adhoc_needle.py": [r"is id 123456, in shard 0\n", r"bloom\(event\)"],
    "prune_in_map_in_arrow.py": [
        r"04.parquet: row groups \[9\], 50 rows\n05.parquet: row groups \[0\], 50 rows\n2 of 20 files"
    ],
}


def test_every_example_is_run_and_short() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(TOLD)
    assert all(len(path.read_text().splitlines()) <= 60 for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", TOLD)
def test_example(
    spark: SparkSession,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    told = capsys.readouterr().out
    for line in TOLD[name]:
        assert re.search(line, told), told


def test_the_example_of_map_partitions(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = tmp_path / "lake" / "flights"
    for number in range(6):
        folder = lake / f"carrier=a b%2F{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"N{value}" for value in range(10_000 + 2_000 * number, 10_300 + 2_000 * number)]
        pq.write_table(pa.table({"tail_num": names}), folder / f"{number}.parquet", row_group_size=100)
    ss.create(lake).close()
    monkeypatch.chdir(tmp_path)
    # as Spark itself names files: escapes of escapes, and a scheme
    paths = [row[0] for row in spark.read.parquet(str(lake)).select(F.input_file_name()).distinct().collect()]

    def my_reader(path, row_groups):
        yield path, row_groups

    found = {"spark": spark, "sks": sks, "paths": [*paths, "new.parquet"], "my_reader": my_reader}
    (example,) = re.findall(r"\n((?:        .*\n|\n)+)\n    Args:", sks.coarse.__doc__ or "")
    exec(textwrap.dedent(example), found)
    assert len(paths) == 6
    (needle,) = [path for path in paths if path.endswith("/2.parquet")]
    assert dict(found["rows"]) == {needle: [2], "new.parquet": None}  # type: ignore[call-overload]
