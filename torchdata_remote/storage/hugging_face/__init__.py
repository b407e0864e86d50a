"""Repositories of the Hugging Face Hub: ``hf://``."""
