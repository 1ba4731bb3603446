"""Calls to an object store, with everything that boto3 raises told apart: what may pass, what a person must set right,
and the few answers that a caller acts on."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from db.stores.errors import Conflict, NotThere, OtherVersion, StorageMissing, StorageRefused, StorageUnavailable, Taken
from db.stores.places import S3Path, S3Service

try:
    import boto3
    from botocore import exceptions as boto
    from botocore.config import Config
except ImportError as error:
    raise StorageMissing from error

ATTEMPTS = 6  # with pauses of 1, 2, 4 … s at most: an outage of some 15 s is ridden out within one call
CONNECT_SECONDS, READ_SECONDS = 5, 60
CONNECTIONS = 32
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
PASSING_CODES = frozenset({"RequestTimeout", "SlowDown", "InternalError", "Throttling", "RequestTimeTooSkewed"})
WIRE_ERRORS = (boto.HTTPClientError, boto.ConnectionError, boto.IncompleteReadError, boto.ResponseStreamingError)


class S3Client:
    """One client for all threads. Every method of boto3's client goes through `call`."""

    def __init__(self, service: S3Service) -> None:
        # These libraries' debug logs have headers and signatures in them.
        for name in ("boto3", "botocore", "urllib3", "s3transfer"):
            logging.getLogger(name).setLevel(logging.WARNING)
        config = Config(
            retries={"mode": "standard", "max_attempts": ATTEMPTS},
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            max_pool_connections=CONNECTIONS,
            # A bucket's name in the host's name is AWS's own way; other servers mostly have but one name.
            s3={"addressing_style": "path" if service.endpoint else "auto"},
        )
        self._client = boto3.session.Session().client(
            "s3",
            endpoint_url=service.endpoint or None,
            # A server that has no regions takes any.
            region_name=service.region or ("us-east-1" if service.endpoint else None),
            config=config,
        )

    def call(self, operation: str, place: S3Path, **parameters: Any) -> dict[str, Any]:
        """One operation on the bucket of `place`.

        Raises Taken, Conflict, NotThere, OtherVersion; StorageRefused; StorageUnavailable.
        """
        try:
            answer: dict[str, Any] = getattr(self._client, operation)(Bucket=place.bucket, **parameters)
        except boto.ClientError as error:
            _raise(place, operation, error)
        except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError) as error:
            reason = "the service has no credentials for its object store; set AWS_ACCESS_KEY_ID and its companions"
            raise StorageRefused(place, reason) from error
        except (*WIRE_ERRORS, OSError) as error:
            raise StorageUnavailable(place, f"the object store does not answer: {type(error).__name__}") from error
        except boto.BotoCoreError as error:
            raise StorageRefused(place, f"the object store cannot be used: {type(error).__name__}") from error
        return answer


def _raise(place: S3Path, operation: str, error: boto.ClientError) -> NoReturn:
    """Messages of the store are not passed on: some name keys and what was signed."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    told = f"the object store answered {status} {code} to {operation}"
    if code == "NoSuchBucket":
        raise StorageRefused(place, "there is no such bucket") from None
    if status == 404:
        raise NotThere(told) from None
    if status == 412:
        raise (OtherVersion if operation == "get_object" else Taken)(told) from None
    if status == 409:
        raise Conflict(told) from None
    if status in PASSING or code in PASSING_CODES:
        raise StorageUnavailable(place, told) from None
    raise StorageRefused(place, told) from None
