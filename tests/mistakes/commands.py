"""Mistakes with the command line."""

from __future__ import annotations

from .mistake import CommandLineError, Mistake

TABLE = {
    "torchdata-remote": [
        Mistake(
            "no command",
            "run()",
            CommandLineError,
            "...torchdata-remote: error: the following arguments are required: command",
        ),
        Mistake(
            "misspelt command",
            'run("lst", files)',
            CommandLineError,
            "...torchdata-remote: error: argument command: invalid choice: 'lst' ...",
        ),
    ],
    "torchdata-remote ls": [
        Mistake(
            "no URL",
            'run("ls")',
            CommandLineError,
            "...torchdata-remote ls: error: the following arguments are required: url",
        ),
        Mistake(
            "misspelt option",
            'run("ls", files, "--patern", "*.tar")',
            CommandLineError,
            ("...torchdata-remote ls: error: unrecognized arguments: --patern *.tar; did you mean '--pattern'?"),
        ),
        Mistake(
            "a folder with nothing",
            'run("ls", "memory://mistakes/nothing/")',
            CommandLineError,
            (
                "torchdata-remote: memory://mistakes/nothing/: no objects found, with recursive=False. "
                "memory://mistakes/ has ..."
            ),
        ),
        Mistake(
            "a pattern that fits nothing",
            'run("ls", files, "--pattern", "*.jpg")',
            CommandLineError,
            (
                "torchdata-remote: memory://mistakes/files/: no objects found that match pattern='*.jpg', with "
                "recursive=False. There are 3 others, such as '0.txt', '1.txt', '2.txt'."
            ),
        ),
        Mistake(
            "options that are no JSON",
            'run("ls", files, "--storage-options", "anon=True")',
            CommandLineError,
            (
                "...torchdata-remote ls: error: argument --storage-options: not JSON: Expecting value: line 1 "
                "column 1 (char 0)"
            ),
        ),
        Mistake(
            "options that are a list",
            'run("ls", files, "--storage-options", "[1]")',
            CommandLineError,
            ("...torchdata-remote ls: error: argument --storage-options: expected a JSON object, got a list"),
        ),
        Mistake(
            "a scheme that does not exist",
            'run("ls", "s4://photos/")',
            CommandLineError,
            (
                "torchdata-remote: s4://photos: no transport for the scheme 's4'. Known are s3, ... "
                "file, memory, local paths, and the protocols for which fsspec has a package."
            ),
        ),
    ],
    "torchdata-remote inspect": [
        Mistake(
            "no URL",
            'run("inspect")',
            CommandLineError,
            "...torchdata-remote inspect: error: the following arguments are required: url",
        ),
        Mistake(
            "a folder with nothing",
            'run("inspect", "memory://mistakes/nothing/")',
            CommandLineError,
            (
                "torchdata-remote: memory://mistakes/nothing/: no objects found, with recursive=False. "
                "memory://mistakes/ has ..."
            ),
        ),
        Mistake(
            "a file that is no shard",
            'run("inspect", "memory://mistakes/files/0.txt")',
            CommandLineError,
            (
                "torchdata-remote: memory://mistakes/files/0.txt: at byte 0: the archive ends ... It "
                "is not a tar, or the upload was cut short: write the shard again."
            ),
        ),
        Mistake(
            "misspelt option",
            'run("inspect", shards, "--smaples", "3")',
            CommandLineError,
            ("...torchdata-remote inspect: error: unrecognized arguments: --smaples 3; did you mean '--samples'?"),
        ),
    ],
    "torchdata-remote verify": [
        Mistake(
            "no URL",
            'run("verify")',
            CommandLineError,
            "...torchdata-remote verify: error: the following arguments are required: url",
        ),
        Mistake(
            "a folder without a manifest",
            'run("verify", files)',
            CommandLineError,
            (
                "torchdata-remote: memory://mistakes/files/index.json: there is no manifest. Writers publish "
                "it last, so a job may be unfinished. For shards of other tools, write it: torchdata-remote "
                "manifest FOLDER."
            ),
        ),
        Mistake(
            "a folder with nothing",
            'run("verify", "memory://mistakes/nothing/")',
            CommandLineError,
            (
                "torchdata-remote: memory://mistakes/nothing/index.json: there is no manifest. Writers publish "
                "it last, so a job may be unfinished. For shards of other tools, write it: torchdata-remote "
                "manifest FOLDER."
            ),
        ),
    ],
    "torchdata-remote show": [
        Mistake(
            "no URL",
            'run("show")',
            CommandLineError,
            "...torchdata-remote show: error: the following arguments are required: url, --grid",
        ),
        Mistake(
            "a folder with nothing",
            'run("show", "memory://mistakes/nothing/")',
            CommandLineError,
            "...torchdata-remote show: error: the following arguments are required: --grid",
        ),
        Mistake(
            "a picture format that does not exist",
            'run("show", shards, "--grid", str(folder / "a.docx"))',
            CommandLineError,
            (
                "torchdata-remote: .../a.docx: no picture can be written with the extension '.docx'. Use a name "
                "such as out.png"
            ),
        ),
    ],
    "torchdata-remote manifest": [
        Mistake(
            "no URL",
            'run("manifest")',
            CommandLineError,
            "...torchdata-remote manifest: error: the following arguments are required: folder",
        ),
        Mistake(
            "a folder that has one",
            'run("manifest", shards)',
            CommandLineError,
            (
                "torchdata-remote: memory://mistakes/shards/index.json exists already. Pass overwrite=True "
                "(--overwrite) to replace it."
            ),
        ),
        Mistake(
            "a folder without shards",
            'run("manifest", files)',
            CommandLineError,
            (
                "torchdata-remote: memory://mistakes/files/: no objects found that are tars, with "
                "recursive=False. There are 3 others, such as '0.txt', '1.txt', '2.txt': tars are read by "
                "stream_shards or "
                "ShardedDataset (plain, gz, bz2, xz, zst), "
                "zips by list_remote(pattern='*.zip').shard_zip_reader(), loose files by "
                "stream_files or RemoteFiles."
            ),
        ),
    ],
    "torchdata-remote index": [
        Mistake(
            "no URL",
            'run("index")',
            CommandLineError,
            ("...torchdata-remote index: error: the following arguments are required: url, -o/--output"),
        ),
        Mistake(
            "a folder with nothing",
            'run("index", "memory://mistakes/nothing/", "--to", str(folder / "a.json"))',
            CommandLineError,
            "...torchdata-remote index: error: the following arguments are required: -o/--output",
        ),
    ],
    "torchdata-remote shard": [
        Mistake(
            "no target",
            'run("shard", files)',
            CommandLineError,
            "...torchdata-remote shard: error: the following arguments are required: TEMPLATE",
        ),
        Mistake(
            "a target without number",
            'run("shard", files, "memory://mistakes/out/")',
            CommandLineError,
            (
                "torchdata-remote: memory://mistakes/out/: it needs exactly one {shard} field, in its base "
                "name. Expected a template such as s3://bucket/train/{shard:06d}.tar."
            ),
        ),
        Mistake(
            "a limit with a unit",
            'run("shard", files, new, "--max-shard-bytes", "256MB")',
            CommandLineError,
            (
                "...torchdata-remote shard: error: argument --max-shard-bytes: expected a number of at least "
                "1, got '256MB'"
            ),
        ),
        Mistake(
            "negative workers",
            'run("shard", files, new, "--num-workers", "-1")',
            CommandLineError,
            ("...torchdata-remote shard: error: argument --num-workers: expected a number of at least 0, got '-1'"),
        ),
        Mistake(
            "labels that do not exist",
            'run("shard", files, new, "--labels", "folders")',
            CommandLineError,
            (
                "...torchdata-remote shard: error: labels: unknown form 'folders'; known forms are "
                "parent-directory, pattern, classes-json, by-number, ground-truth, meta-mat"
            ),
        ),
        Mistake(
            "append and overwrite",
            'run("shard", files, new, "--append", "--overwrite")',
            CommandLineError,
            (
                "...torchdata-remote shard: error: --append adds to existing shards, and --overwrite replaces "
                "them: choose one"
            ),
        ),
    ],
    "torchdata-remote bench": [
        Mistake(
            "no URL",
            'run("bench")',
            CommandLineError,
            "...torchdata-remote bench: error: the following arguments are required: url",
        ),
        Mistake(
            "nothing in flight",
            'run("bench", shards, "--max-in-flight", "0")',
            CommandLineError,
            ("...torchdata-remote bench: error: argument --max-in-flight: expected a number of at least 1, got '0'"),
        ),
        Mistake(
            "a folder with nothing",
            'run("bench", "memory://mistakes/nothing/")',
            CommandLineError,
            ("torchdata-remote: memory://mistakes/nothing/: no objects found. memory://mistakes/ has ..."),
        ),
        Mistake(
            "no seconds",
            'run("bench", shards, "--seconds", "0")',
            CommandLineError,
            "...error: argument --seconds: expected a positive number of seconds, got '0'",
        ),
    ],
    "torchdata-remote push": [
        Mistake(
            "no URL",
            'run("push", str(folder))',
            CommandLineError,
            "...torchdata-remote push: error: the following arguments are required: url",
        ),
        Mistake(
            "a bucket",
            'run("push", str(folder), "s3://photos/")',
            CommandLineError,
            ("torchdata-remote: s3://photos/: expected datasets://host:port/NAME, a dataset of a service."),
        ),
    ],
    "torchdata-remote pull": [
        Mistake(
            "no folder",
            'run("pull", "datasets://host:1/photos")',
            CommandLineError,
            "...torchdata-remote pull: error: the following arguments are required: folder",
        ),
        Mistake(
            "a bucket",
            'run("pull", "s3://photos/", str(folder))',
            CommandLineError,
            ("torchdata-remote: s3://photos/: expected datasets://host:port/NAME, a dataset of a service."),
        ),
    ],
    "torchdata-remote serve": [
        Mistake(
            "a port that is no number",
            'run("serve", str(folder), "--port", "http")',
            CommandLineError,
            ("...torchdata-remote serve: error: argument --port: expected a port from 0 to 65535, got 'http'"),
        ),
        Mistake(
            "a port that does not exist",
            'run("serve", "--root", str(folder), "--port", "99999")',
            CommandLineError,
            "...error: argument --port: expected a port from 0 to 65535, got '99999'",
        ),
        Mistake(
            "a negative timeout",
            'run("serve", "--root", str(folder), "--idle-timeout", "-1")',
            CommandLineError,
            "...error: argument --idle-timeout: expected a positive number of seconds, got '-1'",
        ),
    ],
    "torchdata-remote top": [
        Mistake(
            "misspelt option",
            'run("top", str(folder), "--onces")',
            CommandLineError,
            ("...torchdata-remote top: error: unrecognized arguments: --onces; did you mean '--once'?"),
        ),
        Mistake(
            "a URL",
            'run("top", "s3://photos/stats/", "--once")',
            CommandLineError,
            ("torchdata-remote: path must be a local path such as 'stats/*.jsonl', got a URL (s3://...)."),
        ),
        Mistake(
            "a folder that does not exist",
            'run("top", "--once", str(folder / "nope"))',
            CommandLineError,
            "torchdata-remote: .../nope: no such file or folder. A process writes its first line ...",
        ),
    ],
    "torchdata-remote render": [
        Mistake(
            "no file",
            'run("render")',
            CommandLineError,
            "...torchdata-remote render: error: the following arguments are required: job",
        ),
    ],
}
