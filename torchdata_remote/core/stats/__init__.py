"""What each stage of a process has done, and where its time went."""
