"""``python -m torchdata_remote.cli``, where no scripts are installed."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
