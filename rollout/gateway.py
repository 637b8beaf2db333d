"""The gateway: the policy behind the chat APIs that agent programs already speak.

    POST /v1/chat/completions    OpenAI chat       GET /v1/models
    POST /v1/responses           OpenAI responses
    POST /v1/messages            Anthropic messages

The API key names the rollout: `open` gives a recorder an endpoint of its own, `close` takes it
away. A reply that is asked for as a stream is sampled first and streamed then.
"""

import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from aiohttp import web

from envs.program import Endpoint
from rollout.chat import MODEL, RequestError
from rollout.dialects import anthropic_messages, openai_chat, openai_responses
from rollout.engine import EngineError
from rollout.recorder import Recorder

DIALECTS = (openai_chat, openai_responses, anthropic_messages)
MAX_REQUEST_BYTES = 64 * 2**20
"""Of a whole history."""
STOP_SECONDS = 1.0
"""Left to requests that still run when the gateway ends."""

_log = logging.getLogger(__name__)


class Gateway:
    """An HTTP server on this machine, for all rollouts of one process.

    Worked example:

        gateway = await Gateway.start()
        endpoint = gateway.open(recorder)
        ...                                  # a program talks to endpoint.base_url
        gateway.close(endpoint)
        await gateway.stop()
    """

    def __init__(self, runner: web.AppRunner, recorders: dict[str, Recorder]) -> None:
        """Start it with `start`."""
        self._runner = runner
        self._recorders = recorders

    @classmethod
    async def start(cls) -> "Gateway":
        """Serve on a free port of the loopback interface."""
        recorders: dict[str, Recorder] = {}
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        for dialect in DIALECTS:
            app.router.add_post(dialect.PATH, _handler(dialect, recorders))
        app.router.add_get("/v1/models", _list_models)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_SECONDS)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return cls(runner, recorders)

    @property
    def base_url(self) -> str:
        """Where it listens."""
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    def open(self, recorder: Recorder) -> Endpoint:
        """Give a rollout an endpoint that nobody can guess."""
        endpoint = Endpoint(base_url=self.base_url, api_key=secrets.token_urlsafe(24))
        self._recorders[endpoint.api_key] = recorder
        return endpoint

    def close(self, endpoint: Endpoint) -> None:
        """Take an endpoint away; what still asks there is refused."""
        self._recorders.pop(endpoint.api_key, None)

    async def stop(self) -> None:
        """End the server."""
        await self._runner.cleanup()


async def _list_models(request: web.Request) -> web.Response:
    del request
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "limosa"}
    return web.json_response({"object": "list", "data": [model]})


def _handler(
    dialect: ModuleType, recorders: Mapping[str, Recorder]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Make the handler of one API."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            recorder = _find_recorder(request, recorders)
            body = await _read_body(request)
            reply = await recorder.reply(dialect.read_request(body))
        except RequestError as error:
            return _refuse(dialect, error)
        except EngineError as error:
            _log.warning("engine failed under a program: %s", error)
            # 400, not 500: a client would try again, and the rollout is lost.
            return _refuse(dialect, RequestError(f"engine: {error}", code="engine_failed"))
        if body.get("stream"):
            return await _stream(request, dialect.write_stream(reply))
        return web.json_response(dialect.write_reply(reply))

    return handle


def _find_recorder(request: web.Request, recorders: Mapping[str, Recorder]) -> Recorder:
    """Find the rollout of a request by its key."""
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    recorder = recorders.get(request.headers.get("x-api-key") or bearer)
    if recorder is None:
        raise RequestError("this key names no running rollout", status=401, code="invalid_api_key")
    return recorder


async def _read_body(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError):
        raise RequestError("the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise RequestError("the body is no JSON object")
    return body


def _refuse(dialect: ModuleType, error: RequestError) -> web.Response:
    return web.json_response(dialect.write_error(str(error), error.code), status=error.status)


async def _stream(request: web.Request, events: Iterator[tuple[str, Any]]) -> web.StreamResponse:
    """Send events; `data` that is text already is sent as it is."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for name, data in events:
        lines = [f"event: {name}"] if name else []
        lines.append(f"data: {data if isinstance(data, str) else json.dumps(data)}")
        await response.write(("\n".join(lines) + "\n\n").encode())
    await response.write_eof()
    return response
