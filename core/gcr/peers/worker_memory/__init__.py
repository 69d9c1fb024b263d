"""A worker's memory, as the daemon sees it: handles, copies and rings of processes."""
