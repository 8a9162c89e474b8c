"""No message, traceback, repr or log shows a credential."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable

import pyarrow as pa
import pytest
import skipstone as ss
from faulty_object_store import Twin, twin_stores
from lake_strategies import add_files
from skipstone.engine.storage import StorageOptions, object_client, open_storage
from skipstone.engine.storage.object_client import scrubbed

HIDDEN = "hidden"  # is part of every credential below
NOWHERE = "127.0.0.1:1"
KEYS = {"aws_access_key_id": "AKID-hidden-id", "aws_secret_access_key": "hidden/secret+key", "region": "x"}
ENDPOINTS = {
    "user and password": f"http://somebody:{HIDDEN}-word@{NOWHERE}",
    "a password with signs": f"http://somebody:{HIDDEN}%40%2Fword@{NOWHERE}",
    "a password with an at sign": f"http://somebody:{HIDDEN}@word@{NOWHERE}",
    "a password that breaks the URL": f"http://somebody:{HIDDEN}/{HIDDEN}-word@{NOWHERE}",
    "a token": f"http://{HIDDEN}-token@{NOWHERE}",
    "a signature": f"http://{NOWHERE}/?X-Amz-Signature={HIDDEN}",
    "a signature before a fragment": f"http://{NOWHERE}?sv=1&sig={HIDDEN}#{HIDDEN}",
}
LOCATIONS = (
    f"s3://key:{HIDDEN}@bucket/lake",
    f"s3a://{HIDDEN}@bucket/lake",
    f"gs://bucket/lake?X-Goog-Signature={HIDDEN}",
    f"az://box/lake?sv=1&sig={HIDDEN}",
    f"https://key:{HIDDEN}@host/lake",
    f"https://host/lake?sig={HIDDEN}",
    f"https://host?token={HIDDEN}",
    f"hdfs://key:{HIDDEN}@host/lake",
)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(object_client, "pause", lambda attempt: None)
    monkeypatch.setattr(object_client, "ATTEMPTS_MAX", 1)
    caplog.set_level(logging.DEBUG)


def _shown(action: Callable[[], object], error: type[Exception] = ss.SkipstoneError) -> str:
    """All that an action's error shows."""
    with pytest.raises(error) as caught:
        action()
    text = "".join(traceback.format_exception(caught.value))
    return text.replace(__file__, "") + str(caught.value) + repr(caught.value) + repr(caught.value.args)


