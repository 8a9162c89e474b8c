"""A real S3 server behind a network that breaks: actions are done, once, or end in our error and nothing is done."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import faulty_proxy
import pytest
import skipstone as ss
from example_counts import every, is_thorough
from remote_lake import ACTIONS, START, begin, numbers, write
from seaweed_server import Server

pytest.importorskip("obstore", reason="object stores need obstore: pip install 'skipstone[cloud]'")

from skipstone.engine.storage import UncertainPutError

BREAKING = [kind for kind in faulty_proxy.FAULTS if kind != "slow"]
_numbers = itertools.count()
WAYS: dict[str, Callable[[faulty_proxy.Proxy], None]] = {
    "one in twenty": lambda proxy: proxy.spoil(BREAKING, 0.05),
    "one in five": lambda proxy: proxy.spoil(BREAKING, 0.2),
    "busy, one in five": lambda proxy: proxy.spoil(["busy"], 0.2),
    "lost, one in five": lambda proxy: proxy.spoil(["lost", "failed"], 0.2),
    "bursts": lambda proxy: proxy.spoil_in_bursts(["busy", "reset", "lost"], 4, 25),
    "long bursts": lambda proxy: proxy.spoil_in_bursts(["busy", "failed"], 12, 30),
    "slow": lambda proxy: proxy.spoil(["slow"], 0.5),
}
TRIALS = [(action, way) for way in WAYS for action in ACTIONS]


@pytest.fixture(scope="module")
def proxy(s3_server: Server) -> Iterator[faulty_proxy.Proxy]:
    with faulty_proxy.running(s3_server.port, seed=7) as found:
        yield found


def _lake(server: Server) -> str:
    root = f"s3://{server.bucket}/network-{next(_numbers)}"
    begin(root, server.options)
    return root


def _through(proxy: faulty_proxy.Proxy, server: Server) -> dict[str, str]:
    return {**server.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}", "timeout": "2s"}


def _check(root: str, server: Server, expected: list[set[int]], before: int, context: str) -> None:
    """Check the lake without the proxy."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = ss.open(root, storage_options=server.options)
        found = numbers(table)
        assert found in expected, context
        assert table.version - before <= 1, context
        assert table.verify(deep=True) == [], context
        write(table, (1000, 1001))
        assert numbers(table) == found | {1000, 1001}, context
    table.handle.forget()


def _trial(proxy: faulty_proxy.Proxy, server: Server, action: str, way: Callable[[Any], None], context: str) -> str:
    """Try an action and check the lake. Return "done" or the name of the error."""
    act, after = ACTIONS[action]
    root = _lake(server)
    table = ss.open(root, storage_options=_through(proxy, server))
    before, ended, expected = table.version, "done", [after]
    way(proxy)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that an index cannot be read
            act(table)
    except (ss.StorageError, ss.CommitConflictError) as error:
        ended = type(error).__name__
        expected = [START, after] if isinstance(error, UncertainPutError) else [START]
        context = f"{context}: {error}"
    finally:
        proxy.heal()
        table.handle.forget()
    _check(root, server, expected, before, context)
    return ended


def test_a_network_that_breaks_at_random_loses_and_doubles_nothing(
    proxy: faulty_proxy.Proxy, s3_server: Server, record_property: Callable[[str, object], None]
) -> None:
    proxy.faults.clear()
    requests, ends = proxy.requests, Counter()
    for number, (action, way) in enumerate(TRIALS):
        if is_thorough() or number % (len(ACTIONS) + 1) == 0:  # each way of breaking, with another action
            ends[_trial(proxy, s3_server, action, WAYS[way], f"{action}, {way}")] += 1
    assert sum(proxy.faults.values()) > 5
    print(f"\n{sum(ends.values())} actions, {proxy.requests - requests} requests, {dict(proxy.faults)}: {dict(ends)}")
    record_property("faults", sum(proxy.faults.values()))


BROKEN_OFF = [
    (a, kind) for a in ("write", "sync", "secondary") for kind in ("busy", "reset", "lost", "failed", "hanging")
]


@pytest.mark.parametrize(("action", "kind"), BROKEN_OFF[:: every(4)])
def test_a_commit_whose_answer_broke_off_is_done_once(
    action: str, kind: str, proxy: faulty_proxy.Proxy, s3_server: Server
) -> None:
    """The put of the instant: whether it was done or not, the action succeeds, and its change is there once."""
    met = proxy.faults[kind]
    ended = _trial(proxy, s3_server, action, lambda p: p.spoil_one(kind, "PUT", "/timeline/"), f"{kind} in {action}")
    assert (ended, proxy.faults[kind]) == ("done", met + 1)


def test_a_server_that_breaks_for_good_is_given_up_after_a_while(proxy: faulty_proxy.Proxy, s3_server: Server) -> None:
    """After a bounded number of requests, with an error that names the place."""
    root = _lake(s3_server)
    table = ss.open(root, storage_options=_through(proxy, s3_server))
    before = proxy.requests
    proxy.spoil(["busy", "reset"], 1.0)
    try:
        for act in (lambda: write(table), table.sync, lambda: table.create_index("n", kind="bloom")):
            with pytest.raises(ss.StorageError, match="s3://"):
                act()
    finally:
        proxy.heal()
    assert proxy.requests - before < 100
    _check(root, s3_server, [START], table.version, "a server that breaks for good")
