"""``python -m torchdata_remote``: the command line ``torchdata-remote``, for installations without scripts."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
