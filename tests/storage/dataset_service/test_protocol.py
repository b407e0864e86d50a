"""What a dataset service and its clients agree on."""

from __future__ import annotations

import base64
import hashlib
import os

from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.storage.dataset_service.protocol import digest_field, path_problem


@given(path=st.one_of(st.text(), st.lists(st.sampled_from(["..", ".", "", "a", "b\\c", "\0"])).map("/".join)))
def test_a_valid_path_stays_below_its_folder(path: str) -> None:
    """Joined to any folder, with the same spelling."""
    if path_problem(path) is None:
        assert os.path.normpath(f"/root/{path}") == f"/root/{path}"
        assert not set(path) & {"\0", "\n", "\\"}


@given(data=st.binary(max_size=20))
def test_a_digest_is_formatted_as_in_rfc_9530(data: bytes) -> None:
    """The algorithm, and base64 between colons."""
    found = hashlib.sha256(data)
    assert digest_field(found.hexdigest()) == f"sha-256=:{base64.b64encode(found.digest()).decode()}:"
