"""The record of a job whose processes are in the checkpoint of a container's runtime."""

import pytest
from msgspec.structs import replace

from gcr.imageerrors import Damaged
from gcr.job.contained import ContainedJob
from gcr.job.decisions import DecisionRecord, KeptImage, ProcessDecision
from gcr.processes import ProcessIdentity

KEPT = KeptImage("/store", "night")
PROCESSES = (ProcessDecision(470, 3, {"GPU-1": 5}, {"GPU-1": 1}), ProcessDecision(480, 3, {}, {}, copied_out=True))
DECISION = DecisionRecord("llm", 9, "checkpoint", 1.5, PROCESSES, "nvidia", False, away="t")
JOB = ContainedJob(token="t", argv=("python", "a b"), labels=((7, 470), (8, 480)), decision=DECISION)


def test_a_job_reads_back_as_it_was_written() -> None:
    assert ContainedJob.of_text(JOB.text()) == JOB


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        JOB.text().replace(b'"token"', b'"other"'),
        JOB.text().replace(b"checkpoint", b"checkpoinT"),
        JOB.text().replace(b"[7,470]", b"[7,471]"),
        JOB.text().replace(b"[7,470]", b'["7",470]'),
    ],
)
def test_what_is_no_job_is_damage(text: bytes) -> None:
    assert text != JOB.text()
    with pytest.raises(Damaged):
        ContainedJob.of_text(text)


def test_its_decision_is_about_the_processes_that_are_called_so_now_and_names_those_of_the_image() -> None:
    here = {8: ProcessIdentity(1008, 90, 5), 7: ProcessIdentity(1007, 91, 6)}
    record = JOB.as_returned("llm-2", here, KEPT)
    assert record.processes == (
        replace(PROCESSES[0], pid=1007, start_time=91, stack=6, imaged=470),
        replace(PROCESSES[1], pid=1008, start_time=90, stack=5, imaged=480),
    )
    assert (record.job, record.image, record.away, record.transaction) == ("llm-2", KEPT, "", 9)
    assert record.imaged == {1007: 470, 1008: 480}


def test_those_that_hold_memory_of_it_are_called_otherwise_as_well() -> None:
    lender = replace(PROCESSES[0], shared_as=77, lent_to=(480,))
    job = replace_decision(lender)
    here = {8: ProcessIdentity(1008, 90, 5), 7: ProcessIdentity(1007, 91, 6)}
    first, second = ContainedJob.of_text(job.text()).as_returned("llm-2", here, KEPT).processes
    assert (first.shared_as, first.lent_to, second.lent_to) == (77, (1008,), ())


def replace_decision(lender: ProcessDecision) -> ContainedJob:
    return replace(JOB, decision=replace(DECISION, processes=(lender, PROCESSES[1])))
