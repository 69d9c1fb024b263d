"""The operations that processes of gcr offer each other, a table for each process."""
