"""Mistakes with the pipes, and the usual chains."""

from __future__ import annotations

from torchdata_remote.errors import (
    DecodeError,
    EmptyListingError,
    EmptyShareError,
    EncodeError,
    JoinError,
    LabelError,
    ManifestError,
    MissingKeyError,
    MissingMemberError,
    ObjectExistsError,
    ObjectNotFoundError,
    RemoteDataError,
    SampleError,
    ShardReadError,
    ShardWriteError,
    StateError,
    UrlError,
)
from torchdata_remote.pipes.base.datapipe import OtherStateError

from .mistake import Mistake

TABLE = {
    "list_remote": [
        Mistake(
            "misspelt option",
            'urls.list_remote(patern="*.tar")',
            TypeError,
            "list_remote() got an unexpected keyword argument 'patern'; did you mean 'pattern'?",
        ),
        Mistake(
            "option of another library",
            'urls.list_remote(suffix=".tar")',
            TypeError,
            "list_remote() got an unexpected keyword argument 'suffix'; did you mean 'pattern'?",
        ),
        Mistake(
            "pattern by position",
            'urls.list_remote("*.tar")',
            TypeError,
            (
                "list_remote() takes no argument by position, got 1; not expected: a str. Pass the rest by "
                "name: pattern=, recursive=, retry=, storage_options=."
            ),
        ),
        Mistake(
            "pattern as a list",
            'urls.list_remote(pattern=["*.tar", "*.tgz"])',
            TypeError,
            ("list_remote: pattern must be a str such as '*.tar', or None, got ['*.tar', '*.tgz'] (list)."),
        ),
        Mistake(
            "pattern as bytes",
            'urls.list_remote(pattern=b"*.tar")',
            TypeError,
            (
                "list_remote: pattern must be a str such as '*.tar', or None, got b'*.tar' (bytes). Decode the "
                "bytes: value.decode()."
            ),
        ),
        Mistake(
            '"False" for False',
            'urls.list_remote(recursive="False")',
            TypeError,
            ("list_remote: recursive must be True or False, got 'False' (str). Write False, without quotes."),
        ),
        Mistake(
            "None for False",
            "urls.list_remote(recursive=None)",
            TypeError,
            "list_remote: recursive must be True or False, got None.",
        ),
        Mistake(
            "retries as a number",
            "urls.list_remote(retry=3)",
            TypeError,
            ("list_remote: retry must be a RetryPolicy or None, got 3 (int). Write retry=RetryPolicy(max_attempts=3)."),
        ),
        Mistake(
            "RetryPolicy itself",
            "urls.list_remote(retry=tdr.RetryPolicy)",
            TypeError,
            (
                "list_remote: retry must be a RetryPolicy or None, got the class RetryPolicy. Write "
                "retry=RetryPolicy(max_attempts=5)."
            ),
        ),
        Mistake(
            "options as a str",
            'urls.list_remote(storage_options="key=AKIA")',
            TypeError,
            ('list_remote: storage_options must be a dict such as {"key": ..., "secret": ...}, got a str.'),
        ),
        Mistake(
            "options as a list of pairs",
            'urls.list_remote(storage_options=[("key", "AKIA")])',
            TypeError,
            ('list_remote: storage_options must be a dict such as {"key": ..., "secret": ...}, got a list.'),
        ),
        Mistake(
            "options with a name that is no str",
            'urls.list_remote(storage_options={1: "AKIA"})',
            TypeError,
            "list_remote: storage_options must have names that are str, got 1.",
        ),
        Mistake(
            "a str in the IterableWrapper",
            'IterableWrapper("memory://mistakes/").list_remote()',
            UrlError,
            (
                "list_remote: IterableWrapper reads the str 'memory://mistakes/' as a list of URLs, one for "
                "each of its characters. Write IterableWrapper(['memory://mistakes/']).list_remote(...)"
            ),
        ),
        Mistake(
            "a path instead of a pipe",
            'tdr.ListRemote(Path("/data/photos"))',
            UrlError,
            (
                "list_remote: expected a pipe of URLs, got the ... '/data/photos'. Write "
                "IterableWrapper(['/data/photos']).list_remote(...)"
            ),
        ),
        Mistake(
            "a str instead of a pipe",
            'tdr.ListRemote("s3://photos/train/")',
            UrlError,
            (
                "list_remote: expected a pipe of URLs, got the str 's3://photos/train/'. Write "
                "IterableWrapper(['s3://photos/train/']).list_remote(...)"
            ),
        ),
        Mistake(
            "no source", "tdr.ListRemote()", TypeError, "list_remote() is missing 'source_datapipe' (source URLs)."
        ),
        Mistake(
            "None instead of a pipe",
            "tdr.ListRemote(None)",
            UrlError,
            "list_remote: expected a pipe of URLs, got None.",
        ),
        Mistake(
            "bytes among the URLs",
            'list(IterableWrapper([b"s3://photos/"]).list_remote())',
            UrlError,
            (
                "list_remote: expected one URL or path, as str or os.PathLike, got bytes: b's3://photos/'. "
                "Decode it: 's3://photos/'."
            ),
        ),
        Mistake(
            "a list among the URLs",
            'list(IterableWrapper([["s3://photos/"]]).list_remote())',
            UrlError,
            (
                "list_remote: expected one URL or path, as str or os.PathLike, got list: ['s3://photos/']. "
                "Call it once for each of them."
            ),
        ),
        Mistake(
            "samples where URLs are expected",
            "list(samples.list_remote())",
            UrlError,
            (
                "list_remote: expected one URL or path, got a sample: 'cat/1'. Put this pipe before those that "
                "open URLs (async_prefetch) and read samples (shard_tar_reader, file_reader)."
            ),
        ),
        Mistake(
            "a number among the URLs",
            "list(IterableWrapper([1]).list_remote())",
            UrlError,
            "list_remote: expected one URL or path, as str or os.PathLike, got int: 1.",
        ),
        Mistake(
            "nothing under the URL",
            'list(IterableWrapper(["memory://mistakes/nothing/"]).list_remote())',
            EmptyListingError,
            "memory://mistakes/nothing/: no objects found. memory://mistakes/ has ...",
        ),
        Mistake(
            "a pattern that fits nothing",
            'list(IterableWrapper([shards]).list_remote(pattern="*.tgz"))',
            EmptyListingError,
            (
                "memory://mistakes/shards/: no objects found that match pattern='*.tgz'. There are 7 others, "
                "such as '000000.tar', '000000.tar.idx', '000000.tar.keys'."
            ),
        ),
        Mistake(
            "a listing of listed shards",
            'len(list(IterableWrapper([shards]).list_remote(pattern="*.tar").list_remote()))',
            None,
            "2",
        ),
    ],
    "select": [
        Mistake(
            "nothing to select by",
            "urls.select()",
            ValueError,
            "select needs keys=, where= or members=: without them it selects everything.",
        ),
        Mistake(
            "keys by position",
            'urls.select(["a"])',
            TypeError,
            "select() takes no argument by position, got 1; not expected: a list. Pass the rest by name: keys=, ...",
        ),
        Mistake(
            "numbers as keys",
            "urls.select(keys=[1, 2])",
            TypeError,
            "select: keys: a key must be str such as 'train/000017', got 1 (int). Keys are texts: '000017', not 17.",
        ),
        Mistake(
            "a key alone, which is taken for a file",
            'list(urls.list_remote(pattern="*.tar").select(keys="0/000000"))',
            RemoteDataError,
            "...0/000000: keys are read from files named *.txt, *.csv, ...",
        ),
        Mistake(
            "keys with their extension",
            'list(urls.list_remote(pattern="*.tar").select(keys=["0/000000.txt"]))',
            MissingKeyError,
            "select: 1 of 1 keys are in none of 2 shards: '0/000000.txt'. A key is the path of a member ...",
        ),
        Mistake(
            "an expression without a table",
            'urls.select(where=pl.col("score") > 1)',
            ValueError,
            "select: where is an expression, which selects rows of a table, and keys is None: pass a table ...",
        ),
        Mistake(
            "the column of keys has another name",
            'urls.select(keys=pl.DataFrame({"key": ["a"]}))',
            ValueError,
            "select: key_column='__key__': a DataFrame has no such column; did you mean 'key'?",
        ),
        Mistake(
            "alternatives as a list",
            'urls.select(members=[["jpg", "png"], "cls"])',
            ValueError,
            "select: members must be extensions such as ('jpg;png', 'cls'), got ['jpg', 'png'] (list) in them.",
        ),
        Mistake(
            "where that prints",
            'list(urls.list_remote(pattern="*.tar").select(where=lambda sample: None))',
            TypeError,
            "select: where must return True or False for a sample, got None. Did it return?",
        ),
        Mistake(
            "after the reader",
            'list(urls.list_remote(pattern="*.tar").shard_tar_reader().select(keys=["a"]))',
            UrlError,
            "select: expected one URL or path, got a sample: ...",
        ),
        Mistake(
            "after the split by samples",
            'list(IterableWrapper([tdr.RemoteUrl("s3://photos/0.tar", num_samples=9).part(0, 2)]).select(keys=["a"]))',
            UrlError,
            "select: samples+0-2+s3://photos/0.tar+samples+0-2 is a range of samples: put select() before ...",
        ),
        Mistake(
            "a list of keys of NumPy",
            'len(list(urls.list_remote(pattern="*.tar").select(keys=np.array(["0/000000"]))))',
            None,
            "1",
        ),
    ],
    "shuffle_shards": [
        Mistake(
            "seed as a str",
            'urls.shuffle_shards(seed="1")',
            TypeError,
            "shuffle_shards: seed must be an int, got '1' (str). Write 1.",
        ),
        Mistake(
            "seed=None",
            "urls.shuffle_shards(seed=None)",
            TypeError,
            (
                "shuffle_shards: seed must be an int, got None. Leave it out for 0; the order differs in each "
                "epoch by itself."
            ),
        ),
        Mistake(
            "a float seed",
            "urls.shuffle_shards(seed=1.5)",
            TypeError,
            "shuffle_shards: seed must be an int, got 1.5 (float).",
        ),
        Mistake(
            "a seed of NumPy",
            "list(urls.shuffle_shards(seed=np.int64(3))) == list(urls.shuffle_shards(seed=3))",
            None,
            "True",
        ),
        Mistake(
            "a bool seed",
            "urls.shuffle_shards(seed=True)",
            TypeError,
            "shuffle_shards: seed must be an int, got True (bool).",
        ),
        Mistake(
            "a torch.Generator as seed",
            "urls.shuffle_shards(seed=torch.Generator())",
            TypeError,
            "shuffle_shards: seed must be an int, got a Generator.",
        ),
        Mistake(
            "two seeds",
            "urls.shuffle_shards(0, 1)",
            TypeError,
            "shuffle_shards() takes 1 argument by position (seed), got 2; not expected: an int.",
        ),
        Mistake(
            "seed twice",
            "urls.shuffle_shards(0, seed=1)",
            TypeError,
            ("shuffle_shards() got multiple values for argument 'seed': by position and by name. Pass it once."),
        ),
        Mistake(
            "misspelt option",
            "urls.shuffle_shards(sead=1)",
            TypeError,
            "shuffle_shards() got an unexpected keyword argument 'sead'; did you mean 'seed'?",
        ),
        Mistake(
            "option of shuffle_samples",
            "urls.shuffle_shards(buffer_size=100)",
            TypeError,
            "shuffle_shards() got an unexpected keyword argument 'buffer_size'. It takes seed.",
        ),
        Mistake(
            "a str instead of a pipe",
            'tdr.ShuffleShards("s3://photos/")',
            UrlError,
            (
                "shuffle_shards: expected a pipe of URLs, got the str 's3://photos/'. Write "
                "IterableWrapper(['s3://photos/']).shuffle_shards(...)"
            ),
        ),
        Mistake(
            "a negative epoch",
            "urls.shuffle_shards().set_epoch(-1)",
            ValueError,
            "set_epoch: epoch must be an int of at least 0, got -1.",
        ),
        Mistake(
            "an epoch as float",
            "urls.shuffle_shards().set_epoch(1.0)",
            TypeError,
            "set_epoch: epoch must be an int of at least 0, got 1.0 (float). Write 1.",
        ),
        Mistake(
            "an epoch as str",
            'urls.shuffle_shards().set_epoch("1")',
            TypeError,
            "set_epoch: epoch must be an int of at least 0, got '1' (str). Write 1.",
        ),
        Mistake(
            "no epoch",
            "urls.shuffle_shards().set_epoch(None)",
            TypeError,
            "set_epoch: epoch must be an int of at least 0, got None.",
        ),
    ],
    "sharding_filter_rank": [
        Mistake(
            "a number as world",
            "urls.sharding_filter_rank(world=2)",
            TypeError,
            (
                "sharding_filter_rank: world: expected a World or None, got 2 (int). Create one by "
                'World.from_mesh(mesh, dp="dp"), by World.from_group(group), or by World(rank, world_size).'
            ),
        ),
        Mistake(
            "rank and size as a tuple",
            "urls.sharding_filter_rank(world=(0, 2))",
            TypeError,
            (
                "sharding_filter_rank: world: expected a World or None, got (0, 2) (tuple). Create one by "
                'World.from_mesh(mesh, dp="dp"), by World.from_group(group), or by World(rank, world_size).'
            ),
        ),
        Mistake(
            "World itself",
            "urls.sharding_filter_rank(world=tdr.World)",
            TypeError,
            (
                "sharding_filter_rank: world: expected a World or None, got the class World. Create one by "
                'World.from_mesh(mesh, dp="dp"), by World.from_group(group), or by World(rank, world_size).'
            ),
        ),
        Mistake(
            "rank= of other libraries",
            "urls.sharding_filter_rank(rank=0, world_size=2)",
            TypeError,
            (
                "sharding_filter_rank() got an unexpected keyword argument 'rank'. Pass world=World(rank=..., "
                "world_size=...)."
            ),
        ),
        Mistake(
            "world by position",
            "urls.sharding_filter_rank(tdr.World(0, 2))",
            TypeError,
            (
                "sharding_filter_rank() takes no argument by position, got 1; not expected: a World. Pass the "
                "rest by name: world=, split=."
            ),
        ),
        Mistake(
            "twice in a chain",
            "urls.sharding_filter_rank().sharding_filter_rank()",
            ValueError,
            (
                "This chain is split already, and a share of a share would drop data: use "
                "sharding_filter_rank() once (stream_shards and stream_files contain it)."
            ),
        ),
        Mistake(
            "after stream_shards",
            "tdr.stream_shards(shards).sharding_filter_rank()",
            ValueError,
            (
                "This chain is split already, and a share of a share would drop data: use "
                "sharding_filter_rank() once (stream_shards and stream_files contain it)."
            ),
        ),
        Mistake(
            "split=None",
            "urls.sharding_filter_rank(split=None)",
            TypeError,
            "sharding_filter_rank: split must be True or False, got None.",
        ),
        Mistake(
            "split with a world",
            "urls.sharding_filter_rank(split=False, world=tdr.World(0, 2))",
            ValueError,
            (
                "sharding_filter_rank(split=False) yields all URLs to every reader, and World(rank=0, "
                "world_size=2, worker=0, num_workers=1) selects a share of them: pass one of the two. With "
                "world=World() each rank has all URLs, split over its workers."
            ),
        ),
        Mistake(
            "more readers than shards",
            "list(urls.sharding_filter_rank(world=tdr.World(0, 8)))",
            EmptyShareError,
            (
                "2 shards for 8 readers (8 ranks x 1 worker): some of them would have nothing to read. Use "
                "fewer readers, or more and smaller shards (write_shards, max_shard_samples=); or list the "
                "manifest (index.json) of the shards, by which a shard is split among several readers."
            ),
        ),
        Mistake(
            "a str instead of a pipe",
            'tdr.ShardingFilterRank("s3://photos/")',
            UrlError,
            (
                "sharding_filter_rank: expected a pipe of URLs, got the str 's3://photos/'. Write "
                "IterableWrapper(['s3://photos/']).sharding_filter_rank(...)"
            ),
        ),
        Mistake(
            "an int instead of a pipe",
            "tdr.ShardingFilterRank(1)",
            UrlError,
            "sharding_filter_rank: expected a pipe of URLs, got 1 (int).",
        ),
    ],
    "async_prefetch": [
        Mistake(
            "misspelt option",
            "urls.async_prefetch(max_inflight=3)",
            TypeError,
            ("async_prefetch() got an unexpected keyword argument 'max_inflight'; did you mean 'max_in_flight'?"),
        ),
        Mistake(
            "option without unit",
            "urls.async_prefetch(max_buffer=1000)",
            TypeError,
            ("async_prefetch() got an unexpected keyword argument 'max_buffer'; did you mean 'max_buffer_bytes'?"),
        ),
        Mistake(
            "option of DataLoader",
            "urls.async_prefetch(num_workers=4)",
            TypeError,
            (
                "async_prefetch() got an unexpected keyword argument 'num_workers'. Pass it to "
                "stateful_loader(pipe, num_workers=...)."
            ),
        ),
        Mistake(
            "none in flight",
            "urls.async_prefetch(max_in_flight=0)",
            ValueError,
            "async_prefetch: max_in_flight must be an int of at least 1, got 0.",
        ),
        Mistake(
            "a negative number in flight",
            "urls.async_prefetch(max_in_flight=-1)",
            ValueError,
            "async_prefetch: max_in_flight must be an int of at least 1, got -1.",
        ),
        Mistake(
            "a float in flight",
            "urls.async_prefetch(max_in_flight=16.0)",
            TypeError,
            ("async_prefetch: max_in_flight must be an int of at least 1, got 16.0 (float). Write 16."),
        ),
        Mistake(
            "infinitely many in flight",
            'urls.async_prefetch(max_in_flight=float("inf"))',
            TypeError,
            "async_prefetch: max_in_flight must be an int of at least 1, got inf (float).",
        ),
        Mistake(
            "max_in_flight=None",
            "urls.async_prefetch(max_in_flight=None)",
            TypeError,
            "async_prefetch: max_in_flight must be an int of at least 1, got None.",
        ),
        Mistake(
            "a bool in flight",
            "urls.async_prefetch(max_in_flight=True)",
            TypeError,
            "async_prefetch: max_in_flight must be an int of at least 1, got True (bool).",
        ),
        Mistake(
            "bytes with a unit",
            'urls.async_prefetch(max_buffer_bytes="100MB")',
            TypeError,
            ("async_prefetch: max_buffer_bytes must be an int of at least 1, got '100MB' (str). Write 100_000_000."),
        ),
        Mistake(
            "bytes with a binary unit",
            'urls.async_prefetch(part_bytes="8 MiB")',
            TypeError,
            ("async_prefetch: part_bytes must be an int of at least 1 or None, got '8 MiB' (str). Write 8_388_608."),
        ),
        Mistake(
            "bytes as a float",
            "urls.async_prefetch(max_buffer_bytes=1e9)",
            TypeError,
            (
                "async_prefetch: max_buffer_bytes must be an int of at least 1, got 1000000000.0 (float). "
                "Write 1_000_000_000."
            ),
        ),
        Mistake(
            "bytes of NumPy",
            ("type(urls.async_prefetch(max_buffer_bytes=np.int64(1 << 20))._session.options.max_buffer_bytes)"),
            None,
            "<class 'int'>",
        ),
        Mistake(
            "a list of one int",
            "urls.async_prefetch(max_in_flight=[16])",
            TypeError,
            "async_prefetch: max_in_flight must be an int of at least 1, got [16] (list). Write 16.",
        ),
        Mistake(
            "no parts",
            "urls.async_prefetch(part_bytes=0)",
            ValueError,
            "async_prefetch: part_bytes must be an int of at least 1 or None, got 0.",
        ),
        Mistake(
            "a backend that does not exist",
            'urls.async_prefetch(backend="boto3")',
            ValueError,
            (
                "async_prefetch: backend must be one of 'automatic', 'obstore', 'botocore', 'fsspec', got "
                "'boto3' (str); did you mean 'botocore'?"
            ),
        ),
        Mistake(
            "a backend in capitals",
            'urls.async_prefetch(backend="OBSTORE")',
            ValueError,
            (
                "async_prefetch: backend must be one of 'automatic', 'obstore', 'botocore', 'fsspec', got "
                "'OBSTORE' (str); did you mean 'obstore'?"
            ),
        ),
        Mistake(
            "a backend that is no name",
            "urls.async_prefetch(backend=1)",
            TypeError,
            ("async_prefetch: backend must be one of 'automatic', 'obstore', 'botocore', 'fsspec', got 1 (int)."),
        ),
        Mistake(
            '"False" for False',
            'urls.async_prefetch(in_order="False")',
            TypeError,
            ("async_prefetch: in_order must be True or False, got 'False' (str). Write False, without quotes."),
        ),
        Mistake(
            "a retry of urllib3",
            'urls.async_prefetch(retry={"total": 3})',
            TypeError,
            (
                "async_prefetch: retry must be a RetryPolicy or None, got a dict with 'total'. Write "
                "retry=RetryPolicy(max_attempts=5)."
            ),
        ),
        Mistake(
            "interleave=True",
            "urls.async_prefetch(interleave=True)",
            TypeError,
            "async_prefetch: interleave must be an int of at least 1, got True (bool).",
        ),
        Mistake(
            "by position",
            "urls.async_prefetch(16)",
            TypeError,
            (
                "async_prefetch() takes no argument by position, got 1; not expected: an int. Pass the rest by "
                "name: max_in_flight=, max_buffer_bytes=, part_bytes=, in_order=, interleave=, retry=, "
                "backend=, cache_dir=, cache_bytes=, storage_options=."
            ),
        ),
        Mistake(
            "a str instead of a pipe",
            'tdr.AsyncPrefetch("s3://photos/0.tar")',
            UrlError,
            (
                "async_prefetch: expected a pipe of URLs, got the str 's3://photos/0.tar'. Write "
                "IterableWrapper(['s3://photos/0.tar']).async_prefetch(...)"
            ),
        ),
        Mistake(
            "samples where URLs are expected",
            "list(samples.async_prefetch())",
            UrlError,
            (
                "async_prefetch: expected one URL or path, got a sample: 'cat/1'. Put this pipe before those "
                "that open URLs (async_prefetch) and read samples (shard_tar_reader, file_reader)."
            ),
        ),
        Mistake(
            "streams where URLs are expected",
            "list(urls.async_prefetch().async_prefetch())",
            UrlError,
            (
                "async_prefetch: expected one URL or path, got the stream of "
                "'memory://mistakes/shards/000000.tar'. Put this pipe before those that open URLs "
                "(async_prefetch) and read samples (shard_tar_reader, file_reader)."
            ),
        ),
        Mistake(
            "numbers where URLs are expected",
            "list(IterableWrapper([1, 2]).async_prefetch())",
            UrlError,
            "async_prefetch: expected one URL or path, as str or os.PathLike, got int: 1.",
        ),
        Mistake(
            "an object that does not exist",
            ('[stream.read() for _, stream in IterableWrapper(["memory://mistakes/none.tar"]).async_prefetch()]'),
            ObjectNotFoundError,
            "memory://mistakes/none.tar: no such object. memory://mistakes/ has ...",
        ),
        Mistake(
            "a path that does not exist",
            ('[stream.read() for _, stream in IterableWrapper(["/nonexistent/0.tar"]).async_prefetch()]'),
            ObjectNotFoundError,
            (
                "file:///nonexistent/0.tar: no such file. The folder /nonexistent does not exist. Is the disk mounted, "
                "and the path one of this machine? / has ... "
                "(Bytes 0 to 67,108,864, etag None, attempt 1, after ... s.)"
            ),
        ),
        Mistake(
            "a state without order",
            "urls.async_prefetch(in_order=False).state_dict()",
            StateError,
            ("async_prefetch(in_order=False) has an order that cannot be repeated. Use in_order=True."),
        ),
    ],
    "shard_tar_reader": [
        Mistake(
            "misspelt option",
            "urls.shard_tar_reader(on_bad_shards=tdr.skip_with_warning)",
            TypeError,
            ("shard_tar_reader() got an unexpected keyword argument 'on_bad_shards'; did you mean 'on_bad_shard'?"),
        ),
        Mistake(
            "a policy by name",
            'urls.shard_tar_reader(on_bad_shard="skip")',
            TypeError,
            ("shard_tar_reader: on_bad_shard must be a function such as tdr.skip_with_warning, got 'skip' (str)."),
        ),
        Mistake(
            "a policy that was called",
            "urls.shard_tar_reader(on_bad_shard=None)",
            TypeError,
            (
                "shard_tar_reader: on_bad_shard must be a function such as tdr.skip_with_warning, got None. "
                "Pass the function itself, not what it returned."
            ),
        ),
        Mistake(
            "an error's class as policy",
            "urls.shard_tar_reader(on_bad_shard=RuntimeError)",
            TypeError,
            (
                "shard_tar_reader: on_bad_shard must be a function such as tdr.skip_with_warning, got the "
                "class RuntimeError: calling it makes an error, and does not raise it."
            ),
        ),
        Mistake(
            "a policy for members by name",
            'urls.shard_tar_reader(on_bad_member="ignore")',
            TypeError,
            ("shard_tar_reader: on_bad_member must be a function such as tdr.skip_with_warning, got 'ignore' (str)."),
        ),
        Mistake(
            "interleave=0",
            "urls.shard_tar_reader(interleave=0)",
            ValueError,
            "shard_tar_reader: interleave must be an int of at least 1, got 0.",
        ),
        Mistake(
            "interleave as a str",
            'urls.shard_tar_reader(interleave="4")',
            TypeError,
            "shard_tar_reader: interleave must be an int of at least 1, got '4' (str). Write 4.",
        ),
        Mistake(
            "interleave as a float",
            "urls.shard_tar_reader(interleave=2.5)",
            TypeError,
            "shard_tar_reader: interleave must be an int of at least 1, got 2.5 (float).",
        ),
        Mistake(
            "a lazy extension as a str",
            'urls.shard_tar_reader(lazy="mp4")',
            TypeError,
            (
                "shard_tar_reader: lazy must be a set of extensions such as {'mp4', 'wav'}, got 'mp4' (str). Write "
                "{'mp4'}."
            ),
        ),
        Mistake(
            "a lazy extension with its dot",
            'urls.shard_tar_reader(lazy={".mp4"})',
            ValueError,
            (
                "shard_tar_reader: lazy: no member has the extension '.mp4'. Write 'mp4': no dot before it, no '*', "
                "comma or space."
            ),
        ),
        Mistake("interleave of NumPy", "len(list(urls.shard_tar_reader(interleave=np.int32(2))))", None, "6"),
        Mistake(
            "a size with a unit",
            'urls.shard_tar_reader(max_member_bytes="1GB")',
            TypeError,
            ("shard_tar_reader: max_member_bytes must be an int of at least 1, got '1GB' (str). Write 1_000_000_000."),
        ),
        Mistake(
            "a negative size",
            "urls.shard_tar_reader(max_member_bytes=-1)",
            ValueError,
            "shard_tar_reader: max_member_bytes must be an int of at least 1, got -1.",
        ),
        Mistake(
            "max_ratio=None",
            "urls.shard_tar_reader(max_ratio=None)",
            TypeError,
            "shard_tar_reader: max_ratio must be an int of at least 1, got None.",
        ),
        Mistake(
            '"True" for True',
            'urls.shard_tar_reader(nested="True")',
            TypeError,
            ("shard_tar_reader: nested must be True or False, got 'True' (str). Write True, without quotes."),
        ),
        Mistake(
            "a str instead of a pipe",
            'tdr.ShardTarReader("s3://photos/0.tar")',
            UrlError,
            (
                "shard_tar_reader: expected a pipe of URLs, got the str 's3://photos/0.tar'. Write "
                "IterableWrapper(['s3://photos/0.tar']).shard_tar_reader(...)"
            ),
        ),
        Mistake(
            "a list of samples",
            "list(samples.shard_tar_reader())",
            RemoteDataError,
            (
                "Expected a URL or a (url, file_like) pair, got dict: {'__key__': 'cat/1', '__url__': "
                "'s3://photos/0.tar', 'txt': b'miaow'}. The samples are read already: use one reader in a "
                "chain."
            ),
        ),
        Mistake(
            "files that are no tar",
            'list(IterableWrapper(["memory://mistakes/files/0.txt"]).shard_tar_reader())',
            ShardReadError,
            (
                "memory://mistakes/files/0.txt: at byte 0: the archive ends in a header, ... It is not a tar, or "
                "the upload was cut short: write the shard again."
            ),
        ),
        Mistake(
            "numbers instead of URLs",
            "list(IterableWrapper([1]).shard_tar_reader())",
            RemoteDataError,
            "Expected a URL or a (url, file_like) pair, got int: 1.",
        ),
        Mistake(
            "tar shards that are no archives of archives",
            "list(urls.shard_tar_reader(nested=True))",
            ShardReadError,
            (
                "memory://mistakes/shards/000000.tar, in '0/000000.cls': at byte 0: the archive ends in a "
                "header, and begins with '0': it is a text. It is not a tar, or the upload was cut "
                "short: write the shard again."
            ),
        ),
        Mistake(
            "a source of bytes",
            'list(IterableWrapper([("0.tar", b"data")]).shard_tar_reader())',
            RemoteDataError,
            "Expected a URL or a (url, file_like) pair, got tuple: ('0.tar', b'data').",
        ),
    ],
    "list_row_groups": [
        Mistake(
            "option of the reader",
            'urls.list_row_groups(columns=["label"])',
            TypeError,
            "list_row_groups() got an unexpected keyword argument 'columns'. It takes filter, retry, storage_options.",
        ),
        Mistake(
            "a misspelt filter",
            'urls.list_row_groups(filters=[("label", "==", 3)])',
            TypeError,
            "list_row_groups() got an unexpected keyword argument 'filters'; did you mean 'filter'?",
        ),
        Mistake(
            "a filter as a text",
            'urls.list_row_groups(filter="label == 3")',
            TypeError,
            (
                "list_row_groups: filter must be such as pyarrow.compute.field('label') == 3, or "
                "[('label', '==', 3)], got 'label == 3' (str)."
            ),
        ),
        Mistake(
            "a filter as a function",
            'urls.list_row_groups(filter=lambda row: row["label"] == 3)',
            TypeError,
            (
                "list_row_groups: filter must be such as pyarrow.compute.field('label') == 3, or "
                "[('label', '==', 3)], got the function <lambda>."
            ),
        ),
        Mistake(
            "a single condition without its list",
            'urls.list_row_groups(filter=("label", "==", 3))',
            TypeError,
            (
                "list_row_groups: filter must be such as pyarrow.compute.field('label') == 3, or "
                "[('label', '==', 3)], got ('label', '==', 3) (tuple)."
            ),
        ),
        Mistake(
            "an unknown operator",
            'urls.list_row_groups(filter=[("label", "=>", 3)])',
            ValueError,
            (
                'list_row_groups: filter cannot be used: "=>" is not a valid operator in predicates. '
                "Write pyarrow.compute.field('label') == 3, or [('label', '==', 3)]."
            ),
        ),
        Mistake(
            "shards",
            "list(urls.list_row_groups())",
            ShardReadError,
            (
                "memory://mistakes/shards/000000.tar is neither a Parquet nor an Arrow file: it "
                "begins with b'0/000000' and ends with b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00'. Select "
                "the tables by a pattern, as list_remote(pattern='*.parquet')."
            ),
        ),
        Mistake(
            "a str instead of a pipe",
            'tdr.ListRowGroups("s3://photos/x.parquet")',
            UrlError,
            (
                "list_row_groups: expected a pipe of URLs, got the str 's3://photos/x.parquet'. Write "
                "IterableWrapper(['s3://photos/x.parquet']).list_row_groups(...)"
            ),
        ),
        Mistake(
            "samples where URLs are expected",
            "list(samples.list_row_groups())",
            UrlError,
            (
                "list_row_groups: expected one URL or path, got a sample: 'cat/1'. Put this pipe "
                "before those that open URLs (async_prefetch) and read samples (shard_tar_reader, "
                "file_reader)."
            ),
        ),
        Mistake(
            "a number of retries",
            "urls.list_row_groups(retry=3)",
            TypeError,
            (
                "list_row_groups: retry must be a RetryPolicy or None, got 3 (int). Write "
                "retry=RetryPolicy(max_attempts=3)."
            ),
        ),
    ],
    "table_reader": [
        Mistake(
            "optional columns that are not chosen",
            'urls.table_reader(columns=["image"], optional="caption")',
            ValueError,
            "table_reader: optional must be a list of names that columns has too, got 'caption' (str).",
        ),
        Mistake(
            "option of the tar reader",
            "urls.table_reader(nested=True)",
            TypeError,
            (
                "table_reader() got an unexpected keyword argument 'nested'. It takes columns, key, "
                "optional, filter, interleave, max_in_flight, max_buffer_bytes, on_bad_shard, retry, "
                "storage_options."
            ),
        ),
        Mistake(
            "one column without a list",
            'urls.table_reader(columns="label")',
            TypeError,
            (
                "table_reader: columns must be such as ['image', 'label'], or {'image.bytes': 'jpg', "
                "'label': 'cls'}, got 'label' (str)."
            ),
        ),
        Mistake(
            "two columns of one name",
            'urls.table_reader(columns={"a": "cls", "b": "cls"})',
            ValueError,
            "table_reader: columns has 'cls' for two columns: a sample has one entry of a name.",
        ),
        Mistake(
            "the key as a column",
            'urls.table_reader(columns={"id": "__key__"})',
            ValueError,
            "table_reader: columns: '__key__' is set by the reader. Rename it by columns={'id': 'key'}; key= "
            "chooses the column of the keys.",
        ),
        Mistake(
            "no columns",
            "urls.table_reader(columns=[])",
            ValueError,
            (
                "table_reader: columns must have a name at least, such as ['image', 'label'], or "
                "{'image.bytes': 'jpg', 'label': 'cls'}."
            ),
        ),
        Mistake(
            "a column by its number",
            "urls.table_reader(columns=[0])",
            TypeError,
            "table_reader: a name in columns must be a str such as 'label', got 0 (int).",
        ),
        Mistake(
            "a filter as a text",
            'urls.table_reader(filter="label > 3")',
            TypeError,
            (
                "table_reader: filter must be such as pyarrow.compute.field('label') == 3, or "
                "[('label', '==', 3)], got 'label > 3' (str)."
            ),
        ),
        Mistake(
            "shards",
            "list(urls.table_reader())",
            ShardReadError,
            (
                "memory://mistakes/shards/000000.tar is neither a Parquet nor an Arrow file: it "
                "begins with b'0/000000' and ends with b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00'. Select "
                "the tables by a pattern, as list_remote(pattern='*.parquet')."
            ),
        ),
        Mistake(
            "after async_prefetch",
            "list(urls.async_prefetch().table_reader())",
            RemoteDataError,
            (
                "table_reader: expected URLs of tables, got a (url, file_like) pair. Remove "
                "async_prefetch(): table_reader fetches by itself."
            ),
        ),
        Mistake(
            "a size with a unit",
            'urls.table_reader(max_buffer_bytes="64 MB")',
            TypeError,
            "table_reader: max_buffer_bytes must be an int of at least 1, got '64 MB' (str). Write 64_000_000.",
        ),
        Mistake(
            "samples where URLs are expected",
            "list(samples.table_reader())",
            UrlError,
            (
                "table_reader: expected one URL or path, got a sample: 'cat/1'. Put this pipe before "
                "those that open URLs (async_prefetch) and read samples (shard_tar_reader, "
                "file_reader)."
            ),
        ),
    ],
    "shard_zip_reader": [
        Mistake(
            "misspelt option",
            "urls.shard_zip_reader(interleaved=2)",
            TypeError,
            ("shard_zip_reader() got an unexpected keyword argument 'interleaved'; did you mean 'interleave'?"),
        ),
        Mistake(
            "option of the tar reader",
            "urls.shard_zip_reader(nested=True)",
            TypeError,
            (
                "shard_zip_reader() got an unexpected keyword argument 'nested'. It takes on_bad_shard, "
                "on_bad_member, interleave, max_member_bytes, max_ratio, storage_options."
            ),
        ),
        Mistake(
            "a policy by name",
            'urls.shard_zip_reader(on_bad_shard="skip")',
            TypeError,
            ("shard_zip_reader: on_bad_shard must be a function such as tdr.skip_with_warning, got 'skip' (str)."),
        ),
        Mistake(
            "a tar shard",
            "list(urls.shard_zip_reader())",
            ShardReadError,
            (
                "memory://mistakes/shards/000000.tar: at byte 7,168: the object ends with no end record "
                "(PK\\5\\6). The upload was cut short, or it is not a zip: write the archive again."
            ),
        ),
        Mistake(
            "a size with a unit",
            'urls.shard_zip_reader(max_member_bytes="10 MB")',
            TypeError,
            ("shard_zip_reader: max_member_bytes must be an int of at least 1, got '10 MB' (str). Write 10_000_000."),
        ),
        Mistake(
            "max_ratio=0",
            "urls.shard_zip_reader(max_ratio=0)",
            ValueError,
            "shard_zip_reader: max_ratio must be an int of at least 1, got 0.",
        ),
        Mistake(
            "interleave=None",
            "urls.shard_zip_reader(interleave=None)",
            TypeError,
            "shard_zip_reader: interleave must be an int of at least 1, got None.",
        ),
        Mistake(
            "a stream that cannot be searched",
            'list(IterableWrapper([("0.zip", iter([b""]))]).shard_zip_reader())',
            RemoteDataError,
            ("Expected a URL or a (url, file_like) pair, got tuple: ('0.zip', <list_iterator object at ...>)."),
        ),
        Mistake(
            "a str instead of a pipe",
            'tdr.ShardZipReader("s3://photos/0.zip")',
            UrlError,
            (
                "shard_zip_reader: expected a pipe of URLs, got the str 's3://photos/0.zip'. Write "
                "IterableWrapper(['s3://photos/0.zip']).shard_zip_reader(...)"
            ),
        ),
        Mistake(
            "samples where URLs are expected",
            "list(samples.shard_zip_reader())",
            RemoteDataError,
            (
                "Expected a URL or a (url, file_like) pair, got dict: {'__key__': 'cat/1', '__url__': "
                "'s3://photos/0.tar', 'txt': b'miaow'}. The samples are read already: use one reader in a "
                "chain."
            ),
        ),
    ],
    "file_reader": [
        Mistake(
            "misspelt option",
            "urls.file_reader(storage_option={})",
            TypeError,
            ("file_reader() got an unexpected keyword argument 'storage_option'; did you mean 'storage_options'?"),
        ),
        Mistake(
            "option of async_prefetch",
            "urls.file_reader(max_in_flight=4)",
            TypeError,
            ("file_reader() got an unexpected keyword argument 'max_in_flight'. It takes split_name, storage_options."),
        ),
        Mistake(
            "options as a str",
            'urls.file_reader(storage_options="anon")',
            TypeError,
            ('file_reader: storage_options must be a dict such as {"key": ..., "secret": ...}, got a str.'),
        ),
        Mistake(
            "a str instead of a pipe",
            'tdr.FileReader("s3://photos/")',
            UrlError,
            (
                "file_reader: expected a pipe of URLs, got the str 's3://photos/'. Write "
                "IterableWrapper(['s3://photos/']).file_reader(...)"
            ),
        ),
        Mistake(
            "samples where URLs are expected",
            "list(samples.file_reader())",
            RemoteDataError,
            (
                "Expected a URL or a (url, file_like) pair, got dict: {'__key__': 'cat/1', '__url__': "
                "'s3://photos/0.tar', 'txt': b'miaow'}. The samples are read already: use one reader in a "
                "chain."
            ),
        ),
        Mistake(
            "a file without extension",
            'list(IterableWrapper(["memory://mistakes/README"]).file_reader())',
            SampleError,
            (
                "memory://mistakes/README: the name has no extension, so it cannot be part of a sample. "
                "Exclude it by a pattern, as list_remote(pattern='*.jpg'). If it is a folder, list it first: "
                "IterableWrapper([url]).list_remote().file_reader()."
            ),
        ),
        Mistake(
            "a file that does not exist",
            'list(IterableWrapper(["memory://mistakes/none.jpg"]).file_reader())',
            ObjectNotFoundError,
            "memory://mistakes/none.jpg: no such object. memory://mistakes/ has ...",
        ),
        Mistake(
            "numbers instead of URLs",
            "list(IterableWrapper([7]).file_reader())",
            RemoteDataError,
            "Expected a URL or a (url, file_like) pair, got int: 7.",
        ),
        Mistake(
            "by position",
            'urls.file_reader({"anon": True})',
            TypeError,
            (
                "file_reader() takes no argument by position, got 1; not expected: a dict. Pass the rest by "
                "name: split_name=, storage_options=."
            ),
        ),
        Mistake(
            "a generator instead of a pipe",
            'len(list(tdr.FileReader(url for url in ["memory://mistakes/files/0.txt"])))',
            None,
            "1",
        ),
    ],
    "shuffle_samples": [
        Mistake(
            "no size",
            "samples.shuffle_samples()",
            TypeError,
            (
                "shuffle_samples() is missing 'buffer_size' (maximum number of samples in memory). Write "
                "shuffle_samples(buffer_size=...)."
            ),
        ),
        Mistake(
            "size by position",
            "samples.shuffle_samples(1000)",
            TypeError,
            (
                "shuffle_samples() takes no argument by position, got 1; not expected: an int. Pass the rest "
                "by name: buffer_size=, max_buffer_bytes=, seed=."
            ),
        ),
        Mistake(
            "size=0",
            "samples.shuffle_samples(buffer_size=0)",
            ValueError,
            "shuffle_samples: buffer_size must be a number of samples, an int of at least 1, got 0.",
        ),
        Mistake(
            "a negative size",
            "samples.shuffle_samples(buffer_size=-5)",
            ValueError,
            ("shuffle_samples: buffer_size must be a number of samples, an int of at least 1, got -5."),
        ),
        Mistake(
            "a float size",
            "samples.shuffle_samples(buffer_size=1e3)",
            TypeError,
            (
                "shuffle_samples: buffer_size must be a number of samples, an int of at least 1, got 1000.0 "
                "(float). Write 1_000."
            ),
        ),
        Mistake("a size of NumPy", "len(list(samples.shuffle_samples(buffer_size=np.int64(10))))", None, "1"),
        Mistake(
            "a size in bytes",
            'samples.shuffle_samples(buffer_size="100MB")',
            TypeError,
            (
                "shuffle_samples: buffer_size must be a number of samples, an int of at least 1, got '100MB' "
                "(str). Write 100_000_000."
            ),
        ),
        Mistake(
            "size=None",
            "samples.shuffle_samples(buffer_size=None)",
            TypeError,
            ("shuffle_samples: buffer_size must be a number of samples, an int of at least 1, got None."),
        ),
        Mistake(
            "a bool size",
            "samples.shuffle_samples(buffer_size=True)",
            TypeError,
            ("shuffle_samples: buffer_size must be a number of samples, an int of at least 1, got True (bool)."),
        ),
        Mistake(
            "a bound with a unit",
            'samples.shuffle_samples(buffer_size=10, max_buffer_bytes="100MB")',
            TypeError,
            (
                "shuffle_samples: max_buffer_bytes must be an int of at least 1 or None, got '100MB' (str). "
                "Write 100_000_000."
            ),
        ),
        Mistake(
            "another library's name",
            "samples.shuffle_samples(bufsize=100)",
            TypeError,
            ("shuffle_samples() got an unexpected keyword argument 'bufsize'; did you mean 'buffer_size'?"),
        ),
        Mistake(
            "WebDataset's name",
            "samples.shuffle_samples(size=100)",
            TypeError,
            ("shuffle_samples() got an unexpected keyword argument 'size'; did you mean 'buffer_size'?"),
        ),
        Mistake(
            "seed=None",
            "samples.shuffle_samples(buffer_size=10, seed=None)",
            TypeError,
            (
                "shuffle_samples: seed must be an int, got None. Leave it out for 0; the order differs in each "
                "epoch by itself."
            ),
        ),
        Mistake(
            "a str seed",
            'samples.shuffle_samples(buffer_size=10, seed="zero")',
            TypeError,
            "shuffle_samples: seed must be an int, got 'zero' (str).",
        ),
        Mistake(
            "a str instead of a pipe",
            'tdr.ShuffleSamples("abc", buffer_size=3)',
            UrlError,
            "shuffle_samples: expected a pipe of samples, got the str 'abc'.",
        ),
        Mistake(
            "a number instead of a pipe",
            "tdr.ShuffleSamples(3, buffer_size=3)",
            UrlError,
            "shuffle_samples: expected a pipe of samples, got 3 (int).",
        ),
        Mistake(
            "a class instead of a pipe",
            "tdr.ShuffleSamples(tdr.ShuffleSamples, buffer_size=3)",
            UrlError,
            "shuffle_samples: expected a pipe of samples, got the class ShuffleSamples.",
        ),
        Mistake(
            "a state of nothing",
            "samples.shuffle_samples(buffer_size=10).load_state_dict({})",
            OtherStateError,
            (
                "ShuffleSamples: expected a state with phase, passed, began, got a dict with nothing in it. "
                "Load what state_dict() of the same pipe has returned."
            ),
        ),
    ],
    "equalize_ranks": [
        Mistake(
            "misspelt mode",
            'urls.sharding_filter_rank().shard_tar_reader().equalize_ranks(mode="dorp")',
            ValueError,
            ("equalize_ranks: mode must be one of 'drop', 'repeat', got 'dorp' (str); did you mean 'drop'?"),
        ),
        Mistake(
            "a mode in capitals",
            'urls.sharding_filter_rank().shard_tar_reader().equalize_ranks(mode="DROP")',
            ValueError,
            ("equalize_ranks: mode must be one of 'drop', 'repeat', got 'DROP' (str); did you mean 'drop'?"),
        ),
        Mistake(
            "mode=True",
            "urls.sharding_filter_rank().shard_tar_reader().equalize_ranks(mode=True)",
            TypeError,
            "equalize_ranks: mode must be one of 'drop', 'repeat', got True (bool).",
        ),
        Mistake(
            "mode=None",
            "urls.sharding_filter_rank().shard_tar_reader().equalize_ranks(mode=None)",
            TypeError,
            "equalize_ranks: mode must be one of 'drop', 'repeat', got None.",
        ),
        Mistake(
            "mode of DataLoader",
            "urls.sharding_filter_rank().shard_tar_reader().equalize_ranks(drop_last=True)",
            TypeError,
            (
                "equalize_ranks() got an unexpected keyword argument 'drop_last'. Pass it to "
                "stateful_loader(pipe, drop_last=...)."
            ),
        ),
        Mistake(
            "no split above",
            'urls.shard_tar_reader().equalize_ranks(mode="drop")',
            ValueError,
            (
                "equalize_ranks needs one sharding_filter_rank() above it, and there are 0. With mix(), "
                "equalize each of its sources, or pass stop= a number of samples."
            ),
        ),
        Mistake(
            "a batch above",
            'urls.sharding_filter_rank().shard_tar_reader().batch(2).equalize_ranks(mode="drop")',
            ValueError,
            ("equalize_ranks counts samples, and Batcher... changes their number: put it after equalize_ranks."),
        ),
        Mistake(
            "no manifest",
            ('list(urls.sharding_filter_rank(world=tdr.World(0, 2)).shard_tar_reader().equalize_ranks(mode="drop"))'),
            ManifestError,
            (
                "memory://mistakes/shards/000000.tar: its number of samples is unknown, and equalize_ranks "
                "needs it. List the manifest (index.json) of the shards; if there is none, write it: "
                "torchdata-remote manifest FOLDER"
            ),
        ),
        Mistake(
            "a str instead of a pipe",
            'tdr.EqualizeRanks("abc", mode="drop")',
            UrlError,
            "equalize_ranks: expected a pipe of samples, got the str 'abc'.",
        ),
        Mistake(
            "two modes",
            'tdr.stream_shards(shards).equalize_ranks(mode="drop").equalize_ranks(mode="repeat")',
            ValueError,
            ("This share is equalized already, by <EqualizeMode.DROP: 'drop'>: build a separate chain."),
        ),
        Mistake(
            "split=False above",
            'urls.sharding_filter_rank(split=False).shard_tar_reader().equalize_ranks(mode="drop")',
            ValueError,
            (
                "sharding_filter_rank(split=False) yields everything to every reader, so there are no shares "
                "that equalize_ranks could make equal. Remove one of the two."
            ),
        ),
    ],
    "label_from_path": [
        Mistake(
            "classes as one str",
            'samples.label_from_path(classes="cat")',
            TypeError,
            ("label_from_path: classes must be a list of names or a dict name -> int, got a str. Write ['cat']."),
        ),
        Mistake(
            "classes as a set",
            'samples.label_from_path(classes={"cat", "dog"})',
            TypeError,
            (
                "label_from_path: classes must be a list of names or a dict name -> int, got a set, whose "
                "order differs between processes. Write sorted(classes)."
            ),
        ),
        Mistake(
            "classes as a generator",
            'samples.label_from_path(classes=(name for name in ["cat", "dog"]))',
            TypeError,
            (
                "label_from_path: classes must be a list of names or a dict name -> int, got a generator. "
                "Write list(classes)."
            ),
        ),
        Mistake(
            "classes as a dict of names",
            'samples.label_from_path(classes={0: "cat", 1: "dog"})',
            TypeError,
            (
                "label_from_path: classes must give each name its label, an int, got {0: 'cat', 1: 'dog'}. "
                "Turn it round: {name: number for number, name in classes.items()}."
            ),
        ),
        Mistake(
            "a class twice",
            'samples.label_from_path(classes=["cat", "dog", "cat"])',
            ValueError,
            "label_from_path: classes names ['cat'] more than once.",
        ),
        Mistake(
            "classes as a number",
            "samples.label_from_path(classes=10)",
            TypeError,
            (
                "label_from_path: classes must be a list of names or a dict name -> int, got 10 (int). The "
                "names decide which label a file gets."
            ),
        ),
        Mistake(
            "numbers as classes",
            "list(samples.label_from_path(classes=[0, 1]))",
            TypeError,
            ("label_from_path: classes must be a list of names or a dict name -> int, got a list with 0 (int)."),
        ),
        Mistake(
            "bytes as classes",
            'samples.label_from_path(classes=[b"cat"])',
            TypeError,
            ("label_from_path: classes must be a list of names or a dict name -> int, got a list with b'cat' (bytes)."),
        ),
        Mistake(
            "the URL of the classes",
            'samples.label_from_path(classes="s3://photos/classes.json")',
            TypeError,
            (
                "label_from_path: classes must be a list of names or a dict name -> int, got a str. Read the "
                "file: tdr.labels.classes_json(url, id_base=0)."
            ),
        ),
        Mistake(
            "a class that is missing",
            'list(samples.label_from_path(classes=["dog", "mouse"]))',
            LabelError,
            (
                "sample 'cat/1' of s3://photos/0.tar: 'cat/1' has the label 'cat', which is not a number, and "
                "none of the 2 classes dog, mouse."
            ),
        ),
        Mistake(
            "no classes",
            "list(samples.label_from_path())",
            LabelError,
            (
                "sample 'cat/1' of s3://photos/0.tar: 'cat/1' has the label 'cat', which is not a number, and "
                "no classes are known: pass classes=, their names or a labeller that gives numbers."
            ),
        ),
        Mistake(
            "a pattern without a group",
            'samples.label_from_path(pattern=r"cat")',
            ValueError,
            (
                "label_from_path: pattern must be a regular expression such as '^([^/]+)/', with exactly one "
                "group, the class; 'cat' has 0."
            ),
        ),
        Mistake(
            "a pattern with two groups",
            'samples.label_from_path(pattern=r"(c)(a)t")',
            ValueError,
            (
                "label_from_path: pattern must be a regular expression such as '^([^/]+)/', with exactly one "
                "group, the class; '(c)(a)t' has 2."
            ),
        ),
        Mistake(
            "a pattern that is no expression",
            'samples.label_from_path(pattern="(cat")',
            ValueError,
            (
                "label_from_path: pattern must be a regular expression such as '^([^/]+)/', got '(cat': "
                "missing ), unterminated subpattern at position 0."
            ),
        ),
        Mistake(
            "a glob as pattern",
            'samples.label_from_path(pattern="*/cat")',
            ValueError,
            (
                "label_from_path: pattern must be a regular expression such as '^([^/]+)/', got '*/cat': "
                "nothing to repeat at position 0. It looks like a glob."
            ),
        ),
        Mistake(
            "a pattern as bytes",
            'samples.label_from_path(pattern=b"(cat)")',
            TypeError,
            (
                "label_from_path: pattern must be a regular expression such as '^([^/]+)/', because paths are "
                "str; got a pattern of bytes."
            ),
        ),
        Mistake(
            "a pattern with a labeller",
            'samples.label_from_path(classes=tdr.labels.parent_directory(), pattern="(cat)")',
            ValueError,
            (
                "label_from_path: classes= is a labeller, which takes no pattern=: use "
                "labels.from_pattern(regex) instead."
            ),
        ),
        Mistake(
            "a labeller that was not called",
            "list(samples.label_from_path(classes=tdr.labels.parent_directory))",
            TypeError,
            (
                "label_from_path: classes must be a labeller, got the function labels.parent_directory itself. "
                "Write labels.parent_directory(...)."
            ),
        ),
        Mistake(
            "misspelt option",
            'samples.label_from_path(class_names=["cat"])',
            TypeError,
            ("label_from_path() got an unexpected keyword argument 'class_names'; did you mean 'classes'?"),
        ),
        Mistake(
            "by position",
            'samples.label_from_path(["cat", "dog"])',
            TypeError,
            (
                "label_from_path() takes no argument by position, got 1; not expected: a list. Pass the rest "
                "by name: classes=, pattern=."
            ),
        ),
        Mistake(
            "a sample that has a label",
            'list(IterableWrapper([{**sample, "cls": 1}]).label_from_path())',
            LabelError,
            ("sample 'cat/1' of s3://photos/0.tar has 'cls' already: leave label_from_path out, or remove it first."),
        ),
        Mistake(
            "twice in a chain",
            'list(samples.label_from_path(classes=["cat"]).label_from_path(classes=["cat"]))',
            LabelError,
            ("sample 'cat/1' of s3://photos/0.tar has 'cls' already: leave label_from_path out, or remove it first."),
        ),
        Mistake(
            "tuples where samples are expected",
            'list(samples.to_tuple("txt").label_from_path())',
            SampleError,
            (
                "label_from_path: expected samples, dicts such as {'__key__': 'cat/1', 'jpg': ...}, got a "
                "tuple. Put it before to_tuple(), batch() and map(), which make other items of samples."
            ),
        ),
        Mistake(
            "URLs where samples are expected",
            'list(urls.label_from_path(classes=["cat"]))',
            SampleError,
            (
                "label_from_path: expected samples, dicts such as {'__key__': 'cat/1', 'jpg': ...}, got a URL. "
                "Put a reader of samples before it: shard_tar_reader() or file_reader()."
            ),
        ),
        Mistake(
            "a sample without a key",
            'list(IterableWrapper([{"txt": b"1"}]).label_from_path())',
            LabelError,
            "sample None of an unknown shard: no str under '__key__' to take a label from.",
        ),
        Mistake(
            "a negative class number",
            'samples.label_from_path(classes={"cat": -1})',
            ValueError,
            "label_from_path: classes must give each name a label from 0 to 2147483647, got {'cat': -1}.",
        ),
        Mistake(
            "an empty list of classes",
            "samples.label_from_path(classes=[])",
            ValueError,
            (
                "label_from_path: classes must name at least one class, got []. Leave it out to number the parent "
                "directories."
            ),
        ),
        Mistake(
            "a directory whose number is no label",
            'list(tdr.IterableWrapper([{**sample, "__key__": "20261123123000/1"}]).label_from_path())',
            LabelError,
            (
                "sample '20261123123000/1' of s3://photos/0.tar: '20261123123000/1' has the label "
                "'20261123123000', expected a number from 0 to 2147483647. If it is a name, pass classes=."
            ),
        ),
    ],
    "decode_image": [
        Mistake(
            "no size",
            "samples.decode_image()",
            TypeError,
            "decode_image() is missing 'size' (height and width of the tensors). Write decode_image(size).",
        ),
        Mistake(
            "size as text",
            'samples.decode_image("224")',
            TypeError,
            "decode_image: size must be an int, or (height, width), got '224' (str).",
        ),
        Mistake(
            "size of torchvision's tensors",
            "samples.decode_image((3, 224, 224))",
            ValueError,
            "decode_image: size must be an int, or (height, width), got (3, 224, 224) (tuple).",
        ),
        Mistake(
            "misspelt crop",
            'samples.decode_image(224, crop="centre")',
            ValueError,
            "decode_image: crop must be 'random', 'center' or None, got 'centre' (str).",
        ),
        Mistake(
            "resize for a random crop",
            "samples.decode_image(224, resize=256)",
            ValueError,
            "decode_image: resize is for crop='center', got crop='random': the size is made at once.",
        ),
        Mistake(
            "resize smaller than the crop",
            'samples.decode_image(224, crop="center", resize=192)',
            ValueError,
            "decode_image: resize must be at least 224, the larger side of size, got 192.",
        ),
        Mistake(
            "flip as a flag",
            "samples.decode_image(224, flip=True)",
            TypeError,
            "decode_image: flip must be a probability, got True. Write 0.5.",
        ),
        Mistake(
            "flip in percent",
            "samples.decode_image(224, flip=50)",
            ValueError,
            "decode_image: flip must be a probability of at most 1, got 50 (int).",
        ),
        Mistake(
            "dtype of NumPy",
            "samples.decode_image(224, dtype=np.float32)",
            ValueError,
            (
                "decode_image: dtype must be one of torch.float32, torch.float16, torch.bfloat16, torch.uint8, got "
                "the class float32."
            ),
        ),
        Mistake(
            "mean for bytes",
            "samples.decode_image(224, dtype=torch.uint8, mean=(0.5, 0.5, 0.5))",
            ValueError,
            (
                "decode_image: mean and std are for floats: leave them out, or pass dtype=torch.float32; got dtype "
                "torch.uint8."
            ),
        ),
        Mistake(
            "mean of one channel in a list",
            "samples.decode_image(224, mean=[0.5])",
            ValueError,
            "decode_image: mean must be a number, or one for each of the three channels, got [0.5] (list).",
        ),
        Mistake(
            "std of 0",
            "samples.decode_image(224, std=0)",
            ValueError,
            "decode_image: std must be positive, got 0.",
        ),
        Mistake(
            "mean of 0 to 255",
            "samples.decode_image(224, mean=(123.7, 116.3, 103.5))",
            ValueError,
            ("decode_image: mean must be from 0 to 1, where 1 is white, got 123.7. Divide by 255."),
        ),
        Mistake(
            "scale as one number",
            "samples.decode_image(224, scale=0.5)",
            TypeError,
            "decode_image: scale must be (least, most), got 0.5 (float).",
        ),
        Mistake(
            "scale in the other order",
            "samples.decode_image(224, scale=(1, 0.08))",
            ValueError,
            "decode_image: scale must be (least, most), from 1e-06 to 1, got (1, 0.08) (tuple).",
        ),
        Mistake(
            "a ratio that overflows",
            "samples.decode_image(224, ratio=(1e-300, 1e300))",
            ValueError,
            "decode_image: ratio must be (least, most), from 0.001 to 1000, got (1e-300, 1e+300) (tuple).",
        ),
        Mistake(
            "scale of a crop in the middle",
            'samples.decode_image(224, crop="center", scale=(0.5, 1))',
            ValueError,
            "decode_image: scale is for crop='random', got crop='center'. Leave it out.",
        ),
        Mistake(
            "a size of terabytes",
            "samples.decode_image(1_000_000)",
            ValueError,
            "decode_image: size must have at most 67_108_864 pixels, got 1000000 x 1000000.",
        ),
        Mistake(
            "a std that makes values infinite",
            "samples.decode_image(224, std=1e-45)",
            ValueError,
            "decode_image: std must be at least 0.001, got 1e-45.",
        ),
        Mistake(
            "a set for the size",
            "samples.decode_image({224, 256})",
            TypeError,
            "decode_image: size must be an int, or (height, width), got {224, 256} (set).",
        ),
        Mistake(
            "an array for the crop",
            "samples.decode_image(224, crop=np.array([1, 2]))",
            ValueError,
            "decode_image: crop must be 'random', 'center' or None, got array([1, 2]) (ndarray).",
        ),
        Mistake(
            "members separated by commas",
            'samples.decode_image(224, members="jpg, png")',
            ValueError,
            (
                "decode_image: members (separated by ';'): no member has the extension 'jpg, png'. Write 'jpg': no "
                "dot before it, no '*', comma or space."
            ),
        ),
        Mistake(
            "torchvision's layout",
            'samples.decode_image(224, layout="NCHW")',
            ValueError,
            "decode_image: layout must be 'CHW' or 'HWC', got 'NCHW' (str).",
        ),
        Mistake(
            "members as a list",
            'samples.decode_image(224, members=["jpg"])',
            TypeError,
            (
                "decode_image: members must be a str such as 'jpg;png', got ['jpg'] (list). Pass the str itself, not a "
                "list of it."
            ),
        ),
        Mistake(
            "no members",
            'samples.decode_image(224, members=";")',
            ValueError,
            "decode_image: members must name one, such as 'jpg;png', got ';'.",
        ),
        Mistake(
            "samples without images",
            "next(iter(samples.decode_image(224)))",
            MissingMemberError,
            (
                "sample 'cat/1' of s3://photos/0.tar has no 'jpg' or 'jpeg' or 'png' or 'webp' or 'avif'. It has "
                "['txt']. Name the images by decode_image(size, members=\"...\")."
            ),
        ),
        Mistake(
            "a picture that is none",
            "list(tdr.stream_files(flat).decode_image(224))",
            DecodeError,
            (
                "sample 'mistakes/flat/0' of memory://mistakes/flat/0.png: the 10 bytes of 'png' cannot be "
                "decoded: UnidentifiedImageError: not an image of a known format (JPEG, PNG, WEBP, AVIF, BMP, GIF, "
                "TIFF, PPM)"
            ),
        ),
        Mistake(
            "decoded before",
            "list(tdr.stream_files(pictures).decode_sample().decode_image(224))",
            DecodeError,
            (
                "sample '...' of memory://mistakes/pictures/cat/0.png: 'png' cannot be decoded: TypeError: expected "
                "the bytes of an image, got an Image. Chain decode_image() before decode_sample() and map()"
            ),
        ),
        Mistake(
            "URLs where samples are expected",
            "list(urls.decode_image(224))",
            SampleError,
            (
                "decode_image: expected samples, dicts such as {'__key__': 'cat/1', 'jpg': ...}, got a URL. "
                "Put a reader of samples before it: shard_tar_reader() or file_reader()."
            ),
        ),
    ],
    "parallel_map": [
        Mistake(
            "no function",
            "samples.parallel_map()",
            TypeError,
            (
                "parallel_map() is missing 'function' (called with an item, and with seed also with a "
                "numpy.random.Generator). Write parallel_map(function)."
            ),
        ),
        Mistake(
            "random numbers after to_tuple",
            'list(samples.to_tuple("txt").parallel_map(lambda item, rng: item, seed=0))',
            SampleError,
            (
                "parallel_map: expected samples, dicts such as {'__key__': 'cat/1', 'jpg': ...}, got a tuple. Put it "
                "before to_tuple(), batch() and map(), which make other items of samples."
            ),
        ),
        Mistake(
            "a policy as text",
            'samples.parallel_map(len, on_bad_sample="skip")',
            TypeError,
            "parallel_map: on_bad_sample must be a function such as tdr.skip_with_warning, got 'skip' (str).",
        ),
        Mistake(
            "what the function returned",
            "samples.parallel_map(len([]), num_threads=2)",
            TypeError,
            "parallel_map: function must be a function such as transform, got 0 (int).",
        ),
        Mistake(
            "a function by name",
            'samples.parallel_map("rgb")',
            TypeError,
            "parallel_map: function must be a function such as transform, got 'rgb' (str).",
        ),
        Mistake(
            "the threads by position",
            "samples.parallel_map(len, 4)",
            TypeError,
            (
                "parallel_map() takes 1 argument by position (function), got 2; not expected: an int. Pass the rest by "
                "name: seed=, num_threads=, max_ahead=, on_bad_sample=."
            ),
        ),
        Mistake(
            "the word of DataLoader",
            "samples.parallel_map(len, num_workers=4)",
            TypeError,
            "parallel_map() got an unexpected keyword argument 'num_workers'; did you mean 'num_threads'?",
        ),
        Mistake(
            "threads as a text",
            'samples.parallel_map(len, num_threads="4")',
            TypeError,
            "parallel_map: num_threads must be an int of at least 0 or None, got '4' (str). Write 4.",
        ),
        Mistake(
            "threads below zero",
            "samples.parallel_map(len, num_threads=-1)",
            ValueError,
            "parallel_map: num_threads must be an int of at least 0 or None, got -1.",
        ),
        Mistake(
            "no look-ahead",
            "samples.parallel_map(len, num_threads=2, max_ahead=0)",
            ValueError,
            "parallel_map: max_ahead must be an int of at least 1 or None, got 0.",
        ),
        Mistake(
            "a function of two arguments",
            "list(samples.parallel_map(lambda key, value: key, num_threads=2))",
            TypeError,
            "<lambda>() missing 1 required positional argument: 'value'",
        ),
        Mistake(
            "a URL as the source",
            'tdr.ParallelMap("memory://shards/", len)',
            UrlError,
            "parallel_map: expected a pipe of items, got the str 'memory://shards/'.",
        ),
        Mistake(
            "NumPy's number of threads",
            "len(list(samples.parallel_map(len, num_threads=np.int64(2))))",
            None,
            "1",
        ),
    ],
    "flat_map": [
        Mistake(
            "no function",
            "samples.flat_map()",
            TypeError,
            (
                "flat_map() is missing 'function' (called with an item, and with seed also with a "
                "numpy.random.Generator). Write flat_map(function)."
            ),
        ),
        Mistake(
            "the result of a call",
            "samples.flat_map(len([]))",
            TypeError,
            "flat_map: function must be a function such as sentences_of, got 0 (int).",
        ),
        Mistake(
            "a name",
            'samples.flat_map("lines")',
            TypeError,
            "flat_map: function must be a function such as sentences_of, got 'lines' (str).",
        ),
        Mistake(
            "a function of one item",
            "list(samples.flat_map(len))",
            SampleError,
            (
                "flat_map: the function must return a list or another iterable, got an int for sample 'cat/1' of"
                " s3://photos/0.tar. Return [value] for one item, and [] for none."
            ),
        ),
        Mistake(
            "a function that returns a text",
            'list(samples.flat_map(lambda sample: sample["__key__"]))',
            SampleError,
            (
                "flat_map: the function must return a list or another iterable, got a str for sample 'cat/1' of "
                "s3://photos/0.tar. Return [value] for one item, and [] for none."
            ),
        ),
        Mistake(
            "a function that returns a sample",
            "list(samples.flat_map(dict))",
            SampleError,
            (
                "flat_map: the function must return a list or another iterable, got a dict for sample 'cat/1' of"
                " s3://photos/0.tar. Return [value] for one item, and [] for none."
            ),
        ),
        Mistake(
            "a function that returns nothing",
            "list(samples.flat_map(lambda sample: None))",
            SampleError,
            (
                "flat_map: the function must return a list or another iterable, got None for sample 'cat/1' of "
                "s3://photos/0.tar. Return [value] for one item, and [] for none."
            ),
        ),
        Mistake(
            "a function without the random numbers",
            "list(samples.flat_map(lambda sample: [], seed=0))",
            TypeError,
            "<lambda>() takes 1 positional argument but 2 were given",
        ),
        Mistake(
            "a seed by position",
            "samples.flat_map(list, 0)",
            TypeError,
            (
                "flat_map() takes 1 argument by position (function), got 2; not expected: an int. Pass the rest "
                "by name: seed=."
            ),
        ),
        Mistake(
            "a seed as text",
            'samples.flat_map(list, seed="0")',
            TypeError,
            "flat_map: seed must be an int, or None for a function of one argument, got '0' (str). Write 0.",
        ),
        Mistake(
            "option of another library",
            'samples.flat_map(list, input_col="txt")',
            TypeError,
            "flat_map() got an unexpected keyword argument 'input_col'. It takes function, seed.",
        ),
        Mistake(
            "a function that returns an array",
            "len(list(samples.flat_map(lambda sample: np.arange(2))))",
            None,
            "2",
        ),
    ],
    "pack": [
        Mistake(
            "no length",
            "samples.pack()",
            TypeError,
            "pack() is missing 'length' (of rows, in tokens). Write pack(length).",
        ),
        Mistake(
            "a length as text",
            'tdr.IterableWrapper([[1, 2, 3], [4, 5]]).pack("4k")',
            TypeError,
            "pack: length must be a number of tokens, an int of at least 1, got '4k' (str). Write 4_000.",
        ),
        Mistake(
            "a length of 0",
            "tdr.IterableWrapper([[1, 2, 3], [4, 5]]).pack(0)",
            ValueError,
            "pack: length must be a number of tokens, an int of at least 1, got 0.",
        ),
        Mistake(
            "a misspelt option",
            "tdr.IterableWrapper([[1, 2, 3], [4, 5]]).pack(4, seperator=0)",
            TypeError,
            "pack() got an unexpected keyword argument 'seperator'; did you mean 'separator'?",
        ),
        Mistake(
            "option of another library",
            "tdr.IterableWrapper([[1, 2, 3], [4, 5]]).pack(4, max_length=4)",
            TypeError,
            "pack() got an unexpected keyword argument 'max_length'; did you mean 'length'?",
        ),
        Mistake(
            "padding for the last row by name",
            'tdr.IterableWrapper([[1, 2, 3], [4, 5]]).pack(4, last="padding")',
            ValueError,
            "pack: last must be one of 'pad', 'short', 'drop', got 'padding' (str); did you mean 'pad'?",
        ),
        Mistake(
            "a separator as text",
            'tdr.IterableWrapper([[1, 2, 3], [4, 5]]).pack(4, separator="</s>")',
            TypeError,
            "pack: separator must be an int or None, got '</s>' (str).",
        ),
        Mistake(
            "samples without a member",
            "list(samples.pack(4))",
            SampleError,
            (
                "pack: expected token ids, got sample 'cat/1' of s3://photos/0.tar. Name the member: member= one"
                " of ['txt']."
            ),
        ),
        Mistake(
            "a member that is not there",
            'list(samples.pack(4, member="input_ids"))',
            MissingMemberError,
            "sample 'cat/1' of s3://photos/0.tar has no 'input_ids'. It has ['txt'].",
        ),
        Mistake(
            "a member that is no tokens",
            'list(samples.pack(4, member="__key__"))',
            SampleError,
            (
                "pack: expected token ids, a tensor, array or list of integers in one dimension, got a str in "
                "sample 'cat/1' of s3://photos/0.tar. Put the tokenizer before it: map() or parallel_map()."
            ),
        ),
        Mistake(
            "texts",
            'list(tdr.IterableWrapper(["a text"]).pack(4))',
            SampleError,
            (
                "pack: expected token ids, a tensor, array or list of integers in one dimension, got a str in a "
                "sample. Put the tokenizer before it: map() or parallel_map()."
            ),
        ),
        Mistake(
            "token probabilities",
            "list(tdr.IterableWrapper([[0.5, 0.5]]).pack(4))",
            SampleError,
            (
                "pack: expected token ids, a tensor, array or list of integers in one dimension, got a list of "
                "float64 and shape (2,) in a sample. Put the tokenizer before it: map() or parallel_map()."
            ),
        ),
        Mistake(
            "NumPy's length",
            "len(list(tdr.IterableWrapper([[1, 2, 3], [4, 5]]).pack(np.int64(5))))",
            None,
            "1",
        ),
    ],
    "bucket": [
        Mistake(
            "no bound",
            "samples.bucket()",
            TypeError,
            "bucket: a batch has no bound: pass batch_size= or max_tokens=.",
        ),
        Mistake(
            "a batch size of 0",
            "samples.bucket(0)",
            ValueError,
            "bucket: batch_size must be an int of at least 1 or None, got 0.",
        ),
        Mistake(
            "a batch size as text",
            'samples.bucket("8")',
            TypeError,
            "bucket: batch_size must be an int of at least 1 or None, got '8' (str). Write 8.",
        ),
        Mistake(
            "boundaries by position",
            "samples.bucket(8, [128])",
            TypeError,
            (
                "bucket() takes 1 argument by position (batch_size), got 2; not expected: a list. Pass the rest "
                "by name: max_tokens=, length=, boundaries=, max_wait=."
            ),
        ),
        Mistake(
            "boundaries that decrease",
            "samples.bucket(8, length=len, boundaries=[512, 128])",
            ValueError,
            "bucket: boundaries must be increasing, got [512, 128].",
        ),
        Mistake(
            "one boundary",
            "samples.bucket(8, length=len, boundaries=128)",
            TypeError,
            "bucket: boundaries must be a list of lengths such as [128, 512], got 128 (int).",
        ),
        Mistake(
            "boundaries as text",
            'samples.bucket(8, length=len, boundaries="128,512")',
            TypeError,
            "bucket: boundaries must be a list of lengths such as [128, 512], got '128,512' (str).",
        ),
        Mistake(
            "option of another library",
            "samples.bucket(8, len_fn=len)",
            TypeError,
            (
                "bucket() got an unexpected keyword argument 'len_fn'. It takes batch_size, max_tokens, length, "
                "boundaries, max_wait."
            ),
        ),
        Mistake(
            "samples without a length",
            "list(samples.bucket(2))",
            SampleError,
            (
                "bucket: expected items that have a length, got sample 'cat/1' of s3://photos/0.tar. Name the "
                "member: length= one of ['txt']."
            ),
        ),
        Mistake(
            "a member that is not there",
            'list(samples.bucket(2, length="input_ids"))',
            MissingMemberError,
            "sample 'cat/1' of s3://photos/0.tar has no 'input_ids'. It has ['txt'].",
        ),
        Mistake(
            "a length that is no number",
            "list(samples.bucket(2, length=str, boundaries=[3]))",
            SampleError,
            (
                "bucket: the length of sample 'cat/1' of s3://photos/0.tar must be a number for boundaries= and "
                "max_tokens=, got a str."
            ),
        ),
        Mistake(
            "max_wait of 0",
            "samples.bucket(2, length=len, max_wait=0)",
            ValueError,
            "bucket: max_wait must be a number of items, an int of at least 1, got 0.",
        ),
    ],
    "repeat_epochs": [
        Mistake(
            "0 times",
            "urls.list_remote().repeat_epochs(0)",
            ValueError,
            "repeat_epochs: times must be an int of at least 1 or None, got 0.",
        ),
        Mistake(
            "a text",
            'urls.list_remote().repeat_epochs("3")',
            TypeError,
            "repeat_epochs: times must be an int of at least 1 or None, got '3' (str). Write 3.",
        ),
        Mistake(
            "a fraction",
            "samples.repeat_epochs(1.5)",
            TypeError,
            "repeat_epochs: times must be an int of at least 1 or None, got 1.5 (float).",
        ),
        Mistake(
            "infinity",
            'samples.repeat_epochs(float("inf"))',
            TypeError,
            "repeat_epochs: times must be an int of at least 1 or None, got inf (float).",
        ),
        Mistake(
            "-1 for no end, as in TensorFlow",
            "samples.repeat_epochs(-1)",
            ValueError,
            "repeat_epochs: times must be an int of at least 1 or None, got -1.",
        ),
        Mistake(
            "option of another library",
            "samples.repeat_epochs(nepochs=2)",
            TypeError,
            "repeat_epochs() got an unexpected keyword argument 'nepochs'. It takes times.",
        ),
        Mistake(
            "the length of no end",
            "len(samples.repeat_epochs())",
            TypeError,
            "repeat_epochs() has no end: give it a number of times, or chain take(n)",
        ),
        Mistake(
            "nothing without end",
            "list(tdr.RepeatEpochs(IterableWrapper([])))",
            SampleError,
            "repeat_epochs: a pass over the source has no items, and so would all the next ones.",
        ),
        Mistake(
            "equalize_ranks after it",
            "urls.list_remote().sharding_filter_rank().shard_tar_reader().repeat_epochs().equalize_ranks()",
            ValueError,
            "equalize_ranks counts samples, and RepeatEpochs changes their number: put it after equalize_ranks.",
        ),
        Mistake(
            "a list as the source",
            "list(tdr.RepeatEpochs([1, 2], 2))",
            None,
            "[1, 2, 1, 2]",
        ),
        Mistake(
            "NumPy's number",
            "len(list(tdr.RepeatEpochs(IterableWrapper([1]), np.int64(2))))",
            None,
            "2",
        ),
    ],
    "take": [
        Mistake(
            "no number",
            "samples.take()",
            TypeError,
            "take() is missing 'number' (of items, of all ranks together). Write take(number).",
        ),
        Mistake(
            "0 items",
            "samples.take(0)",
            ValueError,
            "take: number must be a number of items, an int of at least 1, got 0.",
        ),
        Mistake(
            "a text",
            'samples.take("10")',
            TypeError,
            "take: number must be a number of items, an int of at least 1, got '10' (str). Write 10.",
        ),
        Mistake(
            "a fraction",
            "samples.take(0.1)",
            TypeError,
            "take: number must be a number of items, an int of at least 1, got 0.1 (float).",
        ),
        Mistake(
            "a slice",
            "samples.take(2, 10)",
            TypeError,
            "take() takes 1 argument by position (number), got 2; not expected: an int.",
        ),
        Mistake(
            "a slice by name",
            "samples.take(stop=10)",
            TypeError,
            "take() got an unexpected keyword argument 'stop'. It takes number.",
        ),
        Mistake(
            "None for all",
            "samples.take(None)",
            TypeError,
            "take: number must be a number of items, an int of at least 1, got None.",
        ),
        Mistake(
            "more readers than items",
            "list(urls.list_remote().sharding_filter_rank(world=tdr.World(0, 2)).take(1))",
            EmptyShareError,
            (
                "take(1) is divided among all readers, so some of 2 readers (2 ranks x 1 worker) would have "
                "none. Take 2 or more, or call take before sharding_filter_rank()."
            ),
        ),
        Mistake(
            "a URL as the source",
            'tdr.Take("memory://shards/", 3)',
            UrlError,
            "take: expected a pipe of items, got the str 'memory://shards/'.",
        ),
        Mistake(
            "NumPy's number",
            "len(list(samples.take(np.int64(1))))",
            None,
            "1",
        ),
    ],
    "skip": [
        Mistake(
            "no number",
            "samples.skip()",
            TypeError,
            "skip() is missing 'number' (of items, of all ranks together). Write skip(number).",
        ),
        Mistake(
            "a negative number",
            "samples.skip(-1)",
            ValueError,
            "skip: number must be a number of items, an int of at least 0, got -1.",
        ),
        Mistake(
            "a text",
            'samples.skip("10")',
            TypeError,
            "skip: number must be a number of items, an int of at least 0, got '10' (str). Write 10.",
        ),
        Mistake(
            "a fraction",
            "samples.skip(0.1)",
            TypeError,
            "skip: number must be a number of items, an int of at least 0, got 0.1 (float).",
        ),
        Mistake(
            "a function, as filter has",
            "samples.skip(len)",
            TypeError,
            "skip: number must be a number of items, an int of at least 0, got a builtin_function_or_method.",
        ),
        Mistake(
            "option of another library",
            "samples.skip(count=3)",
            TypeError,
            "skip() got an unexpected keyword argument 'count'. It takes number.",
        ),
        Mistake(
            "None for nothing",
            "samples.skip(None)",
            TypeError,
            "skip: number must be a number of items, an int of at least 0, got None.",
        ),
        Mistake(
            "a list as the source",
            "list(tdr.Skip([1, 2], 1))",
            None,
            "[2]",
        ),
        Mistake(
            "more than there are",
            "len(list(samples.skip(1_000)))",
            None,
            "0",
        ),
        Mistake(
            "NumPy's number",
            "len(list(IterableWrapper(range(3)).skip(np.int64(2))))",
            None,
            "1",
        ),
    ],
    "decode_sample": [
        Mistake(
            "decoders as a function",
            "samples.decode_sample(len)",
            TypeError,
            (
                'decode_sample: decoders must be a dict from extension to function such as {"jpg": '
                "decoders.rgb}, got a builtin_function_or_method."
            ),
        ),
        Mistake(
            "decoders as a list",
            'samples.decode_sample(["txt"])',
            TypeError,
            (
                'decode_sample: decoders must be a dict from extension to function such as {"jpg": '
                "decoders.rgb}, got ['txt'] (list)."
            ),
        ),
        Mistake(
            "a decoder by name",
            'samples.decode_sample({"jpg": "rgb"})',
            TypeError,
            ("decode_sample: decoders['jpg'] must be a function such as decoders.rgb, got 'rgb' (str)."),
        ),
        Mistake(
            "WebDataset's word",
            'samples.decode_sample("pil")',
            TypeError,
            (
                'decode_sample: decoders must be a dict from extension to function such as {"jpg": '
                "decoders.rgb}, got 'pil' (str)."
            ),
        ),
        Mistake(
            "an extension with a dot",
            'samples.decode_sample({".jpg": len})',
            ValueError,
            (
                "decode_sample: the extension of a decoder: no member has the extension '.jpg'. Write 'jpg': no dot "
                "before it, no '*', comma or space."
            ),
        ),
        Mistake(
            "an extension in capitals",
            'samples.decode_sample({"JPG": len, "jpg": len})',
            ValueError,
            "decode_sample: decoders differ in case only: 'JPG' and 'jpg'.",
        ),
        Mistake(
            "an extension as bytes",
            'samples.decode_sample({b"jpg": len})',
            TypeError,
            (
                "decode_sample: the extension of a decoder must be a str such as 'jpg', got b'jpg' (bytes). "
                "Decode the bytes: value.decode()."
            ),
        ),
        Mistake(
            "no decoder",
            'samples.decode_sample({"jpg": None})',
            TypeError,
            (
                "decode_sample: decoders['jpg'] must be a function such as decoders.rgb, got None. Pass the "
                "function itself, not what it returned."
            ),
        ),
        Mistake(
            "misspelt option",
            "samples.decode_sample(decoder={})",
            TypeError,
            "decode_sample() got an unexpected keyword argument 'decoder'; did you mean 'decoders'?",
        ),
        Mistake(
            "two arguments",
            "samples.decode_sample({}, {})",
            TypeError,
            (
                "decode_sample() takes 1 argument by position (decoders), got 2; not expected: a dict. Pass the rest "
                "by name: num_threads=, on_bad_sample=."
            ),
        ),
        Mistake(
            "a picture that is none",
            "list(tdr.stream_files(flat).decode_sample())",
            DecodeError,
            (
                "sample 'mistakes/flat/0' of memory://mistakes/flat/0.png: the 10 bytes of 'png' cannot be "
                "decoded: UnidentifiedImageError: not an image of a known format (JPEG, PNG, WEBP, AVIF, BMP, GIF, "
                "TIFF, PPM)"
            ),
        ),
        Mistake(
            "URLs where samples are expected",
            "list(urls.decode_sample())",
            SampleError,
            (
                "decode_sample: expected samples, dicts such as {'__key__': 'cat/1', 'jpg': ...}, got a URL. "
                "Put a reader of samples before it: shard_tar_reader() or file_reader()."
            ),
        ),
        Mistake(
            "tuples where samples are expected",
            'list(samples.to_tuple("txt").decode_sample())',
            SampleError,
            (
                "decode_sample: expected samples, dicts such as {'__key__': 'cat/1', 'jpg': ...}, got a tuple. "
                "Put it before to_tuple(), batch() and map(), which make other items of samples."
            ),
        ),
        Mistake(
            "a str instead of a pipe",
            'tdr.DecodeSample("s3://photos/")',
            UrlError,
            "decode_sample: expected a pipe of samples, got the str 's3://photos/'.",
        ),
        Mistake("decoded twice", 'list(samples.decode_sample().decode_sample().to_tuple("txt"))', None, "[('miaow',)]"),
    ],
    "to_tuple": [
        Mistake("no names", "samples.to_tuple()", ValueError, "to_tuple needs names such as 'jpg;png', 'cls'; got ()."),
        Mistake(
            "names as a list",
            'samples.to_tuple(["jpg", "cls"])',
            ValueError,
            ("to_tuple needs names such as 'jpg;png', 'cls'; got (['jpg', 'cls'],). Write to_tuple('jpg', 'cls')."),
        ),
        Mistake(
            "a number as name",
            'samples.to_tuple("jpg", 1)',
            ValueError,
            "to_tuple needs names such as 'jpg;png', 'cls'; got ('jpg', 1).",
        ),
        Mistake(
            "an empty name",
            'samples.to_tuple("jpg", "")',
            ValueError,
            "to_tuple needs names such as 'jpg;png', 'cls'; got ('jpg', '').",
        ),
        Mistake(
            "a name in bytes",
            'samples.to_tuple(b"jpg")',
            ValueError,
            "to_tuple needs names such as 'jpg;png', 'cls'; got (b'jpg',).",
        ),
        Mistake(
            "a keyword",
            'samples.to_tuple("jpg", default=None)',
            TypeError,
            ("to_tuple() got an unexpected keyword argument 'default'. It takes no keyword arguments."),
        ),
        Mistake(
            "a comma between names",
            'list(samples.to_tuple("jpg,png"))',
            MissingMemberError,
            (
                "sample 'cat/1' of s3://photos/0.tar has no 'jpg,png'. It has ['txt']. Separate alternatives by "
                "';', and elements of the tuple by arguments: to_tuple('jpg;png', 'cls')."
            ),
        ),
        Mistake(
            "a member that is missing",
            'list(samples.to_tuple("jpg", "txt"))',
            MissingMemberError,
            "sample 'cat/1' of s3://photos/0.tar has no 'jpg'. It has ['txt'].",
        ),
        Mistake(
            "a name with a dot",
            'list(samples.to_tuple(".txt"))',
            MissingMemberError,
            "sample 'cat/1' of s3://photos/0.tar has no '.txt'. It has ['txt']; did you mean 'txt'?",
        ),
        Mistake(
            "a name in capitals",
            'len(list(samples.to_tuple("TXT")))',
            None,
            "1",
        ),
        Mistake(
            "a space between names",
            'list(samples.to_tuple("jpg txt"))',
            MissingMemberError,
            (
                "sample 'cat/1' of s3://photos/0.tar has no 'jpg txt'. It has ['txt']. Separate alternatives by "
                "';', and elements of the tuple by arguments: to_tuple('jpg;png', 'cls')."
            ),
        ),
        Mistake(
            "twice in a chain",
            'list(samples.to_tuple("txt").to_tuple("txt"))',
            SampleError,
            (
                "to_tuple: expected samples, dicts such as {'__key__': 'cat/1', 'jpg': ...}, got a tuple. Put "
                "it before to_tuple(), batch() and map(), which make other items of samples."
            ),
        ),
        Mistake(
            "URLs where samples are expected",
            'list(urls.to_tuple("jpg"))',
            SampleError,
            (
                "to_tuple: expected samples, dicts such as {'__key__': 'cat/1', 'jpg': ...}, got a URL. Put a "
                "reader of samples before it: shard_tar_reader() or file_reader()."
            ),
        ),
        Mistake(
            "streams where samples are expected",
            'list(urls.async_prefetch().to_tuple("jpg"))',
            SampleError,
            (
                "to_tuple: expected samples, dicts such as {'__key__': 'cat/1', 'jpg': ...}, got a stream of "
                "memory://mistakes/shards/000000.tar. Put a reader of samples before it: shard_tar_reader() or "
                "file_reader()."
            ),
        ),
        Mistake(
            "a str instead of a pipe",
            'tdr.ToTuple("abc", "jpg")',
            UrlError,
            "to_tuple: expected a pipe of samples, got the str 'abc'.",
        ),
    ],
    "write_shards": [
        Mistake(
            "no template",
            "samples.write_shards()",
            TypeError,
            (
                "write_shards() is missing 'url_template' (URL with one {shard} field in its base name, such "
                "as s3://b/train/{shard:06d}.tar, or .tar.gz, .tgz, .tar.zst for compressed shards). Write "
                "write_shards(url_template)."
            ),
        ),
        Mistake(
            "a folder as template",
            'samples.write_shards("memory://mistakes/out/")',
            ShardWriteError,
            (
                "memory://mistakes/out/: it needs exactly one {shard} field, in its base name. Expected a "
                "template such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "a template without number",
            'samples.write_shards("memory://mistakes/out.tar")',
            ShardWriteError,
            (
                "memory://mistakes/out.tar: it needs exactly one {shard} field, in its base name. Expected a "
                "template such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "a template with another field",
            'samples.write_shards("memory://mistakes/{i}.tar")',
            ShardWriteError,
            (
                "memory://mistakes/{i}.tar: it needs exactly one {shard} field, in its base name. Expected a "
                "template such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "a number in C's format",
            'samples.write_shards("memory://mistakes/%06d.tar")',
            ShardWriteError,
            (
                "memory://mistakes/%06d.tar: it needs exactly one {shard} field, in its base name. Expected a "
                "template such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "a template as bytes",
            'samples.write_shards(b"memory://mistakes/{shard}.tar")',
            TypeError,
            (
                "write_shards: url_template must be a str such as 's3://bucket/train/{shard:06d}.tar', got a "
                "bytes. Decode the bytes: value.decode()."
            ),
        ),
        Mistake(
            "no URL",
            "samples.write_shards(None)",
            TypeError,
            ("write_shards: url_template must be a str such as 's3://bucket/train/{shard:06d}.tar', got None."),
        ),
        Mistake(
            "a zip",
            'samples.write_shards("memory://mistakes/{shard}.zip")',
            ShardWriteError,
            (
                "memory://mistakes/{shard}.zip: the name must end in one of .tar, .tar.gz, .tgz, .tar.zst. "
                "Expected a template such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "misspelt option",
            "samples.write_shards(new, maxsize=1000)",
            TypeError,
            ("write_shards() got an unexpected keyword argument 'maxsize'; did you mean 'max_shard_bytes'?"),
        ),
        Mistake(
            "a limit with a unit",
            'samples.write_shards(new, max_shard_bytes="256MB")',
            TypeError,
            ("write_shards: max_shard_bytes must be an int of at least 1, got '256MB' (str). Write 256_000_000."),
        ),
        Mistake(
            "a limit of 0",
            "samples.write_shards(new, max_shard_samples=0)",
            ValueError,
            "write_shards: max_shard_samples must be an int of at least 1, got 0.",
        ),
        Mistake(
            "a limit as float",
            "samples.write_shards(new, max_shard_samples=1e4)",
            TypeError,
            ("write_shards: max_shard_samples must be an int of at least 1, got 10000.0 (float). Write 10_000."),
        ),
        Mistake(
            '"no" for False',
            'samples.write_shards(new, overwrite="no")',
            TypeError,
            ("write_shards: overwrite must be True or False, got 'no' (str). Write False, without quotes."),
        ),
        Mistake(
            "two templates",
            "samples.write_shards(new, new)",
            TypeError,
            (
                "write_shards() takes 1 argument by position (url_template), got 2; not expected: a str. Pass "
                "the rest by name: max_shard_bytes=, max_shard_samples=, max_member_bytes=, overwrite=, "
                "storage_options=."
            ),
        ),
        Mistake(
            "tuples where samples are expected",
            'list(samples.to_tuple("txt").write_shards(new))',
            ShardWriteError,
            "Expected a sample: a dict with a str under '__key__', got tuple.",
        ),
        Mistake(
            "a float as member",
            'list(IterableWrapper([{"__key__": "1", "x": 1.5}]).write_shards(new))',
            EncodeError,
            (
                "Sample '1': A float cannot be written as 'x'. Members are bytes, str, int, a PIL.Image (jpg, "
                "jpeg, png, webp, avif, bmp, gif, tif, tiff, ppm, pgm, pbm, pnm), a NumPy array (npy), or anything "
                "that JSON knows (json)."
            ),
        ),
        Mistake(
            "no samples",
            "list(IterableWrapper([]).write_shards(new))",
            ShardWriteError,
            "memory://mistakes/.../000.tar: there are no samples to write.",
        ),
        Mistake(
            "existing shards",
            'list(samples.write_shards("memory://mistakes/shards/{shard:06d}.tar"))',
            ObjectExistsError,
            (
                "memory://mistakes/shards/000000.tar exists already. Write into another folder, or pass "
                "overwrite=True to replace all shards of this template."
            ),
        ),
    ],
    "stream_shards": [
        Mistake(
            "no URL",
            "tdr.stream_shards()",
            TypeError,
            "stream_shards() is missing 'url' (source URL, or several). Write stream_shards(url).",
        ),
        Mistake(
            "URL=None",
            "tdr.stream_shards(None)",
            UrlError,
            "stream_shards: expected one URL or path, as str or os.PathLike, got NoneType: None.",
        ),
        Mistake(
            "URL as bytes",
            'tdr.stream_shards(b"s3://photos/")',
            UrlError,
            (
                "stream_shards: expected one URL or path, as str or os.PathLike, got bytes: b's3://photos/'. "
                "Decode it: 's3://photos/'."
            ),
        ),
        Mistake(
            "a number as URL",
            "tdr.stream_shards(1)",
            UrlError,
            "stream_shards: expected one URL or path, as str or os.PathLike, got int: 1.",
        ),
        Mistake(
            "URLs as a dict",
            'tdr.stream_shards({"train": "s3://photos/"})',
            UrlError,
            ("stream_shards: expected one URL or several, got a dict. Pass its values: list(urls.values())."),
        ),
        Mistake(
            "no URLs",
            "list(tdr.stream_shards([]))",
            EmptyListingError,
            "stream_shards: expected one URL or several, got an empty list.",
        ),
        Mistake(
            "an IterableWrapper of a str",
            'tdr.stream_shards(IterableWrapper("s3://photos/"))',
            UrlError,
            (
                "stream_shards: IterableWrapper reads the str 's3://photos/' as a list of URLs, one for each "
                "of its characters. Write stream_shards('s3://photos/')"
            ),
        ),
        Mistake(
            "WebDataset's option",
            "tdr.stream_shards(shards, shardshuffle=True)",
            TypeError,
            ("stream_shards() got an unexpected keyword argument 'shardshuffle'; did you mean 'shuffle'?"),
        ),
        Mistake(
            "misspelt option",
            "tdr.stream_shards(shards, max_inflight=3)",
            TypeError,
            ("stream_shards() got an unexpected keyword argument 'max_inflight'; did you mean 'max_in_flight'?"),
        ),
        Mistake(
            "DataLoader's option",
            "tdr.stream_shards(shards, batch_size=8)",
            TypeError,
            (
                "stream_shards() got an unexpected keyword argument 'batch_size'. Pass it to "
                "stateful_loader(pipe, batch_size=...)."
            ),
        ),
        Mistake(
            "workers",
            "tdr.stream_shards(shards, num_workers=4)",
            TypeError,
            (
                "stream_shards() got an unexpected keyword argument 'num_workers'. Pass it to "
                "stateful_loader(pipe, num_workers=...)."
            ),
        ),
        Mistake(
            "a credential",
            'tdr.stream_shards(shards, endpoint_url="http://localhost")',
            TypeError,
            (
                "stream_shards() got an unexpected keyword argument 'endpoint_url'. Pass it in "
                'storage_options={"endpoint_url": ...}.'
            ),
        ),
        Mistake(
            "seed as a str",
            'tdr.stream_shards(shards, seed="0")',
            TypeError,
            "stream_shards: seed must be an int, got '0' (str). Write 0.",
        ),
        Mistake(
            "seed as a bool",
            "tdr.stream_shards(shards, seed=False)",
            TypeError,
            "stream_shards: seed must be an int, got False (bool).",
        ),
        Mistake(
            "pattern by position",
            'tdr.stream_shards(shards, "*.tar")',
            TypeError,
            (
                "stream_shards() takes 1 argument by position (url), got 2; not expected: a str. Pass the rest "
                "by name: pattern=, shuffle=, seed=, shuffle_buffer_size=, shuffle_buffer_bytes=, world=, "
                "max_in_flight=, interleave=, on_bad_shard=, on_bad_member=, lazy=, select=, cache_dir=, "
                "cache_bytes=, "
                "storage_options=."
            ),
        ),
        Mistake(
            "pattern as a list",
            'tdr.stream_shards(shards, pattern=["*.tar"])',
            TypeError,
            (
                "stream_shards: pattern must be a str such as '*.tar', or None, got ['*.tar'] (list). Pass the "
                "str itself, not a list of it."
            ),
        ),
        Mistake(
            "nothing in flight",
            "tdr.stream_shards(shards, max_in_flight=0)",
            ValueError,
            "stream_shards: max_in_flight must be an int of at least 1, got 0.",
        ),
        Mistake("interleave=None", "tdr.stream_shards(shards, interleave=None)", None, "ShuffleSamples"),
        Mistake(
            "a policy by name",
            'tdr.stream_shards(shards, on_bad_shard="warn")',
            TypeError,
            ("stream_shards: on_bad_shard must be a function such as tdr.skip_with_warning, got 'warn' (str)."),
        ),
        Mistake(
            "world as a number",
            "tdr.stream_shards(shards, world=2)",
            TypeError,
            (
                "stream_shards: world: expected a World or None, got 2 (int). Create one by "
                'World.from_mesh(mesh, dp="dp"), by World.from_group(group), or by World(rank, world_size).'
            ),
        ),
        Mistake(
            "a folder of pictures",
            "list(tdr.stream_shards(pictures))",
            EmptyListingError,
            (
                "memory://mistakes/pictures/: no objects found that are tars. There are 4 others, "
                "such as 'cat/0.png', 'cat/1.png', 'dog/0.png': tars are read by stream_shards or "
                "ShardedDataset (plain, gz, bz2, xz, zst), "
                "zips by list_remote(pattern='*.zip').shard_zip_reader(), loose files by stream_files or RemoteFiles."
            ),
        ),
        Mistake(
            "a folder with nothing",
            'list(tdr.stream_shards("memory://mistakes/nothing/"))',
            EmptyListingError,
            ("memory://mistakes/nothing/: no objects found that are tars. memory://mistakes/ has ..."),
        ),
        Mistake(
            "a local folder that does not exist",
            'list(tdr.stream_shards("/nonexistent/shards/"))',
            EmptyListingError,
            (
                "/nonexistent/shards/: no objects found that are tars. The folder /nonexistent does not "
                "exist. Is the disk mounted, and the path one of this machine? / has ..."
            ),
        ),
        Mistake(
            "a scheme that does not exist",
            'list(tdr.stream_shards("s4://photos/"))',
            UrlError,
            (
                "s4://photos: no transport for the scheme 's4'. Known are s3, ... file, "
                "memory, local paths, and the protocols for which fsspec has a package."
            ),
        ),
        Mistake(
            "a path of Windows",
            'list(tdr.stream_shards("C:\\\\photos\\\\train"))',
            UrlError,
            (
                "'C:\\\\photos\\\\train' is a path of Windows, and this is another system. Pass the path that "
                "the folder has here."
            ),
        ),
        Mistake(
            "options as a str",
            'tdr.stream_shards(shards, storage_options="anon=True")',
            TypeError,
            ('stream_shards: storage_options must be a dict such as {"key": ..., "secret": ...}, got a str.'),
        ),
        Mistake(
            "a StorageOptions class",
            "tdr.stream_shards(shards, storage_options=tdr.StorageOptions)",
            TypeError,
            ('stream_shards: storage_options must be a dict such as {"key": ..., "secret": ...}, got an ABCMeta.'),
        ),
        Mistake(
            "seed as a str of an order that has none",
            'tdr.stream_shards(shards, shuffle=False, seed="3")',
            TypeError,
            "stream_shards: seed must be an int, got '3' (str). Write 3.",
        ),
        Mistake(
            "0 as shuffle",
            "list(tdr.stream_shards(shards, shuffle=0)) == list(tdr.stream_shards(shards, shuffle=False))",
            None,
            "True",
        ),
        Mistake(
            "1.0 as shuffle",
            "tdr.stream_shards(shards, shuffle=1.0)",
            ValueError,
            "stream_shards: shuffle=1.0: expected True, False (the order of the listing) or 'shards'...",
        ),
        Mistake(
            "a buffer as shuffle",
            "tdr.stream_shards(shards, shuffle=1000)",
            ValueError,
            (
                "stream_shards: shuffle=1000: expected True, False (the order of the listing) or 'shards' "
                "(shards only). The size of the buffer is shuffle_buffer_size= (samples) and "
                "shuffle_buffer_bytes=."
            ),
        ),
        Mistake(
            '"False" for shuffle',
            'tdr.stream_shards(shards, shuffle="False")',
            ValueError,
            (
                "stream_shards: shuffle='False': expected True, False (the order of the listing) or 'shards' "
                "(shards only). The size of the buffer is shuffle_buffer_size= (samples) and "
                "shuffle_buffer_bytes=."
            ),
        ),
        Mistake(
            "shuffle=None",
            "tdr.stream_shards(shards, shuffle=None)",
            ValueError,
            (
                "stream_shards: shuffle=None: expected True, False (the order of the listing) or 'shards' "
                "(shards only). The size of the buffer is shuffle_buffer_size= (samples) and "
                "shuffle_buffer_bytes=."
            ),
        ),
        Mistake(
            "a buffer of bytes with a unit",
            'tdr.stream_shards(shards, shuffle_buffer_bytes="64MB")',
            TypeError,
            ("stream_shards: shuffle_buffer_bytes must be an int of at least 1, got '64MB' (str). Write 64_000_000."),
        ),
        Mistake(
            "a buffer of no samples",
            "tdr.stream_shards(shards, shuffle_buffer_size=0)",
            ValueError,
            "stream_shards: shuffle_buffer_size must be an int of at least 1, got 0.",
        ),
        Mistake(
            "torch's Generator as seed",
            "tdr.stream_shards(shards, seed=torch.Generator())",
            TypeError,
            "stream_shards: seed must be an int, got a Generator.",
        ),
        Mistake("a bool of torch", "tdr.stream_shards(shards, shuffle=torch.tensor(False), seed=1) and 1", None, "1"),
        Mistake(
            "the name of a mode in a list",
            'tdr.stream_shards(shards, shuffle=["shards"])',
            ValueError,
            (
                "stream_shards: shuffle=['shards']: expected True, False (the order of the listing) or 'shards' "
                "(shards only). The size of the buffer is shuffle_buffer_size= (samples) and shuffle_buffer_bytes=."
            ),
        ),
    ],
    "stream_files": [
        Mistake(
            "no URL",
            "tdr.stream_files()",
            TypeError,
            "stream_files() is missing 'url' (source URL, or several). Write stream_files(url).",
        ),
        Mistake(
            "option of stream_shards",
            "tdr.stream_files(files, interleave=4)",
            TypeError,
            (
                "stream_files() got an unexpected keyword argument 'interleave'. It takes url, pattern, "
                "shuffle, seed, split_name, world, max_in_flight, cache_dir, cache_bytes, storage_options."
            ),
        ),
        Mistake(
            "misspelt option",
            'tdr.stream_files(files, patern="*.txt")',
            TypeError,
            "stream_files() got an unexpected keyword argument 'patern'; did you mean 'pattern'?",
        ),
        Mistake(
            "extensions",
            'tdr.stream_files(files, extensions=[".jpg"])',
            TypeError,
            ("stream_files() got an unexpected keyword argument 'extensions'; did you mean 'pattern'?"),
        ),
        Mistake(
            "pattern as a list",
            'tdr.stream_files(files, pattern=["*.jpg", "*.png"])',
            TypeError,
            ("stream_files: pattern must be a str such as '*.tar', or None, got ['*.jpg', '*.png'] (list)."),
        ),
        Mistake(
            '"False" for shuffle',
            'tdr.stream_files(files, shuffle="False")',
            TypeError,
            ("stream_files: shuffle must be True or False, got 'False' (str). Write False, without quotes."),
        ),
        Mistake(
            "shuffle of stream_shards",
            'tdr.stream_files(files, shuffle="shards")',
            TypeError,
            "stream_files: shuffle must be True or False, got 'shards' (str).",
        ),
        Mistake(
            "seed as a str of an order that has none",
            'tdr.stream_files(files, shuffle=False, seed="3")',
            TypeError,
            "stream_files: seed must be an int, got '3' (str). Write 3.",
        ),
        Mistake(
            "seed as a float",
            "tdr.stream_files(files, seed=1.0)",
            TypeError,
            "stream_files: seed must be an int, got 1.0 (float). Write 1.",
        ),
        Mistake("URLs as a generator", "len(list(tdr.stream_files(url for url in [files])))", None, "3"),
        Mistake("URLs of NumPy", "len(list(tdr.stream_files(np.array([files]))))", None, "3"),
        Mistake(
            "a folder with nothing",
            'list(tdr.stream_files("memory://mistakes/nothing/"))',
            EmptyListingError,
            "memory://mistakes/nothing/: no objects found. memory://mistakes/ has ...",
        ),
        Mistake(
            "tuple of URL and options",
            'tdr.stream_files((files, {"anon": True}))',
            UrlError,
            (
                "stream_files: expected one URL or path, as str or os.PathLike, got dict: {'anon': True}. Call "
                "it once for each of them."
            ),
        ),
        Mistake(
            "pictures decoded without decode_sample",
            'type(next(iter(tdr.stream_files(pictures).to_tuple("png")))[0])',
            None,
            "<class 'bytes'>",
        ),
        Mistake("a number of NumPy for shuffle", "len(list(tdr.stream_files(files, shuffle=np.int64(1))))", None, "3"),
    ],
    "join": [
        Mistake(
            "a list of sets",
            'tdr.join(["s3://b/images/", "s3://b/captions/"])',
            TypeError,
            (
                'join: sets must be a dict {name: url}, such as {"image": "s3://b/images/", "caption": '
                '"s3://b/captions/"}, got a list.'
            ),
        ),
        Mistake("no arguments", "tdr.join()", TypeError, "join() is missing 'sets' (name -> source URL...)..."),
        Mistake(
            "one set",
            'tdr.join({"image": shards})',
            ValueError,
            "join: sets must be a dict {name: url}, ..., got 1 sets. Write tdr.stream_shards(url) for one set.",
        ),
        Mistake(
            "a set of loaded samples",
            'tdr.join({"image": shards, "caption": {"0/000000": "a cat"}})',
            UrlError,
            "join: expected one URL or several, got a dict. Pass its values: list(urls.values()).",
        ),
        Mistake(
            "another word for how",
            'tdr.join({"a": shards, "b": shards}, how="outer")',
            ValueError,
            "join: how must be one of 'inner', 'left', got 'outer' (str)...",
        ),
        Mistake(
            "how of sets in order",
            'tdr.join({"a": shards, "b": shards}, how="left", align="order")',
            ValueError,
            "join: how='left' needs align='keys': sets that are read in order miss no sample.",
        ),
        Mistake(
            "another word for align",
            'tdr.join({"a": shards, "b": shards}, align="key")',
            ValueError,
            "join: align must be one of 'auto', 'order', 'keys', got 'key' (str); did you mean 'keys'?",
        ),
        Mistake(
            "members without a set",
            'tdr.join({"image": shards, "caption": shards}, members=["txt"])',
            TypeError,
            'join: members must be a dict {name: extensions}, such as {"caption": ("txt",)}, got [\'txt\'] (list).',
        ),
        Mistake(
            "members of an unknown set",
            'tdr.join({"image": shards, "caption": shards}, members={"captions": "txt"})',
            ValueError,
            "join: members names the set 'captions', and there are 'image', 'caption'; did you mean 'caption'?",
        ),
        Mistake(
            "no members of a set",
            'tdr.join({"image": shards, "caption": shards}, members={"caption": ()})',
            ValueError,
            "join: members selects nothing of 'caption'. Leave the set out, or name extensions.",
        ),
        Mistake(
            "the same set twice",
            'list(tdr.join({"a": shards, "b": shards}, align="order"))',
            JoinError,
            "...the set 'b' has one of the members 'cls', 'txt', which 'a' has too. Select the members of ...",
        ),
        Mistake(
            "a pipe of samples",
            'list(tdr.join({"a": tdr.stream_shards(shards), "b": shards}))',
            ValueError,
            "This chain is split already, and a share of a share would drop data: ...",
        ),
        Mistake(
            "seed as str",
            'tdr.join({"a": shards, "b": shards}, seed="0")',
            TypeError,
            "join: seed must be an int, got '0' (str). Write 0.",
        ),
    ],
    "mix": [
        Mistake(
            "a list of pipes",
            "tdr.mix([urls, urls])",
            TypeError,
            "mix: sources must be a dict {name: (pipe, weight)}, got a list.",
        ),
        Mistake(
            "pipes and weights apart",
            'tdr.mix({"a": urls}, [1.0])',
            TypeError,
            (
                "mix() takes 1 argument by position (sources), got 2; not expected: a list. Pass the rest by "
                "name: schedule=, seed=, stop=."
            ),
        ),
        Mistake(
            "pipes without weights",
            'tdr.mix({"a": urls, "b": urls})',
            TypeError,
            (
                "mix: sources must be a dict {name: (pipe, weight)}, got an IterableWrapper... under 'a'. "
                "Write (pipe, 1.0)."
            ),
        ),
        Mistake(
            "nothing", "tdr.mix({})", ValueError, "mix: sources must be a dict {name: (pipe, weight)}, got nothing."
        ),
        Mistake("no arguments", "tdr.mix()", TypeError, "mix() is missing 'sources' (name ->). Write mix(sources)."),
        Mistake(
            "a weight of 0", 'tdr.mix({"a": (urls, 0)})', ValueError, "mix: the weight of 'a' must be positive, got 0."
        ),
        Mistake(
            "a negative weight",
            'tdr.mix({"a": (urls, -1)})',
            ValueError,
            "mix: the weight of 'a' must be positive, got -1.",
        ),
        Mistake(
            "a weight as str",
            'tdr.mix({"a": (urls, "0.5")})',
            TypeError,
            "mix: the weight of 'a' must be a number, got '0.5' (str). Write 0.5.",
        ),
        Mistake(
            "a weight that is infinite",
            'tdr.mix({"a": (urls, float("inf"))})',
            ValueError,
            "mix: the weight of 'a' must be finite, got inf",
        ),
        Mistake(
            "a weight that is no number",
            'tdr.mix({"a": (urls, float("nan"))})',
            ValueError,
            "mix: the weight of 'a' must be positive, got nan.",
        ),
        Mistake(
            "weight and pipe exchanged",
            'tdr.mix({"a": (0.5, urls)})',
            TypeError,
            "mix: the weight of 'a' must be a number, got an IterableWrapper....",
        ),
        Mistake(
            "three values",
            'tdr.mix({"a": (urls, 0.5, 1)})',
            TypeError,
            ("mix: sources must be a dict {name: (pipe, weight)}, got 3 values under 'a'. Write (pipe, 1.0)."),
        ),
        Mistake(
            "a name that is a number",
            "tdr.mix({0: (urls, 1)})",
            TypeError,
            "mix: sources must be a dict {name: (pipe, weight)}, got the name 0 (int).",
        ),
        Mistake(
            "a URL instead of a pipe",
            'tdr.mix({"a": ("s3://photos/", 1)})',
            UrlError,
            "mix: expected a pipe of samples, got the str 's3://photos/'.",
        ),
        Mistake(
            "misspelt stop",
            'tdr.mix({"a": (urls, 1)}, stop="first_exausted")',
            ValueError,
            (
                "mix: stop must be one of 'first_exhausted', 'all_exhausted', got 'first_exausted' (str); did "
                "you mean 'first_exhausted'?"
            ),
        ),
        Mistake(
            "a stop of torch",
            'tdr.mix({"a": (urls, 1)}, stop="max_size_cycle")',
            ValueError,
            ("mix: stop must be one of 'first_exhausted', 'all_exhausted', got 'max_size_cycle' (str)."),
        ),
        Mistake(
            "stop=None",
            'tdr.mix({"a": (urls, 1)}, stop=None)',
            TypeError,
            ("mix: stop must be a number of samples, or one of 'first_exhausted', 'all_exhausted', got None."),
        ),
        Mistake(
            "stop=0", 'tdr.mix({"a": (urls, 1)}, stop=0)', ValueError, "mix: stop must be an int of at least 1, got 0."
        ),
        Mistake(
            "stop as a float",
            'tdr.mix({"a": (urls, 1)}, stop=1e6)',
            TypeError,
            (
                "mix: stop must be a number of samples, or one of 'first_exhausted', 'all_exhausted', got "
                "1000000.0 (float)."
            ),
        ),
        Mistake(
            "stop=True",
            'tdr.mix({"a": (urls, 1)}, stop=True)',
            TypeError,
            "mix: stop must be an int of at least 1, got True (bool).",
        ),
        Mistake(
            "seed=None",
            'tdr.mix({"a": (urls, 1)}, seed=None)',
            TypeError,
            ("mix: seed must be an int, got None. Leave it out for 0; the order differs in each epoch by itself."),
        ),
        Mistake(
            "misspelt option",
            'tdr.mix({"a": (urls, 1)}, stop_when=3)',
            TypeError,
            "mix() got an unexpected keyword argument 'stop_when'; did you mean 'stop'?",
        ),
        Mistake(
            "the same pipe twice",
            'len(list(tdr.mix({"a": (urls, 1), "b": (urls, 1)}, stop="all_exhausted")))',
            ValueError,
            "mix: the sources 'a', 'b' share a pipe: build a chain for each.",
        ),
        Mistake(
            "the length of an endless mixture",
            'len(tdr.mix({"a": (urls, 1)}))',
            TypeError,
            "mix has a length only if it stops at a number of samples.",
        ),
        Mistake(
            "an empty source that is repeated",
            'list(tdr.mix({"a": (IterableWrapper([]), 1)}, stop=3))',
            ValueError,
            "mix: the source 'a' is empty, so it cannot be restarted.",
        ),
        Mistake(
            "a schedule beside weights",
            'tdr.mix({"a": (urls, 1)}, schedule={0: {"a": 1}})',
            TypeError,
            (
                "mix: sources must be a dict {name: pipe}, got 2 values under 'a'. The weights are in schedule=: write "
                "the pipe alone."
            ),
        ),
        Mistake(
            "a schedule as a list",
            'tdr.mix({"a": urls}, schedule=[(0, {"a": 1})])',
            TypeError,
            "mix: schedule must be a dict {number of samples: {name: weight}}, got a list.",
        ),
        Mistake(
            "a schedule of names",
            'tdr.mix({"a": urls}, schedule={"a": {0: 1}})',
            TypeError,
            "mix: schedule: the number of samples must be an int of at least 0, got 'a' (str).",
        ),
        Mistake(
            "numbers of samples as str",
            'tdr.mix({"a": urls}, schedule={"0": {"a": 1}})',
            TypeError,
            "mix: schedule: the number of samples must be an int of at least 0, got '0' (str). Write 0.",
        ),
        Mistake(
            "a weight without its name",
            'tdr.mix({"a": urls}, schedule={0: 1})',
            TypeError,
            "mix: schedule must be a dict {number of samples: {name: weight}}, got an int under 0.",
        ),
        Mistake(
            "a schedule that does not begin at 0",
            'tdr.mix({"a": urls}, schedule={1000: {"a": 1}})',
            ValueError,
            "mix: schedule must have weights for 0, the start, got [1000].",
        ),
        Mistake(
            "a misspelt source in a schedule",
            'tdr.mix({"books": urls}, schedule={0: {"book": 1}})',
            ValueError,
            "mix: schedule: at 0 there is a weight for 'book'; did you mean 'books'?",
        ),
        Mistake(
            "a schedule that draws nothing",
            'tdr.mix({"a": urls}, schedule={0: {"a": 1}, 1000: {"a": 0}})',
            ValueError,
            "mix: schedule: at 1_000 no source has a weight above 0.",
        ),
        Mistake(
            "a weight of 0 in a schedule",
            'len(list(tdr.mix({"a": urls, "b": IterableWrapper([1])}, schedule={0: {"a": 1, "b": 0}})))',
            None,
            "...",
        ),
        Mistake(
            "a schedule within a mixture",
            ('tdr.mix({"a": (tdr.mix({"b": urls}, schedule={0: {"b": 1}, 5: {"b": 2}}), 1)})'),
            ValueError,
            (
                "mix: the source 'a' is a mixture with a schedule, which counts the samples of the whole training, and "
                "not those of one source. Mix all sources in one mixture, with a schedule."
            ),
        ),
    ],
}
