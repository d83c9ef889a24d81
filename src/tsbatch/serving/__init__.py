"""A TorchServe process managed by tsbatch, and the client of its management API."""
