"""`imbrex watch` as a process, with a real coordinator, camera and MQTT broker."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from amqtt.broker import Broker as RealBroker
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.store import free_port
from imbrex.watch.mqtt import Broker, Publisher, as_id, label_ids
from models.digits.examples import examples
from protos.errors import BadConfiguration, BadRequest, Unavailable
from tests.cli.run_cli import imbrex_forked
from tests.forked import Forked
from tests.serving.processes import Service, serving, wait
from tests.watch.cameras import Camera, camera

LONG_S = 60


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("watched"), ["--model", "digits"], workers=1) as running:
        yield running


@contextmanager
def watching(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    process = Forked(
        ["watch", *arguments],
        strict=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, process.stderr.read() if process.stderr else ""
    read: dict[str, Any] = json.loads(text)
    return read


def test_a_folder_s_pictures_are_answered_newest_first(service: Service, tmp_path: Path) -> None:
    sheets = examples()[:3]
    for sheet in sheets:
        shutil.copy(sheet.path, tmp_path / sheet.path.name)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with watching(tmp_path, "--existing", "--url", service.url, "--frames", 4) as process:
        lines = [line(process) for _ in range(4)]
        assert process.wait(LONG_S) == 0
        assert process.stderr is not None
        told = process.stderr.read()
    answered = {each["name"]: each for each in lines if "error" not in each}
    (failed,) = [each for each in lines if "error" in each]
    assert (failed["name"], failed["error"]["code"]) == ("broken.png", "bad_request")
    for sheet in sheets:
        labels = sorted(each["label"] for each in answered[sheet.path.name]["predictions"])
        assert labels == sorted(truth.label for truth in sheet.truth)
    assert "3 answered" in told
    assert "1 failed" in told


def test_of_a_camera_only_the_newest_frames_are_answered(service: Service) -> None:
    with camera() as yard, watching(yard.url, "--url", service.url, "--frames", 3) as process:
        stop = threading.Event()

        def shoot() -> None:
            while not stop.wait(0.01):
                yard.more.release()

        shooting = threading.Thread(target=shoot)
        shooting.start()
        lines = [line(process) for _ in range(3)]
        stop.set()
        shooting.join()
    numbers = [each["frame"] for each in lines]
    assert numbers == sorted(numbers)
    assert lines[-1]["dropped"] > 0
    assert lines[-1]["frame"] > 2
    assert all(each["latency_s"] > 0 and each["age_s"] > 0 for each in lines)


def test_ctrl_c_ends_it_with_what_was_done(service: Service, tmp_path: Path) -> None:
    shutil.copy(examples()[0].path, tmp_path / "one.png")
    with watching(tmp_path, "--existing", "--url", service.url) as process:
        line(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG_S) == 0
        assert process.stderr is not None
        assert "1 answered" in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("/nowhere",), "there is no folder"),
        (("http://127.0.0.1:1/mjpg",), "cannot be opened"),
        ((".", "--mqtt", "http://hub"), "URL of a broker"),
        ((".", "--mqtt", "mqtt://127.0.0.1:1"), "no MQTT broker"),
    ],
)
def test_unwatchable_source_fails_with_cause_and_cure(
    arguments: tuple[str, ...], code: str
) -> None:
    ran = imbrex_forked("watch", *arguments, "--url", "http://127.0.0.1:1")
    assert ran.code == 1
    assert code in ran.err
    assert "cure:" in ran.err


def test_watch_ends_without_a_coordinator_or_with_an_unknown_model(
    service: Service, tmp_path: Path
) -> None:
    shutil.copy(examples()[0].path, tmp_path / "one.png")
    ran = imbrex_forked("watch", tmp_path, "--existing", "--url", "http://127.0.0.1:1")
    assert (ran.code, "no coordinator answers" in ran.err) == (1, True)
    ran = imbrex_forked("watch", tmp_path, "--existing", "--url", service.url, "--model", "none")
    assert (ran.code, "no model 'none'" in ran.err) == (1, True)


# ------------------------------------------------------------ MQTT


@contextmanager
def broker(port: int = 0, *, allow_anonymous: bool = True) -> Iterator[int]:
    """A real broker on loopback; its port, by default a free one."""
    port = port or free_port()
    ready, loop = threading.Event(), asyncio.new_event_loop()
    allowed = {"allow_anonymous": allow_anonymous}
    settings = {
        "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": allowed},
    }

    async def run() -> None:
        server = RealBroker(settings, loop=loop)
        await server.start()
        ready.set()
        await ended.wait()
        await server.shutdown()

    ended = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert ready.wait(LONG_S)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(LONG_S)
        loop.close()


@contextmanager
def listening(port: int, topic: str) -> Iterator[dict[str, list[bytes]]]:
    """Messages by topic, as they come."""
    found: dict[str, list[bytes]] = {}
    ready = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.on_subscribe = lambda *_: ready.set()
    client.on_message = lambda _c, _u, message: found.setdefault(message.topic, []).append(
        message.payload
    )
    client.connect("127.0.0.1", port)
    client.subscribe(topic, qos=1)
    client.loop_start()
    assert ready.wait(LONG_S)
    try:
        yield found
    finally:
        client.disconnect()
        client.loop_stop()


def wait_for(found: dict[str, list[bytes]], topic: str, last: bytes | None = None) -> bytes:
    for _ in range(LONG_S * 100):
        if topic in found and last in (None, found[topic][-1]):
            return found[topic][-1]
        threading.Event().wait(0.01)
    raise AssertionError((topic, last, found))


def test_home_assistant_is_told_of_sensors_and_answers(service: Service, tmp_path: Path) -> None:
    sheet = examples()[0]
    shutil.copy(sheet.path, tmp_path / "one.png")
    with broker() as port, listening(port, "#") as found:
        url = f"mqtt://127.0.0.1:{port}/home"
        flags = ["--mqtt", url, "--name", "Yard 1", "--presence", "7"]
        with watching(tmp_path, "--existing", "--url", service.url, *flags) as process:
            line(process)
            answer = json.loads(wait_for(found, "home/yard_1"))
            assert wait_for(found, "home/yard_1/availability") == b"online"
            config = json.loads(
                wait_for(found, "homeassistant/binary_sensor/imbrex_yard_1/7/config")
            )
            process.send_signal(signal.SIGTERM)
            assert process.wait(LONG_S) == 0
        wait_for(found, "home/yard_1/availability", b"offline")
    assert sorted(answer["labels"]) == sorted(truth.label for truth in sheet.truth)
    assert config["state_topic"] == "home/yard_1"
    assert config["availability_topic"] == "home/yard_1/availability"
    assert config["unique_id"] == "imbrex_yard_1_7"
    assert config["device"]["name"] == "imbrex Yard 1"


ANY_NAME = [
    *(
        "前院",
        "后院",
        "Hof",
        "Höf",
        "Hóf",
        "höf",
        "HÖF",
        "Küche",
        "Köche",
        "двор",
        "сад",
        "🐈",
        "🐕",
    ),
    *("cat", "cat 🐈", "cat 🐕", "??", "!!", "watch", "'a' \"b\""),
]


def test_different_names_have_different_ids_in_any_order() -> None:
    ids = {name: as_id(name) for name in ANY_NAME}
    assert len(set(ids.values())) == len(ANY_NAME)
    for each in ids.values():
        assert re.fullmatch("[a-z0-9_]+", each)
    assert {name: as_id(name) for name in reversed(ANY_NAME)} == ids
    assert as_id(unicodedata.normalize("NFD", "Küche")) == as_id("Küche")  # as macOS writes it
    assert label_ids(ANY_NAME) == label_ids(ANY_NAME[::-1])
    labels = ["a b", "a-b", 'a "b"', "A B"]
    assert label_ids(labels) == label_ids(labels[::-1])
    assert len(set(label_ids(labels).values())) == 4


def test_no_two_watches_share_topics_or_entities() -> None:
    seen: set[str] = set()
    for name in ANY_NAME:
        publisher = Publisher(Broker.of("mqtt://hub"), name, "digits", ANY_NAME)
        for topic, told in publisher.announcements().items():
            found = {topic, told["unique_id"]}
            assert not found & seen
            seen |= found
    topics = {
        told["state_topic"]
        for name in ANY_NAME
        for told in Publisher(Broker.of("mqtt://hub"), name, "m").announcements().values()
    }
    assert len(topics) == len(ANY_NAME)


@pytest.mark.parametrize(
    "label",
    [
        *ANY_NAME,
        "a\\b",
        "}}",
        "{{ x }}",
        "{% y %}",
        "{# z #}",
        "a\nb",
        "\u2028",
        "it's",
        'say "hi"',
    ],
)
def test_presence_is_seen_by_home_assistant_whatever_the_label(label: str) -> None:
    jinja2 = pytest.importorskip("jinja2")
    publisher = Publisher(Broker.of("mqtt://hub"), "yard", "digits", [label])
    sent: list[str] = []
    publisher._client.publish = lambda topic, text, qos: sent.append(text) or _Sent()  # type: ignore
    publisher({"predictions": [{"label": unicodedata.normalize("NFD", label)}]})
    (sensor,) = [
        told for topic, told in publisher.announcements().items() if "binary_sensor" in topic
    ]
    template = jinja2.Template(json.loads(json.dumps(sensor))["value_template"])
    assert template.render(value_json=json.loads(sent[0])) == "ON"
    assert template.render(value_json={"labels": ["another"]}) == "OFF"


class _Sent:
    """What paho answers for a message that the broker did not take."""

    rc = paho.MQTT_ERR_NO_CONN


def test_a_watch_that_dies_is_offline_by_the_broker_s_word(
    service: Service, tmp_path: Path
) -> None:
    shutil.copy(examples()[0].path, tmp_path / "one.png")
    with broker() as port, listening(port, "imbrex/#") as found:
        flags = ["--mqtt", f"mqtt://127.0.0.1:{port}"]
        with watching(tmp_path, "--existing", "--url", service.url, *flags) as process:
            line(process)
            wait_for(found, "imbrex/watch/availability", b"online")
            process.kill()
            wait_for(found, "imbrex/watch/availability", b"offline")


@contextmanager
def shooting(yard: Camera) -> Iterator[None]:
    """Ten pictures a second."""
    stop = threading.Event()

    def shoot() -> None:
        while not stop.wait(0.1):
            yard.more.release()

    thread = threading.Thread(target=shoot)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def until(process: subprocess.Popen[str], *, answered: bool) -> dict[str, Any]:
    """The next line with an answer, or with an error."""
    while ("error" not in (found := line(process))) != answered:
        pass
    return found


def test_coordinator_and_broker_go_and_return_and_the_watch_goes_on(tmp_path: Path) -> None:
    port, brokers = free_port(), free_port()
    url, hub = f"http://127.0.0.1:{port}", f"mqtt://127.0.0.1:{brokers}"
    flags = ["--model", "digits", "--port", str(port)]
    with ExitStack() as watch, camera() as yard, shooting(yard):
        with broker(brokers):
            with serving(tmp_path / "before", flags, workers=1):
                process = watch.enter_context(watching(yard.url, "--url", url, "--mqtt", hub))
                until(process, answered=True)
            lost = until(process, answered=False)
            assert lost["error"]["code"] == "no_coordinator"
        with serving(tmp_path / "after", flags, workers=1):
            until(process, answered=True)
            with broker(brokers), listening(brokers, "#") as found:
                wait_for(found, "imbrex/watch/availability", b"online")
                wait_for(found, "homeassistant/sensor/imbrex_watch/count/config")
                before = len(found.get("imbrex/watch", []))
                until(process, answered=True)
                wait(lambda: len(found.get("imbrex/watch", [])) > before)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG_S) == 0


def test_a_camera_s_secrets_reach_neither_lines_nor_topics_nor_errors(service: Service) -> None:
    """A user, a password, a path, a query, a fragment: in all that leaves."""
    with broker() as port, listening(port, "#") as found, camera() as yard, shooting(yard):
        host = yard.url.removeprefix("http://").removesuffix("/mjpg")
        url = f"http://zquser:zqpass@{host}/mjpg/zqpath?user=zqa&password=zq@b#zqfragment"
        flags = ["--url", service.url, "--mqtt", f"mqtt://127.0.0.1:{port}", "--name", "Hof"]
        with watching(url, *flags) as process:
            answer = until(process, answered=True)
            wait_for(found, "imbrex/hof")
            yard.closing.set()
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=LONG_S)
    assert answer["source"] == answer["name"] == "http://127.0.0.1 (Hof)"
    told = [json.dumps(answer), out, err, repr(found)]
    assert "zq" not in "".join(told)


@pytest.mark.parametrize(
    "flags",
    [
        ["http://zq:zq@127.0.0.1:1/zq?zq#zq"],
        ["http://zq:z/zq@127.0.0.1:1/"],
        ["http://zq:z[zq@127.0.0.1:1/"],
        ["zq:zq@127.0.0.1/stream"],
        [".", "--mqtt", "mqtt://zq:zq@127.0.0.1:1/zq"],
        [".", "--mqtt", "mqtt://zq:zq/zq@127.0.0.1:1/zq"],
        [".", "--mqtt", "mqtt://zq:1/zq@127.0.0.1:1/zq"],
        [".", "--mqtt", "mqtt://zq:z[zq@127.0.0.1:1/zq"],
        [".", "--mqtt", "mqtt://zq:1?zq@127.0.0.1:1/zq"],
        [".", "--mqtt", "mqtt://zq@127.0.0.1:1/zq"],
        [".", "--existing", "--url", "http://zq:zq@127.0.0.1:1/zq?zq#zq"],
        [".", "--existing", "--url", "http://zq:z/zq@127.0.0.1:1/"],
        [".", "--existing", "--url", "zq:z[zq@127.0.0.1:1/"],
    ],
)
def test_no_error_tells_a_secret(flags: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(examples()[0].path, tmp_path / "one.png")
    ran = imbrex_forked(
        "watch", *(flags if "--url" in flags else [*flags, "--url", "http://127.0.0.1:1"])
    )
    assert ran.code == 1
    assert "cure:" in ran.err
    assert "Traceback" not in ran.err
    assert "zq" not in ran.out + ran.err


def test_templates_say_what_they_should() -> None:
    jinja2 = pytest.importorskip("jinja2")
    publisher = Publisher(Broker.of("mqtt://hub"), "yard", "digits", ['a "b"', "person"])
    line = {"predictions": [{}, {}], "labels": ["person"], "latency_s": 0.0812}
    told = {
        topic.split("/")[3]: jinja2.Template(each["value_template"]).render(value_json=line)
        for topic, each in publisher.announcements().items()
    }
    assert told == {"count": "2", "latency": "81.2", "a_b": "OFF", "person": "ON"}


@pytest.mark.parametrize(
    "url", ["http://hub", "mqtt://", "mqtt://me:secret@hub", "mqtt://hub:x", "mqtt://hub/a/#"]
)
def test_an_address_that_is_no_broker_s_is_refused(url: str) -> None:
    with pytest.raises(BadRequest) as caught:
        Broker.of(url)
    assert "secret" not in caught.value.cause
    assert caught.value.cure


def test_addresses_and_ids() -> None:
    assert Broker.of("mqtts://me@hub/a/b") == Broker("hub", 8883, "me", "a/b", True)
    assert Broker.of("mqtt://hub") == Broker("hub", 1883, "", "imbrex", False)
    assert [as_id(each) for each in ("Yard 1", "", "back-door")] == ["yard_1", "watch", "back_door"]
    with pytest.raises((Unavailable, BadConfiguration)):
        Publisher(Broker("127.0.0.1", 1, "", "x", False), "y", "z").__enter__()
