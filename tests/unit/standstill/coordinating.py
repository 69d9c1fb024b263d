"""The coordinator's loop, over the model of ranks."""

from ranks import Job

from gcr.standstill.decision import Admit, Done, Late, Past, ReleaseCaptures, Rules, decide


def stand_still(job: Job, rules: Rules = Rules(), deadline: float = 60.0) -> Done | Late:  # noqa: B008 - frozen
    """Returns the end of a standstill of the job: it is reached, or the deadline has passed."""
    job.close()
    past = Past(deadline=job.now + deadline)
    while True:
        reports = job.reports()
        step = decide(reports, past, job.now, rules)
        if isinstance(step, Done):
            assert not any(map(job.busy, job.ranks)), "done, and a device works"
            assert all(report.look > past.admitted for report in reports)
            return step
        if isinstance(step, Late):
            return step
        if isinstance(step, ReleaseCaptures):
            past = released(job, past)
        elif isinstance(step, Admit):
            for admission in step.admissions:
                job.admit(admission, step.furthest)
            past = past.after(step, reports, job.now)
        else:
            event = job.next_event() if step.until <= job.now + rules.look else None  # until then all looks are alike
            job.pass_time(max(step.until, job.now, event or 0.0))


def released(job: Job, past: Past) -> Past:
    """Opens the gates, a moment and until no rank captures."""
    job.open()
    for thread in job.threads:
        job.step(thread)
    while any(thread.capturing for thread in job.threads):
        for thread in job.threads:
            job.step(thread)
        job.now += 0.0001
        while job.work():
            pass
    job.close()
    return Past(deadline=past.deadline, admitted=job.looks)
