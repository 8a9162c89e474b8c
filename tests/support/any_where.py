"""WHERE clauses of every kind that DuckDB accepts, over rows of every type: `any_where_rows`."""

from __future__ import annotations

import datetime as dt
import decimal
import math

import pyarrow as pa

WHERES = """
i = 3
I >= 3 AND "S" = 'b'
i = '3'
i = '1.5'
i < 2.5
i <> 1e0
b = 9007199254740993
b = 9007199254740993e0
b > 9007199254740992e0
i + 1 > 3
i * 2 = 4 OR b % 3 = 0
-i = -2
i / 2 = 1.5
i // 2 = 1
i ** 2 = 4
i & 1 = 1
i BETWEEN 2 AND 4 AND NOT s = 'c'
i NOT BETWEEN 2 AND 3
i BETWEEN 1 + 1 AND 2 + 2
i IN (1, 3, NULL)
i NOT IN (1, 3)
i NOT IN (1, NULL)
i IN (1, 2.5, 3e0)
b IN (9007199254740992, 2e0)
i IN (i, 7)
i
i IS NOT DISTINCT FROM NULL
i IS DISTINCT FROM 3
i IS DISTINCT FROM p
i IS NOT DISTINCT FROM p
3 IS NOT DISTINCT FROM i
i IS DISTINCT FROM NULL
i IS DISTINCT FROM i
i IS DISTINCT FROM 1.5
NOT i IS NOT DISTINCT FROM 1 AND p = 1
(i > 2) IS NULL
(i > 2) IS NOT TRUE
(i > 2) = (b > 2)
NOT (i > 2 AND lower(s) = 'c')
f = 0.1
f = 1e-1
f = 0.1::DOUBLE
f IN (0.1, 2e0)
f > 0.1 AND f < 'NaN'
d = 0.1
d > 5
d = 'NaN'
isnan(d)
isnan(f) OR d IS NULL
d > 1e308
f > i
d >= f
f = 16777217
dec = 1.10
dec = '1.105'
dec > 1.105
dec = 1.1e0
dec IN (1.1000000000000000055, 2e0)
dec + 1 > 2.1
dec > d
s = 'a'
s = 'it''s'
s > 'b' AND s < 'd'
s LIKE 'a%'
s LIKE '%b'
s LIKE 'A\\%'
s LIKE '100!%' ESCAPE '!'
s LIKE 'a!b' ESCAPE '!'
n > 1 AND NOT (s LIKE 'a!b' ESCAPE '!')
s LIKE 'a!_b' ESCAPE '!'
s LIKE 'a!!b' ESCAPE '!'
s LIKE 'a\\%b' escape'\\' AND s <> 'ESCAPE ''!'''
s NOT LIKE 'a\\_b' ESCAPE '\\' AND s LIKE 'a_b' ESCAPE '\\'
NOT s LIKE 'a_b' ESCAPE '\\'
s LIKE 'a%%b' ESCAPE '%'
s LIKE 'a__b' ESCAPE '_'
s LIKE 'a''''b' ESCAPE ''''
s LIKE 'a\\\\b' ESCAPE '\\' -- it's ESCAPE '\\'
s LIKE '%' ESCAPE '\\' AND s LIKE '_!__' ESCAPE '!'
s LIKE 'a\\_b'
s LIKE 'a\\\\b'
s LIKE s
s NOT LIKE 'a%'
s ILIKE 'A%'
s NOT ILIKE 'a%'
s SIMILAR TO '[ab].*'
s ~ '^a'
s GLOB 'a*'
regexp_matches(s, 'b$')
starts_with(s, 'a')
s ^@ 'a'
prefix(s, 'a')
contains(s, 'b')
suffix(s, 'b')
lower(s) = 'a' AND i = 1
upper(s) IN ('A', 'B')
length(s) = 1
substr(s, 1, 1) = 'a'
s[1] = 'a'
s || 'x' = 'ax'
coalesce(s, 'none') = 'none'
nullif(s, 'a') IS NULL
CASE WHEN i > 2 THEN s = 'c' ELSE d > 1 END
CASE i WHEN 1 THEN TRUE WHEN 2 THEN FALSE END
if(i = 1, TRUE, s = 'b')
try_cast(s AS INT) IS NULL
CAST(i AS VARCHAR) = '3'
i::VARCHAR || s = '3c'
CAST(i AS BIGINT) > 2
CAST(f AS DOUBLE) = 0.1
try_cast(d AS INT) = 1
md5(s) = md5('a')
s COLLATE NOCASE = 'A'
flag
NOT flag
flag IS TRUE
flag IS NOT FALSE
flag = 1
day = '2024-01-05'
day = DATE '2024-01-05' AND upper(s) = 'C'
day > '2024-01-04 12:00:00'
day + 1 = DATE '2024-01-05'
day + INTERVAL 1 MONTH > DATE '2024-02-04'
year(day) = 2024 AND month(day) = 1
ts = '2024-01-05 12:00:00'
ts = '2024-01-05'
ts >= TIMESTAMP '2024-01-05 12:00:00.5'
ts::DATE = '2024-01-05'
ts::DATE = DATE '2024-01-05' AND i > 1
date_trunc('day', ts) = TIMESTAMP '2024-01-05'
date_trunc('hour', ts) > '2024-01-05 11:00:00'
extract(hour FROM ts) = 12
ts + INTERVAL 1 DAY > TIMESTAMP '2024-01-06'
ts - day > INTERVAL 10 HOUR
strftime(ts, '%Y') = '2024'
epoch(ts) > 0
ts < now()
ts < current_date AND day < today()
ts > now() - INTERVAL 100000 DAY
tz = '2024-01-05 12:00:00'
tz = '2024-01-05 13:00:00+01'
tz > TIMESTAMPTZ '2024-01-04 00:00:00+00'
tz::DATE = '2024-01-05'
tz = ts
ns = TIMESTAMP_NS '2024-01-05 12:00:00.000000001'
ns = TIMESTAMP '2024-01-05 12:00:00'
ns > '2024-01-05 12:00:00'
t > TIME '06:00:00'
t >= '06:00:00' AND t < '23:00'
bin = 'a'
bin = X'6162'
bin = '\\x61b'::BLOB
u = '00000000-0000-0000-0000-000000000003'
u > UUID '00000000-0000-0000-0000-000000000002'
tags[1] = 'x'
list_contains(tags, 'y')
len(tags) = 2
'x' = ANY(tags)
list_filter(tags, lambda one: one = 'x') = ['x']
tags IS NULL OR i = 1
st.x = 3
st.x + 1 > 3
st['x'] = 3
st.name = 'c' AND ST.X > 1
payload->>'user' = 'ann'
(payload->>'user') = 'ann' AND i = 1
json_extract_string(payload, '$.user') = 'bob'
m['k'] = 3
struct_pack(x := 3) = struct_pack(x := i)
(i, s) = (3, 'c')
1 = 1
1 = 2 OR i = 1
NULL
'a' = 'b'
lower('A') = 'a'
TRUE AND i = 1 -- a comment
i /* one */ = /* two */ 1
p = 1 AND lower(s) = 'b'
p IN (0, 2) OR i % 2 = 1
p + i = 4
i > 1_0 - 9
s = $$a$$
s = E'a'
greatest(i, b) = b
i IS NULL OR (s IS NOT NULL AND length(s) > 1)
hash(i) = hash(3)
((i = 1) OR ((s = 'b')))
i IN (1,2) = TRUE
`i` <=> 3
lower(`s`)<=>'c'
"i" == 3 AND `s` <=> 'c'
""".strip().splitlines()


