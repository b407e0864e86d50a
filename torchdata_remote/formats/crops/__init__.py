"""Parts of images for training: which one a sample shows, and decoding no more than that."""
