"""A join token: the address of the enrolment service, the authority's fingerprint, and the secret
that admits.
"""

import re
from dataclasses import dataclass, field
from typing import Self

from protos.errors import BadRequest

_TOKEN = re.compile(r"(?P<address>[^/\s]+:\d{1,5})/(?P<print>[0-9a-f]{64})/(?P<secret>[\w-]{32})")


@dataclass(frozen=True, slots=True)
class Invitation:
    """`address` is host:port of the enrolment service, `fingerprint` the SHA-256 of the certificate
    of the cluster's authority, in hexadecimal: the server at the address must present a certificate
    of that authority before the secret is sent.
    """

    address: str
    fingerprint: str
    secret: str = field(repr=False)

    @property
    def token(self) -> str:
        """The token as one word."""
        return f"{self.address}/{self.fingerprint}/{self.secret}"

    @classmethod
    def parse(cls, token: str) -> Self:
        """Reads a token.

        Raises:
            BadRequest: it is not a token; the error does not repeat it.
        """
        found = _TOKEN.fullmatch(token.strip())
        if found is None:
            raise BadRequest(
                cause="the join token is not complete",
                cure="Copy all of what `imbrex cluster invite` printed: address/fingerprint/secret",
            )
        return cls(found["address"], found["print"], found["secret"])
