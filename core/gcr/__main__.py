"""`python -m gcr` is `gcr`."""

from gcr.cli.main import program

if __name__ == "__main__":
    program()
