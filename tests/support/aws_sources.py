"""Each source of S3 credentials that companies use, configured as AWS documents it, with the servers of a test."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.servers.aws_credentials import CONTAINER_PATH, ROLE, SECRET, AwsCredentials

PROFILE = {"profile": "lab"}
POD_TOKEN = "token-of-the-pod"
LOGIN = "token-of-the-login"


class AwsPlace(NamedTuple):
    """Where a source is configured."""

    patch: pytest.MonkeyPatch
    folder: Path
    aws: AwsCredentials

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self.patch.setenv(name, value)

    def config(self, text: str) -> None:
        """Write ``~/.aws/config``."""
        path = self.folder / "config"
        path.write_text(text)
        self.set(AWS_CONFIG_FILE=str(path))


def role_of_profile(place: AwsPlace) -> dict[str, Any]:
    place.set(AWS_ENDPOINT_URL_STS=place.aws.url)
    keys = "aws_access_key_id = AKIASOURCE\naws_secret_access_key = CANARY-source\n"
    place.config(f"[profile base]\n{keys}[profile lab]\nrole_arn = {ROLE}\nsource_profile = base\nexternal_id = x1\n")
    return PROFILE


def web_identity(place: AwsPlace) -> dict[str, Any]:
    token = place.folder / "identity"
    token.write_text(POD_TOKEN)
    place.set(AWS_ENDPOINT_URL_STS=place.aws.url, AWS_ROLE_ARN=ROLE, AWS_WEB_IDENTITY_TOKEN_FILE=str(token))
    return {}


def pod_identity(place: AwsPlace) -> dict[str, Any]:
    token = place.folder / "eks-token"
    token.write_text(POD_TOKEN)
    place.set(
        AWS_CONTAINER_CREDENTIALS_FULL_URI=place.aws.url + CONTAINER_PATH,
        AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(token),
    )
    return {}


def machine(place: AwsPlace) -> dict[str, Any]:
    place.patch.delenv("AWS_EC2_METADATA_DISABLED")
    place.set(AWS_EC2_METADATA_SERVICE_ENDPOINT=place.aws.url)
    return {}


def sso(place: AwsPlace) -> dict[str, Any]:
    write_login(place, expires_in_s=8 * 3600)
    place.set(AWS_ENDPOINT_URL_SSO=place.aws.url, AWS_ENDPOINT_URL_SSO_OIDC=place.aws.url)
    place.config(
        "[sso-session corp]\nsso_start_url = https://corp.awsapps.com/start\nsso_region = eu-west-1\n"
        "[profile lab]\nsso_session = corp\nsso_account_id = 123456789012\nsso_role_name = trainer\n"
    )
    return PROFILE


def write_login(place: AwsPlace, *, expires_in_s: float, **more: str) -> None:
    """Write what ``aws sso login`` stores."""
    cache = place.folder / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    for owner in ("tokens.SSOTokenProvider", "credentials.SSOProvider"):  # which expand ~ when they are imported
        place.patch.setattr(f"botocore.{owner}._SSO_TOKEN_CACHE_DIR", str(cache))
    expires = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=expires_in_s)
    about = {"accessToken": LOGIN, "expiresAt": expires.strftime("%Y-%m-%dT%H:%M:%SZ"), "region": "eu-west-1", **more}
    (cache / f"{hashlib.sha1(b'corp').hexdigest()}.json").write_text(json.dumps(about))


def process(place: AwsPlace) -> dict[str, Any]:
    """A command that asks the servers of the test, so that each call gives another key."""
    code = (
        "import json, sys, urllib.request\n"
        f"answer = json.load(urllib.request.urlopen({place.aws.url + CONTAINER_PATH!r}))\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': answer['AccessKeyId'], 'SecretAccessKey': "
        "answer['SecretAccessKey'], 'SessionToken': answer['Token'], 'Expiration': answer['Expiration']}))\n"
    )
    write_process(place, code)
    return PROFILE


def write_process(place: AwsPlace, code: str) -> None:
    program = place.folder / "helper.py"
    program.write_text(code)
    place.config(f"[profile lab]\ncredential_process = {sys.executable} -S {program}\n")


SOURCES: dict[str, Callable[[AwsPlace], dict[str, Any]]] = {
    "role of a profile": role_of_profile,
    "web identity": web_identity,
    "pod identity": pod_identity,
    "machine": machine,
    "SSO": sso,
    "process": process,
}
SECRETS = (SECRET, "CANARY", POD_TOKEN, LOGIN)
