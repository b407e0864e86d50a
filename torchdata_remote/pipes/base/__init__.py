"""What pipes are made of."""
