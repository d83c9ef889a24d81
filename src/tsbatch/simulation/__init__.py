"""Simulate TorchServe's batching, and plan capacity with the simulator."""
