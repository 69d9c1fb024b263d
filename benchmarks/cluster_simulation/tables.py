"""Writes the tables of docs/cluster-scale.md from the results of a study."""

from typing import Any

Rows = list[dict[str, Any]]


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Returns each table by name, in Markdown."""
    rows: Rows = found["rows"]
    return {
        "growth": _growth(rows),
        "ways": _ways(rows),
        "stragglers": _given_up(rows, "stragglers", lambda x: f"{x * 100:g} %"),
        "deaths": _given_up(rows, "deaths", lambda x: f"{x:g}"),
        "cut_s": _deadlines(rows),
        "thin": _thin(rows),
        "cost": _cost(found["cost"]),
    }


def _table(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])


def _row(rows: Rows, series: str, nodes: int) -> dict[str, Any] | None:
    return next((row for row in rows if row["series"] == series and row["nodes"] == nodes), None)


def _growth(rows: Rows) -> str:
    head = ["nodes", "admitted", "still", "suspended: median, longest", "a program stands still", "messages a node"]
    lines, before = [], 0.0
    for nodes in (10, 100, 1000, 10_000):
        row = _row(rows, "growth, 5us", nodes)
        if row is None:
            continue
        more = f" (+{row['time_s'] - before:.2f})" if before else ""
        before = row["time_s"]
        times = f"{row['time_s']:.2f}{more}, {row['time_most_s']:.2f} s"
        admitted, still, stood = (f"{row[name]:.2f} s" for name in ("admitted_s", "still_s", "stood_s"))
        lines.append([f"{nodes:,}", admitted, still, times, stood, f"{row['messages_a_node']:.1f}"])
    return _table(head, lines)


_WAYS = {
    "as gcr is: pauses double": "growth",
    "each second": "each second",
    "pauses double, √N relays": "relays",
}


def _ways(rows: Rows) -> str:
    sizes = (100, 300, 1000, 3000, 10_000)
    lines = []
    for cost, told in (("5us", "5 µs"), ("100us", "100 µs"), ("1ms", "1 ms")):
        for name, series in _WAYS.items():
            found = [_row(rows, f"{series}, {cost}", nodes) for nodes in sizes]
            if any(found):
                lines.append([told, name, *(_ended(row) for row in found)])
    return _table(["a message", "told again", *(f"{nodes:,}" for nodes in sizes)], lines)


def _ended(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not simulated"
    time = f"{row['time_s']:.1f} s, {row['messages_a_node']:.1f}"
    return f"**given up** after {time}" if row["given_up"] > 0.5 else time


def _given_up(rows: Rows, kind: str, told: Any) -> str:
    sizes = (100, 1000, 10_000)
    series = {nodes: [row for row in rows if row["series"] == f"{kind}, {nodes}"] for nodes in sizes}
    lines = []
    for number, first in enumerate(series[100]):
        cells = [_share(series[nodes][number]) for nodes in sizes]
        lines.append([told(first["x"]), *cells])
    heads = [f"{nodes:,} nodes, {series[nodes][0]['cuts']} cuts each" for nodes in sizes]
    return _table([{"stragglers": "stragglers", "deaths": "deaths a node and hour"}[kind], *heads], lines)


def _share(row: dict[str, Any]) -> str:
    """Returns the share of cuts that were not done, and the median and the longest time."""
    told = f"{row['given_up'] * 100:.1f} %; {row['time_s']:.1f}, {row['time_most_s']:.0f} s"
    unsettled = row["outcomes"].get("unsettled", 0)
    return f"{told}; {unsettled} unsettled" if unsettled else told


def _deadlines(rows: Rows) -> str:
    cells: dict[float, list[str]] = {}
    for row in rows:
        if row["series"].startswith("cut_s"):
            cells.setdefault(row["x"], []).append(f"{row['given_up'] * 100:.1f} %")
    lines = [[f"{cut:g} s", *shares] for cut, shares in cells.items()]
    return _table(["`cut_s`", "no stragglers", "1 %", "10 %"], lines)


def _thin(rows: Rows) -> str:
    cells: dict[float, dict[str, str]] = {}
    for row in rows:
        if row["series"].startswith("thin"):
            cells.setdefault(row["x"], {})[row["series"].split()[1]] = f"{row['time_s']:.2f} s"
    lines = [[f"{share * 100:g} %", *found.values()] for share, found in cells.items()]
    return _table(["nodes that are far away", "50 ms away", "300 ms away"], lines)


def _cost(cost: dict[str, Any]) -> str:
    head = ["nodes", "an event", "the slowest event", "a cut given up, a node", "with threads, a message"]
    lines = []
    for decided in cost["decided"]:
        carried = cost["carried"].get(str(decided["nodes"]))
        words = [f"{decided[name] * 1e6:,.1f} µs" for name in ("word", "slowest", "undone")]
        threads = "not measured" if carried is None else f"{carried * 1e6:.0f} µs"
        lines.append([f"{decided['nodes']:,}", *words, threads])
    return _table(head, lines)
