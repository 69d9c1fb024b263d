"""The page of `gcr inspect --html`: it needs no other file, no script and no network.

Its policy forbids all of these, so a name in another user's image can do nothing here either.
"""

from collections.abc import Iterator
from html import escape

from gcr.cli.picture import PARTS, Figure, Row, Section, facts, made, sections
from gcr.image.files.manifest import Manifest

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
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --text: #1b1f24; --quiet: #57606a; --line: #d9dee3; --track: #eceff2;
  --bar: #2f6fb2; --zero: #8c959f; --shared: #2f6fb2; --written: #b04a10; --changed: #7a4fb5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1318; --card: #171c22; --text: #e4e8ec; --quiet: #9aa5b1; --line: #2a323b; --track: #232a32;
    --bar: #5a9fe6; --zero: #7d8894; --shared: #5a9fe6; --written: #ef8a4c; --changed: #ab86e6;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { margin: 0; font-size: 1.6rem; overflow-wrap: anywhere; }
h2 { display: flex; justify-content: space-between; gap: 1rem; margin: 0 0 .75rem; font-size: 1.05rem; }
h2 data { color: var(--quiet); font-weight: normal; }
header p { margin: .2rem 0 0; color: var(--quiet); overflow-wrap: anywhere; }
header .simulated { display: inline-block; padding: 0 .5rem; border: 1px solid var(--written); border-radius: .25rem;
  color: var(--written); font-weight: 600; }
section { margin-top: 1rem; padding: 1rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; }
ul { margin: 0; padding: 0; list-style: none; }
li { display: grid; grid-template-columns: 14rem 1fr 4.5rem 5.5rem; gap: 0 1rem; align-items: center;
  padding: .2rem 0; }
li .name { overflow-wrap: anywhere; }
data { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
li .aside { color: var(--quiet); }
.track { display: flex; height: .8rem; background: var(--track); border-radius: .2rem; overflow: hidden; }
.track i { background: var(--bar); }
.zero { --bar: var(--zero); } .shared, .repeated { --bar: var(--shared); }
.written { --bar: var(--written); } .changed { --bar: var(--changed); }
.whole { height: 1.6rem; margin-bottom: .75rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; margin: 0; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  li { grid-template-columns: 1fr auto 5.5rem; gap: .15rem .75rem; padding: .35rem 0; }
  li .name { grid-column: 1; }
  li .aside { grid-column: 2; } li .amount { grid-column: 3; }
  li .track { grid-column: 1 / -1; grid-row: 2; }
}
"""


def as_page(manifest: Manifest, repeated: int) -> str:
    """HTML."""
    title = escape(f"gcr: image {manifest.name}")
    return _PAGE.format(title=title, style=_STYLE, body="\n".join(_body(manifest, repeated)))


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
