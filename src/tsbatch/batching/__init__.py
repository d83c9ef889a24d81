"""What shares a forward pass: planning, isolation of the guilty, identical items, memory back-off."""
