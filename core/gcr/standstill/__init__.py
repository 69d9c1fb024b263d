"""One standstill for the ranks of a job: the decision which of their calls pass."""
