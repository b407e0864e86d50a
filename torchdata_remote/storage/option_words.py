"""Words of other libraries and of people for storage options, for which no spelling is near."""

from __future__ import annotations

BY_S3 = {
    "access_key": "key",
    "access_key_id": "key",
    "aws_access_key": "key",
    "aws_access_key_id": "key",
    "secret_key": "secret",
    "secret_access_key": "secret",
    "aws_secret_access_key": "secret",
    "aws_secret_key": "secret",
    "session_token": "token",
    "aws_session_token": "token",
    "aws_endpoint_url": "endpoint_url",
    "aws_endpoint": "endpoint_url",
    "host": "endpoint_url",
    "url": "endpoint_url",
    "region_name": "region",
    "aws_region": "region",
    "default_region": "region",
    "profile_name": "profile",
    "aws_profile": "profile",
    "anonymous": "anon",
    "skip_signature": "anon",
    "no_sign_request": "anon",
}
BY_HUB = {"api_token": "token", "hf_token": "token"}
BY_GCS = {
    "anon": "token",
    "anonymous": "token",
    "credentials": "token",
    "key": "token",
    "keyfile": "token",
    "service_account": "token",
    "service_account_file": "token",
    "google_application_credentials": "token",
    "host": "endpoint_url",
    "api_endpoint": "endpoint_url",
    "project_id": "project",
    "user_project": "requester_pays",
}
BY_AZURE = {
    "account": "account_name",
    "storage_account": "account_name",
    "azure_storage_account_name": "account_name",
    "key": "account_key",
    "access_key": "account_key",
    "azure_storage_account_key": "account_key",
    "sas": "sas_token",
    "sas_key": "sas_token",
    "token": "credential",
    "anonymous": "anon",
    "endpoint_url": "account_host",
    "endpoint": "account_host",
}
IN_CLIENT = {"region": "region_name", "key": "aws_access_key_id", "secret": "aws_secret_access_key"}
