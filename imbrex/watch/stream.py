"""A camera's stream through PyAV: MJPEG over HTTP, RTSP, anything that FFmpeg opens.

MJPEG's frames are JPEG files already, and are passed on as they came; others are decoded, and only
the one that is asked about becomes a JPEG.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from urllib.parse import quote, urlsplit, urlunsplit

import av
import av.error
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import Image

from imbrex.watch.frames import Frame
from protos.errors import BadRequest, Unavailable

PASSWORD_VARIABLE = "IMBREX_CAMERA_PASSWORD"  # noqa: S105 - its name
OPEN_S, READ_S = 10.0, 10.0
# Between attempts: a camera that restarts takes half a minute.
RETRY_S, LONGEST_RETRY_S = 0.5, 30.0
JPEG_QUALITY = 90
# Motion JPEG may leave its Huffman tables to the reader; a JPEG file may not.
_HUFFMAN = b"\xff\xc4"
# What a camera may lead FFmpeg to, by redirects and playlists: no file of this device, and nothing
# that runs or joins others.
_PROTOCOLS = "http,https,tcp,tls,udp,rtp,rtsp,rtsps,rtmp,rtmps,srtp,srt,crypto"
# As many as the coordinator takes: a camera of 4K has eight million.
_MOST_PIXELS = "20000000"
# Of FFmpeg: no delay for reordering, RTSP over the connection that is there, and no more than half
# a second (in us) of looking at a stream before its first picture.
_OPTIONS = {
    "flags": "low_delay",
    "rtsp_transport": "tcp",
    "analyzeduration": "500000",
    "fpsprobesize": "0",
}


@dataclass
class Stream:
    """The newest frame of a URL. A stream that ends or breaks is opened again; `breaks` counts.

    A user without a password in the URL has the environment's: a command line is for every user
    of a machine to see.
    """

    url: str
    keeps: int = 1
    breaks: int = 0
    retry_s: float = RETRY_S

    @property
    def name(self) -> str:
        """For people and logs: without a password."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    def _with_password(self) -> str:
        parts = urlsplit(self.url)
        user, at, host = parts.netloc.rpartition("@")
        if not at or ":" in user or PASSWORD_VARIABLE not in os.environ:
            return self.url
        password = quote(os.environ[PASSWORD_VARIABLE], safe="")
        return urlunsplit(parts._replace(netloc=f"{user}:{password}@{host}"))

    def run(self, put: Callable[[Frame], None], stopped: threading.Event) -> None:
        """Gives frames until `stopped`.

        Raises:
            Unavailable: it cannot be opened the first time.
            BadRequest: it has no pictures.
        """
        number, failures, url = 0, 0, self._with_password()
        while not stopped.is_set():
            try:
                options = {**_OPTIONS, "protocol_whitelist": _allowed(url)}
                with av.open(url, options=options, timeout=(OPEN_S, READ_S)) as container:
                    for read in _frames(container, self.name):
                        put(Frame(number, self.name, time.time(), read))
                        number, failures = number + 1, 0
                        if stopped.is_set():
                            return
            except (av.error.FFmpegError, OSError) as error:
                if not number:
                    raise Unavailable(
                        cause=f"{self.name} cannot be opened ({error.strerror})",
                        cure="Check its address, user and password, and that it gives video",
                    ) from error
            self.breaks += 1
            stopped.wait(min(self.retry_s * 2**failures, LONGEST_RETRY_S))
            failures = min(failures + 1, 10)


def _allowed(url: str) -> str:
    """The protocols that this URL may lead to: those of networks, and its own."""
    return f"{_PROTOCOLS},{urlsplit(url).scheme}"


def _frames(container: InputContainer, name: str) -> Iterator[Callable[[], bytes]]:
    """How to get each frame's JPEG."""
    if not container.streams.video:
        raise BadRequest(cause=f"{name} has no video", cure="Name the URL of its pictures")
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    stream.codec_context.options = {"max_pixels": _MOST_PIXELS}
    for packet in container.demux(stream):
        if stream.codec_context.name == "mjpeg" and _HUFFMAN in (data := bytes(packet)):
            yield partial(bytes, data)
        else:
            yield from _decoded(stream, packet)


def _decoded(stream: VideoStream, packet: av.Packet[VideoStream]) -> Iterator[Callable[[], bytes]]:
    """A damaged packet gives nothing: Wi-Fi loses some, and the next key frame mends it."""
    try:
        for frame in stream.decode(packet):
            yield partial(_jpeg, frame)
    except av.error.InvalidDataError:
        return


def _jpeg(frame: VideoFrame) -> bytes:
    file = BytesIO()
    Image.fromarray(frame.to_ndarray(format="rgb24")).save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()
