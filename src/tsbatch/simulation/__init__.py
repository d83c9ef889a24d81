"""TorchServe's batching without a TorchServe: a simulator of it, and what is planned with it."""
