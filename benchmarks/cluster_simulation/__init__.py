"""Simulates cuts over up to 10,000 nodes: the coordinator's own decisions, and nodes and links that are assumed."""
