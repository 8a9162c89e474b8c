"""The arguments of a scan, except the predicate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

from ...base.arrays import field_index
from ...errors import InvalidArgumentError, SchemaError, is_integer
from ..parquet.leaves import nested_column, ordered_type, top_level
from ..stale import checks_files
from ..state.manifest import MODES, SNAPSHOT
from ..state.snapshot import Snapshot
from ..storage import Counted

if TYPE_CHECKING:
    from ..handle import Handle, Reopening
    from ..scan_log import ScanLog
    from .units import DeletedRows

# A column, (column, "desc"), (column, "desc", "nulls_first"), or a list of these.
OrderBy: TypeAlias = str | tuple[str, ...] | Sequence[str | tuple[str, ...]]

READERS = ("auto", "pyarrow", "duckdb")
_DIRECTIONS = {"asc": False, "ascending": False, "desc": True, "descending": True}
_NULLS = {"nulls_first": True, "nulls_last": False}

# The rows of one slice, from its files (path, kind, merge).
SliceRows = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class ScanRequest:
    """What a scan reads, and with which options.

    deleted    reads which rows the log of another format removes from files; None if no log owns them
    merged     gives what merges slices into rows by the rules of their own format; None if nothing does
    columns    names to read, in this order; None for all
    limit      at most so many rows; None for all
    order_by   what the rows are ordered by, as `Table.scan` takes it; None for no order
    mode       "snapshot" or "read_optimized"
    reader     "pyarrow"; "duckdb", for files that DuckDB reads exactly; or "auto" for the faster of the two
    fields     what rows contain in the end, fields of structs by dotted path; None for all of `columns`
    origin     opens the handle again in another process, on the same versions
    scan_log   where the plan is noted once its files are known; None for nowhere
    checks_files    files whose metadata decide an answer are compared with what storage has, if they are few
    changes    how the directory differs from the version, as the handle noticed it; None for not at all

    Raises InvalidArgumentError for a mode, limit or reader that is none.
    """

    snapshot: Snapshot
    storage: Counted
    index_storage: Counted
    strict: bool = False
    deleted: DeletedRows | None = None
    merged: Callable[[], SliceRows] | None = None
    columns: Sequence[str] | None = None
    limit: int | None = None
    order_by: OrderBy | None = None
    mode: str = SNAPSHOT
    reader: str = "auto"
    fields: tuple[str, ...] | None = None
    origin: Reopening | None = None
    scan_log: ScanLog | None = None
    checks_files: bool = False
    changes: object = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidArgumentError(f"mode is one of {', '.join(MODES)}, not {self.mode!r}")
        limit = self.limit
        if limit is not None and not is_integer(limit, 0):
            raise InvalidArgumentError(f"limit is a number of rows, 0 or more, not {limit!r}")
        if self.reader not in READERS:
            raise InvalidArgumentError(f"reader= is one of {', '.join(READERS)}, not {self.reader!r}")

    @classmethod
    def of(cls, handle: Handle, columns: Sequence[str] | None = None, **options: Any) -> ScanRequest:
        """A request of what a handle pins; `options`: limit, order_by, mode, reader, fields."""
        log, slice_rows = handle.log, None
        if log is not None:
            from ..lakes.table_format import MergesSlices

            slice_rows = partial(log.slice_rows, handle.log_position) if isinstance(log, MergesSlices) else None
        return cls(
            handle.snapshot,
            handle.storage,
            handle.index_storage,
            handle.strict,
            None if log is None else partial(log.deleted_rows, handle.log_position),
            slice_rows,
            columns,
            origin=handle.origin,
            scan_log=handle.scan_log,
            checks_files=checks_files(handle),
            changes=handle.reported_changes,
            **options,
        )

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `of`, except the handle."""
        names = ("columns", "limit", "order_by", "mode", "reader", "fields")
        return {name: getattr(self, name) for name in names}


