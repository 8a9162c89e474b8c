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


class Raw(str):
    """HTML that `grid` takes as it is."""


def page(*parts: str) -> str:
    """One result: pieces of HTML, below each other."""
    return f'<div class="skipstone">{_STYLE}{"".join(parts)}</div>'


def escape(text: str) -> str:
    """Text as HTML, in attributes, too."""
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#x27;")):
        text = text.replace(sign, entity)
    return text


def bar(name: str, done: int, total: int | None, rest: str) -> str:
    """How far some work has come."""
    share = f' value="{done}" max="{total}"' if total else ""
    return f'<div>{escape(name)} <progress{share}></progress> <span class="dim">{escape(rest)}</span></div>'


def heading(title: str, rest: str = "") -> str:
    """What it is, and in a fainter colour more about it."""
    return f'<div><b>{escape(title)}</b> <span class="dim">{escape(rest)}</span></div>'


def lines(texts: Iterable[str], *, dim: bool = False) -> str:
    """Texts below each other, their spaces kept; nothing for none."""
    text = "\n".join(texts)
    style = "white-space:pre-wrap;margin:.4em 0"
    return f'<div style="{style}"{" class=dim" if dim else ""}>{escape(text)}</div>' if text else ""


def grid(
    headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[str] = (), *, has_labels: bool = False
) -> str:
    """Texts under headings; the columns in `numbers` are aligned to the right. `has_labels`: each cell says its own
    heading, for a style that shows rows as lists."""
    aligned = set(numbers)
    classes = [' class="number"' if name in aligned else "" for name in headings]
    labels = [f' data-label="{escape(name)}"' if has_labels and name else "" for name in headings]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(classes, headings, strict=True))
    body = "".join(f"<tr>{''.join(map(_cell, classes, labels, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(kind: str, label: str, text: str) -> str:
    if isinstance(text, Raw):
        return f'<td class="meters"{label}>{text}</td>'
    return f"<td{kind}{label}>{escape(text)}</td>"


def ranges(starts: Sequence[float], ends: Sequence[float]) -> str:
    """A line for each range within 0 to 1, below each other; neighbours share a line where there are many."""
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


_DOCUMENT_STYLE = """<style>
:root{color-scheme:light dark;--ink:#1f2328;--dim:#59636e;--line:#d1d9e0;--bar:#2f6fde;--soft:#e6edf8;--paper:#fff;
--card:#f6f8fa;--warm:#c2570c}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9198a1;--line:#3d444d;--bar:#5b9bff;--soft:#1d2a3f;
--paper:#0d1117;--card:#151b23;--warm:#f0883e}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:68rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .2rem;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2.4rem 0 .6rem;padding-bottom:.3rem;border-bottom:1px solid var(--line)}
h3{font-size:.95rem;margin:1.2rem 0 .3rem;overflow-wrap:anywhere}
p{margin:.4rem 0;max-width:46rem;overflow-wrap:anywhere}
.dim{color:var(--dim)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.6rem;margin:1rem 0}
.cards div{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem}
.cards b{display:block;font-size:1.25rem;font-weight:600;line-height:1.3;overflow-wrap:anywhere}
.cards span{color:var(--dim);font-size:.82rem}
.wide{overflow-x:auto;margin:.5rem 0}
table{border-collapse:collapse;width:100%;font-size:.88rem}
th,td{text-align:left;padding:.32rem .9rem .32rem 0;border-bottom:1px solid var(--line);vertical-align:top;
overflow-wrap:anywhere;unicode-bidi:isolate}
th{color:var(--dim);font-weight:500;white-space:nowrap}
td:not(.number){min-width:7.5rem}
td.number{overflow-wrap:normal}
th:last-child,td:last-child{padding-right:0}
.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.meter{display:inline-block;width:100%;max-width:16rem;min-width:5rem;height:.62rem;border-radius:.31rem;background:var(--soft);
vertical-align:middle;overflow:hidden}
.meter i{display:block;height:100%;background:var(--bar)}
.meter.short i{background:var(--warm)}
.wide:focus-visible{outline:2px solid var(--bar);outline-offset:3px}
@media (max-width:40rem){.wide table,.wide tbody{display:block}
.wide thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.wide tr{display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;padding:.5rem 0;border-bottom:1px solid var(--line)}
.wide td,.wide td:not(.number){display:flex;gap:.4rem;padding:0;border:0;min-width:0}
.wide td:first-child,.wide td.meters{flex:1 0 100%}
.wide td:first-child{font-weight:600}
.wide td::before{content:attr(data-label);color:var(--dim);font-weight:400;flex:none}
.wide td.meters::before{content:none}.meter{max-width:none}}
svg{display:block;width:100%;fill:var(--bar)}
svg .less{fill:var(--warm)}
svg .axis{fill:var(--line)}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(17rem,1fr));gap:.8rem 1.6rem}
.columns>div{min-width:0}
.columns svg{background:var(--card);border-radius:.25rem;margin:.25rem 0;max-height:6.5rem}
.ends{display:flex;justify-content:space-between;gap:1rem;font-size:.78rem;color:var(--dim)}
.ends span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
code{font:.85em ui-monospace,SFMono-Regular,Menlo,monospace;background:var(--card);padding:.1em .3em;
border-radius:.25rem;overflow-wrap:anywhere}
</style>"""


def document(title: str, *parts: str) -> str:
    """A whole page that needs no network: its policy lets it load nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><meta name="referrer" content="no-referrer">'
    )
    head += f"<title>{escape(title)}</title>{_DOCUMENT_STYLE}"
    body = f"<main>{''.join(parts)}</main>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def section(title: str, *parts: str) -> str:
    """A part of a document under its title; nothing where it has no parts."""
    text = "".join(parts)
    return f"<section><h2>{escape(title)}</h2>{text}</section>" if text else ""


def paragraph(text: str, *, dim: bool = False) -> str:
    """A sentence or a few."""
    return f"<p{' class=dim' if dim else ''}>{escape(text)}</p>" if text else ""


def cards(facts: Iterable[tuple[str, str]]) -> str:
    """Figures beside each other: (figure, what it counts)."""
    drawn = (f"<div><b>{escape(figure)}</b><span>{escape(name)}</span></div>" for figure, name in facts)
    return f'<div class="cards">{"".join(drawn)}</div>'


def wide_grid(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[str] = ()) -> str:
    """A `grid` that scrolls where it is too wide, by arrow keys as well, and on a phone shows its rows as lists."""
    table = grid(headings, rows, numbers, has_labels=True)
    return f'<div class="wide" tabindex="0" role="group" aria-label="{escape(headings[0])}">{table}</div>'


def meter(share: float, *, is_short: bool = False) -> Raw:
    """A bar that is filled to a share from 0 to 1."""
    width = 100 * min(max(share, 0.0), 1.0)
    return Raw(f'<span class="meter{" short" if is_short else ""}"><i style="width:{width:.1f}%"></i></span>')


def columns_chart(ups: Sequence[float], downs: Sequence[float], titles: Sequence[str]) -> str:
    """Bars side by side: those upwards, and below them those downwards."""
    if not ups:
        return ""
    top, bottom = max([*ups, 0.0]), max([*downs, 0.0])
    scale = 96 / ((top + bottom) or 1.0)
    middle, step = 2 + top * scale, 1000 / max(len(ups), 12)
    drawn = []
    for number, (up, down, title) in enumerate(zip(ups, downs, titles, strict=True)):
        x, width = number * step + step * 0.1, step * 0.8
        label = f"<title>{escape(title)}</title>"
        for kind, y, height in (("", middle - up * scale, up * scale), (' class="less"', middle, down * scale)):
            if height > 0:
                shown = max(height, 1.0)
                y = y if kind else middle - shown
                where = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{shown:.2f}"'
                drawn.append(f"<rect{kind} {where}>{label}</rect>")
    axis = f'<rect class="axis" x="0" y="{middle:.2f}" width="1000" height=".6"/>'
    return f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" height="110">{axis}{"".join(drawn)}</svg>'
