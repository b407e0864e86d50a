"""What every request meets before a route: connections, heads, bodies, conditions, answers."""