def _is_clean(shown: str) -> bool:
    return not any(HIDDEN in line for line in shown.splitlines())


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("kind", ["s3", "az", "gs"])
def test_no_error_shows_what_an_endpoint_holds(endpoint: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    options = {
        "s3": {**KEYS, "endpoint_url": ENDPOINTS[endpoint]},
        "az": {"account_name": "me", "account_key": "aGlkZGVu", "endpoint": ENDPOINTS[endpoint], "allow_http": "true"},
        "gs": {"base_url": ENDPOINTS[endpoint], "skip_signature": "true"},
    }[kind]
    for action in (
        lambda: ss.open(f"{kind}://bucket/lake", storage_options=options),
        lambda: ss.create(f"{kind}://bucket/lake", storage_options=options),
        lambda: open_storage(f"{kind}://bucket/lake", options).put("a", b"x"),
    ):
        assert _is_clean(_shown(action))
    assert HIDDEN not in repr(StorageOptions(options)) and HIDDEN not in caplog.text


def test_an_endpoint_of_the_environment_is_not_shown_either(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**KEYS, "aws_endpoint_url": ENDPOINTS["user and password"]}.items():
        monkeypatch.setenv(name.upper(), value)
    assert _is_clean(_shown(lambda: ss.open("s3://bucket/lake", storage_options={"region": "x"})))


@pytest.mark.parametrize("location", LOCATIONS)
def test_a_location_with_credentials_is_refused_and_not_shown(location: str) -> None:
    with twin_stores(bucket=Twin()):
        table = ss.create("s3://bucket/lake", schema=pa.schema([("x", pa.int64())]))
        for action in (
            lambda: ss.open(location),
            lambda: ss.create("s3://bucket/other", files=[location]),
            lambda: _added(table, [location]),
            lambda: _added(table, pa.table({"path": [location], "size_bytes": [1], "row_count": [1]})),
        ):
            assert _is_clean(_shown(action, ss.InvalidArgumentError))


def _added(table: ss.Table, files: object) -> None:
    add_files(table, files)


def test_nothing_that_is_made_of_options_shows_them(caplog: pytest.LogCaptureFixture) -> None:
    options = {**KEYS, "endpoint_url": ENDPOINTS["user and password"]}
    with twin_stores(bucket=Twin()):
        table = ss.create("s3://bucket/lake", schema=pa.schema([("x", pa.int64())]), storage_options=options)
        with table.transaction() as tx:
            spec = tx.task_spec()
            tx.write(pa.table({"x": [1, 2]}))
        plan = table.scan("x = 1")
        assert plan.count() == 1
        things = [
            table,
            plan,
            tx,
            spec,
            table.handle.storage,
            table.handle.index_storage,
            table.handle.storage_options,
            table.handle.instant,
            plan.planning.context,
            plan.planning.tasks,
        ]
        shown = [f"{thing!r} {thing}" for thing in things]
        shown += [str(vars(thing)) for thing in (table, plan.planning, tx)]
        shown += [
            repr(pickle.loads(pickle.dumps(thing)))
            for thing in (spec, plan.planning.context, table.handle.storage_options)
        ]
        pickles = [pickle.dumps(thing) for thing in (table, plan, table.dataset(), plan.dataset())]
        assert not [data for data in pickles if HIDDEN.encode() in data or b"somebody" in data]
        asked = ss.open("s3://bucket/lake", storage_options=options, pickle_credentials=True)
        assert pickle.loads(pickle.dumps(asked.scan("x = 1"))).count() == 1
        assert b"somebody" in pickle.dumps(asked)
        shown += [plan.explain(), str(table.history().to_pylist()), str(table.files().to_pylist())]
    assert "scan of s3://bucket/lake" in caplog.text and "version 2 of s3://bucket/lake" in caplog.text
    assert not [text for text in [*shown, caplog.text] if HIDDEN in text or "somebody" in text]


@pytest.mark.parametrize("source", ["delta", "iceberg"])
def test_no_error_of_another_package_shows_what_it_was_given(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"GET {ENDPOINTS['user and password']}/bucket?X-Amz-Signature={HIDDEN} {KEYS['aws_secret_access_key']}"

    def refuse(*_: object, **__: object) -> None:
        try:
            raise OSError(url)
        except OSError as error:
            raise RuntimeError(f"{url}\n{url}") from error

    pytest.importorskip("pyiceberg.catalog")  # before the patch: it keeps the loader under its own name
    monkeypatch.setattr("deltalake.DeltaTable", refuse)
    monkeypatch.setattr("pyiceberg.io.load_file_io", refuse)
    options = {**KEYS, "endpoint_url": ENDPOINTS["user and password"]}
    with twin_stores(bucket=Twin()):
        storage = open_storage("s3://bucket/lake")
        storage.put("metadata/v1.metadata.json", b"{}")
        create = lambda: ss.create("s3://bucket/lake", source=source, storage_options=options)  # noqa: E731
        shown = _shown(create, ss.StorageError)
    assert "cannot read its log" in shown and NOWHERE in shown and _is_clean(shown)


def test_secrets_are_blotted_out_in_urls_too() -> None:
    options = StorageOptions({**KEYS, "sas_token": f"sv=1&sig={HIDDEN}"})
    for text in ("AKID-hidden-id", "hidden/secret+key", "hidden%2Fsecret%2Bkey", f"sv=1&sig={HIDDEN}"):
        assert HIDDEN not in scrubbed(f"a request, {text}, and more", options)
    assert scrubbed(f"HEAD http://{NOWHERE}/bucket/a@b failed", options) == f"HEAD http://{NOWHERE}/bucket/a@b failed"
