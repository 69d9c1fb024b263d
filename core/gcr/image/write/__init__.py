"""Writing an image, and the image that it builds upon."""
