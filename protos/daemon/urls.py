"""URLs in what leaves a process: logs, errors, lines, topics, pages.

Cameras and proxies take secrets as user and password, in paths, queries and fragments, and people
write special characters of a password as they are. Only a URL's scheme and host are shown.
"""

import re

HIDDEN = "..."
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20})://")
# A name, an IPv4 address, or an IPv6 address in brackets; its port.
_HOST = re.compile(r"(\[[\w:.%]+\]|[\w.-]*)(?::(\d{1,5}))?")
_AUTHORITY_ENDS = re.compile(r"[/?#\\]")


def shown(url: str, *, port: bool = False, path: bool = False) -> str:
    """`scheme://host` of a URL, with its port or path if these have no secrets; what cannot be told
    from a part of a password is `...`.
    """
    scheme = _SCHEME.match(url)
    if scheme is None:
        return url if path and not set("@:?#") & set(url) else HIDDEN
    authority, rest = _parts(url[scheme.end() :])
    host = _HOST.fullmatch(authority.rpartition("@")[2])
    if host is None or not is_plain(url):
        return f"{scheme[0]}{HIDDEN}"
    end = re.split(r"[?#]", rest)[0] if path else ""
    return f"{scheme[0]}{host[0] if port else host[1]}{end}"


def is_plain(url: str) -> bool:
    """Whether the end of the host is certain: an @ after it may mean that it is part of a password
    that has a /, ? or # in it. It means no such thing in `http://yard.local/?user=me&password=a@b`.
    """
    authority, rest = _parts(url.partition("://")[2])
    before, at, _ = rest.partition("@")
    if not at:
        return True
    host = authority.rpartition("@")[2]
    return "=" in before.partition("?")[2] and "." in host and _HOST.fullmatch(host) is not None


def _parts(rest: str) -> tuple[str, str]:
    """The authority, and what follows it."""
    end = _AUTHORITY_ENDS.search(rest)
    return (rest, "") if end is None else (rest[: end.start()], rest[end.start() :])
