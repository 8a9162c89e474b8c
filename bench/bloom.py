"""Bloom filters against rbloom, fastbloom-rs, pyfusefilter, and what Parquet's writers spend on theirs.

Building and probing uuid strings and int64s, end to end (hashing included) and with hashed keys, where the filter is in
cache and where it is not; and the false-positive probability that comes out. SKIPSTONE_BENCH_INTS and
SKIPSTONE_BENCH_STRINGS set how many keys the larger filters hold (out of a cache of 32 MiB: 40 M and 30 M).
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import rbloom
from skipstone.bloom import SplitBlockFilter

from bench.support.bloom_keys import (
    BUILD,
    CACHED,
    COUNTS,
    FPP,
    INTS,
    PROBE,
    PROBES_MAX,
    TEXTS,
    Keys,
    build_hashed,
    fastbloom,
    forget,
    fuse_from_hashes,
    gather,
    keys,
)
from bench.support.harness import Bench
from bench.support.targets import Target, verdicts

ROUNDS = 7
US, FUSE_C, GATHER = "skipstone", "pyfusefilter's C function", "gather of a line a key"
PLAIN, FILTERED = "without a filter", "with a filter"
WRITERS = ("pyarrow", "DuckDB")
_WANTED_FPPS = (0.01, 0.001, 0.0001)
_OUR_STRANGERS, _PEERS_STRANGERS = 100_000_000, 4_000_000
_FPP_MEMBERS = 2_000_000


class _Rows:
    """The rows of the table, how many keys each takes, and the targets that each has."""

    def __init__(self, bench: Bench, folder: Path):
        self._bench, self._folder = bench, folder
        self.counts: dict[str, int] = {}
        self.targets: list[Target] = []

    def _case(self, row: str, name: str, fn: Callable[[Keys], Any], of: tuple[str, int], **options: Any) -> None:
        self._bench.case(row, name, fn, setup=lambda: keys(*of), **options)

    def end_to_end(self, kind: str, count: int) -> None:
        """Ours begins at an Arrow array, a peer at a list of the objects that it takes."""
        build, probe = f"build, {_title_of(kind, count)}", f"probe, {_title_of(kind, count)}"
        self.counts |= {build: count, probe: min(count, PROBES_MAX)}
        # pyfusefilter makes a Python object of each key, thrice: out of cache that is minutes, and memory that is not.
        names = [name for name in BUILD if name != "pyfusefilter" or count <= CACHED]
        for row, timed, listed in ((build, _built, "member_list"), (probe, _probed, "probe_list")):
            self._case(row, US, timed(US), (kind, count), kind="us")
            for name in names:
                if name != US:
                    self._bench.case(row, name, timed(name), setup=_renewed(kind, count, listed))
                    self.targets.append(Target(row, name, 1, 2))

    def hashed(self, count: int) -> None:
        """From hashes that are there, in a numpy array."""
        of = (INTS, count)
        build, probe = f"build, {count / 1e6:g} M hashed keys", f"probe, {count / 1e6:g} M hashed keys"
        self.counts |= {build: count, probe: min(count, PROBES_MAX)}
        self._case(build, US, _built_hashed, of, kind="us")
        self._case(build, FUSE_C, _fused, of, note="8.6-9 bits a key, 0.39%; no union, no probe of many")
        self._case(probe, US, _probed_hashed, of, kind="us")
        self._case(probe, GATHER, _gathered, of, kind="floor")
        self.targets.append(Target(build, FUSE_C, 1, 2))
        if count > CACHED:
            self.targets.append(Target(probe, GATHER, 4, 3))

    def writers(self, kind: str) -> None:
        """A whole file with a filter and without: the difference is what the filter costs."""
        row, of = _writing(kind), (kind, CACHED)
        self.counts[row] = CACHED
        path = str(self._folder / "keys.parquet")
        self._case(row, US, _built(US), of, kind="us", note="the filter alone")
        for with_filter, form in ((False, PLAIN), (True, FILTERED)):
            self._case(row, f"pyarrow {form}", _arrow_file(path, with_filter), of)
            self._case(row, f"DuckDB {form}", _duckdb_file(path, with_filter), of)


def main() -> None:
    """Rows in an order that keeps the keys of one kind and size at a time in memory."""
    libraries = ["rbloom", "fastbloom-rs", "pyfusefilter", "xxhash", "duckdb"]
    bench = Bench("bloom", f"Bloom filters at {FPP:.0%}", rerun="make bench NAME=bloom", libraries=libraries)
    # A batch that pays for loading the kernels, so that this is in no time below.
    SplitBlockFilter.build(pa.array(np.arange(5_000_000)))
    with tempfile.TemporaryDirectory() as folder:
        rows = _Rows(bench, Path(folder))
        for kind in (TEXTS, INTS):
            rows.end_to_end(kind, CACHED)
            rows.writers(kind)
        rows.hashed(CACHED)
        rows.end_to_end(TEXTS, COUNTS[TEXTS])
        rows.end_to_end(INTS, COUNTS[INTS])
        rows.hashed(COUNTS[INTS])
        bench.run(ROUNDS)
    figures = bench.figures()
    forget()
    sections = [*_rates(figures, rows.counts), "", *verdicts(rows.targets, figures), "", *_writers(figures)]
    bench.report([*sections, "", *_measured_fpps()])


def _renewed(kind: str, count: int, listed: str) -> Callable[[], Keys]:
    return lambda: keys(kind, count).renewed(listed)


def _title_of(kind: str, count: int) -> str:
    return f"{count / 1e6:g} M {kind}"


def _writing(kind: str) -> str:
    return f"a Parquet file of {_title_of(kind, CACHED)}"


# -- what is timed ----------------------------------------------------------------------------------------------------


def _built(name: str) -> Callable[[Keys], int]:
    def build(keyset: Keys) -> int:
        BUILD[name](keyset)
        return keyset.count

    return build


def _probed(name: str) -> Callable[[Keys], int]:
    return lambda keyset: keyset.member_hits(PROBE[name](keyset.filter_of(name), keyset))


def _built_hashed(keyset: Keys) -> int:
    build_hashed(keyset)
    return keyset.count


def _probed_hashed(keyset: Keys) -> int:
    return keyset.member_hits(keyset.filters["hashed"].contains_hashes(keyset.probe_hashes))


def _fused(keyset: Keys) -> int:
    fuse_from_hashes(keyset.hashes)
    return keyset.count


def _gathered(keyset: Keys) -> None:
    gather(keyset.filters["hashed"].words.reshape(-1), keyset.probe_hashes)


def _arrow_file(path: str, with_filter: bool) -> Callable[[Keys], int]:
    def write(keyset: Keys) -> int:
        options = {"bloom_filter_options": {"key": {"ndv": keyset.count, "fpp": FPP}}} if with_filter else {}
        table = pa.table({"key": keyset.members})
        pq.write_table(table, path, row_group_size=keyset.count, use_dictionary=False, compression="none", **options)
        return keyset.count

    return write


def _duckdb_file(path: str, with_filter: bool) -> Callable[[Keys], int]:
    """DuckDB makes filters only of columns that it keeps in dictionaries."""
    options = f"DICTIONARY_SIZE_LIMIT {2 * CACHED}, ROW_GROUP_SIZE {CACHED}, COMPRESSION uncompressed"
    options += f", WRITE_BLOOM_FILTER {str(with_filter).lower()}, BLOOM_FILTER_FALSE_POSITIVE_RATIO {FPP}"

    def write(keyset: Keys) -> int:
        with duckdb.connect() as connection:
            connection.execute("SET threads = 1; SET enable_progress_bar = false")
            connection.register("held", pa.table({"key": keyset.members}))
            connection.execute(f"COPY held TO '{path}' (FORMAT parquet, {options})")
        return keyset.count

    return write


# -- what is told -----------------------------------------------------------------------------------------------------


def _rates(figures: list[dict[str, Any]], counts: dict[str, int]) -> list[str]:
    names = [name for name in dict.fromkeys(figure["contender"] for figure in figures) if not name.startswith(WRITERS)]
    lines = ["## M keys/s", "", f"| | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for row, count in counts.items():
        of = {f["contender"]: count / f["median_s"] / 1e6 for f in figures if f["row"] == row}
        if not any(name.startswith(WRITERS) for name in of):
            lines.append(f"| {row} | {' | '.join(f'{of[name]:.3g}' if name in of else '' for name in names)} |")
    footnote = (
        "Peers get lists of Python objects, texts made before each call; rbloom has no call that probes many keys."
    )
    return [*lines, "", footnote]


def _writers(figures: list[dict[str, Any]]) -> list[str]:
    """What a filter adds to the writing of a file: the median over the rounds of the difference within one."""
    lines = [
        "## Filters of Parquet's writers, M keys/s",
        "",
        "| | ours | what the writer's file takes longer | ours / theirs |",
    ]
    lines.append("| --- | ---: | ---: | ---: |")
    for kind in (TEXTS, INTS):
        samples = {f["contender"]: f["samples_s"] for f in figures if f["row"] == _writing(kind)}
        ours_s = statistics.median(samples[US])
        for writer in WRITERS:
            pairs = zip(samples[f"{writer} {FILTERED}"], samples[f"{writer} {PLAIN}"], strict=True)
            theirs_s = statistics.median(filtered - plain for filtered, plain in pairs)
            theirs, ratio = f"{CACHED / theirs_s / 1e6:.3g}", f"{theirs_s / ours_s:.2g}"
            if theirs_s <= 0:
                theirs, ratio = "lost in noise", ""
            ours = f"{CACHED / ours_s / 1e6:.3g}"
            lines.append(f"| {writer}, {_title_of(kind, CACHED)} | {ours} | {theirs} | {ratio} |")
    return lines


def _measured_fpps() -> list[str]:
    """Of what was asked, what comes out: over integers that are no members."""
    lines = [
        f"## False positives, {_FPP_MEMBERS / 1e6:g} M int64s",
        "",
        "| asked | ours | of the asked | bits a key | rbloom | fastbloom-rs |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    members = np.arange(_FPP_MEMBERS)
    strangers = (np.arange(_PEERS_STRANGERS) + 10**12).tolist()
    for fpp in _WANTED_FPPS:
        ours = SplitBlockFilter.build(pa.array(members), fpp, ndv=len(members))
        step, wrong = 4_000_000, 0
        for start in range(0, _OUR_STRANGERS, step):
            wrong += ours.contains(pa.array(np.arange(start, start + step) + 10**12)).true_count
        measured = wrong / _OUR_STRANGERS
        other = rbloom.Bloom(len(members), fpp)
        other.update(members.tolist())
        third = fastbloom(INTS, members.tolist(), fpp)
        theirs = sum(map(other.__contains__, strangers)), third.contains_int_batch(strangers).count(True)
        shown = " | ".join(f"{each / len(strangers):.4%}" for each in theirs)
        bits = ours.size_bytes * 8 / len(members)
        lines.append(f"| {fpp:.2%} | {measured:.4%} | {measured / fpp:.3f} | {bits:.1f} | {shown} |")
    deviation = 1 / (_OUR_STRANGERS * _WANTED_FPPS[-1]) ** 0.5
    footnote = (
        f"By {_OUR_STRANGERS / 1e6:g} M strangers of ours (standard deviation at the least of them {deviation:.1%})"
    )
    return [*lines, "", f"{footnote}, {_PEERS_STRANGERS / 1e6:g} M of the peers'."]


if __name__ == "__main__":
    main()
