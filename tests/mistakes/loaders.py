"""Mistakes with loaders, states and nodes."""

from __future__ import annotations

from torchdata_remote.errors import StateError

from .mistake import Mistake

TABLE = {
    "stateful_loader": [
        Mistake(
            "no chain",
            "tdr.stateful_loader()",
            TypeError,
            (
                "stateful_loader() is missing 'pipe' (the chain, with sharding_filter_rank after its URLs). "
                "Write stateful_loader(pipe)."
            ),
        ),
        Mistake(
            "a URL instead of a chain",
            "tdr.stateful_loader(shards)",
            TypeError,
            (
                "stateful_loader: pipe must be a chain of pipes, got a str. Begin a chain by "
                "tdr.stream_shards(url) or IterableWrapper([url]).list_remote()."
            ),
        ),
        Mistake(
            "a list instead of a chain",
            "tdr.stateful_loader([1, 2, 3])",
            TypeError,
            (
                "stateful_loader: pipe must be a chain of pipes, got a list. Write IterableWrapper(items) to "
                "make a chain of it."
            ),
        ),
        Mistake(
            "a generator instead of a chain",
            "tdr.stateful_loader(number for number in range(3))",
            TypeError,
            (
                "stateful_loader: pipe must be a chain of pipes, got a generator. Write IterableWrapper(items) "
                "to make a chain of it."
            ),
        ),
        Mistake(
            "a class instead of a chain",
            "tdr.stateful_loader(tdr.ShardTarReader)",
            TypeError,
            (
                "stateful_loader: pipe must be a chain of pipes, got the class ShardTarReader. Pass what it "
                "returns: call it."
            ),
        ),
        Mistake(
            "a function instead of a chain",
            "tdr.stateful_loader(tdr.stream_shards)",
            TypeError,
            (
                "stateful_loader: pipe must be a chain of pipes, got the function stream_shards. Pass what it "
                "returns: call it."
            ),
        ),
        Mistake(
            "a map-style dataset",
            "tdr.stateful_loader(tdr.RemoteFiles(files))",
            TypeError,
            (
                "stateful_loader: pipe must be a chain of pipes, got a RemoteFiles. A map-style dataset is "
                "read by tdr.PrefetchingLoader, or by torch's DataLoader."
            ),
        ),
        Mistake(
            "a dataset of torch",
            "tdr.stateful_loader(torch.utils.data.TensorDataset(torch.zeros(3)))",
            TypeError,
            (
                "stateful_loader: pipe must be a chain of pipes, got a TensorDataset. A map-style dataset is "
                "read by torch's DataLoader."
            ),
        ),
        Mistake(
            "a DataLoader",
            "tdr.stateful_loader(DataLoader(tdr.stream_shards(shards)))",
            TypeError,
            (
                "stateful_loader: pipe must be a chain of pipes, got a DataLoader. Pass the chain itself, not "
                "a loader of it."
            ),
        ),
        Mistake(
            "a loader of a loader",
            "tdr.stateful_loader(tdr.stateful_loader(tdr.stream_shards(shards)))",
            TypeError,
            (
                "stateful_loader: pipe must be a chain of pipes, got a StatefulLoader. Pass the chain itself, "
                "not a loader of it."
            ),
        ),
        Mistake(
            "batch size by position",
            "tdr.stateful_loader(tdr.stream_shards(shards), 8)",
            TypeError,
            (
                "stateful_loader() takes 1 argument by position (pipe), got 2; not expected: an int. Pass the "
                "rest by name: batch_size=, num_workers=, num_streams=, drop_last=, collate_fn=, pin_memory=, "
                "prefetch_factor=, multiprocessing_context=, worker_init_fn=, timeout_s=, state_of_all_ranks=, "
                "list_once=, list_in_rank_0=."
            ),
        ),
        Mistake(
            "misspelt option",
            "tdr.stateful_loader(tdr.stream_shards(shards), batchsize=8)",
            TypeError,
            ("stateful_loader() got an unexpected keyword argument 'batchsize'; did you mean 'batch_size'?"),
        ),
        Mistake(
            "a word for num_workers",
            "tdr.stateful_loader(tdr.stream_shards(shards), workers=2)",
            TypeError,
            ("stateful_loader() got an unexpected keyword argument 'workers'; did you mean 'num_workers'?"),
        ),
        Mistake(
            "shuffle of DataLoader",
            "tdr.stateful_loader(tdr.stream_shards(shards), shuffle=True)",
            TypeError,
            (
                "stateful_loader() got an unexpected keyword argument 'shuffle'. It takes pipe, batch_size, "
                "num_workers, num_streams, drop_last, collate_fn, pin_memory, prefetch_factor, "
                "multiprocessing_context, worker_init_fn, timeout_s, state_of_all_ranks, list_once, "
                "list_in_rank_0."
            ),
        ),
        Mistake(
            "persistent_workers of DataLoader",
            "tdr.stateful_loader(tdr.stream_shards(shards), persistent_workers=True)",
            TypeError,
            (
                "stateful_loader() got an unexpected keyword argument 'persistent_workers'. It takes pipe, "
                "batch_size, num_workers, num_streams, drop_last, collate_fn, pin_memory, prefetch_factor, "
                "multiprocessing_context, worker_init_fn, timeout_s, state_of_all_ranks, list_once, "
                "list_in_rank_0."
            ),
        ),
        Mistake(
            "timeout without unit",
            "tdr.stateful_loader(tdr.stream_shards(shards), timeout=30)",
            TypeError,
            ("stateful_loader() got an unexpected keyword argument 'timeout'; did you mean 'timeout_s'?"),
        ),
        Mistake(
            "batch_size=0",
            "tdr.stateful_loader(tdr.stream_shards(shards), batch_size=0)",
            ValueError,
            "stateful_loader: batch_size must be an int of at least 1 or None, got 0.",
        ),
        Mistake(
            "a huge batch size for all samples",
            "tdr.stateful_loader(tdr.stream_shards(shards), batch_size=10**9)",
            ValueError,
            (
                "stateful_loader: batch_size must be at most 10_000_000, got 1_000_000_000: for each batch torchdata "
                "makes a list of so many items, also where there are fewer samples. Pass the number of samples, or "
                "batch_size=None for single ones."
            ),
        ),
        Mistake(
            "a batch size as str",
            'tdr.stateful_loader(tdr.stream_shards(shards), batch_size="32")',
            TypeError,
            ("stateful_loader: batch_size must be an int of at least 1 or None, got '32' (str). Write 32."),
        ),
        Mistake(
            "a batch size as float",
            "tdr.stateful_loader(tdr.stream_shards(shards), batch_size=32.0)",
            TypeError,
            ("stateful_loader: batch_size must be an int of at least 1 or None, got 32.0 (float). Write 32."),
        ),
        Mistake(
            "a huge batch size of NumPy",
            "tdr.StatefulLoader(tdr.Resumable(tdr.stream_shards(shards)), batch_size=np.int64(1_000_000_000))",
            ValueError,
            "...batch_size must be at most 10_000_000, got 1_000_000_000: for each batch torchdata ...",
        ),
        Mistake(
            "a batch size of NumPy",
            ("len(next(iter(tdr.stateful_loader(tdr.stream_shards(shards).decode_sample(), batch_size=np.int64(2)))))"),
            None,
            "4",
        ),
        Mistake(
            "a bool batch size",
            "tdr.stateful_loader(tdr.stream_shards(shards), batch_size=True)",
            TypeError,
            "stateful_loader: batch_size must be an int of at least 1 or None, got True (bool).",
        ),
        Mistake(
            "negative workers",
            "tdr.stateful_loader(tdr.stream_shards(shards), num_workers=-1)",
            ValueError,
            "stateful_loader: num_workers must be an int of at least 0, got -1.",
        ),
        Mistake(
            "num_workers=None",
            "tdr.stateful_loader(tdr.stream_shards(shards), num_workers=None)",
            TypeError,
            "stateful_loader: num_workers must be an int of at least 0, got None.",
        ),
        Mistake(
            'num_workers="auto"',
            'tdr.stateful_loader(tdr.stream_shards(shards), num_workers="auto")',
            TypeError,
            "stateful_loader: num_workers must be an int of at least 0, got 'auto' (str).",
        ),
        Mistake(
            "no streams",
            "tdr.stateful_loader(tdr.stream_shards(shards), num_streams=0)",
            ValueError,
            "stateful_loader: num_streams must be an int of at least 1 or None, got 0.",
        ),
        Mistake(
            "streams as float",
            "tdr.stateful_loader(tdr.stream_shards(shards), num_streams=24.0)",
            TypeError,
            ("stateful_loader: num_streams must be an int of at least 1 or None, got 24.0 (float). Write 24."),
        ),
        Mistake(
            "streams of a Resumable",
            "tdr.stateful_loader(tdr.Resumable(tdr.stream_shards(shards)), num_streams=2)",
            ValueError,
            ("stateful_loader: num_streams belongs to the Resumable that was passed: Resumable(pipe, num_streams=2)."),
        ),
        Mistake(
            '"False" for False',
            'tdr.stateful_loader(tdr.stream_shards(shards), drop_last="False")',
            TypeError,
            ("stateful_loader: drop_last must be True or False, got 'False' (str). Write False, without quotes."),
        ),
        Mistake(
            "collate_fn by name",
            'tdr.stateful_loader(tdr.stream_shards(shards), collate_fn="list")',
            TypeError,
            (
                "stateful_loader: collate_fn must be a function such as torch.utils.data.default_collate, got "
                "'list' (str)."
            ),
        ),
        Mistake(
            "collate_fn that was called",
            "tdr.stateful_loader(tdr.stream_shards(shards), collate_fn=[])",
            TypeError,
            ("stateful_loader: collate_fn must be a function such as torch.utils.data.default_collate, got [] (list)."),
        ),
        Mistake(
            "pin_memory as a device",
            'tdr.stateful_loader(tdr.stream_shards(shards), pin_memory="cuda")',
            TypeError,
            "stateful_loader: pin_memory must be True or False, got 'cuda' (str).",
        ),
        Mistake(
            "prefetch_factor=0",
            "tdr.stateful_loader(tdr.stream_shards(shards), prefetch_factor=0)",
            ValueError,
            "stateful_loader: prefetch_factor must be an int of at least 1 or None, got 0.",
        ),
        Mistake(
            "a start method that does not exist",
            'tdr.stateful_loader(tdr.stream_shards(shards), multiprocessing_context="threads")',
            ValueError,
            ("stateful_loader: multiprocessing_context must be one of 'fork', 'spawn', 'forkserver', got 'threads'."),
        ),
        Mistake(
            "misspelt start method",
            'tdr.stateful_loader(tdr.stream_shards(shards), multiprocessing_context="fork_server")',
            ValueError,
            (
                "stateful_loader: multiprocessing_context must be one of 'fork', 'spawn', 'forkserver', got "
                "'fork_server'; did you mean 'forkserver'?"
            ),
        ),
        Mistake(
            "no start method",
            "tdr.stateful_loader(tdr.stream_shards(shards), multiprocessing_context=None)",
            TypeError,
            "stateful_loader: multiprocessing_context must be a str such as 'forkserver', got None.",
        ),
        Mistake(
            "a negative timeout",
            "tdr.stateful_loader(tdr.stream_shards(shards), timeout_s=-1)",
            ValueError,
            "stateful_loader: timeout_s must be 0 or more, got -1.",
        ),
        Mistake(
            "a timeout with a unit",
            'tdr.stateful_loader(tdr.stream_shards(shards), timeout_s="30s")',
            TypeError,
            "stateful_loader: timeout_s must be a number of seconds, got '30s' (str). Write 30.",
        ),
        Mistake(
            "a timedelta",
            ('tdr.stateful_loader(tdr.stream_shards(shards), timeout_s=__import__("datetime").timedelta(minutes=1))'),
            TypeError,
            (
                "stateful_loader: timeout_s must be a number of seconds, got datetime.timedelta(seconds=60) "
                "(timedelta). Write 60."
            ),
        ),
        Mistake(
            "a seed per worker as worker_init_fn",
            "tdr.stateful_loader(tdr.stream_shards(shards), worker_init_fn=42)",
            TypeError,
            (
                "stateful_loader: worker_init_fn must be a function such as one at the top level of a module, "
                "got 42 (int)."
            ),
        ),
        Mistake(
            "list_once as a number",
            "tdr.stateful_loader(tdr.stream_shards(shards), list_once=2)",
            TypeError,
            "stateful_loader: list_once must be True or False, got 2 (int).",
        ),
        Mistake(
            "a chain without a split in streams",
            "next(iter(tdr.stateful_loader(urls.shard_tar_reader(), num_streams=2)))",
            StateError,
            ("2 streams would read the same: put sharding_filter_rank() behind the URLs of the chain."),
        ),
        Mistake(
            "a chain whose order is random",
            "tdr.stateful_loader(tdr.stream_shards(shards).shuffle())",
            StateError,
            ("Shuffler cannot be resumed where it was. Use instead: shuffle_samples(), or shuffle_shards() for URLs."),
        ),
        Mistake(
            "a chain without order",
            "tdr.stateful_loader(urls.async_prefetch(in_order=False).shard_tar_reader())",
            StateError,
            ("async_prefetch(in_order=False) has an order that cannot be repeated. Use in_order=True."),
        ),
        Mistake(
            "set_epoch with a float",
            "tdr.stateful_loader(tdr.stream_shards(shards)).set_epoch(1.5)",
            TypeError,
            "set_epoch: epoch must be an int of at least 0, got 1.5 (float).",
        ),
        Mistake(
            "a negative epoch",
            "tdr.stateful_loader(tdr.stream_shards(shards)).set_epoch(-1)",
            ValueError,
            "set_epoch: epoch must be an int of at least 0, got -1.",
        ),
        Mistake(
            "a state that is None",
            "tdr.stateful_loader(tdr.stream_shards(shards)).load_state_dict(None)",
            StateError,
            "Expected a state, as returned by state_dict(), or a list of states; got NoneType: None",
        ),
        Mistake(
            "a state that is a path",
            'tdr.stateful_loader(tdr.stream_shards(shards)).load_state_dict("state.json")',
            StateError,
            ("Expected a state, as returned by state_dict(), or a list of states; got str: 'state.json'"),
        ),
        Mistake(
            "an empty state",
            "tdr.stateful_loader(tdr.stream_shards(shards)).load_state_dict({})",
            StateError,
            ("Expected a state with version, chain, listing, epoch, num_streams, streams; got dict: {}"),
        ),
        Mistake(
            "the model's state",
            ("tdr.stateful_loader(tdr.stream_shards(shards)).load_state_dict(torch.nn.Linear(1, 1).state_dict())"),
            StateError,
            (
                "Expected a state with version, chain, listing, epoch, num_streams, streams; got OrderedDict: "
                "OrderedDict([('weight', ..."
            ),
        ),
        Mistake(
            "the state of a DataLoader",
            (
                'tdr.stateful_loader(tdr.stream_shards(shards)).load_state_dict({"_snapshot": {}, '
                '"_steps_since_snapshot": 0})'
            ),
            StateError,
            (
                "Expected a state with version, chain, listing, epoch, num_streams, streams; got dict: "
                "{'_snapshot': {}, '_steps_since_snapshot': 0}"
            ),
        ),
        Mistake(
            "a state of another chain",
            (
                "tdr.stateful_loader(tdr.stream_shards(shards)).load_state_dict(tdr.stateful_loader(tdr.stream_files(files)).state_dict())"
            ),
            StateError,
            (
                "The state has the chain ['IterableWrapper()', 'ListRemote()', 'ShuffleShards(seed=0)', "
                "'ShardingFilterRank()', 'AsyncPrefetch()', 'FileReader()'], here it is ['IterableWrapper()', "
                "'ListRemote()', 'ShuffleShards(seed=0)', 'ShardingFilterRank()', 'AsyncPrefetch()', "
                "'ShardTarReader(interleave=16)', 'ShuffleSamples(buffer_size=10000, "
                "max_buffer_bytes=67108864, seed=0)']. Build the chain as it was, or begin anew."
            ),
        ),
        Mistake(
            "a state of another seed",
            (
                "tdr.stateful_loader(tdr.stream_shards(shards, "
                "seed=1)).load_state_dict(tdr.stateful_loader(tdr.stream_shards(shards)).state_dict())"
            ),
            StateError,
            (
                "The state is of a chain with other options. ShuffleShards: seed was 0, is 1; ShuffleSamples: seed "
                "was 0, is 1. Build the chain as it was, or begin anew."
            ),
        ),
        Mistake(
            "a state of another number of streams",
            (
                "tdr.stateful_loader(tdr.stream_shards(shards), "
                "num_streams=2).load_state_dict(tdr.stateful_loader(tdr.stream_shards(shards), "
                "num_streams=4).state_dict())"
            ),
            StateError,
            "The state has the number of streams 4, here it is 2. Pass num_streams as it was.",
        ),
        Mistake(
            "a state that was cut",
            ('tdr.stateful_loader(tdr.stream_shards(shards)).load_state_dict({"version": 2, "chain": []})'),
            StateError,
            (
                "Expected a state with version, chain, listing, epoch, num_streams, streams; got dict: "
                "{'version': 2, 'chain': []}"
            ),
        ),
        Mistake(
            "the length of a chain without one",
            "len(tdr.stateful_loader(tdr.stream_shards(shards), batch_size=2))",
            TypeError,
            (
                "ShuffleSamples has no length (object of type 'ShardTarReader' has no len()). Chain "
                "equalize_ranks(), which takes it from the manifest, or count steps instead of epochs."
            ),
        ),
        Mistake(
            "strings of different length in a batch",
            ('next(iter(tdr.stateful_loader(tdr.stream_shards(shards).to_tuple("txt"), batch_size=2)))'),
            None,
            "[(b'sample 1\\nsample 1\\n', b'sample 2\\nsample 2\\nsample 2\\n')]",
        ),
        Mistake(
            "drop_last of NumPy",
            (
                "[len(batch) for batch in tdr.stateful_loader(tdr.stream_shards(shards, shuffle=False), "
                "batch_size=4, collate_fn=list, drop_last=np.True_)]"
            ),
            None,
            "[4]",
        ),
        Mistake(
            "drop_last=1",
            (
                "[len(batch) for batch in tdr.stateful_loader(tdr.stream_shards(shards, shuffle=False), "
                "batch_size=4, collate_fn=list, drop_last=1)]"
            ),
            None,
            "[4]",
        ),
    ],
    "Resumable": [
        Mistake(
            "no chain",
            "tdr.Resumable()",
            TypeError,
            "Resumable() is missing 'pipe' (the chain). Write Resumable(pipe).",
        ),
        Mistake(
            "a list",
            "tdr.Resumable([1, 2])",
            TypeError,
            (
                "Resumable: pipe must be a chain of pipes, got a list. Write IterableWrapper(items) to make a "
                "chain of it."
            ),
        ),
        Mistake(
            "a class",
            "tdr.Resumable(tdr.ShuffleSamples)",
            TypeError,
            ("Resumable: pipe must be a chain of pipes, got the class ShuffleSamples. Pass what it returns: call it."),
        ),
        Mistake(
            "a map-style dataset",
            "tdr.Resumable(tdr.RemoteFiles(files))",
            TypeError,
            (
                "Resumable: pipe must be a chain of pipes, got a RemoteFiles. A map-style dataset is read by "
                "tdr.PrefetchingLoader, or by torch's DataLoader."
            ),
        ),
        Mistake(
            "streams by position",
            "tdr.Resumable(tdr.stream_shards(shards), 4)",
            TypeError,
            (
                "Resumable() takes 1 argument by position (pipe), got 2; not expected: an int. Pass the rest "
                "by name: num_streams=."
            ),
        ),
        Mistake(
            "no streams",
            "tdr.Resumable(tdr.stream_shards(shards), num_streams=0)",
            ValueError,
            "Resumable: num_streams must be an int of at least 1 or None, got 0.",
        ),
        Mistake(
            "streams as a str",
            'tdr.Resumable(tdr.stream_shards(shards), num_streams="4")',
            TypeError,
            "Resumable: num_streams must be an int of at least 1 or None, got '4' (str). Write 4.",
        ),
        Mistake(
            "misspelt option",
            "tdr.Resumable(tdr.stream_shards(shards), streams=4)",
            TypeError,
            "Resumable() got an unexpected keyword argument 'streams'; did you mean 'num_streams'?",
        ),
        Mistake(
            "option of the loader",
            "tdr.Resumable(tdr.stream_shards(shards), batch_size=4)",
            TypeError,
            (
                "Resumable() got an unexpected keyword argument 'batch_size'. Pass it to stateful_loader(pipe, "
                "batch_size=...)."
            ),
        ),
        Mistake(
            "a Resumable in a Resumable",
            "tdr.Resumable(tdr.Resumable(tdr.stream_shards(shards)))",
            TypeError,
            "Resumable: pipe must be a chain of pipes, got a Resumable. Pass it on as it is.",
        ),
        Mistake(
            "an epoch as str",
            'tdr.Resumable(tdr.stream_shards(shards)).set_epoch("0")',
            TypeError,
            "set_epoch: epoch must be an int of at least 0, got '0' (str). Write 0.",
        ),
        Mistake(
            "a state that is a list",
            "tdr.Resumable(tdr.stream_shards(shards)).load_state_dict([])",
            StateError,
            ("Expected a state with version, chain, listing, epoch, num_streams, streams; got list: []"),
        ),
        Mistake(
            "a state of another version",
            'tdr.Resumable(tdr.stream_shards(shards)).load_state_dict({"version": 9})',
            StateError,
            (
                "The state has version 9, this package reads version 2. Install the release of "
                "torchdata_remote that wrote it, or a later one."
            ),
        ),
        Mistake(
            "a state without streams",
            (
                "data = tdr.Resumable(tdr.stream_shards(shards))\ndata.load_state_dict({**data.state_dict(), "
                '"streams": None})'
            ),
            StateError,
            "The state is damaged: its streams is None. Load another one.",
        ),
        Mistake(
            "a chain that counts nothing",
            "tdr.Resumable(IterableWrapper([1, 2]))",
            StateError,
            (
                "IterableWrapper does not count the items that it yields. Put sharding_filter_rank() after it: "
                "that does."
            ),
        ),
        Mistake(
            "a chain with torch's shuffle",
            "tdr.Resumable(tdr.stream_shards(shards).shuffle())",
            StateError,
            ("Shuffler cannot be resumed where it was. Use instead: shuffle_samples(), or shuffle_shards() for URLs."),
        ),
        Mistake(
            "an iterable dataset of torch",
            "tdr.Resumable(torch.utils.data.ChainDataset([]))",
            StateError,
            (
                "ChainDataset cannot be resumed where it was. Use instead: torch's map, filter, batch or "
                "collate, or give it state_dict and load_state_dict."
            ),
        ),
    ],
    "StatefulLoader": [
        Mistake(
            "a chain instead of a Resumable",
            "tdr.StatefulLoader(tdr.stream_shards(shards))",
            TypeError,
            ("StatefulLoader: dataset must be a Resumable, got a ShuffleSamples. Build it by stateful_loader(pipe)."),
        ),
        Mistake(
            "no dataset",
            "tdr.StatefulLoader()",
            TypeError,
            "StatefulLoader() is missing 'dataset' (the chain). Write StatefulLoader(dataset).",
        ),
        Mistake(
            "misspelt option",
            "tdr.StatefulLoader(tdr.Resumable(tdr.stream_shards(shards)), batchsize=2)",
            TypeError,
            ("StatefulLoader() got an unexpected keyword argument 'batchsize'; did you mean 'batch_size'?"),
        ),
        Mistake(
            "misspelt own option",
            "tdr.StatefulLoader(tdr.Resumable(tdr.stream_shards(shards)), list_one=True)",
            TypeError,
            ("StatefulLoader() got an unexpected keyword argument 'list_one'; did you mean 'list_once'?"),
        ),
    ],
    "thread_loader": [
        Mistake(
            "no chain",
            "tdr.thread_loader()",
            TypeError,
            (
                "thread_loader() is missing 'pipe' (the chain, with sharding_filter_rank after its URLs). Write "
                "thread_loader(pipe)."
            ),
        ),
        Mistake(
            "a URL instead of a chain",
            "tdr.thread_loader(shards)",
            TypeError,
            (
                "thread_loader: pipe must be a chain of pipes, got a str. Begin a chain by "
                "tdr.stream_shards(url) or IterableWrapper([url]).list_remote()."
            ),
        ),
        Mistake(
            "batch size by position",
            "tdr.thread_loader(tdr.stream_shards(shards), 8)",
            TypeError,
            (
                "thread_loader() takes 1 argument by position (pipe), got 2; not expected: an int. Pass the rest"
                " by name: batch_size=, num_threads=, prefetch_batches=, num_streams=, drop_last=, collate_fn=, "
                "device=, pin_memory=, state_of_all_ranks=, list_once=, list_in_rank_0=."
            ),
        ),
        Mistake(
            "workers of the other loader",
            "tdr.thread_loader(tdr.stream_shards(shards), num_workers=2)",
            TypeError,
            "thread_loader() got an unexpected keyword argument 'num_workers'; did you mean 'num_threads'?",
        ),
        Mistake(
            "prefetch_factor of DataLoader",
            "tdr.thread_loader(tdr.stream_shards(shards), prefetch_factor=2)",
            TypeError,
            "thread_loader() got an unexpected keyword argument 'prefetch_factor'; did you mean 'prefetch_batches'?",
        ),
        Mistake(
            "nothing ahead",
            "tdr.thread_loader(tdr.stream_shards(shards), prefetch_batches=0)",
            ValueError,
            "thread_loader: prefetch_batches must be an int of at least 1, got 0.",
        ),
        Mistake(
            "a word for num_threads",
            "tdr.thread_loader(tdr.stream_shards(shards), threads=4)",
            TypeError,
            "thread_loader() got an unexpected keyword argument 'threads'; did you mean 'num_threads'?",
        ),
        Mistake(
            "negative threads",
            "tdr.thread_loader(tdr.stream_shards(shards), num_threads=-1)",
            ValueError,
            "thread_loader: num_threads must be an int of at least 0 or None, got -1.",
        ),
        Mistake(
            "threads as a word",
            'tdr.thread_loader(tdr.stream_shards(shards), num_threads="all")',
            TypeError,
            "thread_loader: num_threads must be an int of at least 0 or None, got 'all' (str).",
        ),
        Mistake(
            "a device that torch does not know",
            'tdr.thread_loader(tdr.stream_shards(shards), device="gpu")',
            ValueError,
            "thread_loader: device must be one of torch's, such as 'cuda', got 'gpu': ...",
        ),
        Mistake(
            "a device as a number with a point",
            "tdr.thread_loader(tdr.stream_shards(shards), device=1.5)",
            TypeError,
            "thread_loader: device must be a str such as 'cuda', or a torch.device, got 1.5 (float).",
        ),
        Mistake(
            "a device as a flag",
            "tdr.thread_loader(tdr.stream_shards(shards), device=True)",
            TypeError,
            "thread_loader: device must be a str such as 'cuda', or a torch.device, got True (bool).",
        ),
        Mistake(
            "batch_size=0",
            "tdr.thread_loader(tdr.stream_shards(shards), batch_size=0)",
            ValueError,
            "thread_loader: batch_size must be an int of at least 1 or None, got 0.",
        ),
        Mistake(
            "drop_last as a word",
            'tdr.thread_loader(tdr.stream_shards(shards), drop_last="yes")',
            TypeError,
            "thread_loader: drop_last must be True or False, got 'yes' (str). Write True, without quotes.",
        ),
        Mistake(
            "collate_fn by name",
            'tdr.thread_loader(tdr.stream_shards(shards), collate_fn="default")',
            TypeError,
            (
                "thread_loader: collate_fn must be a function such as torch.utils.data.default_collate, got "
                "'default' (str)."
            ),
        ),
        Mistake(
            "pin_memory as a device",
            'tdr.thread_loader(tdr.stream_shards(shards), pin_memory="cuda")',
            TypeError,
            "thread_loader: pin_memory must be True or False, got 'cuda' (str).",
        ),
        Mistake(
            "streams of a Resumable",
            "tdr.thread_loader(tdr.Resumable(tdr.stream_shards(shards)), num_streams=2)",
            ValueError,
            "thread_loader: num_streams belongs to the Resumable that was passed: Resumable(pipe, num_streams=2).",
        ),
        Mistake(
            "a chain whose order is random",
            "tdr.thread_loader(tdr.stream_shards(shards).shuffle())",
            StateError,
            "Shuffler cannot be resumed where it was. Use instead: shuffle_samples(), or shuffle_shards() for URLs.",
        ),
        Mistake(
            "shuffle of DataLoader",
            "tdr.thread_loader(tdr.stream_shards(shards), shuffle=True)",
            TypeError,
            (
                "thread_loader() got an unexpected keyword argument 'shuffle'. It takes pipe, batch_size, "
                "num_threads, prefetch_batches, num_streams, drop_last, collate_fn, device, pin_memory, "
                "state_of_all_ranks, list_once, list_in_rank_0."
            ),
        ),
        Mistake(
            "the length of a chain without one",
            "len(tdr.thread_loader(tdr.stream_shards(shards), batch_size=2))",
            TypeError,
            (
                "ShuffleSamples has no length (object of type 'ShardTarReader' has no len()). Chain "
                "equalize_ranks(), which takes it from the manifest, or count steps instead of epochs."
            ),
        ),
    ],
    "ThreadLoader": [
        Mistake(
            "a chain instead of a Resumable",
            "tdr.ThreadLoader(tdr.stream_shards(shards))",
            TypeError,
            "ThreadLoader: dataset must be a Resumable, got a ShuffleSamples. Build it by stateful_loader(pipe).",
        ),
        Mistake(
            "no dataset",
            "tdr.ThreadLoader()",
            TypeError,
            "ThreadLoader() is missing 'dataset' (the chain). Write ThreadLoader(dataset).",
        ),
        Mistake(
            "workers",
            "tdr.ThreadLoader(tdr.Resumable(tdr.stream_shards(shards)), num_workers=2)",
            ValueError,
            "ThreadLoader: num_workers must be 0, because this loader has no processes; stateful_loader has them.",
        ),
        Mistake(
            "misspelt own option",
            "tdr.ThreadLoader(tdr.Resumable(tdr.stream_shards(shards)), prefetch=4)",
            TypeError,
            "StatefulLoader() got an unexpected keyword argument 'prefetch'; did you mean 'prefetch_factor'?",
        ),
        Mistake(
            "half a batch ahead",
            "tdr.ThreadLoader(tdr.Resumable(tdr.stream_shards(shards)), prefetch_batches=1.5)",
            TypeError,
            "ThreadLoader: prefetch_batches must be an int of at least 1, got 1.5 (float).",
        ),
    ],
    "merge_states": [
        Mistake("no states", "tdr.merge_states([])", StateError, "There is no state to merge."),
        Mistake(
            "no argument",
            "tdr.merge_states()",
            TypeError,
            (
                "merge_states() is missing 'states' (results of stateful_loader(...).state_dict() or "
                "Resumable.state_dict(), at the same step of all ranks, in any order). Write "
                "merge_states(states)."
            ),
        ),
        Mistake(
            "one state, not in a list",
            "tdr.merge_states(tdr.Resumable(tdr.stream_shards(shards)).state_dict())",
            StateError,
            "Expected a list of states, one of each rank, got dict. Write [state].",
        ),
        Mistake(
            "a path",
            'tdr.merge_states("state.json")',
            StateError,
            "Expected a list of states, one of each rank, got str.",
        ),
        Mistake(
            "None among the states",
            "tdr.merge_states([None])",
            StateError,
            ("Expected a state with version, chain, listing, epoch, num_streams, streams; got NoneType: None"),
        ),
        Mistake(
            "states as arguments",
            "tdr.merge_states({}, {})",
            TypeError,
            "merge_states() takes 1 argument by position (states), got 2; not expected: a dict.",
        ),
        Mistake(
            "the same state twice",
            "tdr.merge_states([tdr.Resumable(tdr.stream_shards(shards)).state_dict()] * 2)",
            StateError,
            "Stream 0 is in two of the states. Merge each rank's state once, of one step.",
        ),
        Mistake(
            "states of two chains",
            (
                "tdr.merge_states([tdr.Resumable(tdr.stream_shards(shards)).state_dict(), "
                "tdr.Resumable(tdr.stream_files(files)).state_dict()])"
            ),
            StateError,
            (
                "The state has the chain ['IterableWrapper()', 'ListRemote()', 'ShuffleShards(seed=0)', "
                "'ShardingFilterRank()', 'AsyncPrefetch()', 'FileReader()'], here it is ['IterableWrapper()', "
                "'ListRemote()', 'ShuffleShards(seed=0)', 'ShardingFilterRank()', 'AsyncPrefetch()', "
                "'ShardTarReader(interleave=16)', 'ShuffleSamples(buffer_size=10000, "
                "max_buffer_bytes=67108864, seed=0)']. Merge states of one training only."
            ),
        ),
        Mistake("a number", "tdr.merge_states(3)", StateError, "Expected a list of states, one of each rank, got int."),
        Mistake(
            "models' states",
            "tdr.merge_states([torch.nn.Linear(1, 1).state_dict()])",
            StateError,
            (
                "Expected a state with version, chain, listing, epoch, num_streams, streams; got OrderedDict: "
                "OrderedDict([('weight', ..."
            ),
        ),
    ],
    "mix_report": [
        Mistake(
            "no argument",
            "tdr.mix_report()",
            TypeError,
            "mix_report() is missing 'state' (of a loader, a Resumable or the mixture). Write mix_report(state).",
        ),
        Mistake(
            "the mixture instead of its state",
            'tdr.mix_report(tdr.mix({"a": (urls, 1)}))',
            StateError,
            "mix_report: expected the state_dict() of a chain with mix(), got a Mixed.",
        ),
        Mistake(
            "the loader instead of its state",
            'tdr.mix_report(tdr.stateful_loader(tdr.mix({"a": (tdr.stream_shards(shards), 1)})))',
            StateError,
            "mix_report: expected the state_dict() of a chain with mix(), got a StatefulLoader.",
        ),
        Mistake(
            "the method instead of its result",
            'tdr.mix_report(tdr.mix({"a": (urls, 1)}).state_dict)',
            StateError,
            "mix_report: expected the state_dict() of a chain with mix(), got a method.",
        ),
        Mistake(
            "a chain without a mixture",
            "tdr.mix_report(tdr.Resumable(tdr.stream_shards(shards)).state_dict())",
            StateError,
            "mix_report: expected the state_dict() of a chain with mix(), got a dict with 'version', 'chain', ...",
        ),
        Mistake(
            "a path",
            'tdr.mix_report("state.json")',
            StateError,
            "mix_report: expected the state_dict() of a chain with mix(), got 'state.json' (str).",
        ),
        Mistake(
            "None",
            "tdr.mix_report(None)",
            StateError,
            "mix_report: expected the state_dict() of a chain with mix(), got None.",
        ),
        Mistake(
            "no states",
            "tdr.mix_report([])",
            StateError,
            "mix_report: expected the state_dict() of a chain with mix(), got [] (list).",
        ),
        Mistake(
            "states as arguments",
            "tdr.mix_report({}, {})",
            TypeError,
            "mix_report() takes 1 argument by position (state), got 2; not expected: a dict.",
        ),
        Mistake(
            "a mixture that has not begun",
            'tdr.mix_report(tdr.Resumable(tdr.mix({"a": (tdr.stream_shards(shards), 1)})).state_dict()).drawn',
            None,
            "{}",
        ),
    ],
    "to_node": [
        Mistake(
            "a list",
            "tdr.to_node([1, 2])",
            TypeError,
            ("to_node: pipe must be a chain of pipes, got a list. Write IterableWrapper(items) to make a chain of it."),
        ),
        Mistake(
            "a URL",
            "tdr.to_node(shards)",
            TypeError,
            (
                "to_node: pipe must be a chain of pipes, got a str. Begin a chain by tdr.stream_shards(url) or "
                "IterableWrapper([url]).list_remote()."
            ),
        ),
        Mistake(
            "no chain",
            "tdr.to_node()",
            TypeError,
            ("to_node() is missing 'pipe' (the chain, with sharding_filter_rank after its URLs). Write to_node(pipe)."),
        ),
        Mistake(
            "a map-style dataset",
            "tdr.to_node(tdr.RemoteFiles(files))",
            TypeError,
            (
                "to_node: pipe must be a chain of pipes, got a RemoteFiles. A map-style dataset is read by "
                "tdr.PrefetchingLoader, or by torch's DataLoader."
            ),
        ),
        Mistake(
            "misspelt option",
            "tdr.to_node(tdr.stream_shards(shards), num_stream=2)",
            TypeError,
            "to_node() got an unexpected keyword argument 'num_stream'; did you mean 'num_streams'?",
        ),
        Mistake(
            "option of the loader",
            "tdr.to_node(tdr.stream_shards(shards), batch_size=2)",
            TypeError,
            (
                "to_node() got an unexpected keyword argument 'batch_size'. Pass it to stateful_loader(pipe, "
                "batch_size=...)."
            ),
        ),
        Mistake(
            "no streams",
            "tdr.to_node(tdr.stream_shards(shards), num_streams=0)",
            ValueError,
            "to_node: num_streams must be an int of at least 1 or None, got 0.",
        ),
        Mistake(
            "streams of a Resumable",
            "tdr.to_node(tdr.Resumable(tdr.stream_shards(shards)), num_streams=2)",
            ValueError,
            ("to_node: num_streams belongs to the Resumable that was passed: Resumable(pipe, num_streams=2)."),
        ),
        Mistake(
            "a chain with torch's shuffle",
            "tdr.to_node(tdr.stream_shards(shards).shuffle())",
            StateError,
            ("Shuffler cannot be resumed where it was. Use instead: shuffle_samples(), or shuffle_shards() for URLs."),
        ),
    ],
    "merge_node_states": [
        Mistake("no states", "tdr.merge_node_states([])", StateError, "There is no state to merge."),
        Mistake(
            "one state, not in a list",
            'tdr.merge_node_states({"num_yielded": 0})',
            StateError,
            "Expected a list of states, one of each rank, got dict. Write [state].",
        ),
        Mistake(
            "no argument",
            "tdr.merge_node_states()",
            TypeError,
            (
                "merge_node_states() is missing 'states' (loader.state_dict() of each rank at the same step, "
                "in the order of the ranks, as by torch.distributed.all_gather_object). Write "
                "merge_node_states(states)."
            ),
        ),
        Mistake(
            "None among the states",
            'tdr.merge_node_states([{"a": 1}, None])',
            StateError,
            "Expected the state of a graph in each rank, as a dict of loader.state_dict(), got None.",
        ),
        Mistake(
            "states of different graphs",
            'tdr.merge_node_states([{"a": 1}, {"b": 1}])',
            StateError,
            "The states: ranks have different graphs. Build the same one in each rank.",
        ),
        Mistake(
            "states of different steps",
            ('tdr.merge_node_states([{"num_yielded": 1, "root": {}}, {"num_yielded": 2, "root": {}}])'),
            StateError,
            (
                "The states are of different steps: their loaders have handed out [1, 2] items. Merge the "
                "states that all ranks have saved at the same step."
            ),
        ),
        Mistake(
            "a path",
            'tdr.merge_node_states("states.json")',
            StateError,
            "Expected a list of states, one of each rank, got str.",
        ),
        Mistake(
            "an empty state",
            "tdr.merge_node_states([{}])",
            StateError,
            "Expected the state of a graph in each rank, as a dict of loader.state_dict(), got {}.",
        ),
        Mistake(
            "None for a state",
            "tdr.merge_node_states([None])",
            StateError,
            "Expected the state of a graph in each rank, as a dict of loader.state_dict(), got None.",
        ),
    ],
}
