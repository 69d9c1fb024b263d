"""docs/compatibility.md: what it says of runs that are made up here, and of none. Nothing in this file was measured."""

import copy
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / "tests" / "gpu" / "compatibility.py"
sys.path.insert(0, str(GENERATOR.parent))

import compatibility  # noqa: E402
import judging  # noqa: E402
from victims import EVERY, PIECES, PROGRAMS, Wanted  # noqa: E402

MIB = 1 << 20
TORCH = EVERY["torch"]
QUEUE = dataclasses.replace(EVERY["queue"], wanted=Wanted.REFUSED)  # as if it lent memory to a stranger
MACHINE = {
    "device": "made up",
    "driver": "1.2.3",
    "link": "PCIe",
    "kernel": "6.7-built-by-somebody",
    "cores": 3,
    "python": "3.12",
    "date": "2001-02-03",
}
SWAP: dict[str, Any] = {
    "out_vram_free_s": 0.5,
    "out_control_s": 0.25,
    "out_vram_after_bytes": 0,
    "in_total_s": 0.375,
    "in_control_s": None,
    "covered_bytes": 300 * MIB,
    "handles": 17,
    "pinned_host_bytes": 5 * MIB,
    "uncovered": {},
    "step": 9,
}
REFUSED = {"during": "checkpoint", "code": "unsupported_state", "state": "running", "message": "lends memory"}


def run(swaps: int = 20, errors: int = 0, **changed: Any) -> dict[str, Any]:
    """`changed`: of every swap."""
    side = {"exit": 0, "held_bytes": 800 * MIB, "steps_per_s": 12.5}
    return {
        "version": "torch 9.8",
        "swaps_wanted": 20,
        "difference": "",
        "bare": side,
        "gcr": {**side, "swaps": [{**SWAP, **changed} for _ in range(swaps)], "errors": [REFUSED] * errors},
    }


def page(folder: Path, runs: dict[str, Any], piece: str = "victims-torch") -> str:
    body = {"piece": piece, "machine": MACHINE, "seconds": 1.0, "result": {"ok": True, "devices": 1, "runs": runs}}
    (folder / f"{piece}.json").write_text(json.dumps(body))
    return compatibility.render([(folder, "abc1234")])


def row(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if f"(`{name}`)" in line]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_says_what_was_found_and_the_page_where_and_when(tmp_path: Path) -> None:
    text = page(tmp_path, {"torch": run()})
    cells = dict(zip(compatibility.HEAD, row(text, "torch"), strict=True))
    assert cells.pop("program").startswith("PyTorch, training with AdamW")
    assert list(cells.values()) == [
        *("torch 9.8", "20", "yes", "1.0000", "17", "5", "+0.00% of 800 MiB"),
        *("0.500", "0.250", "0.375", "", "12.5, 12.5", "swapped, same output"),
    ]
    assert "1 × made up, driver 1.2.3, PCIe, Linux 6.7, 3 cores, Python 3.12, 2001-02-03; gcr at abc1234." in text


def test_every_victim_has_a_row_and_what_was_not_run_is_said_to_be_so(tmp_path: Path) -> None:
    text = page(tmp_path, {"torch": run()})
    others = [name for name in EVERY if name != "torch"]
    assert all(row(text, name)[-1] == "not run" and not any(row(text, name)[1:-1]) for name in others)
    assert text.count("Not run.") == len(PIECES) - 1


def test_a_verdict_follows_from_what_was_found() -> None:
    assert judging.verdict(TORCH, None) == "not run"
    assert judging.verdict(TORCH, run()) == "swapped, same output"
    assert judging.verdict(TORCH, {**run(), "failed": "it hangs"}) == "NO: it hangs"
    said = judging.verdict(TORCH, {**run(3, 1), "failed": "it hangs"})
    assert said == "NO: it hangs, checkpoint: unsupported_state: lends memory"
    assert judging.verdict(TORCH, {**run(), "difference": "line 3"}) == "NO: output differs in line 3"
    assert judging.verdict(TORCH, run(swaps=19)) == "NO: 19 of 20 swaps"
    assert judging.verdict(TORCH, run(0, 3)) == "NO: 0 of 20 swaps, checkpoint: unsupported_state: lends memory"
    ended = run()
    ended["gcr"]["exit"] = 139
    assert judging.verdict(TORCH, ended) == "NO: gcr: exit code 139"


