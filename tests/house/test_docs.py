"""The examples of the pages run unchanged, in their order; links and names in pages and docstrings exist."""

from __future__ import annotations

import ast
import datetime as dt
import functools
import importlib.util
import pkgutil
import posixpath
import re
import zipfile
from pathlib import Path
from types import ModuleType

import log_lakes
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import only_in_test_all
from lake_strategies import make_file, make_lake
from seaweed_server import Server
from skipstone.engine.storage import open_storage

ROOT = Path(ss.__file__).resolve().parent
FILES, ROWS = 12, 1_000
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _blocks(page: str, at_least: int) -> list[str]:
    blocks = CODE.findall((ROOT / page).read_text(encoding="utf-8"))
    assert len(blocks) >= at_least
    return blocks


def _run(blocks: list[str], page: str, names: dict[str, object]) -> dict[str, object]:
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names


PATTERNS = ("*.md", "docs/**/*.md", "engine/*.md", "hfile_like/*.md")
PAGES = sorted(path.relative_to(ROOT).as_posix() for pattern in PATTERNS for path in ROOT.glob(pattern))
ROOMS = ("engine/", "bloom/", "hfile_like/", "serve/", "spark_adapter/")  # in commands/ a file is a verb
MADE = ("docs/commands.md", "docs/decisions.md")  # by `make docs`


def _inside(page: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


@functools.cache
def _modules() -> list[str]:
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    paths = [*ROOT.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]
    return [path.relative_to(ROOT).as_posix() for path in paths]


@pytest.mark.parametrize("page", PAGES)
def test_links_and_files_of_a_page_exist(page: str) -> None:
    """Links to files, and names of our files in backticks, which may begin at any folder."""
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    links = [link for link in links if _inside(page, link) not in MADE]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []
    named = re.findall(r"`([\w/]+/\w+\.py)`", text)
    assert [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in _modules())] == []


