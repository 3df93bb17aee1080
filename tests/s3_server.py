"""An S3 server on loopback, in a process of its own: moto's, which answers one request at a time.

What the model store needs of S3 is that of all writers that put a name with ``If-None-Match: *``
one succeeds, and that what was written is read by whoever asks next. moto does look and then
write; since requests are taken one by one here, nothing comes between, and both hold as they do
on S3 (strong consistency since 2020, conditional writes since 2024). It prints its address, and
ends when its standard input does.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

BUCKET = "bucket"


def serve() -> None:
    import boto3
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=False)
    address = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    region = os.environ["AWS_REGION"]  # keys too come from the environment
    boto3.client("s3", endpoint_url=address, region_name=region).create_bucket(Bucket=BUCKET)
    print(address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve()
