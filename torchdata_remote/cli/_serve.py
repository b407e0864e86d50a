"""``torchdata-remote serve``."""

from __future__ import annotations

import argparse
import sys

from ..errors import ServiceError
from ._shared import (
    Commands,
    add_command,
    add_storage_options,
    count,
    count_or_none,
    port,
    positive_seconds,
    print_line,
    printable,
)


def add(commands: Commands) -> None:
    """Add this command's parser."""
    parser = add_command(
        commands,
        "serve",
        _run,
        description="host datasets over HTTP: the folders of a local folder, or of a bucket of S3, Google or Azure, "
        "which several services may serve. A web page shows them and accepts uploads.",
        example="serve --root /data --host 0.0.0.0 --token-file token",
    )
    parser.add_argument(
        "--root",
        default="datasets",
        metavar="URL",
        help="folder whose subfolders are the datasets (default: %(default)s)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; any other than loopback needs a token (default: %(default)s)",
    )
    parser.add_argument("--port", type=port, default=8080, help="0 picks a free port (default: %(default)s)")
    parser.add_argument("--token-file", metavar="FILE", help="file with the token that requests must present")
    parser.add_argument("--max-file-bytes", type=count, metavar="N", help="size limit of a file (default: 1 TiB)")
    parser.add_argument(
        "--min-free-bytes", type=count_or_none, metavar="N", help="disk space kept free (default: 1 GiB)"
    )
    parser.add_argument(
        "--idle-timeout",
        type=positive_seconds,
        metavar="SECONDS",
        help="time limit without a byte of a request's body, or without one that the other side takes of a response "
        "(default: 60)",
    )
    parser.add_argument("--certificate", metavar="FILE", help="serve https: certificate in PEM, with those between")
    parser.add_argument("--key", metavar="FILE", help="private key of the certificate, in PEM")
    parser.add_argument(
        "--head-timeout",
        type=positive_seconds,
        metavar="SECONDS",
        help="time limit of a request's head, and of an idle connection (default: 30)",
    )
    parser.add_argument(
        "--pass-through",
        action="store_true",
        help="send the files of a bucket, where clients cannot reach it (default: redirect reads to signed URLs of it)",
    )
    add_storage_options(parser)


def _run(args: argparse.Namespace) -> int:
    try:
        from ..service.server.limits import ServiceLimits
        from ..service.server.serving import Certificate, serve  # its libraries are optional
    except ImportError as error:
        raise ServiceError(f"{error}. The service needs: pip install 'torchdata_remote[service]'") from error
    limits = {
        "max_file_bytes": args.max_file_bytes,
        "min_free_bytes": args.min_free_bytes,
        "idle_timeout_s": args.idle_timeout,
        "head_timeout_s": args.head_timeout,
    }
    if (args.certificate is None) != (args.key is None):
        raise ServiceError("--certificate and --key belong together: pass both, or none for http.")
    certificate = None if args.certificate is None else Certificate(args.certificate, args.key)
    scheme, secure = ("http", "") if certificate is None else ("https", ", with secure=True")

    def report(address: str) -> None:
        root = printable(args.root)
        print_line(f"{scheme}://{address}/ serves {root}; datasets://{address}/NAME in code{secure}. Ctrl-C stops it.")
        sys.stdout.flush()

    serve(
        args.root,
        host=args.host,
        port=args.port,
        token_file=args.token_file,
        certificate=certificate,
        limits=ServiceLimits(**{name: value for name, value in limits.items() if value is not None}),
        storage_options=args.storage_options,
        pass_through=args.pass_through,
        on_listening=report,
    )
    return 0
