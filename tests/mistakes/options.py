"""Mistakes with options, decoders and encoders."""

from __future__ import annotations

from PIL import UnidentifiedImageError

from torchdata_remote.errors import EncodeError, UrlError

from .mistake import Mistake

TABLE = {
    "RetryPolicy": [
        Mistake(
            "misspelt option",
            "tdr.RetryPolicy(max_attempt=3)",
            TypeError,
            ("RetryPolicy() got an unexpected keyword argument 'max_attempt'; did you mean 'max_attempts'?"),
        ),
        Mistake(
            "deadline without unit",
            "tdr.RetryPolicy(deadline=30)",
            TypeError,
            ("RetryPolicy() got an unexpected keyword argument 'deadline'; did you mean 'deadline_s'?"),
        ),
        Mistake(
            "urllib3's option",
            "tdr.RetryPolicy(total=3)",
            TypeError,
            (
                "RetryPolicy() got an unexpected keyword argument 'total'. It takes deadline_s, max_attempts, "
                "first_wait_s, max_wait_s, progress_timeout_s."
            ),
        ),
        Mistake(
            "timeout",
            "tdr.RetryPolicy(timeout_s=3)",
            TypeError,
            ("RetryPolicy() got an unexpected keyword argument 'timeout_s'; did you mean 'progress_timeout_s'?"),
        ),
        Mistake(
            "deadline=0",
            "tdr.RetryPolicy(deadline_s=0)",
            ValueError,
            "RetryPolicy: deadline_s must be positive, got 0.",
        ),
        Mistake(
            "deadline=None",
            "tdr.RetryPolicy(deadline_s=None)",
            TypeError,
            "RetryPolicy: deadline_s must be a number of seconds, got None.",
        ),
        Mistake(
            "deadline with a unit",
            'tdr.RetryPolicy(deadline_s="30s")',
            TypeError,
            "RetryPolicy: deadline_s must be a number of seconds, got '30s' (str). Write 30.",
        ),
        Mistake(
            "deadline in milliseconds",
            'tdr.RetryPolicy(deadline_s="500 ms")',
            TypeError,
            "RetryPolicy: deadline_s must be a number of seconds, got '500 ms' (str). Write 0.5.",
        ),
        Mistake(
            "a timedelta",
            'tdr.RetryPolicy(deadline_s=__import__("datetime").timedelta(minutes=2))',
            TypeError,
            (
                "RetryPolicy: deadline_s must be a number of seconds, got datetime.timedelta(seconds=120) "
                "(timedelta). Write 120."
            ),
        ),
        Mistake(
            "a negative wait",
            "tdr.RetryPolicy(first_wait_s=-1)",
            ValueError,
            "RetryPolicy: first_wait_s must be 0 or more, got -1.",
        ),
        Mistake(
            "waits exchanged",
            "tdr.RetryPolicy(first_wait_s=10, max_wait_s=1)",
            ValueError,
            "RetryPolicy: max_wait_s must be at least first_wait_s, got max_wait_s=1 and first_wait_s=10.",
        ),
        Mistake(
            "attempts=0",
            "tdr.RetryPolicy(max_attempts=0)",
            ValueError,
            "RetryPolicy: max_attempts must be an int of at least 1 or None, got 0.",
        ),
        Mistake(
            "attempts as float",
            "tdr.RetryPolicy(max_attempts=3.0)",
            TypeError,
            ("RetryPolicy: max_attempts must be an int of at least 1 or None, got 3.0 (float). Write 3."),
        ),
        Mistake(
            "attempts as bool",
            "tdr.RetryPolicy(max_attempts=True)",
            TypeError,
            "RetryPolicy: max_attempts must be an int of at least 1 or None, got True (bool).",
        ),
        Mistake("attempts of NumPy", "tdr.RetryPolicy(max_attempts=np.int64(3)).max_attempts", None, "3"),
        Mistake(
            "no number",
            'tdr.RetryPolicy(deadline_s=float("nan"))',
            ValueError,
            "RetryPolicy: deadline_s must be positive, got nan.",
        ),
        Mistake(
            "a bool for seconds",
            "tdr.RetryPolicy(progress_timeout_s=True)",
            TypeError,
            "RetryPolicy: progress_timeout_s must be a number of seconds, got True (bool).",
        ),
        Mistake(
            "seconds as a Decimal",
            'import decimal\nvars(tdr.RetryPolicy(deadline_s=decimal.Decimal(2), first_wait_s=decimal.Decimal("0.5")))',
            None,
            (
                "{'deadline_s': 2.0, 'max_attempts': None, 'first_wait_s': 0.5, 'max_wait_s': 5.0, "
                "'progress_timeout_s': 30.0}"
            ),
        ),
        Mistake(
            "seconds as a tensor",
            "tdr.RetryPolicy(progress_timeout_s=torch.tensor(2.0), max_wait_s=torch.tensor(1)).max_wait_s",
            None,
            "1",
        ),
        Mistake(
            "a bool of NumPy for seconds",
            "tdr.RetryPolicy(deadline_s=np.True_)",
            TypeError,
            "RetryPolicy: deadline_s must be a number of seconds, got np.True_ (bool).",
        ),
        Mistake(
            "several seconds",
            "tdr.RetryPolicy(deadline_s=torch.tensor([1.0, 2.0]))",
            TypeError,
            "RetryPolicy: deadline_s must be a number of seconds, got tensor([1., 2.]) (Tensor).",
        ),
        Mistake(
            "more seconds than a float holds",
            "tdr.RetryPolicy(deadline_s=10**400)",
            ValueError,
            "RetryPolicy: deadline_s must be a number that a float holds, got an int. Write float('inf') for no limit.",
        ),
        Mistake(
            "no waits, but the default first one",
            "tdr.RetryPolicy(max_wait_s=0)",
            ValueError,
            (
                "RetryPolicy: max_wait_s must be at least first_wait_s, got max_wait_s=0 and first_wait_s=0.05 "
                "(its default). Pass first_wait_s=0 too."
            ),
        ),
        Mistake(
            "a first wait above the default limit",
            "tdr.RetryPolicy(first_wait_s=10)",
            ValueError,
            (
                "RetryPolicy: max_wait_s must be at least first_wait_s, got max_wait_s=5 (its default) and "
                "first_wait_s=10. Pass max_wait_s=10 too."
            ),
        ),
    ],
    "StorageOptions": [
        Mistake(
            "a str",
            'tdr.StorageOptions("key")',
            TypeError,
            ('StorageOptions: storage_options must be a dict such as {"key": ..., "secret": ...}, got a str.'),
        ),
        Mistake(
            "a list",
            'tdr.StorageOptions([("key", "secret")])',
            TypeError,
            ('StorageOptions: storage_options must be a dict such as {"key": ..., "secret": ...}, got a list.'),
        ),
        Mistake(
            "by keywords",
            'tdr.StorageOptions(key="a", secret="b")',
            TypeError,
            "StorageOptions() got an unexpected keyword argument 'key'. It takes options.",
        ),
        Mistake(
            "a number as name",
            "tdr.StorageOptions({1: 2})",
            TypeError,
            "StorageOptions: storage_options must have names that are str, got 1.",
        ),
        Mistake(
            "two arguments",
            "tdr.StorageOptions({}, {})",
            TypeError,
            "StorageOptions() takes 1 argument by position (options), got 2; not expected: a dict.",
        ),
        Mistake(
            "a file with nothing",
            ('Path(folder / "a.json").write_text("")\ntdr.StorageOptions.from_file(folder / "a.json")'),
            ValueError,
            (
                ".../a.json: not a file of credentials: no JSON: Expecting value in line 1, column 1. Expected "
                '{"access_key": "...", "secret": "..."} or {"aws_access_key_id": "...", '
                '"aws_secret_access_key": "..."}.'
            ),
        ),
        Mistake(
            "a file with a list",
            ('Path(folder / "a.json").write_text("[1]")\ntdr.StorageOptions.from_file(folder / "a.json")'),
            ValueError,
            (
                '.../a.json: not a file of credentials: it holds a list. Expected {"access_key": "...", '
                '"secret": "..."} or {"aws_access_key_id": "...", "aws_secret_access_key": "..."}.'
            ),
        ),
        Mistake(
            "a file with other fields",
            ('Path(folder / "a.json").write_text(\'{"user": "me"}\')\ntdr.StorageOptions.from_file(folder / "a.json")'),
            ValueError,
            (
                ".../a.json: not a file of credentials: missing 'aws_access_key_id', 'aws_secret_access_key'; "
                'unknown \'user\'. Expected {"aws_access_key_id": "...", "aws_secret_access_key": "..."}, and '
                "optionally aws_session_token, bucket_name, test_index_file_download_url, "
                "train_classes_file_download_url, train_index_file_download_url, "
                "val_classes_file_download_url, val_index_file_download_url."
            ),
        ),
        Mistake(
            "a number as path",
            "tdr.StorageOptions.from_file(None)",
            TypeError,
            "expected str, bytes or os.PathLike object, not NoneType",
        ),
    ],
    "World": [
        Mistake(
            "rank and size exchanged",
            "tdr.World(4, 1)",
            ValueError,
            (
                "World(rank=4, world_size=1, worker=0, num_workers=1): expected 0 <= rank < world_size and 0 "
                "<= worker < num_workers. Check RANK and WORLD_SIZE."
            ),
        ),
        Mistake(
            "rank equal to size",
            "tdr.World(rank=2, world_size=2)",
            ValueError,
            (
                "World(rank=2, world_size=2, worker=0, num_workers=1): expected 0 <= rank < world_size and 0 "
                "<= worker < num_workers. Check RANK and WORLD_SIZE."
            ),
        ),
        Mistake(
            "a negative rank",
            "tdr.World(rank=-1, world_size=2)",
            ValueError,
            (
                "World(rank=-1, world_size=2, worker=0, num_workers=1): expected 0 <= rank < world_size and 0 "
                "<= worker < num_workers. Check RANK and WORLD_SIZE."
            ),
        ),
        Mistake(
            "no size",
            "tdr.World(rank=1)",
            ValueError,
            (
                "World(rank=1, world_size=1, worker=0, num_workers=1): expected 0 <= rank < world_size and 0 "
                "<= worker < num_workers. Check RANK and WORLD_SIZE."
            ),
        ),
        Mistake(
            "ranks as str", 'tdr.World("0", "2")', TypeError, "World: rank must be an int, got '0' (str). Write 0."
        ),
        Mistake(
            "from the environment",
            "tdr.World(rank=None, world_size=None)",
            TypeError,
            "World: rank must be an int, got None.",
        ),
        Mistake(
            "a float rank",
            "tdr.World(rank=0.0, world_size=2)",
            TypeError,
            "World: rank must be an int, got 0.0 (float). Write 0.",
        ),
        Mistake(
            "a bool rank",
            "tdr.World(rank=True, world_size=2)",
            TypeError,
            "World: rank must be an int, got True (bool).",
        ),
        Mistake("ranks of NumPy", "tdr.World(np.int64(1), np.int64(2)).slot", None, "1"),
        Mistake(
            "torch's name",
            "tdr.World(rank=0, num_replicas=2)",
            TypeError,
            (
                "World() got an unexpected keyword argument 'num_replicas'. It takes rank, world_size, worker, "
                "num_workers, group."
            ),
        ),
        Mistake(
            "misspelt option",
            "tdr.World(rank=0, world_sise=2)",
            TypeError,
            "World() got an unexpected keyword argument 'world_sise'; did you mean 'world_size'?",
        ),
        Mistake(
            "no workers",
            "tdr.World(num_workers=0)",
            ValueError,
            (
                "World(rank=0, world_size=1, worker=0, num_workers=0): expected 0 <= rank < world_size and 0 "
                "<= worker < num_workers. Check RANK and WORLD_SIZE."
            ),
        ),
        Mistake(
            "worker beyond workers",
            "tdr.World(worker=3, num_workers=2)",
            ValueError,
            (
                "World(rank=0, world_size=1, worker=3, num_workers=2): expected 0 <= rank < world_size and 0 "
                "<= worker < num_workers. Check RANK and WORLD_SIZE."
            ),
        ),
        Mistake(
            "a group by position",
            "tdr.World(0, 1, 0, 1, None)",
            TypeError,
            (
                "World() takes 4 arguments by position (rank, world_size, worker, num_workers), got 5; not "
                "expected: None. Pass the rest by name: group=."
            ),
        ),
        Mistake(
            "a mesh that is none",
            'tdr.World.from_mesh("dp")',
            TypeError,
            ("Expected a torch.distributed DeviceMesh, got str: 'dp'. World.from_group(group) takes a process group."),
        ),
        Mistake(
            "a group that is none",
            'tdr.World.from_group("dp")',
            TypeError,
            (
                "Expected a torch.distributed ProcessGroup, got str: 'dp'. World.from_mesh(mesh, dp=...) takes "
                "a DeviceMesh."
            ),
        ),
        Mistake(
            "no job",
            "tdr.World.from_group(None)",
            ValueError,
            "World.from_group(None) is all ranks of the job: call init_process_group() first.",
        ),
    ],
    "RemoteUrl": [
        Mistake(
            "bytes",
            'tdr.RemoteUrl(b"s3://photos/0.tar")',
            UrlError,
            "RemoteUrl: expected a URL as str, got bytes: b's3://photos/0.tar'.",
        ),
        Mistake("a number", "tdr.RemoteUrl(1)", UrlError, "RemoteUrl: expected a URL as str, got int: 1."),
        Mistake("None", "tdr.RemoteUrl(None)", UrlError, "RemoteUrl: expected a URL as str, got NoneType: None."),
        Mistake("a size as str", 'tdr.RemoteUrl("s3://photos/0.tar", size="100")', None, "'s3://photos/0.tar'"),
        Mistake("a negative size", 'tdr.RemoteUrl("s3://photos/0.tar", size=-1)', None, "'s3://photos/0.tar'"),
        Mistake(
            "misspelt option",
            'tdr.RemoteUrl("s3://photos/0.tar", e_tag="x")',
            TypeError,
            "RemoteUrl.__new__() got an unexpected keyword argument 'e_tag'",
        ),
        Mistake("a Path", 'tdr.RemoteUrl(Path("/data/0.tar"))', None, "'/data/0.tar'"),
    ],
    "escape_url": [
        Mistake(
            "no URL",
            "tdr.escape_url()",
            TypeError,
            ("escape_url() is missing 'url' (of an object or a folder, or a local path). Write escape_url(url)."),
        ),
        Mistake(
            "bytes",
            'tdr.escape_url(b"s3://photos/")',
            UrlError,
            "escape_url: expected one URL or path, as str or os.PathLike, got bytes",
        ),
        Mistake(
            "None",
            "tdr.escape_url(None)",
            UrlError,
            "escape_url: expected one URL or path, as str or os.PathLike, got NoneType",
        ),
        Mistake(
            "several",
            'tdr.escape_url(["s3://photos/"])',
            UrlError,
            "escape_url: expected one URL or path, as str or os.PathLike, got list",
        ),
        Mistake(
            "misspelt option",
            'tdr.escape_url(uri="s3://photos/")',
            TypeError,
            "escape_url() got an unexpected keyword argument 'uri'; did you mean 'url'?",
        ),
        Mistake(
            "a number",
            "tdr.escape_url(1)",
            UrlError,
            "escape_url: expected one URL or path, as str or os.PathLike, got int",
        ),
    ],
    "record_stats": [
        Mistake(
            "no path",
            "tdr.record_stats()",
            TypeError,
            "record_stats() is missing 'path' (of a local file). Write record_stats(path).",
        ),
        Mistake(
            "a URL",
            'tdr.record_stats("s3://photos/stats.jsonl")',
            ValueError,
            "record_stats: path must be a local path such as 'stats.jsonl', got a URL (s3://...).",
        ),
        Mistake(
            "None",
            "tdr.record_stats(None)",
            TypeError,
            "record_stats: path must be a local path such as 'stats.jsonl', got None.",
        ),
        Mistake(
            "a number, which would be a file descriptor",
            "tdr.record_stats(1)",
            TypeError,
            "record_stats: path must be a local path such as 'stats.jsonl', got 1 (int).",
        ),
        Mistake(
            "an empty path",
            'tdr.record_stats("")',
            ValueError,
            "record_stats: path must be a local path such as 'stats.jsonl', got an empty str.",
        ),
        Mistake(
            "bytes",
            'tdr.record_stats(b"stats.jsonl")',
            TypeError,
            (
                "record_stats: path must be a local path such as 'stats.jsonl', got b'stats.jsonl' (bytes). "
                "Decode the bytes: value.decode()."
            ),
        ),
        Mistake(
            "interval of 0",
            'tdr.record_stats(folder / "a", every_s=0)',
            ValueError,
            "record_stats: every_s must be positive, got 0.",
        ),
        Mistake(
            "a negative interval",
            'tdr.record_stats(folder / "a", every_s=-1)',
            ValueError,
            "record_stats: every_s must be positive, got -1.",
        ),
        Mistake(
            "interval as str",
            'tdr.record_stats(folder / "a", every_s="1s")',
            TypeError,
            "record_stats: every_s must be a number of seconds, got '1s' (str). Write 1.",
        ),
        Mistake(
            "interval by position",
            'tdr.record_stats(folder / "a", 5)',
            TypeError,
            (
                "record_stats() takes 1 argument by position (path), got 2; not expected: an int. Pass the "
                "rest by name: every_s=."
            ),
        ),
        Mistake(
            "interval without unit",
            'tdr.record_stats(folder / "a", every=5)',
            TypeError,
            "record_stats() got an unexpected keyword argument 'every'; did you mean 'every_s'?",
        ),
        Mistake(
            "no interval",
            'tdr.record_stats(folder / "a", every_s=None)',
            TypeError,
            "record_stats: every_s must be a number of seconds, got None.",
        ),
        Mistake(
            "a folder",
            "tdr.record_stats(folder)",
            IsADirectoryError,
            (
                "record_stats: ... is a folder, expected a file in it. Pass .../stats.jsonl, or set "
                "TORCHDATA_REMOTE_STATS=... in the environment, which records each process in a file of its own."
            ),
        ),
        Mistake(
            "a file in a folder that does not exist",
            'tdr.record_stats(folder / "nope" / "x" / "stats.jsonl")',
            FileNotFoundError,
            (
                "record_stats: .../nope/x/stats.jsonl: the folder .../nope/x does not exist. Create it first: "
                "os.makedirs(folder, exist_ok=True)."
            ),
        ),
        Mistake(
            "a file below a file",
            '(folder / "a").write_text("")\ntdr.record_stats(folder / "a" / "b.jsonl")',
            NotADirectoryError,
            "record_stats: .../a/b.jsonl: .../a is no folder. Pass the path of a file in a local folder.",
        ),
    ],
    "RecordedStats": [
        Mistake(
            "no path",
            "tdr.RecordedStats()",
            TypeError,
            "RecordedStats: path is missing: pass the folder of the files, such as 'stats/'.",
        ),
        Mistake(
            "a URL",
            'tdr.RecordedStats("s3://photos/stats/")',
            ValueError,
            ("RecordedStats: path must be a local path such as 'stats/*.jsonl', got a URL (s3://...)."),
        ),
        Mistake(
            "None",
            "tdr.RecordedStats(None)",
            TypeError,
            "RecordedStats: path must be a local path such as 'stats/*.jsonl', got None.",
        ),
        Mistake(
            "a list of paths",
            'tdr.RecordedStats(["a.jsonl", "b.jsonl"])',
            TypeError,
            ("RecordedStats: path must be a local path such as 'stats/*.jsonl', got ['a.jsonl', 'b.jsonl'] (list)."),
        ),
        Mistake(
            "misspelt option",
            'tdr.RecordedStats("a.jsonl", clok=len)',
            TypeError,
            "RecordedStats() got an unexpected keyword argument 'clok'; did you mean 'clock'?",
        ),
    ],
    "stats": [
        Mistake(
            "an argument",
            'tdr.stats("fetch")',
            TypeError,
            "stats() takes no argument by position, got 1; not expected: a str.",
        ),
    ],
    "policies": [
        Mistake(
            "a list of policies",
            "urls.shard_tar_reader(on_bad_shard=[tdr.skip_with_warning])",
            TypeError,
            (
                "shard_tar_reader: on_bad_shard must be a function such as tdr.skip_with_warning, got "
                "[<function skip_with_warning at ...>] (list)."
            ),
        ),
        Mistake(
            "accept_missing_end for members",
            "urls.shard_tar_reader(on_bad_member=tdr.accept_missing_end)",
            None,
            "ShardTarReader",
        ),
    ],
    "decoders": [
        Mistake(
            "no bytes",
            "tdr.decoders.rgb()",
            TypeError,
            "rgb needs the bytes of an image, rgb(data), or makes a decoder, rgb(min_size=224)",
        ),
        Mistake(
            "a size as str",
            'tdr.decoders.rgb(min_size="224")',
            TypeError,
            "rgb: min_size must be an int of at least 1, got '224' (str). Write 224.",
        ),
        Mistake(
            "a size of 0",
            "tdr.decoders.rgb(min_size=0)",
            ValueError,
            "rgb: min_size must be an int of at least 1, got 0.",
        ),
        Mistake(
            "two sizes",
            "tdr.decoders.rgb(min_size=(224, 224))",
            TypeError,
            "rgb: min_size must be an int of at least 1, got (224, 224) (tuple).",
        ),
        Mistake(
            "size as float",
            "tdr.decoders.rgb(min_size=224.0)",
            TypeError,
            "rgb: min_size must be an int of at least 1, got 224.0 (float). Write 224.",
        ),
        Mistake(
            "misspelt option",
            "tdr.decoders.rgb(minsize=224)",
            TypeError,
            "rgb() got an unexpected keyword argument 'minsize'; did you mean 'min_size'?",
        ),
        Mistake(
            "no picture",
            'tdr.decoders.rgb(b"no picture")',
            UnidentifiedImageError,
            "not an image of a known format (JPEG, PNG, WEBP, AVIF, BMP, GIF, TIFF, PPM)",
        ),
        Mistake(
            "no array",
            'tdr.decoders.npy(b"no array")',
            ValueError,
            "it begins with b'no arr', where an npy array was expected; allow_pickle is off",
        ),
    ],
    "encoders": [
        Mistake(
            "None",
            'tdr.encoders.encode_member("txt", None)',
            EncodeError,
            (
                "A NoneType cannot be written as 'txt'. Members are bytes, str, int, a PIL.Image (jpg, jpeg, "
                "png, webp, avif, bmp, gif, tif, tiff, ppm, pgm, pbm, pnm), a NumPy array (npy), or anything that "
                "JSON knows (json)."
            ),
        ),
        Mistake(
            "a float",
            'tdr.encoders.encode_member("cls", 1.5)',
            EncodeError,
            (
                "A float cannot be written as 'cls'. Members are bytes, str, int, a PIL.Image (jpg, jpeg, png, "
                "webp, avif, bmp, gif, tif, tiff, ppm, pgm, pbm, pnm), a NumPy array (npy), or anything that JSON "
                "knows (json)."
            ),
        ),
        Mistake(
            "a tensor",
            'tdr.encoders.encode_member("npy", torch.zeros(1))',
            EncodeError,
            (
                "A Tensor cannot be written as 'npy'. Members are bytes, str, int, a PIL.Image (jpg, jpeg, "
                "png, webp, avif, bmp, gif, tif, tiff, ppm, pgm, pbm, pnm), a NumPy array (npy), or anything that "
                "JSON knows (json). Write value.numpy()."
            ),
        ),
        Mistake(
            "an extension in bytes",
            'tdr.encoders.encode_member(b"txt", "a")',
            EncodeError,
            "An extension is a str such as 'jpg', got b'txt'.",
        ),
        Mistake(
            "value and extension exchanged",
            'tdr.encoders.encode_member(1, "txt")',
            EncodeError,
            "An extension is a str such as 'jpg', got 1.",
        ),
        Mistake(
            "an array as png",
            'tdr.encoders.encode_member("png", np.zeros((2, 2, 3), np.uint8))',
            EncodeError,
            (
                "A ndarray cannot be written as 'png'. Members are bytes, str, int, a PIL.Image (jpg, jpeg, "
                "png, webp, avif, bmp, gif, tif, tiff, ppm, pgm, pbm, pnm), a NumPy array (npy), or anything that "
                "JSON knows (json). Write PIL.Image.fromarray(array)."
            ),
        ),
        Mistake(
            "a list as txt",
            'tdr.encoders.encode_member("txt", ["a"])',
            EncodeError,
            (
                "A list cannot be written as 'txt'. Members are bytes, str, int, a PIL.Image (jpg, jpeg, png, "
                "webp, avif, bmp, gif, tif, tiff, ppm, pgm, pbm, pnm), a NumPy array (npy), or anything that JSON "
                "knows (json)."
            ),
        ),
        Mistake(
            "a str as jpg",
            'tdr.encoders.encode_member("jpg", "photo.jpg")',
            EncodeError,
            (
                "A str cannot be written as 'jpg'. Members are bytes, str, int, a PIL.Image (jpg, jpeg, png, "
                "webp, avif, bmp, gif, tif, tiff, ppm, pgm, pbm, pnm), a NumPy array (npy), or anything that JSON "
                "knows (json). If it is the path of a file, write the file's bytes: Path(path).read_bytes()."
            ),
        ),
        Mistake(
            "a tensor of a class number",
            '__import__("torchdata_remote.formats.encoders").formats.encoders.encode_member("cls", torch.tensor(1))',
            None,
            "b'1'",
        ),
    ],
}