PACKAGES = sorted({path.rpartition("/")[0] for path in _modules() if path.startswith(ROOMS) and "/" in path})


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_lists_its_modules(package: str) -> None:
    """Its docstring names each module and folder, and every file that a module names exists."""
    front = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))) or ""
    inside = [path.removeprefix(f"{package}/").split("/") for path in _modules() if path.startswith(f"{package}/")]
    names = {parts[0].removesuffix(".py") for parts in inside if not parts[0].startswith(("__init__", "kernels_"))}
    assert [name for name in sorted(names) if not re.search(rf"(?<![a-z_]){name}(?![a-z_])", front)] == []
    for path in (path for path in _modules() if path.rpartition("/")[0] == package):
        named = re.findall(r"`([\w/]+\.py)", (ROOT / path).read_text(encoding="utf-8"))
        assert [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in _modules())] == [], path


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """lake/events, as the pages suppose it, in the current folder."""
    root = tmp_path / "lake" / "events"
    monkeypatch.chdir(tmp_path)
    for number in range(FILES):
        ids = [(number * ROWS + i) * 7_919 % (FILES * ROWS) for i in range(ROWS)]
        rows = {
            "ts": [dt.datetime(2024, 1, 1 + number, tzinfo=dt.UTC) + dt.timedelta(minutes=i) for i in range(ROWS)],
            "day": [f"2024-01-{1 + number:02}"] * ROWS,
            "user_id": [f"u-{n}" for n in ids],
            "user": [f"u{n}" for n in ids],
            "action": [("view", "buy", "refund")[n % 3] for n in ids],
            "amount": [n / 7 for n in ids],
        }
        make_file(root, f"part-{number:02}.parquet", rows, row_group_size=ROWS // 4)
    return root


def test_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _run([block for block in _blocks("docs/api.md", 7) if "spark" not in block], "docs/api.md", {})


def test_readme(lake: Path) -> None:
    pytest.importorskip("polars")
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 600
    python = [block for block in _blocks("README.md", 3) if "spark" not in block]
    names = _run(python, "README.md", {})
    assert names["rows"].num_rows == 1  # type: ignore[attr-defined]


ARROW_RECIPES = ["DuckDB: whole queries", "DuckDB: a dataset", "polars", "pandas", "pyarrow"]
ARROW_RECIPES += ["Anything that accepts Arrow"]


def _sections(page: str) -> dict[str, list[str]]:
    """The Python blocks of a page by heading."""
    sections = re.split(r"^## (.*)$", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {title: CODE.findall(text) for title, text in zip(sections[::2], sections[1::2], strict=True)}


def _run_recipe(title: str, **names: object) -> dict[str, object]:
    blocks = _sections("docs/engines.md")[title]
    assert blocks
    return _run(blocks, "docs/engines.md", {"ss": ss, **names})


def test_every_recipe_is_run() -> None:
    assert set(_sections("docs/engines.md")) == {*ARROW_RECIPES, "Dask", "Ray"}


def test_engines(lake: Path) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    connection = duckdb.connect()
    connection.execute("CREATE TABLE users AS SELECT 'u-7' AS user_id, 'ch' AS country")
    names: dict[str, object] = {"duckdb": duckdb, "pl": polars, "pa": pa, "pc": pc, "table": ss.create(lake)}
    names["connection"] = connection
    for title in ARROW_RECIPES:
        names |= _run_recipe(title, **names)
    assert len(names["frame"]) == names["rows"].num_rows == 1  # type: ignore[arg-type, attr-defined]


def test_dask(lake: Path) -> None:
    dask = pytest.importorskip("dask")
    names = _run_recipe("Dask", table=ss.create(lake), dd=pytest.importorskip("dask.dataframe"))
    with dask.config.set(scheduler="processes", num_workers=1):  # another process gets the plans pickled
        assert len(names["frame"].compute()) == 1  # type: ignore[attr-defined]


@only_in_test_all  # it starts a cluster; by default test_dask has pickled plans
def test_ray(lake: Path) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    table = ss.create(lake)
    ray.init(num_cpus=1, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        names = _run_recipe("Ray", plans=[table.scan("user_id = 'u-7'"), table.scan("user_id = 'u-8'")], ray=ray)
        assert names["rows"].count() == 2  # type: ignore[attr-defined]
    finally:
        ray.shutdown()


def test_command_line(lake: Path, caplog: pytest.LogCaptureFixture) -> None:
    ss.create(lake)
    caplog.set_level("INFO", logger="skipstone")
    _run(_blocks("docs/command-line.md", 2), "docs/command-line.md", {"ss": ss})
    text = "\n".join(caplog.messages)  # and not the text, which is JSON next to Spark
    assert "where \"user_id\" = 'u-7': 12 files -> " in text


TABLE_FORMATS = "docs/table-formats.md"


def test_delta_and_iceberg(lake: Path, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    pytest.importorskip("pyiceberg")
    rows = pq.read_table(lake)
    iceberg_table = log_lakes.catalog(tmp_path / "warehouse").create_table("lake.events", schema=rows.schema)
    iceberg_table.append(rows)
    deltalake.convert_to_deltalake(str(lake))
    delta = _sections(TABLE_FORMATS)["Delta and Iceberg"]
    assert len(delta) == 3
    names = _run(delta[:2], TABLE_FORMATS, {"ss": ss})
    assert names["table"].scan("user = 'u7'").count() == 1  # type: ignore[attr-defined]
    names = _run(delta[2:], TABLE_FORMATS, {"ss": ss, "iceberg_table": iceberg_table})
    assert names["rows"].num_rows == 1  # type: ignore[attr-defined]


def test_hudi(lake: Path) -> None:
    for package in ("hudi", "fastavro"):
        pytest.importorskip(package)
    with zipfile.ZipFile(ROOT / "tests" / "lakes" / "hudi_tables" / "v6_trips_8i1u.zip") as file:
        file.extractall(lake.parent)
    (lake.parent / "v6_trips_8i1u").rename(lake.parent / "trips")
    blocks = _sections(TABLE_FORMATS)["Hudi"]
    assert len(blocks) == 4
    names = _run(blocks, TABLE_FORMATS, {})
    assert names["latest"].num_rows == 8  # type: ignore[attr-defined]
    assert names["changed"].count() == 1  # type: ignore[attr-defined]


# -- the site: `make docs` builds it, and is no part of these tests ---------------------------------------------------


def _site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "scripts" / "pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_shows_every_page_and_no_other() -> None:
    site = _site()
    nav = re.findall(r"^ +- (?:[^:]+: )(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    held = {page.as_posix() for page in site.pages()} | set(site.MADE)
    assert site.MADE == MADE
    assert sorted(nav) == sorted(set(nav))
    assert set(nav) - held == set()
    beside = ("docs/decisions/", "bench/results/")
    assert {page for page in held - set(nav) if not page.startswith(beside)} == set()


def test_the_reference_names_only_what_is_public() -> None:
    """`make docs` adds the other public names."""
    site = _site()
    for package, page in site.REFERENCES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        named = site.documented_names(package, text)
        assert named and named - site.public_names(package) == set()
        for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE):
            pkgutil.resolve_name(name)


def test_a_decision_is_a_short_page() -> None:
    pages = list((ROOT / "docs" / "decisions").glob("*.md"))
    assert {page.name: count for page in pages if (count := len(page.read_text().splitlines())) > 40} == {}


def test_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = _run(_blocks("docs/quickstart.md", 5), "docs/quickstart.md", {})
    assert names["rows"].num_rows == 1  # type: ignore[attr-defined]
    assert names["plan"].files().num_rows == 1  # type: ignore[attr-defined]
    assert names["newest"].num_rows == 100 and names["week"] == 70_000  # type: ignore[attr-defined]
    assert names["result"].added == ("late.parquet",)  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::skipstone.SkipstoneWarning")
def test_updating(lake: Path) -> None:
    ss.create(lake)
    _run(_blocks("docs/updating.md", 10), "docs/updating.md", {})


FLIGHTS = pa.table({"flight_id": [f"f-{i}" for i in range(100)], "carrier": ["AA", "UA"] * 50, "flight": range(100)})


def test_indexes(tmp_path: Path) -> None:
    table = ss.open(make_lake(tmp_path, [FLIGHTS]))
    _run(_blocks("docs/indexes.md", 1), "docs/indexes.md", {"table": table})
    assert sorted(table.indexes().column("kind").to_pylist()) == ["bloom", "ngram", "secondary", "stats"]


def test_object_stores(s3_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls on our server, with our places instead of those of the page."""
    pytest.importorskip("obstore")
    options = s3_server.options
    for name in ("endpoint_url", "aws_access_key_id", "aws_secret_access_key", "region"):
        monkeypatch.setenv(f"AWS_{name.removeprefix('aws_').upper()}", options[name])
    bucket, here = f"s3://{s3_server.bucket}/object-stores", str(tmp_path)
    places = {"s3://bucket": bucket, "s3://someone-elses": f"{bucket}/theirs", '"/': f'"{here}/'}
    make_file(tmp_path, "0.parquet", FLIGHTS)
    for lake in (f"{bucket}/lake/flights", f"{bucket}/theirs/lake", f"{here}/data/lake"):
        open_storage(lake).put("0.parquet", (tmp_path / "0.parquet").read_bytes())
    ss.create(f"{bucket}/theirs/lake", index_path=f"{here}/var/index/lake")
    ss.create(f"{here}/data/lake", index_path=f"{bucket}/index/lake")
    calls, as_options = _blocks("docs/object-stores.md", 2)
    for ours in places.items():
        calls = calls.replace(*ours)
    for call in calls.splitlines():
        assert _run([call], "docs/object-stores.md", {"ss": ss})["table"].scan("flight = 7").count() == 1  # type: ignore[attr-defined]
    assert set(_run([as_options], "docs/object-stores.md", {})["storage_options"]) == set(options)  # type: ignore[call-overload]


def test_functions_prune_or_are_tested_or_refused(lake: Path) -> None:
    text = (ROOT / "docs/predicates.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Functions at a glance\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\|[^|]*\| `([^|]+)` \| (prunes|tested|refused) \|$", section, re.MULTILINE)
    assert len(rows) > 15
    table = ss.create(lake)
    for where, outcome in rows:
        if outcome == "refused":
            with pytest.raises(ss.PredicateError):
                table.scan(where).count()
        else:
            plan = table.scan(where)
            assert (plan.files().num_rows < FILES) == (outcome == "prunes"), where
            plan.to_table()
