"""Decides which peer is asked for which piece of an image. It has no sockets, no clock, and imports nothing of gcr."""
