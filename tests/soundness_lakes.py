"""Random lakes for the mass test: made from one number, fast, and with statistics from every source.

make_lake(seed, root, file_count)    a table and, apart from it, every row that it holds and where each one lies

A row group draws each column from a narrow window of the column's palette (a dozen values: small ones, extremes, odd
ones), so that bounds differ from row group to row group and predicates over the palette can prune. Files come from

    footers    somebody's Parquet: with statistics, with those of some columns, or with none; columns may be missing or
               of a narrower type
    written    by the table's own writer, which counts everything, NaN too
    told       declared: bounds that are loose, cut, or open; counts that are there or are not

and the table may be partitioned, may keep statistics of some columns only, may have filters that cover some files, and
may have lost files since.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import skipstone as ss
from skipstone import canon
from strategies import PARTITION_TEXTS, PARTITIONINGS, hive_folder
from strategies_predicates import leaf_columns, rows_of

KINDS: dict[str, pa.DataType] = {
    **{f"i{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(pa, f"uint{bits}")() for bits in (8, 16, 32, 64)},
    "flag": pa.bool_(),
    "f16": pa.float16(),
    "f32": pa.float32(),
    "f64": pa.float64(),
    "d5": pa.decimal128(5, 2),
    "d18": pa.decimal128(18, 0),
    "d38": pa.decimal128(38, 4),
    "d38s": pa.decimal128(38, 38),
    "d60": pa.decimal256(60, 7),
    "s": pa.string(),
    "ls": pa.large_string(),
    "sd": pa.dictionary(pa.int8(), pa.string()),
    "b": pa.binary(),
    "fb": pa.binary(3),
    "day": pa.date32(),
    "ts_ms": pa.timestamp("ms"),
    "ts_us": pa.timestamp("us", "UTC"),
    "ts_zone": pa.timestamp("us", "Europe/Paris"),
    "ts_ns": pa.timestamp("ns"),
    "t_ms": pa.time32("ms"),
    "t_us": pa.time64("us"),
    "t_ns": pa.time64("ns"),
    "span": pa.duration("us"),
    "in": pa.struct([("x", pa.int16()), ("name", pa.string()), ("f", pa.float64())]),
}
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
_DAY = 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_YEARS_S = (-62_135_596_800, 253_402_300_799)  # the years 1 to 9999
_TEXTS = ["", "a", "ab", "abc", "abd", "ab\0", "a%", "a_c", "\\", "it's", "é", "éa", "z\U0001f600", "\uffff", "AB\nC"]
_LONG_TEXTS = ["x" * 64, "x" * 64 + "a", "x" * 70, "é" * 40, "\U0010ffff" * 17, "\U0010ffff" * 16 + "a", "\ud7ff" * 22]
_BYTES = [b"", b"\0", b"a", b"ab", b"\x7f", b"\x80", b"\xff", b"\xff\0", b"\xff\xff", b"\xff" * 64, b"\xff" * 70]
_LONG_BYTES = [b"\xff" * 64 + b"a", b"a" * 63 + b"\xff" * 9, b"a" * 64, b"a" * 80, b"\x80" * 66]
_FLOATS = [0.0, -0.0, 1.0, -1.5, 0.1, 2.5, 65504.0, -65504.0, float("inf"), float("-inf"), 3.0]
_WIDE_FLOATS = [1e300, -1e300, 5e-324, 16777217.0, 2.0**63, 2.0**53, 0.30000000000000004]


@dataclass
class RandomLake:
    """A table and what it holds.

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


# -- values -----------------------------------------------------------------------------------------------------------


