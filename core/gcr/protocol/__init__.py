"""The messages between gcr's processes: frames, records, JSON calls, descriptors, and who may send them."""
