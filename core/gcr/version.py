"""The one place that names gcr's version: packaging, CMake, the wire and `gcr --version` all read it from here."""

__version__ = "0.1.0"
