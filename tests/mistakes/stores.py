"""Mistakes with stores, their options, URLs and the cache."""

from __future__ import annotations

from torchdata_remote.errors import (
    EmptyListingError,
    ObjectNotFoundError,
    SampleError,
    StorageError,
    TransientStorageError,
    UrlError,
)

from .mistake import CommandLineError, Mistake

TABLE = {
    "unreachable stores": [
        Mistake(
            "a host that does not exist",
            (
                'list(tdr.stream_files("s3://mistakes-unknown-host/", storage_options={"endpoint_url": '
                '"http://no-such-host.invalid:9000", "key": "a", "secret": "b"}))'
            ),
            StorageError,
            "s3://mistakes-unknown-host/: ...no-such-host.invalid:9000... Gave up after ...",
        ),
        Mistake(
            "a port that refuses: said at once",
            "logged(lambda: list(patient(refusing(), deadline_s=0.3)))",
            None,
            (
                "['s3://mistakes-.../: 127.0.0.1:... refuses connections (EndpointConnectionError: Could not "
                "connect to the endpoint URL: "
                '"http://127.0.0.1:.../mistakes-..."). Check the '
                "endpoint_url (in storage_options, AWS_ENDPOINT_URL or ~/.aws/config), the region and the "
                "port. Attempt 1 failed; it is repeated until ... (deadline_s=0.3).']"
            ),
        ),
        Mistake(
            "a store that does not answer",
            "list(patient(silent(), deadline_s=0.3, progress_timeout_s=0.3))",
            TransientStorageError,
            (
                "s3://mistakes-.../: ReadTimeoutError: Read timeout on endpoint URL: "
                '"http://127.0.0.1:.../mistakes-...". Gave up after 1 '
                "attempts in ... s (deadline_s=0.3, max_attempts=None)."
            ),
        ),
        Mistake(
            "a store that does not answer: said soon",
            "logged(lambda: list(patient(silent(), deadline_s=0.6, progress_timeout_s=0.6)))",
            None,
            (
                "['s3://mistakes-.../: no data for ... s. Attempt 1 is given up after ... s without data, and "
                "repeated until ... (deadline_s=0.6).']"
            ),
        ),
    ],
    "storage_options": [
        Mistake(
            "misspelt endpoint",
            ('tdr.stream_files("s3://photos/", storage_options={"endpoint": "http://localhost:9000"})'),
            UrlError,
            (
                "s3://photos/: unknown option 'endpoint' in storage_options; did you mean 'endpoint_url'? "
                "Known are anon, endpoint_url, key, profile, region, secret, token, and others."
            ),
        ),
        Mistake(
            "boto3's names",
            'tdr.stream_files("s3://photos/", storage_options={"aws_access_key_id": "a"})',
            UrlError,
            (
                "s3://photos/: unknown option 'aws_access_key_id' in storage_options; did you mean 'key'? "
                "Known are anon, endpoint_url, key, profile, region, secret, token, and others."
            ),
        ),
        Mistake(
            "a misspelt secret",
            'tdr.stream_files("s3://photos/", storage_options={"key": "a", "secrets": "hunter2"})',
            UrlError,
            (
                "s3://photos/: unknown option 'secrets' in storage_options; did you mean 'secret'? Known are "
                "anon, endpoint_url, key, profile, region, secret, token, and others."
            ),
        ),
        Mistake(
            "an option of another store",
            'list(tdr.stream_files("s3://photos/", storage_options={"token_file": "a"}))',
            UrlError,
            (
                "s3://photos/: unknown option 'token_file' in storage_options; did you mean 'token'? Known are "
                "anon, endpoint_url, key, profile, region, secret, token, and others."
            ),
        ),
        Mistake(
            "options of a dataset service",
            'list(tdr.stream_files("datasets://host:1/photos", storage_options={"tokn": "a"}))',
            UrlError,
            (
                "datasets://host:1/photos: unknown option 'tokn' in storage_options; did you mean 'token'? "
                "Known are secure, token."
            ),
        ),
        Mistake(
            "misspelt options of a dataset",
            'tdr.RemoteFiles("s3://photos/", storage_options={"endpoint": "http://localhost:9000"})',
            UrlError,
            (
                "s3://photos/: unknown option 'endpoint' in storage_options; did you mean 'endpoint_url'? "
                "Known are anon, endpoint_url, key, profile, region, secret, token, and others."
            ),
        ),
        Mistake(
            "misspelt options of a writer",
            (
                'tdr.ShardWriter("s3://photos/{shard}.tar", storage_options={"endpoint": '
                '"http://localhost:9000"}).write({"__key__": "1", "txt": "a"})'
            ),
            UrlError,
            (
                "s3://photos/index.json: unknown option 'endpoint' in storage_options; did you mean "
                "'endpoint_url'? Known are anon, endpoint_url, key, profile, region, secret, token, and others."
            ),
        ),
        Mistake(
            "misspelt options of a command",
            ('run("ls", "s3://photos/", "--storage-options", \'{"endpoint": "http://localhost:9000"}\')'),
            CommandLineError,
            (
                "torchdata-remote: s3://photos/: unknown option 'endpoint' in storage_options; did you mean "
                "'endpoint_url'? Known are anon, endpoint_url, key, profile, region, secret, token, and others."
            ),
        ),
    ],
    "URLs": [
        Mistake(
            "one slash",
            'tdr.stream_shards("s3:/bucket/train/")',
            UrlError,
            "'s3:/bucket/train/' is no URL; did you mean 's3://bucket/train/'?",
        ),
        Mistake(
            "no slash",
            'tdr.stream_shards("s3:bucket/train/")',
            UrlError,
            "'s3:bucket/train/' is no URL; did you mean 's3://bucket/train/'?",
        ),
        Mistake(
            "three slashes",
            'tdr.stream_shards("s3:///train/")',
            UrlError,
            "s3:///train/: no bucket. Expected s3://bucket/path; did you mean 's3://train/'?",
        ),
        Mistake(
            "a bucket without scheme",
            'list(tdr.stream_shards("bucket/train/"))',
            EmptyListingError,
            ("bucket/train/: no objects found that are tars. The folder .../bucket does not exist. ..."),
        ),
        Mistake(
            "a misspelt scheme",
            'list(tdr.stream_shards("htps://host/train/"))',
            UrlError,
            (
                "htps://host: no transport for the scheme 'htps'; did you mean 'https'? Known are s3, ... "
                "file, memory, local paths, and the protocols for which fsspec has a package."
            ),
        ),
        Mistake(
            "a local folder that is missing",
            'list(tdr.stream_shards(f"{folder}/trian/"))',
            EmptyListingError,
            (".../trian/: no objects found that are tars. There is no such folder. .../ is empty."),
        ),
        Mistake(
            "a name that is similar",
            ('(folder / "train").mkdir()\nlist(tdr.stream_shards(f"{folder}/trian/"))'),
            EmptyListingError,
            (
                ".../trian/: no objects found that are tars. There is no such folder. .../ has "
                "'train/'; did you mean 'train'?"
            ),
        ),
        Mistake(
            "shards as pictures",
            "tdr.RemoteImageFolder(shards)",
            EmptyListingError,
            (
                "memory://mistakes/shards/: there is no file whose name ends in one of .jpg, .jpeg, .png, "
                ".webp, .bmp, .tif, .tiff, .ppm, .pgm. There are 7 others, such as '000000.tar', "
                "'000000.tar.idx', '000000.tar.keys': tars are read by stream_shards or "
                "ShardedDataset (plain, gz, bz2, xz, zst), "
                "zips by list_remote(pattern='*.zip').shard_zip_reader(), loose files by "
                "stream_files or RemoteFiles."
            ),
        ),
        Mistake(
            "a reader on a folder",
            "list(IterableWrapper([shards]).shard_tar_reader())",
            ObjectNotFoundError,
            (
                "memory://mistakes/shards/: no such object. It is a folder with 7 objects, and a reader takes "
                "objects: list it, as by IterableWrapper(['memory://mistakes/shards/']).list_remote(). (Bytes "
                "0 to 6,291,456, etag None, attempt 1, after ... s.)"
            ),
        ),
        Mistake(
            "a reader on a local folder",
            ('(folder / "a.tar").touch()\nlist(IterableWrapper([str(folder)]).shard_tar_reader())'),
            ObjectNotFoundError,
            (
                "file://...: no such file. It is a folder with 1 object, and a reader takes objects: list it, "
                "as by IterableWrapper(['...']).list_remote(). (Bytes 0 to 67,108,864, etag None, attempt 1, "
                "after ... s.)"
            ),
        ),
        Mistake(
            "files of a folder",
            "list(IterableWrapper([files]).file_reader())",
            SampleError,
            (
                "memory://mistakes/files/: the name has no extension, so it cannot be part of a sample. "
                "Exclude it by a pattern, as list_remote(pattern='*.jpg'). If it is a folder, list it first: "
                "IterableWrapper([url]).list_remote().file_reader()."
            ),
        ),
        Mistake(
            "credentials in the URL",
            'tdr.stream_shards("s3://key:secret@bucket/train/")',
            UrlError,
            (
                "s3://bucket/train/: credentials do not belong into a URL, where logs and samples would show "
                "them. Pass them by storage_options or the environment."
            ),
        ),
    ],
    "cache_dir": [
        Mistake(
            "a file",
            ('(folder / "a").touch()\nlist(tdr.stream_files(files, cache_dir=str(folder / "a"), cache_bytes=10**9))'),
            StorageError,
            (
                "cache_dir='.../a' cannot be used as a cache: it is a file, or below one ([Errno 17] File "
                "exists: '.../a'). Pass a folder of a local disk that this user can create and write to."
            ),
        ),
        Mistake(
            "a folder in a file",
            (
                '(folder / "a").touch()\nlist(tdr.stream_files(files, cache_dir=str(folder / "a" / "b"), '
                "cache_bytes=10**9))"
            ),
            StorageError,
            (
                "cache_dir='.../a/b' cannot be used as a cache: it is a file, or below one ([Errno 20] Not a "
                "directory: '.../a/b'). Pass a folder of a local disk that this user can create and write to."
            ),
        ),
        Mistake(
            "an empty path",
            'list(tdr.stream_files(files, cache_dir="", cache_bytes=10**9))',
            StorageError,
            (
                "cache_dir='' cannot be used as a cache: it is empty. Pass a folder of a local disk that this "
                "user can create and write to."
            ),
        ),
        Mistake(
            "a URL",
            'list(tdr.stream_files(files, cache_dir="s3://photos/cache/", cache_bytes=10**9))',
            ValueError,
            ("stream_files: cache_dir must be a local path such as '/data/cache', got a URL (s3://...)."),
        ),
        Mistake(
            "no bound",
            "tdr.stream_files(files, cache_dir=str(folder))",
            ValueError,
            (
                "stream_files: cache_dir and cache_bytes belong together, got '...' and None. Pass both, such "
                "as cache_bytes=10_000_000_000, or none."
            ),
        ),
        Mistake(
            "a bound without a folder",
            "tdr.stream_files(files, cache_bytes=10**9)",
            ValueError,
            (
                "stream_files: cache_dir and cache_bytes belong together, got None and 1000000000. Pass both, "
                "such as cache_bytes=10_000_000_000, or none."
            ),
        ),
        Mistake(
            "a bound with a unit",
            'tdr.stream_files(files, cache_dir=str(folder), cache_bytes="10GB")',
            TypeError,
            ("stream_files: cache_bytes must be an int of at least 1 or None, got '10GB' (str). Write 10_000_000_000."),
        ),
        Mistake(
            "a number",
            "tdr.stream_files(files, cache_dir=3, cache_bytes=10**9)",
            TypeError,
            "stream_files: cache_dir must be a local path such as '/data/cache', got 3 (int).",
        ),
    ],
}