def test_a_program_that_is_to_be_refused_must_be_each_time_and_untouched() -> None:
    assert judging.verdict(QUEUE, run(0, 3)) == "refused, runs as bare"
    assert judging.verdict(QUEUE, run(20)) == "NO: not refused: 20 swaps"
    assert judging.verdict(QUEUE, run(0, 0)) == "NO: not refused: 0 swaps"
    for name, value in {"during": "restore", "code": "stuck", "state": "suspended"}.items():
        other = copy.deepcopy(run(0, 3))
        other["gcr"]["errors"][2] = {**REFUSED, name: value}
        assert judging.verdict(QUEUE, other).startswith("NO: not refused: 0 swaps")


def test_goals_that_are_missed_are_said_and_are_no_fault(tmp_path: Path) -> None:
    left = run(uncovered={"pool": 100 * MIB})
    left["gcr"]["held_bytes"] = 832 * MIB
    assert judging.faults(TORCH, left) == []
    said = "swapped, same output; covered 0.750 instead of 0.99; 4.0% more device memory instead of 3%"
    text = page(tmp_path, {"torch": left})
    assert row(text, "torch")[-1] == said
    assert row(text, "torch")[4] == "0.7500"
    assert "- `torch`, left to the driver: pool 100.0 MiB." in text
    said = "swapped, same output; the device counted up to 7 bytes still, after 20 checkpoints"
    assert judging.verdict(TORCH, run(out_vram_after_bytes=7)) == said


def test_the_share_is_that_of_the_worst_swap() -> None:
    found = run()
    found["gcr"]["swaps"][5]["uncovered"] = {"array": 100 * MIB}
    assert judging.covered_share(found) == 0.75


def test_what_a_broken_program_said_stays_in_its_row(tmp_path: Path) -> None:
    text = page(tmp_path, {"torch": {**run(2), "failed": "Silent: a | b\nline two " + "x" * 2000}})
    assert row(text, "torch")[-1].startswith("NO: Silent: a / b line two xxx")
    assert max(map(len, text.splitlines())) < 1000


def test_what_gcr_said_when_it_refused_stands_below(tmp_path: Path) -> None:
    text = page(tmp_path, {"queue": run(0, 3)}, "shared-others")
    assert "- `queue`, 3 times no checkpoint: `unsupported_state`, “lends memory”" in text
    assert row(text, "queue")[2:5] == ["0", "yes", ""]


@pytest.mark.parametrize("there", [False, True])
def test_without_a_run_there_is_no_page(tmp_path: Path, there: bool) -> None:
    if there:
        body = {"piece": "victims-torch", "machine": MACHINE, "result": {"ok": False, "devices": 1, "runs": {}}}
        (tmp_path / "victims-torch.json").write_text(json.dumps(body))
    words = [sys.executable, str(GENERATOR), str(tmp_path), "abc1234"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no victim has been run" in done.stderr


def test_the_first_folder_that_has_a_piece_counts(tmp_path: Path) -> None:
    """A later run of some pieces stands beside an earlier one of all, each with its own commit."""
    for name, pieces in {"later": ["victims-torch"], "earlier": ["victims-torch", "victims-others"]}.items():
        (tmp_path / name).mkdir()
        for piece in pieces:
            body = {"piece": piece, "machine": MACHINE, "result": {"ok": True, "devices": 1, "runs": {"torch": run()}}}
            (tmp_path / name / f"{piece}.json").write_text(json.dumps(body))
    text = compatibility.render([(tmp_path / "later", "new1234"), (tmp_path / "earlier", "old1234")])
    assert [text.count(f"gcr at {commit}.") for commit in ("new1234", "old1234")] == [1, 1]
    assert text.index("new1234") < text.index("## Others") < text.index("old1234")


def test_the_command_prints_the_page(tmp_path: Path) -> None:
    text = page(tmp_path, {"torch": run()})
    words = [sys.executable, str(GENERATOR), str(tmp_path), "abc1234"]
    assert subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout == f"{text}\n"


def test_victims_are_programs_that_are_there_and_told_apart() -> None:
    every = [victim for piece in PIECES.values() for victim in piece]
    assert len({victim.name for victim in every}) == len({victim.command for victim in every}) == len(every)
    assert all((PROGRAMS / victim.command.split()[0]).is_file() for victim in every)
    assert set(compatibility.HEADINGS) == set(PIECES)
