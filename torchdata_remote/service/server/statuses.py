"""What the service's statuses mean, in the words of its description."""

from __future__ import annotations

PROBLEMS = {
    400: "something in the request is not as it should be",
    401: "the token is missing",
    403: "a link, or another site's page",
    404: "there is no such thing",
    408: "the body stood still",
    409: "something is in the way",
    412: "a condition does not hold",
    413: "too large",
    415: "the body is of another type",
    416: "there are no such bytes",
    421: "a service without a token answers to localhost only",
    502: "the store behind the service refused",
    503: "the store behind the service cannot be reached",
    507: "the disk is full",
}
