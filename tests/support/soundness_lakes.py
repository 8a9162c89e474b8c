"""Random lakes for the mass test: computed from one number, fast, and with statistics from every source.

make_lake(seed, root, file_count)    a table and, apart from it, every row that it contains and its place

A row group draws each column from a narrow window of the column's palette (a dozen values: small ones, extremes, odd
ones), so that bounds differ from row group to row group and predicates over the palette can prune. Sources of files:

    footers    Parquet of another writer: with statistics, with those of some columns, or with none; columns may be
               missing or of a narrower type
    written    by the table's own writer, which counts everything, NaN too
    declared   with bounds that are loose, cut, or open; with counts or without

The table may be partitioned, may keep statistics of some columns only, may have filters that cover some files, and may
have lost files since.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import skipstone as ss
from lake_strategies import PARTITION_TEXTS, PARTITIONINGS, hive_folder
from library_versions import array_of
from predicate_strategies import leaf_columns, rows_of
from skipstone.base import canon
from skipstone.base.versions import is_nan
from soundness_values import KINDS, group_values, palette

_TEXTUAL, _FLOATING = ("s", "ls", "sd", "b"), ("f16", "f32", "f64")  # these have the most traps: most lakes have them
_NARROWER = {
    pa.int64(): pa.int32(),
    pa.int32(): pa.int8(),
    pa.uint32(): pa.uint16(),
    pa.float64(): pa.float32(),
    pa.timestamp("us", "UTC"): pa.timestamp("ms", "UTC"),
    pa.timestamp("us", "Europe/Paris"): pa.timestamp("us", "UTC"),
    pa.decimal128(38, 4): pa.decimal128(12, 2),
    pa.large_string(): pa.string(),
}


@dataclass
class RandomLake:
    """A table and its contents.

    rows     every live row, in the table's schema
    units    (path, row group) of each unit; unit_of: int [rows], the ordinal of each row's unit
    notes    how each file was made, for reports
    """

    seed: int
    table: ss.Table
    rows: pa.Table
    units: list[tuple[str, int]]
    unit_of: np.ndarray
    palettes: dict[str, list]
    notes: dict[str, str]
    plain: list[dict] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plain = rows_of(self.rows)


class _Builder:
    def __init__(self, seed: int, root: str):
        self.rng = rng = random.Random(seed)
        self.seed, self.root = seed, root
        names = list(dict.fromkeys([rng.choice(_TEXTUAL), rng.choice(_FLOATING), *rng.sample(list(KINDS), 4)]))
        rng.shuffle(names)
        names = names[: rng.randint(3, 6)]
        fields = [pa.field("rid", pa.int64()), *(pa.field(name, KINDS[name]) for name in names)]
        self.palettes = {n: palette(k, rng) for n, k in leaf_columns(pa.schema(fields[1:])).items()}
        for twin in rng.sample(names, rng.randint(0, 2)):
            if twin in self.palettes:  # a second column over the same values: for comparisons of two columns
                fields.append(pa.field(f"{twin}_2", KINDS[twin]))
                self.palettes[f"{twin}_2"] = self.palettes[twin]
        self.data = pa.schema(fields)
        self.partitioning = rng.choice(PARTITIONINGS)
        self.declared = pa.schema([(n, {"p": pa.int32(), "q": pa.string()}[n]) for n in self.partitioning])
        few = rng.randint(1, 3)  # partitions of several files, so that they have aggregates worth the name
        self.partition_values = {"p": rng.sample([None, -1, 0, 1, 2], few), "q": rng.sample(PARTITION_TEXTS, few)}
        self.next_rid = 0
        self.parts: list[pa.Table] = []
        self.units: list[tuple[str, int]] = []
        self.unit_of: list[int] = []
        self.notes: dict[str, str] = {}
        self.gone: set[str] = set()

    def rows(self, group_rows: int, groups: int) -> pa.Table:
        """Rows of a file: each `group_rows` of them from windows of their own."""
        columns: dict[str, list] = {f.name: [] for f in self.data}
        for _ in range(groups):
            for wanted in self.data:
                if wanted.name != "rid":
                    columns[wanted.name] += group_values(wanted.type, wanted.name, self.palettes, group_rows, self.rng)
        count = group_rows * groups
        columns["rid"] = list(range(self.next_rid, self.next_rid + count))
        self.next_rid += count
        return pa.table([_arrow(columns[f.name], f.type) for f in self.data], schema=self.data)

    def partition(self) -> dict[str, object]:
        return {name: self.rng.choice(self.partition_values[name]) for name in self.partitioning}

    def note(self, path: str, rows: pa.Table, group_rows: int, partition: dict[str, object], source: str) -> None:
        """Record the rows of a file, `group_rows` per row group."""
        columns = []
        for wanted in (*self.data, *self.declared):
            if wanted.name in partition:
                columns.append(pa.array([partition[wanted.name]] * rows.num_rows, wanted.type))
            elif wanted.name in rows.column_names:
                columns.append(canon.flatten(rows.column(wanted.name)).cast(_plain(wanted.type)))
            else:
                columns.append(pa.nulls(rows.num_rows, _plain(wanted.type)))
        schema = pa.schema([(f.name, _plain(f.type)) for f in (*self.data, *self.declared)])
        self.parts.append(pa.table(columns, schema=schema))
        for start in range(0, rows.num_rows, group_rows):
            self.unit_of += [len(self.units)] * min(group_rows, rows.num_rows - start)
            self.units.append((path, start // group_rows))
        self.notes[path] = source

    # -- files, by where their statistics come from --

    def from_footers(self, name: str, is_first: bool) -> str:
        rng = self.rng
        group_rows, groups = rng.randint(2, 8), rng.randint(1, 3)
        rows = self.rows(group_rows, groups)
        if not is_first:
            rows = self._of_another_writer(rows)
        partition = self.partition()
        path = hive_folder(partition) + f"{name}.parquet"
        statistics = rng.choice([True, True, True, rng.sample(rows.column_names, len(rows.column_names) // 2), False])
        self._write(path, rows, row_group_size=group_rows, write_statistics=statistics)
        self.note(path, rows, group_rows, partition, f"footers, write_statistics={statistics}")
        return path

    def _of_another_writer(self, rows: pa.Table) -> pa.Table:
        for wanted in self.data:
            if wanted.name == "rid":
                continue
            at = rows.column_names.index(wanted.name)
            narrower = _NARROWER.get(wanted.type)
            if self.rng.random() < 0.1:
                rows = rows.remove_column(at)
            elif narrower is not None and self.rng.random() < 0.3:
                try:
                    column = rows.column(at).cast(narrower)
                except pa.ArrowInvalid:
                    continue
                back = pa.table({wanted.name: column.cast(wanted.type)})
                if repr(rows_of(back)) == repr(rows_of(rows.select([wanted.name]))):
                    rows = rows.set_column(at, wanted.name, column)
        return rows

    def _write(self, path: str, rows: pa.Table, **options: object) -> None:
        whole = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        pq.write_table(rows, whole, **options)

    def written(self, table: ss.Table) -> None:
        group_rows = self.rng.randint(2, 8)
        rows = self.rows(group_rows, self.rng.randint(1, 3))
        for name in self.partitioning:
            values = [self.partition()[name] for _ in range(2)]
            kind = self.declared.field(name).type
            rows = rows.append_column(name, array_of(self.rng.choices(values, k=rows.num_rows), kind))
        before = set(table.files().column("path").to_pylist())
        with table.transaction() as tx:
            with ss.TaskWriter(replace(tx.task_spec(), row_group_rows=group_rows)) as task:
                task.write(rows.select(table.schema.names))
            tx.add_task(task.result)
        for path in sorted(set(table.files().column("path").to_pylist()) - before):
            with pq.ParquetFile(os.path.join(self.root, path)) as file:
                rids = pc.subtract(file.read(["rid"]).column("rid"), rows.column("rid")[0])
                sizes = [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
            assert all(size == group_rows for size in sizes[:-1])
            mine = rows.take(rids)
            partition = {name: mine.column(name)[0].as_py() for name in self.partitioning}
            self.note(path, mine.select(self.data.names), group_rows, partition, "written")

    def declare(self, table: ss.Table, name: str) -> None:
        rows = self.rows(self.rng.randint(2, 8), self.rng.randint(1, 2))
        partition = self.partition()
        path = hive_folder(partition) + f"{name}.parquet"
        self._write(path, rows, row_group_size=3)
        size = os.path.getsize(os.path.join(self.root, path))
        columns = {"path": [path], "size_bytes": [size], "row_count": [rows.num_rows]}
        stats = self._loose_stats(rows)
        declared = pa.table(columns)
        if stats is not None:
            declared = declared.append_column("stats", stats)
        with table.transaction() as tx:
            tx.add_files(declared)
        self.note(path, rows, 3, partition, f"declared {stats}")

    def _loose_stats(self, rows: pa.Table) -> pa.Array | None:
        fields, values = [], {}
        for name, kind in leaf_columns(rows.schema).items():
            if self.rng.random() < 0.2 or pa.types.is_dictionary(kind) or name == "rid":
                continue
            values[name] = self._loose_column(rows, name, kind)
            inner = [("min", kind), ("max", kind), ("null_count", pa.int64()), ("nan_count", pa.int64())]
            fields.append((name, pa.struct(inner)))
        return pa.array([values], pa.struct(fields)) if fields else None

    def _loose_column(self, rows: pa.Table, name: str, kind: pa.DataType) -> dict[str, object]:
        rng = self.rng
        top, _, inner = name.partition(".")
        array = canon.flatten(rows.column(top))
        array = pc.struct_field(array, inner) if inner else array
        nulls, nans = array.null_count, 0
        if pa.types.is_floating(kind):
            nan = pc.fill_null(is_nan(array), False)
            nans = pc.sum(nan).as_py() or 0
            array = array.filter(pc.invert(nan))
        if pa.types.is_temporal(kind):
            array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
        present = [value for value in array.to_pylist() if value is not None]
        low = high = None
        if present:
            order = str.encode if isinstance(present[0], str) else None
            low, high = min(present, key=order), max(present, key=order)
            listed = self.palettes[name]
            if rng.random() < 0.3:
                low = rng.choice(listed[: listed.index(low) + 1])
            if rng.random() < 0.3:
                high = rng.choice(listed[listed.index(high) :])
            if isinstance(low, str | bytes) and not pa.types.is_fixed_size_binary(kind) and rng.random() < 0.3:
                low, high = low[: rng.randint(0, 3)], high + high[:1]
        return {
            "min": None if rng.random() < 0.15 else low,
            "max": None if rng.random() < 0.15 else high,
            "null_count": None if rng.random() < 0.3 else nulls,
            "nan_count": None if rng.random() < 0.5 else nans,
        }

    def remove(self, table: ss.Table) -> None:
        live = [path for path in self.notes if path not in self.gone]
        taken = self.rng.sample(live, min(self.rng.randint(1, 2), len(live) - 1))
        if taken:
            with table.transaction() as tx:
                tx.remove(taken)
        self.gone |= set(taken)

    def change_filters(self, table: ss.Table) -> None:
        free = [n for n in self.palettes if "." not in n and n in table.schema.names]
        column = self.rng.choice(free or ["rid"])
        there = [c for row in table.indexes().to_pylist() if row["kind"] == "bloom" for c in row["columns"]]
        if column not in there:
            table.create_index(column, kind="bloom", fpp=self.rng.choice([None, 0.1, 0.01]))
        elif self.rng.random() < 0.5:
            table.refresh_index(column, kind="bloom")

    def lake(self, table: ss.Table) -> RandomLake:
        is_live = np.array([path not in self.gone for path, _ in self.units])
        units = [unit for unit, live in zip(self.units, is_live, strict=True) if live]
        unit_of = np.where(is_live, np.cumsum(is_live) - 1, -1)[np.array(self.unit_of)]
        rows = pa.concat_tables(self.parts).select(table.schema.names).filter(pa.array(unit_of >= 0))
        return RandomLake(self.seed, table, rows, units, unit_of[unit_of >= 0], self.palettes, self.notes)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _arrow(values: list, kind: pa.DataType) -> pa.Array:
    return pa.array(values, _plain(kind)).cast(kind) if pa.types.is_dictionary(kind) else array_of(values, kind)


def make_lake(seed: int, root: str, file_count: int) -> RandomLake:
    """The lake of a seed, in an empty folder; the same for the same seed and file count."""
    made = _Builder(seed, root)
    rng = made.rng
    early = max(1, file_count - rng.randint(0, 5))
    for number in range(early):
        made.from_footers(f"f{number:03}", is_first=number == 0)
    some = rng.sample(made.data.names, len(made.data) // 2) if rng.random() < 0.1 else None
    table = ss.create(root, partitioning=made.declared if made.partitioning else None, columns=some)
    late = rng.choices(["footers", "written", "written", "declared"], k=file_count - early)
    late += ["filter"] * rng.randint(0, 2) + ["remove"] * rng.choice([0, 0, 1, 2])
    rng.shuffle(late)
    for number, source in enumerate(late):
        if source == "footers":
            path = made.from_footers(f"later{number}", is_first=False)
            with table.transaction() as tx:
                tx.add_files([path])
        elif source == "written":
            made.written(table)
        elif source == "declared":
            made.declare(table, f"declared{number}")
        elif source == "remove":
            made.remove(table)
        else:
            made.change_filters(table)
    if rng.random() < 0.5:
        table = ss.open(root)
    return made.lake(table)
