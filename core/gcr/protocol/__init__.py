"""The messages between gcr's processes: frames, records, JSON calls, descriptors, and the users that may send them."""
