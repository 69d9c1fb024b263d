"""The control helper: the process that makes a driver's checkpoint calls, one a backend."""
