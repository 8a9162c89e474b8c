"""The 22 queries of TPC-H over a tiny data set: the rows are those of DuckDB over the same tables in memory."""

from __future__ import annotations

import math
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from library_versions import needs

pytestmark = needs("duckdb", 2, what="sql()")
QUERIES = (Path(__file__).parents[2] / "bench" / "support" / "tpch.sql").read_text(encoding="utf-8")
LINES, FILES = 6_000, {"lineitem": 6, "orders": 6}
# Values that the conditions of the queries select some of. Rows are in the order of their dates.
TABLES = f"""
CREATE TABLE region AS SELECT i::INT AS r_regionkey,
    ['AFRICA', 'AMERICA', 'ASIA', 'EUROPE', 'MIDDLE EAST'][i + 1] AS r_name, 'c' AS r_comment FROM range(5) t(i);
CREATE TABLE nation AS SELECT i::INT AS n_nationkey, (i % 5)::INT AS n_regionkey, 'c' AS n_comment,
    ['ALGERIA', 'BRAZIL', 'CHINA', 'FRANCE', 'IRAN', 'KENYA', 'CANADA', 'INDIA', 'GERMANY', 'SAUDI ARABIA'][i + 1]
    AS n_name FROM range(10) t(i);
CREATE TABLE supplier AS SELECT i AS s_suppkey, 'Supplier#' || i AS s_name, 'a' || i AS s_address,
    (i % 10)::INT AS s_nationkey, 'p' || i AS s_phone, (i * 37 % 900)::DECIMAL(15, 2) AS s_acctbal,
    if(i % 9 = 0, 'Customer many Complaints', 'fine') AS s_comment FROM range(40) t(i);
CREATE TABLE part AS SELECT i AS p_partkey,
    ['green', 'forest', 'blue'][1 + i % 3] || ' part' AS p_name, 'Manufacturer#' || i % 3 AS p_mfgr,
    'Brand#' || [12, 23, 34, 45][1 + i % 4] AS p_brand, (1 + i % 50)::INT AS p_size,
    ['ECONOMY ANODIZED STEEL', 'PROMO BURNISHED BRASS', 'MEDIUM POLISHED TIN', 'STANDARD BRASS'][1 + i % 4] AS p_type,
    ['SM CASE', 'MED BOX', 'LG CASE', 'MED BAG', 'LG BOX'][1 + i % 5] AS p_container,
    (900 + i)::DECIMAL(15, 2) AS p_retailprice, 'c' AS p_comment FROM range(200) t(i);
CREATE TABLE partsupp AS SELECT i // 4 AS ps_partkey, (i * 7 + i // 4) % 40 AS ps_suppkey,
    (i * 31 % 1000)::INT AS ps_availqty, (1 + i * 17 % 90)::DECIMAL(15, 2) AS ps_supplycost, 'c' AS ps_comment
    FROM range(800) t(i);
CREATE TABLE customer AS SELECT i AS c_custkey, 'Customer#' || i AS c_name, 'a' || i AS c_address,
    (i % 10)::INT AS c_nationkey, (10 + i % 25) || '-555' AS c_phone,
    (i * 53 % 2000 - 500)::DECIMAL(15, 2) AS c_acctbal,
    ['BUILDING', 'MACHINERY', 'AUTOMOBILE'][1 + i % 3] AS c_mktsegment, 'c' AS c_comment FROM range(150) t(i);
CREATE TABLE orders AS SELECT i AS o_orderkey, hash(i) % 120 AS o_custkey, ['F', 'O', 'P'][1 + i % 3] AS o_orderstatus,
    (1000 + i * 71 % 90000)::DECIMAL(15, 2) AS o_totalprice, 0 AS o_shippriority, 'Clerk' AS o_clerk,
    DATE '1992-01-01' + (i * 2400 // {LINES // 4})::INT AS o_orderdate,
    ['1-URGENT', '2-HIGH', '3-MEDIUM', '5-LOW'][1 + i % 4] AS o_orderpriority,
    if(i % 7 = 0, 'special packages requests', 'plain') AS o_comment FROM range({LINES // 4}) t(i);
CREATE TABLE lineitem AS SELECT i // 4 AS l_orderkey, part AS l_partkey,
    (part * 4 + i % 4) * 7 % 40 + 0 AS l_suppkey, (i % 4)::INT AS l_linenumber,
    (1 + hash(i + 1) % 50)::DECIMAL(15, 2) AS l_quantity, (900 + i * 13 % 5000)::DECIMAL(15, 2) AS l_extendedprice,
    (i % 11 / 100)::DECIMAL(15, 2) AS l_discount, (i % 9 / 100)::DECIMAL(15, 2) AS l_tax,
    ['A', 'N', 'R'][1 + i % 3] AS l_returnflag, ['F', 'O'][1 + i % 2] AS l_linestatus,
    (DATE '1992-01-01' + (i * 2400 // {LINES})::INT + (hash(i) % 100)::INT) AS l_shipdate,
    l_shipdate + (hash(i + 2) % 40)::INT - 20 AS l_commitdate,
    l_shipdate + 1 + (hash(i + 3) % 30)::INT AS l_receiptdate,
    ['DELIVER IN PERSON', 'NONE'][1 + i % 2] AS l_shipinstruct,
    ['AIR', 'MAIL', 'SHIP', 'AIR REG'][1 + i % 4] AS l_shipmode, 'c' AS l_comment
    FROM (SELECT i, hash(i * 3) % 200 AS part FROM range({LINES}) t(i));
"""


@pytest.fixture(scope="module")
def oracle() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(TABLES)
    return connection


@pytest.fixture(scope="module")
def lakes(oracle: duckdb.DuckDBPyConnection, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ss.Table]:
    tables = {}
    for (name,) in oracle.sql("SELECT table_name FROM duckdb_tables()").fetchall():
        folder, rows = tmp_path_factory.mktemp(name), oracle.table(name).to_arrow_table()
        each = -(-rows.num_rows // FILES.get(name, 1))
        for number in range(FILES.get(name, 1)):
            pq.write_table(rows.slice(number * each, each), folder / f"part-{number}.parquet")
        tables[name] = ss.create(folder, partitioning=None)
    return tables


def _is_same(one: tuple, other: tuple) -> bool:
    """Whether two rows are equal, except the order in which floats were added."""
    pairs = list(zip(one, other, strict=True))
    return all(math.isclose(a, b, rel_tol=1e-9) if isinstance(a, float) else a == b for a, b in pairs)


@pytest.mark.some_cases(14)
@pytest.mark.parametrize("number", range(22))
def test_queries_of_tpch(oracle: duckdb.DuckDBPyConnection, lakes: dict[str, ss.Table], number: int) -> None:
    query = [one for one in QUERIES.split(";\n") if one.strip()][number]
    found, wanted = ss.sql(query, **lakes).fetchall(), oracle.sql(query).fetchall()
    assert len(found) == len(wanted)
    assert all(map(_is_same, sorted(found, key=repr), sorted(wanted, key=repr)))


@pytest.mark.parametrize(("number", "table"), [(3, "orders"), (5, "lineitem"), (13, "lineitem")])
def test_dates_skip_files(lakes: dict[str, ss.Table], number: int, table: str) -> None:
    lines = ss.sql(QUERIES.split(";\n")[number], explain=True, **lakes).splitlines()
    (line,) = [one for one in lines if one.startswith(f"{table}: ")]
    assert int(line.split()[1]) <= 2
