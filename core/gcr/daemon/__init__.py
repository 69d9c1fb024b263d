"""gcrd: the coordinator, one per user and node. It loads no vendor library."""
