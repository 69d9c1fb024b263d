"""`gcr backends`: which vendors gcr can serve here."""

from collections.abc import Sequence
from typing import Any

import click
from msgspec import to_builtins

from gcr.cli import text
from gcr.cli.options import Options, common_options, examples
from gcr.cli.output import print_json, print_text, success


@click.command("backends", epilog=examples("gcr backends", "gcr backends --json", "gcr --backend nvidia backends"))
@common_options
@click.pass_obj
def command(options: Options) -> None:
    """List backends, where each comes from, and what works here with it. Broken plugins are listed too."""
    rows = _found(options.backend)
    if options.json:
        print_json(success("backends", {"backends": rows}))
    else:
        print_text(_render(rows))


def _found(wanted: str | None) -> list[dict[str, Any]]:
    from gcr.cli import vendors

    plugins, backends = vendors.chosen(wanted)
    working = [
        {
            "name": backend.name,
            "origin": plugins.found[backend.name].origin,
            "capabilities": [to_builtins(each) for each in vendors.capabilities(backend)],
            "broken": None,
        }
        for backend in backends
    ]
    broken = [
        {"name": each.name, "origin": each.origin, "capabilities": [], "broken": each.error}
        for each in plugins.broken
        if wanted is None
    ]
    return working + broken


def _render(backends: Sequence[dict[str, Any]]) -> str:
    if not backends:
        return "no backends: pip install 'gpu-cr[nvidia]'"
    return "\n".join(line for backend in backends for line in _lines(backend))


def _lines(backend: dict[str, Any]) -> list[str]:
    from gcr.backend import Capability
    from gcr.cli.causes import causes_among

    head = f"{backend['name']}  ({backend['origin']})"
    if backend["broken"]:
        return [head, f"  broken: {backend['broken']}"]
    after = causes_among(Capability(each["name"], each["ok"], each["evidence"]) for each in backend["capabilities"])
    return [head, text.columns([_cells(each, after.get(each["name"])) for each in backend["capabilities"]])]


def _cells(capability: dict[str, Any], cause: str | None) -> tuple[str, ...]:
    if cause:
        return ("  unknown", capability["name"], f"after {cause}")
    return ("  yes" if capability["ok"] else "  no", capability["name"], capability["evidence"])
