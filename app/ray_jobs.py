"""The Ray Jobs API, with a time limit on every request and an address that means what it says."""

from functools import cache
from typing import Any

REQUEST_LIMIT_S = 30.0


class NoCluster(ConnectionError):
    """No Ray cluster answers: nothing can be submitted, and only run directories tell what is."""


@cache
def _client_class() -> type:
    # Made on first use: reading runs must not cost the import of Ray.
    import ray
    from ray.dashboard.modules.dashboard_sdk import SubmissionClient
    from ray.job_submission import JobSubmissionClient

    class Client(JobSubmissionClient):
        def __init__(self, url: str) -> None:
            # JobSubmissionClient lets $RAY_ADDRESS override the address it is given.
            self._client_ray_version = ray.__version__
            SubmissionClient.__init__(self, address=url)
            self._check_connection_and_version(min_version="2.0")

        def _do_request(self, method: str, endpoint: str, **kwargs: Any) -> Any:
            return super()._do_request(method, endpoint, **{"timeout": REQUEST_LIMIT_S} | kwargs)

    return Client


def connect(address: str | None = None) -> Any:
    """A client of the cluster at `address` (dashboard URL or GCS host:port).

    Without an address: the cluster this process is in, else what $RAY_ADDRESS names, else one on this machine.
    """
    url = address
    try:
        url = dashboard_url(address)
        return _client_class()(url)
    except (ConnectionError, ValueError, OSError) as error:
        where = f"at {url}" if url else "on this machine"
        raise NoCluster(
            f"no Ray cluster with a dashboard answers {where} ({_first_line(error)}); "
            "start one with `ray start --head` or give its address (RAY_ADDRESS)"
        ) from error


def dashboard_url(address: str | None = None) -> str:
    import ray
    from ray.dashboard.utils import get_address_for_submission_client, ray_address_to_api_server_url

    if address and "://" in address:
        return address
    if address:
        return ray_address_to_api_server_url(address)
    if ray.is_initialized():
        return ray_address_to_api_server_url(ray.get_runtime_context().gcs_address)
    return get_address_for_submission_client(None)


def is_connected_to(client: Any) -> bool:
    """Whether this process is itself a part of the client's cluster."""
    import ray

    return ray.is_initialized() and dashboard_url() == client.get_address()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
