"""HTML: small pages for notebooks, whose colours they follow, and whole documents for reports. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_RANGES_MAX = 64
# JupyterLab and VS Code say their colours by variables. Elsewhere the colour of the text around counts: many a notebook
# stays light where the browser prefers dark.
_STYLE = """<style>
.skipstone{color:var(--jp-content-font-color1,var(--vscode-editor-foreground,inherit));
--dim:var(--jp-content-font-color2,var(--vscode-descriptionForeground,color-mix(in srgb,currentColor 65%,transparent)));
--line:var(--jp-border-color2,var(--vscode-panel-border,color-mix(in srgb,currentColor 25%,transparent)));
--bar:#2f81f7;max-width:72em}
.skipstone table{border-collapse:collapse;margin:.4em 0;color:inherit}
.skipstone th,.skipstone td{text-align:left;padding:.15em .8em .15em 0;border-bottom:1px solid var(--line);
background:none;white-space:pre-wrap}
.skipstone .number{text-align:right}
.skipstone .dim{color:var(--dim)}
</style>"""


def page(*parts: str) -> str:
    """One result: pieces of HTML, below each other."""
    return f'<div class="skipstone">{_STYLE}{"".join(parts)}</div>'


def escape(text: str) -> str:
    """Text as HTML, in attributes, too."""
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#x27;")):
        text = text.replace(sign, entity)
    return text


def heading(title: str, rest: str = "") -> str:
    """Return a title, and more about it in a fainter colour."""
    return f'<div><b>{escape(title)}</b> <span class="dim">{escape(rest)}</span></div>'


def lines(texts: Iterable[str], *, dim: bool = False) -> str:
    """Texts below each other, their spaces kept; nothing for none."""
    text = "\n".join(texts)
    style = "white-space:pre-wrap;margin:.4em 0"
    return f'<div style="{style}"{" class=dim" if dim else ""}>{escape(text)}</div>' if text else ""


def grid(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[str] = ()) -> str:
    """Return texts under headings; the columns in `numbers` are aligned to the right."""
    aligned = set(numbers)
    classes = [' class="number"' if name in aligned else "" for name in headings]

    def cells(tag: str, texts: Sequence[str]) -> str:
        pairs = zip(classes, texts, strict=True)
        return "".join(f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, text in pairs)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', headings)}</tr></thead><tbody>{body}</tbody></table>"


def ranges(starts: Sequence[float], ends: Sequence[float]) -> str:
    """Return one line per range within 0 to 1; if there are many, neighbours share a line."""
    count = len(starts)
    lines_shown = min(count, _RANGES_MAX)
    drawn = []
    for line in range(lines_shown):
        first, stop = line * count // lines_shown, (line + 1) * count // lines_shown
        start, end = min(starts[first:stop]), max(ends[first:stop])
        width = max(100 * (end - start), 0.3)
        drawn.append(f'<rect x="{100 * start:.2f}" y="{line}" width="{width:.2f}" height=".8"/>')
    picture = f'<svg viewBox="0 0 100 {lines_shown}" preserveAspectRatio="none" width="100%" '
    picture += f'height="{6 * lines_shown}" style="fill:var(--bar)">{"".join(drawn)}</svg>'
    return picture if drawn else ""


_DOCUMENT_STYLE = (
    "<style>:root{color-scheme:light dark}body{margin:1.5rem auto;padding:0 1rem;max-width:72em;"
    "font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:2rem 0 .4rem}</style>"
)


def document(title: str, *parts: str) -> str:
    """Return a whole page that needs no network: its policy lets it load nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title>{_DOCUMENT_STYLE}"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{page(*parts)}</body></html>\n'


def section(title: str, *parts: str) -> str:
    """Return a part of a document under its title; nothing if it has no parts."""
    text = "".join(parts)
    return f"<section><h2>{escape(title)}</h2>{text}</section>" if text else ""