def any_where_rows() -> pa.Table:
    count = 24
    texts = ["a", "b", "c", None, "it's", "100%", "A\\", "ab", "", "é", "a!b", "Ab"]
    texts += ["a_b", "axb", "a%b", "a\\b", "a'b", "aéb", None, "A", "B", "a\nb", "b", "c"]
    numbers = [i % 7 if i % 5 else None for i in range(count)]
    doubles = [0.1, math.nan, None, -0.0, 1.5, math.inf, -math.inf, 5.0, 6.0, 1e-300, 2.0, 1.0]
    noon = dt.datetime(2024, 1, 5, 12)
    times = [None if i % 11 == 3 else noon + dt.timedelta(hours=7 * (i - 8)) for i in range(count)]
    return pa.table(
        {
            "n": pa.array(range(count), pa.int64()),
            "i": pa.array(numbers, pa.int32()),
            "b": pa.array([9007199254740990 + i if i % 2 else i for i in range(count)], pa.int64()),
            "f": pa.array([doubles[(i * 5) % 12] for i in range(count)], pa.float32()),
            "d": pa.array([doubles[i % 12] for i in range(count)], pa.float64()),
            "dec": pa.array([decimal.Decimal(i * 10 + 100) / 100 for i in range(count)], pa.decimal128(9, 2)),
            "s": pa.array(texts),
            "flag": pa.array([None if i % 3 == 2 else i % 3 == 1 for i in range(count)]),
            "day": pa.array([None if one is None else one.date() for one in times], pa.date32()),
            "ts": pa.array(times, pa.timestamp("us")),
            "tz": pa.array(times, pa.timestamp("us", "Europe/Paris")),
            "ns": pa.array(
                [i + int(noon.replace(tzinfo=dt.UTC).timestamp()) * 10**9 for i in range(count)], pa.timestamp("ns")
            ),
            "t": pa.array([dt.time(i) for i in range(count)], pa.time64("us")),
            "bin": pa.array([[b"a", b"ab", None, b"\xff"][i % 4] for i in range(count)]),
            "u": pa.array([i.to_bytes(16, "big") for i in range(count)], pa.binary(16)).cast(pa.uuid()),
            "tags": pa.array([[["x"], ["y", "x"], [], None][i % 4] for i in range(count)]),
            "st": pa.array([{"x": i % 5, "name": texts[i]} if i % 4 else None for i in range(count)]),
            "payload": pa.array([['{"user": "ann"}', '{"user": "bob"}', None][i % 3] for i in range(count)]),
            "m": pa.array([[("k", i % 5)] for i in range(count)], pa.map_(pa.string(), pa.int32())),
            "p": pa.array([i // 8 for i in range(count)], pa.int32()),
        }
    )
