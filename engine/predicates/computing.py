"""Reading and computing expressions that an index covers (`expressions.py`), by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...base.arrays import combine
from ...errors import PredicateError, SchemaError
from .bound import resolve
from .duckdb_engine import evaluate_values, plan
from .duckdb_trees import NotUnderstoodError, bound
from .expressions import Tree, columns_of_tree, minor_version, serves, sql_of, tree_of, value_type
from .sql_allowed import columns_in, in_duckdb_sql, parse_sql
from .sql_operands import Operands


def read_expression(text: str, schema: pa.Schema) -> Tree:
    """The node of a text over the columns of a schema.

    Raises PredicateError for what is no scalar, deterministic expression; SchemaError for one whose values have no
    order, or that is no call of functions on columns and constants.
    """
    sql = in_duckdb_sql(text)
    node = _read(sql, schema)
    if node[0] in ("column", "constant") or not columns_of_tree(node):
        raise SchemaError(f"{text!r} is no expression of columns: name a column by its name alone")
    if value_type(node) is None:
        raise SchemaError(f"{text!r} is of type {node[1]}, whose values have no order: no index can cover it")
    if _read(sql_of(node), flat_schema(node, schema)) != node:
        raise SchemaError(f"{text!r} cannot be indexed: DuckDB reads its functions otherwise once they are written out")
    return node


def flat_schema(node: Tree, schema: pa.Schema) -> pa.Schema:
    """The leaves that a node reads, each as a column that has the dotted path as its name."""
    return pa.schema([pa.field(path, resolve(path, schema).type) for path in columns_of_tree(node)])


def _read(sql: str, schema: pa.Schema) -> Tree:
    columns = columns_in(parse_sql(sql), sql, schema, are_tested=True)
    planned = plan(sql, columns, schema, sql, is_predicate=False)
    try:
        if planned is None:
            raise NotUnderstoodError
        return tree_of(bound(planned), Operands(sql, columns, schema).path)
    except NotUnderstoodError:
        raise SchemaError(
            f"{sql!r} cannot be indexed: an index covers calls of functions, operators and casts over columns and "
            "plain constants, without times that depend on a time zone"
        ) from None


@dataclass(frozen=True)
class Computation:
    """Computes an expression over columns by DuckDB. Picklable.

    node      its columns are names of `schema`
    schema    the columns, in the types of the table
    duckdb    the minor version whose values are wanted
    """

    node: Tree
    schema: pa.Schema
    duckdb: str

    @property
    def type(self) -> pa.DataType | None:
        """Of the values."""
        return value_type(self.node)

    def values(self, columns: Sequence[pa.Array]) -> pa.Array:
        """The value in each row. Raises SchemaError if DuckDB fails on a row, or is of a version with other values."""
        text, kind, pairs = sql_of(self.node), value_type(self.node), zip(columns, self.schema, strict=True)
        if not serves(self.node, self.duckdb):
            raise SchemaError(f"{text} is indexed by DuckDB {self.duckdb}, and DuckDB {minor_version()} is installed")
        try:
            columns_in(parse_sql(text), text, self.schema, are_tested=True)  # an index may come from anyone
            arrays = [column if column.type == field.type else column.cast(field.type) for column, field in pairs]
            rows = pa.Table.from_arrays(arrays, schema=self.schema)
            return combine(evaluate_values(text, rows, pa.field("value", kind)))
        except (PredicateError, pa.ArrowException) as error:
            raise SchemaError(f"{text} cannot be computed: {error}") from None
