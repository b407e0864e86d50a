"""States: what they hold, which are refused and why, and how those of ranks become one."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import torchdata_remote as tdr
from tests.support.loaders import edited, names_of, said, through_json
from torchdata_remote.errors import EmptyShareError, StateError
from torchdata_remote.testing import write_small_shards

SECRETS = {"key": "AKIDEXAMPLE", "secret": "wJalrXUtnFEMI", "token": "FQoGZXIvYXdzE"}
CHAIN_OF_NAMES = ["IterableWrapper()", "ShuffleShards(seed=1)", "ShardingFilterRank()"]


def stopped(data: tdr.Resumable, num_items: int = 1) -> dict[str, Any]:
    """The state after some items, through JSON."""
    list(islice(data, num_items))
    state: dict[str, Any] = through_json(data.state_dict())
    return state


def slots(num_slots: int, num_streams: int, num_items: int = 3, epoch: int = 0) -> list[dict[str, Any]]:
    """The states of all slots of a world, which have handed out so many items."""
    states = []
    for slot in range(num_slots):
        data = tdr.Resumable(names_of(world=tdr.World(slot, num_slots)), num_streams=num_streams)
        data.set_epoch(epoch)
        states.append(stopped(data, num_items))
    return states


# What a state is


def test_a_state_has_a_position_for_each_stream_and_describes_the_chain() -> None:
    data = tdr.Resumable(names_of(8), num_streams=2)
    state = stopped(data, 3)
    assert list(state) == ["version", "chain", "listing", "epoch", "num_streams", "streams", "digest"]
    assert (state["version"], state["epoch"], state["num_streams"]) == (4, 0, 2)
    assert state["chain"][:3] == CHAIN_OF_NAMES
    assert [[number, at["passed"]] for number, at in state["streams"]] == [[0, 2], [1, 1]]
    assert [listing["num_urls"] for listing in state["listing"]] == [8]


def test_the_state_before_a_pass_is_its_beginning_and_after_it_its_end() -> None:
    """A loaded state stays until the next pass."""
    data, whole = tdr.Resumable(names_of(6), num_streams=2), tdr.Resumable(names_of(6), num_streams=2)
    epochs = [list(whole), list(whole)]
    before = data.state_dict()
    assert (before["epoch"], before["listing"], before["streams"]) == (0, None, [[0, None], [1, None]])
    assert list(data) == epochs[0]
    after = through_json(data.state_dict())
    assert (after["epoch"], after["streams"]) == (0, [[0, "ended"], [1, "ended"]])
    again = tdr.Resumable(names_of(6))
    again.load_state_dict(after)
    assert again.state_dict() == after
    assert [list(again), list(again)] == [[], epochs[1]]
    again.load_state_dict(before)
    assert list(again) == epochs[0]


def test_set_epoch_drops_a_loaded_state_of_another_epoch_only() -> None:
    data, whole = tdr.Resumable(names_of()), tdr.Resumable(names_of())
    epochs = [list(whole) for _ in range(4)]
    data.set_epoch(2)
    state = stopped(data, 7)
    again = tdr.Resumable(names_of())
    again.load_state_dict(state)
    again.set_epoch(2)
    assert again.next_epoch == 2
    assert [list(again), list(again)] == [epochs[2][7:], epochs[3]]
    again.load_state_dict(state)
    again.set_epoch(1)
    assert list(again) == epochs[1]


def test_set_epoch_of_the_pass_that_has_begun_keeps_its_state() -> None:
    """As Accelerate calls it, which asks its loader for a state first, and so begins a pass."""
    data, again = tdr.Resumable(names_of(6)), tdr.Resumable(names_of(6))
    items = iter(data)
    data.set_epoch(0)
    first = [next(items), next(items)]
    again.load_state_dict(data.state_dict())
    assert [*first, *again] == list(tdr.Resumable(names_of(6)))


def fails_at_17(number: str) -> str:
    if number == "00017":
        raise ZeroDivisionError("on purpose")
    return number


@pytest.mark.parametrize("num_streams", [1, 3])
def test_a_state_after_an_error_is_refused_and_the_one_before_it_resumes(num_streams: int) -> None:
    """The refusal names the error; the next pass has a state again."""
    data = tdr.Resumable(names_of().map(fails_at_17), num_streams=num_streams)
    head: list[str] = []
    states: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        head.extend(item for item in data if states.append(data.state_dict()) is None)  # type: ignore[func-returns-value]
    with pytest.raises(StateError, match=r"ended by an error.* saved before it\. \(ZeroDivisionError: on purpose"):
        data.state_dict()
    again = tdr.Resumable(names_of().map(fails_at_17), num_streams=num_streams)
    again.load_state_dict(states[-1])
    with pytest.raises(ZeroDivisionError):
        list(again)
    next(iter(data))
    assert data.state_dict()["epoch"] == 1
    assert sorted(head) != sorted(tdr.Resumable(names_of()))


def test_a_copy_in_another_process_has_the_loaded_state_or_starts_the_next_pass() -> None:
    data = tdr.Resumable(names_of(), num_streams=2)
    state = stopped(data, 5)
    sent: tdr.Resumable = pickle.loads(pickle.dumps(data))
    assert (sent.state_dict()["streams"], sent.next_epoch) == ([[0, None], [1, None]], 1)
    assert list(sent) == list(data)
    data.load_state_dict(state)
    sent = pickle.loads(pickle.dumps(data))
    assert sent.state_dict() == state
    assert list(sent) == list(tdr.Resumable(names_of(), num_streams=2))[5:]


def test_a_state_is_small_however_large_the_data_is() -> None:
    """100,000 shards and blocks of 10,000 samples in 8 streams of a worker: below 4 kB, without samples or URLs."""
    urls = tdr.IterableWrapper([f"s3://my-bucket/train/{n:06d}.tar" for n in range(100_000)], deepcopy=False)
    pipe = urls.map(str).shuffle_shards(seed=3).sharding_filter_rank().shuffle_samples(buffer_size=10_000, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        state = stopped(tdr.Resumable(pipe.batch(64), num_streams=8), 400)
    assert len(json.dumps(state)) < 4_000
    assert "my-bucket" not in json.dumps(state)
    assert state["listing"][0]["num_urls"] == 100_000


def test_a_state_holds_no_credentials_and_no_urls(memory_folder: str) -> None:
    """Neither storage options nor signatures, in a chain of all kinds of pipes."""
    write_small_shards(memory_folder, num_shards=4, samples_per_shard=4)
    folder = tdr.IterableWrapper([f"{memory_folder}/{{000000..000003}}.tar"])
    pipe = folder.list_remote().shuffle_shards().sharding_filter_rank().async_prefetch(storage_options=SECRETS)
    chain = pipe.shard_tar_reader(interleave=2, storage_options=SECRETS).shuffle_samples(buffer_size=3)
    data = tdr.Resumable(chain, num_streams=2)
    for _ in islice(data, 5):
        state = data.state_dict()
        assert through_json(state) == state
        shown = json.dumps(state)
        assert not any(secret in shown for secret in SECRETS.values())
        assert memory_folder.removeprefix("memory://") not in shown
    signed = tdr.IterableWrapper([f"https://host/{number}?X-Amz-Signature=abc" for number in range(4)])
    assert "abc" not in json.dumps(stopped(tdr.Resumable(signed.sharding_filter_rank().map(str))))


# Streams


def test_more_slots_than_streams_are_refused() -> None:
    """The error names slots, ranks, workers and streams. Those of a state are divided."""
    world = tdr.World(1, 2, 1, 3)
    message = r"6 slots \(2 ranks x 3 workers\) for 4 streams: use at most 4 slots, .* num_streams=6"
    for read in (
        lambda: iter(tdr.Resumable(names_of(world=world), num_streams=4)),
        tdr.Resumable(names_of(world=world), num_streams=4).state_dict,
    ):
        with pytest.raises(StateError, match=message):
            read()


def test_fewer_shards_than_streams_are_refused_without_sample_counts() -> None:
    for slot in range(2):
        with pytest.raises(EmptyShareError, match="3 shards for 4 streams: "):
            list(tdr.Resumable(names_of(3, tdr.World(slot, 2)), num_streams=4))
    with pytest.raises(ValueError, match="at least 1 or None, got 0"):
        tdr.Resumable(names_of(), num_streams=0)


def test_streams_that_ranks_cannot_share_equally_are_refused_for_equal_ranks() -> None:
    write_small_shards("memory://unequal-streams", num_shards=4, samples_per_shard=5)
    pipe = tdr.stream_shards("memory://unequal-streams/index.json", world=tdr.World(0, 3)).equalize_ranks()
    with pytest.raises(StateError, match=r"4 streams over 3 ranks: .* equalize_ranks does\. .*num_streams=6"):
        iter(tdr.Resumable(pipe, num_streams=4))
    assert list(tdr.Resumable(pipe, num_streams=6))


def test_large_shuffle_buffers_of_several_streams_are_warned_of_before_they_fill() -> None:
    """By samples, or by bytes where these are bounded; the warning has the figures."""

    def begin(buffer_size: int, max_buffer_bytes: int | None, num_streams: int, world: Any = None) -> None:
        pipe = names_of(buffer_size=2, world=world)
        pipe = pipe.shuffle_samples(buffer_size=buffer_size, max_buffer_bytes=max_buffer_bytes)
        next(iter(tdr.Resumable(pipe, num_streams=num_streams)))

    with pytest.warns(RuntimeWarning, match=r"6 streams in this process x buffer_size=10,000: 60,000 samples"):
        begin(10_000, None, 6)
    with pytest.warns(RuntimeWarning, match=r"5 streams in this process x 1,073,741,824 bytes .* up to 5 GiB"):
        begin(100_000, 1 << 30, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        begin(100_000, None, 1)
        begin(10_000, None, 5)
        begin(10_000, None, 6, tdr.World(0, 2))
        begin(100_000, 1 << 30, 4)


# States that are refused


@pytest.mark.parametrize("odd", [b"state", "state", None, [None], {"_snapshot": {}, "_steps_since_snapshot": 3}])
def test_what_is_no_state_is_refused_by_its_type(odd: Any) -> None:
    for loader in (tdr.stateful_loader(names_of()), tdr.thread_loader(names_of())):
        with pytest.raises(StateError, match="Expected a state"):
            loader.load_state_dict(odd)


@pytest.mark.parametrize("all_ranks", ['{"version": 2, "cha', None, 5, "[]", "{}"])
def test_a_damaged_state_of_all_ranks_is_refused(all_ranks: object) -> None:
    """As after a full disk."""
    with pytest.raises(StateError, match=r"damaged.*all_ranks|Expected a state with"):
        tdr.stateful_loader(names_of()).load_state_dict({"all_ranks": all_ranks})


def test_an_error_shows_a_part_of_the_refused_value() -> None:
    with pytest.raises(StateError) as caught:
        tdr.Resumable(names_of()).load_state_dict({"x": "x" * 10**6})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("version", [0, 1, 2, 3, 5, "4", None])
def test_a_state_of_another_version_is_refused_and_says_how_to_go_on(version: Any) -> None:
    data = tdr.Resumable(names_of())
    message = rf"has version {version!r}, this package reads version 4\. .*set_epoch\(\)"
    for load in (data.load_state_dict, lambda other: tdr.merge_states([other])):
        for other in ({**data.state_dict(), "version": version}, {"version": version}):
            with pytest.raises(StateError, match=message):
                load(other)


def shards(**options: Any) -> Any:
    return tdr.stream_shards("memory://never-read/", **options).to_tuple("__key__")


BUFFER = "ShuffleSamples: buffer_size (shuffle_buffer_size= of stream_shards)"
BYTES = "ShuffleSamples: max_buffer_bytes (shuffle_buffer_bytes= of stream_shards)"
OPTIONS: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"shuffle_buffer_size": 30}, {"shuffle_buffer_size": 31}, [f"{BUFFER} was 30, is 31"]),
    (
        {"shuffle_buffer_bytes": 1_000},
        {"shuffle_buffer_bytes": 2_000, "interleave": 4},
        ["ShardTarReader: interleave was 16, is 4", f"{BYTES} was 1000, is 2000"],
    ),
    ({}, {"seed": 3}, ["ShuffleShards: seed was 0, is 3", "ShuffleSamples: seed was 0, is 3"]),
]


def test_a_state_of_other_pipes_or_streams_shows_both() -> None:
    state = tdr.Resumable(names_of(), num_streams=4).state_dict()
    for other in (names_of().filter(bool), tdr.IterableWrapper(["x"]).file_reader()):
        with pytest.raises(StateError, match=r"The state has the chain \[.*\], here it is \[.*\]\. Build the chain as"):
            tdr.Resumable(other).load_state_dict(state)
    data, whole = tdr.Resumable(names_of()), tdr.Resumable(names_of(), num_streams=4)
    data.load_state_dict(state)  # none was passed: the state's number is used
    assert [list(data), list(data)] == [list(whole), list(whole)]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_state_that_only_workers_of_a_plain_loader_have_is_refused(method: str) -> None:
    """It would be the beginning, so that a resumed training would silently read everything again."""
    data = tdr.Resumable(names_of(12), num_streams=4)
    for twin in (pickle.loads(pickle.dumps(data)), data):
        assert twin.state_dict()["epoch"] == 0
    loader: Any = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context=method)
    assert len(list(loader)) == 12
    with pytest.raises(StateError, match="stateful_loader"):
        data.state_dict()


# Merging


@given(
    order=st.permutations(range(4)),
    stops=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    num_streams=st.integers(4, 9),
)
def test_states_of_all_slots_are_merged_to_one_in_any_order(
    order: list[int], stops: list[int], num_streams: int
) -> None:
    states = []
    for slot, stop in enumerate(stops):
        data = tdr.Resumable(names_of(world=tdr.World(slot, 4)), num_streams=num_streams)
        states.append(stopped(data, stop))
    merged = tdr.merge_states(states[number] for number in order)
    assert merged["streams"] == sorted((row for state in states for row in state["streams"]), key=lambda row: row[0])
    assert [number for number, _ in merged["streams"]] == list(range(num_streams))
    assert merged == tdr.merge_states([tdr.merge_states(states[:2]), *states[2:]])
    assert merged["listing"] == next((state["listing"] for state in states if state["listing"]), None)


def test_states_that_cannot_be_of_one_training_are_not_merged() -> None:
    """Of other chains, options, numbers of streams, listings or steps: both are named."""
    first, second = slots(2, 4)
    listing = second["listing"]
    refused: list[tuple[list[Any], str]] = [
        ([], "no state to merge"),
        ([first, second, second], "Stream 1 is in two of the states. Merge each rank's state once, of one step"),
        ([first, edited(second, num_streams=5)], "the number of streams 5, here it is 4. Merge states of one training"),
        (
            [first, edited(second, chain=["A()"])],
            r"The state has the chain \['A\(\)'\], here it is .* one training only",
        ),
        (
            [first, edited(second, chain=[pipe.replace("seed=1", "seed=2") for pipe in second["chain"]])],
            r"ShuffleShards: seed is 1, and in another state 2\. Merge",
        ),
        ([first, edited(second, listing=[{**listing[0], "num_urls": 4}])], "40 objects and 4.* one training only"),
        ([first, edited(second, listing=[])], "1 listings, here are 0"),
    ]
    for states, message in refused:
        with pytest.raises(StateError, match=message):
            tdr.merge_states(states)
    with pytest.raises(StateError, match=r"Expected a list of states, .* got dict\. Write \[state\]\."):
        tdr.merge_states(first)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="Expected a list of states, one of each rank, got str"):
        tdr.merge_states("states")  # type: ignore[arg-type]


def test_a_rank_at_the_start_of_the_next_epoch_is_merged_as_ended() -> None:
    behind, _ = slots(2, 4)
    ahead = edited(tdr.Resumable(names_of(world=tdr.World(1, 2)), num_streams=4).state_dict(), epoch=1)
    for states in ([behind, ahead], [ahead, behind]):
        merged = tdr.merge_states(states)
        assert merged["epoch"] == 0
        assert merged["streams"] == [behind["streams"][0], [1, "ended"], behind["streams"][1], [3, "ended"]]


def test_states_of_epochs_that_cannot_coincide_are_refused() -> None:
    behind, ahead = slots(2, 4)
    ended = [[number, "ended"] for number, _ in ahead["streams"]]
    fresh = [[number, None] for number, _ in ahead["streams"]]
    for epoch, streams in ((1, ahead["streams"]), (1, ended), (2, fresh)):
        with pytest.raises(StateError, match=rf"in epoch 0, .* begun epoch {epoch}.*equalize_ranks"):
            tdr.merge_states([edited(ahead, epoch=epoch, streams=streams), behind])


# Listings, compared by what both sides know of each object

MD5 = "0123456789abcdef" * 2
WORDS = {"size": "bytes", "etag": "etag", "num_samples": "samples", "md5": "MD5"}


def shard(number: int, **known: Any) -> tdr.RemoteUrl:
    return tdr.RemoteUrl(f"s3://b/{number:06d}.tar", **known)


def listing(num_urls: int, *, has_md5: bool = True) -> list[tdr.RemoteUrl]:
    """An etag is believed where no MD5 is known."""
    return [
        shard(n, size=512 * n, etag=f'"{n:x}"', num_samples=n % 7, md5=f"{n:032x}" if has_md5 else None)
        for n in range(num_urls)
    ]


def changed(url: tdr.RemoteUrl, **fields: Any) -> tdr.RemoteUrl:
    return tdr.RemoteUrl(str(url), **{**{name: getattr(url, name) for name in WORDS}, **fields})


def other_value(url: tdr.RemoteUrl, field: str) -> tdr.RemoteUrl:
    return changed(
        url, **{field: {"size": (url.size or 0) + 512, "etag": '"other"', "num_samples": 9, "md5": MD5}[field]}
    )


def difference_of(before: list[Any], after: list[Any]) -> str | None:
    """What a resumed pass says of another listing."""
    state, data = (tdr.Resumable(tdr.IterableWrapper(urls).sharding_filter_rank()) for urls in (before, after))
    data.load_state_dict(stopped(state))
    message = said(lambda: next(iter(data), None))
    advice = r"Objects were added, removed or replaced since the state was saved: restore them, or begin anew\."
    found = re.fullmatch(rf"The listing of the state is another one than here: (.*)\. {advice}", message)
    assert found or not message, message
    return found[1] if found else None


@given(num_urls=st.integers(1, 70), field=st.sampled_from(list(WORDS)), data=st.data())
def test_any_number_of_replaced_objects_is_detected(num_urls: int, field: str, data: st.DataObject) -> None:
    """Also if they exchange sizes or versions, so that the sum is equal; the field that differs is named."""
    before = listing(num_urls, has_md5=field != "etag")
    places = data.draw(st.lists(st.integers(0, num_urls - 1), min_size=1, max_size=num_urls, unique=True))
    after = list(before)
    for place, other in zip(places, [*places[1:], places[0]], strict=True):
        after[place] = changed(before[place], **{field: getattr(before[other], field)})
    if len(places) == 1:
        after[places[0]] = other_value(before[places[0]], field)
    same = [getattr(url, field) for url in before] == [getattr(url, field) for url in after]
    message = difference_of(before, after)
    assert message is None if same else WORDS[field] in str(message)


WHOLE = shard(0, size=7, etag='"a"', num_samples=3, md5=MD5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (WHOLE, shard(0, size=7)),
        (shard(0, size=7, etag='"a"'), shard(0, size=7, num_samples=3, md5=MD5)),
        (shard(0, etag='"a"'), shard(0, etag="a")),
        (shard(0, etag='W/"a"'), shard(0, etag='"a"')),
        (shard(0, etag='"a"', md5=MD5), shard(0, etag='"a-2"', md5=MD5.upper())),
        (shard(0, md5="00"), shard(0, md5="")),
        (tdr.RemoteUrl("file:///gone/0.tar", etag="1-2-3"), tdr.RemoteUrl("file:///gone/0.tar", etag="4-2-5")),
        ("https://host/0.tar?signature=a", "https://host/0.tar?signature=b"),
    ],
)
def test_what_one_side_does_not_know_is_no_difference(first: Any, second: Any) -> None:
    """As of a listing and a manifest, LIST and GET, a bucket or folder and its copy, URLs that were signed anew."""
    for around in ([], listing(40)[1:]):
        assert difference_of([first, *around], [second, *around]) is None
        assert difference_of([second, *around], [first, *around]) is None


def test_added_removed_renamed_and_moved_objects_are_refused() -> None:
    """With both numbers, or both values; a new or a replaced one of up to 32 is named."""
    few, many = listing(4), listing(40)
    assert difference_of(few, [*few, shard(7)]) == "4 objects and 5; s3://b/000007.tar was added"
    assert difference_of(few, few[1:]) == "4 objects and 3"
    assert difference_of(many, [*many, shard(70)]) == "40 objects and 41"
    assert difference_of(few, [*few[:3], shard(7)]) == "s3://b/000007.tar differs in its URL"
    assert difference_of(few, [*few[:3], other_value(few[3], "size")]) == "s3://b/000003.tar has 1,536 bytes and 2,048"
    assert difference_of([], few[:1]) == "0 objects and 1; s3://b/000000.tar was added"
    assert difference_of(few, few[::-1]) == "the same objects in another order, which changes the shares"
    assert difference_of([1, None, "\udcff"], [1, None, "\udcff"]) is None
    assert difference_of([1], [2]) == "2 differs in its URL"


def test_a_state_whose_listing_is_none_resumes_on_other_objects() -> None:
    """Also one of all ranks."""
    before = tdr.stateful_loader(names_of(), batch_size=4, state_of_all_ranks=True)
    next(iter(before))
    after = tdr.stateful_loader(names_of(41), batch_size=4)
    after.load_state_dict(before.state_dict())
    with pytest.raises(StateError, match="40 objects and 41"):
        list(after)
    after.load_state_dict({**before.state_dict(), "listing": None})
    assert list(after)


@pytest.mark.parametrize(
    "damage",
    [
        {"fields": 7},
        *({"fields": {"size": size}} for size in ("short", "?" * 24, [1, 2, 3])),
        {"order": None},
        {"num_urls": None},
    ],
)
def test_a_damaged_fingerprint_is_refused(damage: dict[str, Any]) -> None:
    data = tdr.Resumable(tdr.IterableWrapper(listing(40)).sharding_filter_rank())
    sound = stopped(data)
    entries = {**sound["listing"][0], **damage}
    state = edited(sound, listing=[{name: value for name, value in entries.items() if value is not None}])
    data.load_state_dict(state)
    with pytest.raises(StateError, match=r"damaged.*earlier state"):
        next(iter(data))
    with pytest.raises(StateError, match="damaged"):
        tdr.merge_states([state, edited(sound, streams=[])])
