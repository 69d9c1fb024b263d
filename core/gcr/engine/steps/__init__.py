"""Steps of a checkpoint, each with its undo. A route (engine/routes) puts them in their order."""
