"""Map-style datasets: items by number, a batch of them at once."""

import torch  # noqa: F401  # wholly, before a part of it: threads that import different parts break each other's import

from .map_style import MapStyle, as_index
from .remote_files import RemoteFiles
from .remote_image_folder import RemoteImageFolder
from .sharded_dataset import ShardedDataset

__all__ = ["MapStyle", "RemoteFiles", "RemoteImageFolder", "ShardedDataset", "as_index"]
