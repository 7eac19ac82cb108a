"""An S3-compatible server on this machine, for tests of what is copied there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyarrow import fs

from tests.environments.packages import require


@contextmanager
def server() -> Iterator[None]:
    """While the block runs, the environment of this process, and of those that it starts, leads to the server."""
    require("moto")
    from moto.server import ThreadedMotoServer

    s3 = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    s3.start()
    host, port = s3.get_host_and_port()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
            patch.setenv("AWS_REGION", "us-east-1")
            patch.setenv("AWS_ACCESS_KEY_ID", "test")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            yield
    finally:
        s3.stop()


def make_bucket(name: str) -> fs.S3FileSystem:
    """The store, with the bucket in it."""
    store = fs.S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL"], allow_bucket_creation=True)
    store.create_dir(name)
    return store
