"""The operations of a worker, a table for each kind of memory."""
