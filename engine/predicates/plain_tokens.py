"""The tokens of a plain SQL text, without sqlglot: `tokens_of`.

Importing sqlglot takes a new process as long as importing pyarrow, and most texts are names beside literals. Of such
texts this gives the very tokens that sqlglot's tokenizer gives; of any other, None (docs/decisions/0058-*).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import SimpleNamespace

_TOKEN = re.compile(
    r"""\s+
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*(?![\w'"`$]))
    | (?P<NUMBER>[0-9]+(?:\.[0-9]+)?(?![\w.$]))
    | '(?P<STRING>[^'\\]*)'(?!')
    | "(?P<IDENTIFIER>[^"\\]+)"(?!")
    | (?P<comparison><=>|<=|>=|<>|!=|==|=|<|>)(?![-<>=!~@&|\#*/%^+?:.])
    | (?P<mark>[(),] | \.(?=[A-Za-z_"]) | (?<=[\s(,])-(?=[0-9]))""",
    re.VERBOSE | re.ASCII,
)
_COMPARISONS = {"=": "EQ", "==": "EQ", "!=": "NEQ", "<>": "NEQ", "<": "LT", "<=": "LTE", ">": "GT", ">=": "GTE"}
_MARKS = {"<=>": "NULLSAFE_EQ", "(": "L_PAREN", ")": "R_PAREN", ",": "COMMA", ".": "DOT", "-": "DASH"}
_KINDS = _COMPARISONS | _MARKS
_OPERATORS = ("AND", "OR", "NOT", "IN")
# Words that sqlglot does not take for plain names; tests hold them against the installed sqlglot's own.
_KEYWORDS_TEXT = """
ALL ALTER ANALYZE ANTI ANY APPLY ARRAY AS ASC ASOF ATTACH AUTOINCREMENT AUTO_INCREMENT BEGIN BETWEEN BIGDECIMAL
BIGINT BIGNUM BIGNUMERIC BINARY BIT BITSTRING BLOB BOOL BOOLEAN BPCHAR BYTE BYTEA CACHE CALL CASE CHAR CHARACTER
CLOB COLLATE COLUMN COMMENT COMMIT CONNECT CONSTRAINT COPY CREATE CROSS CUBE CURRENT_CATALOG CURRENT_DATE
CURRENT_SCHEMA CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER DATABASE DATE DATEMULTIRANGE DATERANGE DATETIME DEC
DECFLOAT DECIMAL DECIMAL128 DECIMAL256 DECIMAL32 DECIMAL64 DEFAULT DELETE DESC DESCRIBE DETACH DISCONNECT DISTINCT
DIV DOUBLE DROP ELSE END ENUM ESCAPE EXCEPT EXECUTE EXISTS EXPLAIN FALSE FETCH FILE FILTER FIRST FIXED FLOAT
FLOAT4 FLOAT8 FOR FORCE FORMAT FROM FULL FUNCTION GEOGRAPHY GEOMETRY GLOB GRANT HAVING HUGEINT ILIKE INDEX INET
INNER INSERT INSTALL INT INT1 INT128 INT16 INT2 INT256 INT32 INT4 INT4MULTIRANGE INT4RANGE INT64 INT8
INT8MULTIRANGE INT8RANGE INTEGER INTERSECT INTERVAL INTO IS ISNULL JOIN JSON JSONB KEEP KILL LATERAL LEFT LIKE
LIMIT LIST LOAD LOCALTIME LOCALTIMESTAMP LOCK LOGICAL LONG LONGBLOB LONGTEXT LONGVARCHAR MACRO MAP MEDIUMBLOB
MEDIUMINT MEDIUMTEXT MERGE NAMESPACE NATURAL NCHAR NEXT NOTNULL NULL NULLABLE NUMBER NUMERIC NUMMULTIRANGE
NUMRANGE NVARCHAR NVARCHAR2 OBJECT OFFSET ON ONLY OPERATOR OPTIMIZE ORDINALITY OUT OUTER OVER OVERLAPS OVERWRITE
PARTITION PARTITIONED_BY PERCENT PIVOT PIVOT_WIDER POSITIONAL PRAGMA PREPARE PROCEDURE QUALIFY RANGE REAL
RECURSIVE REF REFERENCES REGEXP RENAME REPLACE RESET RETURNING REVOKE RIGHT RLIKE ROLLBACK ROLLUP ROW ROWS SCHEMA
SELECT SEMI SEQUENCE SESSION SESSION_USER SET SETTINGS SHORT SHOW SIGNED SMALLINT SOME STR STRAIGHT_JOIN STRING
STRUCT SUMMARIZE TABLE TABLESAMPLE TEMP TEMPORARY TEXT THEN TIME TIMESTAMP TIMESTAMPLTZ TIMESTAMPNTZ TIMESTAMPTZ
TIMESTAMP_LTZ TIMESTAMP_MS TIMESTAMP_NS TIMESTAMP_NTZ TIMESTAMP_S TIMESTAMP_US TIMETZ TIME_NS TINYBLOB TINYINT
TINYTEXT TRIGGER TRUE TRUNCATE TSMULTIRANGE TSRANGE TSTZMULTIRANGE TSTZRANGE UBIGINT UHUGEINT UINT UINT128 UINT256
UINTEGER UNCACHE UNION UNIQUE UNKNOWN UNNEST UNPIVOT UPDATE USE USING USMALLINT UTINYINT UUID VACUUM VALUES
VARBINARY VARCHAR VARCHAR2 VARIANT VECTOR VIEW VOLATILE WHEN WHERE WINDOW WITH XOR
"""
_KEYWORDS = frozenset(_KEYWORDS_TEXT.split())


@dataclass(frozen=True)
class Token:
    """A token as sqlglot's: `start` and `end` are its first and its last character in the text."""

    token_type: SimpleNamespace  # `name` alone
    text: str
    start: int
    end: int


def tokens_of(text: str) -> list[Token] | None:
    """The tokens of a text that holds nothing but names, numbers, strings, comparisons, AND, OR, NOT, IN, parentheses
    and commas; None of any other."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        group = match.lastgroup
        if group is not None:
            written = match[group]
            kind = _KINDS[written] if group in ("comparison", "mark") else group
            if group == "word":
                kind = written.upper()
                if kind in _KEYWORDS:
                    return None
                kind = kind if kind in _OPERATORS else "VAR"
            tokens.append(Token(SimpleNamespace(name=kind), written, position, match.end() - 1))
        position = match.end()
    return tokens or None
