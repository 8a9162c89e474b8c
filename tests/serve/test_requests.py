"""The protocol, and requests that no client sends."""

from __future__ import annotations

import http.client
import importlib
import json
import re
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import skipstone as ss
from iceberg_server import client, request, served, serving_process
from lake_strategies import make_lake

pytest.importorskip("starlette", reason='starlette is not installed: pip install -e ".[serve]"')
pytest.importorskip("pyiceberg", reason='pyiceberg is not installed: pip install -e ".[iceberg]"')

PLAN = "/v1/namespaces/a%1Fb/tables/t/plan"
ONE = {"type": "eq", "term": "k", "value": 1}


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    tables = ({"k": [number, None], "K2": ["a", "b"], "s": ["é", None]} for number in range(4))
    return make_lake(tmp_path_factory.mktemp("lake"), tables)


@pytest.fixture(scope="module")
def uri(lake):
    return served({"a.b.t": lake, "a.u": {"path": lake, "manifest_files": 0}})


def _planned(uri, filter=None, **body):
    status, answer = request(uri, PLAN, {"filter": filter, **body})
    assert status == 200, answer
    return sorted(int(task["data-file"]["file-path"].rpartition("/")[2][:-8]) for task in answer["file-scan-tasks"])


def _kind(answer):
    return answer["error"]["code"], answer["error"]["type"]


def test_names(uri):
    status, answer = request(uri, "/v1/config?warehouse=x")
    assert status == 200 and answer["defaults"] == {"scan-planning-mode": "server"}
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/plan" in answer["endpoints"]
    assert request(uri, "/v1/namespaces")[1]["namespaces"] == [["a"]]
    assert request(uri, "/v1/namespaces?parent=a")[1]["namespaces"] == [["a", "b"]]
    assert request(uri, "/v1/namespaces/a")[1] == {"namespace": ["a"], "properties": {}}
    assert request(uri, "/v1/namespaces/a/tables")[1]["identifiers"] == [{"namespace": ["a"], "name": "u"}]
    assert request(uri, "/v1/namespaces/a%1Fb/tables")[1]["identifiers"] == [{"namespace": ["a", "b"], "name": "t"}]
    for path in ("/v1/namespaces/a", "/v1/namespaces/a%1Fb/tables/t"):
        assert request(uri, path, method="HEAD") == (204, None)
    for path in ("/v1/namespaces/b", "/v1/namespaces/b/tables", "/v1/namespaces?parent=b", "/v1/namespaces/a%1Fc"):
        status, answer = request(uri, path)
        assert status == 404 and _kind(answer) == (404, "NoSuchNamespaceException")
    for path in ("/v1/namespaces/a/tables/t", "/v1/namespaces/b/tables/t", "/v1/namespaces/a%1Fb/tables/T"):
        assert _kind(request(uri, path)[1]) == (404, "NoSuchTableException")


def test_a_table_is_loaded(uri):
    status, answer = request(uri, "/v1/namespaces/a%1Fb/tables/t")
    metadata = answer["metadata"]
    assert status == 200 and answer["config"] == {"scan-planning-mode": "server"}
    assert [field["name"] for field in metadata["schemas"][0]["fields"]] == ["k", "K2", "s"]
    assert metadata["snapshots"][-1]["manifest-list"].endswith(".avro")
    unwritten = request(uri, "/v1/namespaces/a/tables/u")[1]["metadata"]
    assert "manifest_files" in unwritten["properties"]["skipstone.manifests"]


