"""What the task on numbers is made of."""
