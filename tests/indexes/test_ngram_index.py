"""The n-gram index through the public API: its scans return what DuckDB returns over the same rows, whatever happens to
the table, and it excludes what it can."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import every, examples, few_of, only_in_test_all
from hypothesis import given, settings
from hypothesis import strategies as st
from index_lakes import expected, found
from library_versions import cases
from skipstone import col
from skipstone.engine.indexes.ngram import build, format

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
WORDS = [
    "error",
    "Warning",
    "GET /index.html",
    "user-4711",
    "日本語テキスト",
    "a1b2c3d4e5",
    "ſtraße",
    "K9",
    "",
    None,
    "x",
]
WORDS += ["100%_done"]


def _rows(count: int, seed: int, first: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)

    def text() -> str | None:
        parts = [WORDS[i] for i in random.integers(0, len(WORDS), 3)]
        return None if parts[0] is None else " ".join(part or "" for part in parts) + f" {random.integers(0, 10**6):06}"

    return pa.table({"n": list(range(first, first + count)), "s": [text() for _ in range(count)]}, schema=SCHEMA)


def _expected(rows: pa.Table, where: str) -> list[int]:
    return expected(rows, where, "n")


def _found(table: ss.Table, where: object) -> list[int]:
    return found(table, where, "n")


def _check(table: ss.Table, rows: pa.Table, wheres: list[str]) -> None:
    for number, where in enumerate(wheres):
        wanted, plan = _expected(rows, where), table.scan(where)
        if number % every(3) == 0:
            assert plan.count() == plan.positions().num_rows == len(wanted), where
            assert sorted(table.scan(where, columns=["n"]).to_table()["n"].to_pylist()) == wanted, where
        assert sorted(plan.to_table()["n"].to_pylist()) == wanted, where


WHERES = [
    "s LIKE '%user-4711%'",
    "s LIKE 'error%'",
    "s LIKE '%\\%\\_done%' ESCAPE '\\'",
    "s ILIKE '%WARNING%'",
    "lower(s) LIKE '%warning%'",
    "s NOT LIKE '%error%'",
    "contains(s, 'index.html')",
    "suffix(s, '7')",
    "regexp_matches(s, 'a1b2c3d4.5 (error|Warn)')",
    "regexp_matches(s, '(?i)STRASSE|stra')",
    "s LIKE '%日本%' OR s LIKE '%000000%'",
    "s ILIKE '%k9%' AND n % 2 = 0",
    "s = 'nothing like it'",
    "s LIKE '%nowhere at all%'",
    "s LIKE '%x%'",
    "s IS NULL OR contains(s, 'nowhere at all')",
]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows are a block."""
    monkeypatch.setattr(build, "_block_rows", lambda value_bytes: 8)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("ignore_case", [False, True])
@pytest.mark.parametrize("row_group_rows", [50, 1000])
def test_scans_return_what_duckdb_returns(
    tmp_path: Path, ignore_case: bool, row_group_rows: int, small_blocks: None
) -> None:
    parts = [_rows(200, seed, 200 * seed) for seed in range(4)]
    for number, part in enumerate(parts):
        pq.write_table(part, tmp_path / f"{number}.parquet", row_group_size=row_group_rows)
    table = ss.create(tmp_path)
    table.create_index("s", kind="ngram", ignore_case=ignore_case)
    assert table.verify() == []
    _check(table, pa.concat_tables(parts), WHERES)
    row = next(row for row in table.indexes().to_pylist() if row["kind"] == "ngram")
    assert row["columns"] == ["s"] and row["files_covered"] == 4
    assert json.loads(row["options"])["ignore_case"] is ignore_case


