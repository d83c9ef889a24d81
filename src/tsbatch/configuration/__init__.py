"""The meaning of TorchServe's settings, and which of several values takes effect."""
