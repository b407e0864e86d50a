"""Guess the key that is so many pages ahead in a listing, from keys that were listed.

A guess decides where a concurrent listing begins, never what is listed: a wrong one costs a request.
"""

from __future__ import annotations

import string
from collections.abc import Iterable

_MAX_CHARACTERS = 8  # of a number, after the first one that differs
_ALPHABETS = (
    string.digits,
    string.digits + "abcdef",
    string.digits + "ABCDEF",
    string.ascii_lowercase,
    string.ascii_uppercase,
    string.digits + string.ascii_lowercase,
    string.digits + string.ascii_uppercase,
    string.digits + string.ascii_uppercase + string.ascii_lowercase,
)


def key_ahead(first: str, last: str, times: float, samples: Iterable[str], root: str) -> str | None:
    """Return a key as many times the distance from ``first`` to ``last`` behind ``last``.

    The first path segment in which both differ is taken as a number. Its digits at each place are those of the alphabet
    that is seen there: decimal, hexadecimal, letters. A number that is too large means that the folder has no more.

    Args:
        first: of some keys that were listed.
        last: of these.
        times: the distance.
        samples: more of these keys.
        root: the prefix that all keys have.

    Returns:
        A path behind ``last``, maybe of no object; ``None`` if it is behind all keys that begin with ``root``.

    >>> key_ahead("a/0100.jpg", "a/0199.jpg", 8, ["a/0123.jpg"], "a/")
    'a/0991.jpg'
    >>> key_ahead("a/03/x1", "a/03/x9", 8, [], "a/")
    'a/030'
    """
    at = next((place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    start = max(last.rfind("/", 0, at) + 1, len(root))
    end = at + _MAX_CHARACTERS
    folder = last[:start]
    known = [key[start:end] for key in (first, last, *samples) if key.startswith(folder)]
    seen = [{key[place] for key in known if place < len(key)} for place in range(end - start)]
    varying = set().union(*(characters for characters in seen if len(characters) > 1))
    alphabets = [_alphabet(characters, has_letters=not varying.isdisjoint(string.ascii_letters)) for characters in seen]
    while alphabets and not alphabets[-1]:
        alphabets.pop()
    low, high, limit = 0, 0, 1
    for place, alphabet in enumerate(alphabets):
        low = low * len(alphabet) + _digit(first[start:], place, alphabet)
        high = high * len(alphabet) + _digit(last[start:], place, alphabet)
        limit *= len(alphabet)
    number = high + max(1, int(times * (high - low)))
    if number >= limit:
        if folder == root or not folder.endswith("/"):
            return None
        return f"{folder[:-1]}0"  # sorts after all that is in the folder
    characters = []
    for alphabet in reversed(alphabets):
        number, digit = divmod(number, len(alphabet))
        characters.append(alphabet[digit])
    ahead = folder + "".join(reversed(characters)) + last[start + len(alphabets) :]
    return ahead if ahead > last else None


def _digit(text: str, place: int, alphabet: str) -> int:
    return max(0, alphabet.find(text[place])) if place < len(text) else 0


def _alphabet(characters: set[str], *, has_letters: bool) -> str:
    """Return the characters to expect at a place, sorted.

    Args:
        characters: that were seen there.
        has_letters: whether letters vary at some place.
    """
    if not characters:
        return ""
    if len(characters) == 1 and not characters <= set(string.ascii_letters if has_letters else "") | set(string.digits):
        return "".join(characters)
    alphabet = next((one for one in _ALPHABETS if characters <= set(one)), None)
    return "".join(sorted(characters)) if alphabet is None else alphabet
