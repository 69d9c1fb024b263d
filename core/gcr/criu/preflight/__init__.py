"""A look at a process tree before CRIU touches it: what CRIU cannot save, and what its new parent must give it again.

No command uses this yet.
"""
