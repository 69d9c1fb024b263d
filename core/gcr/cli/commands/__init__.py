"""One file a subcommand, each with a click command called `command`. Importing one imports no vendor library."""
