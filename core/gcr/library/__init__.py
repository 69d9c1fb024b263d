"""The Python library: what `import gcr` offers."""
