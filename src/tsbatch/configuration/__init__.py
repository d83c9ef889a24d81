"""What TorchServe's settings mean, and which value takes effect."""
