"""The commands of the daemon's clients, a module each."""
