# SPDX-License-Identifier: GPL-3.0-or-later
"""heat-api and heat-engine, unmodified, in one process, with oslo.messaging's driver ``fake`` for RPC. Run it with the
Python of Heat's environment: ``heat_process.py PORT --config-file heat.conf``.
"""

from __future__ import annotations

import socketserver
import sys
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

from heat.api.openstack.wsgi import init_application  # noqa: E402 - after the choice of the backend, as heat-engine does
from heat.engine import service  # noqa: E402
from heat.rpc import api  # noqa: E402
from oslo_config import cfg  # noqa: E402


class Server(socketserver.ThreadingMixIn, WSGIServer):
    """A WSGI server with a thread for each request."""

    daemon_threads = True


def main(port: int) -> None:
    """Serve on *port* until the process is ended."""
    application = init_application()
    service.EngineService(cfg.CONF.host, api.ENGINE_TOPIC).start()
    with make_server("127.0.0.1", port, application, Server, WSGIRequestHandler) as server:
        server.serve_forever()


if __name__ == "__main__":
    number = int(sys.argv.pop(1))
    main(number)
