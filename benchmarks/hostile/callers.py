"""Whose pages a browser has open (H5, H7)."""

from __future__ import annotations

from typing import Any

import httpx

from benchmarks.hostile.attacks import MB, Happened, Target, attack

LARGE_MODELS = ("vgg16", "resnet50", "densenet121", "yolov2")


def _models(client: httpx.Client) -> list[str]:
    rows: list[dict[str, Any]] = client.get("/v1/models").json()["models"]
    return sorted(f"{row['name']} {row['plan_version']}" for row in rows)


@attack("H5", "nothing is loaded, planned or sent", most_grown_bytes=32 * MB, quick=True)
def pictures_of_another_site(target: Target) -> Happened:
    """GETs that a page of another site has a browser make, as of pictures."""
    with httpx.Client(base_url=target.url, timeout=60) as client:
        before = _models(client)
        codes = [
            client.get(path, headers={"Referer": "http://evil.example/"}).status_code
            for model in LARGE_MODELS
            for path in (
                f"/v1/plans/{model}",
                f"/v1/plans/{model}?strategy=lw",
                f"/page/plans/{model}",
                f"/v2/models/{model}",
                f"/v2/models/{model}/config",
            )
        ]
        after = _models(client)
    ok = before == after and all(400 <= code < 500 for code in codes)
    return Happened(ok, f"answered {sorted(set(codes))}; models before and after: {before} {after}")


@attack("H7", "403 to every order, and to who only looks", quick=True)
def a_name_that_leads_here(target: Target) -> Happened:
    """DNS rebinding: a page's own name leads here, so that its browser thinks them one site."""
    named = f"evil.example:{target.port}"
    headers = {"Host": named, "Origin": f"http://{named}"}
    return _ordered(target, headers, looking=True)


@attack("H7", "403 to every order")
def an_origin_of_another_scheme(target: Target) -> Happened:
    """A page of https has orders for http sent."""
    return _ordered(target, {"Origin": f"https://127.0.0.1:{target.port}"}, looking=False)


def _ordered(target: Target, headers: dict[str, str], *, looking: bool) -> Happened:
    orders = [
        ("POST", "/v1/devices/worker-1/drain"),
        ("POST", "/v2/repository/models/digits/unload"),
        ("POST", "/v2/repository/models/vgg16/load"),
        ("DELETE", "/v1/plans/digits"),
    ]
    looks = [("GET", "/v1/devices"), ("GET", "/v1/models"), ("GET", "/")]
    with httpx.Client(base_url=target.url, timeout=60) as client:
        codes = [
            client.request(method, path, headers=headers).status_code
            for method, path in (*orders, *(looks if looking else ()))
        ]
        states = {device["state"] for device in client.get("/v1/devices").json()["devices"]}
    ok = set(codes) == {403} and states == {"ready"}
    return Happened(ok, f"answered {codes}; devices are {', '.join(sorted(states))}")
