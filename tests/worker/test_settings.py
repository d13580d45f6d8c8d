import pytest

from coordinator.settings import CoordinatorSettings
from protos.errors import BadConfiguration
from worker.daemon import WorkerHardware, run
from worker.settings import WorkerSettings


def test_later_sources_win(tmp_path):
    file = tmp_path / "worker.toml"
    file.write_text('pace = 0.5\nname = "file"\nport = 1\n')
    environ = {"IMBREX_WORKER_NAME": "env", "IMBREX_WORKER_PORT": "2", "HOME": "x"}
    settings = WorkerSettings.load(file, {"port": 3, "cluster": None}, environ)
    assert (settings.pace, settings.name, settings.port) == (0.5, "env", 3)
    assert settings.cluster == "home"


def test_a_file_may_have_a_table_for_the_worker(tmp_path):
    file = tmp_path / "imbrex.toml"
    file.write_text("[worker]\npace = 0.5\n[coordinator]\nport = 9\n")
    assert WorkerSettings.load(file, None, {}).pace == 0.5


def test_interfaces_come_as_a_list_from_the_environment():
    environ = {"IMBREX_WORKER_MDNS_INTERFACES": "127.0.0.1,10.0.0.2"}
    assert WorkerSettings.load(None, None, environ).mdns_interfaces == ("127.0.0.1", "10.0.0.2")


@pytest.mark.parametrize("pace", ["0", "-1", "1.5", "nan", "fast"])
def test_a_pace_is_a_share_of_a_core(pace):
    with pytest.raises(BadConfiguration, match=r"'pace' in IMBREX_WORKER_PACE.*share of one core"):
        WorkerSettings.load(None, None, {"IMBREX_WORKER_PACE": pace})


@pytest.mark.parametrize(
    ("daemon", "name", "given"),
    [
        (WorkerSettings, "data_port", -1),
        (CoordinatorSettings, "port", 65_536),
        (CoordinatorSettings, "enrol_port", 100_000),
        (CoordinatorSettings, "share_port", -1),
        (CoordinatorSettings, "max_in_flight", 0),
        (CoordinatorSettings, "max_queue", -1),
        (CoordinatorSettings, "max_json_bytes", 0),
    ],
)
def test_a_number_has_a_range(daemon, name, given):
    with pytest.raises(BadConfiguration, match=rf"'{name}' in the command line is not usable"):
        daemon.load(None, {name: given}, {})


def test_an_unknown_key_is_named_with_its_source(tmp_path):
    file = tmp_path / "worker.toml"
    file.write_text("pase = 0.5\n")
    with pytest.raises(BadConfiguration, match=r"'pase' in .*worker\.toml.*mean 'pace'\? Known"):
        WorkerSettings.load(file, None, {})
    with pytest.raises(BadConfiguration, match=r"'pase' in IMBREX_WORKER_PASE"):
        WorkerSettings.load(None, None, {"IMBREX_WORKER_PASE": "1"})
    with pytest.raises(BadConfiguration, match=r"'pase' in the command line"):
        WorkerSettings.load(None, {"pase": 1}, {})


@pytest.mark.parametrize("content", [None, "pace = ", b"\xff"])
def test_an_unreadable_file_is_named(tmp_path, content):
    file = tmp_path / "worker.toml"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadConfiguration, match=r"worker\.toml cannot be read"):
        WorkerSettings.load(file, None, {})


def test_a_paced_worker_computes_with_one_thread():
    assert WorkerSettings.load(None, {"pace": 0.5, "threads": 4}, {}).task_threads == 1
    assert WorkerSettings.load(None, {"threads": 4}, {}).task_threads == 4


def test_the_secret_does_not_show_and_must_fit_metadata():
    assert "sesame" not in repr(WorkerSettings.load(None, {"secret": "sesame"}, {}))
    with pytest.raises(BadConfiguration, match="secret"):
        WorkerSettings.load(None, {"secret": "größe"}, {})


@pytest.mark.parametrize("value", ["-1", "257", "many"])
def test_tasks_at_once_are_a_count(value):
    with pytest.raises(BadConfiguration, match="'concurrency' in IMBREX_WORKER_CONCURRENCY"):
        WorkerSettings.load(None, None, {"IMBREX_WORKER_CONCURRENCY": value})


def test_pace_below_one_allows_one_task_at_a_time():
    with pytest.raises(BadConfiguration, match=r"'concurrency' .* allows one task at a time"):
        WorkerSettings.load(None, {"concurrency": 2, "pace": 0.5}, {})
    assert WorkerSettings.load(None, {"concurrency": 1, "pace": 0.5}, {}).concurrency == 1


def test_a_pace_is_that_of_onnxruntime():
    paced = {"pace": 0.5}
    WorkerHardware.of(WorkerSettings.load(None, paced, {}))
    with pytest.raises(BadConfiguration, match=r"'openvino' cannot be slowed down"):
        WorkerHardware.of(WorkerSettings.load(None, paced | {"engine": "openvino"}, {}))


def test_an_engine_that_nobody_has_is_named_with_those_that_there_are():
    with pytest.raises(BadConfiguration, match=r"no engine 'abacus'.*onnxruntime"):
        WorkerHardware.of(WorkerSettings.load(None, {"engine": "abacus"}, {}))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::ffff:127.0.0.1", "127.1", "", "example.org"])
@pytest.mark.parametrize("way", ["environment", "file"])
async def test_worker_admits_no_others_without_proof_however_it_is_set(tmp_path, host, way):
    given = {"state_dir": tmp_path / "state", "mdns": False, "port": 0}
    file = tmp_path / "worker.toml"
    file.write_text(f"host = '{host}'\n" if way == "file" else "")
    environ = {"IMBREX_WORKER_HOST": host} if way == "environment" else {}
    settings = WorkerSettings.load(file, given, environ)
    assert settings.host == host
    with pytest.raises(BadConfiguration, match="would admit any caller"):
        await run(settings)
