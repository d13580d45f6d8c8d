"""What is done to every request and answer. Requests are taken as servers take them, whatever
client or proxy wrote them: absolute targets, doubled and trailing slashes, HEAD. Answers get
headers for security, unless they set their own: run nothing, allow no frames, keep no copy, send no
referrer.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# RFC 9112, 3.2.2: the target that is meant for a proxy counts before `Host`.
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_SLASHES = re.compile(rb"/{2,}")

SECURITY = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class HttpConventions:
    """ASGI middleware around the application. `kept`: paths that end in a slash."""

    def __init__(self, app: ASGIApp, kept: frozenset[str] = frozenset()) -> None:
        self._app = app
        self._kept = {path.encode() for path in kept}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        headers = scope["headers"]
        if absolute := _ABSOLUTE.fullmatch(raw):
            host = absolute[1].rpartition(b"@")[2]
            raw = absolute[2] or b"/"
            headers = [(b"host", host), *(header for header in headers if header[0] != b"host")]
        plain = _SLASHES.sub(b"/", raw)
        if plain not in self._kept:
            plain = plain.rstrip(b"/") or b"/"
        if plain != scope.get("raw_path"):
            path = unquote(plain.decode())
            scope = {**scope, "raw_path": plain, "path": path, "headers": headers}
        is_head = scope["method"] == "HEAD"

        async def sending(message: Message) -> None:
            """Of an answer to HEAD, the head alone: the body may never end."""
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    answer.setdefault(name, value)
                await send(message)
                if is_head:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            elif not is_head:
                await send(message)

        await self._app({**scope, "method": "GET"} if is_head else scope, receive, sending)
