"""A local folder to a data set of a service, and back: in parallel, resumed where it stopped, checked by SHA-256.

``tree`` reads the folder that is pushed and ``upload`` sends it. ``plan`` compares what a pull finds, ``download``
fetches a file, ``target`` is the only one to write into the folder. ``crew`` has the threads of both.
"""

from .progress import TransferProgress, Transferred
from .pull import pull
from .push import push

__all__ = ["TransferProgress", "Transferred", "pull", "push"]
