"""Mistakes with writers of shards."""

from __future__ import annotations

from torchdata_remote.errors import (
    EmptyListingError,
    EncodeError,
    LabelError,
    ObjectExistsError,
    ObjectNotFoundError,
    ShardReadError,
    ShardWriteError,
    UrlError,
)

from .mistake import Mistake

TABLE = {
    "write_snapshot": [
        Mistake(
            "no shards",
            'tdr.write_snapshot("memory://mistakes/a.snapshot.json")',
            TypeError,
            "write_snapshot() is missing 'urls' (of shards). Write write_snapshot(url, urls).",
        ),
        Mistake(
            "another name",
            'tdr.write_snapshot("memory://mistakes/train-v1.json", urls)',
            UrlError,
            "memory://mistakes/train-v1.json: the name of a snapshot ends in .snapshot.json, by which it is ...",
        ),
        Mistake(
            "arguments exchanged",
            'tdr.write_snapshot(urls, "memory://mistakes/a.snapshot.json")',
            UrlError,
            "write_snapshot: expected one URL or path, as str or os.PathLike, got IterableWrapper...",
        ),
        Mistake(
            "overwrite=",
            'tdr.write_snapshot("memory://mistakes/a.snapshot.json", urls, overwrite=True)',
            TypeError,
            "write_snapshot() got an unexpected keyword argument 'overwrite'. It takes url, urls, ...",
        ),
        Mistake(
            "an URL instead of URLs",
            'tdr.write_snapshot("memory://mistakes/a.snapshot.json", "s3://photos/")',
            UrlError,
            "write_snapshot: expected URLs of shards, got the str 's3://photos/': list it, by ...",
        ),
        Mistake(
            "shuffled",
            'tdr.write_snapshot("memory://mistakes/a.snapshot.json", urls.shuffle_shards())',
            ValueError,
            "write_snapshot: ShuffleShards yields another order in each epoch: pass the pipe before it, and ...",
        ),
        Mistake(
            "samples",
            'tdr.write_snapshot("memory://mistakes/a.snapshot.json", samples)',
            UrlError,
            "write_snapshot: expected one URL or path, got a sample: 'cat/1'. Put this pipe before those that open ...",
        ),
        Mistake(
            "a shard that is not there",
            'tdr.write_snapshot("memory://mistakes/a.snapshot.json", [f"{shards}9.tar"])',
            ObjectNotFoundError,
            "memory://mistakes/shards/9.tar is not there, and a snapshot cannot hold it.",
        ),
        Mistake(
            "a signed URL",
            'tdr.write_snapshot("memory://mistakes/a.snapshot.json", ["https://host/0.tar?sig=abc"])',
            UrlError,
            "https://host/0.tar: the URL has a query or user-info, which may be a signature or a password, and ...",
        ),
        Mistake(
            "a Path",
            'tdr.write_snapshot(folder / "a.snapshot.json", urls).num_samples',
            None,
            "None",
        ),
    ],
    "ShardWriter": [
        Mistake(
            "no template",
            "tdr.ShardWriter()",
            TypeError,
            (
                "ShardWriter() is missing 'url_template' (URL with one {shard} field in its base name, such as "
                "s3://bucket/train/{shard:06d}.tar, or .tar.gz, .tgz, .tar.zst for compressed shards, which "
                "have neither index nor keys). Write ShardWriter(url_template)."
            ),
        ),
        Mistake(
            "a folder",
            'tdr.ShardWriter("memory://mistakes/out/")',
            ShardWriteError,
            (
                "memory://mistakes/out/: it needs exactly one {shard} field, in its base name. Expected a "
                "template such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "a path without number",
            'tdr.ShardWriter("/data/train.tar")',
            ShardWriteError,
            (
                "/data/train.tar: it needs exactly one {shard} field, in its base name. Expected a template "
                "such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "a template as a number",
            "tdr.ShardWriter(6)",
            TypeError,
            ("ShardWriter: url_template must be a str such as 's3://bucket/train/{shard:06d}.tar', got 6 (int)."),
        ),
        Mistake(
            "a Path as template", 'type(tdr.ShardWriter(folder / "{shard:03d}.tar")).__name__', None, "'ShardWriter'"
        ),
        Mistake(
            "a number as float",
            'tdr.ShardWriter("memory://mistakes/{shard:.2f}.tar")',
            ShardWriteError,
            (
                "memory://mistakes/{shard:.2f}.tar: '.2f' is not a number format such as 06d. Expected a "
                "template such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "the number in the folder",
            'tdr.ShardWriter("memory://mistakes/{shard}/data.tar")',
            ShardWriteError,
            (
                "memory://mistakes/{shard}/data.tar: it needs exactly one {shard} field, in its base name; "
                "other braces are doubled: {{ and }}. Expected a template such as "
                "s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "two numbers",
            'tdr.ShardWriter("memory://mistakes/{shard}-{shard}.tar")',
            ShardWriteError,
            (
                "memory://mistakes/{shard}-{shard}.tar: it needs exactly one {shard} field, in its base name. "
                "Expected a template such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "a number without a name",
            'tdr.ShardWriter("memory://mistakes/{}.tar")',
            ShardWriteError,
            (
                "memory://mistakes/{}.tar: it needs exactly one {shard} field, in its base name. Expected a "
                "template such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "a compression that is not written",
            'tdr.ShardWriter("memory://mistakes/{shard}.tar.bz2")',
            ShardWriteError,
            (
                "memory://mistakes/{shard}.tar.bz2: the name must end in one of .tar, .tar.gz, .tgz, .tar.zst. "
                "Expected a template such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "a credential in the URL",
            'tdr.ShardWriter("s3://key:secret@photos/{shard}.tar")',
            UrlError,
            (
                "s3://photos/: credentials do not belong into a URL, where logs and samples would show them. "
                "Pass them by storage_options or the environment."
            ),
        ),
        Mistake(
            "misspelt option",
            "tdr.ShardWriter(new, max_shard_byte=1)",
            TypeError,
            ("ShardWriter() got an unexpected keyword argument 'max_shard_byte'; did you mean 'max_shard_bytes'?"),
        ),
        Mistake(
            "WebDataset's options",
            "tdr.ShardWriter(new, maxcount=1000)",
            TypeError,
            ("ShardWriter() got an unexpected keyword argument 'maxcount'; did you mean 'max_shard_samples'?"),
        ),
        Mistake(
            "compress=",
            "tdr.ShardWriter(new, compress=True)",
            TypeError,
            (
                "ShardWriter() got an unexpected keyword argument 'compress'. It takes url_template, "
                "max_shard_bytes, max_shard_samples, max_member_bytes, overwrite, storage_options."
            ),
        ),
        Mistake(
            "a limit with a unit",
            'tdr.ShardWriter(new, max_shard_bytes="1 GiB")',
            TypeError,
            ("ShardWriter: max_shard_bytes must be an int of at least 1, got '1 GiB' (str). Write 1_073_741_824."),
        ),
        Mistake(
            "a limit of None",
            "tdr.ShardWriter(new, max_shard_samples=None)",
            TypeError,
            "ShardWriter: max_shard_samples must be an int of at least 1, got None.",
        ),
        Mistake(
            "a negative limit",
            "tdr.ShardWriter(new, max_member_bytes=-1)",
            ValueError,
            "ShardWriter: max_member_bytes must be an int of at least 1, got -1.",
        ),
        Mistake(
            "a limit by position",
            "tdr.ShardWriter(new, 1000)",
            TypeError,
            (
                "ShardWriter() takes 1 argument by position (url_template), got 2; not expected: an int. Pass "
                "the rest by name: max_shard_bytes=, max_shard_samples=, max_member_bytes=, overwrite=, "
                "storage_options=."
            ),
        ),
        Mistake(
            '"yes" for True',
            'tdr.ShardWriter(new, overwrite="yes")',
            TypeError,
            ("ShardWriter: overwrite must be True or False, got 'yes' (str). Write True, without quotes."),
        ),
        Mistake(
            "a closed writer",
            (
                'writer = tdr.ShardWriter(new)\nwriter.write({"__key__": "1", "txt": '
                '"a"})\nwriter.close()\nwriter.write({"__key__": "2", "txt": "a"})'
            ),
            ShardWriteError,
            "memory://mistakes/.../000.tar: this writer is closed; make a new one.",
        ),
        Mistake(
            "nothing written",
            "tdr.ShardWriter(new).close()",
            ShardWriteError,
            "memory://mistakes/.../000.tar: there are no samples to write.",
        ),
        Mistake(
            "no key",
            'tdr.ShardWriter(new).write({"txt": "a"})',
            ShardWriteError,
            "Expected a sample: a dict with a str under '__key__', got dict with ['txt'].",
        ),
        Mistake(
            "a key that is a number",
            'tdr.ShardWriter(new).write({"__key__": 1, "txt": "a"})',
            ShardWriteError,
            ("Expected a sample: a dict with a str under '__key__', got dict with ['__key__', 'txt']."),
        ),
        Mistake(
            "a key in bytes",
            'tdr.ShardWriter(new).write({"__key__": b"1", "txt": "a"})',
            ShardWriteError,
            ("Expected a sample: a dict with a str under '__key__', got dict with ['__key__', 'txt']."),
        ),
        Mistake(
            "a key with a dot",
            'tdr.ShardWriter(new).write({"__key__": "1.jpg", "txt": "a"})',
            ShardWriteError,
            (
                "Sample '1.jpg', member 'txt': '1.jpg.txt' cannot be written: it would be read back as key '1' "
                "and extension 'jpg.txt'; a key has no dot in its base name, an extension is in lower case and "
                "has no slash."
            ),
        ),
        Mistake(
            "an empty key",
            'tdr.ShardWriter(new).write({"__key__": "", "txt": "a"})',
            ShardWriteError,
            (
                "Sample '', member 'txt': '.txt' cannot be written: its base name starts with a dot, which "
                "leaves no key."
            ),
        ),
        Mistake(
            "an absolute key",
            'tdr.ShardWriter(new).write({"__key__": "/a/1", "txt": "a"})',
            ShardWriteError,
            "Sample '/a/1', member 'txt': '/a/1.txt' cannot be written: it is absolute.",
        ),
        Mistake(
            "a key twice",
            (
                'writer = tdr.ShardWriter(new)\nwriter.write({"__key__": "1", "txt": '
                '"a"})\nwriter.write({"__key__": "1", "txt": "a"})'
            ),
            ShardWriteError,
            (
                "memory://mistakes/.../000.tar: two samples have the key '1'. Keys within a shard must differ; "
                "put the folder or a number into the key."
            ),
        ),
        Mistake("an extension with a dot", 'tdr.ShardWriter(new).write({"__key__": "1", ".txt": "a"})', None, "None"),
        Mistake(
            "an extension in capitals",
            'tdr.ShardWriter(new).write({"__key__": "1", "TXT": "a"})',
            ShardWriteError,
            (
                "Sample '1', member 'TXT': '1.TXT' cannot be written: it would be read back as key '1' and "
                "extension 'txt'; a key has no dot in its base name, an extension is in lower case and has no "
                "slash."
            ),
        ),
        Mistake(
            "an extension that is a number",
            'tdr.ShardWriter(new).write({"__key__": "1", 0: "a"})',
            ShardWriteError,
            "Sample '1' has a member named 0, which is no str.",
        ),
        Mistake(
            "no members",
            'tdr.ShardWriter(new).write({"__key__": "1"})',
            ShardWriteError,
            "Sample '1' has no members, only ['__key__'].",
        ),
        Mistake(
            "None as member",
            'tdr.ShardWriter(new).write({"__key__": "1", "txt": None})',
            EncodeError,
            (
                "Sample '1': A NoneType cannot be written as 'txt'. Members are bytes, str, int, a PIL.Image "
                "(jpg, jpeg, png, webp, avif, bmp, gif, tif, tiff, ppm, pgm, pbm, pnm), a NumPy array (npy), or "
                "anything that JSON knows (json)."
            ),
        ),
        Mistake(
            "an array as jpg",
            'tdr.ShardWriter(new).write({"__key__": "1", "jpg": np.zeros((2, 2, 3), np.uint8)})',
            EncodeError,
            (
                "Sample '1': A ndarray cannot be written as 'jpg'. Members are bytes, str, int, a PIL.Image "
                "(jpg, jpeg, png, webp, avif, bmp, gif, tif, tiff, ppm, pgm, pbm, pnm), a NumPy array (npy), or "
                "anything that JSON knows (json). Write PIL.Image.fromarray(array)."
            ),
        ),
        Mistake(
            "a tensor",
            'tdr.ShardWriter(new).write({"__key__": "1", "npy": torch.zeros(2)})',
            EncodeError,
            (
                "Sample '1': A Tensor cannot be written as 'npy'. Members are bytes, str, int, a PIL.Image "
                "(jpg, jpeg, png, webp, avif, bmp, gif, tif, tiff, ppm, pgm, pbm, pnm), a NumPy array (npy), or "
                "anything that JSON knows (json). Write value.numpy()."
            ),
        ),
        Mistake(
            "a float as class",
            'tdr.ShardWriter(new).write({"__key__": "1", "cls": 1.0})',
            EncodeError,
            (
                "Sample '1': A float cannot be written as 'cls'. Members are bytes, str, int, a PIL.Image "
                "(jpg, jpeg, png, webp, avif, bmp, gif, tif, tiff, ppm, pgm, pbm, pnm), a NumPy array (npy), or "
                "anything that JSON knows (json)."
            ),
        ),
        Mistake(
            "a bool as class",
            'tdr.ShardWriter(new).write({"__key__": "1", "cls": True})',
            EncodeError,
            (
                "Sample '1': A bool cannot be written as 'cls'. Members are bytes, str, int, a PIL.Image (jpg, "
                "jpeg, png, webp, avif, bmp, gif, tif, tiff, ppm, pgm, pbm, pnm), a NumPy array (npy), or anything "
                "that JSON knows (json)."
            ),
        ),
        Mistake(
            "NaN in json",
            'tdr.ShardWriter(new).write({"__key__": "1", "json": {"x": float("nan")}})',
            EncodeError,
            ("Sample '1': A dict cannot be written as 'json': Out of range float values are not JSON compliant"),
        ),
        Mistake(
            "a set in json",
            'tdr.ShardWriter(new).write({"__key__": "1", "json": {1, 2}})',
            EncodeError,
            ("Sample '1': A set cannot be written as 'json': Object of type set is not JSON serializable"),
        ),
        Mistake(
            "an array of objects",
            'tdr.ShardWriter(new).write({"__key__": "1", "npy": np.array([None, {}])})',
            EncodeError,
            ("Sample '1': A ndarray cannot be written as 'npy': Object arrays cannot be saved when allow_pickle=False"),
        ),
        Mistake(
            "a tuple instead of a sample",
            'tdr.ShardWriter(new).write(("image", 1))',
            ShardWriteError,
            "Expected a sample: a dict with a str under '__key__', got tuple.",
        ),
        Mistake(
            "a list of samples",
            'tdr.ShardWriter(new).write([{"__key__": "1", "txt": "a"}])',
            ShardWriteError,
            "Expected a sample: a dict with a str under '__key__', got list.",
        ),
        Mistake(
            "None instead of a sample",
            "tdr.ShardWriter(new).write(None)",
            ShardWriteError,
            "Expected a sample: a dict with a str under '__key__', got NoneType.",
        ),
        Mistake(
            "existing shards",
            'tdr.ShardWriter(shards + "{shard:06d}.tar").write({"__key__": "1", "txt": "a"})',
            ObjectExistsError,
            (
                "memory://mistakes/shards/000000.tar exists already. Write into another folder, or pass "
                "overwrite=True to replace all shards of this template."
            ),
        ),
    ],
    "shard_dataset": [
        Mistake(
            "no target",
            "tdr.shard_dataset(files)",
            TypeError,
            (
                "shard_dataset() is missing 'url_template' (URL with one {shard} field in its base name, such "
                "as s3://b/train/{shard:06d}.tar). Write shard_dataset(source, url_template)."
            ),
        ),
        Mistake(
            "no arguments",
            "tdr.shard_dataset()",
            TypeError,
            (
                "shard_dataset() is missing 'source' (URL or path of a folder of files, of a tar, a tar of "
                "tars or a compressed one, or of shards); 'url_template' (URL with one {shard} field in its "
                "base name, such as s3://b/train/{shard:06d}.tar). Write shard_dataset(source, url_template)."
            ),
        ),
        Mistake(
            "target and source exchanged",
            "tdr.shard_dataset(new, files)",
            ShardWriteError,
            (
                "memory://mistakes/files/: it needs exactly one {shard} field, in its base name. Expected a "
                "template such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "a folder as target",
            'tdr.shard_dataset(files, "memory://mistakes/out/")',
            ShardWriteError,
            (
                "memory://mistakes/out/: it needs exactly one {shard} field, in its base name. Expected a "
                "template such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "a target as bytes",
            'tdr.shard_dataset(files, b"memory://mistakes/{shard}.tar")',
            TypeError,
            (
                "shard_dataset: url_template must be a str such as 's3://bucket/train/{shard:06d}.tar', got a "
                "bytes. Decode the bytes: value.decode()."
            ),
        ),
        Mistake(
            "a generator as source",
            "tdr.shard_dataset((i for i in range(3)), new)",
            TypeError,
            (
                "shard_dataset: expected a URL, a path or a map-style dataset with len() and [i], got a "
                "generator. For an iterable of samples use write_shards."
            ),
        ),
        Mistake(
            "a chain as source",
            "tdr.shard_dataset(tdr.stream_files(files), new)",
            TypeError,
            (
                "shard_dataset: expected a URL, a path or a map-style dataset with len() and [i], got a "
                "FileReader. For an iterable of samples use write_shards."
            ),
        ),
        Mistake(
            "several URLs as source",
            "tdr.shard_dataset([files, files], new)",
            UrlError,
            (
                "shard_dataset: expected one URL or path, as str or os.PathLike, got list: "
                "['memory://mistakes/files/', 'memory://mistakes/files/']. Call it once for each of them."
            ),
        ),
        Mistake(
            "None as source",
            "tdr.shard_dataset(None, new)",
            TypeError,
            (
                "shard_dataset: expected a URL, a path or a map-style dataset with len() and [i], got None. "
                "For an iterable of samples use write_shards."
            ),
        ),
        Mistake(
            "a DataLoader as source",
            "tdr.shard_dataset(DataLoader([1]), new)",
            TypeError,
            (
                "shard_dataset: expected a URL, a path or a map-style dataset with len() and [i], got a "
                "DataLoader. For an iterable of samples use write_shards."
            ),
        ),
        Mistake(
            "a dict as source",
            'tdr.shard_dataset({"a": 1}, new)',
            TypeError,
            (
                "shard_dataset: expected a URL, a path or a map-style dataset with len() and [i], got a dict. "
                "Pass one of its values, or list(source.values())."
            ),
        ),
        Mistake(
            "a folder with nothing",
            'tdr.shard_dataset("memory://mistakes/nothing/", new)',
            EmptyListingError,
            "memory://mistakes/nothing/: no objects found. memory://mistakes/ has ...",
        ),
        Mistake(
            "misspelt option",
            "tdr.shard_dataset(files, new, transfrom=len)",
            TypeError,
            ("shard_dataset() got an unexpected keyword argument 'transfrom'; did you mean 'transform'?"),
        ),
        Mistake(
            "workers=",
            "tdr.shard_dataset(files, new, workers=2)",
            TypeError,
            ("shard_dataset() got an unexpected keyword argument 'workers'; did you mean 'num_workers'?"),
        ),
        Mistake(
            "a limit with a unit",
            'tdr.shard_dataset(files, new, max_shard_bytes="256MB")',
            TypeError,
            ("shard_dataset: max_shard_bytes must be an int of at least 1, got '256MB' (str). Write 256_000_000."),
        ),
        Mistake(
            "a limit of 0",
            "tdr.shard_dataset(files, new, max_shard_samples=0)",
            ValueError,
            "shard_dataset: max_shard_samples must be an int of at least 1, got 0.",
        ),
        Mistake(
            "negative workers",
            "tdr.shard_dataset(files, new, num_workers=-1)",
            ValueError,
            "shard_dataset: num_workers must be an int of at least 0, got -1.",
        ),
        Mistake(
            "workers as str",
            'tdr.shard_dataset(files, new, num_workers="2")',
            TypeError,
            "shard_dataset: num_workers must be an int of at least 0, got '2' (str). Write 2.",
        ),
        Mistake(
            "seed as float",
            "tdr.shard_dataset(files, new, seed=0.5)",
            TypeError,
            "shard_dataset: seed must be an int, got 0.5 (float).",
        ),
        Mistake(
            "labels as a list",
            'tdr.shard_dataset(pictures, new, labels=["cat", "dog"])',
            TypeError,
            (
                "shard_dataset: labels must be a function from path to class such as "
                "labels.parent_directory(), got a list. Classes are numbered in the order of their names."
            ),
        ),
        Mistake(
            "labels as a dict",
            'tdr.shard_dataset(pictures, new, labels={"cat": 0})',
            TypeError,
            (
                "shard_dataset: labels must be a function from path to class such as "
                "labels.parent_directory(), got a dict. Classes are numbered in the order of their names."
            ),
        ),
        Mistake(
            "labels by name",
            'tdr.shard_dataset(pictures, new, labels="parent_directory")',
            TypeError,
            (
                "shard_dataset: labels must be a function such as labels.parent_directory(), got "
                "'parent_directory' (str)."
            ),
        ),
        Mistake(
            "a labeller that was not built",
            "tdr.shard_dataset(pictures, new, labels=tdr.labels.parent_directory)",
            TypeError,
            (
                "shard_dataset: labels must be a labeller, got the function labels.parent_directory itself. "
                "Write labels.parent_directory(...)."
            ),
        ),
        Mistake(
            "a transform by name",
            'tdr.shard_dataset(files, new, transform="decode")',
            TypeError,
            ("shard_dataset: transform must be a function such as lambda sample: sample, got 'decode' (str)."),
        ),
        Mistake(
            "an executor's class",
            ('tdr.shard_dataset(files, new, executor=__import__("concurrent.futures").futures.ThreadPoolExecutor)'),
            TypeError,
            (
                "shard_dataset: executor must be a concurrent.futures.Executor such as ProcessPoolExecutor(4), "
                "got the class ThreadPoolExecutor."
            ),
        ),
        Mistake(
            "an executor as a number",
            "tdr.shard_dataset(files, new, executor=4)",
            TypeError,
            (
                "shard_dataset: executor must be a concurrent.futures.Executor such as ProcessPoolExecutor(4), "
                "got 4 (int)."
            ),
        ),
        Mistake(
            "executor and workers",
            (
                "tdr.shard_dataset(files, new, num_workers=2, "
                'executor=__import__("concurrent.futures").futures.ThreadPoolExecutor(1))'
            ),
            ValueError,
            ("shard_dataset: executor and num_workers exclude each other: num_workers starts worker processes itself."),
        ),
        Mistake(
            "append and overwrite",
            "tdr.shard_dataset(files, new, append=True, overwrite=True)",
            ValueError,
            "shard_dataset: append keeps existing shards, and overwrite replaces them: choose one.",
        ),
        Mistake(
            '"False" for False',
            'tdr.shard_dataset(files, new, resume="False")',
            TypeError,
            ("shard_dataset: resume must be True or False, got 'False' (str). Write False, without quotes."),
        ),
        Mistake(
            "pattern as a list",
            'tdr.shard_dataset(files, new, pattern=["*.jpg"])',
            TypeError,
            (
                "shard_dataset: pattern must be a str such as '*.jpg', or None, got ['*.jpg'] (list). Pass the "
                "str itself, not a list of it."
            ),
        ),
        Mistake(
            "a pattern that fits nothing",
            'tdr.shard_dataset(files, new, pattern="*.jpg")',
            EmptyListingError,
            (
                "memory://mistakes/files/: no objects found that match pattern='*.jpg'. There are 3 others, "
                "such as '0.txt', '1.txt', '2.txt'."
            ),
        ),
        Mistake(
            "a policy by name",
            'tdr.shard_dataset(files, new, on_bad_member="skip")',
            TypeError,
            ("shard_dataset: on_bad_member must be a function such as tdr.skip_with_warning, got 'skip' (str)."),
        ),
        Mistake(
            "labels of a dataset",
            'tdr.shard_dataset([("a", 1)], new, labels=tdr.labels.parent_directory())',
            TypeError,
            (
                "shard_dataset: labels=, pattern= and on_bad_member= are for files and archives; the items of "
                "a dataset hold its labels."
            ),
        ),
        Mistake(
            "files without folders labelled",
            "tdr.shard_dataset(files, new, labels=tdr.labels.parent_directory(), progress=False)",
            LabelError,
            (
                "'0.txt' has no parent directory to take a label from. If the label is elsewhere in the path, "
                "use labels.from_pattern(regex), or pattern= of label_from_path."
            ),
        ),
        Mistake(
            "memory:// with workers",
            "tdr.shard_dataset(files, new, num_workers=2)",
            ValueError,
            (
                "shard_dataset: memory:// exists in one process only: read or write it without worker processes, or "
                "use files."
            ),
        ),
        Mistake(
            "existing shards",
            'tdr.shard_dataset(files, shards + "{shard:06d}.tar", progress=False)',
            ObjectExistsError,
            (
                "memory://mistakes/shards/index.json exists already. Write into another folder, or pass "
                "overwrite=True to replace all shards of this template."
            ),
        ),
    ],
    "index_shards": [
        Mistake(
            "no URL",
            "tdr.index_shards()",
            TypeError,
            "index_shards() is missing 'url' (the folder). Write index_shards(url).",
        ),
        Mistake(
            "several URLs",
            "tdr.index_shards([shards])",
            UrlError,
            (
                "index_shards: expected one URL or path, as str or os.PathLike, got list: "
                "['memory://mistakes/shards/']. Call it once for each of them."
            ),
        ),
        Mistake(
            "a folder without shards",
            "tdr.index_shards(files)",
            EmptyListingError,
            (
                "memory://mistakes/files/: no objects found that are tars, with recursive=False. "
                "There are 3 others, such as '0.txt', '1.txt', '2.txt': tars are read by stream_shards or "
                "ShardedDataset (plain, gz, bz2, xz, zst), "
                "zips by list_remote(pattern='*.zip').shard_zip_reader(), loose files by "
                "stream_files or RemoteFiles."
            ),
        ),
        Mistake(
            "a folder that has a manifest",
            "tdr.index_shards(shards)",
            ObjectExistsError,
            ("memory://mistakes/shards/index.json exists already. Pass overwrite=True (--overwrite) to replace it."),
        ),
        Mistake(
            "one shard",
            'tdr.index_shards(shards + "000000.tar")',
            UrlError,
            (
                "index_shards: expected the URL of a folder, got that of shards: "
                "memory://mistakes/shards/000000.tar. Pass memory://mistakes/shards/"
            ),
        ),
        Mistake(
            "a glob",
            'tdr.index_shards(shards + "*.tar")',
            UrlError,
            (
                "index_shards: expected the URL of a folder, got that of shards: "
                "memory://mistakes/shards/*.tar. Pass memory://mistakes/shards/"
            ),
        ),
        Mistake(
            "misspelt option",
            "tdr.index_shards(shards, over_write=True)",
            TypeError,
            ("index_shards() got an unexpected keyword argument 'over_write'; did you mean 'overwrite'?"),
        ),
        Mistake(
            "pattern=None",
            "tdr.index_shards(shards, pattern=None)",
            ObjectExistsError,
            "memory://mistakes/shards/index.json exists already. Pass overwrite=True (--overwrite) to replace it.",
        ),
        Mistake(
            "pattern by position",
            'tdr.index_shards(shards, "*.tar")',
            TypeError,
            (
                "index_shards() takes 1 argument by position (url), got 2; not expected: a str. Pass the rest "
                "by name: pattern=, overwrite=, on_shard=, on_bad_member=, progress=, storage_options=."
            ),
        ),
        Mistake(
            '"True" for True',
            'tdr.index_shards(shards, overwrite="True")',
            TypeError,
            ("index_shards: overwrite must be True or False, got 'True' (str). Write True, without quotes."),
        ),
        Mistake(
            "on_shard that was called",
            "tdr.index_shards(shards, overwrite=True, on_shard=None)",
            TypeError,
            (
                "index_shards: on_shard must be a function such as print, got None. Pass the function itself, "
                "not what it returned."
            ),
        ),
        Mistake(
            "a policy by name",
            'tdr.index_shards(shards, overwrite=True, on_bad_member="skip")',
            TypeError,
            ("index_shards: on_bad_member must be a function such as tdr.skip_with_warning, got 'skip' (str)."),
        ),
        Mistake(
            "options as a str",
            'tdr.index_shards(shards, storage_options="anon")',
            TypeError,
            ('index_shards: storage_options must be a dict such as {"key": ..., "secret": ...}, got a str.'),
        ),
        Mistake(
            "files that are no shards",
            'tdr.index_shards(files, pattern="*.txt")',
            ShardReadError,
            (
                "memory://mistakes/files/0.txt: at byte 0: the archive ends in a header, ... It is not a tar, or "
                "the upload was cut short: write the shard again."
            ),
        ),
        Mistake(
            "a folder with nothing",
            'tdr.index_shards("memory://mistakes/nothing/")',
            EmptyListingError,
            (
                "memory://mistakes/nothing/: no objects found that are tars, with "
                "recursive=False. memory://mistakes/ has ..."
            ),
        ),
    ],
}