def palette(kind: pa.DataType, rng: random.Random) -> list:
    """About a dozen values of a type, ascending, without NaN; temporal ones as counts of their unit."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return [False, True]
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        low, high = ends_of(kind)
        middle = rng.randint(low, high) if rng.random() < 0.3 else rng.randint(max(low, -9), min(high, 60))
        reach = rng.choice([6, 40, 3 * 10**9])
        values = {min(high, max(low, middle + rng.randint(-reach, reach))) for _ in range(9)}
        return sorted(values | set(rng.sample([low, low + 1, high - 1, high], rng.randint(0, 2))))
    if pa.types.is_floating(kind):
        listed = _FLOATS + (_WIDE_FLOATS if kind.bit_width == 64 else [])
        near = [rng.randint(-8, 8) / rng.choice([1, 2, 10]) for _ in range(6)]
        rounded = np.array(near + rng.sample(listed, 7), dtype=f"f{kind.bit_width // 8}")
        return sorted(rounded.astype(float).tolist())
    if pa.types.is_decimal(kind):
        end = 10**kind.precision - 1
        unscaled = {rng.randint(-300, 300) for _ in range(8)} | {rng.choice([end, -end, 0, 10])}
        unscaled |= {rng.randint(-end, end)} if rng.random() < 0.5 else set()
        return sorted(decimal_of(value, kind.scale) for value in unscaled if abs(value) <= end)
    if pa.types.is_binary(kind):
        return sorted(
            {*rng.sample(_BYTES, 6), *rng.sample(_LONG_BYTES, 3), *(rng.randbytes(rng.randint(1, 3)) for _ in range(3))}
        )
    if pa.types.is_fixed_size_binary(kind):
        listed = [b"\0\0\0", b"a\0\0", b"abc", b"\xff\xff\xff", b"\xff\xff\0", b"\x7f\x80\x81"]
        return sorted({*rng.sample(listed, 4), *(rng.randbytes(kind.byte_width) for _ in range(5))})
    texts = {"".join(rng.choices("ab%_\0é", k=rng.randint(1, 4))) for _ in range(4)}
    return sorted({*rng.sample(_TEXTS, 7), *rng.sample(_LONG_TEXTS, 3), *texts}, key=str.encode)


def ends_of(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest count that a type of integers or times holds here."""
    if pa.types.is_date(kind):
        return _YEARS_S[0] // _DAY, _YEARS_S[1] // _DAY
    if pa.types.is_time(kind):
        return 0, _DAY * _PER_SECOND[kind.unit] - 1
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return _YEARS_S[0] * _PER_SECOND[kind.unit], _YEARS_S[1] * _PER_SECOND[kind.unit]
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def decimal_of(unscaled: int, scale: int) -> Decimal:
    return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


def _group_values(kind: pa.DataType, name: str, palettes: dict, count: int, rng: random.Random) -> list:
    if pa.types.is_struct(kind):
        inner = {f.name: _group_values(f.type, f"{name}.{f.name}", palettes, count, rng) for f in kind}
        rows = [dict(zip(inner, values, strict=True)) for values in zip(*inner.values(), strict=True)]
        return _with_gaps(rows, rng)
    values = palettes[name]
    start = rng.randrange(len(values))
    window = values[start : start + rng.choice([1, 1, 2, 3, 4, len(values)])]
    drawn = rng.choices(window, k=count)
    if pa.types.is_floating(kind):
        share = rng.choice([0, 0, 0, 0.3, 1])
        drawn = [float("nan") if rng.random() < share else value for value in drawn]
    return _with_gaps(drawn, rng)


def _with_gaps(values: list, rng: random.Random) -> list:
    share = rng.choice([0, 0, 0, 0, 0.3, 0.3, 1])
    return [None if share and rng.random() < share else value for value in values] if share else values


# -- lakes ------------------------------------------------------------------------------------------------------------


