"""The text of `gcr doctor`: whether gcr works here, the missing parts, whether that matters, and the next steps.

A failed check is shown with its remedy. A check that only repeats an earlier finding is unknown. Good checks are
counted. A vendor without a device that the user did not name gets one line. `-v` lists every check instead.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType

from msgspec.structs import replace

from gcr import units
from gcr.cli import text
from gcr.cli.causes import causes
from gcr.cli.checks import Check, Findings, Vendor
from gcr.devices import is_simulated

_MARK = 9  # columns
_NONE: Mapping[str, str] = MappingProxyType({})


def page(
    findings: Findings, *, simulators: Sequence[str], demos: Mapping[str, str], asked: str | None, every: bool
) -> str:
    """`simulators`: vendors of which a simulated device can be had; `asked`: the vendor named by --backend.

    `demos`: by vendor the command that shows a demonstration on its simulated device, best first.
    """
    if every:
        groups = [_rows(findings.checks(), _waiting(findings.vendors))]
    else:
        groups = [_host(findings.host), *_vendors(findings.vendors), _rows(findings.plugins)]
    blocks = [_verdict(findings), *groups, _next(findings, simulators, demos, asked)]
    closing = [] if every else ["gcr doctor -v lists every check."]
    return "\n\n".join(filter(None, ["\n".join(filter(None, block)) for block in [*blocks, closing]]))


# ---- is it fit ----------------------------------------------------------------------------------------------------


def _verdict(findings: Findings) -> list[str]:
    missing = [*_needed(findings.host), *_needed(findings.plugins)]
    for vendor in findings.vendors:
        missing += [f"{vendor.name}: {name}" for name in _needed(_found(vendor))]
    if missing:
        return [f"Not ready. Missing: {', '.join(missing)}"]
    devices = [device for each in findings.vendors for device in each.devices]
    if not devices:
        return [
            "gcr works on this machine, but there is no GPU or NPU here that it could use.",
            "Nothing is wrong with that: a SIMULATED device is enough to try gcr.",
        ]
    simulated = "SIMULATED " if any(is_simulated(each.name) for each in devices) else ""
    return [f"Ready: {text.plural(len(devices), simulated + 'device')}."]


def _needed(checks: Sequence[Check]) -> list[str]:
    return [check.name for check in _failed(checks) if check.needed]


def _next(findings: Findings, simulators: Sequence[str], demos: Mapping[str, str], asked: str | None) -> list[str]:
    """Returns the next steps, as commands."""
    present = [each for each in findings.vendors if each.devices]
    steps: list[tuple[str, str]] = []
    if findings.missing():
        again = f"gcr --backend {asked} doctor" if asked else "gcr doctor"
        steps.append((again, "once what is marked MISSING is mended"))
    elif present:
        then = "gcr checkpoint llm" if _saves_all(present[0]) else "gcr checkpoint --data-only llm"
        steps.append(("gcr run --name llm -- python serve.py", f"start a program under gcr; then: {then}"))
    if asked in simulators and not present:
        steps.append((f"gcr run --simulate {asked} -- CMD", "a program of yours on a SIMULATED device"))
    if not present and (demo := _demo(findings.vendors, demos)):
        steps.append((demo, "a program leaves a SIMULATED device and comes back; needs no GPU"))
    width = max((len(command) for command, _ in steps), default=0)
    return ["Next", *(f"  {command:<{width}}   {why}" for command, why in steps)] if steps else []


def _demo(vendors: Sequence[Vendor], demos: Mapping[str, str]) -> str | None:
    """The first that can be shown: its vendor's bindings are there, or it needs none."""
    unbound = {each.name for each in vendors for check in _failed(each.checks) if check.name == "bindings"}
    found = {each.name for each in vendors} - unbound
    return next((command for vendor, command in demos.items() if vendor in found), None)


def _saves_all(vendor: Vendor) -> bool:
    """Or the device's data alone, while the process keeps what the driver has for it."""
    control = vendor.facilities.get("control_state")
    return control is not None and control.ok


