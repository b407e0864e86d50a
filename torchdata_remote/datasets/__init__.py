"""Map-style datasets: items by number, a batch of them at once."""

from .prefetching_loader import PrefetchingLoader
from .remote_files import RemoteFiles
from .remote_image_folder import RemoteImageFolder
from .sharded_dataset import ShardedDataset

__all__ = ["PrefetchingLoader", "RemoteFiles", "RemoteImageFolder", "ShardedDataset"]
