"""The page of `gcr doctor`, read as by a user who installed gcr two minutes ago."""

import re
from collections.abc import Sequence

import pytest

from gcr.backend import Capability, Device
from gcr.cli.checks import Check, Findings, Vendor
from gcr.cli.page import page

GOOD = Check("platform", True, True, "Linux 6.1 on x86_64")
SLOWER = Check("huge pages", False, False, "none free", "for faster copies: enable them")
NO_LIBRARY = "libzinc.so: cannot open shared object file"
DEVICE = Device("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "Zinc 9", 8 << 30, 0)
SIMULATED = Device("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "Zinc SIMULATED", 8 << 30, 0)


def facilities(**ok: bool) -> dict[str, Capability]:
    told = {"verified_on": "a Zinc 9, driver 3; on no other", "control_state": "the driver's calls"}
    return {name: Capability(name, ok.get(name, True), told[name]) for name in told}


def absent(name: str = "zinc", counts: bool = False) -> Vendor:
    """Returns a vendor without its library: six checks, five of which fail like the first."""
    later = ("device", "memory", "descriptors", "checkpoint_api", "rdma")
    checks = [
        Check("driver", False, counts, NO_LIBRARY, f"install {name}'s driver"),
        *(Check(each, False, counts, NO_LIBRARY, f"is there a {each}?") for each in later),
    ]
    return Vendor(name, counts, facilities(), [], checks)


def present(device: Device = DEVICE, *more: Check, **ok: bool) -> Vendor:
    return Vendor("zinc", True, facilities(**ok), [device], [Check("driver", True, True, "driver 3"), *more])


DEMOS = {"lead": "gcr demo", "zinc": "gcr --backend zinc demo"}


def said(*vendors: Vendor, host: Sequence[Check] = (GOOD,), asked: str | None = None, every: bool = False) -> str:
    return page(Findings(host, vendors, []), simulators=["lead", "zinc"], demos=DEMOS, asked=asked, every=every)


def test_without_any_device_it_says_that_this_is_fine_and_what_to_try() -> None:
    text = said(absent("lead"), absent("tin"), absent("zinc"), host=[GOOD, SLOWER])
    first = text.splitlines()[0]
    assert first.startswith("gcr works on this machine")
    assert "no GPU or NPU" in first
    assert "MISSING" not in text
    assert re.search(r"^  gcr demo +.*SIMULATED", text, re.MULTILINE)


def test_a_vendor_that_is_neither_here_nor_asked_for_is_one_line_with_its_first_step() -> None:
    lines = said(absent("lead"), absent("tin"), absent("zinc")).splitlines()
    for name in ("lead", "tin", "zinc"):
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert line.endswith(f"install {name}'s driver")
    assert not any(NO_LIBRARY in line for line in lines)
    assert len(lines) < 20


def test_a_vendor_that_was_asked_for_is_told_its_cause_once() -> None:
    text = said(absent("zinc", counts=True), asked="zinc")
    assert text.splitlines()[0] == "Not ready. Missing: zinc: driver"
    assert text.count(NO_LIBRARY) == 1
    assert "try: install zinc's driver" in text
    assert "  unknown  after driver: device, memory, descriptors, checkpoint_api, rdma" in text
    assert "gcr --backend zinc doctor" in text
    assert "gcr run --simulate zinc -- CMD" in text


def test_what_is_not_known_to_work_on_hardware_says_so() -> None:
    only = Capability("verified_on", False, "a simulated runtime only")
    vendor = Vendor("zinc", True, {"verified_on": only}, [], absent().checks)
    assert "seen to work on: a simulated runtime only" in said(vendor, asked="zinc")
    assert "seen to work on: nothing" in said(Vendor("zinc", True, {}, [], absent().checks))


def test_with_a_device_it_is_ready_and_says_how_to_begin() -> None:
    text = said(present(), absent("lead"))
    assert text.splitlines()[0] == "Ready: 1 device."
    assert "Zinc 9, 8.0 GiB, GPU-0001" in text
    assert "gcr run --name llm" in text
    assert "then: gcr checkpoint llm" in text
    assert "demo" not in text
    assert "SIMULATED" not in text


def test_where_only_the_data_can_leave_it_says_the_option_that_does() -> None:
    assert "then: gcr checkpoint --data-only llm" in said(present(control_state=False))


def test_a_simulated_device_is_called_so() -> None:
    assert said(present(SIMULATED)).splitlines()[0] == "Ready: 1 SIMULATED device."


def test_something_needed_on_a_device_s_machine_is_missing_before_all_else() -> None:
    old = Check("branch", False, True, "driver 2", "install driver 3")
    text = said(present(DEVICE, old))
    assert text.splitlines()[0] == "Not ready. Missing: zinc: branch"
    assert re.search(r"^  MISSING  branch +driver 2\n +try: install driver 3$", text, re.MULTILINE)
    assert "gcr doctor" in text
    assert "gcr run --name" not in text


def test_what_the_machine_lacks_matters_or_does_not() -> None:
    assert "1 of 2 checks fine; what is noted is not needed" in said(absent(), host=[GOOD, SLOWER])
    text = said(absent(), host=[GOOD, Check("shim", False, True, "not there", "reinstall gcr")])
    assert text.splitlines()[0] == "Not ready. Missing: shim"
    assert "not needed" not in text
    assert "try: reinstall gcr" in text


def test_a_broken_plugin_is_shown_and_does_not_make_the_machine_unfit() -> None:
    broken = Check("plugin tin", False, False, "tin of stranger 1.2: SyntaxError", "reinstall or remove it")
    text = page(Findings([GOOD], [absent()], [broken]), simulators=[], demos={}, asked=None, every=False)
    assert text.splitlines()[0].startswith("gcr works on this machine")
    assert "SyntaxError" in text
    assert "try: reinstall or remove it" in text


def unbound(name: str) -> Vendor:
    """Returns a vendor without its bindings: a demonstration on its device would not start."""
    return Vendor(name, False, facilities(), [], [Check("bindings", False, False, "no module zinc", "pip install it")])


def test_without_simulated_drivers_it_offers_none() -> None:
    text = page(Findings([GOOD], [absent()], []), simulators=[], demos={}, asked=None, every=False)
    assert "demo" not in text


def test_it_offers_a_demonstration_that_can_be_shown() -> None:
    assert "  gcr --backend zinc demo  " in said(unbound("lead"), absent("zinc"))
    assert "  gcr --backend zinc demo  " in said(absent("zinc", counts=True), asked="zinc")
    assert "demo" not in said(unbound("lead"), unbound("zinc"))


def test_a_remedy_that_two_share_is_said_once() -> None:
    both = [Check(name, False, False, f"no {name}", "install both") for name in ("one", "two")]
    assert said(present(DEVICE, *both)).count("install both") == 1


def test_every_check_is_listed_on_demand() -> None:
    text = said(absent("lead"), present(), host=[GOOD, SLOWER], every=True)
    for row in ("ok       platform", "note     huge pages", "note     lead: driver", "ok       zinc: driver"):
        assert row in text
    assert "gcr doctor -v" not in text


@pytest.mark.parametrize("every", [False, True])
def test_no_line_ends_in_blanks(every: bool) -> None:
    text = said(absent("lead"), absent("zinc", counts=True), host=[GOOD, SLOWER], every=every)
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_what_only_met_what_an_earlier_check_had_met_is_unknown_and_has_no_remedy() -> None:
    text = said(absent("zinc", counts=True), absent("lead"), every=True)
    assert text.count("  MISSING  ") == 1
    for vendor in ("zinc", "lead"):
        for name in ("device", "memory", "descriptors", "checkpoint_api", "rdma"):
            assert re.search(rf"^  unknown  {vendor}: {name} +after driver$", text, re.MULTILINE)
    assert text.count(NO_LIBRARY) == 2
    assert "is there a" not in text
