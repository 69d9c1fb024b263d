"""The page of `gcr inspect --html`: it needs no other file, no script and no network.

Its policy forbids all of these, so a name in another user's image can do nothing here either.
"""

from collections.abc import Iterator
from html import escape

from gcr.cli.picture import PARTS, Figure, Picture, Row, Section
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


def as_page(picture: Picture) -> str:
    """HTML."""
    title = escape(f"gcr: {picture.kind} {picture.name}")
    return _PAGE.format(title=title, style=STYLE + _STYLE, body="\n".join(_body(picture)))


def _body(picture: Picture) -> Iterator[str]:
    yield f"<header><h1>{escape(picture.name)}</h1><p>{escape(picture.about)}</p>"
    yield '<p class="simulated">SIMULATED device</p></header>' if picture.is_simulated else "</header>"
    for section in picture.sections:
        yield from _section(section)
    yield '<section id="facts"><h2>Facts</h2><dl>'
    yield from (f"<dt>{escape(name)}</dt><dd>{escape(what)}</dd>" for name, what in picture.facts)
    yield "</dl></section>"


def _section(section: Section) -> Iterator[str]:
    name = escape(section.name)
    yield f'<section id="{name.lower()}"><h2>{name} {_data(section.total, "total")}</h2>'
    if section.note:
        yield f"<p>{escape(section.note)}</p>"
    if section.is_whole and (parts := [row for row in section.rows if row.kind in PARTS]):
        yield f'<div class="track whole">{"".join(map(_bar, parts))}</div>'
    yield "<ul>"
    yield from map(_row, section.rows)
    yield "</ul></section>"


def _row(row: Row) -> str:
    between = "" if row.between is None else _data(row.between, "between")
    figures = _data(row.aside, "aside") + between + _data(row.amount, "amount")
    bar, wide = f'<span class="track">{_bar(row)}</span>', ' class="three"' if between else ""
    return f'<li{wide}><span class="name">{escape(row.name)}</span>{bar}{figures}</li>'


def _bar(row: Row) -> str:
    """Returns a bar, or two."""
    first = _part(row.kind, row.begin, row.end, row.whole or 1, row.begin)
    return first if row.rest is None else first + _part("", row.end, row.rest, row.whole or 1, 0)


def _part(kind: str, begin: float, end: float, whole: float, gap: float) -> str:
    """Returns a bar, at least two pixels wide if there is anything to show. `gap`: before it."""
    margin, width = 100 * gap / whole, 100 * (end - begin) / whole
    least = "2px" if width else "0"
    return f'<i class="{kind}" style="margin-left:{margin:.4f}%;width:{width:.4f}%;min-width:{least}"></i>'


def _data(figure: Figure, kind: str) -> str:
    return f'<data class="{kind}" value="{figure.value}">{escape(figure.text)}</data>'
