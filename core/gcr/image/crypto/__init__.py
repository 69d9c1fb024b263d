"""Ciphers and keys: they keep the bytes of a store from other readers."""
