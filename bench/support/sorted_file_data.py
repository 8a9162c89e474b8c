"""What bench/sorted_file.py keeps in everybody's files: names of files (RFC-15's shapes), and typed values.

Keys are binary, unique and ascending; each column is made once and kept in .cache/bench/sorted_file/ as an Arrow file.

    names   `ingestion_datestr=.../<uuid>-0_<task>-<stage>-<attempt>_<instant>.parquet` (listing_data.py), of 105
            bytes or so, with a size: an int64 of which 16 bits are random. A partition is a day
    typed   keys of 16 bytes: a device and a time in µs, both big-endian. Five columns, 5% null each: `id` int64 (40
            random bits), `price` float64 (cents), `seen` timestamp (the key's, up to a minute later), `city` string
            (one of 1,000), `flag` bool. A partition is a device
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.support import listing_data
from bench.support.cached_folder import cached_folder
from bench.support.data import CACHE
from bench.support.listing_data import KEY, Files, Shape

PREFIX_BYTES = {"names": len(KEY) + len("=2015-01-01/"), "typed": 8}
DEVICE_ENTRIES = 4_000
_SIZE_SPREAD_BYTES = 1 << 16  # files are closed at a size that is asked for
_NULL_SHARE = 0.05
_CITIES = 1_000
_FIRST_US = 1_577_836_800_000_000  # 2020
_SEED = 6
_LAYOUT = 1  # raised where this file makes something else for the same arguments


@dataclass(frozen=True)
class Column:
    """A column of the table of results: what all files of it hold.

    name          "E", "1 M typed"
    keys          binary [n], ascending
    values        n rows of the value columns
    partitions    the prefix of each partition, ascending
    """

    name: str
    keys: pa.ChunkedArray
    values: pa.Table
    partitions: list[bytes]

    def __len__(self) -> int:
        return len(self.keys)

    def sample(self, count: int, random: np.random.Generator) -> list[bytes]:
        """Keys that are there, at random, each once and in no order."""
        return self.keys.take(pa.array(random.permutation(len(self))[:count])).to_pylist()


def names(shape: Shape, cache: Path = CACHE) -> Column:
    """The names of a shape's files."""

    def make() -> pa.Table:
        files = Files(shape)
        sizes = listing_data.SIZE_BYTES + (files.sizes_bytes - listing_data.SIZE_BYTES) % _SIZE_SPREAD_BYTES
        keys = files.paths.cast(pa.binary())
        order = pc.sort_indices(keys)
        return pa.table({"key": keys.take(order), "size": pa.array(sizes).take(order)})

    name = f"names-{shape.name}-{shape.files}-{shape.partitions}"
    return _column(shape.name, "names", name, make, cache)


def typed(rows: int, cache: Path = CACHE) -> Column:
    """Typed values by device and time."""

    def make() -> pa.Table:
        random = np.random.default_rng([_SEED, rows])
        device = np.sort(random.integers(0, max(1, rows // DEVICE_ENTRIES), rows))
        at_us = _FIRST_US + np.arange(rows) * 1_000 + random.integers(0, 1_000, rows)
        keys = np.stack([device, at_us], axis=1).astype(">u8").view(np.uint8).reshape(rows, 16)
        seen = (at_us + random.integers(0, 60_000_000, rows)).astype("datetime64[us]")
        columns = {
            "id": random.integers(0, 1 << 40, rows),
            "price": np.round(random.gamma(2.0, 20.0, rows), 2),
            "seen": seen,
            "city": pa.DictionaryArray.from_arrays(random.integers(0, _CITIES, rows).astype(np.int32), _city_names()),
            "flag": random.random(rows) < 0.3,
        }
        arrays = {
            name: pc.if_else(random.random(rows) >= _NULL_SHARE, pa.array(c), None) for name, c in columns.items()
        }
        arrays["seen"] = arrays["seen"].cast(pa.timestamp("us", "UTC"))
        arrays["city"] = arrays["city"].cast(pa.string())
        return pa.table(
            {
                "key": pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), rows, [None, pa.py_buffer(keys)]).cast(
                    pa.binary()
                ),
                **arrays,
            }
        )

    title = f"{rows / 1e6:g} M typed"
    return _column(title, "typed", f"typed-{rows}", make, cache)


def _city_names() -> pa.Array:
    return pa.array([f"{'abcdefghijklmnop'[i % 16] * (1 + i % 5)}ville-{i}" for i in range(_CITIES)])


def _column(title: str, kind: str, folder: str, make: Callable[[], pa.Table], cache: Path) -> Column:
    def write(folder: Path) -> None:
        table = make()
        with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=1 << 20)

    path = cached_folder(cache / "sorted_file" / f"{folder}-v{_LAYOUT}", write).folder / "data.arrow"
    with pa.ipc.open_file(pa.memory_map(str(path))) as file:
        table = file.read_all()
    keys = table.column("key")
    prefixes = pc.binary_slice(keys, 0, PREFIX_BYTES[kind]).combine_chunks()
    changes = np.flatnonzero(pc.not_equal(prefixes[1:], prefixes[:-1]).to_numpy(zero_copy_only=False)) + 1
    partitions = prefixes.take(pa.array([0, *changes.tolist()])).to_pylist()
    return Column(title, keys, table.drop_columns(["key"]), partitions)
