"""The format of states, and the fingerprints of listings in them."""
