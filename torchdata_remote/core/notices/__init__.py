"""Notices: what a user is told while something takes long."""
