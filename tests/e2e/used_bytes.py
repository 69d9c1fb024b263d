"""Prints the bytes in use on all devices of a vendor, by their own count: `python -m used_bytes VENDOR`."""

import importlib
import sys

if __name__ == "__main__":
    vendor = sys.argv[1]
    backend = getattr(importlib.import_module(f"gcr_{vendor}.backend"), f"{vendor.capitalize()}Backend")()
    print(sum(device.used_bytes for device in backend.devices()))
