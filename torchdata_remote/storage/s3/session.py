"""A session of botocore for the client that sends what obstore does not, with the credentials of the bucket."""

from __future__ import annotations

from typing import Any

from ..clouds.aws_credentials import aws_session
from ..credentials import Credentials
from .settings import S3Settings


def session_of(credentials: Credentials, settings: S3Settings, url: str) -> Any:
    """Make a session whose clients use these credentials."""
    session = aws_session(settings.profile, url)
    session.register_component("credential_provider", _Provider(credentials))
    return session


class _Provider:
    method = "torchdata_remote"

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def load_credentials(self) -> Any:
        return self

    def get_frozen_credentials(self) -> Any:
        from botocore.credentials import ReadOnlyCredentials

        fields = self._credentials.current().fields
        return ReadOnlyCredentials(fields["access_key_id"], fields["secret_access_key"], fields["token"])

    def get_deferred_property(self, name: str) -> Any:
        return lambda: getattr(self.get_frozen_credentials(), name, None)

    @property
    def access_key(self) -> Any:
        return self.get_frozen_credentials().access_key

    @property
    def secret_key(self) -> Any:
        return self.get_frozen_credentials().secret_key

    @property
    def token(self) -> Any:
        return self.get_frozen_credentials().token

    account_id = None
