"""Load and call a handler in this process exactly as a TorchServe worker would."""
