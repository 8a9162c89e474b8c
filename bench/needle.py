"""A needle by value: rows of TPC-H lineitem by a random uuid and by keys, from opening the index to the rows.

The lake is 200 files x 3 row groups at SF5 (SF, FILES, ROUNDS make it smaller), with Parquet's own bloom filters on the
uuid and on l_partkey, and once more without, for the peers. Skipstone reads the former by a secondary index or by its
own filters, in two indexes next to it. Every call looks up a new key, opens what it needs, and returns whole rows. Each
contender has its own process. It is warm: Skipstone has decoded its immutable runs before, and DuckDB the files'
metadata; requests and bytes are those of the first call. Reads of DuckDB for Skipstone are not counted. Indexes and
queries are created once, in some minutes, and again if the code changed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import skipstone as ss
from deltalake import DeltaTable, QueryBuilder, convert_to_deltalake
from skipstone import col
from skipstone.engine.choices import IndexKindName

from bench.support.cached_folder import cached_folder, code_fingerprint
from bench.support.data import CACHE, lineitem, random_uuids, sample
from bench.support.harness import Answer, Bench, next_of

KEY = "event_id"
TWO_COLUMNS = ["l_orderkey", "l_extendedprice"]
ROUNDS, MANY = 15, 1_000
FILTERS, PLAIN, BY_POSITION = "DuckDB + Parquet filters", "DuckDB", "DuckDB, file_row_number IN"
Where = tuple[str, list]  # a column, and the values of which one must match
Places = dict[str, list[int]]  # path -> positions of rows


def main() -> None:
    sf, files = float(os.environ.get("SF", "5")), int(os.environ.get("FILES", "200"))
    lake, plain = lineitem(sf=sf, files=files, row_groups=3), lineitem(sf=sf, files=files, row_groups=3, blooms=())
    made = cached_folder(CACHE / f"needle-{sf:g}-{files}", partial(_make, lake, plain), code_fingerprint())
    needles = Needles(lake, plain, made.folder)
    bench = Bench(
        "needle",
        f"A needle in lineitem SF{sf:g}: {files} files x 3 row groups",
        libraries=["duckdb", "polars", "deltalake"],
    )
    misses = [(KEY, [key]) for key in random_uuids(200, np.random.default_rng(2)).to_pylist()]
    needles.row(bench, "uuid, hit", needles.keys["hits"], places=needles.places["hits"])
    needles.row(bench, "uuid, miss", misses)
    needles.row(bench, "orderkey", needles.keys["orders"], is_indexed=False)
    threes, places = needles.keys["threes"], needles.places["threes"]
    needles.row(bench, "partkey IN 3, all columns", threes, places=places)
    needles.row(bench, "partkey IN 3, two columns", threes, TWO_COLUMNS, places=places)
    needles.row(bench, "1,000 uuids", needles.keys["many"], places=needles.places["many"])
    bench.run(int(os.environ.get("ROUNDS", ROUNDS)), apart=True)
    bench.report(json.loads((made.folder / "built.json").read_text(encoding="utf-8")))


def _make(lake: Path, plain: Path, folder: Path) -> None:
    """Build our indexes and a Delta log; store the queries, with the places of the rows."""
    (folder / "built.json").write_text(json.dumps(_built(lake, folder)), encoding="utf-8")
    (folder / "delta").mkdir()
    for path in plain.glob("*.parquet"):
        os.link(path, folder / "delta" / path.name)
    convert_to_deltalake(str(folder / "delta"))
    numbers = sample(lake, "l_partkey", 60, seed=3)
    many = sample(lake, KEY, 4 * MANY, seed=8)
    keys: dict[str, list[Where]] = {
        "hits": [(KEY, [key]) for key in sample(lake, KEY, 200, seed=1)],
        "orders": [("l_orderkey", [key]) for key in sample(lake, "l_orderkey", 200, seed=6)],
        "threes": [("l_partkey", numbers[i : i + 3]) for i in range(0, len(numbers), 3)],
        "many": [(KEY, many[start : start + MANY]) for start in range(0, len(many), MANY)],
    }
    places = {name: [_places(lake, where) for where in keys[name][:20]] for name in ("hits", "threes", "many")}
    (folder / "asked.json").write_text(json.dumps({"keys": keys, "places": places}), encoding="utf-8")


def _built(lake: Path, folder: Path) -> list[str]:
    """Build our indexes. Return the cost of each."""
    lines = ["## Builds", "", "| index | s | MB |", "| --- | ---: | ---: |"]
    places: list[tuple[IndexKindName, str]] = [("secondary", "secondary"), ("bloom", "blooms")]
    for kind, place in places:
        table = ss.create(lake, partitioning=None, index_path=folder / place)
        for column in (KEY, "l_partkey"):
            start = time.perf_counter()
            table.create_index(column, kind)
            took_s, indexes = time.perf_counter() - start, table.indexes().to_pylist()
            size = next(one["size_bytes"] for one in indexes if one["kind"] == kind and one["columns"] == [column])
            lines.append(f"| {kind}({column}) | {took_s:.3g} | {size / 1e6:.3g} |")
    return lines


class Needles:
    """The lakes, Skipstone's indexes and the contenders. `lake`: with Parquet's filters; `plain`: without."""

    def __init__(self, lake: Path, plain: Path, folder: Path):
        self.lake, self.plain, self.folder = lake, plain, folder
        asked = json.loads((folder / "asked.json").read_text(encoding="utf-8"))
        self.keys: dict[str, list[Where]] = {name: [(c, v) for c, v in some] for name, some in asked["keys"].items()}
        self.places: dict[str, list[Places]] = asked["places"]
        self._connection = duckdb.connect()

    def row(
        self,
        bench: Bench,
        row: str,
        keys: list[Where],
        columns: Sequence[str] | None = None,
        *,
        places: list[Places] | None = None,
        is_indexed: bool = True,
    ) -> None:
        """Add a row: us, the peers (the slow ones in few rounds), and the floor, which gets the positions."""
        ours, names = self._ours(self.folder / "secondary", columns), columns or ["*"]
        bench.case(row, "skipstone, secondary" if is_indexed else "skipstone", ours, setup=next_of(keys), kind="us")
        if is_indexed and len(keys[0][1]) < MANY:
            by_filters = self._ours(self.folder / "blooms", columns)
            bench.case(row, "skipstone, filters", by_filters, setup=next_of(keys), every=3)
        peers: list[tuple[str, Callable[[Where], Any], int]] = [
            (FILTERS, lambda where: self._duckdb(self.lake, where, names), 1),
            (PLAIN, lambda where: self._duckdb(self.plain, where, names), 3),
            ("polars", lambda where: self._polars(where, columns), 8),
            ("deltalake", lambda where: self._delta(where, names), 1 if row == "orderkey" else 5),
        ]
        for contender, ask, every in peers:
            bench.case(row, contender, ask, setup=next_of(keys), every=every)
        if places is not None:
            by_position = partial(self._by_position, names=names)
            bench.case(row, BY_POSITION, by_position, setup=next_of(places), kind="floor")

    def _ours(self, index: Path, columns: Sequence[str] | None) -> Callable[[Where], Answer]:
        def ask(where: Where) -> Answer:
            column, values = where
            with ss.open(self.lake, index_path=index) as table:
                predicate = col(column) == values[0] if len(values) == 1 else col(column).is_in(values)
                rows = table.scan(predicate, columns=columns).to_table()
                data, index_reads = table.handle.storage.reading(), table.handle.index_storage.reading()
            return Answer(rows, data[0] + index_reads[0], data[1] + index_reads[1])

        return ask

    def _duckdb(self, lake: Path, where: Where, names: Sequence[str]) -> pa.Table:
        query = f"SELECT {', '.join(names)} FROM read_parquet('{lake}/*.parquet') WHERE {_sql(where)}"
        return self._connection.sql(query).to_arrow_table()

    def _by_position(self, places: Places, names: Sequence[str]) -> pa.Table:
        parts = (
            f"SELECT {', '.join(names)} FROM read_parquet('{path}', file_row_number = true) "
            f"WHERE file_row_number IN ({', '.join(map(str, rows))})"
            for path, rows in places.items()
        )
        table = self._connection.sql(" UNION ALL ".join(parts)).to_arrow_table()
        return table.drop_columns(["file_row_number"]) if "file_row_number" in table.column_names else table

    def _polars(self, where: Where, columns: Sequence[str] | None) -> pa.Table:
        rows = polars.scan_parquet(f"{self.plain}/*.parquet").filter(polars.col(where[0]).is_in(where[1]))
        return (rows if columns is None else rows.select(columns)).collect().to_arrow()

    def _delta(self, where: Where, names: Sequence[str]) -> pa.Table:
        builder = QueryBuilder().register("lake", DeltaTable(str(self.folder / "delta")))
        return pa.table(builder.execute(f"SELECT {', '.join(names)} FROM lake WHERE {_sql(where)}").read_all())


def _sql(where: Where) -> str:
    column, values = where
    texts = [f"'{value}'" if isinstance(value, str) else str(value) for value in values]
    return f"{column} = {texts[0]}" if len(texts) == 1 else f"{column} IN ({', '.join(texts)})"


def _places(lake: Path, where: Where) -> Places:
    """Return where the rows are."""
    files = f"read_parquet('{lake}/*.parquet', filename = true, file_row_number = true)"
    places: Places = {}
    for path, row in duckdb.sql(f"SELECT filename, file_row_number FROM {files} WHERE {_sql(where)}").fetchall():
        places.setdefault(path, []).append(row)
    return places


if __name__ == "__main__":
    main()
