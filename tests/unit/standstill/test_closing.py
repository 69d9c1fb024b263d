"""A standstill of a job as the engine carries it out, with agents of a model behind the protocol's own bytes."""

import logging
import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from agents import closing, packed
from programs import SHAPES, collective, threads
from ranks import Call, Group, Job

from gcr.engine.closing import parts_of, report_of
from gcr.errors import Interrupted, PeerGone, Stuck
from gcr.protocol.agentwire import GateReply
from gcr.protocol.wire import WalkKind
from gcr.standstill.messages import LOCAL, Admission, Incomplete, Made, Parked, Report, Tier


def meeting(missing: bool = False) -> Job:
    """Rank 0 waits in a collective; rank 1 has some calls before its part, or never makes it. Rank 2 is at rest."""
    lines: dict = {(0, 0): [], (1, 0): [Call("main"), Call("main")] * (not missing), (2, 0): []}
    collective(lines, (0, 1), 0, "comm", 0.0001, 9)
    if missing:
        lines[1, 0] = [("host", 1e9), *lines[1, 0]]
    job = Job(threads(lines))
    job.step(job.threads[0])
    return job


@pytest.mark.parametrize("shape", SHAPES)
def test_it_closes_all_gates_then_admits_then_quiesces_all(shape, caplog):
    rng = Random(5)
    job = Job(shape(rng, 4, 8, False, 0.003))
    job.exact = False  # the protocol does not say which tier
    job.run_free(rng, 900)
    with caplog.at_level(logging.INFO):
        made, said = closing(job, 20.0)
        made.run()
    assert sorted(said[:4]) == [f"close {rank}" for rank in range(4)]
    assert sorted(said[-4:]) == [f"quiesce {rank}" for rank in range(4)]
    assert len(said) == 8
    assert not any(map(job.busy, job.ranks))
    assert "job llm: stands still after" in caplog.text


def test_it_admits_what_the_partner_waits_for():
    job = meeting()
    made, _ = closing(job)
    made.run()
    assert (job.admitted, job.admitted_coupled) == (3, 1)
    assert made.admitted == 1  # a walk of two calls, which goes on through the partner's


def test_at_the_deadline_all_gates_open_those_behind_first_and_the_error_names_who_waits():
    made, said = closing(meeting(missing=True))
    with pytest.raises(Stuck, match=r"process 0 waits in 0x9 on stream 0x1.*process 1 is in its own code"):
        made.run()
    assert said[-3:] == ["resume 1", "resume 2", "resume 0"]


@pytest.mark.parametrize("error", [PeerGone("process 1 is gone"), Interrupted("enough")])
def test_whatever_ends_it_opens_all_gates(error):
    made, said = closing(meeting())
    made.targets[1].error = error
    with pytest.raises(type(error)):
        made.run()
    assert sorted(said[-3:]) == ["resume 0", "resume 1", "resume 2"]


def test_a_process_that_has_ended_is_not_resumed():
    made, said = closing(meeting())
    made.targets[1].error = PeerGone("process 1 is gone")
    made.targets[1].process.ended = True
    with pytest.raises(PeerGone):
        made.run()
    assert sorted(said[-2:]) == ["resume 0", "resume 2"]
    assert "resume 1" not in said


def test_a_caller_that_gives_up_is_heard_between_two_looks():
    made, said = closing(meeting(missing=True))
    left = iter([5.0, 5.0, 5.0])

    def give_up() -> float:
        for seconds in left:
            return seconds
        raise Interrupted("enough")

    made.left = give_up
    with pytest.raises(Interrupted):
        made.run()
    assert sorted(said[-3:]) == ["resume 0", "resume 1", "resume 2"]


def test_captures_end_with_the_gates_open_before_they_close_again():
    lines: dict = {(0, 0): [("begin",), Call("main"), ("end",)], (1, 0): [Call("main")]}
    job = Job(threads(lines))
    job.step(job.threads[0])
    made, said = closing(job)
    made.run()
    kinds = [each.split()[0] for each in said]
    assert kinds == ["close"] * 2 + ["open"] * 2 + ["close"] * 2 + ["quiesce"] * 2


def test_a_capture_that_does_not_end_is_not_waited_for_beyond_the_deadline():
    lines: dict = {(0, 0): [("begin",), ("host", 1e9), ("end",)], (1, 0): []}
    job = Job(threads(lines))
    job.step(job.threads[0])
    made, said = closing(job)
    with pytest.raises(Stuck, match="capture"):
        made.run()
    assert sorted(said[-2:]) == ["resume 0", "resume 1"]


def test_a_reply_says_in_the_decisions_words_what_the_agent_said():
    parked = (Parked(3, 77, True, False, 5), Parked(4, LOCAL, False, True, 0))
    made = (Made(77, 6, 3), Made(78, 2, None))
    said = Report(1, 9, True, 2, 1, 0.25, parked, (Incomplete(77, 0x10, 6, "kernel"),), 4, made)
    assert report_of(1, 9, GateReply.unpack(packed(said, 1.0)), 1.0) == said


@pytest.mark.parametrize(
    ("tier", "leads", "parts"),
    [
        (Tier.WALK, False, [(9, WalkKind.LOCAL)]),
        (Tier.PARTNER, False, [(1, WalkKind.NOT), (8, WalkKind.OWED)]),
        (Tier.LEAD, True, [(1, WalkKind.NOT), (8, WalkKind.THROUGH)]),
        (Tier.SPIN, False, [(9, WalkKind.NOT)]),
        (Tier.HELPER, False, [(9, WalkKind.NOT)]),
    ],
)
def test_a_coupled_call_is_one_and_what_follows_it_a_walk(tier: Tier, leads: bool, parts: list):
    """A shim of an earlier version takes any kind of walk for one of local calls: it makes none too many."""
    assert [*parts_of(Admission(tier, 1, 2, 77, 9, leads))] == parts


def test_a_kernel_that_waits_for_its_own_process_is_given_more_calls_each_time():
    ended = Call("s2", kind="set")
    waits = Call("s1", kind="wait", group=Group([ended]))
    later = [Call("s1") for _ in range(40)]
    job = Job(threads({(0, 0): [waits, *later, ended], (1, 0): []}))
    job.step(job.threads[0])
    made, _ = closing(job)
    made.run()
    assert (job.admitted, made.admitted) == (41, 6)  # 1, 2, 4, 8, 16, 32
