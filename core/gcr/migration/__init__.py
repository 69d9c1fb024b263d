"""A job moves to another node: copied while it runs, stopped for what changed, gone here once it runs there."""
