"""URLs: which are taken, and object storage (S3, Google Cloud Storage, Azure) opened by obstore."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from streampca.errors import InvalidInputError, MissingDependencyError

OBJECTS = ("s3", "gs", "gcs", "az", "abfs", "abfss")  # by obstore
READ = (*OBJECTS, "https", "http", "file", "memory")  # that may be read
LOOPBACK = ("127.0.0.1", "localhost", "::1")
OF_S3FS = {"key": "access_key_id", "secret": "secret_access_key", "anon": "skip_signature",
           "endpoint_url": "endpoint", "region_name": "region"}  # fmt: skip


def scheme_of(url: str) -> str:
    """``s3`` of ``s3://bucket/key``, "" of a path. Raises InvalidInputError for chained URLs."""
    scheme, found, _ = url.partition("://")
    if found and "::" in scheme:
        raise InvalidInputError(
            f"{scheme.partition('::')[0]}:: chained URLs are not taken; open the Zarr store "
            "yourself, and give the zarr.Array"
        )
    return scheme if found else ""


def check_readable(url: str) -> None:
    """Raises InvalidInputError for a URL of a scheme that is not read."""
    scheme = scheme_of(url)
    if scheme and scheme not in READ:
        raise InvalidInputError(
            f"{scheme}:// is not read; expected a path, or one of "
            f"{', '.join(f'{one}://' for one in READ)}. Of anything else open the Zarr store "
            "yourself, and give the zarr.Array"
        )


def has_obstore() -> bool:
    """Whether obstore is there to be imported."""
    try:
        import obstore  # noqa: F401
    except ImportError:
        return False
    return True


def open_objects(url: str, options: Mapping[str, Any] | None = None) -> Any:
    """The ``obstore`` store of a bucket and the key prefix in a URL.

    options : for ``obstore.store.from_url``; the names that s3fs has for keys and the endpoint are
        understood too. What is not said comes from the environment (``AWS_ACCESS_KEY_ID``,
        ``AWS_ENDPOINT_URL``, ...). A server on this machine may answer by plain HTTP; another one
        only with ``client_options={"allow_http": True}``, or ``AWS_ALLOW_HTTP=true``.

    Raises MissingDependencyError without obstore, InvalidInputError for options it does not know.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise MissingDependencyError(
            "object storage needs obstore: pip install 'streampca[obstore]'"
        ) from None
    given = s3_options(options) if url.startswith("s3") else dict(options or {})
    if not any_credentials(url, given):
        given["skip_signature"] = True
    if url.startswith("s3") and loopback_over_http(given):
        given["client_options"] = {"allow_http": True, **given.get("client_options", {})}
    try:
        return from_url(f"gs{url[3:]}" if url.startswith("gcs://") else url, **given)
    except (BaseError, TypeError) as error:
        raise InvalidInputError(
            f"{url.partition('?')[0].rpartition('@')[2]} cannot be opened: {first_line(error)}"
        ) from None


GCLOUD = "~/.config/gcloud/application_default_credentials.json"  # where its user logged in

# what chooses credentials, by the cloud: names in the environment, and of options
CHOSEN = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE",
         "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
         "AWS_METADATA_ENDPOINT", "AWS_IMDSV1_FALLBACK"),
        ("access_key", "web_identity", "skip_signature", "container_credentials",
         "metadata_endpoint", "imdsv1_fallback", "credential_provider"),
    ),
    "g": (
        ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION", "GOOGLE_SKIP_SIGNATURE"),
        ("service_account", "application_credentials", "skip_signature", "credential_provider"),
    ),
    "a": (
        ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_CLIENT",
         "AZURE_STORAGE_SAS", "AZURE_STORAGE_TOKEN", "AZURE_CLIENT", "AZURE_TENANT", "AZURE_MSI",
         "AZURE_IDENTITY", "AZURE_FEDERATED", "AZURE_SKIP_SIGNATURE", "AZURE_USE_AZURE_CLI",
         "MSI_ENDPOINT", "IDENTITY_ENDPOINT"),
        ("key", "token", "sas", "client_id", "client_secret", "tenant", "msi", "identity",
         "skip_signature", "credential", "use_azure_cli"),
    ),
}  # fmt: skip


def any_credentials(url: str, given: Mapping[str, Any]) -> bool:
    """Whether the environment or the options choose credentials, or to have none.

    Without that, libraries ask the metadata service of the machine (169.254.169.254), which is for
    its user to choose: ``AWS_METADATA_ENDPOINT``, ``AWS_IMDSV1_FALLBACK`` or the options of that
    name. Whoever chooses nothing reads public objects.
    """
    scheme = url.partition("://")[0]
    known = next((one for start, one in CHOSEN.items() if scheme.startswith(start)), None)
    if known is None:
        return True
    variables, options = known
    if scheme.startswith("g") and os.path.exists(os.path.expanduser(GCLOUD)):
        return True
    return any(name.startswith(variables) for name in os.environ) or any(
        word in str(name).lower() for name in given for word in options
    )


def s3_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """By obstore's names, the endpoint of the environment among them."""
    given = dict(options or {})
    given |= given.pop("client_kwargs", {})  # of s3fs
    given = {OF_S3FS.get(name, name): value for name, value in given.items()}
    if "endpoint" not in given and (endpoint := os.environ.get("AWS_ENDPOINT_URL")):
        given["endpoint"] = endpoint
    return given


def loopback_over_http(given: Mapping[str, Any]) -> bool:
    """Whether the endpoint is a server on this machine that is asked without TLS."""
    endpoint = str(given.get("endpoint", ""))
    return endpoint.startswith("http://") and urlsplit(endpoint).hostname in LOOPBACK


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """What obstore and Icechunk raise is no OSError; here it becomes one."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("obstore", "icechunk")):
            raise
        raise OSError(errno.EIO, first_line(error)) from error


def first_line(error: Exception) -> str:
    """Of a message, without what is for the developers of those libraries."""
    return str(error).strip().partition("\n")[0].strip()
