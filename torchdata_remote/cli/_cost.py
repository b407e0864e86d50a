"""``torchdata-remote cost``."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..core.urls import redact
from ..errors import RemoteDataError
from ..pipes import stream_files, stream_shards
from ..storage import GET, HEAD, LIST, counted_requests
from ._bench import has_shards
from ._cost_plan import Job, Planned, plan_job
from ._shared import Commands, add_command, add_storage_options, count, count_or_none, print_line, printable
from ._text_table import aligned

_KINDS = (LIST, GET, HEAD)
_LISTED_BY = ("rank", "worker", "rank-0", "once")
_NO_CACHE = "(not made)"  # names a cache to the chain, which is planned and not read


def add(commands: Commands) -> None:
    """Add this command's parser."""
    parser = add_command(
        commands,
        "cost",
        _run,
        description="count the requests and bytes of an epoch, of all ranks and workers together, and what they cost. "
        "The source is listed once, and its objects are not read: the requests for them are planned as "
        "stream_shards() and stream_files() plan them. Requests that a fault repeats are not counted.",
        example="cost s3://bucket/train/ --ranks 64 --workers 8 --price-get 0.40 --price-list 5.00",
    )
    parser.add_argument(
        "url", nargs="+", help="folder of shards or of files, manifest, glob, brace range, or one object"
    )
    parser.add_argument(
        "--read-as", choices=("shards", "files"), help="how it is read (default: as shards if there are)"
    )
    parser.add_argument("--epochs", type=count, default=1, metavar="N", help="passes (default: %(default)s)")
    parser.add_argument("--ranks", type=count, default=1, metavar="N", help="of the job (default: %(default)s)")
    parser.add_argument(
        "--workers", type=count_or_none, default=0, metavar="N", help="processes of each rank (default: %(default)s)"
    )
    parser.add_argument(
        "--listed-by",
        choices=_LISTED_BY,
        default="rank",
        help="who lists in each epoch: each rank for its workers, as stateful_loader and thread_loader do; each "
        "worker, as torch's DataLoader does; rank 0 for all (list_in_rank_0); or each rank once for all epochs "
        "(list_once) (default: %(default)s)",
    )
    parser.add_argument("--in-order", action="store_true", help="without a shuffle, as with shuffle=False")
    parser.add_argument("--max-in-flight", type=count, metavar="N", help="requests at once, which part sizes depend on")
    parser.add_argument("--part-bytes", type=count, metavar="N", help="length of the parts of large objects")
    parser.add_argument("--cache-bytes", type=count, metavar="N", help="bound of a cache that each host begins without")
    parser.add_argument(
        "--hosts", type=count, default=1, metavar="N", help="that the ranks are on (default: %(default)s)"
    )
    for name, what in (("get", "a million GETs or HEADs"), ("list", "a million LISTs"), ("gb-out", "10^9 bytes read")):
        parser.add_argument(f"--price-{name}", type=_price, metavar="PRICE", help=f"of {what}, in any currency")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one line of JSON: url, read_as, epochs, ranks, workers, num_objects, object_bytes, part_bytes, "
        "requests, num_bytes, num_unknown, price, sent",
    )
    add_storage_options(parser)


def _price(text: str) -> float:
    """Parse a price."""
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < math.inf:
        raise argparse.ArgumentTypeError(f"expected a price of at least 0, such as 0.40, got {text!r}")
    return price


def _run(args: argparse.Namespace) -> int:
    if args.hosts > args.ranks:
        raise RemoteDataError(
            f"--hosts {args.hosts} is more than --ranks {args.ranks}: each host has one rank at least."
        )
    job = Job(args.epochs, args.ranks, args.workers, args.hosts, args.listed_by, args.cache_bytes, args.part_bytes)
    with counted_requests() as total:
        has_any = not args.read_as and any(has_shards(url, args.storage_options) for url in args.url)
        read_as = args.read_as or ("shards" if has_any else "files")
        planned = plan_job(_chain(args, read_as), job)
    sent = total.sent
    price = _prices(args, planned)
    if args.json:
        print_line(json.dumps(_document(args, read_as, planned, price, sent)))
        return 0
    print_line(_heading(args, read_as, planned))
    for line in aligned(_rows(planned, price), "<>>" if price is not None else "<>"):
        print_line(line)
    for line in _notes(args, planned, sent):
        print_line(line)
    return 0


