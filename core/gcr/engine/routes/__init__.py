"""Ways to checkpoint a job: each is a plan, a list of steps."""
