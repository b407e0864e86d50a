"""What type checkers and editors see of ``typed.py``: the functional names as methods.

Written by ``.ci/make_typed.py`` from the constructors of the pipes. Do not edit.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

import torch

from ..core.options import Backend, RetryPolicy
from ..core.partition import EqualizeMode
from ..core.world import World
from ..errors import MissingKeyError
from ..fetch.selections.selection import IndexedSample
from ..formats.decoders import Decoder
from ..formats.error_policy import OnBadMember, OnBadSample, OnBadShard, Skipped, raise_error
from ..formats.labels import Classes, Labeller
from ..formats.sample import Sample
from ..formats.split_name import SplitName
from .batching import Bucket, Pack
from .counts import FlatMap, RepeatEpochs, Skip, Take
from .images import DecodeImage
from .lines import LineReader, ListLineRanges
from .listing import ListRemote, ListRowGroups, Select, ShuffleShards
from .maps import DecodeSample, LabelFromPath, ParallelMap, ToTuple
from .other_readers import FileReader, ShardZipReader, TableReader
from .shuffle import ShuffleSamples
from .split import EqualizeRanks, ShardingFilterRank
from .streams import AsyncPrefetch
from .tar_reader import ShardTarReader
from .torch_names import TorchNames
from .write_shards import WriteShards

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")

class IterDataPipe(TorchNames[T_co]):
    """torch's ``IterDataPipe``, whose functional names are typed methods.

    Annotate with it what returns a chain: ``def chain() -> tdr.IterDataPipe[dict[str, Any]]``. At run time it is torch's
    class itself, and each pipe of torch has the methods.
    """

    @property
    def skipped(self) -> Skipped:
        """What the pipes of this chain left out in their last pass in this process.

        Each pipe of this package has it; torch's pipes, such as ``map``, do not: ask the pipe before them.
        """

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass of this chain, as ``DistributedSampler.set_epoch`` does.

        It reaches this pipe and all pipes above it, and each pipe of torch has it too, so call it once, on the last
        pipe of the chain. The order of an epoch is the same however it is reached, and as often as it is set. The
        passes after it are counted from there. Where nothing depends on the epoch, as without a shuffle, it changes
        nothing.

        Workers read copies of the chain. Those of a ``DataLoader`` are made when its pass starts, so call this before.
        It does not reach persistent workers, whose copies were made before; they only count.

        Args:
            epoch: from 0.

        Raises:
            TypeError, ValueError: if it is not an int of at least 0.
        """

    def async_prefetch(
        self: IterDataPipe[str],
        *,
        max_in_flight: int = 16,
        max_buffer_bytes: int = 134_217_728,
        part_bytes: int | None = None,
        in_order: bool = True,
        interleave: int = 1,
        retry: RetryPolicy | None = None,
        backend: Backend = Backend.AUTOMATIC,
        cache_dir: str | None = None,
        cache_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> AsyncPrefetch:
        """Open URLs as byte streams and prefetch the next ones (functional name: ``async_prefetch``).

        Large objects are fetched in ranged parts, in parallel and yielded in order, so the first sample of a shard is
        available after its first part. A small object costs one request. Requests start with the iterator and stop with
        it; streams that were yielded stay readable.

        Args:
            max_in_flight: maximum number of concurrent requests.
            max_buffer_bytes: bound on the bytes that are fetched or being fetched and not yet consumed. All streams of a
                ``Resumable`` in one process share it, as they share ``max_in_flight``; passes at the same time do not.
            part_bytes: size of the ranged parts of large objects, in bytes. ``None`` means 8 MiB, or less if
                ``max_in_flight`` of them would fill more than three quarters of ``max_buffer_bytes``, or if ``interleave``
                streams would not have room for two each.
            in_order: ``False`` yields an object when its first part is here; a small object is one part. This order differs
                from run to run and cannot be resumed.
            interleave: number of streams that will be read in turn, as by ``shard_tar_reader(interleave=4)``. Each of them
                gets its share of ``max_buffer_bytes`` from the start.
            retry: policy for transient errors.
            backend: the library that transfers the bytes; ``AUTOMATIC`` selects the fastest one that works and logs it.
            cache_dir: local folder in which complete objects are cached, shared by all processes of the host. An object
                with the same size and etag is read from there without a request.
            cache_bytes: bound on the size of the cache. What is there stays until it is not read for two epochs.
            storage_options: for the store, in fsspec's vocabulary.

        Yields:
            tuple[str, StreamWrapper]: the URL unchanged, and a binary file-like object that is not seekable, in torch's
            wrapper, so that torchdata's ``load_from_tar``, ``readlines``, ... can read it.

        Raises:
            ObjectNotFoundError, AccessDeniedError, ObjectChangedError, TransientStorageError: raised by the stream when
                its bytes are read, with URL, range, etag, attempts, seconds and cause.

        Example:
            >>> import fsspec
            >>> fsspec.filesystem("memory").pipe("/notes/1.txt", b"hello")
            >>> [(url, stream.read()) for url, stream in AsyncPrefetch(IterableWrapper(["memory://notes/1.txt"]))]
            [('memory://notes/1.txt', b'hello')]
        """

    def bucket(
        self,
        batch_size: int | None = None,
        *,
        max_tokens: int | None = None,
        length: str | Callable[[T_co], Any] | None = None,
        boundaries: Sequence[float] | None = None,
        max_wait: int = 1_000,
    ) -> Bucket[T_co]:
        """Group items of like length into batches (functional name: ``bucket``).

        Little is lost to padding then. An item waits in the bucket of its length until a batch of that bucket is full, at
        most until ``max_wait`` more items were read: then the batch is handed out as it is, smaller. So ``max_wait`` bounds
        the items in memory and what a resumed pass reads again, too. Within a batch items have the order of the source. At
        the end of a pass the batches that are not full are handed out, the one with the oldest item first.

        The state has the position of the source before the oldest item that is held, and one bit for each item since.

        Ranks get different numbers of batches, even after ``equalize_ranks``: as their lengths differ. For equal numbers
        chain ``repeat_epochs().bucket(...).take(n)``. There is no ``len``. The batches are lists, as those of ``batch``:
        chain ``collate`` or ``map``, and give the loader ``batch_size=None``.

        Args:
            batch_size: largest number of items of a batch; ``None`` if ``max_tokens`` bounds them.
            max_tokens: bound on the tokens of a padded batch: number of items times the length of the longest. An item that
                is longer is a batch of its own. ``None`` for no bound.
            length: name of the member of samples whose ``len`` counts, or a function that returns the length of an item;
                without ``boundaries`` and ``max_tokens`` it may return anything that can be a key of a dict, such as the
                size of an image. ``None`` for the ``len`` of the item.
            boundaries: increasing; the greatest length of each bucket: ``[128, 512]`` are the lengths to 128, 129 to 512,
                and more. ``None`` for a bucket for each length.
            max_wait: number of items.

        Yields:
            list: items.

        Raises:
            SampleError: if the length is no number where there has to be one.
            MissingMemberError: if a sample has no such member.
            Exception: of the function.

        Example:
            >>> words = IterableWrapper(["a", "ccc", "b", "dddd", "e"])
            >>> list(Bucket(words, 2, boundaries=[2]))
            [['a', 'b'], ['ccc', 'dddd'], ['e']]
        """

    def decode_image(
        self: IterDataPipe[Sample],
        size: int | Sequence[int],
        *,
        crop: Literal["random", "center"] | None = "random",
        resize: int | None = None,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        flip: float | None = None,
        dtype: torch.dtype = torch.float32,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        layout: Literal["CHW", "HWC"] = "CHW",
        exif_orientation: bool = False,
        members: str = "jpg;jpeg;png;webp;avif",
        seed: int = 0,
        num_threads: int | None = None,
        on_bad_sample: OnBadSample = raise_error,
    ) -> DecodeImage:
        """Decode images to tensors: crop, resize, flip and normalise in one step (functional name: ``decode_image``).

        It does the work of torchvision's ``RandomResizedCrop``, ``RandomHorizontalFlip``, ``ToTensor`` and ``Normalize``
        in about half of the CPU time, and writes the result where the batch of ``thread_loader`` needs it.

        Crop and flip of a sample are determined by the seed, the epoch, the key and the path of its shard below the source:
        they are the same with any number of ranks, workers, threads and streams, in any order, after a resume, and in a
        copy of the folder. Their distribution is torchvision's. Epochs are counted as by ``shuffle_shards``.

        Images become RGB, 8 bits per channel, as :func:`decoders.rgb` makes them: gray, palette, CMYK and, with a warning,
        16-bit images are converted, alpha is dropped. JPEGs are decoded by simplejpeg if it is installed
        (``pip install 'torchdata_remote[turbo]'``), else by Pillow, to the same pixels. Where simplejpeg decodes, it stops
        below the crop. Damage in the middle of a JPEG is noticed only if Pillow refuses the file. An image at least twice
        as large as needed is decoded at a half, a quarter or an eighth of its size. Resizing is bilinear with antialiasing.

        Compared with Pillow's ``crop`` and ``resize``, no value of 0 to 255 differs by more than 1 at full scale. Where the
        scale is reduced, the edges of a crop are rounded to pixels of that scale, and values of photographs
        differ by about 3 on average.

        Args:
            size: height and width of the tensors; an int for both.
            crop: ``"random"`` shows a random part, for training. ``"center"`` resizes the shorter side to ``resize`` and
                shows the middle, for evaluation. ``None`` shows all, and does not keep the aspect ratio.
            resize: shorter side in pixels before the crop in the middle; ``None`` for 8/7 of the size, 256 for 224.
            scale: share of the area that a random crop has, at least and at most: from 1e-6 to 1.
            ratio: width / height of a random crop, at least and at most: from 0.001 to 1000.
            flip: probability of a horizontal flip; ``None`` for 0.5 with ``crop="random"``, else 0.
            dtype: ``torch.float32``, ``torch.float16`` or ``torch.bfloat16``, normalised; ``torch.uint8`` for 0 to 255,
                to be normalised on the GPU.
            mean: of the channels, where 1 is white; a number for all. ``None`` for ImageNet's: 0.485, 0.456, 0.406.
            std: of the channels; ``None`` for ImageNet's: 0.229, 0.224, 0.225.
            layout: ``"CHW"`` or ``"HWC"``, the order of the dimensions.
            exif_orientation: turn and mirror images as their EXIF data ask for, before the crop.
            members: extensions separated by ``;``, in any case, of which the first that the sample has is decoded. Its name
                stays.
            seed: any int.
            num_threads: that decode, as those of ``parallel_map`` do. ``None`` for those that the loader gives, as
                ``thread_loader`` does, or none.
            on_bad_sample: called with the error of a sample: as of ``decode_sample``.

        Yields:
            dict: a new sample, whose image is a tensor of shape ``(3, height, width)``, or ``(height, width, 3)``.

        Raises:
            DecodeError: names member, sample and shard; the decoder's own error is its ``__cause__``. Also for more than
                ``decoders.MAX_PIXELS`` pixels, of the file or while it is resized.
            MissingMemberError: names the sample, the requested members and the existing ones.
            SampleError: for a sample without a key, which random crops and flips need.

        Example:
            >>> import io
            >>> from PIL import Image
            >>> Image.new("RGB", (500, 375), "red").save(file := io.BytesIO(), "JPEG")
            >>> samples = IterableWrapper([{"__key__": "1", "jpg": file.getvalue(), "cls": b"3"}])
            >>> (sample,) = DecodeImage(samples, 224).decode_sample()
            >>> sample["jpg"].shape, sample["jpg"].dtype, sample["cls"]
            (torch.Size([3, 224, 224]), torch.float32, 3)
        """

    def decode_sample(
        self: IterDataPipe[Sample],
        decoders: Mapping[str, Decoder] | None = None,
        *,
        num_threads: int | None = None,
        on_bad_sample: OnBadSample = raise_error,
    ) -> DecodeSample:
        """Decode members by their extension (functional name: ``decode_sample``).

        By default, images (jpg, jpeg, png, webp, avif, bmp, gif, tif, tiff, ppm, ...) become ``PIL.Image`` in mode RGB, 8
        bits per channel (``decoders.pixels`` keeps 16 bits and floats), ``cls`` an int, ``json`` its value, ``txt`` a str,
        ``npy`` an array, ``npz`` a dict of arrays, ``safetensors`` a dict of tensors (extra ``[tensors]``), ``pt`` and
        ``pth`` what ``torch.load(weights_only=True)`` returns. What would need unpickling is refused. For an extension of
        several parts, such as ``seg.png``, a decoder of the complete extension takes precedence over one of its last part.
        Members that are compressed by gzip, bzip2, xz or zstd, such as ``json.gz`` and ``npy.zst``, are decompressed for
        the decoder of the extension before it, up to 1 GiB. Other members stay ``bytes``; values that are neither ``bytes``
        nor the file of a lazy member are unchanged.

        For training, ``decode_image`` makes tensors of images, with crop, resize, flip and normalisation, in about half of
        the time; chain it before this pipe, which decodes the other members.

        Args:
            decoders: extension, in any case -> function from bytes to a value, in addition to the defaults or in place of
                them; ``bytes`` leaves a member undecoded. The function gets the file of a lazy member, in place of its
                bytes.
            num_threads: that decode, as those of ``parallel_map`` do; order and state do not depend on it. ``None`` for
                those that the loader gives, as ``thread_loader`` does, or none.
            on_bad_sample: called with the error of a sample that cannot be decoded. It raises, as ``raise_error`` does; or
                it returns, as ``skip_with_warning`` does, and the sample is left out: ``skipped.bad_samples`` has its key,
                URL and error, and a warning at the end of the epoch says how many there were. The errors of a store are
                raised. There is no ``len`` then, and ``equalize_ranks`` is refused.

        Yields:
            dict: a new sample.

        Raises:
            CollateError: for an image that goes to torch's default ``collate_fn``.
            DecodeError: names member, sample and shard; the decoder's own error is its ``__cause__``.
            StorageError: if the file of a lazy member cannot be fetched.

        Example:
            >>> samples = IterableWrapper([{"__key__": "1", "cls": b"3", "bin": b"12"}])
            >>> list(DecodeSample(samples, {"bin": len}))
            [{'__key__': '1', 'cls': 3, 'bin': 2}]
        """

    def equalize_ranks(
        self,
        *,
        mode: EqualizeMode | Literal["drop", "repeat"] = EqualizeMode.DROP,
    ) -> EqualizeRanks[T_co]:
        """Give every slot the same number of samples (functional name: ``equalize_ranks``).

        All ranks then have the same number of batches, so none of them waits for gradients at the end of an epoch. It makes
        the ``sharding_filter_rank`` above it split shards by the numbers of samples in the manifest: ranks exchange
        nothing, and ``len(pipe)`` is exact for the current slot. The pipes between the two must yield one sample for each
        that they take; the count is checked at the end.

        Args:
            mode: ``drop`` drops up to ``num_slots - 1`` samples, different ones each epoch; ``repeat`` repeats up to
                ``num_slots - 1`` samples.

        Yields:
            The same samples.

        Raises:
            ManifestError: if the listing is not that of a manifest, or a shard has no index.
            SampleError: if the number of samples differs from that in the manifest.

        Example:
            >>> from torchdata_remote import ShardWriter, World
            >>> with ShardWriter("memory://even/{shard}.tar", overwrite=True) as writer:
            ...     _ = [writer.write({"__key__": str(i), "cls": i}) for i in range(7)]
            >>> urls = IterableWrapper(["memory://even/index.json"]).list_remote()
            >>> share = urls.sharding_filter_rank(world=World(rank=1, world_size=2))
            >>> pipe = EqualizeRanks(share.shard_tar_reader(), mode="drop")
            >>> len(pipe), [sample["__key__"] for sample in pipe]
            (3, ['4', '5', '6'])
        """

    def file_reader(
        self: IterDataPipe[str | tuple[str, Any]],
        *,
        split_name: SplitName = "first",
        storage_options: Mapping[str, Any] | None = None,
    ) -> FileReader:
        """Read each object as a sample with one member (functional name: ``file_reader``).

        Args:
            split_name: how names of files are split into key and extension: at the ``"first"`` dot, as readers of shards
                do; at the ``"last"`` one (``22.05.png`` is ``22_05``); or by a function from a base name to ``(key,
                extension)``, such as ``os.path.splitext``. Dots of the key become underscores, dots before the extension
                are dropped.
            storage_options: for bare URLs, in fsspec's vocabulary.

        Yields:
            dict: ``"__key__"`` (str, path in the bucket without its extension), ``"__url__"`` (str), and the object's
            ``bytes`` under its extension in lower case.

        Raises:
            SampleError: for an object whose name has no extension.

        Example:
            >>> import fsspec
            >>> fsspec.filesystem("memory").pipe("/pets/cat/1.JPG", b"...")
            >>> list(FileReader(IterableWrapper(["memory://pets/cat/1.JPG"])))
            [{'__key__': 'pets/cat/1', '__url__': 'memory://pets/cat/1.JPG', 'jpg': b'...'}]
        """

    def flat_map(self, function: Callable[..., Iterable[U]], *, seed: int | None = None) -> FlatMap[U]:
        """Yield each item of what a function returns for an item (functional name: ``flat_map``).

        Clips of a video, crops of an image, sentences of a document; also none. A generator function hands out its items
        one by one, so only one is in memory.

        The state has the position of the source before the item that is being expanded, and how many of its items were
        handed out. A resumed pass reads that one item again, calls the function, and skips these. So the function must
        return the same for the same item: with ``seed`` it gets random numbers that do.

        Ranks get different numbers of items, even after ``equalize_ranks``: without a bound, as the data has them. For
        equal numbers chain ``repeat_epochs().flat_map(...).take(n)``. There is no ``len``.

        Args:
            function: called with an item, and with ``seed`` also with a ``numpy.random.Generator``; returns an iterable.
                With worker processes, what it refers to has to pickle.
            seed: of the random numbers, as those of ``parallel_map``.

        Yields:
            What the function returns, one by one.

        Raises:
            SampleError: if the function returns no iterable, or a single str, bytes or dict; with ``seed`` also for an item
                without a key.
            StateError: if it returns fewer items than before the state was saved.
            Exception: of the function.

        Example:
            >>> list(FlatMap(IterableWrapper(["a b", "", "c"]), str.split))
            ['a', 'b', 'c']
        """

    def label_from_path(
        self: IterDataPipe[Sample],
        *,
        classes: Classes | Labeller | None = None,
        pattern: str | None = None,
    ) -> LabelFromPath:
        """Add ``"cls"``, the class number, from the sample's key (functional name: ``label_from_path``).

        Args:
            classes: class names in the order of their numbers, from 0, or a dict name -> int. A name that is not among
                them, but consists of digits, is the number itself; so is any name without ``classes``. Or a labeller of
                ``tdr.labels`` or your own, which is called with the key (it has no extension) and gives the number, or a
                name in its ``table``.
            pattern: a regular expression with one group, searched in the key: that group is the class's name. By default it
                is the key's parent directory. Not together with a labeller.

        Yields:
            dict: a new sample with ``"cls"`` (int).

        Raises:
            LabelError: for a label that is neither a class nor a number, for a key without one, and for a sample
                that has a ``cls`` already. Names the URL.
            SampleError: for a sample without a key.

        Example:
            >>> samples = IterableWrapper([{"__key__": "train/dog/7", "__url__": "s3://pets/train/dog/7.jpg", "jpg": b""}])
            >>> [sample["cls"] for sample in LabelFromPath(samples, classes=["cat", "dog"])]
            [1]
        """

    def line_reader(
        self: IterDataPipe[str | tuple[str, Any]],
        *,
        member: str | None = None,
        interleave: int = 1,
        max_line_bytes: int = 16_777_216,
        on_bad_shard: OnBadShard = raise_error,
        storage_options: Mapping[str, Any] | None = None,
    ) -> LineReader:
        r"""Read the lines of text files as samples (functional name: ``line_reader``).

        A line of ``.jsonl`` or ``.ndjson`` is the member ``json``, that of another file is ``txt``, without its line feed;
        ``decode_sample`` makes values and ``str`` of them. Lines of JSON that are empty are left out. The rows of ``.csv``
        and ``.tsv`` are samples with a ``str`` for each column, whose names are in the first row. Compression by gzip,
        bzip2, xz and zstd is told by the end of the name.

        Chain ``list_line_ranges`` before ``shuffle_shards`` and ``sharding_filter_rank``, so that large files are read by
        several readers. Files that are compressed, or tables, are read from their beginning, also after a resume.
        The number of lines is not known before they are read, so there is no ``len``.

        Args:
            member: name of the member that has a line, in place of ``json`` and ``txt``.
            interleave: number of files or ranges that are read concurrently, one line of each in turn.
            max_line_bytes: a longer line is an error, before memory is taken for it.
            on_bad_shard: called with the ``ShardReadError`` of a file that cannot be read further; raises, or returns to
                skip the rest of the file or range.
            storage_options: for bare URLs, in fsspec's vocabulary.

        Yields:
            dict: ``"__key__"`` (str), the path of the file and the first byte of the line, or its number in files that are
            read from their beginning; ``"__url__"`` (str), and the line as ``bytes``, or a ``str`` for each column.

        Raises:
            ShardReadError: for a line that is longer than ``max_line_bytes``, a file whose compression is damaged, or a row
                that has more or fewer columns than the first one.

        Example:
            >>> import fsspec
            >>> fsspec.filesystem("memory").pipe("/doc/y.jsonl", b'{"a": 1}\n{"a": 2}\n')
            >>> for sample in LineReader(IterableWrapper(["memory://doc/y.jsonl"])).decode_sample():
            ...     print(sample["__key__"], sample["json"])
            doc/y.jsonl/000000000000 {'a': 1}
            doc/y.jsonl/000000000009 {'a': 2}
        """

    def list_line_ranges(
        self: IterDataPipe[str],
        *,
        range_bytes: int = 33_554_432,
        max_line_bytes: int = 16_777_216,
        retry: RetryPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ListLineRanges:
        r"""Cut large text files into ranges of complete lines (functional name: ``list_line_ranges``).

        Ranges are then the unit that ``shuffle_shards`` shuffles, ``sharding_filter_rank`` splits and ``line_reader``
        reads, in place of whole files. A request of 64 KiB finds the end of a line near each border, 16 at once. Files of
        at most ``range_bytes`` are not touched. Files whose names end in ``.gz``, ``.bz2``, ``.xz``, ``.zst``, ``.csv`` or
        ``.tsv`` can only be read from their beginning, so each of them stays one.

        Args:
            range_bytes: about the length of a range.
            max_line_bytes: a longer line is an error.
            retry: policy for transient errors.
            storage_options: for the store, in fsspec's vocabulary.

        Yields:
            RemoteUrl: ``part of s3://b/x.jsonl (bytes 0 to 33554432)``, with size and etag of the file; or its own URL.

        Raises:
            ShardReadError: if a line is longer than ``max_line_bytes``.

        Example:
            >>> import fsspec
            >>> fsspec.filesystem("memory").pipe("/doc/x.txt", b"one\ntwo\nthree\n")
            >>> list(ListLineRanges(IterableWrapper(["memory://doc/x.txt"]), range_bytes=6))
            ['part of memory://doc/x.txt (bytes 0 to 8)', 'part of memory://doc/x.txt (bytes 8 to 14)']
        """

    def list_remote(
        self: IterDataPipe[str | os.PathLike[str]],
        *,
        pattern: str | None = None,
        recursive: bool = True,
        retry: RetryPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ListRemote:
        """List the objects of source URLs (functional name: ``list_remote``).

        A source is

        - a folder: ``s3://b``, ``s3://b/dir/``, or without the slash if its name has no extension: ``s3://b/dir``,
          ``s3://b/v1.0``. ``dir`` never matches ``dir2``;
        - a glob: ``s3://b/t-*.tar``, where ``*`` and ``?`` stay within a folder and ``**`` does not;
        - a brace range: ``s3://b/t-{000000..000099}.tar`` or ``s3://b/{train,val}/``. A result without
          a glob and without a slash at its end is one object, for which the store is not listed;
        - a manifest: ``s3://b/t/index.json``, as written by ``write_shards``: its shards in its order, with the checksums
          that their bytes are verified against while they are read;
        - one object, whose name has an extension: ``s3://b/0.tar``. Without one (``s3://b/README``) it is found where there
          is no folder of that name. A URL of a web server is an object.

        ``*``, ``?``, ``[``, ``{`` and ``}`` that are part of a name have to be put into brackets, as by :func:`escape_url`:
        ``s3://b/what[?]/``. A :class:`RemoteUrl` is never a pattern.

        The objects of a source are sorted by path (by code points), and the sources keep their order, so the listing is
        the same in all processes. Objects are yielded while later pages of the listing are requested. A source that names
        one object costs no request: its size and etag are those of the first response to a reader, which also notices if it
        is missing. Directory markers are dropped, and so are files that macOS adds to folders
        (``._1.jpg``, ``.DS_Store``, ``__MACOSX/``), unless a source names one: ``skipped.members["macos"]`` counts them.
        Sources that overlap or are repeated yield their objects repeatedly. (A manifest that has a shard twice is refused.)

        Args:
            pattern: glob that objects must match: by base name, or by the path below the source if it has a slash.
            recursive: whether folders below a prefix are listed too. Does not apply to a glob or a brace range.
            retry: policy for transient errors, for each page of a listing.
            storage_options: for the store, in fsspec's vocabulary.

        Yields:
            RemoteUrl: a str with ``size`` (bytes) and ``etag`` if the listing has them.

        Raises:
            EmptyListingError: if a source has no objects, or none that match; names URL and pattern.
            UrlError: for a scheme without a transport, or a URL without a bucket. When the pipe is built, for a ``str``
                in place of a list: ``IterableWrapper("/data/x/")``.
            ObjectNotFoundError: if there is no such bucket.
            ManifestError: for a manifest that is damaged, or names a shard outside its folder or twice.
            AccessDeniedError: if these credentials may not list.

        Example:
            >>> import fsspec
            >>> fsspec.filesystem("memory").pipe({"/zoo/ape/1.jpg": b"12", "/zoo2/2.jpg": b"3"})
            >>> [(url, url.size) for url in ListRemote(IterableWrapper(["memory://zoo"]), pattern="*.jpg")]
            [('memory://zoo/ape/1.jpg', 2)]
        """

    def list_row_groups(
        self: IterDataPipe[str | os.PathLike[str]],
        *,
        filter: Any = None,
        retry: RetryPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ListRowGroups:
        """List the row groups of Parquet and Arrow files (functional name: ``list_row_groups``).

        Row groups are then the unit that ``shuffle_shards`` shuffles, ``sharding_filter_rank`` splits and ``table_reader``
        reads, in place of whole files; and their numbers of rows are known, so that they can be split further and
        ``equalize_ranks`` can count. The record batches of an Arrow file count as its row groups.

        Only footers are read, of 16 files at once: one request for a Parquet file, two if the footer is longer than
        64 KiB. Arrow footers have no numbers of rows, and Arrow streams have no footers, so both take a request for each
        record batch of more than 256 KiB, one after the other. The footers of 512 files stay in memory for
        ``table_reader``, those of more than 256 KiB do not. Needs pyarrow: ``pip install 'torchdata_remote[tables]'``.

        Args:
            filter: row groups without a row that this condition accepts, by the statistics in the Parquet footer, are left
                out: a ``pyarrow.compute.Expression``, or a list of tuples as ``[("label", "in", [3, 4])]``. Pass
                ``table_reader`` the same one, which applies it to rows.
            retry: policy for transient errors.
            storage_options: for the store, in fsspec's vocabulary.

        Yields:
            RemoteUrl: ``part of s3://b/x.parquet (samples 0 to 1000)`` for rows 0 to 999, with ``num_samples``, and
            ``size`` and ``etag`` of the file. A file with a single row group has its own URL.

        Raises:
            ImportError: if pyarrow is not installed.
            ShardReadError: for a file that is damaged, or no table.
            SampleError: if the filter cannot be applied to the columns.

        Example:
            >>> import fsspec, pyarrow as pa, pyarrow.parquet as pq
            >>> with fsspec.open("memory://doc/x.parquet", "wb") as file:
            ...     pq.write_table(pa.table({"n": range(5)}), file, row_group_size=3)
            >>> [(url, url.num_samples) for url in ListRowGroups(IterableWrapper(["memory://doc/x.parquet"]))]
            ... # doctest: +NORMALIZE_WHITESPACE
            [('part of memory://doc/x.parquet (samples 0 to 3)', 3),
             ('part of memory://doc/x.parquet (samples 3 to 5)', 2)]
        """

    def pack(
        self,
        length: int,
        *,
        member: str | None = None,
        separator: int | None = None,
        split: bool = True,
        max_wait: int = 512,
        too_long: Literal["split", "error"] = "split",
        last: Literal["pad", "short", "drop"] = "pad",
        padding: int = 0,
        cu_seqlens: bool = False,
    ) -> Pack:
        """Pack token sequences into rows of one length (functional name: ``pack``).

        With ``split=True`` documents follow each other, and the end of a row cuts one in two: no room is left but in the
        last row of a pass. With ``split=False`` documents stay whole: each goes into the open row where it leaves the least
        room (best fit), and a row is handed out when it is full, or when its first document was read ``max_wait`` documents
        ago, filled up. Each token of the source is handed out once, but those that ``last="drop"`` leaves out.

        The state has the position of the source before the oldest document that is not handed out wholly, and a few
        numbers. A resumed pass reads one document again, or ``max_wait`` documents with ``split=False``. Chain it after
        ``shuffle_samples``, and the tokenizer by ``parallel_map`` before it.

        Ranks get different numbers of rows, even after ``equalize_ranks``: as their numbers of tokens differ. For equal
        numbers chain ``repeat_epochs().pack(...).take(n)``. There is no ``len``.

        Args:
            length: of rows, in tokens.
            member: name of the member of samples that has the tokens; ``None`` if items are tokens.
            separator: token that is appended to each document, such as that of the end of a text; ``None`` for none.
            split: whether documents are cut at the end of a row.
            max_wait: with ``split=False``, the number of documents that are read at most before a row is handed out. Rows
                that are longer, or documents that are shorter, need more of them to be filled well.
            too_long: with ``split=False``, for a document that is longer than a row: ``"split"`` cuts it into rows and a
                rest, ``"error"`` raises.
            last: for the rows that are not full at the end of a pass: ``"pad"`` fills them up, ``"short"`` hands them out
                as they are, ``"drop"`` leaves them out, with a warning that counts the tokens. With ``split=False``,
                ``"short"`` fills up no row.
            padding: token with which rows are filled up.
            cu_seqlens: whether rows have ``cu_seqlens``. torch's ``default_collate`` cannot stack those of several rows.

        Yields:
            dict: ``input_ids``, the tokens; ``position_ids``, the position in the document, from 0 again after a cut;
            ``document_ids``, the number of the document in this row, -1 for padding: tensors, int64, shape ``(length,)``.
            With ``cu_seqlens=True`` also ``cu_seqlens``, the cumulative lengths of the documents from 0 on, int32, shape
            ``(documents + 1,)``; padding counts as a document, so the last one is the length.

        Raises:
            SampleError: for items that are no token ids; for a document that is too long.
            MissingMemberError: if a sample has no such member.

        Example:
            >>> for row in Pack(IterableWrapper([[1, 2, 3], [4, 5]]), 4):
            ...     print(row["input_ids"].tolist(), row["position_ids"].tolist(), row["document_ids"].tolist())
            [1, 2, 3, 4] [0, 1, 2, 0] [0, 0, 0, 1]
            [5, 0, 0, 0] [0, 0, 1, 2] [0, -1, -1, -1]
        """

    def parallel_map(
        self,
        function: Callable[..., U],
        *,
        seed: int | None = None,
        num_threads: int | None = None,
        max_ahead: int | None = None,
        on_bad_sample: OnBadSample = raise_error,
    ) -> ParallelMap[U]:
        """Call a function with each item, in threads, in order (functional name: ``parallel_map``).

        The results have the order of the items. An error of the function is raised in the place of its item, after the
        results before it. The state is that of the source after the item that was handed out last: it is the same with any
        number of threads, and with ``map``, and loads with any other.

        Threads are faster where the function releases Python's global lock: decoders of images, NumPy, OpenCV and torch do
        for the most part, loops in Python do not. All pipes of a process with the same number of threads share them, as all
        streams of a ``Resumable`` do. They are started by the first item and ended with the pass.

        The function is called in several threads at once, in no certain order, so it must not change what they share.
        Random numbers from ``random``, ``numpy.random`` or torch's default generator differ from run to run then: pass
        ``seed``, and draw from the generator that the function gets. What a library allows in one thread only, such as one
        open file or database handle, belongs into a ``threading.local``.

        Args:
            function: called with an item, and with ``seed`` also with a ``numpy.random.Generator``; what it returns is
                handed out. With worker processes, what it refers to has to pickle.
            seed: of the random numbers, any int. They are determined by the seed, the epoch, the sample's key and the path
                of its shard below the source, so they are the same in every world, after a resume, and in a copy of the
                folder. A ``torch.Generator`` is made by ``torch.Generator().manual_seed(int(rng.integers(2**63)))``.
            num_threads: that call it. The thread that iterates calls it as well, with an item that it needs and that none
                of them has begun. 0 calls it in that thread only, and takes nothing ahead. ``None`` for those that the
                loader gives, as ``thread_loader`` does, or 0. Each worker of a ``DataLoader`` has as many.
            max_ahead: number of items that are taken from the source before they are asked for, which bounds the memory.
                ``None`` for twice the threads. The streams of a ``Resumable`` in one process share it; each has one at
                least.
            on_bad_sample: called with the error of the function for a sample: as of ``decode_sample``.

        Yields:
            What the function returns.

        Raises:
            SampleError: with ``seed`` for an item without a key: put it before ``to_tuple``.
            Exception: of the function.

        Example:
            >>> list(ParallelMap(IterableWrapper(["a", "b", "c"]), str.upper, num_threads=2))
            ['A', 'B', 'C']
        """

    def repeat_epochs(self, times: int | None = None) -> RepeatEpochs[T_co]:
        """Read a chain several times in one pass, each time in another order (functional name: ``repeat_epochs``).

        Each pass over the source is an epoch of its own for the pipes above: ``shuffle_shards``, ``shuffle_samples`` and
        ``mix`` have another order. Pipes after it see one long pass: a ``shuffle_samples`` mixes the end of a pass with the
        start of the next one, ``pack`` and ``batch`` leave no incomplete row or batch between them.

        Without a number it never ends. Then bound it by ``take``, which gives all ranks the same number of items, or by the
        steps of the training. With a number, ranks are as many items apart as in that many epochs of the source.

        It is not called ``repeat``, because torchdata has a pipe of that name, which repeats each item.

        Args:
            times: number of passes; ``None`` for no end.

        Yields:
            The same items.

        Raises:
            SampleError: if a pass over the source has no items, and there is no end.
            EmptyShareError: the same, because the streams of a state were divided among more readers than they have items.

        Example:
            >>> list(RepeatEpochs(IterableWrapper("ab"), 3))
            ['a', 'b', 'a', 'b', 'a', 'b']
        """

    def select(
        self: IterDataPipe[str],
        *,
        keys: Any = None,
        where: Callable[[IndexedSample], object] | Any = None,
        members: str | Sequence[str] | None = None,
        key_column: str = "__key__",
        on_missing_key: Callable[[MissingKeyError], object] = raise_error,
        on_bad_member: OnBadMember = raise_error,
        retry: RetryPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Select:
        """Select samples and members of tar shards (functional name: ``select``).

        Readers then request the bytes of what was selected only, and nothing is written. It is planned by the files of keys
        beside the shards (``shard.tar.keys``, of ``ShardWriter`` and ``torchdata-remote manifest``), 16 requests at a time;
        without them the headers of the shards are read, with a warning. A plan of unchanged shards is made once in a
        process. Put it between ``list_remote`` and ``shuffle_shards``.

        Args:
            keys: of the samples, as ``"__key__"`` has them. A list, a set, a column of a table or another iterable; or the
                URL or path of a file: a ``.txt`` with a key in each line, or a ``.parquet``, ``.arrow`` or ``.feather``,
                which need pyarrow (``pip install 'torchdata_remote[tables]'``). A key that several shards have selects all
                its samples. ``None`` selects all keys.
            where: a function that is called with the :class:`IndexedSample` of each sample (that ``keys`` selects), and
                returns whether it is selected, as for Python's ``filter``; one that workers receive must be importable.
                With the URL of a table, an expression of ``pyarrow.compute`` that its rows must fulfil.
            members: of each selected sample that are read: extensions, in any case; of ``"jpg;jpeg;png"`` the first
                that the sample has. ``None`` reads all.
            key_column: of a file that is a table, the column with the keys.
            on_missing_key: policy for keys that no shard has: ``raise_error``, ``skip_with_warning``, or a function that is
                called with the error.
            on_bad_member: policy for members that cannot be part of a sample, where headers of shards are read. Pass the
                reader's, as ``stream_shards`` does.
            retry: policy for transient errors, for each request.
            storage_options: for the store, in fsspec's vocabulary; also for the file of ``keys`` in the same kind of store.

        Yields:
            RemoteUrl: of each shard that has a selected sample, in the order of the source, with its number of selected
            samples. It is the URL of the shard itself if all of it is selected and its manifest has checksums.

        Raises:
            MissingKeyError: if no shard has some of the keys: their number, and some of them.
            MissingMemberError: if a selected sample has none of the alternatives in ``members``.
            EmptyListingError: if nothing is selected.
            ManifestError: if the file of keys belongs to another version of the shard.
            ShardReadError: for a shard without such a file that is compressed, a zip, or damaged.
            UrlError: for samples that were selected elsewhere.
            ValueError: after ``sharding_filter_rank`` or another ``select``.
            RemoteDataError: if the file of ``keys`` is damaged or of an unknown kind, or has no such column.

        Example:
            >>> from torchdata_remote import ShardWriter
            >>> with ShardWriter("memory://chosen/{shard}.tar", overwrite=True) as writer:
            ...     _ = [writer.write({"__key__": str(i), "txt": "x" * i, "cls": i}) for i in range(7)]
            >>> urls = IterableWrapper(["memory://chosen/index.json"]).list_remote()
            >>> chosen = Select(urls, keys={"2", "5", "6"}, where=lambda sample: sample.members["txt"] < 6, members=["txt"])
            >>> [url.num_samples for url in chosen], list(chosen.shard_tar_reader().to_tuple("__key__", "txt"))
            ([2], [('2', b'xx'), ('5', b'xxxxx')])
        """

    def shard_tar_reader(
        self: IterDataPipe[str | tuple[str, Any]],
        *,
        on_bad_shard: OnBadShard = raise_error,
        on_bad_member: OnBadMember = raise_error,
        interleave: int = 1,
        nested: bool = False,
        copy: bool = True,
        lazy: Collection[str] | None = None,
        max_member_bytes: int = 4_294_967_296,
        max_ratio: int = 100,
        max_decompressed_bytes: int = 1_099_511_627_776,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ShardTarReader:
        """Read samples from tar shards (functional name: ``shard_tar_reader``).

        Consecutive members with the same key are one sample. The key ends at the first dot of the base name, and the
        extension is the rest, in lower case; a leading ``./`` is dropped. Directories, links, devices, members named like
        ``__this__`` and files that macOS adds (``._1.jpg``, ``.DS_Store``, ``__MACOSX/``) are skipped and counted. Links,
        and an archive without a sample, cause a warning. Compression by gzip, bzip2, xz or zstd is detected by content.

        ``skipped`` counts what the last pass in this process has skipped: ``skipped.shards`` (URL -> reason),
        ``skipped.members`` (kind -> count), ``skipped.bad_members`` (reason -> count) and ``skipped.num_empty``.

        Args:
            on_bad_shard: called with the ``ShardReadError`` of a shard that cannot be read further. It raises, as
                ``raise_error`` does; or it returns, as ``skip_with_warning`` does, and the rest of the shard is skipped.
                ``accept_missing_end`` returns ``True`` for a ``MissingEndError``: it accepts archives without the
                end-of-archive blocks.
            on_bad_member: called with the ``BadMemberError`` of a member that cannot be part of a sample, in a valid
                archive: without an extension (``README``) or a key (``.hidden``), with a path that leaves its folder, or
                with an extension that its sample has already. It raises, as ``raise_error`` does, which makes the shard a
                bad shard; or it returns, as ``skip_with_warning`` does, and the member is skipped. A key that is repeated
                later in the shard always makes it a bad shard.
            interleave: number of shards that are read concurrently, one sample of each in turn, in a deterministic order.
                Each of them holds a part in memory. Pass ``async_prefetch`` the same number, so that it prefetches all.
            nested: whether each shard is an archive of archives, as ImageNet's training images are. Keys are prefixed with
                the name of the inner archive without its extension: ``n01440764/n01440764_10026``.
            copy: whether members are ``bytes``. Otherwise they are ``memoryview`` slices, which avoid a copy but keep the
                complete part in memory. Decode them first: torch's default collate treats a slice as a list of numbers,
                and a worker process cannot send one (the loader would wait forever).
            lazy: extensions of members that are read where they are needed, such as ``{"mp4", "wav"}``: complete ones
                (``left.mp4``) or last parts, in any case. Such a member is a seekable, read-only binary file with ``name``
                and ``size``, which ``av.open`` and ``decode_sample`` take; ``bytes(file)`` is the whole. Nothing of it is
                fetched before it is read, unless it has at most 64 KiB. The reader then requests what it needs, and the
                beginnings of the next shards: name all large members, because others are fetched one after the other.
                There is no cache, and checksums of manifests are not compared. In compressed and nested archives, and in
                streams of other openers, the file is in memory.
            max_member_bytes: maximum size of a member; a larger one is an error, before memory is allocated for it.
            max_ratio: maximum ratio of decompressed to compressed bytes of a shard, beyond the first 16 MiB.
            max_decompressed_bytes: maximum size of a decompressed shard.
            storage_options: for bare URLs, in fsspec's vocabulary.

        Yields:
            dict: ``"__key__"`` (str), ``"__url__"`` (str), and one ``bytes`` (a file, for ``lazy``) for each member under
            its extension.

        Raises:
            ShardReadError: for a shard that is truncated or damaged, that exceeds a limit, or that repeats a key later.
                :class:`MissingEndError` if only the end-of-archive blocks are missing, :class:`BadMemberError` if a member
                cannot be part of a sample.

        Example:
            >>> from torchdata_remote import ShardWriter
            >>> with ShardWriter("memory://doc/{shard}.tar", overwrite=True) as writer:
            ...     _ = writer.write({"__key__": "cat/1", "txt": "miaow", "cls": 3})
            >>> list(ShardTarReader(IterableWrapper(["memory://doc/0.tar"])))
            [{'__key__': 'cat/1', '__url__': 'memory://doc/0.tar', 'cls': b'3', 'txt': b'miaow'}]
        """

    def shard_zip_reader(
        self: IterDataPipe[str | tuple[str, Any]],
        *,
        on_bad_shard: OnBadShard = raise_error,
        on_bad_member: OnBadMember = raise_error,
        interleave: int = 1,
        max_member_bytes: int = 4_294_967_296,
        max_ratio: int = 100,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ShardZipReader:
        """Read samples from zip shards (functional name: ``shard_zip_reader``).

        The directory at the end of the archive is read first, by a separate ranged request; then the members are streamed
        in the order in which they are stored. Stored and deflated members are supported; their checksums are verified
        before they are yielded. Members are grouped into samples as by ``shard_tar_reader``, which also documents
        ``skipped``.

        Args:
            on_bad_shard: called with the ``ShardReadError`` of a shard that cannot be read on: ``raise_error``,
                ``skip_with_warning``, or a function that raises, or returns to skip the rest of the shard.
            on_bad_member: as in ``shard_tar_reader``: called with the ``BadMemberError`` of a member that cannot be part
                of a sample; raises, or returns to skip that member.
            interleave: number of shards that are read concurrently, one sample of each in turn, in a deterministic order.
            max_member_bytes: maximum size of a member; a larger one is an error, before memory is allocated for it.
            max_ratio: maximum ratio of decompressed to compressed bytes of a member, beyond 16 MiB.
            storage_options: for bare URLs, in fsspec's vocabulary.

        Yields:
            dict: ``"__key__"`` (str), ``"__url__"`` (str), and one ``bytes`` for each member under its extension.

        Raises:
            ShardReadError: for an archive that is truncated, damaged, encrypted or ambiguous. :class:`BadMemberError` for a
                member that cannot be part of a sample.
            RemoteDataError: for a file that is neither seekable nor from ``async_prefetch``.

        Example:
            >>> import fsspec, io, zipfile
            >>> data = io.BytesIO()
            >>> with zipfile.ZipFile(data, "w") as archive:
            ...     archive.writestr("cat/1.txt", "miaow")
            >>> fsspec.filesystem("memory").pipe("/doc/0.zip", data.getvalue())
            >>> list(ShardZipReader(IterableWrapper(["memory://doc/0.zip"])))
            [{'__key__': 'cat/1', '__url__': 'memory://doc/0.zip', 'txt': b'miaow'}]
        """

    def sharding_filter_rank(
        self: IterDataPipe[str],
        *,
        world: World | None = None,
        split: bool = True,
    ) -> ShardingFilterRank:
        """Pass on this slot's share of the shard URLs (functional name: ``sharding_filter_rank``).

        URL ``i`` goes to slot ``i % num_slots``, so all slots together read each URL once per epoch. The share is the same
        under ``DataLoader``, ``DataLoader2``, with ``RANK`` and ``WORLD_SIZE`` in the environment, and with an explicit
        ``world``. Shares may differ by one URL.

        With a manifest, which has the number of samples of each shard, there may be fewer shards than slots. Then shards
        are split by samples: the numbers of samples of two slots differ by at most one. A slot reads only its range of a
        shard, found by the index (``shard.tar.idx``). Put ``filter`` before this pipe: the URL of a range differs from that
        of its shard, and readers refuse a pass with a filter on such URLs.

        Args:
            world: rank and worker of this reader. A world without workers applies to all workers of the rank. ``None`` asks
                torch when iteration starts, because DataLoader workers do not exist yet when the pipe is built. If several
                ranks read the same data, pass ``World.from_mesh(mesh, dp=...)`` or ``World.from_group(group)``.
            split: ``False`` yields all URLs to every reader: for intended repetition, or for URLs that are split already.
                Without this pipe several readers refuse to start (:class:`UnsplitError`).

        Yields:
            str: shard URLs in source order; a ``RemoteUrl`` may be limited to a range of samples.

        Raises:
            TypeError: if ``world`` is not a ``World``, but a ``DeviceMesh`` for example.
            ValueError: for a chain that is split already, or for ``world`` together with ``split=False``.
            SplitTwiceError: if a training framework splits the items again (Accelerate, the transformers Trainer).
            EmptyShareError: in every slot, before the first URL, if there are fewer URLs than slots and their numbers of
                samples are unknown, or fewer samples than slots.

        Example:
            >>> urls = IterableWrapper([f"s3://photos/{i}.tar" for i in range(5)])
            >>> list(ShardingFilterRank(urls, world=World(rank=1, world_size=2)))
            ['s3://photos/1.tar', 's3://photos/3.tar']
        """

    def shuffle_samples(
        self,
        *,
        buffer_size: int,
        max_buffer_bytes: int | None = None,
        seed: int = 0,
    ) -> ShuffleSamples[T_co]:
        """Shuffle samples within a buffer, by seed and epoch (functional name: ``shuffle_samples``).

        Samples are read in blocks of 2/9 of the buffer. Each sample is yielded in one of the eight phases after its block,
        drawn by ``(seed, epoch, block)``, and the samples of a phase are shuffled again. So neighbours in the output are
        drawn uniformly from a window of almost two buffers, and no sample moves by more than a buffer in either direction.
        One sample is read for each one that is yielded, so the source is consumed at an even rate.

        With ``max_buffer_bytes`` a block also ends where its samples reach 2/9 of the bytes, and no sample is read while
        the buffer is full. The first sample is yielded when a quarter of the bytes is read; then up to two samples are read
        for each one that is yielded, until the buffer is full. The sizes depend on the samples only (content, and 48 bytes
        for each member and 256 for each sample), so the order is the same in every process and after a resume.

        The state consists of the state of the source at the start of the oldest block in use, the phase, the number of
        samples yielded in it and, with ``max_buffer_bytes``, the lengths of nine blocks; resuming reads at most two buffers
        again. A buffer cannot mix samples that are further apart: use ``shuffle_shards`` and ``interleave`` of the readers
        for that.

        Epochs are counted as by ``shuffle_shards``. Chain it before ``decode_sample``, where samples take less memory.

        Args:
            buffer_size: maximum number of samples in memory. With ``Resumable(num_streams=...)`` each stream has its own
                buffer.
            max_buffer_bytes: bound on the bytes of the samples in memory, also of each stream; the sample that reaches it
                is still read. ``None`` for no bound. Counted is the content of bytes, text, arrays, tensors, ``io.BytesIO``
                and PIL images, also in dicts, lists, tuples, sets and dataclasses. Not counted is what other objects hold,
                nor the array of which an array is a view: chain the shuffle before such samples are made, or copy views.
            seed: any int.

        Yields:
            The same items.

        Example:
            >>> pipe = ShuffleSamples(IterableWrapper(range(6)), buffer_size=3, seed=0)
            >>> list(pipe), list(pipe)
            ([0, 1, 4, 2, 3, 5], [0, 2, 4, 1, 3, 5])
        """

    def shuffle_shards(self: IterDataPipe[str], seed: int = 0) -> ShuffleShards:
        """Permute URLs by seed and epoch (functional name: ``shuffle_shards``).

        The order is determined by ``(seed, epoch)`` and the listing; the global random state is neither read nor changed.
        Each pass is a new epoch, counted from 0, in all ranks and workers alike: under ``DataLoader`` with or without
        persistent workers, and under ``DataLoader2``. Passes of a loader and passes of direct iteration are counted
        separately, so peeking at the first sample on one rank does not desynchronise the ranks. Holds all URLs in memory.

        Args:
            seed: any int.

        Yields:
            str: the same URLs, in a uniformly random order.

        Example:
            >>> pipe = ShuffleShards(IterableWrapper(["a", "b", "c", "d"]), seed=0)
            >>> first, second = list(pipe), list(pipe)
            >>> pipe.set_epoch(0)
            >>> first == list(pipe), first == second, sorted(second)
            (True, False, ['a', 'b', 'c', 'd'])
        """

    def skip(self, number: int) -> Skip[T_co]:
        """Leave out the first ``number`` items of a pass, of all ranks together (functional name: ``skip``).

        The number is divided as that of ``take``, so ``take(n)`` and ``skip(n)`` of one chain divide its items into two
        parts: for validation and training, for example, if nothing above them is shuffled. The items that are left out are
        read, which takes their time in each epoch; URLs, before the reader, cost nothing. A resumed pass does not skip
        again. To continue a training use the state of a loader, which reads nothing again.

        Args:
            number: of items, of all ranks together.

        Yields:
            The same items.

        Example:
            >>> list(Skip(IterableWrapper("abcd"), 3))
            ['d']
        """

    def table_reader(
        self: IterDataPipe[str],
        *,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        key: str | None = None,
        optional: Collection[str] = (),
        filter: Any = None,
        interleave: int = 1,
        max_in_flight: int = 16,
        max_buffer_bytes: int = 134_217_728,
        on_bad_shard: OnBadShard = raise_error,
        retry: RetryPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> TableReader:
        """Read the rows of Parquet and Arrow files as samples (functional name: ``table_reader``).

        Arrow files are IPC files (Feather) and IPC streams; the format is detected by content. Of Parquet, only the column
        chunks of the chosen columns are fetched, of several row groups ahead, and close ones by one request. Of Arrow,
        whole record batches are fetched. Rows are decoded in batches of 16 MiB or 8,192 rows.

        Whole files are read by default. Put ``list_row_groups()`` before ``shuffle_shards`` and ``sharding_filter_rank`` to
        shuffle and split row groups. Needs pyarrow: ``pip install 'torchdata_remote[tables]'``.

        Values are ``int``, ``float``, ``bool``, ``str``, ``bytes``, and ``None`` for null. A list of numbers is a NumPy
        array, or a ``list`` if there is a null in it; fixed-size lists in lists are arrays of several dimensions. A struct
        is a ``dict``, another list a ``list``. Timestamps and dates are ``numpy.datetime64`` in the unit of the file, in
        UTC; durations ``numpy.timedelta64``; times of a day ``datetime.time``; decimals ``decimal.Decimal``. Dictionary
        columns are decoded. Where the type of a column differs among the files, values stay as each file has them.

        Args:
            columns: names of the columns to read, or a mapping from them to the names in the sample; ``None`` for all.
                ``"image.bytes"`` is the field ``bytes`` of the struct ``image``: ``{"image.bytes": "jpg", "label": "cls"}``
                makes samples of a Hugging Face data set that ``decode_image`` and ``write_shards`` take.
            key: column of strings or integers that are the keys. ``None`` for the column ``__key__`` if there is one, else
                path of the file without extension, and number of the row: ``data/train-0/000000017``.
            optional: those of ``columns`` that a file may lack, such as ``["image.path"]``: ``None`` in its samples.
            filter: rows to yield: a ``pyarrow.compute.Expression``, or a list of tuples that are all required, as
                ``[("label", "in", [3, 4])]``. Row groups that the statistics of Parquet exclude are not fetched.
            interleave: number of files, or row groups, that are read concurrently, one sample of each in turn. A decoded
                batch of each of them is in memory.
            max_in_flight: concurrent requests.
            max_buffer_bytes: bound on the bytes that are fetched ahead. One row group per open file is always allowed.
            on_bad_shard: called with the ``ShardReadError`` of a file or row group that is damaged. It raises, as
                ``raise_error`` does; or it returns, as ``skip_with_warning`` does, and the rest of this file, or of
                this row group if they were listed, is skipped.
            retry: limits for retrying transient faults.
            storage_options: for the store, in fsspec's vocabulary.

        Yields:
            dict: ``"__key__"`` (str), ``"__url__"`` (str), and one value for each column.

        Raises:
            ImportError: if pyarrow is not installed.
            ShardReadError: for a file that is damaged, or no table.
            MissingMemberError: if a file has no such column.
            SampleError: if the filter cannot be applied to the columns; for a column named ``__url__``, or ``__key__`` that
                has no keys, unless ``columns`` renames it or leaves it out.
            ObjectChangedError: if a file was replaced after it was listed.

        Example:
            >>> import fsspec, pyarrow as pa, pyarrow.parquet as pq
            >>> with fsspec.open("memory://doc/pets.parquet", "wb") as file:
            ...     pq.write_table(pa.table({"name": ["cat", "dog"], "box": [[1, 2], [3, 4]], "n": [1, 2]}), file)
            >>> files = IterableWrapper(["memory://doc/pets.parquet"])
            >>> for sample in TableReader(files, columns=["name", "box"], filter=[("n", ">", 1)]):
            ...     print(sample["__key__"], sample["name"], sample["box"])
            doc/pets/000000001 dog [3 4]
        """

    def take(self, number: int) -> Take[T_co]:
        """Yield the first ``number`` items of a pass, of all ranks together (functional name: ``take``).

        After ``sharding_filter_rank``, each reader hands out its share of the number: the first items of its own part of
        the data. Shares differ by one at most, and by nothing if the number is divisible by that of readers. Readers are
        ranks x workers, or the streams of a loader: with ``num_streams`` the samples are the same in any number of ranks
        and workers. Before ``sharding_filter_rank``, or without it, the items are the first ``number`` of the chain, for
        every process: ``list_remote().take(8)`` are eight shards. Nothing is read after the last item.

        ``repeat_epochs().take(n)`` gives each rank exactly its share, whatever pipes between the two do, and has a length.
        After a source that ends, it is shorter where that has fewer.

        Args:
            number: of items, of all ranks together. After ``batch``, ``pack`` or ``bucket`` batches are counted.

        Yields:
            The same items.

        Raises:
            EmptyShareError: in each reader, if there are more readers than items to take.

        Example:
            >>> list(Take(IterableWrapper("abcd"), 3))
            ['a', 'b', 'c']
        """

    @overload
    def to_tuple(self: IterDataPipe[Sample], name_1: str, /) -> ToTuple[tuple[Any]]: ...
    @overload
    def to_tuple(self: IterDataPipe[Sample], name_1: str, name_2: str, /) -> ToTuple[tuple[Any, Any]]: ...
    @overload
    def to_tuple(
        self: IterDataPipe[Sample], name_1: str, name_2: str, name_3: str, /
    ) -> ToTuple[tuple[Any, Any, Any]]: ...
    @overload
    def to_tuple(
        self: IterDataPipe[Sample], name_1: str, name_2: str, name_3: str, name_4: str, /
    ) -> ToTuple[tuple[Any, Any, Any, Any]]: ...
    @overload
    def to_tuple(
        self: IterDataPipe[Sample], name_1: str, name_2: str, name_3: str, name_4: str, name_5: str, /
    ) -> ToTuple[tuple[Any, Any, Any, Any, Any]]: ...
    @overload
    def to_tuple(
        self: IterDataPipe[Sample], name_1: str, name_2: str, name_3: str, name_4: str, name_5: str, name_6: str, /
    ) -> ToTuple[tuple[Any, Any, Any, Any, Any, Any]]: ...
    @overload
    def to_tuple(self: IterDataPipe[Sample], name: str, /, *names: str) -> ToTuple:
        """Select members as a tuple (functional name: ``to_tuple``).

        Args:
            *names: one per element of the tuple: extensions separated by ``;``, in any case, of which the first that the
                sample has is selected. ``"__key__"`` and ``"__url__"`` are valid names too.

        Yields:
            tuple: the values, as long as ``names``.

        Raises:
            CollateError: for an image that goes to torch's default ``collate_fn``. A label in bytes is a warning there.
            MissingMemberError: names the sample, the requested members and the existing ones.

        Example:
            >>> samples = IterableWrapper([{"__key__": "1", "png": "image", "cls": 3}])
            >>> list(ToTuple(samples, "jpg;jpeg;png", "cls"))
            [('image', 3)]
        """

    def write_shards(
        self: IterDataPipe[Sample],
        url_template: str,
        *,
        max_shard_bytes: int = 268_435_456,
        max_shard_samples: int = 100_000,
        max_member_bytes: int = 4_294_967_296,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> WriteShards:
        """Write samples into tar shards while it is iterated (functional name: ``write_shards``).

        Equal samples give equal bytes. A shard is stored completely or not at all. It is uploaded while the next one is
        packed, and the manifest ``index.json`` is written after the last one. If iteration stops early, the complete shards
        remain, without a manifest. Memory is bounded as in ``ShardWriter``.

        Args:
            url_template: URL with one ``{shard}`` field in its base name, such as ``s3://b/train/{shard:06d}.tar``, or
                ``.tar.gz``, ``.tgz``, ``.tar.zst`` for compressed shards. The folder must not be used for anything else.
            max_shard_bytes: maximum size of a shard in bytes, with headers and padding, before compression. A single sample
                that is larger is written to a shard of its own.
            max_shard_samples: maximum number of samples in a shard.
            max_member_bytes: maximum size of a member; a larger one is an error, here and by default in readers.
            overwrite: replace all shards of this template. Otherwise an existing one is an error.
            storage_options: for the store, in fsspec's vocabulary.

        Yields:
            ShardInfo: URL, number of samples, bytes and MD5 of each shard, once it is stored, in order.

        Raises:
            ObjectExistsError: if a shard or a manifest exists already.
            ShardWriteError: for an invalid template or sample, if there is no sample, or in several DataLoader workers.
            EncodeError: for a member that has no encoding under its extension.

        Example:
            >>> samples = IterableWrapper([{"__key__": f"{i}", "cls": i} for i in range(3)])
            >>> pipe = WriteShards(samples, "memory://numbers/{shard}.tar", max_shard_samples=2, overwrite=True)
            >>> [(shard.url, shard.num_samples) for shard in pipe]
            [('memory://numbers/0.tar', 2), ('memory://numbers/1.tar', 1)]
        """

class IterableWrapper(IterDataPipe[T_co]):
    """Yield the items of an iterable: the start of a chain.

    Args:
        iterable: of items, such as a list of URLs.
        deepcopy: whether each pass iterates over a copy, if the iterable can be copied.
    """

    def __init__(self, iterable: Iterable[T_co], deepcopy: bool = True) -> None: ...
    def __len__(self) -> int: ...
