"""The syntax of names that users choose."""

import re

JOB_NAME = re.compile(r"[a-z][a-z0-9._-]{0,62}\Z")
"""Names of jobs. A number is never one: it is a pid."""
