"""Bloom filters against rbloom and fastbloom-rs: building, probing, and measured false positives; a minute.

Skipstone starts with an Arrow array and hashes it; a peer starts with a list of the Python objects that it accepts.
Half of the probes are members. The filter of 40 M keys fits no cache; INTS=1000000 makes it smaller.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import fastbloom_rs
import numpy as np
import pyarrow as pa
import rbloom
from skipstone.bloom import SplitBlockFilter

from bench.support.data import random_uuids
from bench.support.harness import Bench

FPP, ROUNDS = 0.01, 7
INTS, TEXTS = "int64s", "uuid strings"
CACHED, LARGE = 1_000_000, int(os.environ.get("INTS", 40_000_000))
PROBES_MAX = 10_000_000
_WANTED_FPPS = (0.01, 0.001, 0.0001)
_FPP_MEMBERS, _OUR_OTHERS, _PEERS_OTHERS = 2_000_000, 100_000_000, 4_000_000


class Keys:
    """Members of one kind and the probes: members first, then as many non-members. `lists` are for the peers."""

    def __init__(self, kind: str, count: int):
        self.kind, self.count, self.probe_count = kind, count, min(count, PROBES_MAX)
        random = np.random.default_rng(count)
        half = self.probe_count // 2
        self.members = _drawn(kind, count, random)
        self.probes = pa.concat_arrays([self.members[:half], _drawn(kind, self.probe_count - half, random)])
        self.filters: dict[str, Any] = {}

    def lists(self) -> tuple[list, list]:
        """Return the members and the probes, created again, because a str caches its hash after the first use."""
        return _listed(self.members), _listed(self.probes)


def _drawn(kind: str, count: int, random: np.random.Generator) -> pa.Array:
    return pa.array(random.integers(-(2**63), 2**63, count)) if kind == INTS else random_uuids(count, random)


def _listed(values: pa.Array) -> list:
    return values.to_numpy().tolist() if pa.types.is_integer(values.type) else values.to_pylist()


def _ours(members: pa.Array) -> SplitBlockFilter:
    return SplitBlockFilter.build(members, FPP, ndv=len(members))


def _rbloom(members: list, fpp: float = FPP) -> Any:
    built = rbloom.Bloom(len(members), fpp)
    built.update(members)
    return built


def _fastbloom(members: list, fpp: float = FPP) -> Any:
    built = fastbloom_rs.FilterBuilder(len(members), fpp).build_bloom_filter()
    (built.add_str_batch if isinstance(members[0], str) else built.add_int_batch)(members)
    return built


def _contains_all(built: Any, probes: list) -> list[bool]:
    if isinstance(built, rbloom.Bloom):
        return list(map(built.__contains__, probes))
    return (built.contains_str_batch if isinstance(probes[0], str) else built.contains_int_batch)(probes)


def main() -> None:
    libraries = ["rbloom", "fastbloom-rs"]
    bench = Bench("bloom", f"Bloom filters at {FPP:.0%}", libraries=libraries)
    # A batch that is large enough to load the kernels, so that no time below includes loading them.
    SplitBlockFilter.build(pa.array(np.arange(5_000_000)))
    for kind, count in ((TEXTS, CACHED), (INTS, CACHED), (INTS, LARGE)):
        _rows(bench, Keys(kind, count))
        bench.run(ROUNDS)
        gc.collect()
    bench.report(_measured_fpps())


def _rows(bench: Bench, keys: Keys) -> None:
    build, probe = (f"{verb}, {keys.count / 1e6:g} M {keys.kind}" for verb in ("build", "probe"))
    half = keys.probe_count // 2

    def built_by(name: str, make: Callable[[Any], Any], members: Any) -> int:
        keys.filters[name] = make(members)
        return keys.count

    def probed(name: str, probes: Any) -> int:
        """Return how many members are found: all of them, or the contender is wrong."""
        if name == "skipstone":
            return keys.filters[name].contains(probes)[:half].true_count
        return _contains_all(keys.filters[name], probes)[:half].count(True)

    bench.case(build, "skipstone", partial(built_by, "skipstone", _ours), setup=lambda: keys.members, kind="us")
    bench.case(probe, "skipstone", partial(probed, "skipstone"), setup=lambda: keys.probes, kind="us")
    for name, make in (("rbloom", _rbloom), ("fastbloom-rs", _fastbloom)):
        bench.case(build, name, partial(built_by, name, make), setup=lambda: keys.lists()[0])
        bench.case(probe, name, partial(probed, name), setup=lambda: keys.lists()[1])


def _measured_fpps() -> list[str]:
    """Return the measured probability for each requested one, over integers that are not members."""
    lines = [
        f"## False positives, {_FPP_MEMBERS / 1e6:g} M int64s",
        "",
        "| requested | ours | bits per key | rbloom | fastbloom-rs |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    members = np.arange(_FPP_MEMBERS)
    others = (np.arange(_PEERS_OTHERS) + 10**12).tolist()
    for fpp in _WANTED_FPPS:
        ours = SplitBlockFilter.build(pa.array(members), fpp, ndv=len(members))
        step, wrong = 4_000_000, 0
        for start in range(0, _OUR_OTHERS, step):
            wrong += ours.contains(pa.array(np.arange(start, start + step) + 10**12)).true_count
        peers = (make(members.tolist(), fpp) for make in (_rbloom, _fastbloom))
        shown = " | ".join(f"{_contains_all(peer, others).count(True) / len(others):.4%}" for peer in peers)
        bits = ours.size_bytes * 8 / len(members)
        lines.append(f"| {fpp:.2%} | {wrong / _OUR_OTHERS:.4%} | {bits:.1f} | {shown} |")
    return lines


if __name__ == "__main__":
    main()
