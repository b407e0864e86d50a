"""Mistakes with map-style datasets and their loader."""

from __future__ import annotations

from torchdata_remote.errors import (
    DecodeError,
    EmptyListingError,
    LabelError,
    ManifestError,
    ObjectNotFoundError,
    StateError,
    UrlError,
)

from .mistake import Mistake

TABLE = {
    "RemoteImageFolder": [
        Mistake(
            "no URL",
            "tdr.RemoteImageFolder()",
            TypeError,
            "RemoteImageFolder() is missing 'url' (of the folder). Write RemoteImageFolder(url).",
        ),
        Mistake(
            "URL=None",
            "tdr.RemoteImageFolder(None)",
            UrlError,
            ("RemoteImageFolder: expected one URL or path, as str or os.PathLike, got NoneType: None."),
        ),
        Mistake(
            "several URLs",
            "tdr.RemoteImageFolder([pictures, pictures])",
            UrlError,
            (
                "RemoteImageFolder: expected one URL or path, as str or os.PathLike, got list: "
                "['memory://mistakes/pictures/', 'memory://mistakes/pictures/']. Call it once for each of them."
            ),
        ),
        Mistake(
            "URL as bytes",
            'tdr.RemoteImageFolder(b"s3://photos/")',
            UrlError,
            (
                "RemoteImageFolder: expected one URL or path, as str or os.PathLike, got bytes: "
                "b's3://photos/'. Decode it: 's3://photos/'."
            ),
        ),
        Mistake(
            "transform by position",
            "tdr.RemoteImageFolder(pictures, lambda image: image)",
            TypeError,
            (
                "RemoteImageFolder() takes 1 argument by position (url), got 2; not expected: a function. Pass "
                "the rest by name: transform=, target_transform=, index=, classes=, limit=, storage_options=, "
                "max_in_flight=, on_error=, decoder=, cache_dir=, cache_bytes=, retry=, backend=."
            ),
        ),
        Mistake(
            "root= of torchvision",
            "tdr.RemoteImageFolder(root=pictures)",
            TypeError,
            "RemoteImageFolder() got an unexpected keyword argument 'root'; did you mean 'url'?",
        ),
        Mistake(
            "loader= of torchvision",
            "tdr.RemoteImageFolder(pictures, loader=len)",
            TypeError,
            ("RemoteImageFolder() got an unexpected keyword argument 'loader'; did you mean 'decoder'?"),
        ),
        Mistake(
            "misspelt option",
            "tdr.RemoteImageFolder(pictures, target_transfrom=len)",
            TypeError,
            (
                "RemoteImageFolder() got an unexpected keyword argument 'target_transfrom'; did you mean "
                "'target_transform'?"
            ),
        ),
        Mistake(
            "a transform that was not built",
            'tdr.RemoteImageFolder(pictures, transform="ToTensor")',
            TypeError,
            (
                "RemoteImageFolder: transform must be a function such as torchvision.transforms.ToTensor(), "
                "got 'ToTensor' (str)."
            ),
        ),
        Mistake(
            "a list of transforms",
            "tdr.RemoteImageFolder(pictures, transform=[len, len])",
            TypeError,
            (
                "RemoteImageFolder: transform must be a function such as torchvision.transforms.ToTensor(), "
                "got [<built-in function len>, <built-in function len>] (list)."
            ),
        ),
        Mistake(
            "target_transform as a dict",
            "tdr.RemoteImageFolder(pictures, target_transform={0: 1})",
            TypeError,
            "RemoteImageFolder: target_transform must be a function such as int, got a dict with 0.",
        ),
        Mistake(
            "limit=0",
            "tdr.RemoteImageFolder(pictures, limit=0)",
            ValueError,
            "RemoteImageFolder: limit must be an int of at least 1 or None, got 0.",
        ),
        Mistake(
            "limit as a share",
            "tdr.RemoteImageFolder(pictures, limit=0.1)",
            TypeError,
            "RemoteImageFolder: limit must be an int of at least 1 or None, got 0.1 (float).",
        ),
        Mistake(
            "limit as a float",
            "tdr.RemoteImageFolder(pictures, limit=100.0)",
            TypeError,
            ("RemoteImageFolder: limit must be an int of at least 1 or None, got 100.0 (float). Write 100."),
        ),
        Mistake("limit of NumPy", "len(tdr.RemoteImageFolder(pictures, limit=np.int64(3)))", None, "3"),
        Mistake(
            "max_in_flight=0",
            "tdr.RemoteImageFolder(pictures, max_in_flight=0)",
            ValueError,
            "RemoteImageFolder: max_in_flight must be an int of at least 1, got 0.",
        ),
        Mistake(
            "a policy by name",
            'tdr.RemoteImageFolder(pictures, on_error="skip")',
            TypeError,
            ("RemoteImageFolder: on_error must be a function such as lambda error: None, got 'skip' (str)."),
        ),
        Mistake(
            "on_error=None",
            "tdr.RemoteImageFolder(pictures, on_error=None)",
            TypeError,
            (
                "RemoteImageFolder: on_error must be a function such as lambda error: None, got None. Pass the "
                "function itself, not what it returned."
            ),
        ),
        Mistake(
            "a decoder by name",
            'tdr.RemoteImageFolder(pictures, decoder="pil")',
            TypeError,
            "RemoteImageFolder: decoder must be a function such as decoders.rgb, got 'pil' (str).",
        ),
        Mistake(
            "classes as a str",
            'tdr.RemoteImageFolder(pictures, classes="cat")',
            TypeError,
            ("RemoteImageFolder: classes must be a list of names or a dict name -> int, got a str. Write ['cat']."),
        ),
        Mistake(
            "classes as a number",
            "tdr.RemoteImageFolder(pictures, classes=2)",
            TypeError,
            (
                "RemoteImageFolder: classes must be a list of names or a dict name -> int, got 2 (int). The "
                "names decide which label a file gets."
            ),
        ),
        Mistake(
            "classes that lack one",
            'tdr.RemoteImageFolder(pictures, classes=["cat"])',
            LabelError,
            "'dog/0.png' has the label 'dog', which is none of the 1 classes cat.",
        ),
        Mistake(
            "classes as a set",
            'tdr.RemoteImageFolder(pictures, classes={"cat", "dog"})',
            TypeError,
            (
                "RemoteImageFolder: classes must be a list of names or a dict name -> int, got a set, whose "
                "order differs between processes. Write sorted(classes)."
            ),
        ),
        Mistake(
            "an index that is a number",
            "tdr.RemoteImageFolder(pictures, index=3)",
            TypeError,
            "RemoteImageFolder: index must be a URL, a path, a list of paths, or None, got 3 (int).",
        ),
        Mistake(
            "an index that does not exist",
            'tdr.RemoteImageFolder(pictures, index="/nonexistent/index.json")',
            ObjectNotFoundError,
            "file:///nonexistent/index.json: no such file.",
        ),
        Mistake(
            "an index with nothing",
            "tdr.RemoteImageFolder(pictures, index=[])",
            ManifestError,
            ("the list given as index: the index is empty, expected at least one path. Write it again."),
        ),
        Mistake(
            "an index of pairs",
            'tdr.RemoteImageFolder(pictures, index=[("cat/0.png", 0)])',
            ManifestError,
            "the list given as index: entry 0 is ('cat/0.png', 0) (tuple), expected a path as str.",
        ),
        Mistake(
            "retry as a number",
            "tdr.RemoteImageFolder(pictures, retry=5)",
            TypeError,
            (
                "RemoteImageFolder: retry must be a RetryPolicy or None, got 5 (int). Write "
                "retry=RetryPolicy(max_attempts=5)."
            ),
        ),
        Mistake(
            "backend that does not exist",
            'tdr.RemoteImageFolder(pictures, backend="s3fs")',
            ValueError,
            (
                "RemoteImageFolder: backend must be one of 'automatic', 'obstore', 'botocore', 'fsspec', got "
                "'s3fs' (str)."
            ),
        ),
        Mistake(
            "files that are no pictures",
            "tdr.RemoteImageFolder(files)",
            EmptyListingError,
            (
                "memory://mistakes/files/: there is no file whose name ends in one of .jpg, .jpeg, .png, "
                ".webp, .bmp, .tif, .tiff, .ppm, .pgm. There are 3 others, such as '0.txt', '1.txt', '2.txt': "
                "tars are read by stream_shards or "
                "ShardedDataset (plain, gz, bz2, xz, zst), "
                "zips by list_remote(pattern='*.zip').shard_zip_reader(), loose files by "
                "stream_files or RemoteFiles."
            ),
        ),
        Mistake(
            "a folder with nothing",
            'tdr.RemoteImageFolder("memory://mistakes/nothing/")',
            EmptyListingError,
            "memory://mistakes/nothing/: no objects found. memory://mistakes/ has ...",
        ),
        Mistake(
            "pictures that are none",
            "tdr.RemoteImageFolder(flat)[0]",
            DecodeError,
            (
                "memory://mistakes/flat/0.png: its 10 bytes cannot be decoded: UnidentifiedImageError: not an "
                "image of a known format (JPEG, PNG, WEBP, AVIF, BMP, GIF, TIFF, PPM)"
            ),
        ),
        Mistake(
            "an index out of range",
            "tdr.RemoteImageFolder(pictures)[4]",
            IndexError,
            "RemoteImageFolder has 4 items, so index 4 is out of range.",
        ),
        Mistake(
            "a slice",
            "tdr.RemoteImageFolder(pictures)[0:2]",
            TypeError,
            (
                "An item is selected by its index, an int, got slice: slice(0, 2, None). To select several, "
                "use a DataLoader, a Subset, or [dataset[index] for index in indices]."
            ),
        ),
        Mistake(
            "a float index",
            "tdr.RemoteImageFolder(pictures)[0.0]",
            TypeError,
            (
                "An item is selected by its index, an int, got float: 0.0. To select several, use a "
                "DataLoader, a Subset, or [dataset[index] for index in indices]."
            ),
        ),
        Mistake(
            "a str index",
            'tdr.RemoteImageFolder(pictures)["cat"]',
            TypeError,
            (
                "An item is selected by its index, an int, got str: 'cat'. To select several, use a "
                "DataLoader, a Subset, or [dataset[index] for index in indices]."
            ),
        ),
        Mistake(
            "a list of indices",
            "tdr.RemoteImageFolder(pictures)[[0, 1]]",
            TypeError,
            (
                "An item is selected by its index, an int, got list: [0, 1]. To select several, use a "
                "DataLoader, a Subset, or [dataset[index] for index in indices]."
            ),
        ),
        Mistake("a tensor as index", "tdr.RemoteImageFolder(pictures)[torch.tensor(1)][1]", None, "0"),
        Mistake(
            "a bool as index",
            "tdr.RemoteImageFolder(pictures)[True]",
            TypeError,
            (
                "An item is selected by its index, an int, got bool: True. To select several, use a "
                "DataLoader, a Subset, or [dataset[index] for index in indices]."
            ),
        ),
        Mistake(
            "a list of Paths as index",
            'tdr.RemoteImageFolder(pictures, index=[Path("mistakes/pictures/cat/0.png")]).targets',
            None,
            "[0]",
        ),
        Mistake(
            "an array of Paths as index",
            'tdr.RemoteImageFolder(pictures, index=np.array([Path("mistakes/pictures/dog/1.png")])).targets',
            None,
            "[0]",
        ),
        Mistake(
            "an array of str as index",
            'list(tdr.RemoteImageFolder(pictures, index=np.array(["mistakes/pictures/dog/1.png"])).samples)',
            None,
            "[('memory://mistakes/pictures/dog/1.png', 0)]",
        ),
        Mistake(
            "a set as index",
            'tdr.RemoteImageFolder(pictures, index={"mistakes/pictures/cat/0.png"})',
            TypeError,
            (
                "RemoteImageFolder: index must be a URL, a path, a list of paths, or None, got "
                "{'mistakes/pictures/cat/0.png'} (set). Write sorted(index)."
            ),
        ),
        Mistake(
            "a negative label",
            'tdr.RemoteImageFolder(pictures, classes={"cat": 0, "dog": -1})',
            ValueError,
            "RemoteImageFolder: classes must give each name a label from 0 to 2147483647, got {'dog': -1}.",
        ),
        Mistake(
            "no name in classes",
            "tdr.RemoteImageFolder(pictures, classes=[])",
            ValueError,
            (
                "RemoteImageFolder: classes must name at least one class, got []. Leave it out to number the "
                "parent directories."
            ),
        ),
        Mistake(
            "no class in a dict",
            "tdr.RemoteImageFolder(pictures, classes={})",
            ValueError,
            (
                "RemoteImageFolder: classes must name at least one class, got {}. Leave it out to number the "
                "parent directories."
            ),
        ),
        Mistake(
            "a labeller that returns tensors",
            "tdr.RemoteImageFolder(pictures, classes=lambda path: torch.tensor(3)).targets",
            None,
            "[3, 3, 3, 3]",
        ),
        Mistake(
            "a labeller that returns floats",
            "tdr.RemoteImageFolder(pictures, classes=lambda path: 3.0)",
            LabelError,
            (
                "'cat/0.png' has the label 3.0 (float), expected the name of a class, which is not empty, or its "
                "number from 0 to 2147483647."
            ),
        ),
    ],
    "RemoteFiles": [
        Mistake(
            "no URL",
            "tdr.RemoteFiles()",
            TypeError,
            "RemoteFiles() is missing 'url' (of the folder). Write RemoteFiles(url).",
        ),
        Mistake(
            "several URLs",
            "tdr.RemoteFiles([files])",
            UrlError,
            (
                "RemoteFiles: expected one URL or path, as str or os.PathLike, got list: "
                "['memory://mistakes/files/']. Call it once for each of them."
            ),
        ),
        Mistake(
            "a glob as option",
            'tdr.RemoteFiles(files, pattern="*.txt")',
            TypeError,
            (
                "RemoteFiles() got an unexpected keyword argument 'pattern'. It takes url, index, limit, "
                "storage_options, max_in_flight, on_error, cache_dir, cache_bytes, retry, backend."
            ),
        ),
        Mistake(
            "a transform",
            "tdr.RemoteFiles(files, transform=len)",
            TypeError,
            (
                "RemoteFiles() got an unexpected keyword argument 'transform'. It takes url, index, limit, "
                "storage_options, max_in_flight, on_error, cache_dir, cache_bytes, retry, backend."
            ),
        ),
        Mistake(
            "misspelt option",
            "tdr.RemoteFiles(files, limits=3)",
            TypeError,
            "RemoteFiles() got an unexpected keyword argument 'limits'; did you mean 'limit'?",
        ),
        Mistake(
            "limit=-1",
            "tdr.RemoteFiles(files, limit=-1)",
            ValueError,
            "RemoteFiles: limit must be an int of at least 1 or None, got -1.",
        ),
        Mistake(
            "limit as a bool",
            "tdr.RemoteFiles(files, limit=True)",
            TypeError,
            "RemoteFiles: limit must be an int of at least 1 or None, got True (bool).",
        ),
        Mistake(
            "a policy by name",
            'tdr.RemoteFiles(files, on_error="ignore")',
            TypeError,
            ("RemoteFiles: on_error must be a function such as lambda error: None, got 'ignore' (str)."),
        ),
        Mistake(
            "an index as a dict",
            'tdr.RemoteFiles(files, index={"0.txt": 0})',
            TypeError,
            ("RemoteFiles: index must be a URL, a path, a list of paths, or None, got a dict with '0.txt'."),
        ),
        Mistake(
            "an index with bytes",
            'tdr.RemoteFiles(files, index=[b"0.txt"])',
            ManifestError,
            "the list given as index: entry 0 is b'0.txt' (bytes), expected a path as str.",
        ),
        Mistake(
            "a pipe instead of a URL",
            "tdr.RemoteFiles(urls)",
            UrlError,
            (
                "RemoteFiles: expected one URL or path, as str or os.PathLike, got IterableWrapper...: "
                "IterableWrapper.... Call it once for each of them."
            ),
        ),
        Mistake(
            "an index out of range",
            "tdr.RemoteFiles(files)[99]",
            IndexError,
            "RemoteFiles has 3 items, so index 99 is out of range.",
        ),
        Mistake(
            "options as a str",
            'tdr.RemoteFiles(files, storage_options="anon")',
            TypeError,
            ('RemoteFiles: storage_options must be a dict such as {"key": ..., "secret": ...}, got a str.'),
        ),
        Mistake(
            "a folder with nothing",
            'tdr.RemoteFiles("memory://mistakes/nothing/")',
            EmptyListingError,
            "memory://mistakes/nothing/: no objects found. memory://mistakes/ has ...",
        ),
    ],
    "ShardedDataset": [
        Mistake(
            "no URL",
            "tdr.ShardedDataset()",
            TypeError,
            (
                "ShardedDataset() is missing 'manifest_url' (of the manifest index.json, or of its folder). "
                "Write ShardedDataset(manifest_url)."
            ),
        ),
        Mistake(
            "a folder without a manifest",
            "tdr.ShardedDataset(pictures)",
            ObjectNotFoundError,
            (
                "memory://mistakes/pictures/index.json: there is no manifest. Writers publish it last, so a "
                "job may be unfinished. For shards of other tools, write it: torchdata-remote manifest FOLDER."
            ),
        ),
        Mistake(
            "one shard",
            'tdr.ShardedDataset(shards + "000000.tar")',
            UrlError,
            (
                "ShardedDataset: expected the URL of a manifest or of its folder, got that of shards: "
                "memory://mistakes/shards/000000.tar. Pass memory://mistakes/shards/"
            ),
        ),
        Mistake(
            "a glob",
            'tdr.ShardedDataset(shards + "*.tar")',
            UrlError,
            (
                "ShardedDataset: expected the URL of a manifest or of its folder, got that of shards: "
                "memory://mistakes/shards/*.tar. Pass memory://mistakes/shards/"
            ),
        ),
        Mistake(
            "several URLs",
            "tdr.ShardedDataset([shards])",
            UrlError,
            (
                "ShardedDataset: expected one URL or path, as str or os.PathLike, got list: "
                "['memory://mistakes/shards/']. Call it once for each of them."
            ),
        ),
        Mistake(
            "misspelt option",
            "tdr.ShardedDataset(shards, transfrom=len)",
            TypeError,
            ("ShardedDataset() got an unexpected keyword argument 'transfrom'; did you mean 'transform'?"),
        ),
        Mistake(
            "option of stream_shards",
            "tdr.ShardedDataset(shards, seed=0)",
            TypeError,
            (
                "ShardedDataset() got an unexpected keyword argument 'seed'. It takes manifest_url, transform, "
                "on_bad_member, storage_options, max_in_flight, retry, backend."
            ),
        ),
        Mistake(
            "a transform by name",
            'tdr.ShardedDataset(shards, transform="decode")',
            TypeError,
            ("ShardedDataset: transform must be a function such as lambda sample: sample['jpg'], got 'decode' (str)."),
        ),
        Mistake(
            "a policy by name",
            'tdr.ShardedDataset(shards, on_bad_member="skip")',
            TypeError,
            ("ShardedDataset: on_bad_member must be a function such as tdr.skip_with_warning, got 'skip' (str)."),
        ),
        Mistake(
            "nothing in flight",
            "tdr.ShardedDataset(shards, max_in_flight=0)",
            ValueError,
            "ShardedDataset: max_in_flight must be an int of at least 1, got 0.",
        ),
        Mistake(
            "retry as a number",
            "tdr.ShardedDataset(shards, retry=3)",
            TypeError,
            (
                "ShardedDataset: retry must be a RetryPolicy or None, got 3 (int). Write "
                "retry=RetryPolicy(max_attempts=3)."
            ),
        ),
        Mistake(
            "an index out of range",
            "tdr.ShardedDataset(shards)[6]",
            IndexError,
            "ShardedDataset has 6 items, so index 6 is out of range.",
        ),
        Mistake(
            "a key as index",
            'tdr.ShardedDataset(shards)["0/000000"]',
            TypeError,
            (
                "An item is selected by its index, an int, got str: '0/000000'. To select several, use a "
                "DataLoader, a Subset, or [dataset[index] for index in indices]."
            ),
        ),
        Mistake("a negative index of NumPy", 'tdr.ShardedDataset(shards)[np.int64(-1)]["__key__"]', None, "'5/000005'"),
        Mistake("iterated without end", "len(list(islice(tdr.ShardedDataset(shards), 9)))", None, "6"),
    ],
    "PrefetchingLoader": [
        Mistake(
            "no dataset",
            "tdr.PrefetchingLoader()",
            TypeError,
            (
                "PrefetchingLoader() is missing 'dataset' (RemoteFiles, RemoteImageFolder or ShardedDataset). "
                "Write PrefetchingLoader(dataset)."
            ),
        ),
        Mistake(
            "a chain instead of a dataset",
            "tdr.PrefetchingLoader(tdr.stream_shards(shards))",
            TypeError,
            (
                "PrefetchingLoader is for RemoteFiles, RemoteImageFolder and ShardedDataset, got a "
                "ShuffleSamples. A chain is read by stateful_loader(pipe)."
            ),
        ),
        Mistake(
            "a dataset of torch",
            "tdr.PrefetchingLoader(torch.utils.data.TensorDataset(torch.zeros(3)))",
            TypeError,
            (
                "PrefetchingLoader is for RemoteFiles, RemoteImageFolder and ShardedDataset, got a "
                "TensorDataset. For another dataset use DataLoader; for a subset of one of these, a sampler."
            ),
        ),
        Mistake(
            "a Subset",
            "tdr.PrefetchingLoader(torch.utils.data.Subset(tdr.RemoteFiles(files), [0]))",
            TypeError,
            (
                "PrefetchingLoader is for RemoteFiles, RemoteImageFolder and ShardedDataset, got a Subset. For "
                "another dataset use DataLoader; for a subset of one of these, a sampler."
            ),
        ),
        Mistake(
            "a URL",
            "tdr.PrefetchingLoader(files)",
            TypeError,
            (
                "PrefetchingLoader is for RemoteFiles, RemoteImageFolder and ShardedDataset, got a str. For "
                "another dataset use DataLoader; for a subset of one of these, a sampler."
            ),
        ),
        Mistake(
            "misspelt option",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), batchsize=2)",
            TypeError,
            ("PrefetchingLoader() got an unexpected keyword argument 'batchsize'; did you mean 'batch_size'?"),
        ),
        Mistake(
            "another misspelt option",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), prefetch=2)",
            TypeError,
            ("PrefetchingLoader() got an unexpected keyword argument 'prefetch'; did you mean 'prefetch_factor'?"),
        ),
        Mistake(
            "num_streams of stateful_loader",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), num_streams=2)",
            TypeError,
            ("PrefetchingLoader() got an unexpected keyword argument 'num_streams'; did you mean 'num_workers'?"),
        ),
        Mistake(
            "shuffle by position",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), 2, True)",
            TypeError,
            (
                "PrefetchingLoader() takes 2 arguments by position (dataset, batch_size), got 3; not expected: "
                "a bool. Pass the rest by name: shuffle=, seed=, sampler=, batch_sampler=, num_workers=, "
                "collate_fn=, drop_last=, equalize=, world=, generator=."
            ),
        ),
        Mistake(
            "batch_size=0",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), batch_size=0)",
            ValueError,
            "PrefetchingLoader: batch_size must be an int of at least 1 or None, got 0.",
        ),
        Mistake(
            "batch size as str",
            'tdr.PrefetchingLoader(tdr.RemoteFiles(files), batch_size="2")',
            TypeError,
            ("PrefetchingLoader: batch_size must be an int of at least 1 or None, got '2' (str). Write 2."),
        ),
        Mistake(
            "batch size as float",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), batch_size=2.0)",
            TypeError,
            ("PrefetchingLoader: batch_size must be an int of at least 1 or None, got 2.0 (float). Write 2."),
        ),
        Mistake(
            "num_workers=None",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), num_workers=None)",
            TypeError,
            "PrefetchingLoader: num_workers must be an int of at least 0, got None.",
        ),
        Mistake(
            "negative workers",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), num_workers=-2)",
            ValueError,
            "PrefetchingLoader: num_workers must be an int of at least 0, got -2.",
        ),
        Mistake(
            'shuffle="True"',
            'tdr.PrefetchingLoader(tdr.RemoteFiles(files), shuffle="True")',
            TypeError,
            ("PrefetchingLoader: shuffle must be True or False, got 'True' (str). Write True, without quotes."),
        ),
        Mistake(
            "seed without shuffle",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), seed=0)",
            ValueError,
            ("PrefetchingLoader: seed= requires shuffle=True, without a sampler and without a generator."),
        ),
        Mistake(
            "seed as str",
            'tdr.PrefetchingLoader(tdr.RemoteFiles(files), shuffle=True, seed="0")',
            TypeError,
            "PrefetchingLoader: seed must be an int, got '0' (str). Write 0.",
        ),
        Mistake(
            "sampler and shuffle",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), shuffle=True, sampler=[0, 1])",
            ValueError,
            "PrefetchingLoader: shuffle and a sampler exclude each other: the sampler is the order.",
        ),
        Mistake(
            "sampler and batch_sampler",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), sampler=[0], batch_sampler=[[0]])",
            ValueError,
            "PrefetchingLoader: sampler and batch_sampler exclude each other: pass one of them.",
        ),
        Mistake(
            "a sampler and a world",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), sampler=[0], world=tdr.World())",
            ValueError,
            ("PrefetchingLoader: A sampler selects what each rank reads: pass neither equalize= nor world= with it."),
        ),
        Mistake(
            "a sampler of wrong indices",
            "list(tdr.PrefetchingLoader(tdr.RemoteFiles(files), sampler=[7]))",
            IndexError,
            "RemoteFiles has 3 items, so index 7 is out of range.",
        ),
        Mistake(
            "misspelt equalize",
            'tdr.PrefetchingLoader(tdr.RemoteFiles(files), equalize="dropp")',
            ValueError,
            ("PrefetchingLoader: equalize must be one of 'drop', 'repeat', got 'dropp' (str); did you mean 'drop'?"),
        ),
        Mistake(
            "equalize=True",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), equalize=True)",
            TypeError,
            "PrefetchingLoader: equalize must be one of 'drop', 'repeat', got True (bool).",
        ),
        Mistake(
            "world as a number",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), world=1)",
            TypeError,
            (
                "PrefetchingLoader: world: expected a World or None, got 1 (int). Create one by "
                'World.from_mesh(mesh, dp="dp"), by World.from_group(group), or by World(rank, world_size).'
            ),
        ),
        Mistake(
            "persistent workers",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), num_workers=1, persistent_workers=True)",
            ValueError,
            (
                "PrefetchingLoader: persistent_workers: workers are started for each epoch. Leave it out, or "
                "write False."
            ),
        ),
        Mistake(
            "collate_fn by name",
            'tdr.PrefetchingLoader(tdr.RemoteFiles(files), collate_fn="default")',
            TypeError,
            (
                "PrefetchingLoader: collate_fn must be a function such as torch.utils.data.default_collate, "
                "got 'default' (str)."
            ),
        ),
        Mistake(
            "a generator as a number",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), shuffle=True, generator=42)",
            TypeError,
            (
                "PrefetchingLoader: generator must be a Generator or None, got 42 (int). Write "
                "generator=torch.Generator()."
            ),
        ),
        Mistake(
            "a set as sampler",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), sampler=5)",
            TypeError,
            "PrefetchingLoader: sampler must hold indices such as [2, 0, 1], got 5 (int).",
        ),
        Mistake(
            "drop_last=None",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), drop_last=None)",
            TypeError,
            "PrefetchingLoader: drop_last must be True or False, got None.",
        ),
        Mistake(
            "prefetch_factor without workers",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), prefetch_factor=2)",
            ValueError,
            "PrefetchingLoader: prefetch_factor is for workers, and num_workers is 0. Leave it out.",
        ),
        Mistake(
            "an epoch as str",
            'tdr.PrefetchingLoader(tdr.RemoteFiles(files)).set_epoch("1")',
            TypeError,
            "set_epoch: epoch must be an int of at least 0, got '1' (str). Write 1.",
        ),
        Mistake(
            "a state that is None",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files)).load_state_dict(None)",
            StateError,
            "Expected the state_dict() of a PrefetchingLoader, version 1; got NoneType: None",
        ),
        Mistake(
            "an empty state",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files)).load_state_dict({})",
            StateError,
            "Expected the state_dict() of a PrefetchingLoader, version 1; got dict: {}",
        ),
        Mistake(
            "a state of stateful_loader",
            (
                "tdr.PrefetchingLoader(tdr.RemoteFiles(files)).load_state_dict(tdr.stateful_loader(tdr.stream_shards(shards)).state_dict())"
            ),
            StateError,
            (
                "Expected the state_dict() of a PrefetchingLoader, version 1; got dict: {'version': 2, "
                "'chain': ['IterableWrapper()', 'ListRemote()', 'ShuffleShards(seed=0)', "
                "'ShardingFilterRank()', 'AsyncPrefetch()', 'ShardTarReader(interleave=16)', "
                "'ShuffleSamples(buffer_size=10000, ma"
            ),
        ),
        Mistake(
            "a state of another dataset",
            (
                "other = tdr.PrefetchingLoader(tdr.RemoteImageFolder(pictures), collate_fn=len)\nbatches = "
                "iter(other)\nnext(batches)\nloader = "
                "tdr.PrefetchingLoader(tdr.RemoteFiles(files))\nloader.load_state_dict(other.state_dict())\nlist(loader)"
            ),
            StateError,
            (
                "PrefetchingLoader: the state has num_items=4, here it is 3. Build dataset and loader as they "
                "were, or start again without the state."
            ),
        ),
        Mistake(
            "drop_last of NumPy",
            (
                "[len(batch) for batch in tdr.PrefetchingLoader(tdr.RemoteFiles(files), 2, collate_fn=list, "
                "drop_last=np.True_)]"
            ),
            None,
            "[2]",
        ),
        Mistake(
            "drop_last=1",
            (
                "[len(batch) for batch in tdr.PrefetchingLoader(tdr.RemoteFiles(files), batch_size=2, "
                "collate_fn=list, drop_last=1)]"
            ),
            None,
            "[2]",
        ),
        Mistake(
            "in_order of NumPy",
            (
                "len(tdr.PrefetchingLoader(tdr.RemoteFiles(files), in_order=np.True_, pin_memory=np.False_, "
                "timeout=np.float32(0)))"
            ),
            None,
            "3",
        ),
        Mistake(
            "persistent_workers as a str",
            'tdr.PrefetchingLoader(tdr.RemoteFiles(files), persistent_workers="False")',
            TypeError,
            (
                "PrefetchingLoader: persistent_workers must be True or False, got 'False' (str). Write False, "
                "without quotes."
            ),
        ),
        Mistake(
            "a timeout as a str",
            'tdr.PrefetchingLoader(tdr.RemoteFiles(files), timeout="30s")',
            TypeError,
            "PrefetchingLoader: timeout must be a number of seconds, got '30s' (str). Write 30.",
        ),
        Mistake(
            "prefetch_factor as a float",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), num_workers=1, prefetch_factor=2.0)",
            TypeError,
            "PrefetchingLoader: prefetch_factor must be an int of at least 1 or None, got 2.0 (float). Write 2.",
        ),
        Mistake(
            "batch_sampler with indices",
            "tdr.PrefetchingLoader(tdr.RemoteFiles(files), batch_sampler=[0, 1])",
            TypeError,
            (
                "PrefetchingLoader: batch_sampler must yield lists of indices such as [0, 1], got 0 (int). Indices "
                "that are no batches are sampler=."
            ),
        ),
        Mistake(
            "a generator of indices as batch_sampler",
            "list(tdr.PrefetchingLoader(tdr.RemoteFiles(files), batch_sampler=iter([0, 1])))",
            TypeError,
            (
                "PrefetchingLoader: batch_sampler must yield lists of indices such as [0, 1], got 0 (int). Indices "
                "that are no batches are sampler=."
            ),
        ),
        Mistake(
            "batches as a tensor",
            (
                "[len(batch) for batch in tdr.PrefetchingLoader(tdr.RemoteFiles(files), collate_fn=list, "
                "batch_sampler=torch.tensor([[0, 1], [2, 0]]))]"
            ),
            None,
            "[2, 2]",
        ),
        Mistake(
            "how workers start, without workers",
            'tdr.PrefetchingLoader(tdr.RemoteFiles(files), multiprocessing_context="fork")',
            ValueError,
            "PrefetchingLoader: multiprocessing_context is for workers, and num_workers is 0. Leave it out.",
        ),
        Mistake(
            "a start method that does not exist",
            'tdr.PrefetchingLoader(tdr.RemoteFiles(files), num_workers=1, multiprocessing_context="thread")',
            ValueError,
            "PrefetchingLoader: multiprocessing_context must be one of 'fork', 'spawn', 'forkserver', got 'thread'.",
        ),
    ],
}
