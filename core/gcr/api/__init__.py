"""The vocabulary that the daemon, the command line and the library share."""