def test_filters(uri):
    assert _planned(uri) == [0, 1, 2, 3] == _planned(uri, True) and _planned(uri, False) == []
    assert _planned(uri, ONE) == [1]
    assert _planned(uri, {"type": "in", "term": "k", "values": [0, 3]}) == [0, 3]
    assert _planned(uri, {"type": "and", "left": ONE, "right": {"type": "lt", "term": "k", "value": 1}}) == []
    assert _planned(uri, {**ONE, "term": "K"}) == [0, 1, 2, 3]  # no such column: nothing is pruned
    assert _planned(uri, {**ONE, "term": "K"}, **{"case-sensitive": False}) == [1]
    assert _planned(uri, {"type": "eq", "term": "k2", "value": "zz"}, **{"case-sensitive": False}) == []
    not_understood = [
        {"type": "matches", "term": "s", "value": "x"},
        {"type": "eq", "term": {"type": "transform", "transform": "bucket[4]", "term": "k"}, "value": 1},
        {"type": "eq", "term": "k", "value": "1"},
        {"type": "eq", "term": "k", "value": 1.0},
        {"type": "eq", "term": "k", "value": True},
        {"type": "eq", "term": "k"},
        {"type": "in", "term": "k", "values": 1},
        {"type": "in", "term": "k", "values": [1, None]},
        {"type": "eq", "term": "s", "value": "\ud800"},
        {"type": ["eq"], "term": "k", "value": 1},
        {"type": "starts-with", "term": "k", "value": 1},
        {"type": "and", "left": None},
        {"type": "not"},
        [1],
        "k = 1",
        7,
    ]
    for one in not_understood:
        assert _planned(uri, one) == [0, 1, 2, 3], one
        assert _planned(uri, {"type": "and", "left": one, "right": ONE}) == [1], one
    chain = ONE
    for _ in range(300):  # as clients nest a chain: one level
        chain = {"type": "and", "left": chain, "right": ONE}
    assert _planned(uri, chain) == [1]


def test_tasks(uri, lake):
    status, answer = request(uri, PLAN, {"filter": ONE, "select": ["k"], "stats-fields": ["k"]})
    (task,) = answer["file-scan-tasks"]
    assert status == 200 and answer["status"] == "completed" and task["residual-filter"] == ONE
    path = lake / "1.parquet"
    assert task["data-file"] == {
        "content": "data",
        "file-path": str(path),
        "file-format": "parquet",
        "spec-id": 0,
        "partition": [],
        "file-size-in-bytes": path.stat().st_size,
        "record-count": 2,
    }
    assert len(_planned(uri, **{"min-rows-requested": 3})) == 2
    assert len(_planned(uri, **{"min-rows-requested": 100})) == 4
    assert _planned(uri, ONE, **{"min-rows-requested": 1}) == [1]


def test_writes_are_refused(uri):
    table = "/v1/namespaces/a%1Fb/tables/t"
    posts = ("/v1/namespaces", "/v1/namespaces/a/tables", table, "/v1/tables/rename", "/v1/transactions/commit")
    others = [("DELETE", "/v1/namespaces/a"), ("DELETE", table), ("PUT", "/v1/x")]
    for method, path in [*(("POST", path) for path in posts), *others]:
        status, answer = request(uri, path, b"{}", method)
        assert (status, *_kind(answer)) == (406, 406, "UnsupportedOperationException"), path
        assert "read-only" in answer["error"]["message"]


def test_bodies_that_are_not_requests(uri):
    deep = ONE
    for _ in range(200):
        deep = {"type": "not", "child": deep}
    bodies = [b"", b"{", b"[]", b"\xff", b"[" * 100_000, json.dumps({"filter": deep}).encode()]
    bodies += [json.dumps(body).encode() for body in ({"snapshot-id": "1"}, {"snapshot-id": 1 << 70}, {"select": "k"})]
    bodies += [json.dumps({"case-sensitive": 1}).encode(), json.dumps({"min-rows-requested": 1.5}).encode()]
    for body in bodies:
        status, answer = request(uri, PLAN, body)
        assert (status, *_kind(answer)) == (400, 400, "BadRequestException"), body[:80]
    status, answer = request(uri, PLAN, {"start-snapshot-id": 1, "end-snapshot-id": 2})
    assert (status, *_kind(answer)) == (406, 406, "UnsupportedOperationException")
    status, _ = request(uri, PLAN, b'{"filter": "' + b"x" * (1 << 20) + b'"}')
    assert status == 413
    assert _planned(uri, ONE) == [1]


def test_paths_that_lead_out(uri, lake):
    for path in [
        "/v1/namespaces/a%1Fb/tables/..%2F..%2Fetc%2Fpasswd",
        "/v1/namespaces/../../etc/passwd",
        "/v1/namespaces/a%1Fb/tables/t/../../../../etc/passwd",
        f"/{lake}/0.parquet",
        "/v1/namespaces/a%1Fb/tables/%00",
        "/v1/namespaces/" + "x" * 5000,
        "//etc/passwd",
    ]:
        status, answer = request(uri, path)
        assert status == 404 and "root:" not in json.dumps(answer) and len(json.dumps(answer)) < 500


