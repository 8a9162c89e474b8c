"""Layouts and bars in notebooks, log records, hooks, and reports: every name is text."""

from __future__ import annotations

import html.parser
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import make_file
from loaded_modules import run_code
from skipstone.engine import observing
from skipstone.engine.progress import progress_function

ODD = """<script>alert(1)</script>&amp;"><img src=x onerror="alert(1)"></style></div>"""
TAGS = {"div", "style", "b", "span", "table", "thead", "tbody", "tr", "th", "td", "svg", "rect"}
ATTRIBUTES = {"class", "style", "viewbox", "preserveaspectratio", "width", "height", "x", "y"}


OF_REPORTS = {"html", "head", "meta", "title", "style", "body", "section", "h2", "div", "span", "b"}
OF_REPORTS |= {"table", "thead", "tbody", "tr", "th", "td", "svg", "rect"}
VOID = {"meta"}


class Page(html.parser.HTMLParser):
    """The tags, the attributes and the text of a page; open tags are closed in order."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.text, self._open = "", list[str]()
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += f"{data}\n"


def _shown(thing: object) -> Page:
    page = Page(thing._repr_html_())  # type: ignore[attr-defined]
    assert page.tags <= TAGS and page.attributes.keys() <= ATTRIBUTES
    return page


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    root = tmp_path / "a <b>lake & co"
    for number in range(4):
        make_file(root, f"{number}.parquet", {ODD: [f"{ODD}{number}"] * 5, "n": range(5 * number, 5 * number + 5)})
    return ss.create(root)


def test_every_name_is_text(table: ss.Table) -> None:
    table.create_index(ODD, kind="bloom")
    layout = table.layout(ODD)
    assert ODD in _shown(layout).text and "a look-up reads" in _shown(layout).text and "rect" in _shown(layout).tags


def test_a_bar_in_a_notebook_is_one_line(table: ss.Table, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        shell.kernel = object()  # a notebook has a kernel
        assert progress_function(None) is not None
        table.create_index(ODD, kind="bloom", progress=True)
    finally:
        InteractiveShell.clear_instance()
    drawn = capsys.readouterr().err
    assert drawn.startswith("\r") and drawn.count("\n") == 1 and "4 of 4" in drawn.rpartition("\r")[2]


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.name == "skipstone"]
    caplog.clear()
    return texts


@pytest.fixture
def events() -> Iterator[list[ss.Event]]:
    seen: list[ss.Event] = []
    stop = ss.observe(seen.append)
    yield seen
    stop()


def test_plans_commits_and_builds_are_logged_and_observed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, events: list[ss.Event]
) -> None:
    for number in range(3):
        make_file(tmp_path, f"{number}.parquet", {"n": range(10 * number, 10 * number + 10)})
    caplog.set_level(logging.INFO, logger="skipstone")
    table = ss.create(tmp_path)
    (line,), (created,) = _lines(caplog), events
    assert line.startswith("version 1 of ") and "create, 3 files added, 0 removed, 3 now" in line
    assert line.endswith(" ms")
    figures = {"files_added": 3, "files_removed": 0, "files": 3}
    assert {name: created.figures[name] for name in figures} == figures and created.version == 1
    assert created.figures["requests"] >= created.figures["waits"] > 0
    plan = table.scan("n IN (7, 8)")
    assert _lines(caplog) == []
    assert plan.count() == 2 and plan.to_table().num_rows == 2
    (line,), planned = _lines(caplog), events[-1]
    assert '"n" IN (7, 8): 3 files -> 1, ' in line and " requests, " in line and line.endswith(" bytes")
    sizes = {entry["path"]: entry["size_bytes"] for entry in table.files().to_pylist()}
    figures = {"files_in": 3, "files_kept": 1, "bytes_in": sum(sizes.values()), "bytes_kept": sizes["0.parquet"]}
    assert {name: planned.figures[name] for name in figures} == figures
    assert planned.figures["requests"] == sum(step.requests for step in plan.steps if "row" not in step.unit)
    assert planned.elapsed_ms > 0 and "3 files -> 1" in "; ".join(planned.steps)
    table.create_index("n", kind="bloom")
    built, committed = _lines(caplog)
    assert built.startswith("index bloom(n) of ") and "3 of 3 files" in built
    assert committed.startswith("version 2 of ") and ": index, " in committed
    assert [event.name for event in events] == ["commit", "plan", "index", "commit"]
    figures = events[-2].figures
    assert figures["files_built"] == figures["files_lacking"] == 3 and figures["bytes_written"] > 0
    with table.transaction() as tx:
        tx.write(pa.table({"n": [99]}))
        tx.remove(["0.parquet"])
    (replaced,) = _lines(caplog)
    assert "replace, 1 files added, 1 removed, 3 now" in replaced


def test_a_log_record_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_file(tmp_path, "a.parquet", {"s": ["a"]})
    caplog.set_level(logging.INFO, logger="skipstone")
    assert ss.create(tmp_path).scan(ss.col("s") == "x\nversion 9\x1b[2J").count() == 0
    assert all("\n" not in line and "\x1b" not in line for line in _lines(caplog))


def test_nothing_is_printed_by_default(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_file(tmp_path, "a.parquet", {"n": [1]})
    assert ss.create(tmp_path).scan("n = 1").count() == 1
    assert capfd.readouterr() == ("", "")


def test_a_hook_that_fails_or_was_stopped_does_no_harm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_file(tmp_path, "a.parquet", {"n": [1]})
    caplog.set_level(logging.INFO, logger="skipstone")
    seen: list[ss.Event] = []

    def fails(event: ss.Event) -> None:
        raise OSError("no")

    stops = [ss.observe(fails), ss.observe(seen.append)]
    table = ss.create(tmp_path)
    assert len(seen) == 1 and "failed: OSError('no')" in _lines(caplog)[-1]
    for stop in (*stops, *stops):
        stop()
    assert table.scan("n = 1").count() == 1 and len(seen) == 1
    with pytest.raises(ss.InvalidArgumentError, match="a function of one event"):
        ss.observe("print")  # type: ignore[arg-type]


SLOW = ("slow plan: scan of", "statistics", "requests")


@pytest.mark.parametrize(("threshold", "warned"), [("0", SLOW), ("60000", ()), ("x", ("no number",))])
def test_a_slow_plan_is_logged_with_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, threshold: str, warned: tuple
) -> None:
    make_file(tmp_path, "a.parquet", {"n": [1]})
    ss.create(tmp_path)
    monkeypatch.setenv("SKIPSTONE_SLOW_PLAN_MS", threshold)
    observing._slow_plan_ms.cache_clear()
    try:
        assert ss.open(tmp_path).scan("n = 1").count() == 1
    finally:
        observing._slow_plan_ms.cache_clear()
    text = "\n".join(_lines(caplog))
    assert all(part in text for part in warned) and bool(text) == bool(warned), text


def test_the_command_prints_slow_plans(tmp_path: Path) -> None:
    make_file(tmp_path, "a.parquet", {"n": [1]})
    ss.create(tmp_path)
    words = ["skipstone", "scan", str(tmp_path), "--where", "n = 1", "--count"]
    code = f"import sys; sys.argv = {words}; from skipstone.commands.app import main; main()"
    run = run_code(code, environment={**os.environ, "SKIPSTONE_SLOW_PLAN_MS": "0"})
    assert not run.returncode and all(part in run.stderr for part in SLOW), run.stderr


@pytest.fixture
def partitioned(tmp_path: Path) -> ss.Table:
    """Three partitions of names that look like HTML, with a filter that does not cover one file."""
    root = tmp_path / "a <b>lake & co"
    for day in range(3):
        rows = {ODD: [f"{ODD}{day}-{i}" for i in range(40)], "n": range(40 * day, 40 * day + 40)}
        make_file(root, f"day={day}<i>/part.parquet", rows)
    table = ss.create(root)
    table.create_index(ODD, kind="bloom")
    make_file(root, "day=2<i>/later.parquet", rows)
    table.sync()
    return table


def _read(page: str) -> Page:
    """Read a report, which loads nothing."""
    read = Page(page)
    assert read.tags <= OF_REPORTS
    assert not {"src", "href", "onerror", "onload", "action"} & set(read.attributes)
    assert "url(" not in page and "@import" not in page
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'; style-src 'unsafe-inline'" in read.attributes["content"]
    return read


def test_a_report_shows_the_figures_of_the_table_and_names_as_text(partitioned: ss.Table) -> None:
    read = _read(partitioned.report())
    assert all(name in read.text for name in (ODD, "day=2<i>", "a <b>lake & co"))
    lines = read.text.splitlines()
    assert "4 files, 160 rows and " in read.text and " of Parquet in 3 partitions; 3 columns; " in read.text
    row = lines[lines.index("bloom") :]
    assert row[1:3] == ["3", "4"]  # the filter does not cover a file
    assert {"create", "index", "sync"} <= set(lines)


def test_a_report_contains_the_log_and_the_advice(partitioned: ss.Table, tmp_path: Path) -> None:
    log = tmp_path / "queries.jsonl"
    logged = ss.open(partitioned.location, scan_log=log)
    for _ in range(2):
        logged.scan(ss.col("n") == 7).files()
    with open(log, "a") as file:
        file.write('{"where": "torn", "filters": [1], "files_in": "x"}\nnot JSON\n')
        file.write(json.dumps({"where": ODD, "table": partitioned.location, "filters": {ODD: [ODD]}}) + "\n")
    before = log.read_bytes()
    advice = logged.advise([f"n = 7 OR n = {n}" for n in (99, 100)] + [f"{ODD} = 1"])
    lines = _read(logged.report(log=log, advice=advice)).text.splitlines()
    assert log.read_bytes() == before  # a report logs no plan
    assert any(line.startswith("2 plans skipped 75.0% of files and ") for line in lines)
    assert any(ODD in line for line in lines if line.startswith("not read"))


def test_a_report_is_written_whole_or_not_at_all(say, partitioned: ss.Table, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    status, output, _ = say("report", partitioned.location, "-o", str(target), "--json")
    assert status == 0 and json.loads(output) == {"output": str(target)}
    _read(target.read_text(encoding="utf-8"))
    with pytest.raises(ss.StorageError, match="report"):
        partitioned.report(target / "report.html")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".html" or "tmp" in path.name] == ["report.html"]
