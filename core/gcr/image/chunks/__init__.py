"""Chunks: their names, where they lie in a pack, and device memory as lines of them. Imports nothing of the rest."""
