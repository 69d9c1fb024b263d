"""The small files of an image: the manifest, and the references and hashes that it vouches for."""
