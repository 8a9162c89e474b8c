"""`skipstone serve`: a read-only Iceberg REST catalog that plans scans by the indexes."""

from __future__ import annotations

import sys
from typing import Annotated

from .arguments import Argument, AsJson, Option
from .output import print_json, stdout

Catalog = Annotated[str, Argument(metavar="CATALOG.toml", help='Tables: [tables."lake.events"] with path = "...".')]


def serve(
    catalog: Catalog,
    host: Annotated[
        str, Option(metavar="ADDRESS", help="Other addresses than localhost need --token-file.")
    ] = "127.0.0.1",
    port: Annotated[int, Option(metavar="N", minimum=0, help="0: any free port.")] = 8181,
    token_file: Annotated[
        str | None, Option(metavar="FILE", help="Requests need one of its tokens, one per line.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve tables to Iceberg clients (pyiceberg, DuckDB, Spark), read-only, until interrupted."""
    from ..serve import serve as serve_tables

    def show(uri: str) -> None:
        if as_json:
            print_json({"uri": uri})
            sys.stdout.flush()  # it may be a pipe, and the command goes on
        else:
            stdout().print(f"Iceberg REST catalog at {uri}; Ctrl-C ends it", highlight=False, soft_wrap=True)

    serve_tables(catalog, host=host, port=port, token_file=token_file, on_start=show)
