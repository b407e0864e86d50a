"""Processes: who runs, how workers start, and that they end with the process that started them."""
