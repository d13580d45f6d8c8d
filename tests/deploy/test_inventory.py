"""Inventories that the playbook refuses before it changes anything, and says why; with the real
Ansible.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ANSIBLE = ROOT / "deploy" / "ansible"
PLAYBOOK = ROOT / ".venv-deploy" / "bin" / "ansible-playbook"
ALONE = {"coordinator": ["pi-1"], "workers": ["pi-2"]}
PAIR = {"coordinator": ["pi-1", "pi-2"], "store": ["pi-1", "pi-2", "pi-3"], "workers": ["pi-3"]}
SHARED = {"shared_address": ""}
# An address of a network of this computer, on which all of the devices are.
HERE = "here"
FRONT = {"shared_address": HERE}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PLAYBOOK.exists(), reason="no Ansible here: `make lint-deploy`"),
]


def here() -> str:
    """An address of a network of this computer."""
    said = subprocess.check_output(["ip", "-json", "-4", "route", "show", "scope", "link"])
    networks = [ip_network(each["dst"]) for each in json.loads(said) if each["dst"] != "default"]
    if not networks:
        pytest.skip("this computer is in no network")
    return str(networks[0][1])


def checked(
    folder: Path, groups: Mapping[str, list[str]], given: Mapping[str, Any], **of: Mapping[str, Any]
) -> tuple[int, str]:
    """What the playbook's first play says of an inventory, with variables of all and of some."""
    hosts = {name for names in groups.values() for name in names}
    inventory = folder / "inventory.json"
    everywhere = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    everywhere |= given
    variables = json.dumps([everywhere, of])
    if f'"{HERE}"' in variables:
        everywhere, of = json.loads(variables.replace(f'"{HERE}"', json.dumps(here())))
    inventory.write_text(
        json.dumps(
            {
                "all": {"vars": everywhere, "hosts": {name: of.get(name) for name in hosts}},
                **{name: {"hosts": dict.fromkeys(names)} for name, names in groups.items()},
            }
        )
    )
    first = folder / "playbook.yml"
    first.write_text(yaml.safe_dump(yaml.safe_load((ANSIBLE / "playbook.yml").read_text())[:1]))
    ran = subprocess.run(
        [PLAYBOOK, "-i", inventory, first],
        env={**os.environ, "ANSIBLE_ROLES_PATH": str(ANSIBLE / "roles"), "ANSIBLE_NOCOLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return ran.returncode, " ".join(ran.stdout.split())


@pytest.mark.parametrize(("groups", "given"), [(ALONE, {}), (PAIR, SHARED), (PAIR, FRONT)])
def test_good_inventories_are_taken(tmp_path: Path, groups: Any, given: Any) -> None:
    code, said = checked(tmp_path, groups, given)
    assert code == 0, said


@pytest.mark.parametrize(
    ("groups", "given", "of", "said"),
    [
        ({"coordinators": ["pi-1"], "workers": ["pi-2"]}, {}, {}, "No device is in the group"),
        (PAIR | {"store": []}, SHARED, {}, "Put three devices into the group store"),
        (PAIR | {"store": ["pi-1", "pi-2"]}, SHARED, {}, "has 2 devices (pi-1, pi-2)"),
        (PAIR, {}, {}, "There are 2 coordinators and no shared_address"),
        (PAIR, {"shared_address": "127.0.0.84/8"}, {}, "without a prefix"),
        (PAIR, {"shared_address": "hub.local"}, {}, "without a prefix"),
        (PAIR, {"shared_address": "198.51.100.84"}, {}, "is in no network of pi-1"),
        (PAIR, FRONT, {"pi-2": {"ansible_host": HERE}}, "is that of pi-2 itself"),
        (PAIR, FRONT, {"pi-2": {"coordinator_host": "127.0.0.1"}}, "pi-2 has coordinator_host 127"),
        (PAIR, FRONT, {"pi-1": {"coordinator_tls": True}}, "by plain HTTP"),
        (PAIR, SHARED | {"coordinator_tls": True}, {}, "pi-2 cannot make itself a certificate"),
    ],
)
def test_bad_inventories_are_refused_with_cause_and_cure(
    tmp_path: Path, groups: Any, given: Any, of: Any, said: str
) -> None:
    code, found = checked(tmp_path, groups, given, **of)
    assert code != 0
    assert said in found.replace('\\"', '"')
