"""Ansible's roles: every variable is declared and documented, settings files are accepted."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from coordinator.trust.authority import JOINED_FILE
from coordinator.trust.cluster_state import FOLDER, STATE_FILE
from imbrex.cli.app import app
from tests.deploy.rendering import EXAMPLE, configurations, read, templates
from tests.deploy.rendering import rendered as template
from tests.deploy.test_units import DAEMONS, daemons, options

ROOT = Path(__file__).parents[2]
ANSIBLE = ROOT / "deploy" / "ansible"
ROLES = ("imbrex", "worker", "coordinator", "store", "shared")
# The unit says where the state is; a token is used once; certificates make the secret
# superfluous.
NOT_IN_FILES = {"state_dir", "join", "secret"}
GROUPS = {"workers": ["kitchen", "hall", "attic"], "coordinator": ["living-room"]}
HOSTS = {
    "kitchen": {"ansible_host": "192.168.1.21"},
    "hall": {"ansible_host": "fd00::22", "worker_port": 9470},
    "attic": {"worker_address": "attic.local", "ansible_host": "10.8.0.4"},
    "living-room": {"ansible_host": "192.168.1.20"},
}


def defaults(role: str) -> dict[str, Any]:
    found: dict[str, Any] = read(ANSIBLE / "roles" / role / "defaults" / "main.yml")
    return found


def rendered(daemon: str, **given: Any) -> dict[str, Any]:
    """The settings file of a daemon, with these variables beside the defaults."""
    environment = templates()
    known: dict[str, Any] = {
        "inventory_hostname": "kitchen",
        "ansible_host": "192.168.1.21",
        "groups": GROUPS,
        "hostvars": HOSTS,
        "ansible_facts": {"default_ipv4": {"address": "192.168.1.20"}},
        "coordinator_models_there": "/etc/imbrex/models",
    }
    for key, value in (defaults("imbrex") | defaults(daemon) | given).items():
        template = isinstance(value, str) and "{{" in value
        known[key] = environment.from_string(value).render(known) if template else value
    path = ANSIBLE / "roles" / daemon / "templates" / f"{daemon}.toml.j2"
    return tomllib.loads(environment.from_string(path.read_text()).render(known))


def accepted(daemon: str, document: Mapping[str, Any], folder: Path) -> Any:
    """What the daemon makes of a settings file."""
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in document.items()]
    file = folder / f"{daemon}.toml"
    file.write_text("".join(lines))
    return DAEMONS[daemon].load(file, environ={})


def test_every_file_of_tasks_that_is_named_is_in_the_repository() -> None:
    """Git may ignore one that is there on the machine of whoever wrote it."""
    kept = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "deploy/ansible"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    files = {ROOT / each for each in kept} or set(ANSIBLE.rglob("*.yml"))
    named = {
        (path, word)
        for path in files
        if path.suffix == ".yml"
        for word in re.findall(
            r"(?:tasks_from|include_tasks|import_tasks): (\w+\.yml)", path.read_text()
        )
    }
    assert len(named) > 20
    tasks = {path.name for path in files if path.parent.name == "tasks"}
    assert {(path, word) for path, word in named if word not in tasks} == set()


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_is_declared_with_its_default(role: str) -> None:
    specs = read(ANSIBLE / "roles" / role / "meta" / "argument_specs.yml")
    options = specs["argument_specs"]["main"]["options"]
    assert {key: option.get("default") for key, option in options.items()} == defaults(role)
    assert all(option["description"] and option["type"] for option in options.values())
    assert all(key.startswith(f"{role}_") for key in options)


def test_every_variable_that_pages_name_is_one() -> None:
    known = {key for role in ROLES for key in defaults(role)}
    prefixes = "|".join(sorted({key.partition("_")[0] for key in known} - {"imbrex"}))
    pages = (path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    named = {name for page in pages for name in re.findall(rf"`((?:{prefixes})_[a-z_]+)`", page)}
    assert len(named) > 15
    assert named - known == {"shared_devices"}  # what the doctor may find


@daemons
def test_the_daemon_accepts_its_settings_file(daemon: str, tmp_path: Path) -> None:
    document = rendered(daemon, imbrex_cluster='zu "Hause"')
    settings = accepted(daemon, document, tmp_path)
    assert (settings.cluster, settings.host) == ('zu "Hause"', "0.0.0.0")


@daemons
def test_every_setting_has_a_variable(daemon: str) -> None:
    given = {"coordinator_model_repository": "/srv/models", "coordinator_wire": "fp16"}
    given |= {"coordinator_tls_cert": "/etc/imbrex/cert.pem", "coordinator_tls_key": "/key.pem"}
    given |= {"coordinator_max_models_bytes": 10**9}
    assert set(rendered(daemon, **given)) == set(DAEMONS[daemon].model_fields) - NOT_IN_FILES


@daemons
def test_a_playbook_without_variables_keeps_the_daemons_defaults(
    daemon: str, tmp_path: Path
) -> None:
    settings = accepted(daemon, rendered(daemon), tmp_path).model_dump()
    plain = accepted(daemon, {}, tmp_path).model_dump()
    chosen = {"host", "host_worker", "name", "workers", "grpc_port", "data_port"}
    assert {key: settings[key] for key in settings.keys() - chosen} == {
        key: plain[key] for key in plain.keys() - chosen
    }


def test_values_from_the_command_line_are_text_and_work_too(tmp_path: Path) -> None:
    given = {"worker_pace": "0.5", "worker_mdns": "false", "worker_memory_mb": "500"}
    settings = accepted("worker", rendered("worker", **given), tmp_path)
    assert (settings.pace, settings.mdns, settings.memory_mb) == (0.5, False, 500)


def test_the_coordinator_lists_every_worker() -> None:
    document = rendered("coordinator", coordinator_workers=["192.168.2.9:8470"])
    assert document["workers"] == [
        "192.168.1.21:8470",
        "[fd00::22]:9470",
        "attic.local:8470",
        "192.168.2.9:8470",
    ]


def test_models_of_the_home_are_made_ready() -> None:
    document = rendered("coordinator", imbrex_models=["/home/me/net.onnx", "../other.onnx"])
    there = read(ANSIBLE / "roles/coordinator/vars/main.yml")["coordinator_models_there"]
    assert document["models"] == ["digits", f"{there}/net.onnx", f"{there}/other.onnx"]


def test_the_collection_has_the_version_of_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert read(ANSIBLE / "galaxy.yml")["version"] == project["version"]


def test_a_coordinator_without_workers_is_a_cluster_too() -> None:
    assert rendered("coordinator", groups={"coordinator": ["living-room"]})["workers"] == []


def test_the_playbooks_and_the_inventory_speak_of_the_same_groups() -> None:
    groups = set(read(ANSIBLE / "inventory.example.yml")["all"]["children"])
    for name in ("playbook.yml", "remove.yml"):
        plays = [play for play in read(ANSIBLE / name) if play["hosts"] != "localhost"]
        hosts = ":".join(play["hosts"] for play in plays)
        assert set(hosts.split(":")) == groups


def test_roles_and_units_speak_of_the_same_paths() -> None:
    paths = read(ANSIBLE / "roles" / "imbrex" / "vars" / "main.yml")
    for daemon in DAEMONS:
        unit = (ROOT / "deploy" / "systemd" / f"imbrex-{daemon}.service").read_text()
        assert f"ExecStart={paths['imbrex_venv']}/bin/imbrex {daemon} " in unit
        assert f"--config {paths['imbrex_config']}/{daemon}.toml" in unit
        copied = ANSIBLE / "roles" / "imbrex" / "files" / f"imbrex-{daemon}.service"
        assert copied.read_text() == unit


def test_the_configurations_for_hand_work_are_what_the_templates_become() -> None:
    found = {path: path.read_text() for path in configurations()}
    assert found == configurations(), "stale: run `make configurations`"


def test_coordinators_answer_to_the_names_of_their_shared_address() -> None:
    given = {"coordinator_host_names": ["hub"], "shared_names": ["cluster.local"]}
    assert rendered("coordinator", **given)["host_names"] == ["hub", "cluster.local"]


def test_coordinators_are_told_where_every_server_of_the_store_is() -> None:
    own = read(ANSIBLE / "roles/coordinator/vars/main.yml")

    def url(known: Mapping[str, Any]) -> str:
        servers = templates().from_string(own["coordinator_servers"]).render(known)
        text = templates().from_string(own["coordinator_store"])
        return str(text.render(coordinator_servers=servers))

    known = {"groups": GROUPS | {"store": ["kitchen", "hall", "attic"]}, "hostvars": HOSTS}
    known["hostvars"] = HOSTS | {"attic": {"store_address": "attic.local"}}
    found = url(known)
    assert found == "nats://192.168.1.21:4222,[fd00::22]:4222,attic.local:4222"
    address = pytest.importorskip("coordinator.several.nats_store").StoreAddress(found)
    assert address.servers[1] == "nats://[fd00::22]:4222"
    assert url(known | {"groups": GROUPS}) == ""


def test_servers_of_the_store_know_each_other_and_some_coordinators() -> None:
    hosts = HOSTS | {"attic": {"store_address": "attic.local"}}
    groups = {"store": ["kitchen", "hall", "attic"]}
    given = {"groups": groups, "hostvars": hosts, "store_users": ["0123456789ab."]}
    text = template("store", "nats-server.conf.j2", EXAMPLE | given)
    assert re.findall(r"nats://server:CHANGE@(.*):6222", text) == [
        "192.168.1.21",
        "[fd00::22]",
        "attic.local",
    ]
    assert re.findall(r'{ user: "([^"]*)" }', text) == ["0123456789ab.coordinator.imbrex.internal"]


def test_haproxy_and_keepalived_know_every_coordinator() -> None:
    hosts = {
        "kitchen": {"coordinator_address": "fd00::21", "coordinator_port": 9460},
        "hall": {"ansible_host": "192.168.1.22"},
    }
    given = {"groups": {"coordinator": ["kitchen", "hall"]}, "hostvars": hosts}
    text = template("shared", "haproxy.cfg.j2", EXAMPLE | given)
    assert re.findall(r"^ +server (.*)$", text, re.MULTILINE) == [
        "kitchen [fd00::21]:9460",
        "hall 192.168.1.22:8460",
    ]
    both = [
        template("shared", "keepalived.conf.j2", EXAMPLE | given | {"inventory_hostname": name})
        for name in hosts
    ]
    assert [re.findall(r"priority (\d+)", each) for each in both] == [["254"], ["253"]]


def test_the_pages_inventory_of_two_coordinators_is_one() -> None:
    page = (ROOT / "docs" / "coordinators.md").read_text()
    (example,) = re.findall(r"```yaml\n(all:.*?)```", page, re.DOTALL)
    found = yaml.safe_load(example)["all"]
    groups = found["children"]
    assert set(groups) == set(read(ANSIBLE / "inventory.example.yml")["all"]["children"])
    assert set(found["vars"]) <= set(defaults("shared"))
    assert (len(groups["coordinator"]["hosts"]), len(groups["store"]["hosts"])) == (2, 3)


DROP_INS = {
    "nats-server": ("store", "store_settings"),
    "haproxy": ("shared", "shared_haproxy_settings"),
    "keepalived": ("shared", "shared_keepalived_settings"),
}


@pytest.mark.parametrize("unit", DROP_INS)
def test_drop_ins_roles_and_removal_speak_of_the_same_paths(unit: str) -> None:
    role, variable = DROP_INS[unit]
    path = read(ANSIBLE / "roles" / role / "vars" / "main.yml")[variable]
    drop_in = options(ANSIBLE / "roles" / role / "files" / f"{unit}.service.conf")
    started = " ".join(drop_in["ExecStart"] or drop_in["Environment"])
    assert path in started
    assert drop_in["StartLimitIntervalSec"] == ["0"]
    removed = (ANSIBLE / "remove.yml").read_text()
    assert f"- {path}\n" in removed
    assert f"- /etc/systemd/system/{unit}.service.d/imbrex.conf\n" in removed
    assert f"{{unit: {unit}, file: {unit}.service.d/imbrex.conf}}" in removed


def test_roles_look_for_the_authority_where_the_daemon_keeps_it() -> None:
    own = read(ANSIBLE / "roles" / "store" / "vars" / "main.yml")
    paths = read(ANSIBLE / "roles" / "imbrex" / "vars" / "main.yml")
    assert own["store_secrets"] == f"{paths['imbrex_state']}/coordinator/{FOLDER}/store"
    assert f"default('{paths['imbrex_venv']}')" in own["store_program"]
    belongs = (ANSIBLE / "roles/coordinator/tasks/belongs.yml").read_text()
    assert f"coordinator/{FOLDER}/{STATE_FILE}" in belongs
    assert f"coordinator/{FOLDER}/{JOINED_FILE}" in belongs


@pytest.mark.skipif(not shutil.which("haproxy"), reason="no HAProxy here: `make servers`")
def test_haproxy_takes_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "haproxy.cfg"
    hosts = {name: {"ansible_host": "192.0.2.1"} for name in EXAMPLE["hostvars"]}
    file.write_text(template("shared", "haproxy.cfg.j2", EXAMPLE | {"hostvars": hosts}))
    ran = subprocess.run(
        ["haproxy", "-c", "-f", file], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr


YARD = {
    "name": "yard",
    "source": "rtsp://viewer@yard.local/stream1?a=1&b=2",
    "options": """--model tinyyolov2-8 --mqtt mqtt://me@hub --presence 'garden gnome'""",
    "environment": {
        "IMBREX_CAMERA_PASSWORD": 'a "b" \\ $c `d` #e',
        "IMBREX_URL": "http://hub:8460",
    },
}


