"""Stores in a bucket or in another folder: push and pull."""
