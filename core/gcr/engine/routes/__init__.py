"""Ways to checkpoint or restore a job: each is a plan, a list of steps."""
