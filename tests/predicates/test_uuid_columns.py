"""Columns of UUIDs: text, bytes and UUID values are one value, in every predicate, index and look-up (rule 43)."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import few_of
from library_versions import needs
from skipstone import col
from skipstone.engine.predicates import prepare

IDS = [uuid.UUID(int=n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128) for n in range(40)]
ROWS = [*IDS, IDS[7], None]
COMPARED = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _uuids(values: list) -> pa.Array:
    return pa.array([None if v is None else v.bytes for v in values], pa.uuid())


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of UUIDs in order, with their text, and with their bytes as plain binary."""
    root = tmp_path_factory.mktemp("uuid")
    ordered = sorted(ROWS[:-1])
    for at in range(4):
        some = [*ordered[at * 11 : at * 11 + 11], *([None] if at == 3 else [])]
        texts = [None if v is None else str(v) for v in some]
        plain = pa.array([None if v is None else v.bytes for v in some], pa.binary(16))
        inner = pa.StructArray.from_arrays([_uuids(some)], fields=[pa.field("u", pa.uuid())])
        rows = {"u": _uuids(some), "text": texts, "plain": plain, "x": inner, "n": [1] * len(some)}
        pq.write_table(pa.table(rows), root / f"{at}.parquet", row_group_size=4)
    return root


@pytest.fixture(params=["stats", "bloom", "secondary"])
def table(lake: Path, tmp_path: Path, request: pytest.FixtureRequest) -> ss.Table:
    table = ss.create(lake, index_path=tmp_path / "index")
    for column in ("u", "x.u") if request.param != "stats" else ():
        table.create_index(column, kind=request.param)
    return table


def _values(table: ss.Table) -> list:
    return table.scan(columns=["u"]).to_table().column("u").to_pylist()


def _found(table: ss.Table, where: object) -> list:
    plan = table.scan(where)
    found = plan.to_table().column("u").to_pylist()
    assert plan.count() == len(found)
    return sorted(found, key=lambda v: (v is None, v))


FORMS: dict[str, Callable[[uuid.UUID], Any]] = {
    "UUID": lambda u: u,
    "text": str,
    "digits": lambda u: u.hex.upper(),
    "braces": lambda u: f"{{{u}}}",
    "urn": lambda u: u.urn,
    "bytes": lambda u: u.bytes,
    "scalar": lambda u: pa.scalar(u.bytes, pa.uuid()),
    "stored": lambda u: pa.scalar(u.bytes, pa.binary(16)),
}


@pytest.mark.some_cases(2)
def test_rule_43_text_bytes_and_uuids_are_one_value(table: ss.Table) -> None:
    every = sorted(v for v in _values(table) if v is not None)
    literal = IDS[20]
    for form in FORMS.values():
        for holds in (operator.eq, operator.ne, operator.lt):
            assert _found(table, holds(col("u"), form(literal))) == [v for v in every if holds(v, literal)]
    for literal in (IDS[7], uuid.UUID(int=1)):
        for op, holds in few_of(COMPARED.items(), 3):
            assert _found(table, f"u {op} '{literal}'") == [v for v in every if holds(v, literal)]
        equal = [v for v in every if v == literal]
        listed = [v for v in every if v in (literal, IDS[3])]
        assert _found(table, f"x.u = '{literal}'") == equal
        assert _found(table, f"u = UUID '{literal}'") == equal
        assert _found(table, f"u = CAST('{literal}' AS UUID) AND CAST(u AS UUID) <=> '{literal.hex}'") == equal
        assert _found(table, f"CAST(plain AS UUID) = '{literal}'") == equal
        assert _found(table, [("u", "in", [str(literal), IDS[3]])]) == listed
        assert _found(table, f"u IN ('{literal}', '{IDS[3].hex}')") == listed
        assert _found(table, f"u IS DISTINCT FROM '{literal}'") == [*(v for v in every if v != literal), None]
    assert table.scan("u IS NULL").count() == 1


@needs("pyarrow", 21, what="an expression with a UUID")
def test_rule_43_a_uuid_in_an_expression_of_pyarrow_is_its_value(table: ss.Table) -> None:
    for literal in (IDS[7], uuid.UUID(int=5)):
        equal = [value for value in sorted(v for v in _values(table) if v is not None) if value == literal]
        assert _found(table, pc.field("u") == FORMS["scalar"](literal)) == equal


