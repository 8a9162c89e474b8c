"""How a writer's files are encoded: a dictionary if values repeat, decimals as integers; whatever it is, the rows
are those that were written."""

from __future__ import annotations

import uuid
from decimal import Decimal
from pathlib import Path

import numpy as np
import predicate_strategies as base
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import write_rows
from library_versions import has
from oracle import multiset
from skipstone.engine.tasks.written_file import dictionary_columns, parquet_paths
from wide_rows import wide_table

_ROWS = 20_000


def _written(folder: Path, rows: pa.Table) -> pq.FileMetaData:
    """The footer of the one file that a transaction makes of rows."""
    with ss.create(folder, schema=rows.schema) as table:
        write_rows(table, rows)
        found = table.scan().to_table()
    assert multiset(base.rows_of(found)) == multiset(base.rows_of(rows.cast(found.schema)))
    (path,) = folder.glob("*.parquet")
    return pq.read_metadata(path)


def _chunks(footer: pq.FileMetaData) -> dict[str, pq.ColumnChunkMetaData]:
    chunks = [footer.row_group(0).column(place) for place in range(footer.num_columns)]
    return {chunk.path_in_schema: chunk for chunk in chunks}


def test_values_that_repeat_get_a_dictionary_and_others_none(tmp_path: Path) -> None:
    chunks = _chunks(_written(tmp_path, wide_table(_ROWS)))
    coded = {path for path, chunk in chunks.items() if chunk.has_dictionary_page}
    assert {"few", "half", "code", "list.list.element", "in.x", "in.s", "price"} <= coded
    assert not coded & {"n", "key", "text", "day", "at"}


def test_few_rows_are_left_to_pyarrow() -> None:
    assert dictionary_columns(wide_table(1000)) is True


def test_decimals_that_fit_are_integers(tmp_path: Path) -> None:
    cents = [Decimal(i * 37 % 1999 - 1000).scaleb(-2) for i in range(_ROWS)]
    kinds = {"small": pa.decimal128(9, 2), "large": pa.decimal128(18, 2), "huge": pa.decimal128(38, 2)}
    rows = pa.table({name: pa.array(cents, kind) for name, kind in kinds.items()})
    chunks = _chunks(_written(tmp_path, rows))
    physical = {name: chunk.physical_type for name, chunk in chunks.items()}
    assert physical == {"small": "INT32", "large": "INT64", "huge": "FIXED_LEN_BYTE_ARRAY"}
    with ss.open(tmp_path) as table:
        for name in kinds:
            for where in (f"{name} = 1.23", f"{name} < -9.97", f"{name} BETWEEN -0.01 AND 0.01"):
                low, high = {"=": ("1.23", "1.23"), "<": ("-99", "-9.98"), "B": ("-0.01", "0.01")}[where.split()[1][0]]
                wanted = sum(Decimal(low) <= value <= Decimal(high) for value in cents)
                assert table.scan(where).count() == wanted


def test_options_of_a_task_come_first(tmp_path: Path) -> None:
    rows = pa.table({"few": ["a"] * _ROWS})
    with ss.create(tmp_path, schema=rows.schema) as table, table.transaction() as tx:
        spec = tx.task_spec()
        spec.parquet_options["use_dictionary"] = False
        with ss.TaskWriter(spec) as task:
            task.write(rows)
        tx.add_task(task.result)
    (path,) = tmp_path.glob("*.parquet")
    assert not _chunks(pq.read_metadata(path))["few"].has_dictionary_page


def test_paths_are_those_of_parquet(tmp_path: Path) -> None:
    inner = pa.struct([("a.b", pa.list_(pa.int64())), ("c", pa.map_(pa.string(), pa.list_(pa.float32())))])
    fields = [
        ("x.y", pa.int64()),
        ("inner", inner),
        ("items", pa.list_(inner)),
        ("large", pa.large_list(pa.string())),
        *([("view", pa.list_view(pa.string()))] if has("pyarrow", 26) else []),  # older ones do not write it
        ("pair", pa.list_(pa.int8(), 2)),
        ("id", pa.uuid()),
        ("code", pa.dictionary(pa.int32(), pa.string())),
    ]
    schema = pa.schema(fields)
    pq.write_table(schema.empty_table(), tmp_path / "empty.parquet")
    footer = pq.read_metadata(tmp_path / "empty.parquet")
    stored = [footer.schema.column(place).path for place in range(footer.num_columns)]
    assert [path for name, kind in fields for path in parquet_paths(name, kind)] == stored


@settings(max_examples=examples(15), deadline=None)
@given(
    st.integers(1, 200_000),
    st.sampled_from(["random", "sorted", "in turn"]),
    st.floats(0, 0.9),
    st.sampled_from(["int64", "string", "string_view", "decimal", "uuid", "binary"]),
    st.integers(0, 2**32),
)
def test_a_dictionary_is_for_values_that_repeat(
    domain: int, order: str, null_share: float, kind: str, seed: int
) -> None:
    random, row_count = np.random.default_rng(seed), 50_000
    numbers = np.arange(row_count) * 37 % domain if order == "in turn" else random.integers(0, domain, row_count)
    numbers = np.sort(numbers) if order == "sorted" else numbers
    values = _of_kind(numbers, kind, random.random(row_count) < null_share)
    has_one = dictionary_columns(pa.table({"column": values})) == ["column"]
    valid = row_count - values.null_count
    if domain < valid / 5:
        assert has_one
    if domain > 2 * row_count and order == "random":
        assert not has_one
    if null_share > 0.6:
        assert has_one


def _of_kind(numbers: np.ndarray, kind: str, is_null: np.ndarray) -> pa.Array:
    plain = pa.array(numbers, mask=is_null)
    if kind == "int64":
        return plain
    if kind == "decimal":
        return plain.cast(pa.decimal128(19, 0)).cast(pa.decimal128(30, 4))
    if kind == "uuid":
        names = [None if null else uuid.UUID(int=int(n)).bytes for n, null in zip(numbers, is_null, strict=True)]
        return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(names, pa.binary(16)))
    texts = plain.cast(pa.string())
    return texts.cast({"string": pa.string(), "string_view": pa.string_view(), "binary": pa.binary()}[kind])
