"""Packs: files of chunks, written once and never changed."""
