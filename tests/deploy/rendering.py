"""What the templates of Ansible's roles become.

`python -m tests.deploy.rendering` (`make configurations`) writes those configurations of deploy/
that are the templates with the values of an example.
"""

from __future__ import annotations

import json
import operator
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import yaml

ROOT = Path(__file__).parents[2]
ROLES = ROOT / "deploy" / "ansible" / "roles"

# Three devices, of which two are coordinators; what has to be changed by hand is CHANGE.
_NAMES = ("pi-1", "pi-2", "pi-3")
EXAMPLE: Mapping[str, Any] = {
    "inventory_hostname": "pi-1",
    "groups": {"coordinator": list(_NAMES[:2]), "store": list(_NAMES)},
    "hostvars": {name: {"ansible_host": f"{name}.local"} for name in _NAMES},
    "store_users": [""],
    "store_password": "CHANGE",
    "shared_address": "192.168.1.84",
    "shared_prefix": 24,
    "shared_device": "eth0",
}
# File below deploy/ -> the role and its template.
CONFIGURATIONS = {
    "nats/nats-server.conf": ("store", "nats-server.conf.j2"),
    "haproxy/pair.cfg": ("shared", "haproxy.cfg.j2"),
    "haproxy/keepalived.conf": ("shared", "keepalived.conf.j2"),
}


def templates() -> jinja2.Environment:
    """Jinja with the filters of Ansible that the roles use."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters["to_json"] = json.dumps
    environment.filters["basename"] = lambda path: Path(path).name
    environment.filters["bool"] = lambda value: str(value).lower() in {"true", "yes", "1", "on"}
    environment.filters["quote"] = shlex.quote
    environment.filters["combine"] = operator.or_
    environment.filters["split"] = str.split
    return environment


def read(path: Path) -> Any:
    """A file of YAML."""
    return yaml.safe_load(path.read_text())


def rendered(role: str, template: str, given: Mapping[str, Any]) -> str:
    """A role's template with these variables, over the role's own."""
    own = read(ROLES / role / "defaults" / "main.yml") | read(ROLES / role / "vars" / "main.yml")
    plain = {key: value for key, value in own.items() if "{{" not in str(value)}
    text = (ROLES / role / "templates" / template).read_text()
    return templates().from_string(text).render(plain | dict(given))


def configurations() -> dict[Path, str]:
    """The files of deploy/ that come from templates."""
    return {
        ROOT / "deploy" / file: rendered(role, template, EXAMPLE)
        for file, (role, template) in CONFIGURATIONS.items()
    }


if __name__ == "__main__":
    for target, text in configurations().items():
        target.write_text(text)
