"""Training frameworks that read a loader: found on the stack."""
