"""A network camera: GStreamer's RTSP server with files of video, on a port of loopback.

Run by the system's Python, which has GStreamer's bindings (`make camera`):

    python3 rtsp_server.py FOLDER [USER PASSWORD]

serves FOLDER/h264.mp4 and FOLDER/mjpeg.avi at /h264 and /mjpeg, from their beginning to their end
for everybody who comes, and a sound without pictures at /sound. Prints its port when it listens.
"""

from __future__ import annotations

import sys
from typing import Any

import gi  # type: ignore[import-not-found, import-untyped, unused-ignore]

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

ROLE = "viewer"
PIPELINES = {
    "/h264": "filesrc location={}/h264.mp4 ! qtdemux ! h264parse"
    " ! rtph264pay name=pay0 pt=96 config-interval=1",
    "/mjpeg": "filesrc location={}/mjpeg.avi ! avidemux ! jpegparse ! rtpjpegpay name=pay0 pt=26",
    "/sound": "audiotestsrc is-live=true ! alawenc ! rtppcmapay name=pay0 pt=8",
}


def factory(pipeline: str, guarded: bool) -> Any:
    made = GstRtspServer.RTSPMediaFactory()
    made.set_launch(f"( {pipeline} )")
    if guarded:
        allowed = GstRtspServer.RTSPPermissions()
        for what in ("access", "construct"):
            allowed.add_permission_for_role(ROLE, f"media.factory.{what}", True)
        made.set_permissions(allowed)
    return made


def login(user: str, password: str) -> Any:
    token = GstRtspServer.RTSPToken()
    token.set_string("media.factory.role", ROLE)
    auth = GstRtspServer.RTSPAuth()
    auth.add_basic(GstRtspServer.RTSPAuth.make_basic(user, password), token)
    return auth


def main() -> None:
    folder, *credentials = sys.argv[1:]
    Gst.init(None)
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service("0")
    if credentials:
        server.set_auth(login(*credentials))
    for path, pipeline in PIPELINES.items():
        server.get_mount_points().add_factory(
            path, factory(pipeline.format(folder), bool(credentials))
        )
    server.attach(None)
    print(server.get_bound_port(), flush=True)
    GLib.MainLoop().run()


if __name__ == "__main__":
    main()
