"""The save helper: the process that writes the shares of a training's saves, beside the training."""
