"""``torchdata-remote serve``."""

from __future__ import annotations

import argparse
import sys

from ..errors import ServiceError
from ._shared import Commands, add_command, add_storage_options, count, count_or_none, printable, say


def add(commands: Commands) -> None:
    """Tell the command line of this command."""
    parser = add_command(
        commands,
        "serve",
        _run,
        does="host datasets over HTTP: the folders of a local folder, or of any URL that can be written to. A page in "
        "the browser shows them and takes files.",
        example="serve --root /data --host 0.0.0.0 --token-file token",
    )
    parser.add_argument("--root", default="datasets", metavar="URL", help="whose folders are the datasets")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; others than loopback need a token")
    parser.add_argument("--port", type=count_or_none, default=8080, help="0 takes a free one")
    parser.add_argument("--token-file", metavar="FILE", help="holds the token that requests have to show")
    parser.add_argument("--max-file-bytes", type=count, metavar="N", help="of a file; 1 TiB by default")
    parser.add_argument("--min-free-bytes", type=count_or_none, metavar="N", help="left on a disk; 1 GiB by default")
    parser.add_argument("--idle-timeout", type=float, metavar="SECONDS", help="without a byte of a body; 60 by default")
    add_storage_options(parser)


def _run(chosen: argparse.Namespace) -> int:
    try:
        from ..service.server.limits import ServiceLimits
        from ..service.server.run import serve  # its libraries are optional
    except ImportError as error:
        raise ServiceError(f"{error}. The service needs: pip install 'torchdata_remote[service]'") from error
    given = {
        "max_file_bytes": chosen.max_file_bytes,
        "min_free_bytes": chosen.min_free_bytes,
        "idle_timeout_s": chosen.idle_timeout,
    }

    def tell(address: str) -> None:
        where = printable(chosen.root)
        say(f"http://{address}/ serves {where}; datasets://{address}/NAME in code. Ctrl-C ends it.")
        sys.stdout.flush()

    serve(
        chosen.root,
        host=chosen.host,
        port=chosen.port,
        token_file=chosen.token_file,
        limits=ServiceLimits(**{name: value for name, value in given.items() if value is not None}),
        storage_options=chosen.storage_options,
        on_listening=tell,
    )
    return 0
