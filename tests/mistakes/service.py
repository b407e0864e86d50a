"""Mistakes with transfers, and the helpers for tests."""

from __future__ import annotations

from torchdata_remote.errors import EmptyListingError, ObjectNotFoundError, StorageError, UrlError

from .mistake import Mistake

TABLE = {
    "push": [
        Mistake(
            "no arguments",
            "tdr.push()",
            TypeError,
            (
                "push() is missing 'source_folder' (with all folders below it); 'url' "
                "(datasets://host:port/name, or a folder in it). Write push(source_folder, url)."
            ),
        ),
        Mistake(
            "URL and folder exchanged",
            'tdr.push("datasets://host:1/photos", folder)',
            ValueError,
            (
                "push: source_folder and url are exchanged: source_folder must be a local path, got "
                "datasets://host:1/photos."
            ),
        ),
        Mistake(
            "a bucket",
            'tdr.push(folder, "s3://photos/")',
            UrlError,
            "s3://photos/: expected datasets://host:port/NAME, a dataset of a service.",
        ),
        Mistake(
            "an http URL",
            'tdr.push(folder, "http://host:8080/photos")',
            UrlError,
            "http://host:8080/photos: expected datasets://host:port/NAME, a dataset of a service.",
        ),
        Mistake(
            "no dataset in the URL",
            'tdr.push(folder, "datasets://host:1/")',
            UrlError,
            "datasets://host:1 names no dataset. Expected datasets://host:port/name.",
        ),
        Mistake(
            "a folder that does not exist",
            ('tdr.push("/nonexistent/photos", "datasets://127.0.0.1:1/photos", retry=tdr.RetryPolicy(max_attempts=1))'),
            ObjectNotFoundError,
            "/nonexistent/photos: no such file or folder.",
        ),
        Mistake(
            "a folder with nothing",
            ('tdr.push(folder, "datasets://127.0.0.1:1/photos", retry=tdr.RetryPolicy(max_attempts=1))'),
            EmptyListingError,
            "...: there are no files to push. Is everything mounted?",
        ),
        Mistake(
            "several folders",
            'tdr.push([folder], "datasets://host:1/photos")',
            TypeError,
            ("push: source_folder must be a local path such as '/data/photos', got [...('...')] (list)."),
        ),
        Mistake(
            "URL=None",
            "tdr.push(folder, None)",
            UrlError,
            "push: expected one URL or path, as str or os.PathLike, got NoneType: None.",
        ),
        Mistake(
            "misspelt option",
            'tdr.push(folder, "datasets://host:1/photos", max_inflight=3)',
            TypeError,
            ("push() got an unexpected keyword argument 'max_inflight'; did you mean 'max_in_flight'?"),
        ),
        Mistake(
            "a private option",
            'tdr.push(folder, "datasets://host:1/photos", part_bytes=3)',
            TypeError,
            (
                "push() got an unexpected keyword argument 'part_bytes'. It takes source_folder, url, "
                "storage_options, retry, max_in_flight, on_progress, progress, delete."
            ),
        ),
        Mistake(
            "token=",
            'tdr.push(folder, "datasets://host:1/photos", token="abc")',
            TypeError,
            ("push() got an unexpected keyword argument 'token'. Pass it in storage_options={\"token\": ...}."),
        ),
        Mistake(
            "nothing in flight",
            'tdr.push(folder, "datasets://host:1/photos", max_in_flight=0)',
            ValueError,
            "push: max_in_flight must be an int of at least 1, got 0.",
        ),
        Mistake(
            "retries as a number",
            'tdr.push(folder, "datasets://host:1/photos", retry=3)',
            TypeError,
            ("push: retry must be a RetryPolicy or None, got 3 (int). Write retry=RetryPolicy(max_attempts=3)."),
        ),
        Mistake(
            "a progress bar by name",
            'tdr.push(folder, "datasets://host:1/photos", on_progress="tqdm")',
            TypeError,
            "push: on_progress must be a function such as print, got 'tqdm' (str).",
        ),
        Mistake(
            "a bar by name",
            'tdr.push(folder, "datasets://host:1/photos", progress="tqdm")',
            TypeError,
            "push: progress must be True or False, got 'tqdm' (str).",
        ),
        Mistake(
            '"True" for True',
            'tdr.push(folder, "datasets://host:1/photos", delete="True")',
            TypeError,
            "push: delete must be True or False, got 'True' (str). Write True, without quotes.",
        ),
    ],
    "pull": [
        Mistake(
            "no arguments",
            "tdr.pull()",
            TypeError,
            (
                "pull() is missing 'url' (datasets://host:port/name, or a folder in it); 'folder' (local). "
                "Write pull(url, folder)."
            ),
        ),
        Mistake(
            "folder and URL exchanged",
            'tdr.pull(folder, "datasets://host:1/photos")',
            ValueError,
            ("pull: folder and url are exchanged: folder must be a local path, got datasets://host:1/photos."),
        ),
        Mistake(
            "a bucket",
            'tdr.pull("s3://photos/", folder)',
            UrlError,
            "s3://photos/: expected datasets://host:port/NAME, a dataset of a service.",
        ),
        Mistake(
            "no folder",
            'tdr.pull("datasets://host:1/photos")',
            TypeError,
            "pull() is missing 'folder' (local). Write pull(url, folder).",
        ),
        Mistake(
            "a URL as folder",
            'tdr.pull("datasets://host:1/photos", "s3://photos/")',
            ValueError,
            "pull: folder must be a local path such as '/data/photos', got a URL (s3://...).",
        ),
        Mistake(
            "folder=None",
            'tdr.pull("datasets://host:1/photos", None)',
            TypeError,
            "pull: folder must be a local path such as '/data/photos', got None.",
        ),
        Mistake(
            "folder as bytes",
            'tdr.pull("datasets://host:1/photos", b"/data")',
            TypeError,
            (
                "pull: folder must be a local path such as '/data/photos', got b'/data' (bytes). Decode the "
                "bytes: value.decode()."
            ),
        ),
        Mistake(
            "misspelt option",
            'tdr.pull("datasets://host:1/photos", folder, deletes=True)',
            TypeError,
            "pull() got an unexpected keyword argument 'deletes'; did you mean 'delete'?",
        ),
        Mistake(
            "nothing in flight",
            'tdr.pull("datasets://host:1/photos", folder, max_in_flight="many")',
            TypeError,
            "pull: max_in_flight must be an int of at least 1, got 'many' (str).",
        ),
        Mistake(
            "retries as a number",
            'tdr.pull("datasets://host:1/photos", folder, retry=1.5)',
            TypeError,
            ("pull: retry must be a RetryPolicy or None, got 1.5 (float). Write retry=RetryPolicy(max_attempts=5)."),
        ),
        Mistake(
            '"False" for False',
            'tdr.pull("datasets://host:1/photos", folder, delete="False")',
            TypeError,
            "pull: delete must be True or False, got 'False' (str). Write False, without quotes.",
        ),
        Mistake(
            "a file as folder",
            (
                'Path(folder / "a").write_text("")\ntdr.pull("datasets://127.0.0.1:1/photos", folder / "a", '
                "retry=tdr.RetryPolicy(max_attempts=1))"
            ),
            StorageError,
            ".../a is a file, expected a folder. Pass the folder that the files are pulled into, such as ....",
        ),
    ],
    "testing": [
        Mistake(
            "a URL of a bucket",
            'tdr.testing.FaultyStore("s3://photos")',
            ValueError,
            "FaultyStore: 's3://photos' is not an address like 'http://127.0.0.1:...'.",
        ),
        Mistake(
            "no URL",
            "tdr.testing.FaultyStore()",
            TypeError,
            (
                "FaultyStore() is missing 'endpoint_url' (http:// address of the upstream server). Write "
                "FaultyStore(endpoint_url)."
            ),
        ),
        Mistake(
            "misspelt option",
            'tdr.testing.FaultyStore("http://127.0.0.1:9", sead=1)',
            TypeError,
            "FaultyStore() got an unexpected keyword argument 'sead'; did you mean 'seed'?",
        ),
        Mistake(
            "a number as faults",
            'tdr.testing.FaultyStore("http://127.0.0.1:9", 0.2)',
            TypeError,
            ("FaultyStore: faults must be a Faults or None, got 0.2 (float). Write faults=Faults.storm(0.2)."),
        ),
        Mistake(
            "a fault that does not exist",
            "tdr.testing.Faults(slowdown=0.1)",
            TypeError,
            "Faults() got an unexpected keyword argument 'slowdown'; did you mean 'slow_down'?",
        ),
        Mistake(
            "a probability of 5",
            "tdr.testing.Faults(stall=5)",
            ValueError,
            "Faults: {'stall': 5} are not probabilities: give numbers from 0 to 1.",
        ),
        Mistake(
            "probabilities above 1",
            "tdr.testing.Faults(stall=0.7, reset=0.7)",
            ValueError,
            (
                "Faults: the sum of the probabilities is 1.4, but a response has one fault at most: it must be "
                "1 or less."
            ),
        ),
        Mistake(
            "a probability in percent",
            'tdr.testing.Faults(stall="10%")',
            TypeError,
            "Faults: stall must be a number, got '10%' (str).",
        ),
        Mistake(
            "a script of a fault that does not exist",
            'tdr.testing.FaultyStore("http://127.0.0.1:9").script("hang")',
            ValueError,
            (
                "FaultyStore.script: no faults ['hang']; there are slow_down, internal_error, reset, "
                "early_end, reset_in_body, cut_body, cut_without_length, short_range, ignored_range, "
                "shifted_range, other_answer, doubled, stall, stall_in_body, trickle, changed, "
                "flipped_bit, too_many_requests."
            ),
        ),
        Mistake(
            "a pipe instead of a function",
            "tdr.testing.assert_resumes_everywhere(tdr.stream_shards(shards))",
            TypeError,
            (
                "assert_resumes_everywhere: make_pipe must be a function such as lambda: "
                "tdr.stream_shards(url), got a ShuffleSamples."
            ),
        ),
        Mistake(
            "no shards",
            ('tdr.testing.write_small_shards("memory://mistakes/small/", num_shards=0, samples_per_shard=1)'),
            ValueError,
            "write_small_shards: num_shards must be an int of at least 1, got 0.",
        ),
        Mistake(
            "shards as str",
            ('tdr.testing.write_small_shards("memory://mistakes/small/", num_shards="2", samples_per_shard=1)'),
            TypeError,
            "write_small_shards: num_shards must be an int of at least 1, got '2' (str). Write 2.",
        ),
        Mistake(
            "a template as folder",
            "tdr.testing.write_small_shards(None, num_shards=1, samples_per_shard=1)",
            TypeError,
            "write_small_shards: folder must be a str such as 'memory://small/', got None.",
        ),
        Mistake("no ranks", "list(tdr.testing.all_worlds(0, 1))", None, "[]"),
    ],
}
