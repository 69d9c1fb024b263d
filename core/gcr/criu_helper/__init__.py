"""The CRIU helper: the process that has CRIU save one process tree. If it dies the tree runs on."""
