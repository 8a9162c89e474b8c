"""What a notebook shows: HTML of tables, plans, explanations and layouts in which every name is text; bars."""

from __future__ import annotations

import html.parser
import logging
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss

ODD = """<script>alert(1)</script>&amp;"><img src=x onerror="alert(1)"></style></div>"""
TAGS = {"div", "style", "b", "span", "table", "thead", "tbody", "tr", "th", "td", "svg", "rect", "progress"}
ATTRIBUTES = {"class", "style", "viewbox", "preserveaspectratio", "width", "height", "x", "y", "value", "max"}


class Page(html.parser.HTMLParser):
    """The tags, the attributes and the text of a page; open tags are closed in order."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text, self._open = "", list[str]()
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.text += data


def _shown(thing: object) -> Page:
    page = Page(thing._repr_html_())  # type: ignore[attr-defined]
    assert page.tags <= TAGS and page.attributes <= ATTRIBUTES
    return page


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    root = tmp_path / "a <b>lake & co"
    root.mkdir()
    for number in range(4):
        rows = {ODD: [f"{ODD}{number}"] * 5, "n": range(5 * number, 5 * number + 5)}
        pq.write_table(pa.table(rows), root / f"{number}.parquet")
    return ss.create(root)


def test_every_name_is_text(table: ss.Table) -> None:
    table.create_index(ODD, kind="bloom")
    assert ODD in _shown(table).text and "a <b>lake & co" in _shown(table).text and "20 rows" in _shown(table).text
    plan = table.scan(ss.col(ODD) == f"{ODD}2")
    assert ODD in _shown(plan).text
    explanation = plan.explain()
    assert f"{ODD}2" in _shown(explanation).text and "bloom(" in _shown(explanation).text
    assert ODD in _shown(plan.explain("2.parquet")).text
    layout = table.layout(ODD)
    assert ODD in _shown(layout).text and "a look-up reads" in _shown(layout).text and "rect" in _shown(layout).tags


def test_showing_a_plan_reads_nothing(table: ss.Table) -> None:
    plan = table.scan("n = 7")
    before = table.handle.index_storage.reading(), table.handle.storage.reading()
    assert "not worked out yet" in _shown(plan).text
    assert (table.handle.index_storage.reading(), table.handle.storage.reading()) == before
    assert plan.count() == 1
    assert "statistics" in _shown(plan).text and "not worked out yet" not in _shown(plan).text


def test_an_explanation_is_a_text(table: ss.Table) -> None:
    explanation = table.scan("n = 7").explain()
    assert isinstance(explanation, str) and explanation == f"{explanation}"
    again = pickle.loads(pickle.dumps(explanation))
    assert again == explanation and again._repr_html_() == explanation._repr_html_()


def test_many_columns_are_counted(tmp_path: Path) -> None:
    pq.write_table(pa.table({f"c{i}": [i] for i in range(300)}), tmp_path / "a.parquet")
    shown = _shown(ss.create(tmp_path)).text
    assert "c19" in shown and "c20int" not in shown and "280 more columns" in shown


def test_a_bar_in_a_notebook_is_one_output(table: ss.Table, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("IPython")
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        shell.display_pub, shell.kernel = CapturingDisplayPublisher(), object()  # a kernel is what makes a notebook
        table.create_index(ODD, kind="bloom", progress=True)
        outputs = shell.display_pub.outputs
    finally:
        InteractiveShell.clear_instance()
    assert capsys.readouterr().err == ""
    assert len({output["transient"]["display_id"] for output in outputs}) == 1
    last = Page(outputs[-1]["data"]["text/html"])
    assert "4 of 4" in last.text and last.tags <= TAGS and last.attributes <= ATTRIBUTES


# -- logging ----------------------------------------------------------------------------------------------------------


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.name == "skipstone"]
    caplog.clear()
    return texts


def test_a_line_a_plan_a_commit_a_build(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        pq.write_table(pa.table({"n": range(10 * number, 10 * number + 10)}), tmp_path / f"{number}.parquet")
    caplog.set_level(logging.INFO, logger="skipstone")
    table = ss.create(tmp_path)
    (created,) = _lines(caplog)
    assert created.startswith("version 1 of ") and "create, 3 files added, 0 removed, 3 now" in created
    assert created.endswith(" ms")
    plan = table.scan("n IN (7, 8)")
    assert _lines(caplog) == []
    assert plan.count() == 2 and plan.to_table().num_rows == 2
    (planned,) = _lines(caplog)
    assert "`n` IN (7, 8): 3 files -> 1, " in planned and " requests, " in planned and planned.endswith(" bytes")
    table.create_index("n", kind="bloom")
    built, committed = _lines(caplog)
    assert built.startswith("index bloom(n) of ") and "3 of 3 files" in built
    assert committed.startswith("version 2 of ") and ": index, " in committed
    with table.transaction() as tx:
        tx.write(pa.table({"n": [99]}))
        tx.remove(["0.parquet"])
    (replaced,) = _lines(caplog)
    assert "replace, 1 files added, 1 removed, 3 now" in replaced


def test_a_line_stays_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pq.write_table(pa.table({"s": ["a"]}), tmp_path / "a.parquet")
    caplog.set_level(logging.INFO, logger="skipstone")
    assert ss.create(tmp_path).scan(ss.col("s") == "x\nversion 9\x1b[2J").count() == 0
    assert all("\n" not in line and "\x1b" not in line for line in _lines(caplog))


def test_nothing_is_printed_by_default(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    assert ss.create(tmp_path).scan("n = 1").count() == 1
    assert capfd.readouterr() == ("", "")