# ---- the machine --------------------------------------------------------------------------------------------------


def _host(checks: Sequence[Check]) -> list[str]:
    failed = _failed(checks)
    bearable = "; what is noted is not needed" if failed and not _needed(checks) else ""
    return [f"This machine: {_fine(checks)}{bearable}", *_rows(failed)]


def _fine(checks: Sequence[Check]) -> str:
    fine = sum(check.ok for check in checks)
    return f"{fine} of {text.plural(len(checks), 'check')} fine"


def _failed(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if not check.ok]


# ---- vendors ------------------------------------------------------------------------------------------------------


def _vendors(found: Sequence[Vendor]) -> list[list[str]]:
    """One group for each that counts, and one for all the others."""
    others = [each for each in found if not each.counts]
    return [*(_vendor(each) for each in found if each.counts), _absent(others)]


def _vendor(vendor: Vendor) -> list[str]:
    waiting = _after(vendor)
    verified = vendor.facilities.get("verified_on")
    return [
        f"{vendor.name}: {_fine(vendor.checks)}; seen to work on: {verified.evidence if verified else 'nothing'}",
        *(_plain("device", f"{each.name}, {units.size(each.total_bytes)}, {each.uuid}") for each in vendor.devices),
        *_rows(_found(vendor)),
        *(_plain("unknown", f"after {cause}: {', '.join(names)}") for cause, names in _by_cause(waiting).items()),
    ]


def _after(vendor: Vendor) -> dict[str, str]:
    return causes((check.name, check.detail) for check in _failed(vendor.checks))


def _found(vendor: Vendor) -> list[Check]:
    """Returns the failed checks with a finding of their own."""
    waiting = _after(vendor)
    return [check for check in _failed(vendor.checks) if check.name not in waiting]


def _by_cause(waiting: Mapping[str, str]) -> dict[str, list[str]]:
    return {cause: [name for name, its in waiting.items() if its == cause] for cause in waiting.values()}


def _waiting(vendors: Sequence[Vendor]) -> dict[str, str]:
    """Returns the waiting checks of all vendors, named as in Findings.checks()."""
    return {f"{each.name}: {name}": cause for each in vendors for name, cause in _after(each).items()}


def _absent(vendors: Sequence[Vendor]) -> list[str]:
    if not vendors:
        return []
    width = max(len(each.name) for each in vendors)
    rows = [f"  {each.name:<{width}}   {_first_step(each)}" for each in vendors]
    return [
        "No device of these vendors was found. The first step, if you have one:",
        *rows,
        "  then: gcr --backend VENDOR doctor",
    ]


def _first_step(vendor: Vendor) -> str:
    for check in vendor.checks:
        if not check.ok:
            return check.remedy or check.detail
    return "is the device switched on, and hidden by no environment variable?"


# ---- rows ---------------------------------------------------------------------------------------------------------


def _rows(checks: Sequence[Check], waiting: Mapping[str, str] = _NONE) -> list[str]:
    """A row each, and a remedy below those that share it. `waiting`: after which other check one is unknown."""
    shown = [_unknown(check, waiting[check.name]) if check.name in waiting else check for check in checks]
    width = max((len(check.name) for check in shown), default=0) + 2
    indent = " " * (2 + _MARK + width)
    lines: list[str] = []
    for remedy, group in groupby(shown, key=lambda check: "" if check.ok else check.remedy):
        for check in group:
            mark = "unknown" if check.name in waiting else _mark(check)
            lines.append(_plain(mark, f"{check.name:<{width}}{check.detail}"))
        lines += [f"{indent}try: {remedy}"] if remedy else []
    return lines


def _unknown(check: Check, cause: str) -> Check:
    return replace(check, detail=f"after {cause}", remedy="")


def _plain(mark: str, told: str) -> str:
    return f"  {mark:<{_MARK}}{told}"


def _mark(check: Check) -> str:
    return "ok" if check.ok else "MISSING" if check.needed else "note"
