"""One step of a migration on its node, by a process of its own: it speaks to the other node, and runs commands."""
