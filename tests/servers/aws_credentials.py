"""AWS's servers of credentials, at one address: STS, the portal of SSO, containers and the metadata of a machine.

Each answers as its page says:

- AssumeRole: https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRole.html
- AssumeRoleWithWebIdentity: https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
- GetRoleCredentials: https://docs.aws.amazon.com/singlesignon/latest/PortalAPIReference/API_GetRoleCredentials.html
- CreateToken: https://docs.aws.amazon.com/singlesignon/latest/OIDCAPIReference/API_CreateToken.html
- containers: https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html
- IMDSv2: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.recording_s3 import Recorded, RecordingS3, Response, recording_s3

ROLE = "arn:aws:iam::123456789012:role/trainer"
SECRET = "CANARY-secret"
METADATA_TOKEN = "metadata-token=="
ROLE_OF_MACHINE = "trainer"
CONTAINER_PATH = "/v1/credentials"
_ROLES = "/latest/meta-data/iam/security-credentials/"
_JSON = {"Content-Type": "application/json"}


@dataclass
class AwsCredentials:
    """The running servers. The keys that they issue are ``ASIA1``, ``ASIA2`` and so on.

    Args:
        server: receives the requests.
        expires_in_s: of credentials that are issued.
        failure: the answer to all requests, instead.
        num_issued: credentials so far.
    """

    server: RecordingS3
    expires_in_s: float = 3600
    failure: Response | None = None
    num_issued: int = 0

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def requests(self) -> list[Recorded]:
        return self.server.requests

    def answer(self, request: Recorded) -> Response:
        if self.failure is not None:
            return self.failure
        path = request.path.partition("?")[0]
        if path.startswith("/latest/"):
            return self._metadata(request, path)
        if path == CONTAINER_PATH:
            return 200, _JSON, json.dumps(self._of_container()).encode()
        if path == "/federation/credentials":
            return 200, _JSON, json.dumps({"roleCredentials": self._of_sso()}).encode()
        if path == "/token":
            renewed = {"accessToken": "renewed-login", "expiresIn": 28800, "tokenType": "Bearer", "refreshToken": "r2"}
            return 200, _JSON, json.dumps(renewed).encode()
        assert (request.method, path) == ("POST", "/"), request
        return 200, {"Content-Type": "text/xml"}, self._of_sts(request.form["Action"])

    def _metadata(self, request: Recorded, path: str) -> Response:
        if (request.method, path) == ("PUT", "/latest/api/token"):
            return 200, {"Content-Type": "text/plain"}, METADATA_TOKEN.encode()
        if request.headers.get("x-aws-ec2-metadata-token") != METADATA_TOKEN:
            return 401, {}, b""  # a machine that requires IMDSv2
        if path == _ROLES:
            return 200, {"Content-Type": "text/plain"}, ROLE_OF_MACHINE.encode()
        assert path == _ROLES + ROLE_OF_MACHINE, request
        about = {"Code": "Success", "LastUpdated": "2026-01-01T00:00:00Z", "Type": "AWS-HMAC"}
        return 200, {"Content-Type": "text/plain"}, json.dumps({**about, **self._of_container()}).encode()

    def issue(self) -> tuple[str, str, dt.datetime]:
        """Return a new key, its session token and when they expire; the secret is ``SECRET``."""
        self.num_issued += 1
        expires = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=self.expires_in_s)
        return f"ASIA{self.num_issued}", f"token-{self.num_issued}", expires

    def _of_container(self) -> dict[str, Any]:
        key, token, expires = self.issue()
        return {"AccessKeyId": key, "SecretAccessKey": SECRET, "Token": token, "Expiration": _iso(expires)}

    def _of_sso(self) -> dict[str, Any]:
        key, token, expires = self.issue()
        about = {"accessKeyId": key, "secretAccessKey": SECRET, "sessionToken": token}
        return {**about, "expiration": int(expires.timestamp() * 1000)}

    def _of_sts(self, action: str) -> bytes:
        key, token, expires = self.issue()
        return (
            f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result><Credentials>'
            f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>{token}"
            f"</SessionToken><Expiration>{_iso(expires)}</Expiration></Credentials><AssumedRoleUser><Arn>"
            "arn:aws:sts::123456789012:assumed-role/trainer/session</Arn><AssumedRoleId>AROA:session</AssumedRoleId>"
            f"</AssumedRoleUser></{action}Result><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata>"
            f"</{action}Response>"
        ).encode()


def sts_error(status: int, code: str, message: str) -> Response:
    """Make an error of STS.

    https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html
    """
    text = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>"
    return (
        status,
        {"Content-Type": "text/xml"},
        f"<ErrorResponse>{text}<RequestId>1</RequestId></ErrorResponse>".encode(),
    )


def _iso(when: dt.datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def aws_credentials(folder: Path) -> Iterator[AwsCredentials]:
    """Run the servers until the block ends.

    Args:
        folder: for the certificate of their authority.
    """
    with recording_s3(folder) as server:
        running = AwsCredentials(server)
        server.answer = running.answer
        yield running
