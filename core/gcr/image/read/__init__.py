"""Reading an image back."""
