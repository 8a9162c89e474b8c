"""What a load asks for, as the options of a data source: texts, which is all that Spark passes on.

    path         the table's directory
    where        SQL text: which rows
    index_path   where the index lies, if not in the table
    version      which version; the latest where absent
    log_position written with the version: which state of the log of another format is read with it
    storage.*    what opens an object store, each under its own name: storage.region, storage.aws_secret_access_key;
                 Spark hides those of secrets where it shows options
    predicate    written by `scan`, in place of `where`: a pickled predicate, base64
    parallelism  written by `scan`: how many tasks run at a time; the processors of the driver where absent
    residual     written by `scan`, for `explain` alone: what Spark tests besides
    columns      written by `view`: which columns, a list in JSON; all where absent

Any other option is refused: a `were` that nobody reads would return every row.

In SQL, a view keeps its options, and Spark ignores others given where it is read (`SELECT ... FROM view WITH (...)`
returns what the view's own options say):

    CREATE TEMPORARY VIEW v USING skipstone OPTIONS (path 'lake/flights', where "tail_num = 'N14228'")

A table of Spark's catalog keeps its columns and no option: PySpark 4.3 shows them to a source of Python when the table
is made, and not when it is read. There they are given at each read, the path, too; without it the read is refused:

    CREATE TABLE flights USING skipstone OPTIONS (path 'lake/flights')
    SELECT * FROM flights WITH (path = 'lake/flights', where = "tail_num = 'N14228'")
"""

from __future__ import annotations

import base64
import io
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..engine.storage_options import StorageOptions
from ..errors import InvalidArgumentError, PredicateError

if TYPE_CHECKING:  # the process in which Spark makes a source needs no predicates, and so no Arrow
    import pyarrow as pa

    from ..engine.predicates import Node

_TREE_MODULES = {f"{__name__.partition('.')[0]}.engine.predicates.{name}" for name in ("ast", "literals")}
# What pickles of Arrow types call: a cast names one.
_ARROW_TYPES = frozenset(
    {"type_for_alias", "timestamp", "duration", "time32", "time64", "binary", "dictionary", "struct", "map_", "field"}
    | {"decimal32", "decimal64", "decimal128", "decimal256", "list_", "large_list", "list_view", "large_list_view"}
)
STORAGE_PREFIX = "storage."
_KNOWN = ("path", "where", "index_path", "version", "log_position", "predicate", "parallelism", "residual", "columns")
_LOST = frozenset({"where", "index_path", "version", "log_position", "predicate"})  # by a table of Spark's catalog


