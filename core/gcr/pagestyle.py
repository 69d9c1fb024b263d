"""The style sheet that gcr's HTML pages share: light and dark colours, cards, and rows with a bar."""

STYLE = """
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
section p { margin: -.4rem 0 .75rem; color: var(--quiet); font-size: .9rem; }
section { margin-top: 1rem; padding: 1rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; }
ul { margin: 0; padding: 0; list-style: none; }
li { display: grid; grid-template-columns: 14rem 1fr 5.5rem 5.5rem; gap: 0 1rem; align-items: center;
  padding: .2rem 0; }
li.three { grid-template-columns: 10rem 1fr 5.5rem 5.5rem 5.5rem; }
li .name { overflow-wrap: anywhere; }
data { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
li .aside, li .between { color: var(--quiet); }
.track { display: flex; height: .8rem; background: var(--track); border-radius: .2rem; overflow: hidden; }
.track i { background: var(--bar); }
.zero { --bar: var(--zero); } .shared, .repeated { --bar: var(--shared); }
.written { --bar: var(--written); } .changed { --bar: var(--changed); }
.whole { height: 1.6rem; margin-bottom: .75rem; }
@media (max-width: 40rem) {
  li { grid-template-columns: 1fr auto 5.5rem; gap: .15rem .75rem; padding: .35rem 0; }
  li .name { grid-column: 1; }
  li .aside { grid-column: 2; } li .amount { grid-column: 3; }
  li .track { grid-column: 1 / -1; grid-row: 2; }
  li.three { grid-template-columns: 1fr 1fr 1fr; }
  li.three .name { grid-column: 1 / -1; } li.three data { grid-row: 2; } li.three .track { grid-row: 3; }
  li.three .aside { grid-column: 1; } li.three .between { grid-column: 2; }
}
"""
