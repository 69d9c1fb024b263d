"""gcr's parts for Ascend NPUs. Importing this package loads no vendor library; the first call of one does."""