def _chain(args: argparse.Namespace, read_as: str) -> Any:
    """Return the chain whose epochs are planned."""
    stream: Any = stream_shards if read_as == "shards" else stream_files
    options: dict[str, Any] = {"shuffle": not args.in_order, "storage_options": args.storage_options}
    if args.max_in_flight is not None:
        options["max_in_flight"] = args.max_in_flight
    if args.cache_bytes is not None:
        options |= {"cache_dir": _NO_CACHE, "cache_bytes": args.cache_bytes}
    return stream(args.url, **options)


def _prices(args: argparse.Namespace, planned: Planned) -> dict[str, float] | None:
    """Return what each kind of request costs, and the bytes; ``None`` without prices."""
    if args.price_get is args.price_list is args.price_gb_out is None:
        return None
    million = {LIST: args.price_list or 0.0, GET: args.price_get or 0.0, HEAD: args.price_get or 0.0}
    price = {kind: planned.requests[kind] * million[kind] / 1e6 for kind in _KINDS}
    return {**price, "bytes": planned.num_bytes * (args.price_gb_out or 0.0) / 1e9}


def _document(
    args: argparse.Namespace, read_as: str, planned: Planned, price: dict[str, float] | None, sent: Counter[str]
) -> dict[str, Any]:
    return {
        "url": [redact(url) for url in args.url],
        "read_as": read_as,
        **{name: getattr(args, name) for name in ("epochs", "ranks", "workers")},
        **{name: getattr(planned, name) for name in ("num_objects", "object_bytes", "part_bytes")},
        "requests": {kind: planned.requests[kind] for kind in _KINDS},
        "num_bytes": planned.num_bytes,
        "num_unknown": planned.num_unknown,
        "price": None if price is None else {**price, "total": sum(price.values())},
        "sent": {kind: sent[kind] for kind in _KINDS},
    }


def _heading(args: argparse.Namespace, read_as: str, planned: Planned) -> str:
    urls = printable(redact(args.url[0])) + (f" and {len(args.url) - 1} more" if len(args.url) > 1 else "")
    return (
        f"{urls}: {planned.num_objects:,} {read_as}, {planned.object_bytes:,} bytes; epochs {args.epochs:,}, "
        f"ranks {args.ranks:,}, workers {args.workers:,}, parts of {planned.part_bytes:,} bytes"
    )


def _rows(planned: Planned, price: dict[str, float] | None) -> Iterator[tuple[str, ...]]:
    counts = {**{kind: planned.requests[kind] for kind in _KINDS}, "bytes": planned.num_bytes}
    yield ("", "number") if price is None else ("", "number", "price")
    for kind, number in counts.items():
        shown = kind.upper() if kind in _KINDS else kind
        yield (shown, f"{number:,}") if price is None else (shown, f"{number:,}", f"{price[kind]:,.4f}")
    if price is not None:
        yield "total", "", f"{sum(price.values()):,.4f}"


def _notes(args: argparse.Namespace, planned: Planned, sent: Counter[str]) -> Iterator[str]:
    if planned.num_unknown:
        yield f"The sizes of {planned.num_unknown:,} objects are unknown: each counts as one GET of no bytes, at least."
    if args.cache_bytes is not None and args.cache_bytes < planned.object_bytes:
        yield "The cache does not hold all objects: which of them it has depends on the order of the readers."
    own = ", ".join(f"{sent[kind]:,} {kind.upper()}" for kind in _KINDS if sent[kind])
    yield f"To find this out, the command sent {own or 'no requests'}."
