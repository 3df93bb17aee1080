"""Object storage (S3, Google Cloud, Azure), opened by obstore."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from streampca.errors import InvalidInputError, MissingDependencyError
from streampca.paths import first_line

LOOPBACK = ("127.0.0.1", "localhost", "::1")
OF_S3FS = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "anon": "skip_signature",
    "endpoint_url": "endpoint",
    "region_name": "region",
}


def has_obstore() -> bool:
    """Whether obstore is installed."""
    try:
        import obstore  # noqa: F401
    except ImportError:
        return False
    return True


def no_obstore() -> MissingDependencyError:
    """The error where it is needed."""
    return MissingDependencyError("object storage needs obstore: pip install 'streampca[obstore]'")


def open_objects(url: str, options: Mapping[str, Any] | None = None) -> Any:
    """The ``obstore`` store of a bucket and key prefix in a URL.

    options : for ``obstore.store.from_url``; s3fs's names for keys and the endpoint work too.
        Defaults come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ...). Plain
        HTTP is allowed to a server on this machine; to others only with
        ``client_options={"allow_http": True}``, or ``AWS_ALLOW_HTTP=true``.

    Raises MissingDependencyError without obstore, InvalidInputError for unknown options.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise no_obstore() from None
    store_options = s3_options(options) if url.startswith("s3") else dict(options or {})
    if not any_credentials(url, store_options):
        store_options["skip_signature"] = True
    if url.startswith("s3") and loopback_over_http(store_options):
        store_options["client_options"] = {
            "allow_http": True,
            **store_options.get("client_options", {}),
        }
    try:
        return from_url(f"gs{url[3:]}" if url.startswith("gcs://") else url, **store_options)
    except (BaseError, TypeError) as error:
        raise InvalidInputError(
            f"{url.partition('?')[0].rpartition('@')[2]} cannot be opened: {first_line(error)}"
        ) from None


GCLOUD = "~/.config/gcloud/application_default_credentials.json"  # made by its login

# scheme prefix -> (environment variables, parts of option names) that choose credentials
CHOSEN = {
    "s3": (
        "AWS_ACCESS_KEY_ID AWS_WEB_IDENTITY_TOKEN_FILE AWS_SKIP_SIGNATURE "
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI AWS_CONTAINER_CREDENTIALS_FULL_URI "
        "AWS_METADATA_ENDPOINT AWS_IMDSV1_FALLBACK",
        "access_key web_identity skip_signature container_credentials metadata_endpoint "
        "imdsv1_fallback credential_provider",
    ),
    "g": (
        "GOOGLE_SERVICE_ACCOUNT GOOGLE_APPLICATION GOOGLE_SKIP_SIGNATURE",
        "service_account application_credentials skip_signature credential_provider",
    ),
    "a": (
        "AZURE_STORAGE_ACCOUNT_KEY AZURE_STORAGE_ACCESS_KEY AZURE_STORAGE_CLIENT "
        "AZURE_STORAGE_SAS AZURE_STORAGE_TOKEN AZURE_CLIENT AZURE_TENANT AZURE_MSI AZURE_IDENTITY "
        "AZURE_FEDERATED AZURE_SKIP_SIGNATURE AZURE_USE_AZURE_CLI MSI_ENDPOINT IDENTITY_ENDPOINT",
        "key token sas client_id client_secret tenant msi identity skip_signature credential "
        "use_azure_cli",
    ),
}


def any_credentials(url: str, store_options: Mapping[str, Any]) -> bool:
    """Whether the environment or the options choose credentials, or explicitly none.

    If they do not, libraries would ask the machine's metadata service (169.254.169.254). That must
    be requested: by ``AWS_METADATA_ENDPOINT``, ``AWS_IMDSV1_FALLBACK`` or the options of these
    names. By default only public objects are read.
    """
    scheme = url.partition("://")[0]
    known = next((value for start, value in CHOSEN.items() if scheme.startswith(start)), None)
    if known is None:
        return True
    variables, options = (tuple(words.split()) for words in known)
    if scheme.startswith("g") and os.path.exists(os.path.expanduser(GCLOUD)):
        return True
    return any(name.startswith(variables) for name in os.environ) or any(
        word in str(name).lower() for name in store_options for word in options
    )


def s3_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options by obstore's names, with the endpoint from the environment."""
    store_options = dict(options or {})
    store_options |= store_options.pop("client_kwargs", {})  # of s3fs
    store_options = {OF_S3FS.get(name, name): value for name, value in store_options.items()}
    if "endpoint" not in store_options and (endpoint := os.environ.get("AWS_ENDPOINT_URL")):
        store_options["endpoint"] = endpoint
    return store_options


def loopback_over_http(store_options: Mapping[str, Any]) -> bool:
    """Whether the endpoint is a server on this machine without TLS."""
    endpoint = str(store_options.get("endpoint", ""))
    return endpoint.startswith("http://") and urlsplit(endpoint).hostname in LOOPBACK