class _Builder:
    """One lake in the making."""

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
        self.next_rid = 0
        self.parts: list[pa.Table] = []
        self.units: list[tuple[str, int]] = []
        self.unit_of: list[int] = []
        self.notes: dict[str, str] = {}

    def rows(self, group_rows: int, groups: int) -> pa.Table:
        """Rows of a file: each `group_rows` of them from windows of their own."""
        columns: dict[str, list] = {f.name: [] for f in self.data}
        for _ in range(groups):
            for wanted in self.data:
                if wanted.name != "rid":
                    columns[wanted.name] += _group_values(wanted.type, wanted.name, self.palettes, group_rows, self.rng)
        count = group_rows * groups
        columns["rid"] = list(range(self.next_rid, self.next_rid + count))
        self.next_rid += count
        return pa.table([_arrow(columns[f.name], f.type) for f in self.data], schema=self.data)

    def partition(self) -> dict[str, object]:
        drawn = {"p": self.rng.choice([None, -1, 0, 1, 2]), "q": self.rng.choice(PARTITION_TEXTS)}
        return {name: drawn[name] for name in self.partitioning}

    def note(self, path: str, rows: pa.Table, group_rows: int, partition: dict[str, object], told: str) -> None:
        """Takes down rows that lie in a file, `group_rows` to a row group."""
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
        self.notes[path] = told

    # -- files, by where their statistics come from --

    def from_footers(self, name: str, is_first: bool) -> str:
        rng = self.rng
        group_rows, groups = rng.randint(2, 8), rng.randint(1, 3)
        rows = self.rows(group_rows, groups)
        if not is_first:
            rows = self._as_somebody_elses(rows)
        partition = self.partition()
        path = hive_folder(partition) + f"{name}.parquet"
        statistics = rng.choice([True, True, True, rng.sample(rows.column_names, len(rows.column_names) // 2), False])
        self._write(path, rows, row_group_size=group_rows, write_statistics=statistics)
        self.note(path, rows, group_rows, partition, f"footers, write_statistics={statistics}")
        return path

    def _as_somebody_elses(self, rows: pa.Table) -> pa.Table:
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
            rows = rows.append_column(name, pa.array(self.rng.choices(values, k=rows.num_rows), kind))
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

    def told(self, table: ss.Table, name: str) -> None:
        rows = self.rows(self.rng.randint(2, 8), self.rng.randint(1, 2))
        partition = self.partition()
        path = hive_folder(partition) + f"{name}.parquet"
        self._write(path, rows, row_group_size=3)
        size = os.path.getsize(os.path.join(self.root, path))
        columns = {"path": [path], "size_bytes": [size], "row_count": [rows.num_rows]}
        stats = self._loose_stats(rows)
        told = pa.table(columns)
        if stats is not None:
            told = told.append_column("stats", stats)
        with table.transaction() as tx:
            tx.add_files(told)
        self.note(path, rows, 3, partition, f"told {stats}")

    def _loose_stats(self, rows: pa.Table) -> pa.Array | None:
        fields, values = [], {}
        for name, kind in leaf_columns(rows.schema).items():
            if self.rng.random() < 0.2 or pa.types.is_dictionary(kind) or name == "rid":
                continue
            known = self._loose_column(rows, name, kind)
            inner = [("min", kind), ("max", kind), ("null_count", pa.int64()), ("nan_count", pa.int64())]
            fields.append((name, pa.struct(inner)))
            values[name] = known
        return pa.array([values], pa.struct(fields)) if fields else None

    def _loose_column(self, rows: pa.Table, name: str, kind: pa.DataType) -> dict[str, object]:
        rng = self.rng
        top, _, inner = name.partition(".")
        array = canon.flatten(rows.column(top))
        array = pc.struct_field(array, inner) if inner else array
        nulls, nans = array.null_count, 0
        if pa.types.is_floating(kind):
            nan = pc.fill_null(pc.is_nan(array), False)
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

    def change_filters(self, table: ss.Table) -> None:
        free = [n for n in self.palettes if "." not in n and n in table.schema.names]
        column = self.rng.choice(free or ["rid"])
        there = [c for row in table.indexes().to_pylist() if row["kind"] == "bloom" for c in row["columns"]]
        if column not in there:
            table.create_index(column, kind="bloom", fpp=self.rng.choice([0.3, 0.01]))
        elif self.rng.random() < 0.5:
            table.refresh_index(column, kind="bloom")


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _arrow(values: list, kind: pa.DataType) -> pa.Array:
    return pa.array(values, _plain(kind)).cast(kind) if pa.types.is_dictionary(kind) else pa.array(values, kind)


def make_lake(seed: int, root: str, file_count: int) -> RandomLake:
    """The lake of a seed, in an empty folder; the same for the same seed and file count."""
    made = _Builder(seed, root)
    rng = made.rng
    early = max(1, file_count - rng.randint(0, 5))
    for number in range(early):
        made.from_footers(f"f{number:03}", is_first=number == 0)
    some = rng.sample(made.data.names, len(made.data) // 2) if rng.random() < 0.1 else None
    table = ss.create(root, partitioning=made.declared if made.partitioning else None, columns=some)
    late = rng.choices(["footers", "written", "written", "told"], k=file_count - early) + ["filter"] * rng.randint(0, 2)
    rng.shuffle(late)
    for number, source in enumerate(late):
        if source == "footers":
            path = made.from_footers(f"later{number}", is_first=False)
            with table.transaction() as tx:
                tx.add_files([path])
        elif source == "written":
            made.written(table)
        elif source == "told":
            made.told(table, f"told{number}")
        else:
            made.change_filters(table)
    gone = rng.sample(sorted(made.notes), rng.choice([0, 0, 0, 1, 2]))[: len(made.notes) - 1]
    if gone:
        with table.transaction() as tx:
            tx.remove(gone)
    if rng.random() < 0.5:
        table = ss.open(root)
    rows = pa.concat_tables(made.parts).select(table.schema.names)
    unit_of = np.array(made.unit_of)
    is_live = np.array([path not in gone for path, _ in made.units])
    live_units = [unit for unit in made.units if unit[0] not in gone]
    unit_of = np.where(is_live, np.cumsum(is_live) - 1, -1)[unit_of]
    rows = rows.filter(pa.array(unit_of >= 0))
    return RandomLake(seed, table, rows, live_units, unit_of[unit_of >= 0], made.palettes, made.notes)
