"""Stage the input of `make docs`: the repository's pages at their own paths, so that their links work, and two
generated pages: the commands, from the command line itself, and the list of decisions.

    .venv/bin/python scripts/pages.py stage     # before mkdocs
    .venv/bin/python scripts/pages.py finish    # after it: a page that would fetch from the web is an error
"""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
STAGED = REPOSITORY / ".cache" / "site"
PAGES = ("*.md", "docs/**/*.md", "engine/*.md", "hfile_like/*.md", "bench/results/*.md")
REFERENCES = {"skipstone": "docs/api.md", "skipstone.spark_adapter": "docs/api.md"}
MADE = ("docs/commands.md", "docs/decisions.md")
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
_FETCHED = re.compile(r"<(?:script|img|iframe)[^>]+src=[\"']?(?:https?:)?//|<link[^>]+rel=[\"']?stylesheet[^>]+//")


def pages() -> list[Path]:
    """Return the pages of the repository, relative to it."""
    return sorted({path.relative_to(REPOSITORY) for pattern in PAGES for path in REPOSITORY.glob(pattern)})


def links(page: Path, text: str) -> list[Path]:
    """Return the targets of a page's links within the repository, relative to it."""
    return [Path(_normal(page.parent / found.group(2))) for found in _LINK.finditer(text)]


def _normal(path: Path) -> str:
    return str((REPOSITORY / path).resolve().relative_to(REPOSITORY))


def _stage() -> None:
    shutil.rmtree(STAGED, ignore_errors=True)
    held = pages()
    known = {str(page) for page in held} | set(MADE)
    for page in held:
        target = STAGED / "pages" / page
        target.parent.mkdir(parents=True, exist_ok=True)
        text = _linked(page, (REPOSITORY / page).read_text(encoding="utf-8"), known)
        target.write_text(text + _missing(page, text), encoding="utf-8")
    for image in REPOSITORY.glob("bench/results/*.svg"):
        shutil.copy(image, STAGED / "pages" / "bench" / "results")
    for name, text in zip(MADE, (_commands(), _decisions()), strict=True):
        (STAGED / "pages" / name).write_text(text, encoding="utf-8")
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    for package in settings["tool"]["setuptools"]["packages"]:
        if package.partition(".")[0] == "skipstone":
            folder = Path(*package.split(".")[1:])
            (STAGED / "python" / "skipstone" / folder).mkdir(parents=True, exist_ok=True)
            for path in (REPOSITORY / folder).glob("*.py*"):
                shutil.copy(path, STAGED / "python" / "skipstone" / folder)


def _linked(page: Path, text: str, known: set[str]) -> str:
    """Return the text with links to pages only; other links (sources, folders) become their words."""

    def kept(found: re.Match[str]) -> str:
        return found.group(0) if _normal(page.parent / found.group(2)) in known else found.group(1)

    return _LINK.sub(kept, text)


def public_names(package: str) -> set[str]:
    """Return the public names of a package, except errors, which have a separate section."""
    names = importlib.import_module(package).__all__
    return {name for name in names if not name.endswith(("Error", "Warning", "__"))}


def documented_names(package: str, text: str) -> set[str]:
    """Return the public names of a package that a page of the reference contains; errors have their module."""
    return set(re.findall(rf"^::: {re.escape(package)}\.(\w+)$", text, re.MULTILINE)) - {"errors"}


def _missing(page: Path, text: str) -> str:
    """Return the names that a page of the reference lacks; they are appended."""
    packages = [package for package, reference in REFERENCES.items() if reference == page.as_posix()]
    missing = [(package, public_names(package) - documented_names(package, text)) for package in packages]
    return "".join(f"\n::: {package}.{name}\n" for package, names in missing for name in sorted(names))


def _decisions() -> str:
    lines = ["# Decisions", "", "What was chosen, in what situation, and what was measured.", ""]
    for path in sorted((REPOSITORY / "docs" / "decisions").glob("*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        lines.append(f"- [{title}](decisions/{path.name})")
    return "\n".join(lines) + "\n"


def _commands() -> str:
    """Return a page of every verb with its arguments and options, as in `--help`."""
    from skipstone.commands.app import VERBS, parser_of

    lines = ["# Commands", "", "As `skipstone COMMAND --help` has them. [A tour](command-line.md).", ""]
    for verb in VERBS:
        lines += _command(verb, parser_of(verb))
    return "\n".join(lines) + "\n"


def _command(verb: str, parser: argparse.ArgumentParser) -> list[str]:
    actions = [action for action in parser._actions if action.dest != "help"]
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    lines = [f"## {verb}", "", f"`{usage}`", "", parser.description or "", "", "| | |", "| --- | --- |"]
    for action in actions:
        metavar = action.metavar or (" / ".join(map(str, action.choices)) if action.choices else action.dest.upper())
        value = "" if action.nargs == 0 else f" {metavar}"
        name = f"{', '.join(action.option_strings)}{value}" if action.option_strings else str(metavar)
        lines.append(f"| `{name}` | {_cell((action.help or '').replace('%%', '%'))} |")
    return [*lines, ""]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# If a page is opened as a file, browsers start no worker, but search needs one: a hidden frame replaces it.
_FRAME_WORKER = """\
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = (this.inside = frame.contentWindow)
      const base = new URL(url, location.href)
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const load = source => new Promise((resolve, reject) => {
        const script = inside.document.createElement("script")
        Object.assign(script, { src: new URL(source, base), onload: resolve, onerror: reject })
        inside.document.body.appendChild(script)
      })
      const after = (last, each) => last.then(() => load(each))
      inside.importScripts = (...sources) => sources.reduce(after, Promise.resolve())
      this.loaded = load(base)
    }
    set onmessage(listener) { this.addEventListener("message", listener) }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }
    terminate() {}
  }
}
"""
_SHIM, _LOCAL_SHIM = "https://unpkg.com/iframe-worker/shim", "assets/javascripts/frame-worker.js"


def _finish() -> None:
    site = REPOSITORY / "site"
    (site / _LOCAL_SHIM).write_text(_FRAME_WORKER, encoding="utf-8")
    fetching = []
    for path in site.rglob("*.html"):
        up = "../" * (len(path.relative_to(site).parts) - 1)
        text = path.read_text(encoding="utf-8").replace(_SHIM, up + _LOCAL_SHIM)
        path.write_text(text, encoding="utf-8")
        if _FETCHED.search(text):
            fetching.append(str(path))
    if fetching:
        sys.exit(f"these pages fetch something when they are read: {fetching}")
    print(f"{len(list(site.rglob('*.html')))} pages in {site}")


if __name__ == "__main__":
    {"stage": _stage, "finish": _finish}[sys.argv[1]]()
