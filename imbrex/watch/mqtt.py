"""Answers over MQTT, announced so that Home Assistant creates sensors for them.

Topics, with the base `imbrex` and a watch called `yard`:

    imbrex/yard                     the latest answer, as its line of JSON
    imbrex/yard/availability        online, offline; the broker says offline when we are gone
    homeassistant/sensor/imbrex_yard/KIND/config           announcements, retained
    homeassistant/binary_sensor/imbrex_yard/LABEL/config
"""

import json
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from protos.daemon.texts import composed, name_hash, plain_name
from protos.daemon.urls import is_plain, shown
from protos.errors import BadConfiguration, BadRequest, Unavailable

PASSWORD_VARIABLE = "IMBREX_MQTT_PASSWORD"  # noqa: S105 - its name
DISCOVERY = "homeassistant"
CONNECT_S = 10.0
KEEP_ALIVE_S = 30
# The longest pause between attempts to reach a broker that is away; paho's own is two minutes.
LONGEST_RETRY_S = 30
# Messages queued for a broker that is away; only the newest matter.
MOST_QUEUED = 100
# We subscribe to nothing, so a broker's packets to us have a few bytes each.
LARGEST_PACKET_BYTES = 64 << 10
_PORTS = {"mqtt": 1883, "mqtts": 8883}
_NO_ID = "(?ai)[^a-z0-9_]+"


@dataclass(frozen=True, slots=True)
class Broker:
    """Where to publish: `mqtt://USER@HOST:PORT/BASE`, `mqtts://` with TLS. The password is in the
    environment: every user of a machine can see its command lines.
    """

    host: str
    port: int
    user: str
    base: str
    tls: bool

    @classmethod
    def of(cls, url: str) -> Self:
        """Reads a broker's URL.

        Raises:
            BadRequest: it is not the URL of a broker.
        """
        try:
            parts, port = urlsplit(url), urlsplit(url).port
        except ValueError:
            parts, port = urlsplit(""), -1
        if parts.scheme not in _PORTS or not parts.hostname or port == -1 or parts.password:
            raise BadRequest(
                cause=f"{shown(url)} is not the URL of a broker"
                + (": it has a password" if parts.password else ""),
                cure=f"Write mqtt://USER@HOST:PORT/TOPIC; passwords belong in {PASSWORD_VARIABLE}",
            )
        base = parts.path.strip("/") or "imbrex"
        if not is_plain(url) or set("#?") & set(url) or "+" in base:
            raise BadRequest(
                cause=f"what follows {shown(url)} is not a topic",
                cure=f"Remove + # ? and @; passwords belong in {PASSWORD_VARIABLE}",
            )
        user = unquote(parts.username or "")
        return cls(
            parts.hostname, port or _PORTS[parts.scheme], user, base, parts.scheme == "mqtts"
        )


class _Client(paho.Client):
    """Disconnects from a broker that sends larger packets than any answer to us: paho would accept
    256 MB.
    """

    def _sock_recv(self, bufsize: int) -> bytes:
        if bufsize > LARGEST_PACKET_BYTES:
            raise OSError(f"the broker sends a packet of {bufsize} bytes")
        return bytes(super()._sock_recv(bufsize))