@dataclass(frozen=True)
class Request:
    """One load. `predicate` is a node's pickle as text; at most one of it and `where` is there."""

    path: str
    where: str | None = None
    predicate: str | None = None
    index_path: str | None = None
    version: int | None = None
    log_position: str | None = None
    parallelism: int | None = None
    residual: str | None = None
    columns: tuple[str, ...] | None = None
    storage_options: StorageOptions = field(default_factory=StorageOptions)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Request:
        """The request that options mean. Raises InvalidArgumentError for one that is unknown, missing or malformed."""
        given = {name.lower(): value for name, value in options.items()}
        if "provider" in given:  # CREATE TABLE: Spark keeps the columns, and shows the options once
            names = {name.removeprefix("option.") for name in given}
            lost = sorted(name for name in names if name in _LOST or name.startswith(STORAGE_PREFIX))
            if lost:
                raise InvalidArgumentError(
                    f"Spark reads a catalog's table without the options that it was made with, so {lost[0]} would be "
                    "lost: give it where the table is read, SELECT ... FROM name WITH (path = '...', where = '...'); "
                    "or say CREATE TEMPORARY VIEW name USING skipstone OPTIONS (...), which keeps its options"
                )
            given = {name: value for name, value in given.items() if name == "path"}
        unknown = unknown_options(given, _KNOWN)
        if unknown and unknown != ["paths"]:
            raise InvalidArgumentError(
                f"option {unknown[0]!r} is not known to the data source skipstone; it takes {', '.join(_KNOWN[:4])}, "
                f"{STORAGE_PREFIX}*"
            )
        if not given.get("path"):
            raise InvalidArgumentError(
                'the data source skipstone reads one directory: .load("path/of/the/table"), or, of a table of Spark\'s '
                "catalog, SELECT ... FROM name WITH (path = 'path/of/the/table')"
            )
        if "where" in given and "predicate" in given:
            raise InvalidArgumentError("give option where or option predicate, not both")
        return cls(
            path=local_path(given["path"]),
            where=given.get("where"),
            predicate=given.get("predicate"),
            index_path=local_path(given["index_path"]) if "index_path" in given else None,
            version=number("version", given.get("version")),
            log_position=given.get("log_position"),
            parallelism=number("parallelism", given.get("parallelism")),
            residual=given.get("residual"),
            columns=_columns(given.get("columns")),
            storage_options=storage_options_in(given),
        )

    def to_options(self) -> dict[str, str]:
        """The options that mean this request."""
        values = {name: getattr(self, name) for name in _KNOWN}
        values["columns"] = None if self.columns is None else json.dumps(self.columns)
        storage = {f"{STORAGE_PREFIX}{name}": value for name, value in self.storage_options.items()}
        return {name: str(value) for name, value in values.items() if value is not None} | storage

    def predicate_node(self, schema: pa.Schema | None = None) -> Node | None:
        """The predicate, as `Table.scan` takes it; a text means what Spark means by it, given the columns of a schema.
        Raises PredicateError for a pickle that is none of ours."""
        if self.predicate is not None:
            return decode_predicate(self.predicate)
        if self.where is None:
            return None
        from ..engine.predicates import parse

        return parse(self.where, schema, dialect="spark")


def encode_predicate(node: Node) -> str:
    """A predicate as the text of an option, which a worker reads without the SQL parser."""
    return base64.b64encode(pickle.dumps(node)).decode("ascii")


def decode_predicate(text: str) -> Node:
    """The inverse of `encode_predicate`. Raises PredicateError for a text that it did not make."""

    from ..engine.predicates import Node

    try:
        node = _PredicateUnpickler(io.BytesIO(base64.b64decode(text, validate=True))).load()
    except Exception as error:  # a pickle may fail with anything
        raise PredicateError(f"option predicate is written by scan() and cannot be read here: {error}") from error
    if not isinstance(node, Node):
        raise PredicateError(f"option predicate holds a {type(node).__name__}, not a predicate; use option where")
    return node


class _PredicateUnpickler(pickle.Unpickler):
    """Loads what predicates are made of and nothing else: whoever may write SQL may write an option."""

    def find_class(self, module: str, name: str) -> object:
        if module in _TREE_MODULES and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        elif (module, name) == ("decimal", "Decimal") or (module == "pyarrow.lib" and name in _ARROW_TYPES):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a predicate")


def unknown_options(given: Mapping[str, str], known: Sequence[str]) -> list[str]:
    """Names of options (in lower case) that are neither among those known nor for the storage, sorted."""
    lowered = {name.lower() for name in known}
    return sorted(name for name in given if name not in lowered and not name.startswith(STORAGE_PREFIX))


def storage_options_in(given: Mapping[str, str]) -> StorageOptions:
    """What the options say for the storage, under its own names."""
    return StorageOptions(
        {name.removeprefix(STORAGE_PREFIX): value for name, value in given.items() if name.startswith(STORAGE_PREFIX)}
    )


def local_path(path: str) -> str:
    """Hadoop writes file:/a/b for what is file:///a/b elsewhere."""
    return path.removeprefix("file:") if path.startswith("file:/") and not path.startswith("file://") else path


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(
            f"option columns is a list of names in JSON, not {text!r}; .schema(...) chooses columns, too"
        )
    return tuple(names)


def number(name: str, text: str | None) -> int | None:
    """The number that an option says, None where it is absent. Raises InvalidArgumentError for what is none."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InvalidArgumentError(f"option {name} is a whole number from 1 on, not {text!r}")
    return int(text)