@settings(max_examples=examples(3))
@given(
    files=st.lists(st.lists(st.none() | st.text("abAB0129é日\n", max_size=12), max_size=25), min_size=1, max_size=3),
    needles=st.lists(st.text("abAB0129é日%_", max_size=6), min_size=1, max_size=3),
    ignore_case=st.booleans(),
)
def test_random_texts(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[str | None]], needles: list[str], ignore_case: bool
) -> None:
    root = tmp_path_factory.mktemp("random")
    parts, first = [], 0
    for number, values in enumerate(files):
        part = pa.table({"n": list(range(first, first + len(values))), "s": values}, schema=SCHEMA)
        pq.write_table(part, root / f"{number}.parquet", row_group_size=10)
        parts.append(part)
        first += len(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_block_rows", lambda value_bytes: 4)
        table = ss.create(root)
        table.create_index("s", kind="ngram", ignore_case=ignore_case)
    rows = pa.concat_tables(parts)
    for needle in needles:
        for call in (
            "s LIKE '%{}%'",
            "s ILIKE '%{}%'",
            "contains(s, '{}')",
            "s = '{}'",
            "regexp_matches(s, '(?i){}.')",
        ):
            assert _found(table, call.format(needle)) == _expected(rows, call.format(needle)), call.format(needle)
    shutil.rmtree(root)


def test_files_and_blocks_are_excluded(tmp_path: Path) -> None:
    parts = [_rows(20_000, seed, 20_000 * seed) for seed in range(3)]
    needle = parts[1].column("s").to_pylist()
    needle[12_345] = "one needle 0xdeadbeef99"
    parts[1] = parts[1].set_column(1, "s", pa.array(needle))
    for number, part in enumerate(parts):
        pq.write_table(part, tmp_path / f"{number}.parquet", row_group_size=10_000)
    table = ss.create(tmp_path)
    table.create_index("s", kind="ngram")
    plan = table.scan("contains(s, 'deadbeef99')")
    assert plan.files().column("path").to_pylist() == ["1.parquet"]
    assert plan.row_groups().select(["path", "row_group"]).to_pylist() == [{"path": "1.parquet", "row_group": 1}]
    assert plan.to_table().column("n").to_pylist() == [20_000 + 12_345]
    text = plan.explain()
    assert "n-grams" in text and "ngram(s)" in text and "blocks of rows may match" in text
    assert "pruned by its texts" in text
    assert "contains the required texts" in plan.explain(path="0.parquet")
    assert "an index contains the rows" in plan.explain(path="1.parquet")
    step = next(step for step in plan.steps if step.name == "n-grams")
    assert (step.came_in, step.went_out, step.uncovered) == (3, 1, 0)


def test_explain_states_why_the_index_is_not_used(tmp_path: Path) -> None:
    pq.write_table(_rows(100, 0), tmp_path / "0.parquet")
    table = ss.create(tmp_path)
    table.create_index("s", kind="ngram")
    assert "create it with ignore_case=True" in table.scan("s ILIKE '%warning%'").explain()
    assert "no text of 5 bytes" in table.scan("s LIKE '%abc%'").explain()
    assert "no text of 5 bytes" in table.scan("regexp_matches(s, '\\Qwarning\\E')").explain()
    assert "ngram" not in table.scan("n = 4").explain()


def test_definitions_are_checked(tmp_path: Path) -> None:
    pq.write_table(_rows(10, 0), tmp_path / "0.parquet")
    table = ss.create(tmp_path)
    with pytest.raises(ss.SchemaError):
        table.create_index("n", kind="ngram")
    with pytest.raises(ss.InvalidArgumentError, match="ignore_case"):
        table.create_index("s", kind="ngram", ignore_case=1)  # type: ignore[arg-type]
    with pytest.raises(ss.InvalidArgumentError, match="fpp"):
        table.create_index("s", kind="ngram", fpp=0.01)
    with pytest.raises(ss.InvalidArgumentError, match="ignore_case"):
        table.create_index("s", kind="bloom", ignore_case=True)
    table.create_index("s", kind="ngram")
    with pytest.raises(ss.InvalidArgumentError, match="already"):
        table.create_index("s", kind="ngram", ignore_case=True)
    table.drop_index("s", kind="ngram")
    table.create_index("s", kind="ngram", ignore_case=True)


@pytest.mark.parametrize(
    "kind",
    cases([pa.large_string(), pa.dictionary(pa.int32(), pa.string())], [pa.string_view()], "pyarrow", 26),
    ids=str,
)
def test_types_of_texts(tmp_path: Path, kind: pa.DataType) -> None:
    rows = _rows(300, 1)
    schema = pa.schema([("n", pa.int64()), ("s", kind)])
    pq.write_table(
        pa.table([rows.column(0), rows.column(1).combine_chunks().cast(kind)], schema=schema), tmp_path / "0.parquet"
    )
    table = ss.create(tmp_path)
    table.create_index("s", kind="ngram", ignore_case=True)
    for where in few_of(WHERES, 5):
        assert _found(table, where) == _expected(rows, where), where
    assert table.scan("contains(s, 'nowhere at all')").files().num_rows == 0
    assert table.scan(col("s").contains("nowhere at all")).files().num_rows == 0


def test_a_column_that_files_lack_and_fields_of_structs(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "0.parquet")
    rows = pa.table({"n": [3], "s": ["some words"], "c": [{"t": "other words"}]})
    pq.write_table(rows, tmp_path / "1.parquet")
    table = ss.create(tmp_path, columns=["n"])
    table.create_index(["s", "c.t"], kind="ngram")
    assert _found(table, col("c.t").contains("other words")) == [3]
    assert table.scan(col("c.t").contains("other words")).files().num_rows == 1
    assert table.scan(col("c.t").contains("nothing here")).files().num_rows == 0
    assert _found(table, "s IS NULL") == [1, 2]
    assert table.scan("contains(s, 'words')").files().num_rows == 1


def test_invalid_utf8_and_large_values(tmp_path: Path) -> None:
    """The bytes of a text are never decoded, and one value may be larger than all other texts together."""
    data = [b"plain words", b"\xff\xfe bad \x80 words", None, b"z" * (20 << 20) + b"the very end"]
    texts = pa.Array.from_buffers(pa.string(), 4, pa.array(data, pa.binary()).buffers(), 1)
    pq.write_table(pa.table({"n": list(range(4)), "s": texts}), tmp_path / "0.parquet")
    table = ss.create(tmp_path)
    table.create_index("s", kind="ngram", ignore_case=True)
    assert table.indexes().filter(pc.field("kind") == "ngram").column("files_covered")[0].as_py() == 1
    assert table.scan("contains(s, 'nowhere at all')").files().num_rows == 0
    assert table.scan("contains(s, 'the very end')", columns=["n"]).files().num_rows == 1
    assert table.scan(" s ILIKE '%BAD%'").files().num_rows == 1


@pytest.mark.parametrize(
    ("entry", "file", "blocks"),
    [
        (b"\x01\x02\x03\x04" * 3, [0], [2]),  # longer than a number per block
        (b"\x01\x02\x03", [0], [1]),
        (b"", [0], [1]),
        (None, [0], [0]),
    ],
)
def test_hostile_blocks_are_damage(entry: bytes | None, file: list[int], blocks: list[int]) -> None:
    with pytest.raises(ss.CorruptionError):
        format.blocks_in(pa.array([entry], pa.binary()), np.array(file), np.array(blocks))


@pytest.mark.parametrize(("rows", "block_rows"), [(-1, 5), (5, 0), (1 << 40, 1)])
def test_hostile_sizes_are_damage(rows: int, block_rows: int) -> None:
    with pytest.raises(ss.CorruptionError):
        format.checked_files(np.array([rows]), np.array([block_rows]))


@only_in_test_all
def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None) -> None:
    """Entries that do not fit wait on the disk, and a file of many blocks has larger ones."""
    monkeypatch.setattr(build, "MEMORY_BYTES", 1)
    monkeypatch.setattr(build, "BLOCKS_MAX", 4)
    parts = [_rows(100, seed, 100 * seed) for seed in range(4)]
    table = ss.create(tmp_path, schema=SCHEMA)
    for part in parts[:2]:
        with table.transaction() as tx:
            tx.write(part)
    table.create_index("s", kind="ngram", ignore_case=True)
    for part in parts[2:]:
        with table.transaction() as tx:
            tx.write(part)
    _check(table, pa.concat_tables(parts), WHERES)


