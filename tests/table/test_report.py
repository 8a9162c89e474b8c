"""The report: one page that loads nothing, in which every name is text, and whose figures are the table's."""

from __future__ import annotations

import html.parser
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone.commands.app import main

ODD = """<script>alert(1)</script>&amp;"><img src=x onerror="alert(1)"></style></div>"""
TAGS = {"html", "head", "meta", "title", "style", "body", "section", "h2", "div", "span", "b"}
TAGS |= {"table", "thead", "tbody", "tr", "th", "td", "svg", "rect"}
VOID = {"meta"}


class Page(html.parser.HTMLParser):
    """The tags, the attributes and the text of a page; open tags are closed in order."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.text, self.open = "", list[str]()
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += f"{data}\n"


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    """Three partitions of names that look like HTML, with a filter that lacks a file, and a version more."""
    root = tmp_path / "a <b>lake & co"
    for day in range(3):
        folder = root / f"day={day}<i>"
        folder.mkdir(parents=True)
        rows = pa.table({ODD: [f"{ODD}{day}-{i}" for i in range(40)], "n": range(40 * day, 40 * day + 40)})
        pq.write_table(rows, folder / "part.parquet")
    table = ss.create(root)
    table.create_index(ODD, kind="bloom")
    pq.write_table(rows, root / "day=2<i>" / "later.parquet")
    table.sync()
    return table


def _read(page: str) -> Page:
    read = Page(page)
    assert read.tags <= TAGS
    assert not {"src", "href", "onerror", "onload", "action"} & set(read.attributes)
    assert "url(" not in page
    assert "@import" not in page
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'; style-src 'unsafe-inline'" in read.attributes["content"]
    return read


def test_names_are_text_and_nothing_is_loaded(table: ss.Table) -> None:
    page = table.report()
    read = _read(page)
    assert ODD in read.text
    assert "day=2<i>" in read.text
    assert "a <b>lake & co" in read.text


def test_its_figures_are_those_of_the_table(table: ss.Table) -> None:
    read = _read(table.report())
    lines = read.text.splitlines()
    assert "4 files, 160 rows and " in read.text and " of Parquet in 3 partitions; 3 columns; " in read.text
    row = lines[lines.index("bloom") :]
    assert row[1:3] == ["3", "4"]  # the filter lacks a file
    assert {"create", "index", "sync"} <= set(lines)


def test_the_log_and_the_advice_come_in(table: ss.Table, tmp_path: Path) -> None:
    log = tmp_path / "queries.jsonl"
    asked = ss.open(table.location, scan_log=log)
    for _ in range(2):
        asked.scan(ss.col("n") == 7).files()
    with open(log, "a") as file:
        file.write('{"where": "torn", "filters": [1], "files_in": "x"}\nnot JSON\n')
        file.write(json.dumps({"where": ODD, "table": table.location, "filters": {ODD: [ODD]}}) + "\n")
    before = log.read_bytes()
    advice = asked.advise([f"n = 7 OR n = {n}" for n in (99, 100)] + [f"{ODD} = 1"])
    lines = _read(asked.report(log=log, advice=advice)).text.splitlines()
    assert log.read_bytes() == before  # drawing is no asking
    assert any(line.startswith("2 plans skipped 75.0% of files and ") for line in lines)
    assert "2 of 8" in lines
    assert any(ODD in line for line in lines if line.startswith("not read"))


def test_an_empty_table_and_one_of_types_without_bounds(tmp_path: Path) -> None:
    empty = ss.create(tmp_path / "empty", schema=pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))]))
    assert "of Parquet" in _read(empty.report()).text
    root = tmp_path / "lists"
    root.mkdir()
    pq.write_table(pa.table({"tags": [["a"], None]}), root / "a.parquet")
    assert "1" in _read(ss.create(root).report()).text


def test_it_is_written_whole_or_not_at_all(table: ss.Table, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    target = tmp_path / "report.html"
    with pytest.raises(SystemExit) as end:
        main(["report", table.location, "-o", str(target), "--json"])
    assert not end.value.code
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"output": str(target), "size_bytes": target.stat().st_size}
    _read(target.read_text(encoding="utf-8"))
    with pytest.raises(ss.StorageError, match="report"):
        table.report(tmp_path / "nowhere" / "report.html")
    assert [path.name for path in tmp_path.iterdir() if "report" in path.name] == ["report.html"]
