"""`skipstone perf`: what each call costs from the index, and by listing the storage."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from ..engine.perf import ROUNDS, Call, Listing, perf_of
from .arguments import Option
from .options import AsJson, IndexPath, Path, Version, opened
from .output import bytes_text, count_of, print_json, progress, stdout, text_table

_HEADINGS = ("call", "answers", "cold", "warm", "requests", "read", "listing", "folders", "listing / cold")


def perf(
    path: Path,
    partition: Annotated[
        str | None,
        Option(metavar="KEY=VALUE/...", help="The partition to list; by default the largest.", show_default=False),
    ] = None,
    rounds: Annotated[int, Option(min=1, help="Each call runs this often; medians are shown.")] = ROUNDS,
    listing: Annotated[bool, Option("--listing/--no-listing", help="List the storage, to compare.")] = True,
    version: Version = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Measure what the index saves: partitions, files and the file-system view's calls, against listing the storage."""
    with opened(path, index_path, version) as table:
        with progress() as report:
            result = perf_of(table, partition, rounds, listing, report)
        if as_json:
            plain = asdict(result)
            print_json({"location": table.location, **plain.pop("sizes"), **plain})
            return
        screen, sizes = stdout(), result.sizes
        which = f"partition {result.partition}" if result.partition else "the one partition"
        least, mean, most = sizes.files_a_partition
        screen.print(
            f"{table.location} at version {result.version}: {count_of(sizes.files, 'file')} in "
            f"{count_of(sizes.partitions, 'partition')}; {which} has {count_of(result.partition_files, 'file')}",
            soft_wrap=True,
        )
        screen.print(
            f"manifest {bytes_text(sizes.manifest_bytes)} in {count_of(sizes.manifest_runs, 'run')}, with indexes "
            f"{bytes_text(sizes.index_bytes)}; {least:,} to {most:,} files a partition, "
            f"{mean:,.1f} on average; highest file id {sizes.highest_file_id:,}",
            soft_wrap=True,
        )
        screen.print()
        screen.print(text_table(_HEADINGS, map(_cells, result.calls), right=_HEADINGS[1:]))
        screen.print(
            f"Medians of {result.rounds}. cold: the process keeps nothing of the index, and opening is a call of its "
            "own; warm: the same handle again. A listing is the least that a call costs without an index: names alone.",
            style="dim",
            soft_wrap=True,
        )


def _cells(call: Call) -> list[str]:
    listing = call.listing
    name = f"{call.name} ({call.hudi})" if call.hudi else call.name
    ours = [f"{call.answers:,}", _time(call.cold_s), _time(call.warm_s), f"{call.requests:,}", bytes_text(call.bytes)]
    return [name, *ours, *(["-"] * 3 if listing is None else _listing_cells(call, listing))]


def _listing_cells(call: Call, listing: Listing) -> list[str]:
    return [_time(listing.elapsed_s), f"{listing.folders:,}", f"{listing.elapsed_s / call.cold_s:,.2g}"]


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1e3 * seconds:,.2f} ms"