def read_columns(
    columns: Sequence[str] | None, schema: pa.Schema
) -> tuple[Sequence[str] | None, tuple[str, ...] | None]:
    """(the columns to read, what the rows contain of them): fields of structs are requested by dotted path; None
    if the rows contain all that is read. Raises SchemaError as `checked_columns`."""
    if isinstance(columns, str):
        columns = [columns]
    if not isinstance(columns, Sequence) or all(
        not isinstance(name, str) or field_index(schema, name) >= 0 for name in columns
    ):
        return columns, None
    tops = []
    for name in columns:
        try:
            nested_column(schema.empty_table(), name)
        except (KeyError, TypeError, UnicodeEncodeError):
            checked_columns([name], schema)  # says what there is
        tops.append(top_level(schema, name))
    if len(set(columns)) < len(columns):
        raise SchemaError(f"columns= names a column twice: {', '.join(columns)}")
    return list(dict.fromkeys(tops)), tuple(columns)


def checked_columns(columns: Sequence[str] | None, schema: pa.Schema) -> tuple[str, ...]:
    """The names of the columns to read, all of them for None. Raises SchemaError for a name that is no column's,
    or comes twice."""
    if columns is None:
        return tuple(schema.names)
    if isinstance(columns, str):
        columns = [columns]
    if not isinstance(columns, Sequence):
        raise SchemaError(f"columns= is a list of column names, not {columns!r}")
    for name in columns:
        if not isinstance(name, str) or field_index(schema, name) < 0:
            raise SchemaError(f"no column {name!r}; the table's columns are {', '.join(schema.names)}")
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if list(columns).count(name) > 1)
        raise SchemaError(f"columns= names {twice!r} twice")
    return tuple(columns)


class SortKey(NamedTuple):
    """A column that rows are ordered by.

    column         its name, or the dotted path of a struct's field
    is_max         the greatest comes first
    nulls_first    whatever the direction; nulls come last else, as in DuckDB
    """

    column: str
    is_max: bool = False
    nulls_first: bool = False


def sort_keys(order_by: object, schema: pa.Schema) -> tuple[SortKey, ...]:
    """What `order_by` means: a column's name, `(name, "desc")`, `(name, "desc", "nulls_first")`, or a list of these.

    Raises InvalidArgumentError for anything else, SchemaError for a column that is not there or has no order.
    """
    if isinstance(order_by, str) or (isinstance(order_by, tuple) and _is_one(order_by)):
        order_by = [order_by]
    if not isinstance(order_by, Sequence) or not order_by:
        raise _refused(order_by)
    keys = []
    for one in order_by:
        parts = (one,) if isinstance(one, str) else one
        if not isinstance(parts, tuple | list) or not _is_one(parts):
            raise _refused(one)
        words = [word.lower() for word in parts[1:]]
        directions, nulls = [w for w in words if w in _DIRECTIONS], [w for w in words if w in _NULLS]
        ordered_type(schema, parts[0])
        is_max = bool(directions) and _DIRECTIONS[directions[0]]
        keys.append(SortKey(parts[0], is_max, bool(nulls) and _NULLS[nulls[0]]))
    if len({key.column for key in keys}) < len(keys):
        raise InvalidArgumentError("order_by= names a column twice")
    return tuple(keys)


def _is_one(parts: Sequence) -> bool:
    """A column's name and at most one direction and one place of nulls."""
    if not 1 <= len(parts) <= 3 or not all(isinstance(part, str) for part in parts):
        return False
    words = [part.lower() for part in parts[1:]]
    return (
        all(word in _DIRECTIONS or word in _NULLS for word in words)
        and sum(word in _DIRECTIONS for word in words) <= 1
        and sum(word in _NULLS for word in words) <= 1
    )


def _refused(order_by: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f'order_by= is a list of columns: "ts", ("ts", "desc") or ("ts", "desc", "nulls_first"), not {order_by!r}'
    )
