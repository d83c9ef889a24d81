"""Loading models, and the engines that run them."""
