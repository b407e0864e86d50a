"""What a state holds, and what it remembers of a listing."""
