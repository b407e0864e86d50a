"""A loader without processes: a background thread reads the chain and makes batches ahead."""
