"""Nodes exchange the packs of images: a node offers its store, and others pull from it and from each other."""
