"""The image helper: the process that writes one image, or reads one back. What it has begun to write it finishes."""