def environment_file(watch: dict[str, Any]) -> dict[str, str]:
    """What systemd reads in the file of a watch: in double quotes, a backslash escapes quotes and
    backslashes [systemd.exec(5), EnvironmentFile].
    """
    template = (ANSIBLE / "roles/coordinator/templates/watch.env.j2").read_text()
    known: dict[str, Any] = {"ansible_managed": "by Ansible", "imbrex_release": "0.1.0-ab"}
    known |= {"coordinator_watch_environment": {"IMBREX_URL": "http://here"}}
    text = templates().from_string(template).render(item=watch, **known)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    read = [re.fullmatch(r'([A-Z_]+)="((?:[^"\\]|\\["\\])*)"', line) for line in lines]
    return {found[1]: re.sub(r"\\(.)", r"\1", found[2]) for found in read if found}


def test_a_watch_is_told_what_the_inventory_says() -> None:
    told = environment_file(YARD)
    words = shlex.split(told.pop("WATCH"))
    context = get_command(app).commands["watch"].make_context("imbrex", words)
    assert context.params["source"] == YARD["source"]
    assert (context.params["model"], context.params["mqtt"]) == ("tinyyolov2-8", "mqtt://me@hub")
    assert context.params["presence"] == ["garden gnome"]
    assert told == YARD["environment"]


