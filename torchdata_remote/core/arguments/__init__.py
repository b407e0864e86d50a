"""Arguments: checks, kinds and suggestions, with messages that say what came and what was expected."""
