"""Account, endpoint and credentials of Azure, from URLs, options and the environment."""

from __future__ import annotations

from typing import Any

import pytest

from tests.servers.azurite import ACCOUNT, KEY
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import UrlError
from torchdata_remote.storage import open_store
from torchdata_remote.storage.azure.settings import AzureSettings, azure_settings

SAS = "sv=2023-11-03&sr=c&sig=c2VjcmV0%3D"
CLOUD = f"DefaultEndpointsProtocol=https;AccountName=pets;AccountKey={KEY};EndpointSuffix=core.windows.net"


def settings_of(bucket: str = "box", **options: Any) -> AzureSettings:
    found = azure_settings(bucket, StorageOptions(options), 30.0)
    assert found is not None
    assert found[0] == "box"
    return found[1]


@pytest.mark.parametrize(
    ("bucket", "options", "endpoint"),
    [
        ("box", {"account_name": "pets"}, "https://pets.blob.core.windows.net"),
        ("box@pets.dfs.core.windows.net", {}, "https://pets.blob.core.windows.net"),
        ("box@pets.blob.core.chinacloudapi.cn", {}, "https://pets.blob.core.chinacloudapi.cn"),
        ("box", {"account_name": "pets", "location_mode": "secondary"}, "https://pets-secondary.blob.core.windows.net"),
        ("box", {"account_name": "pets", "account_host": "pets.z1.blob.storage.azure.net"}, "https://pets.z1.blob.storage.azure.net"),
        ("box", {"connection_string": CLOUD}, "https://pets.blob.core.windows.net"),
        ("box", {"connection_string": "BlobEndpoint=http://127.0.0.1:9/pets/;AccountName=pets"}, "http://127.0.0.1:9/pets"),
        ("box", {"connection_string": "UseDevelopmentStorage=true"}, f"http://127.0.0.1:10000/{ACCOUNT}"),
    ],
    ids=str,
)  # fmt: skip
def test_the_endpoint_is_that_of_the_account(bucket: str, options: dict[str, Any], endpoint: str) -> None:
    """As adlfs and Microsoft's clients find it."""
    assert settings_of(bucket, **options).endpoint == endpoint


class Identity:
    """Like a credential of azure-identity."""

    def get_token(self, *scopes: str) -> Any:
        raise NotImplementedError


