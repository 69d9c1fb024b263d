"""The store of one user: its lock, its mark, its images and packs, and what is cleaned up."""
