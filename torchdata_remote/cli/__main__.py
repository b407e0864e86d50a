"""``python -m torchdata_remote.cli``, for installations without scripts."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