class Publisher:
    """A sink for lines; reconnects automatically.

    `name`: the name of this watch in topics and in Home Assistant. `labels`: each becomes a sensor
    that is on while the latest frame contains it.
    """

    def __init__(self, broker: Broker, name: str, model: str, labels: Sequence[str] = ()) -> None:
        self._broker, self._name, self._model, self._labels = broker, name, model, labels
        self._id = f"imbrex_{as_id(name)}"
        self._topic = f"{broker.base}/{as_id(name)}"
        self._connected = threading.Event()
        self._unsent: list[paho.MQTTMessageInfo] = []
        self._refused = ""
        client = _Client(CallbackAPIVersion.VERSION2, client_id=f"{self._id}_{os.getpid()}")
        client.max_queued_messages_set(MOST_QUEUED)
        client.reconnect_delay_set(max_delay=LONGEST_RETRY_S)
        client.will_set(f"{self._topic}/availability", "offline", qos=1, retain=True)
        if broker.user:
            client.username_pw_set(broker.user, os.environ.get(PASSWORD_VARIABLE))
        if broker.tls:
            client.tls_set()
        client.on_connect = self._on_connect
        self._client = client

    def __enter__(self) -> Self:
        """Connects.

        Raises:
            Unavailable: no broker answers.
            BadConfiguration: the broker refuses the connection.
        """
        where = f"{self._broker.host}:{self._broker.port}"
        try:
            self._client.connect(self._broker.host, self._broker.port, KEEP_ALIVE_S)
        except (OSError, ValueError) as error:
            raise Unavailable(
                cause=f"no MQTT broker answers at {where} ({error})",
                cure="Start it there, or correct mqtt://USER@HOST:PORT/TOPIC: without a port it is "
                "1883, or 8883 for mqtts",
            ) from error
        self._client.loop_start()
        self._connected.wait(CONNECT_S)
        if self._refused or not self._connected.is_set():
            self._client.loop_stop()
            told = self._refused or "no answer"
            raise BadConfiguration(
                cause=f"the MQTT broker at {where} refuses the connection: {told}",
                cure=f"Put the user in the URL and the password in {PASSWORD_VARIABLE}",
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._client.is_connected():
            told = self._client.publish(
                f"{self._topic}/availability", "offline", qos=1, retain=True
            )
            with suppress(RuntimeError, ValueError):  # the connection was lost meanwhile
                told.wait_for_publish(CONNECT_S)
        self._client.disconnect()
        self._client.loop_stop()

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Publishes an answer; a failed frame does not change sensors."""
        if "error" in line:
            return
        found = [
            composed(str(prediction["label"]))
            for prediction in line["predictions"]
            if "label" in prediction
        ]
        # Messages that the broker does not accept would be queued without a limit: paho's limit is
        # for other qualities of service.
        self._unsent = [message for message in self._unsent if _is_queued(message)]
        if len(self._unsent) >= MOST_QUEUED:
            return
        told = self._client.publish(self._topic, json.dumps({**line, "labels": found}), qos=0)
        if told.rc == paho.MQTT_ERR_SUCCESS:
            self._unsent.append(told)

    def _on_connect(
        self,
        client: paho.Client,
        userdata: Any,
        flags: paho.ConnectFlags,
        reason: ReasonCode,
        properties: Any,
    ) -> None:
        """Runs at every connection: a restarted broker may have lost our announcements."""
        self._unsent = []  # the client has dropped them, too
        if reason.is_failure:
            self._refused = str(reason)
        else:
            for topic, announced in self.announcements().items():
                client.publish(topic, json.dumps(announced), qos=1, retain=True)
            client.publish(f"{self._topic}/availability", "online", qos=1, retain=True)
        self._connected.set()

    def announcements(self) -> dict[str, dict[str, Any]]:
        """The announcements for Home Assistant, by topic."""
        sensors: dict[str, dict[str, Any]] = {
            "sensor/count": {
                "name": "Found",
                "value_template": "{{ value_json.predictions | count }}",
                "json_attributes_topic": self._topic,
                "json_attributes_template": "{{ {'labels': value_json.labels} | tojson }}",
                "state_class": "measurement",
                "icon": "mdi:image-search",
            },
            "sensor/latency": {
                "name": "Latency",
                "value_template": "{{ (value_json.latency_s * 1000) | round(1) }}",
                "unit_of_measurement": "ms",
                "device_class": "duration",
                "state_class": "measurement",
                "entity_category": "diagnostic",
            },
        }
        for label, part in label_ids(self._labels).items():
            # Jinja reads no pairs of surrogates, which JSON writes for an emoji.
            literal = json.dumps(label, ensure_ascii=False)
            sensors[f"binary_sensor/{part}"] = {
                "name": label,
                "value_template": f"{{{{ 'ON' if {literal} in value_json.labels else 'OFF' }}}}",
                "device_class": "occupancy",
            }
        found = {}
        for kind, sensor in sensors.items():
            platform, _, part = kind.partition("/")
            found[f"{DISCOVERY}/{platform}/{self._id}/{part}/config"] = {
                **sensor,
                "unique_id": f"{self._id}_{part}",
                "state_topic": self._topic,
                "availability_topic": f"{self._topic}/availability",
                "device": {
                    "identifiers": [self._id],
                    "name": f"imbrex {self._name}",
                    "manufacturer": "imbrex",
                    "model": self._model,
                    "sw_version": metadata.version("imbrex"),
                },
            }
        return found


def _is_queued(told: paho.MQTTMessageInfo) -> bool:
    """Whether a message is still waiting; it is not if it was lost with its connection."""
    try:
        return not told.is_published()
    except (RuntimeError, ValueError):
        return False


def as_id(name: str) -> str:
    """A name as part of a topic."""
    plain = plain_name(name, _NO_ID).lower().strip("_")
    return plain or (f"watch_{name_hash(name)}" if name else "watch")


def label_ids(labels: Sequence[str]) -> dict[str, str]:
    """The id of each label, whatever their order: of several with one id, the first in the
    alphabet keeps it.
    """
    found: dict[str, str] = {}
    for label in sorted({composed(label) for label in labels}):
        plain = as_id(label)
        found[label] = f"{plain}_{name_hash(label)}" if plain in found.values() else plain
    return {label: found[label] for label in map(composed, labels)}