class AsyncIdentity:
    """Like one of azure.identity.aio, which adlfs takes."""

    async def get_token(self, *scopes: str) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("options", "environment", "kind", "source"),
    [
        ({"account_key": KEY}, {}, "key", "'account_key' of storage_options"),
        ({"sas_token": "?" + SAS}, {}, "sas", "'sas_token' of storage_options"),
        ({"sas_token": SAS + "\n"}, {}, "sas", "'sas_token' of storage_options"),
        ({"credential": SAS}, {}, "sas", "'credential' of storage_options"),
        ({"credential": KEY}, {}, "key", "'credential' of storage_options"),
        ({"credential": Identity()}, {}, "object", "Identity, in storage_options['credential']"),
        ({"connection_string": CLOUD}, {}, "key", "the connection string"),
        ({"connection_string": f"AccountName=pets;SharedAccessSignature={SAS}"}, {}, "sas", "the connection string"),
        ({"client_id": "a", "client_secret": "b", "tenant_id": "c"}, {}, "client", "'client_id'"),
        ({"anon": True, "account_key": KEY}, {}, "anonymous", "anon=True"),
        ({}, {"AZURE_STORAGE_ACCOUNT_KEY": KEY}, "key", "AZURE_STORAGE_ACCOUNT_KEY"),
        ({}, {"AZURE_STORAGE_SAS_TOKEN": SAS}, "sas", "AZURE_STORAGE_SAS_TOKEN"),
        ({}, {"AZURE_STORAGE_CONNECTION_STRING": CLOUD}, "key", "the connection string"),
        ({}, {"AZURE_STORAGE_ANON": "true"}, "anonymous", "anon=True"),
        ({}, {"AZURE_STORAGE_ANON": "false"}, "chain", "azure-identity"),
        ({}, {}, "chain", "azure-identity"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_first_credential_is_used(
    options: dict[str, Any], environment: dict[str, str], kind: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options before the environment, in adlfs's words; errors can name where it is from."""
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    account = {} if "onnection" in str([*options, *environment]).lower() else {"account_name": "pets"}
    found = settings_of(**account, **options)
    assert (found.kind, source in found.source) == (kind, True)
    assert KEY not in repr(found)
    assert "c2VjcmV0" not in repr(found)


@pytest.mark.parametrize("options", [{"max_concurrency": 4}, {"credential": AsyncIdentity()}], ids=["option", "aio"])
def test_what_only_adlfs_translates_is_left_to_it(options: dict[str, Any]) -> None:
    """The registry then selects it, with a warning."""
    assert azure_settings("box", StorageOptions({"account_name": "pets", **options}), 30.0) is None


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("az://box/a", {}, "no storage account is named.*AZURE_STORAGE_ACCOUNT_NAME"),
        ("az://box/a", {"account": "pets"}, "unknown option 'account'.*did you mean 'account_name'"),
        ("az://box/a", {"acount_key": KEY}, "did you mean 'account_key'"),
        ("az://box/a", {"account_name": b"pets"}, "'account_name'.* must be a str, got bytes"),
        ("az://box/a", {"account_name": "pets", "client_id": "x"}, "'client_secret' are needed together"),
        ("az://box/a", {"account_name": "pets", "credential": 3}, "'credential'.*got int"),
        ("az://box/a", {"connection_string": "nonsense"}, "not NAME=VALUE"),
        ("az://box/a", {"connection_string": "A=b"}, "neither AccountName nor BlobEndpoint"),
        ("az://box/a", {"account_name": "pets", "account_host": "x/y"}, "no host of an account"),
        ("abfss://box@pets.dfs.core.windows.net/a", {"account_name": "cars"}, "names the account 'pets'.*'cars'"),
        ("az://box/a", {"account_name": "a b"}, "'a b' is no name of a storage account"),
        ("az://box/a", {"account_name": "pets/x"}, "is no name of a storage account"),
        ("az://box/a", {"connection_string": "AccountName=pets;EndpointSuffix=net/x"}, "a wrong .*EndpointSuffix"),
        ("az://box/a", {"connection_string": "AccountName=pets;DefaultEndpointsProtocol=ftp"}, "wrong Default"),
        ("az://box/a", {"connection_string": "BlobEndpoint=http://a b/x;AccountName=a"}, "BlobEndpoint.*must be"),
        ("az://box/a", {"connection_string": "BlobEndpoint=http://h:99999;AccountName=a"}, "BlobEndpoint.*must be"),
        ("az://box/a", {"account_name": "pets", "anon": "yes"}, "'anon'. must be True or False"),
        ("az://box/a", {"account_name": "pets", "sas_token": "c2VjcmV0"}, "the SAS is none.*'sas_token'"),
        ("az://box/a", {"account_name": "pets", "sas_token": '"sv=1&sig=c2VjcmV0"'}, "the SAS is none"),
        ("az://box/a", {"account_name": "pets", "sas_token": "https://h/b?sv=1&sig=c2VjcmV0"}, "the SAS is none"),
        ("az://box/a", {"connection_string": "AccountName=a;SharedAccessSignature=c2VjcmV0"}, "the SAS is none"),
        ("az://box/a?sv=1&sig=c2VjcmV0", {"account_name": "pets"}, "a SAS does not belong into a URL"),
    ],
)
def test_a_mistake_is_said_before_any_request(url: str, options: dict[str, Any], message: str) -> None:
    """With what to write instead, and without secrets."""
    with pytest.raises(UrlError, match=message) as caught:
        open_store(url, StorageOptions(options))
    assert "c2VjcmV0" not in str(caught.value)
    assert KEY not in str(caught.value)
