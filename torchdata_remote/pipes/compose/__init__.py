"""Several pipes as one: mixtures and the usual chains."""
