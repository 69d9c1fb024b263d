"""Images as the daemon has them written and read, by helper processes."""