def test_a_watch_without_options_asks_the_coordinator_beside_it() -> None:
    told = environment_file({"name": "scans", "source": "/srv/my scans"})
    assert told == {"WATCH": "'/srv/my scans' ", "IMBREX_URL": "http://here"}


def test_the_example_of_watches_is_what_the_role_takes() -> None:
    spec = read(ANSIBLE / "roles/coordinator/meta/argument_specs.yml")["argument_specs"]["main"]
    keys = spec["options"]["coordinator_watches"]["options"]
    page = (ROOT / "docs" / "install.md").read_text()
    (example,) = re.findall(r"```yaml\n(coordinator_watches:.*?)```", page, re.DOTALL)
    (listed,) = yaml.safe_load(example)["coordinator_watches"]
    assert set(listed) == set(keys)
    assert [key for key in keys if f"| `{key}` |" not in page] == []
    words = shlex.split(listed["options"])
    get_command(app).commands["watch"].make_context("imbrex", [listed["source"], *words])


def test_watches_and_their_unit_speak_of_the_same_paths() -> None:
    paths = read(ANSIBLE / "roles/coordinator/vars/main.yml")
    unit = ROOT / "deploy" / "systemd" / Path(paths["coordinator_watch_unit_file"]).name
    assert f"EnvironmentFile={paths['coordinator_watches_there']}/%i.env" in unit.read_text()
    copied = ANSIBLE / "roles" / "coordinator" / "files" / unit.name
    assert copied.read_text() == unit.read_text()
    removed = (ANSIBLE / "remove.yml").read_text()
    assert f"paths: {paths['coordinator_watches_there']}\n" in removed
    assert f"- {paths['coordinator_watch_unit_file']}\n" in removed


def test_packages_of_a_watch_are_installed_with_it() -> None:
    extras = read(ANSIBLE / "roles/imbrex/vars/main.yml")["imbrex_extras"]
    known = {"inventory_hostname": "living-room", "groups": GROUPS, "imbrex_engines": []}
    template = templates().from_string(extras)
    assert template.render(known) == "['coordinator']"
    with_watch = template.render(known, coordinator_watches=[YARD])
    assert with_watch == "['coordinator', 'watch', 'mqtt']"
    assert (
        template.render(known | {"inventory_hostname": "hall"}, coordinator_watches=[YARD]) == "[]"
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(yaml.safe_load(with_watch)) <= set(project["optional-dependencies"])


LINT = ROOT / ".venv-deploy" / "bin" / "ansible-lint"


@pytest.mark.slow
@pytest.mark.skipif(not LINT.exists(), reason="no ansible-lint here: `make lint-deploy`")
def test_ansible_lint_finds_nothing() -> None:
    path = f"{LINT.parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        [LINT, "--nocolor"],
        cwd=ANSIBLE,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "'production'" in ran.stderr + ran.stdout
