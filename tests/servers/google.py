"""Google's servers of access tokens, and a storage that accepts them: each request is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.servers.scripted import Request, Response, scripted

DATA = b"hello"
EMAIL = "reader@my-project.iam.gserviceaccount.com"
_LISTING = b"<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"


@dataclass
class Google:
    """The servers, at one address.

    Args:
        url: of all of them.
        requests: so far.
        refused: tokens that the storage answers with 401.
        expires_in_s: of tokens that are issued.
        status: with which the servers of tokens answer.
        storage_status: with which the storage answers.
        code: of its error.
    """

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    expires_in_s: int = 3600
    status: int = 200
    storage_status: int = 200
    code: str = ""

    def of_tokens(self) -> list[Request]:
        return [one for one in self.requests if not one.target.startswith("/bucket")]

    def of_storage(self) -> list[Request]:
        return [one for one in self.requests if one.target.startswith("/bucket")]

    def tokens_sent(self) -> list[str | None]:
        return [one.headers.get("authorization") for one in self.of_storage()]

    def respond(self, request: Request) -> Response:
        if not request.target.startswith("/bucket"):
            about: dict[str, str | int] = {"error": "invalid_grant", "error_description": "no"}
            if self.status == 200:
                about = {"access_token": f"token-{len(self.of_tokens())}", "expires_in": self.expires_in_s}
                about |= {"token_type": "Bearer", "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
            return Response(self.status, json.dumps(about).encode(), {"Content-Type": "application/json"})
        if request.headers.get("authorization", "").removeprefix("Bearer ") in self.refused:
            return Response.of_error(401, "AuthenticationRequired")
        if self.storage_status != 200:
            return Response.of_error(self.storage_status, self.code)
        if request.method == "PUT":
            return Response(200, b"", {"ETag": '"1"'})
        if "list-type" in request.target:
            return Response(200, _LISTING, {"Content-Type": "application/xml"})
        return Response.of_object(request, DATA)


@contextmanager
def google_servers() -> Iterator[Google]:
    """Run the servers until the block ends."""
    google = Google()
    with scripted(google.respond) as server:
        google.url, google.requests = server.url, server.requests
        yield google