def test_an_expression_of_an_older_pyarrow_names_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """There an expression with a UUID cannot be read, and to print it would end the process."""

    def refuse(expression: pc.Expression) -> None:
        raise pa.ArrowNotImplementedError("extension")

    monkeypatch.setattr("skipstone.engine.predicates.from_arrow._Serialized.of", refuse)
    monkeypatch.setattr("skipstone.base.versions.PYARROW", (18, 0))
    with pytest.raises(ss.PredicateError, match=r"one with a UUID, .* needs pyarrow 21 or newer"):
        prepare(pc.field("u") == 5, pa.schema([("u", pa.int64())]))


def test_files_are_skipped_by_each_kind_of_index(table: ss.Table) -> None:
    assert (table.scan().min("u"), table.scan().max("x.u")) == (min(IDS), max(IDS))
    kinds = {index["kind"] for index in table.indexes().to_pylist()}
    absent = table.scan(col("u") == uuid.UUID(int=sorted(IDS)[3].int + 1))
    assert absent.count() == 0
    assert absent.files().num_rows == (0 if kinds & {"bloom", "secondary"} else 1)


@pytest.mark.parametrize(
    "where",
    [
        "u = 'a'",
        "u >= 'a'",
        "u = '{00000000-0000-0000-0000-000000000000'",
        col("u") == b"a",
        "u = '\\xFF\\xFE'::BLOB",  # DuckDB's own message is no UTF-8
        "u IN (X'%s')" % ("ff" * 17),
        "u = 5",
        "u = UUID 'a'",
        col("u").like("0%"),
        "u LIKE '0%'",
        "starts_with(u, '0')",
        col("u") == col("text"),
    ],
)
def test_what_is_no_uuid_is_refused(lake: Path, tmp_path: Path, where: object) -> None:
    table = ss.create(lake, index_path=tmp_path / "index")
    with pytest.raises(ss.PredicateError):
        table.scan(where).count()


def test_a_uuid_is_compared_with_text_as_text_and_with_bytes_as_bytes(lake: Path, tmp_path: Path) -> None:
    table = ss.create(lake, index_path=tmp_path / "index")
    assert _found(table, col("text") == IDS[7]) == [IDS[7], IDS[7]] == _found(table, col("plain") == IDS[7])
    every = sorted(v for v in _values(table) if v is not None)
    for where in ("u = plain", "u = text", "CAST(text AS UUID) = u", "CAST(u AS VARCHAR) = text"):
        assert _found(table, where) == every, where


def test_files_that_call_uuids_bytes_are_of_one_column_with_those_that_do_not(tmp_path: Path) -> None:
    some = [u.bytes for u in IDS[:4]]
    kinds = {"a": pa.binary(16), "b": pa.uuid(), "c": pa.binary(16)}
    for name, kind in kinds.items():
        pq.write_table(pa.table({"u": pa.array(some, kind), "n": range(4)}), tmp_path / f"{name}.parquet")
    table = ss.create(tmp_path)
    assert table.schema.field("u").type == pa.uuid()
    assert _found(table, f"u = '{IDS[2]}'") == [IDS[2]] * 3
    with table.transaction() as tx:
        with pytest.raises(ss.SchemaError, match="values of type string are not written"):
            tx.write(pa.table({"u": ["sixteen letters."], "n": [1]}))
        with pytest.raises(ss.SchemaError, match="does not fit"):
            tx.write(pa.table({"u": [b"short"], "n": [1]}))
        tx.write(pa.table({"u": some[:1], "n": [1]}))
    assert _found(table, f"u = '{IDS[0]}'") == [IDS[0]] * 4
    pq.write_table(pa.table({"u": list(map(str, IDS)), "n": range(len(IDS))}), tmp_path / "d.parquet")
    other = ss.create(tmp_path, index_path=tmp_path / "other", on_misfit="quarantine")
    assert [(f.path, "'u'" in f.message) for f in other.verify() if f.kind == "quarantined"] == [("d.parquet", True)]
