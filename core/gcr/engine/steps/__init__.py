"""Steps of a checkpoint or a restore, each with its undo. A route (engine/routes) puts them in their order."""
