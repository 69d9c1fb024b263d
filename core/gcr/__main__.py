"""`python -m gcr` is `gcr`."""

from gcr.cli.entry import program

if __name__ == "__main__":
    program()
