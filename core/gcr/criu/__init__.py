"""CRIU, a separate program: what it can do here, and the conversation with it."""
