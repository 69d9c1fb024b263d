"""What keeps the bytes of a store from others: ciphers and keys."""