def test_many_connections_and_half_requests(uri):
    place = urlsplit(uri)
    opened = [socket.create_connection((place.hostname, place.port)) for _ in range(80)]
    try:
        for one in opened:
            one.sendall(f"POST {PLAN} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{".encode())
        statuses = {request(uri, "/v1/config")[0] for _ in range(50)}
        assert statuses <= {200, 503} and 503 in statuses
    finally:
        for one in opened:
            one.close()
    for _ in range(100):
        if request(uri, "/v1/config")[0] == 200:
            break
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(_planned(uri, ONE))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[1]] * 20


def test_tokens(lake, tmp_path):
    (tmp_path / "tokens").write_text("first-token\nsecond-token\n")
    uri = served({"a.t": lake}, token_file=tmp_path / "tokens")
    for token in ("Bearer wrong", "Bearer", "first-token", "Basic first-token", "Bearer first-token x", ""):
        status, answer = request(uri, "/v1/config", Authorization=token)
        assert (status, *_kind(answer)) == (401, 401, "NotAuthorizedException"), token
    for path in ("/v1/namespaces/a/tables/t", "/", "/v1/nowhere"):
        assert request(uri, path)[0] == 401
    for token in ("Bearer first-token", "bearer second-token"):
        assert request(uri, "/v1/config", Authorization=token, Host="lake.example.org")[0] == 200
    assert client(uri, token="second-token").load_table("a.t").scan().count() == 8


def test_another_host_name_is_refused(uri):
    place = urlsplit(uri)
    connection = http.client.HTTPConnection(place.hostname, place.port)
    connection.request("GET", "/v1/config", headers={"Host": "evil.example.org"})
    assert connection.getresponse().status == 403


@pytest.mark.parametrize(
    ("catalog", "reason"),
    [
        ("x = 1", "tables only"),
        ("", "tables only"),
        ("[tables", "cannot be read"),
        ('[tables."t"]\npath = "x"', "namespace.table"),
        ('[tables."a.t/u"]\npath = "x"', "namespace.table"),
        ('[tables."a.t"]\nplace = "x"', "an entry has path"),
        ('[tables."a.t"]\npath = 1', "paths are texts"),
        ('[tables."a.t"]\npath = "x"\nmanifest_files = "some"', "manifest_files is a number"),
        ('[tables."a.t"]\npath = "x"\nstorage_options = {a = 1}', "storage_options has texts"),
    ],
)
def test_catalogs_that_cannot_be_read(tmp_path, catalog, reason):
    (tmp_path / "catalog.toml").write_text(catalog)
    with pytest.raises(ss.InvalidArgumentError, match=reason):
        ss.serve(tmp_path / "catalog.toml")


def test_arguments(tmp_path, lake):
    (tmp_path / "empty").write_text("\n")
    for options, reason in [
        ({"host": "0.0.0.0"}, "token_file"),
        ({"port": -1}, "127"),
        ({"token_file": tmp_path / "none"}, "cannot be read"),
        ({"token_file": tmp_path / "empty"}, "no token"),
        ({"host": "192.0.2.1", "token_file": tmp_path / "empty"}, "no token"),
    ]:
        with pytest.raises(ss.InvalidArgumentError, match=reason):
            ss.serve({"a.t": lake}, **options)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ss.InvalidArgumentError, match=r"127\.0\.0\.1"):
            ss.serve({"a.t": lake}, port=taken.getsockname()[1])
    room = importlib.import_module("skipstone.serve")  # an import sets it as `skipstone.serve`, so it can be called
    with pytest.raises(ss.InvalidArgumentError, match="cannot be read"):
        room(lake)


def test_the_page(tmp_path, monkeypatch):
    """docs/serve.md: its catalog, its commands and its query."""
    page = (Path(ss.__file__).parent / "docs" / "serve.md").read_text(encoding="utf-8")
    catalog, query = (re.search(rf"^```{kind}\n(.*?)^```", page, re.M | re.S)[1] for kind in ("toml", "python"))
    assert "skipstone create lake/events\nskipstone serve catalog.toml" in page
    monkeypatch.chdir(tmp_path)
    (tmp_path / "catalog.toml").write_text(catalog)
    make_lake(tmp_path / "lake/events", [{"ts": [1, 2], "action": ["buy", "view"], "user_id": ["u-7", "u-8"]}])
    names: dict = {}
    with serving_process(tmp_path / "catalog.toml") as (uri, _):
        exec(query.replace("http://127.0.0.1:8181", uri), names)
    assert names["rows"].to_pylist() == [{"ts": 1, "action": "buy"}]
