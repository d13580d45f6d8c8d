"""A camera's stream through PyAV: MJPEG over HTTP, RTSP, anything that FFmpeg opens.

MJPEG's frames are JPEG files already and are passed on unchanged; others are decoded, and only
frames that are sent are encoded as JPEG.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from urllib.parse import quote, urlsplit, urlunsplit

import av
import av.error
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from PIL import Image

from imbrex.watch.video_frames import Frame
from protos.daemon.urls import shown
from protos.errors import BadRequest, Unavailable

PASSWORD_VARIABLE = "IMBREX_CAMERA_PASSWORD"  # noqa: S105 - its name
OPEN_S, READ_S = 10.0, 10.0
# The pause between attempts: a restarting camera takes half a minute.
RETRY_S, LONGEST_RETRY_S = 0.5, 30.0
JPEG_QUALITY = 90
# Motion JPEG may omit its Huffman tables; a JPEG file may not.
_HUFFMAN = b"\xff\xc4"
# The protocols that a camera's redirects and playlists may use: no local files, and nothing that
# runs or combines others.
_PROTOCOLS = "http,https,tcp,tls,udp,rtp,rtsp,rtsps,rtmp,rtmps,srtp,srt,crypto"
# The coordinator's limit of pixels: a 4K camera has eight million.
_MOST_PIXELS = "20000000"
# FFmpeg's options: no delay for reordering, RTSP over TCP, and at most half a second (in us) of
# probing before the first picture.
_OPTIONS = {
    "flags": "low_delay",
    "rtsp_transport": "tcp",
    "analyzeduration": "500000",
    "fpsprobesize": "0",
}


@dataclass
class Stream:
    """The newest frame of a URL. A stream that ends or breaks is opened again; `breaks` counts.

    A user without a password in the URL gets the environment's: every user of a machine can see its
    command lines. `called` is the user's name for it.
    """

    url: str = field(repr=False)
    called: str = ""
    keeps: int = 1
    breaks: int = 0
    retry_s: float = RETRY_S

    @property
    def name(self) -> str:
        """Its scheme and host, and what the user called it."""
        return f"{shown(self.url)} ({self.called})" if self.called else shown(self.url)

    def _with_password(self) -> str:
        parts = urlsplit(self.url)
        user, at, host = parts.netloc.rpartition("@")
        if not at or ":" in user or PASSWORD_VARIABLE not in os.environ:
            return self.url
        password = quote(os.environ[PASSWORD_VARIABLE], safe="")
        return urlunsplit(parts._replace(netloc=f"{user}:{password}@{host}"))

    def run(self, put: Callable[[Frame], None], stopped: threading.Event) -> None:
        """Yields frames until `stopped`.

        Raises:
            Unavailable: it cannot be opened the first time.
            BadRequest: it has no pictures.
        """
        number, failures, url = 0, 0, self._with_password()
        while not stopped.is_set():
            try:
                options = {**_OPTIONS, "protocol_whitelist": f"{_PROTOCOLS},{urlsplit(url).scheme}"}
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
                        cure="Check its address, user and password, and that it provides video; "
                        "write # / ? @ in a password as %23 %2F %3F %40",
                    ) from error
            except BadRequest:
                if not number:
                    raise
            self.breaks += 1
            stopped.wait(min(self.retry_s * 2**failures, LONGEST_RETRY_S))
            failures = min(failures + 1, 10)


def _frames(container: InputContainer, name: str) -> Iterator[Callable[[], bytes]]:
    """The function that returns a frame's JPEG."""
    if not container.streams.video:
        raise BadRequest(cause=f"{name} has no video", cure="Use the URL of its video stream")
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    stream.codec_context.options = {"max_pixels": _MOST_PIXELS}
    for packet in container.demux(stream):
        if stream.codec_context.name == "mjpeg" and _HUFFMAN in (data := bytes(packet)):
            yield partial(bytes, data)
        else:
            yield from _decoded(stream, packet)


def _decoded(
    stream: VideoStream, packet: "av.Packet[VideoStream]"
) -> Iterator[Callable[[], bytes]]:
    """The frames of a packet; none if it is damaged: Wi-Fi loses some, and the next key frame
    recovers.
    """
    try:
        for frame in stream.decode(packet):
            yield partial(_jpeg, frame)
    except av.error.InvalidDataError:
        return


def _jpeg(frame: VideoFrame) -> bytes:
    file = BytesIO()
    Image.fromarray(frame.to_ndarray(format="rgb24")).save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()
