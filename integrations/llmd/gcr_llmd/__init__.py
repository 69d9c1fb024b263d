"""A snapshot agent for llm-d's time slicing, with jobs of gcr: `gcr-llm-d-agent` (docs/serve.md).

wire.py        the messages
node.py        the jobs of this machine, and what a request targets
operations.py  snapshots and restores under way, and those that ended
service.py     the calls, and their errors
command.py     the program
"""
