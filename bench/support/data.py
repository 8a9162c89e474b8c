"""The lake that the benchmarks run on: TPC-H's lineitem with a random key, created once and stored in .cache/bench/.

One lake serves all contenders, so the files contain Parquet's own Bloom filters for those that read them. Rows keep
TPC-H's order (by l_orderkey), which statistics can use; `event_id`, a random uuid, is the column for which they cannot.

The same arguments give the same bytes with the same versions of the libraries. Parts are generated, extended and
written one by one: memory and temporary disk space are those of one file at any scale.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CACHE = Path(__file__).parents[2] / ".cache" / "bench"
BLOOM_FPP = 0.01
_SEED = 20_150_601
_LAYOUT = 1  # increased when this file writes something else for the same arguments
_UUID_CHARACTERS = 36
_DASHES = (8, 13, 18, 23)


def lineitem(
    sf: float = 1,
    files: int = 60,
    row_groups: int = 3,
    blooms: Sequence[str] = ("event_id", "l_partkey"),
    *,
    cache: Path = CACHE,
) -> Path:
    """Return the folder of a lineitem lake; create it if it does not exist.

    sf          TPC-H's scale factor: 1 is 6,001,215 rows, about 0.33 GB here
    files       part-00000.parquet and so on, of about the same number of rows
    row_groups  in each file, of about the same number of rows
    blooms      columns that get a Parquet Bloom filter (1% at the rows of a row group)
    """
    if files < 1 or row_groups < 1:
        raise ValueError("a lake has at least one file, and a file at least one row group")
    marks = f"{_LAYOUT}|{','.join(sorted(blooms))}|{BLOOM_FPP}|{pa.__version__}"
    lake = cache / f"lineitem-sf{sf:g}-{files}x{row_groups}-{zlib.crc32(marks.encode()):08x}"
    if lake.exists():
        return lake
    cache.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix="making-", dir=cache))
    try:
        (making / "lake").mkdir()
        for file in range(files):
            part = _generate(sf, files, file, making / "part")
            _write(part, making / "lake" / f"part-{file:05d}.parquet", file, row_groups, blooms)
            shutil.rmtree(making / "part")
            if sys.stderr.isatty():
                print(f"\rmaking {lake.name}: {file + 1} of {files} files", end="", file=sys.stderr, flush=True)
        (making / "lake").rename(lake)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return lake


def sample(lake: Path, column: str, count: int, seed: int = 0) -> list:
    """Return `count` values of `column` that are in the lake, each of a file and a row chosen at random.

    For misses use `random_uuids` with another seed: a round value (all zeros) is outside of the bounds of every row
    group, so statistics alone would exclude it.
    """
    random = np.random.default_rng(seed)
    paths = sorted(lake.glob("*.parquet"))
    values = []
    for path in random.choice(np.array(paths, dtype=object), size=count):
        file = pq.ParquetFile(path)
        group = file.read_row_group(int(random.integers(file.num_row_groups)), columns=[column])
        values.append(group.column(0)[int(random.integers(group.num_rows))].as_py())
        file.close()
    return values


def random_uuids(count: int, random: np.random.Generator) -> pa.Array:
    """`count` version-4 uuids as strings of 36 characters."""
    raw = np.frombuffer(random.bytes(16 * count), dtype=np.uint8).reshape(count, 16).copy()
    raw[:, 6] = (raw[:, 6] & 0x0F) | 0x40
    raw[:, 8] = (raw[:, 8] & 0x3F) | 0x80
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    hexadecimal = np.empty((count, 32), dtype=np.uint8)
    hexadecimal[:, 0::2] = digits[raw >> 4]
    hexadecimal[:, 1::2] = digits[raw & 0x0F]
    text = np.full((count, _UUID_CHARACTERS), ord("-"), dtype=np.uint8)
    text[:, [place for place in range(_UUID_CHARACTERS) if place not in _DASHES]] = hexadecimal
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(_UUID_CHARACTERS)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def write_delta_log(
    table: Path, types: dict[str, str], versions: Iterable[list[str]], *, partition_columns: Sequence[str] = ()
) -> None:
    """Write a Delta log, with a checkpoint of the last version, as deltalake itself writes one.

    types       the type of each column, by Delta's names
    versions    for each version, the lines of the files that it adds
    """
    from deltalake import DeltaTable

    fields = [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in types.items()]
    features = {"readerFeatures": ["timestampNtz"], "writerFeatures": ["timestampNtz"]}
    metadata = {
        "id": "00000000-0000-4000-8000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": list(partition_columns),
        "configuration": {},
        "createdTime": 0,
    }
    head = [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}, {"metaData": metadata}]
    log = table / "_delta_log"
    log.mkdir(parents=True)
    for version, adds in enumerate(versions):
        lines = [*(map(json.dumps, head) if version == 0 else ()), *adds]
        (log / f"{version:020d}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
    DeltaTable(table).create_checkpoint()


def _generate(sf: float, parts: int, part: int, folder: Path) -> pa.Table:
    generator = Path(sys.executable).with_name("tpchgen-cli")
    options = [f"--scale-factor={sf:g}", "--tables=lineitem", f"--output-dir={folder}", "--quiet"]
    options += [f"--parts={parts}", f"--part={part + 1}"]
    subprocess.run([str(generator), "parquet", *options], check=True, stdin=subprocess.DEVNULL)
    (generated,) = folder.rglob("*.parquet")
    return pq.read_table(generated)


def _write(rows: pa.Table, path: Path, file: int, row_groups: int, blooms: Sequence[str]) -> None:
    random = np.random.default_rng([_SEED, file])
    rows = rows.append_column("event_id", random_uuids(rows.num_rows, random))
    rows_per_group = max(1, -(-rows.num_rows // row_groups))
    pq.write_table(
        rows,
        path,
        row_group_size=rows_per_group,
        compression="zstd",
        use_dictionary=[name for name in rows.column_names if name != "event_id"],
        bloom_filter_options={column: {"ndv": rows_per_group, "fpp": BLOOM_FPP} for column in blooms},
    )
