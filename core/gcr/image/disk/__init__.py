"""Files and memory as a store needs them: regular files, durable writes, locks, bounce buffers, threads."""
