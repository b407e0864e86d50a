"""Mistakes with worker processes and batches."""

from __future__ import annotations

from torchdata_remote.errors import CollateError, WorkerStartError

from .mistake import Mistake

TABLE = {
    "starting workers": [
        Mistake(
            "no guard",
            (
                'run_script("import torchdata_remote as tdr\\nloader = '
                "tdr.stateful_loader(tdr.stream_shards('memory://mistakes/shards/'), "
                'num_workers=2)\\nnext(iter(loader))\\n")'
            ),
            WorkerStartError,
            (
                '...: worker processes would be started outside of `if __name__ == "__main__":`. Each of them '
                "imports the script, and would start workers again. Put this line into a function, and call it "
                'at the end of the script: `if __name__ == "__main__": main()`. num_workers=0 needs no '
                "processes."
            ),
        ),
        Mistake(
            "an object with a lock in map",
            (
                "from functools import partial\nfrom threading import RLock\n"
                "next(iter(tdr.stateful_loader(samples.sharding_filter_rank().map(partial(dict, lock=RLock())), "
                "num_workers=1)))"
            ),
            WorkerStartError,
            (
                "map(fn=...) holds a partial, which cannot be sent to a worker process: cannot pickle '_thread.RLock' "
                "object. Open files and locks where they are used. num_workers=0 needs no processes."
            ),
        ),
        Mistake(
            "a decoder with a lock",
            (
                "from functools import partial\nfrom threading import RLock\n"
                "next(iter(tdr.stateful_loader(samples.sharding_filter_rank().decode_sample({'txt': partial(dict, "
                "lock=RLock())}), num_workers=1)))"
            ),
            WorkerStartError,
            (
                "decode_sample(decoders=...) holds a dict, which cannot be sent to a worker process: cannot pickle "
                "'_thread.RLock' object. Open files and locks where they are used. num_workers=0 needs no processes."
            ),
        ),
        Mistake(
            "a lambda in torch's DataLoader",
            (
                "next(iter(DataLoader(tdr.stream_shards(shards), num_workers=1, collate_fn=lambda batch: batch, "
                'multiprocessing_context="spawn")))'
            ),
            WorkerStartError,
            (
                "DataLoader(collate_fn=...) holds a lambda (<string>, line 1), which torch's DataLoader cannot send to "
                "a worker process. Use stateful_loader or PrefetchingLoader, which can, or a function of a module. "
                "num_workers=0 needs no processes."
            ),
        ),
        Mistake(
            "memory:// with workers",
            "next(iter(tdr.stateful_loader(tdr.stream_shards(shards), num_workers=1)))",
            WorkerStartError,
            (
                "memory://mistakes is in the memory of this process, which worker processes do not share. Read it by "
                "threads (thread_loader) or with num_workers=0, or write the data to files."
            ),
        ),
        Mistake(
            "pictures in memory:// with workers",
            (
                "next(iter(tdr.PrefetchingLoader(tdr.RemoteImageFolder(pictures), num_workers=1, "
                'multiprocessing_context="spawn")))'
            ),
            WorkerStartError,
            (
                "memory://mistakes is in the memory of this process, which worker processes do not share. Read it by "
                "threads (thread_loader) or with num_workers=0, or write the data to files."
            ),
        ),
    ],
    "collating": [
        Mistake(
            "pictures without a collate_fn",
            (
                'next(iter(tdr.stateful_loader(tdr.stream_files(pictures).label_from_path(classes=["cat", '
                '"dog"]).decode_sample().to_tuple("png", "cls"), batch_size=2)))'
            ),
            CollateError,
            (
                "sample 'mistakes/pictures/cat/0' of memory://mistakes/pictures/cat/0.png: 'png' is a PIL "
                "image, of which torch's default collate_fn makes no batch. Convert it to a tensor, of equal "
                "shape in all samples: .map(function) on a chain, transform= of a dataset; or pass a "
                "collate_fn."
            ),
        ),
        Mistake(
            "pictures into torch's DataLoader",
            ('next(iter(DataLoader(tdr.stream_files(pictures).decode_sample().to_tuple("png"), batch_size=2)))'),
            CollateError,
            (
                "sample 'mistakes/pictures/cat/0' of memory://mistakes/pictures/cat/0.png: 'png' is a PIL "
                "image, of which torch's default collate_fn makes no batch. Convert it to a tensor, of equal "
                "shape in all samples: .map(function) on a chain, transform= of a dataset; or pass a "
                "collate_fn."
            ),
        ),
        Mistake(
            "pictures of a folder",
            "next(iter(tdr.PrefetchingLoader(tdr.RemoteImageFolder(pictures), batch_size=2)))",
            CollateError,
            (
                "a sample: element 0 is a PIL image, of which torch's default collate_fn makes no batch. "
                "Convert it to a tensor, of equal shape in all samples: .map(function) on a chain, transform= "
                "of a dataset; or pass a collate_fn."
            ),
        ),
        Mistake(
            "labels that were not decoded",
            ('next(iter(tdr.stateful_loader(tdr.stream_shards(shards).to_tuple("txt", "cls"), batch_size=2)))'),
            RuntimeWarning,
            (
                "sample '1/000001' of memory://mistakes/shards/000000.tar: 'cls' is b'1', bytes that were not "
                "decoded, and a batch will hold bytes as labels. Chain decode_sample(), in front of to_tuple() "
                "if there is one, or pass a collate_fn."
            ),
        ),
    ],
    "equalize_ranks()": [
        Mistake("no mode", 'tdr.stream_shards(shards + "index.json").equalize_ranks().mode.value', None, "'drop'"),
    ],
}
