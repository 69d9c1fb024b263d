"""A decision record for tests."""

from gcr.job.decisions import DecisionRecord, ProcessDecision

PROCESS = ProcessDecision(4711, 99, {"GPU-1": 1 << 35, "GPU-2": 4096}, {"GPU-1": 600 << 20})

RECORD = DecisionRecord("llm", 7, "checkpoint", 1700000000.25, (PROCESS,), "nvidia", True, {"GCR_SIMULATE": "nvidia"})
