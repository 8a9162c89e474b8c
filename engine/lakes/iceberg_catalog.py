"""Asking an Iceberg catalog, through pyiceberg and its own configuration, which metadata file of a table counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import InvalidArgumentError, NotATableError, SkipstoneError, StorageError
from .log_files import missing_package


def newest_metadata(table: Any) -> Callable[[], str]:
    """What gives the metadata file of a table object at the first call, and what its catalog names at the others."""
    calls = 0

    def metadata() -> str:
        nonlocal calls
        calls += 1
        if calls == 1 or type(table.catalog).__name__ == "NoopCatalog":
            return str(table.metadata_location)
        return str(_from_catalog(lambda: table.catalog.load_table(table.name()), table.name()).metadata_location)

    return metadata


def load_table(name: Any, catalog: Any) -> Any:
    """pyiceberg's table of a name. `catalog`: one of pyiceberg's, the name of one, or None for its default.

    Raises as `locations.located`.
    """
    if not isinstance(name, (str, tuple)):
        raise InvalidArgumentError(f"a table of a catalog is named by a text, not {name!r}")
    if catalog is None or isinstance(catalog, str):
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise missing_package("pyiceberg", "iceberg") from error
        label = catalog
        catalog = _from_catalog(lambda: load_catalog(label), name)
    elif not hasattr(catalog, "load_table"):
        raise InvalidArgumentError(f"catalog= is the name of a catalog or one of pyiceberg's, not {catalog!r}")
    return _from_catalog(lambda: catalog.load_table(name), name)


def _from_catalog(request: Callable[[], Any], name: Any) -> Any:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        return request()
    except SkipstoneError:
        raise
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise NotATableError(f"{name}: the catalog has no such table") from error
    except ValueError as error:
        raise InvalidArgumentError(f"{name}: the catalog is not configured ({str(error).splitlines()[0]})") from error
    except Exception as error:  # catalogs raise what their clients do
        kind = type(error).__name__  # its text may hold credentials
        raise StorageError(f"{name}: the catalog cannot be read ({kind})") from None
