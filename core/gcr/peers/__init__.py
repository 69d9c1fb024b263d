"""Other processes as this process sees them: agents, workers, control helpers, image helpers, supervisors."""