def test_the_command_line(tmp_path: Path, say: Callable) -> None:
    pq.write_table(_rows(100, 0), tmp_path / "0.parquet")
    lake = str(tmp_path)
    for words in (["create"], ["index", "add"], ["status"], ["verify"], ["index", "refresh"], ["index", "drop"]):
        column = ["s", "--kind", "ngram"] if words[0] == "index" else []
        if words[-1] == "drop":
            rows = json.loads(say("index", "list", lake, "--json")[1])
            assert [row["options"]["ignore_case"] for row in rows if row["kind"] == "ngram"] == [True]
        status, output, _ = say(*words, lake, *column, *["--ignore-case"] * (words[-1] == "add"))
        assert status == 0 and ("ngram(s)" in output or words[-1] != "add")


def test_advice_names_the_kind(tmp_path: Path) -> None:
    for number in range(8):
        rows = _rows(3000, number, 3000 * number)
        words = pa.array([f"{text} of-part-{chr(97 + number) * 5}" for text in rows.column("s").to_pylist()])
        pq.write_table(rows.set_column(1, "s", words), tmp_path / f"{number}.parquet")
    table = ss.create(tmp_path)
    advice = table.advise(["s ILIKE '%part-ccccc%'", "n = 5"])
    best = next(one for one in advice.suggestions if one.kind == "ngram")
    assert best.columns == ("s",) and best.code == "table.create_index('s', kind='ngram', ignore_case=True)"
    assert best.saved_share > 0.3
    table.create_index("s", kind="ngram", ignore_case=True)
    assert "ngram" not in [one.kind for one in table.advise(["s LIKE '%part-ccccc%'"]).suggestions]
