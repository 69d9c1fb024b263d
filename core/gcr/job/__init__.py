"""Facts about jobs and their processes: states, placement, tracked allocations, decision records, runs."""
