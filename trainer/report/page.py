"""A report as one HTML file: pictures embedded, no network, light and dark."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

STYLE = """
:root { color-scheme: light dark; --line: #8884; --accent: #1f77b4; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1440px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0.2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 0.6rem; }
p.note { opacity: 0.75; margin: 0.3rem 0 1rem; }
p.emulated { border-left: 4px solid #ff7f0e; padding: 0.3rem 0.8rem; background: #ff7f0e1a; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.82rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.45rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; white-space: pre; }
tr.best td { font-weight: 600; color: var(--accent); }
img { max-width: min(100%, 1100px); background: white; border: 1px solid var(--line); border-radius: 4px; }
figure { margin: 0 0 1.2rem; } figcaption { font-weight: 600; margin: 0.4rem 0; }
details { margin: 1rem 0; } pre { overflow-x: auto; font-size: 0.8rem; }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body>\n<h1>{html.escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str, kind: str = "note") -> str:
    return f'<p class="{kind}">{html.escape(text)}</p>'


def picture(path: Path, caption: str) -> str:
    """A PNG, embedded."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    text = html.escape(caption)
    return f'<figure><figcaption>{text}</figcaption><img alt="{text}" src="data:image/png;base64,{data}"></figure>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], best: int | None = None) -> str:
    """A table; `best`: the row that stands out."""
    head = "".join(f"<th>{html.escape(text)}</th>" for text in headings)
    lines = [
        f"<tr{' class=best' if number == best else ''}>" + "".join(f"<td>{html.escape(text)}</td>" for text in row)
        for number, row in enumerate(rows)
    ]
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def pairs(values: Mapping[str, str]) -> str:
    """Names and values, one a row."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in values.items()
    )
    return f"<table><tbody>{rows}</tbody></table>"


def folded(summary: str, text: str) -> str:
    """Text that opens on a click."""
    return f"<details><summary>{html.escape(summary)}</summary><pre>{html.escape(text)}</pre></details>"
