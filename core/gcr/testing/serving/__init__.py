"""Requests that a test makes of a peer, a class for each subject. A public method serves the request of its name."""
