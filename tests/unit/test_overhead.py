"""The arithmetic of the overhead benchmark: it finds a known loss, its bound covers it, no loss gives zero."""

import json
import math
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import overhead  # noqa: E402
import report  # noqa: E402
import slices  # noqa: E402
from overhead import Arm, Pair  # noqa: E402
from slices import BARE, OTHER, Slice  # noqa: E402

RATE = 400_000.0
SLICES = 12


def pair(loss: float, process: float, noise: float, drift: float, chance: random.Random) -> Pair:
    """Slices of 0.25 s of two processes: each has a speed of its own, each slice its noise, the machine drifts."""
    speed = {which: math.exp(chance.gauss(0, process)) for which in (BARE, OTHER)}
    speed[OTHER] *= 1 - loss
    taken = []
    for moment, which in enumerate(slices.turns(SLICES)):
        rate = RATE * speed[which] * math.exp(chance.gauss(0, noise) + drift * moment)
        taken.append(asdict(Slice(which, int(rate / 4), 0.25, 1 / rate)))
    return {"slices": {"launch": taken}}


def pairs(loss: float, count: int, seed: int, process: float = 0.004, noise: float = 0.02) -> list[Pair]:
    chance = random.Random(seed)
    return [pair(loss, process, noise, 0.001, chance) for _ in range(count)]


def of_rate(found: Sequence[Pair]) -> slices.Estimate:
    return overhead.estimates(found)["launch"][0]


def test_turns_alternate_so_that_a_straight_drift_cancels():
    order = list(slices.turns(4))
    assert order == [BARE, OTHER, OTHER, BARE, BARE, OTHER, OTHER, BARE]
    drifting = pair(0.0, 0.0, 0.0, 0.01, random.Random(1))  # 27 % from the first slice to the last
    assert abs(slices.log_ratio(slices.parse(drifting)["launch"])) < 1e-4


@pytest.mark.parametrize("loss", [0.0, 0.005, 0.03, -0.01])
def test_the_bound_covers_the_loss_as_often_as_it_says(loss):
    estimates = [of_rate(pairs(loss, 20, seed)) for seed in range(100)]
    covered = sum(each.at_most >= loss for each in estimates)
    assert 88 <= covered <= 99  # of 100 at 95 %; the seeds are fixed
    assert abs(sum(each.loss for each in estimates) / 100 - loss) < 0.0008


def test_a_loss_above_the_goal_is_not_taken_for_less_and_a_small_one_is_shown_to_be_small():
    assert of_rate(pairs(0.03, 20, 1)).at_most > 0.01
    assert of_rate(pairs(0.001, 20, 1, noise=0.005)).at_most < 0.01


def test_the_pair_is_the_unit_more_slices_of_the_same_processes_say_no_more():
    few = of_rate(pairs(0.0, 20, 7, process=0.01, noise=0.0))
    assert few.scatter == pytest.approx(0.01 * math.sqrt(2), rel=0.5)
    assert few.at_most - few.loss == pytest.approx(1.729 * few.scatter / math.sqrt(20), rel=0.05)


def test_an_interruption_counts_in_the_rate_and_not_in_the_typical_operation():
    interrupted = pairs(0.0, 4, 3, process=0.0, noise=1e-6)
    for each in interrupted:
        for taken in each["slices"]["launch"]:
            if taken["which"] == OTHER:
                taken["seconds"] *= 1.02
    rate, typical = overhead.estimates(interrupted)["launch"]
    assert rate.loss == pytest.approx(0.02, abs=0.001)
    assert typical.loss == pytest.approx(0.0, abs=0.001)


def test_one_pair_says_nothing():
    assert overhead.estimates(pairs(0.0, 1, 1)) == {}
    assert overhead.describe([]) == ""


def test_an_odd_number_of_slices_is_refused():
    work = overhead.Workload(("true",), ("launch",), 3, 0.1, 1)
    with pytest.raises(ValueError, match="even"):
        list(overhead._turns(work))


