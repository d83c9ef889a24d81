"""Change the models of a running server: register, scale, reconfigure, roll back."""
