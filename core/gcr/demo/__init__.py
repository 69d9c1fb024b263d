"""`gcr demo`: a program on a SIMULATED device is checkpointed, its memory used by another, and brought back."""
