"""What the options of a bucket mean, by cloud: names that have no translation, and what obstore is given."""
