"""The page of `gcr inspect --html`: it needs no other file, no script and no network.

Its policy forbids all of these, so a name in another user's image can do nothing here either.
"""

from collections.abc import Iterator
from html import escape

from gcr.cli.picture import PARTS, Figure, Row, Section, facts, made, sections
from gcr.image.files.manifest import Manifest
from gcr.pagestyle import STYLE

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
_STYLE = """
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; margin: 0; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
"""


def as_page(manifest: Manifest, repeated: int) -> str:
    """HTML."""
    title = escape(f"gcr: image {manifest.name}")
    return _PAGE.format(title=title, style=STYLE + _STYLE, body="\n".join(_body(manifest, repeated)))


def _body(manifest: Manifest, repeated: int) -> Iterator[str]:
    source = manifest.source
    yield f"<header><h1>{escape(manifest.name)}</h1><p>of job {escape(source.job)}, {escape(made(manifest))}</p>"
    yield '<p class="simulated">SIMULATED device</p></header>' if source.simulated else "</header>"
    for section in sections(manifest, repeated):
        yield from _section(section)
    yield '<section id="facts"><h2>Facts</h2><dl>'
    yield from (f"<dt>{escape(name)}</dt><dd>{escape(what)}</dd>" for name, what in facts(manifest))
    yield "</dl></section>"


def _section(section: Section) -> Iterator[str]:
    name = escape(section.name)
    yield f'<section id="{name.lower()}"><h2>{name} {_data(section.total, "total")}</h2>'
    if parts := [row for row in section.rows if row.kind in PARTS]:
        yield f'<div class="track whole">{"".join(map(_bar, parts))}</div>'
    yield "<ul>"
    yield from map(_row, section.rows)
    yield "</ul></section>"


def _row(row: Row) -> str:
    figures = _data(row.aside, "aside") + _data(row.amount, "amount")
    return f'<li><span class="name">{escape(row.name)}</span><span class="track">{_bar(row)}</span>{figures}</li>'


def _bar(row: Row) -> str:
    """Returns a bar, at least two pixels wide if there is anything to show."""
    whole = row.whole or 1
    begin, width = 100 * row.begin / whole, 100 * (row.end - row.begin) / whole
    least = "2px" if width else "0"
    return f'<i class="{row.kind}" style="margin-left:{begin:.4f}%;width:{width:.4f}%;min-width:{least}"></i>'


def _data(figure: Figure, kind: str) -> str:
    return f'<data class="{kind}" value="{figure.value}">{escape(figure.text)}</data>'
