"""Reads what a compiler left in a file about its GPU kernels: their arguments, and what is proven about each.

Nothing is executed, written, or asked of a driver; no vendor library is needed. What is found here may order work, such
as what to bring back first. Correctness never rests on it.
"""

from gcr.kernels.model import Access, Argument, Form, Image, Kernel, Kind, Proof
from gcr.kernels.reader import inspect_file

__all__ = ["Access", "Argument", "Form", "Image", "Kernel", "Kind", "Proof", "inspect_file"]