def lines_of(tmp_path: Path, piece: str, arm: Arm, found: Sequence[Pair]) -> str:
    (tmp_path / f"{piece}.json").write_text(json.dumps({"piece": piece, "result": {"arm": arm, "pairs": found}}))
    return report.render(tmp_path)


@pytest.mark.parametrize(
    ("loss", "count", "verdict"),
    [(0.001, 20, "| yes |"), (0.03, 20, "| NO |"), (0.001, 4, "| too few: 20 pairs wanted |")],
)
def test_the_report_judges_the_shimmed_arm_by_its_bound(tmp_path, loss, count, verdict):
    text = lines_of(tmp_path, "overhead-launch", Arm.SHIMMED, pairs(loss, count, 5))
    (line,) = [line for line in text.splitlines() if "loss of launch rate" in line]
    assert line.endswith(verdict) and "scatter" in line


def test_the_report_does_not_judge_the_controls(tmp_path):
    text = lines_of(tmp_path, "overhead-launch-null", Arm.NULL, pairs(0.03, 8, 5))
    (line,) = [line for line in text.splitlines() if "noise" in line]
    assert line.endswith("|  |  |")


def test_allocations_are_reported_as_times_as_long(tmp_path):
    found = pairs(0.5, 2, 5, process=0.0, noise=0.0)
    found = [{"slices": {"1024": each["slices"]["launch"]}} for each in found]
    text = lines_of(tmp_path, "overhead-alloc", Arm.SHIMMED, found)
    assert "| allocate + free of 1024 B, shimmed / bare | 2.00 x, 2 pairs | <= 1.0 | NO |" in text


def test_a_program_serves_slices_and_counts_what_it_did():
    program = "import time; from slices import serve; serve(lambda: time.sleep(0.01))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="step 0.1\nstep 0.05\n",
        capture_output=True,
        text=True,
        timeout=30,
        env={"PYTHONPATH": str(BENCHMARKS)},
        check=True,
    )
    ready, *answers = done.stdout.splitlines()
    first, second = (Slice(BARE, **json.loads(line)) for line in answers)
    assert ready == "ready"
    assert first.seconds >= 0.1 and second.seconds >= 0.05
    assert 1 <= first.operations <= 10 and first.median_s >= 0.01
    assert first.rate <= 100


def test_nothing_is_measured_before_workers_arena_and_quiet_are_there(monkeypatch):
    held = {"jobs": [{"job": "mine", "processes": [{"covered_bytes": 60}, {"covered_bytes": 40}]}, {"job": "other"}]}
    worker = [{"pid": 2}]
    known = [([], 100), (worker, 99), (worker, 100), (worker, 100)]
    told = iter([{"pid": 1, "workers": workers, "arena_pinned_bytes": pinned} for workers, pinned in known])
    monkeypatch.setattr(overhead, "gcr", lambda *words: held if words == ("ps",) else next(told))
    asked: list[list[int]] = []
    monkeypatch.setattr(overhead, "quiet", lambda pids: bool(asked.append(pids) or len(asked) > 1))
    program = SimpleNamespace(job="mine", supervisor=3)
    assert overhead._gcrs([program]) == [1, 2, 3]
    assert asked == [[1, 2]] * 2 and next(told, None) is None


def test_quiet_is_a_matter_of_cpu_time(monkeypatch):
    monkeypatch.setattr(overhead, "QUIET_SECONDS", 2.0)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert not overhead.quiet([busy.pid])
        busy.send_signal(signal.SIGSTOP)
        assert overhead.quiet([busy.pid])
    finally:
        busy.kill()
        busy.wait(10)


def test_the_quantiles_err_upwards():
    """The smaller of two listed degrees of freedom is taken."""
    from stats import upper_bound

    assert upper_bound([0.0, 1.0]) == pytest.approx(0.5 + 6.314 * math.sqrt(0.5) / math.sqrt(2))
    eleven = [float(value) for value in range(11)]  # 10 degrees: as with 9
    assert upper_bound(eleven) == pytest.approx(5 + 1.833 * math.sqrt(11) / math.sqrt(11))
